"""The section `verify` of a feed: where the source database is, and a password that nobody sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_config import put, read, refusal

URL = "feeds.0.verify.url"
SECRET = "a/b@c:%41"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("mysql://u:${SECRET}@db.example", ("db.example", 3306, "u", SECRET)),
        ("mysql://u:${SECRET}@10.0.0.1:4000/", ("10.0.0.1", 4000, "u", SECRET)),
        ("mysql://u@[::1]:3307", ("::1", 3307, "u", "")),
    ],
)
def test_the_password_is_taken_as_it_is(tmp_path: Path, url: str, parts: tuple[object, ...]) -> None:
    feed = read(tmp_path, put("feeds.0.verify", {"url": url, "ca_file": "ca.pem"}), SECRET=SECRET).feeds[0]
    assert feed.verify is not None
    address = feed.verify.address
    assert (address.host, address.port, address.user, address.password) == parts
    assert feed.verify.ca_file == str(tmp_path / "ca.pem")
    assert SECRET not in repr(feed) and SECRET not in repr(address)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://u:hunter2@db", "holds a password in plain text"),
        ("postgresql://u:${SECRET}@db", "is not of the form mysql://"),
        ("mysql://u:${SECRET}@db:99999", "is not of the form mysql://"),
        ("mysql://db", "is not of the form mysql://"),
    ],
)
def test_other_urls_are_refused(tmp_path: Path, url: str, said: str) -> None:
    text = refusal(tmp_path, put("feeds.0.verify", {"url": url}), SECRET=SECRET)
    assert "feeds[0].verify.url" in text and said in text
    assert SECRET not in text and "hunter2" not in text


def test_without_the_section_there_is_no_database(tmp_path: Path) -> None:
    assert read(tmp_path).feeds[0].verify is None


@pytest.mark.parametrize("schedule", ["0 3 * * 0", "*/15 0-6 1,15 * MON-FRI", "@daily"])
def test_a_schedule_is_that_of_cron(tmp_path: Path, schedule: str) -> None:
    url = "mysql://u:${SECRET}@db"
    feed = read(tmp_path, put("feeds.0.verify", {"url": url, "schedule": schedule}), SECRET=SECRET).feeds[0]
    assert feed.verify is not None and feed.verify.schedule == schedule


@pytest.mark.parametrize("schedule", ["daily", "0 3 * *", "", "0 3 * * 0 2026 x"])
def test_what_is_no_schedule_is_refused(tmp_path: Path, schedule: str) -> None:
    settings = {"url": "mysql://u:${SECRET}@db", "schedule": schedule}
    assert "is no schedule of cron" in refusal(tmp_path, put("feeds.0.verify", settings), SECRET=SECRET)
