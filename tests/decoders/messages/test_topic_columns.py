"""Messages that are read by columns give what the decoder gives of each, in the same order: those of the data sets, odd
ones and damaged ones. `tests/decoders/cases` says which are read by columns."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import END_TS, LOGICAL_BITS
from cdc_lakehouse.decoders.formats import ticdc_canal_json
from tests.kit.data_sets import ARCHIVES
from tests.kit.decoding import Reading, image_of, read_by_columns

TICDC, CANAL, DTS = FORMATS = ("ticdc-canal-json", "canal-json", "dts-canal-json")
ROW: dict[str, Any] = {
    "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "UPDATE", "es": 1000, "ts": 2,
    "sql": "", "sqlType": {"id": 4}, "mysqlType": {"id": "int", "v": "varchar"}, "old": [{"id": "1", "v": None}],
    "data": [{"id": "1", "v": "x"}], "gtid": None, "_tidb": {"commitTs": 5},
}  # fmt: skip
NAMES = [*ROW, "onlyHandleKey", "claimCheckLocation", "other"]
MORE_THAN_JSON = re.compile(rb",\s*[]}]|nan|inf", re.IGNORECASE)
"""What DuckDB's JSON has, and JSON has not."""
Values = Sequence[bytes | None]


@cache
def messages(name: str = TICDC) -> list[bytes]:
    """Of all data sets of topics; without a commit-ts and with the changed values alone, as Canal has them."""
    found: list[bytes] = []
    with tarfile.open(ARCHIVES / "ticdc-kafka.tar.xz") as packed:
        for member in packed:
            file = packed.extractfile(member) if member.name.endswith(".jsonl") else None
            values = (json.loads(line)["value"] for line in file or ())
            found += [value.encode() for value in values if value is not None]
    return found if name == TICDC else [_of_canal(json.loads(value)) for value in found]


def _of_canal(said: dict[str, Any]) -> bytes:
    del said["_tidb"]
    if not said["isDdl"] and said["old"] is not None:
        said["old"] = [{k: v for k, v in said["old"][0].items() if v != said["data"][0].get(k)}]
    return json.dumps(said, ensure_ascii=False).encode()


def message(ts: int | None = None, **parts: Any) -> bytes:
    extension = {} if ts is None else {"_tidb": {"commitTs": ts}}
    return json.dumps({**ROW, **extension, **parts}, ensure_ascii=False).encode("utf-8", "surrogatepass")


def watermark(ts: int) -> bytes:
    return message(type="TIDB_WATERMARK", _tidb={"watermarkTs": ts})


def read(name: str, values: Values, **how: Any) -> tuple[list[Any], Any]:
    """The events in the order of their lines, and what else there is."""
    reading = Reading(name, **how)
    reading.read([values], [len(values)])
    events = [{**event, **{name: image_of(event[name]) for name in ("before", "after")}} for event in reading.events]
    return sorted(events, key=lambda event: event["line"]), reading.summaries


def check(name: str, values: Values, at_once: int = 1000) -> tuple[list[Any], Any]:
    found = read(name, values, by_columns=False)
    assert read(name, values, at_once=at_once) == found
    return found


@pytest.mark.parametrize("at_once", [100_000, 97])
@pytest.mark.parametrize("name", FORMATS)
def test_messages_of_data_sets_are_read_alike(name: str, at_once: int) -> None:
    check(name, messages(name), at_once)
    assert read_by_columns(name, messages(name)) > len(messages(name)) // 3


characters = st.characters(exclude_categories=["Cs"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
texts = st.none() | st.text(characters, max_size=5) | st.just("\ufffd")
rows = st.dictionaries(st.text(characters, max_size=3) | st.sampled_from(["id", "v", "a``b"]), texts, max_size=3)
kinds = st.sampled_from(["INSERT", "UPDATE", "DELETE", "INIT"])
valid = st.builds(
    lambda escaped, parts: json.dumps({**ROW, **parts}, ensure_ascii=escaped).encode(),
    st.booleans(),
    st.fixed_dictionaries(
        {
            "type": kinds,
            "table": st.sampled_from(["t", "u", "表"]),
            "data": rows.map(lambda row: [{"id": "1", **row}]),
            "old": rows.map(lambda row: [row]) | st.none(),
            "mysqlType": st.dictionaries(
                st.sampled_from(["id", "v", "w"]), st.sampled_from(["int", "bigint", ""]), max_size=3
            ),
            "es": st.integers(0, 3) | st.none(),
            "_tidb": st.builds(lambda ts: {"commitTs": ts}, st.integers(1, 9)),
        }
    ),
)
statements = st.builds(
    lambda table: message(type="ALTER", isDdl=True, sql="ALTER TABLE t ADD x INT", table=table, data=None, old=None),
    st.sampled_from(["t", "u", ""]),
)


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


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A part is another one, or the rest is missing."""
    value, start = draw(valid), draw(st.integers(0, 400))
    if draw(st.integers(0, 3)) == 0:
        return value[:start]
    pieces = (b"[]", b"{}", b"null", b"1", b'"', b'"\\ud800"', b'"\\udfff"', b"true")
    put = draw(st.binary(max_size=12) | st.sampled_from(pieces))
    return value[:start] + put + value[start + draw(st.integers(0, 12)) :]


damaged = spoilt().filter(lambda value: not MORE_THAN_JSON.search(value))


@pytest.mark.slow
@given(
    st.sampled_from(FORMATS),
    st.lists(valid | st.integers(1, 7).map(watermark) | statements | others() | damaged | st.none(), max_size=12),
    st.integers(1, 12),
)
@settings(max_examples=200)
def test_any_messages_are_read_alike(name: str, values: Values, at_once: int) -> None:
    check(name, values, at_once)


def test_change_without_commit_ts_is_after_the_one_before() -> None:
    many = message(data=[ROW["data"][0]] * 3, old=[ROW["old"][0]] * 3)
    values = [message(es=5), message(es=3), many, message(es=4), message(es=2000), message(es=2000)]
    early, first, late = (millis << LOGICAL_BITS for millis in (5, 1000, 2000))
    for name in (CANAL, DTS):
        events, _ = check(name, values)
        assert [(event["line"], event["commit_ts"]) for event in sorted(events, key=lambda e: e["commit_ts"])] == [
            (0, early), (1, early + 1), (2, first), (2, first + 1), (2, first + 2), (3, first + 3), (4, late),
            (5, late + 1),
        ]  # fmt: skip


# --- Of TiCDC: watermarks, times and compression ---


def test_partitions_by_turns_are_each_by_itself() -> None:
    partitions = [[watermark(3), message(5), message(3)], [message(3), message(5), watermark(3)]]
    found: list[tuple[list[str], Mapping[Any, Any]]] = []
    for how in ({}, {"by_turns": True}, {"by_turns": True, "at_once": 2}, {"by_columns": False}):
        reading = Reading(TICDC, **how)
        reading.read(partitions, [3, 3])
        found.append((sorted(map(str, reading.events)), reading.summaries))
    assert found == [found[0]] * 4
    assert [summary.replays for summary in found[0][1].values()] == [1, 0]


def test_watermark_divides_new_rows_from_replays() -> None:
    at = [message(ts, table=f"t{ts}") for ts in range(1, 6)]
    values = [at[2], at[1], watermark(3), *at]
    events, summaries = check(TICDC, values)
    assert [(event["line"], event["commit_ts"]) for event in events] == [(0, 3), (1, 2), (6, 4), (7, 5)]
    (summary,) = summaries.values()
    assert (summary.replays, summary.last_ts, summary.watermark) == (3, 5, 3)
    assert len(values) == len(events) + summary.others["s"] == 4 + 1 + 3


@pytest.mark.parametrize("ts", [-1, END_TS, 1 << 61, (1 << 63) - 1, 10**30])
def test_impossible_timestamp_is_bad_and_moves_no_clock(ts: int) -> None:
    created = message(8, es=ts, type="CREATE", isDdl=True, sql="CREATE TABLE t (id INT)")
    values = [message(5), watermark(ts), message(ts), message(6), message(7, es=ts), created]
    events, summaries = check(TICDC, values)
    assert [event["commit_ts"] for event in events] == [5, 6, 7]
    (summary,) = summaries.values()
    assert (summary.last_ts, summary.watermark) == (8, None)
    assert [each.line for each in summary.bad["s"]] == [1, 2]
    # Beside a commit-ts, `es` is not the clock.
    assert [statement.time_ms for _, statement in summary.statements] == [None]


def test_statement_after_watermark_is_noted_apart() -> None:
    """Whether it has come before is not the task's to say."""
    third, fourth = (message(ts, type="ALTER", isDdl=True, sql=f"ALTER {ts}") for ts in (3, 4))
    (summary,) = check(TICDC, [watermark(3), third, fourth, third])[1].values()
    assert [each.text for _, each in summary.statements] == ["ALTER 4"]
    (((_, table, commit_ts), found),) = summary.stated_before.items()
    assert (table, commit_ts, found.line, found.raw) == (found.table, 3, 1, b"ALTER 3")
    assert summary.replays == 2


def packed(value: bytes, codec: str) -> bytes:
    return pa.Codec(codec).compress(value, asbytes=True)


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_compressed_values_equal_plain_ones(codec: str, by_columns: bool) -> None:
    """From some message on, as when the changefeed is changed; with bad ones, which name their table all the same."""
    values = [*messages(), b'{"database":"d","table":"t","type":"INSERT","data":[],"_tidb":{"commitTs":7}}', None]
    mixed = [*values[:100], *(value and packed(value, codec) for value in values[100:])]
    assert read(TICDC, mixed, by_columns=by_columns, at_once=997) == read(TICDC, values)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (packed(b"{}" * 50, "lz4")[:-5], "not a complete frame of LZ4"),
        (packed(b"{}" * 50, "lz4") + b"x", "not a complete frame of LZ4"),
        *((packed(b"{}" * 600, codec), "more than the 0 MiB") for codec in ("lz4", "snappy")),
        (packed(b"{}" * 50, "snappy")[:-1], "not UTF-8|not JSON"),
        (packed(b"[]" * 50, "snappy"), "not UTF-8|not JSON"),
        (b"\xff\xff\xff\xff\x0f{}", "not UTF-8"),
        (b"", "not JSON"),
    ],
)
def test_broken_compressed_value_is_a_bad_message(value: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticdc_canal_json, "LIMIT", 1000)
    monkeypatch.setattr(ticdc_canal_json, "AT_ONCE", 100)
    _, summaries = read(TICDC, [value])
    ((rejected,),) = (summary.bad["s"] for summary in summaries.values())
    assert re.search(reason, rejected.message), rejected.message
