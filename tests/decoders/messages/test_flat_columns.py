"""Flat messages without a commit-ts that are read by columns give what the decoder gives, in the same order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import END_MS, LOGICAL_BITS
from cdc_lakehouse.decoders.registry import format_of
from tests.decoders.messages import test_ticdc_canal_json as ticdc
from tests.decoders.messages.strategies import characters, json_values
from tests.kit import duckdb_sql
from tests.kit.cases import shown
from tests.kit.decoding import Reading, image_of

FORMATS = ("canal-json", "dts-canal-json")
ROW: dict[str, Any] = {
    "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "UPDATE", "es": 1000, "ts": 2,
    "sql": "", "sqlType": {"id": 4}, "mysqlType": {"id": "int", "v": "varchar"}, "old": [{"id": "1", "v": None}],
    "data": [{"id": "1", "v": "x"}], "gtid": None,
}  # fmt: skip


def message(**parts: Any) -> bytes:
    return json.dumps({**ROW, **parts}, ensure_ascii=False).encode("utf-8", "surrogatepass")


def read(name: str, values: Sequence[bytes | None], **how: Any) -> tuple[list[Any], Any]:
    reading = Reading(name, **how)
    reading.read([values], [len(values)])
    events = [{**event, **{name: image_of(event[name]) for name in ("before", "after")}} for event in reading.events]
    return sorted(events, key=lambda event: event["commit_ts"]), reading.summaries


def check(name: str, values: Sequence[bytes | None], at_once: int = 1000) -> None:
    assert read(name, values, at_once=at_once) == read(name, values, by_columns=False)


def usual(name: str, values: Sequence[bytes | None]) -> int:
    columns = format_of(name).column_reader({})
    assert columns is not None
    return len(columns(duckdb_sql.connection(), pa.array(values, pa.binary())).places)


@pytest.mark.parametrize("at_once", [100_000, 97])
@pytest.mark.parametrize("name", FORMATS)
def test_messages_of_the_data_sets(name: str, at_once: int) -> None:
    values: list[bytes] = []
    for value in ticdc.messages():
        said = json.loads(value)
        said.pop("_tidb", None)
        if not said["isDdl"] and said["old"] is not None:
            # An update may have what changed alone.
            data = said["data"][0]
            said["old"] = [{k: v for k, v in said["old"][0].items() if v != data.get(k)}]
        values.append(json.dumps(said, ensure_ascii=False).encode())
    check(name, values, at_once)
    assert usual(name, values) > len(values) // 3


texts = st.none() | st.text(characters, max_size=5) | st.just("\ufffd")
rows = st.dictionaries(st.text(characters, max_size=3) | st.sampled_from(["id", "v", "a``b"]), texts, max_size=3)
types = st.dictionaries(st.sampled_from(["id", "v", "w"]), st.sampled_from(["int", "bigint", ""]), max_size=3)
sound = st.builds(
    lambda escaped, parts: json.dumps({**ROW, **parts}, ensure_ascii=escaped).encode(),
    st.booleans(),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["INSERT", "UPDATE", "DELETE", "INIT"]),
            "table": st.sampled_from(["t", "u", "表"]),
            "data": rows.map(lambda row: [{"id": "1", **row}]),
            "old": rows.map(lambda row: [row]) | st.none(),
            "mysqlType": types,
            "es": st.integers(0, 3) | st.none(),
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
    changed = dict(ROW)
    for name in draw(st.lists(st.sampled_from([*ROW]), max_size=2)):
        if draw(st.booleans()):
            changed.pop(name, None)
        else:
            changed[name] = draw(json_values)
    return json.dumps(changed, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


@pytest.mark.slow
@given(
    st.sampled_from(FORMATS),
    st.lists(sound | statements | others() | sound.flatmap(ticdc.damaged) | st.none(), max_size=12),
    st.integers(1, 12),
)
@settings(max_examples=60)
def test_any_messages(name: str, values: list[bytes | None], at_once: int) -> None:
    check(name, values, at_once)


@pytest.mark.parametrize(
    ("value", "by"),
    [
        (message(), FORMATS),
        (message(type="INSERT", old=None), FORMATS),
        (message(type="INIT", old=None), FORMATS[1:]),
        (message(type="DELETE", old=None), FORMATS),
        # Whether old values are of any interest.
        (message(type="DELETE"), FORMATS[:1]),
        (message(type="INSERT", old={}), FORMATS[:1]),
        (message(old=None), FORMATS[1:]),
        (message(old=[]), FORMATS[1:]),
        (message(old=[None]), FORMATS[1:]),
        (message(old={"v": "1"}), ()),
        (message(old=[{"w": "1"}]), FORMATS[:1]),
        (message(old=[{"v": "1"}, {"v": "1"}]), ()),
        (message(data=[{"v": "1"}, {"v": "2"}]), ()),
        (message(data=[{"v": 1}]), ()),
        (message(data=[{"id": "1", "v": "\ufffd"}]), FORMATS[1:]),
        (message(data=[{"id": "1", "v": "?"}]).replace(b"?", b"\\uFfFd"), FORMATS[1:]),
        (message(gtid="u:1"), FORMATS),
        (message(gtid=1), FORMATS[:1]),
        (message(es=None), ()),
        (message(es="1000"), ()),
        (message(es=0), FORMATS),
        (message(es=-1), ()),
        (message(es=END_MS - 1), FORMATS),
        (message(es=END_MS), ()),
        (message(isDdl=0), ()),
        (message(table=""), ()),
        (message().replace(b'"id": "int"', b'"id": "int", "id": "int"'), ()),
        (message()[:-1], ()),
        (None, ()),
    ],
    ids=shown,
)
def test_which_messages_are_usual(value: bytes | None, by: Sequence[str]) -> None:
    for name in FORMATS:
        assert usual(name, [value]) == (name in by)
        check(name, [message(), value, message()])


def test_each_change_is_behind_the_one_before_whoever_reads_it() -> None:
    many = message(data=[ROW["data"][0]] * 3, old=[ROW["old"][0]] * 3)
    values = [message(es=5), message(es=3), many, message(es=4), message(es=2000), message(es=2000)]
    for name in FORMATS:
        events, _ = read(name, values)
        first, late = 1000 << LOGICAL_BITS, 2000 << LOGICAL_BITS
        early = 5 << LOGICAL_BITS
        expected = [early, early + 1, first, first + 1, first + 2, first + 3, late, late + 1]
        assert [event["commit_ts"] for event in events] == expected
        assert [event["line"] for event in events] == [0, 1, 2, 2, 2, 3, 4, 5]


def test_a_task_of_before_2022_is_read_one_by_one() -> None:
    assert format_of("dts-canal-json").column_reader({"before_2022_03_20": True}) is None
