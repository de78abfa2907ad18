"""A sink's URI as it stands in the changefeed, with its query."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lakehouse.config import InitialLoad
from tests.test_config import Edit, put, read, refusal, update

SECRET = "hunter2-of-the-bucket"
QUERY = "protocol=canal-json&date-separator=day&enable-tidb-extension=true&worker-count=16&flush-interval=5s"


def uri(value: str, **other: object) -> Edit:
    return update("feeds.0.source", uri=value, **other)


@pytest.mark.parametrize(
    ("pasted", "used"),
    [
        (f"s3://bucket/prefix?{QUERY}", "s3://bucket/prefix"),
        (f"s3://bucket/prefix/?{QUERY}&", "s3://bucket/prefix"),
        (f"gs://bucket?{QUERY}", "gs://bucket"),
        (f"file:///data/cdc?{QUERY}", "file:///data/cdc"),
        ("/data/cdc?protocol=Canal-JSON", "file:///data/cdc"),
        ("/data/what?", "file:///data/what?"),
        ("/data/what?/cdc", "file:///data/what?/cdc"),
    ],
)
def test_the_query_is_cut_off(tmp_path: Path, pasted: str, used: str) -> None:
    assert read(tmp_path, uri(pasted)).feed("shop").storage_sink.uri == used


@pytest.mark.parametrize(
    ("query", "keys", "said"),
    [
        ("protocol=csv", {}, "the query of uri says protocol=csv, but protocol is canal-json"),
        (
            "date-separator=month",
            {},
            "the query of uri says date-separator=month, but date_separator is day by default",
        ),
        ("date-separator=none", {"date_separator": "day"}, "says date-separator=none, but date_separator is day"),
        ("use-table-id-as-path=true", {}, "but use_table_id_as_path is false by default"),
        ("enable-tidb-extension=false", {}, "enable-tidb-extension is off"),
        (
            "protocol=csv&output-old-value=true&include-commit-ts=true",
            {"protocol": "csv", "csv": {"include-commit-ts": True}},
            "says output-old-value=true, but csv.output-old-value is false by default",
        ),
        (
            "terminator=%0A",
            {"protocol": "csv", "csv": {"include-commit-ts": True, "terminator": "\r\n"}},
            "says terminator='\\n', but csv.terminator is '\\r\\n'",
        ),
    ],
)
def test_a_contradiction_says_both(tmp_path: Path, query: str, keys: dict[str, object], said: str) -> None:
    text = refusal(tmp_path, uri(f"s3://bucket/prefix?{query}", **keys))
    assert said in text and "feeds[0].source: " in text


def test_all_contradictions_are_told(tmp_path: Path) -> None:
    text = refusal(tmp_path, uri("s3://bucket/prefix?protocol=csv&date-separator=year"))
    assert "protocol=csv" in text and "date-separator=year" in text


@pytest.mark.parametrize(
    ("start", "option", "place"),
    [
        ("s3://bucket/prefix", "access-key", "storage.s3.access_key_id"),
        ("s3://bucket/prefix", "secret-access-key", "storage.s3.secret_access_key"),
        ("s3://bucket/prefix", "session-token", "storage.s3.session_token"),
        ("s3://bucket/prefix", "Secret_Access_Key", "storage.s3.secret_access_key"),
        ("s3://bucket/prefix", "external-id", "storage.s3.external_id"),
        ("s3://bucket/prefix", "endpoint", "storage.s3.endpoint"),
        ("gcs://bucket/prefix", "credentials-file", "storage.gs.service_account_file"),
        ("gcs://bucket/prefix", "endpoint", "storage.gs.endpoint"),
        ("azure://container/prefix", "account-key", "storage.azure.account_key"),
        ("azure://container/prefix", "sas-token", "storage.azure.sas_token"),
    ],
)
@pytest.mark.parametrize("value", [SECRET, "${KEY}"])
def test_credentials_are_refused_with_where_they_belong(
    tmp_path: Path, start: str, option: str, place: str, value: str
) -> None:
    text = refusal(tmp_path, uri(f"{start}?protocol=canal-json&{option}={value}"), KEY=SECRET)
    (line,) = text.splitlines()[1:]
    assert line.startswith("  feeds[0].source.uri: ") and f"write {option} as {place}" in line and "${NAME}" in line
    assert SECRET not in text


def test_credentials_of_a_query_from_the_environment_are_refused_too(tmp_path: Path) -> None:
    text = refusal(tmp_path, put("feeds.0.source.uri", "${URI}"), URI=f"s3://b/p?access-key={SECRET}")
    assert "storage.s3.access_key_id" in text and SECRET not in text


def test_the_uri_of_a_dump_is_as_that_of_a_sink(tmp_path: Path) -> None:
    """Dumpling takes the store's options in its output's query."""
    load = InitialLoad.model_validate({"type": "dumpling", "uri": "s3://b/snapshot?worker-count=4"})
    assert load.anchored(Path("/")).uri == "s3://b/snapshot"
    with pytest.raises(ValueError, match=r"write access-key as storage\.s3\.access_key_id"):
        InitialLoad.model_validate({"type": "dumpling", "uri": "s3://b/snapshot?access-key=AKIAHIDDEN"})
    said = refusal(
        tmp_path, update("feeds.0.source", initial={"type": "dumpling", "uri": f"s3://b/s?access-key={SECRET}"})
    )
    assert "initial.uri" in said and SECRET not in said
