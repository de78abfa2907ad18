"""Messages that are read by columns give what the decoder gives: those of the data sets, damaged ones, odd ones."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.decoders import compression
from cdc_lakehouse.decoders.registry import format_of
from tests.decoders.messages.strategies import characters, json_values, spoilt
from tests.kit import duckdb_sql
from tests.kit.data_sets import ARCHIVES
from tests.kit.decoding import Reading, image_of

NAME = "ticdc-canal-json"
READ = format_of(NAME).column_reader({})


@cache
def messages() -> list[bytes]:
    """Of all data sets of topics."""
    found: list[bytes] = []
    with tarfile.open(ARCHIVES / "ticdc-kafka.tar.xz") as packed:
        for member in packed:
            file = packed.extractfile(member) if member.name.endswith(".jsonl") else None
            for line in file or ():
                value = json.loads(line)["value"]
                if value is not None:
                    found.append(value.encode())
    return found


def read(values: Sequence[bytes | None], **how: Any) -> tuple[list[Any], Any]:
    """The events, with images as they are read again, and what else there is."""
    reading = Reading(NAME, **how)
    reading.read([values], [len(values)])
    events = [{**event, **{name: image_of(event[name]) for name in ("before", "after")}} for event in reading.events]
    return sorted(events, key=lambda event: event["line"]), reading.summaries


def check(values: Sequence[bytes | None], at_once: int = 1000) -> None:
    assert read(values, at_once=at_once) == read(values, by_columns=False)


def usual(values: Sequence[bytes | None]) -> int:
    """How many are read by columns."""
    assert READ is not None
    return len(READ(duckdb_sql.connection(), pa.array(values, pa.binary())).places)


def packed(value: bytes, codec: str) -> bytes:
    return pa.Codec(codec).compress(value, asbytes=True)


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_compressed_values_equal_plain_ones(codec: str, by_columns: bool) -> None:
    """From some message on, as when the changefeed is changed; with bad ones, which name their table all the same."""
    values = [*messages(), b'{"database":"d","table":"t","type":"INSERT","data":[],"_tidb":{"commitTs":7}}', None]
    mixed = [*values[:100], *(value and packed(value, codec) for value in values[100:])]
    assert read(mixed, by_columns=by_columns, at_once=997) == read(values)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (packed(b"{}" * 50, "lz4")[:-5], "not a complete frame of LZ4"),
        (packed(b"{}" * 50, "lz4") + b"x", "not a complete frame of LZ4"),
        (packed(b"{}" * 600, "lz4"), "more than the 0 MiB"),
        (packed(b"{}" * 600, "snappy"), "more than the 0 MiB"),
        (packed(b"{}" * 50, "snappy")[:-1], "not UTF-8|not JSON"),
        (packed(b"[]" * 50, "snappy"), "not UTF-8|not JSON"),
        (b"\xff\xff\xff\xff\x0f{}", "not UTF-8"),
        (b"", "not JSON"),
    ],
)
def test_broken_compressed_value_is_a_bad_message(value: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "LIMIT", 1000)
    monkeypatch.setattr(compression, "AT_ONCE", 100)
    _, summaries = read([value])
    ((rejected,),) = (summary.bad["s"] for summary in summaries.values())
    assert re.search(reason, rejected.message), rejected.message


@pytest.mark.parametrize("at_once", [100_000, 97])
def test_messages_of_the_data_sets(at_once: int) -> None:
    check(messages(), at_once)
    assert usual(messages()) > len(messages()) // 2


ROW: dict[str, Any] = {
    "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "UPDATE", "es": 1, "ts": 2,
    "sql": "", "sqlType": {"id": 4}, "mysqlType": {"id": "int", "v": "varchar"}, "old": [{"id": "1", "v": None}],
    "data": [{"id": "1", "v": "x"}], "_tidb": {"commitTs": 5},
}  # fmt: skip
NAMES = [*ROW, "onlyHandleKey", "claimCheckLocation", "other"]
MORE_THAN_JSON = re.compile(rb",\s*[]}]|nan|inf", re.IGNORECASE)
"""What DuckDB's JSON has, and JSON has not."""


def message(**parts: Any) -> bytes:
    return json.dumps({**ROW, **parts}, ensure_ascii=False).encode("utf-8", "surrogatepass")


def damaged(sample: bytes) -> st.SearchStrategy[bytes]:
    return spoilt([sample]).filter(lambda value: not MORE_THAN_JSON.search(value))


texts = st.none() | st.text(characters, max_size=5)
rows = st.dictionaries(st.text(characters, max_size=3) | st.sampled_from(["id", "v", "a``b"]), texts, max_size=3)
kinds = st.sampled_from(["INSERT", "UPDATE", "DELETE"])
sound = st.builds(
    lambda escaped, parts: json.dumps({**ROW, **parts}, ensure_ascii=escaped).encode(),
    st.booleans(),
    st.fixed_dictionaries(
        {
            "type": kinds,
            "table": st.sampled_from(["t", "u", "表"]),
            "data": rows.map(lambda row: [{"id": "1", **row}]),
            "old": rows.map(lambda row: [row]),
            "_tidb": st.builds(lambda ts: {"commitTs": ts}, st.integers(1, 9)),
        }
    ),
)
watermarks = st.builds(lambda ts: message(type="TIDB_WATERMARK", _tidb={"watermarkTs": ts}), st.integers(1, 7))


@st.composite
def others(draw: st.DrawFn) -> bytes:
    """With other values of some names, or without them."""
    changed = json.loads(json.dumps({**ROW, "type": draw(kinds | st.just("CREATE"))}))
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=2)):
        extension = changed.get("_tidb")
        inner = draw(st.sampled_from([changed, extension])) if isinstance(extension, dict) else changed
        if draw(st.booleans()):
            inner.pop(name, None)
        else:
            inner[name] = draw(json_values)
    return json.dumps(changed, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


@pytest.mark.slow
@given(st.lists(sound | watermarks | others() | sound.flatmap(damaged) | st.none(), max_size=12), st.integers(1, 12))
@settings(max_examples=150)
def test_any_messages(values: list[bytes | None], at_once: int) -> None:
    check(values, at_once)


def test_partitions_that_come_by_turns_are_each_by_itself() -> None:
    mark = message(type="TIDB_WATERMARK", _tidb={"watermarkTs": 3})
    partitions = [[mark, message(), message(_tidb={"commitTs": 3})], [message(_tidb={"commitTs": 3}), message(), mark]]
    found = []
    for how in ({}, {"by_turns": True}, {"by_turns": True, "at_once": 2}, {"by_columns": False}):
        reading = Reading(NAME, **how)
        reading.read(partitions, [3, 3])
        found.append((sorted(map(str, reading.events)), reading.summaries))
    assert found == [found[0]] * 4
    assert [summary.replays for summary in found[0][1].values()] == [1, 0]


def test_a_watermark_divides_what_is_new() -> None:
    at = [message(_tidb={"commitTs": ts}, table=f"t{ts}") for ts in range(1, 6)]
    mark = message(type="TIDB_WATERMARK", _tidb={"watermarkTs": 3})
    values = [at[2], at[1], mark, *at]
    check(values)
    events, summaries = read(values)
    assert [(event["line"], event["commit_ts"]) for event in events] == [(0, 3), (1, 2), (6, 4), (7, 5)]
    (summary,) = summaries.values()
    assert (summary.replays, summary.last_ts, summary.watermark) == (3, 5, 3)
    assert len(values) == len(events) + summary.others["s"] == 4 + 1 + 3


@pytest.mark.parametrize("ts", [-1, END_TS, 1 << 61, (1 << 63) - 1, 10**30])
def test_a_timestamp_that_can_be_none_is_a_bad_message_and_moves_no_clock(ts: int) -> None:
    values = [
        message(), message(type="TIDB_WATERMARK", _tidb={"watermarkTs": ts}), message(_tidb={"commitTs": ts}),
        message(_tidb={"commitTs": 6}), message(es=ts, _tidb={"commitTs": 7}),
        message(es=ts, type="CREATE", isDdl=True, sql="CREATE TABLE t (id INT)", _tidb={"commitTs": 8}),
    ]  # fmt: skip
    check(values)
    events, summaries = read(values)
    assert [event["commit_ts"] for event in events] == [5, 6, 7]
    (summary,) = summaries.values()
    assert (summary.last_ts, summary.watermark) == (8, None)
    assert [each.line for each in summary.bad["s"]] == [1, 2]
    # Beside a commit-ts, `es` is not the clock.
    assert [statement.time_ms for _, statement in summary.statements] == [None]


def test_a_statement_behind_a_watermark_is_noted_apart() -> None:
    """Whether it has come before is not the task's to say."""
    statements = [message(type="ALTER", isDdl=True, sql=f"ALTER {ts}", _tidb={"commitTs": ts}) for ts in (3, 4)]
    values = [message(type="TIDB_WATERMARK", _tidb={"watermarkTs": 3}), *statements, statements[0]]
    check(values)
    (summary,) = read(values)[1].values()
    assert [each.text for _, each in summary.statements] == ["ALTER 4"]
    (((_, table, commit_ts), found),) = summary.stated_before.items()
    assert (table, commit_ts, found.line, found.raw) == (found.table, 3, 1, b"ALTER 3")
    assert summary.replays == 2
