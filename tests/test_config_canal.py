from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cdc_lakehouse.config import Address, CanalSource
from cdc_lakehouse.config.secrets import plain_secrets

LEAST: dict[str, Any] = {"type": "canal", "addresses": ["canal-1:11111"], "destination": "example"}


def test_what_need_not_be_said() -> None:
    source = CanalSource.model_validate(LEAST)
    assert (source.user, source.password, source.filter) == (None, None, None)
    assert (source.batch_size, source.time_zone, source.date_separator) == (1000, "UTC", "day")
    assert (source.max_entries, source.max_bytes, source.max_seconds) == (1_000_000, 1 << 28, 300)


def test_all_that_can_be_said() -> None:
    said = {
        **LEAST, "user": "canal", "password": "p", "filter": r"shop\..*", "batch_size": 50,
        "max_entries": 7, "max_bytes": 8, "max_seconds": 0.5, "time_zone": "Asia/Shanghai", "date_separator": "month",
        "initial": {"type": "mydumper", "uri": "snapshot", "log_starts_at_dump": True},
    }  # fmt: skip
    source = CanalSource.model_validate(said)
    assert source.model_dump(mode="json", exclude_unset=True) == said
    assert source.initial is not None and source.anchored(Path("/etc")).initial == source.initial.anchored(Path("/etc"))
    assert "password" not in repr(source)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("canal-1.example.com:11111", ("canal-1.example.com", 11111)),
        ("10.0.0.7:1", ("10.0.0.7", 1)),
        ("[2001:db8::7]:11111", ("2001:db8::7", 11111)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    (endpoint,) = CanalSource.model_validate({**LEAST, "addresses": [text]}).endpoints
    assert endpoint == Address(*address)
    assert str(endpoint) == text


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"addresses": []}, "at least 1 item"),
        ({"addresses": ["canal-1"]}, "'canal-1' is not of the form host:port"),
        ({"addresses": ["canal-1:0"]}, "not of the form host:port"),
        ({"addresses": ["canal-1:65536"]}, "not of the form host:port"),
        ({"addresses": ["tcp://canal-1:11111"]}, "not of the form host:port"),
        ({"addresses": ["me@canal-1:11111"]}, "not of the form host:port"),
        ({"addresses": ["2001:db8::7:11111"]}, "not of the form host:port"),
        ({"destination": ""}, "at least 1 character"),
        ({"filter": ""}, "at least 1 character"),
        ({"batch_size": 0}, "greater than or equal to 1"),
        ({"max_entries": 0}, "greater than 0"),
        ({"initial": {"type": "mydumper", "uri": "s", "start_ts": 5}}, "start_ts is a changefeed's"),
        ({"max_bytes": 0}, "greater than 0"),
        ({"max_seconds": 0}, "greater than 0"),
        ({"time_zone": "Mars"}, "not a time zone of the IANA database"),
        ({"date_separator": "hour"}, "'none', 'year', 'month' or 'day'"),
        ({"client_id": "7"}, "Extra inputs"),
    ],
)
def test_what_is_refused(other: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CanalSource.model_validate({**LEAST, **other})


def test_the_password_comes_from_the_environment() -> None:
    (fault,) = plain_secrets({"feeds": [{"source": {**LEAST, "password": "hunter2"}}]})
    assert str(fault).startswith("feeds[0].source.password: holds a secret in plain text")
    assert not [*plain_secrets({"feeds": [{"source": {**LEAST, "password": "${CANAL_PASSWORD}"}}]})]
