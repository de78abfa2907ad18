"""Secrets come by `${NAME}` alone, and no text that a person sees holds one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lakehouse.config.secrets import HIDDEN, without_secrets
from tests.test_config import CATALOG, Edit, put, read, refusal, refusal_of_text, update

SECRET = "hunter2-of-the-feed"


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (update(CATALOG, token=SECRET), "lake.catalog.token"),
        (update(CATALOG, Token=SECRET), "lake.catalog.Token"),
        (update(CATALOG, token=SECRET + "${REST}"), "lake.catalog.token"),
        (update(CATALOG, credential=f"id:{SECRET}"), "lake.catalog.credential"),
        (update(CATALOG, **{"s3.secret-access-key": SECRET}), "lake.catalog.s3.secret-access-key"),
        (update(CATALOG, **{"s3.access-key-id": SECRET}), "lake.catalog.s3.access-key-id"),
        (update(CATALOG, uri=f"postgresql://cdc:{SECRET}@db/lake"), "lake.catalog.uri"),
        (update(CATALOG, uri=f"postgresql://${{USER}}:{SECRET}@db/lake"), "lake.catalog.uri"),
        (update(CATALOG, uri=f"postgresql://cdc:${{REST}}{SECRET}@db/lake"), "lake.catalog.uri"),
        (update("lake.spark.conf", **{"spark.x.password": SECRET}), "lake.spark.conf.spark.x.password"),
        (update("feeds.0.source", uri=f"s3://key:{SECRET}@bucket/sink"), "feeds[0].source.uri"),
        (update("feeds.0.source", password=SECRET), "feeds[0].source.password"),
    ],
)
def test_a_secret_in_plain_text_is_refused_and_not_shown(tmp_path: Path, edit: Edit, place: str) -> None:
    text = refusal(tmp_path, edit, USER="cdc", REST="")
    assert place in text and "plain text" in text and "${NAME}" in text
    assert SECRET not in text


@pytest.mark.parametrize(
    "edit",
    [
        update(CATALOG, password=20260131),
        update(CATALOG, **{"adls.account-key": SECRET}),
        update(CATALOG, **{"header.Authorization": f"Bearer {SECRET}"}),
        update("feeds.0.source", uri=f"s3://bucket/sink?secret-access-key={SECRET}"),
        update(CATALOG, uri=f"postgresql://db/lake?user=cdc&password={SECRET}"),
    ],
    ids=["a number", "adls.account-key", "header.Authorization", "query of a URI", "password in a query"],
)
def test_more_secrets_in_plain_text_are_refused(tmp_path: Path, edit: Edit) -> None:
    assert "plain text" in refusal(tmp_path, edit)


def test_all_secrets_and_all_other_faults_are_told_at_once(tmp_path: Path) -> None:
    edits = (
        update(CATALOG, token=SECRET, credential=SECRET, uri=f"postgresql://cdc:{SECRET}@db/lake", type="sqlite"),
        put("lake.warehouse", "${NOWHERE}/${NEITHER}"),
        put("feeds.0.source.password", SECRET),
        put("feeds.0.nmae", "shop"),
    )
    text = refusal(tmp_path, *edits)
    assert SECRET not in text
    assert sorted(line.partition(": ")[0].strip() for line in text.splitlines()[1:]) == [
        "feeds[0].nmae", "feeds[0].source.password", "feeds[0].source.password", "lake.catalog.credential",
        "lake.catalog.token", "lake.catalog.type", "lake.catalog.uri", "lake.warehouse", "lake.warehouse",
    ]  # fmt: skip


def test_a_value_with_a_secret_is_not_shown_as_a_wrong_value(tmp_path: Path) -> None:
    text = refusal(tmp_path, put("feeds.0.source.time_zone", f"https://a:{SECRET}@b"), put("feeds.0.name", "X"))
    assert SECRET not in text and "feeds[0].source.time_zone" in text and "feeds[0].name" in text


def test_a_secret_that_is_no_yaml_is_not_shown(tmp_path: Path) -> None:
    assert SECRET not in refusal_of_text(tmp_path, f"lake:\n  catalog:\n    token: @{SECRET}\n")


def test_references_take_their_values_from_the_environment_which_are_not_looked_into(tmp_path: Path) -> None:
    rest = update(CATALOG, type="rest", uri="https://${HOST}:${PORT}/", token="${TOKEN}")
    for token in (SECRET, "${HOST}"):
        config = read(tmp_path, rest, HOST="catalog", PORT="8181", TOKEN=token)
        assert config.lake.catalog.properties == {"uri": "https://catalog:8181/", "token": token}


def test_a_reference_that_the_environment_does_not_have(tmp_path: Path) -> None:
    text = refusal(tmp_path, update(CATALOG, token="${TOKEN}"), OTHER=SECRET)
    assert "lake.catalog.token" in text and "${TOKEN}" in text and SECRET not in text


def test_a_refused_value_is_shown_as_it_stands_in_the_file(tmp_path: Path) -> None:
    text = refusal(tmp_path, put("feeds.0.source.date_separator", "${SEPARATOR}"), SEPARATOR=SECRET)
    assert "(given: '${SEPARATOR}')" in text and SECRET not in text


@pytest.mark.parametrize(
    "edit",
    [
        update(CATALOG, uri="postgresql://cdc:${TOKEN}@db/lake"),
        update(CATALOG, token="${TOKEN}"),
        update("lake.spark.conf", **{"spark.x.password": "${TOKEN}"}),
        update("feeds.0.source", uri="s3://key:${TOKEN}@bucket/sink"),
    ],
    ids=["uri of the catalog", "catalog", "spark", "source"],
)
def test_secrets_are_not_shown(tmp_path: Path, edit: Edit) -> None:
    config = read(tmp_path, edit, TOKEN=SECRET)
    assert SECRET in str(config.model_dump()) and SECRET not in repr(config) and SECRET not in str(config)


def test_a_feed_is_shown_as_it_stands_in_the_file_without_secrets(tmp_path: Path) -> None:
    source = {
        "type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": "b:9092", "topics": ["t"],
        "start": {"t": {"0": 7}}, "claim_check": "s3://id:${TOKEN}@bucket/claims", "max_records": 5_000_000,
        "kafka": {"sasl.password": "${TOKEN}"}, "initial": {"type": "dumpling", "uri": "s3://id:${TOKEN}@bucket/dump"},
    }  # fmt: skip
    more = {
        "verify": {"url": "mysql://u:${TOKEN}@db:3306", "schedule": "0 3 * * 0"},
        "maintenance": {"compaction_schedule": None},
        "tables": {"settings": {"d.a": {"primary_key": ["id"]}}},
    }
    feed = read(tmp_path, put("feeds.0.source", source), update("feeds.0", **more), TOKEN=SECRET).feeds[0]
    shown = without_secrets(feed)
    assert SECRET in str(feed.model_dump()) and SECRET not in str(shown)
    assert shown == {
        "name": feed.name,
        "source": {
            "type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": ["b:9092"], "topics": ["t"],
            "start": {"t": {"0": 7}}, "claim_check": HIDDEN, "kafka": HIDDEN,
            "initial": {"type": "dumpling", "uri": HIDDEN},
        },
        "start_date": feed.start_date.isoformat(),
        "verify": {"url": HIDDEN, "schedule": "0 3 * * 0"},
        "maintenance": {"compaction_schedule": None},
        "tables": {"settings": {"d.a": {"primary_key": ["id"]}}},
    }  # fmt: skip


def test_a_secret_comes_from_a_file_and_a_value_has_a_default(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "token").write_text(f"{SECRET}\n", encoding="utf-8")
    edits = (
        update(CATALOG, token="${file:secrets/token}", region="${REGION:-eu}", zone="${ZONE:-a}", empty="${EMPTY:-x}"),
    )
    properties = read(tmp_path, *edits, ZONE="b", EMPTY="").lake.catalog.properties
    assert (properties["token"], properties["region"], properties["zone"]) == (SECRET, "eu", "b")
    assert properties["empty"] == "x", "as in a shell"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (update(CATALOG, token="${file:nowhere}"), "names the file nowhere, which cannot be read"),
        (update(CATALOG, token="${file:binary}"), "is not text in UTF-8"),
        (update(CATALOG, token="${file:large}"), "more than 65536 bytes"),
        (update(CATALOG, token=f"${{TOKEN:-{SECRET}}}"), "plain text"),
        (update(CATALOG, uri=f"postgresql://cdc:${{PASSWORD:-{SECRET}}}@db/lake"), "plain text"),
    ],
)
def test_a_file_that_cannot_be_used_and_a_secret_as_a_default_are_refused(
    tmp_path: Path, edit: Edit, said: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_text("x" * 70_000, encoding="utf-8")
    text = refusal(tmp_path, edit)
    assert said in text and SECRET not in text
