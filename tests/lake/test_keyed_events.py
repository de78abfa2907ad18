"""Events by the key of the row that they change, with the image as the event has it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import row_stage, synthetic_stage
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC, image_text
from cdc_lakehouse.lake.current import keyed_events
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS, KeyedSpan, KeyedSpans, commit_ts_range
from tests.kit.duckdb_sql import connection

Image = dict[str, str | None] | None
SCHEMA: Final = pa.schema([EVENTS.field(name) for name in CHANGE_COLUMNS])


def span(
    table: str = "t", *key: str, above: int = 0, upto: int = 100, table_no: int = 0, version_no: int = 0
) -> KeyedSpan:
    return KeyedSpan(table_no, version_no, "d", table, row_stage(above), row_stage(upto), key or ("id",))


def event(
    op: str, before: Image, after: Image, commit_ts: int = 10, table: str = "t", *, synthetic: bool = False
) -> dict[str, Any]:
    return {
        "schema_name": "d", "table_name": table, "op": op, "commit_ts": commit_ts, "before": image_text(before),
        "after": image_text(after), "segment": "s", "line": 7, SYNTHETIC: synthetic,
    }  # fmt: skip


def keyed(events: Sequence[dict[str, Any]], *spans: KeyedSpan) -> list[dict[str, Any]]:
    """Keyed events, which are the same where Python reads the images, as it does with large ones."""
    found = KeyedSpans(spans).keyed(connection(), pa.Table.from_pylist(list(events), SCHEMA))
    with patch.object(keyed_events, "LARGE_IMAGE", -1):
        assert KeyedSpans(spans).keyed(connection(), pa.Table.from_pylist(list(events), SCHEMA)).equals(found)
    assert found.schema == KEYED_EVENTS
    return found.to_pylist()


def keys(events: Sequence[dict[str, Any]], *spans: KeyedSpan) -> list[tuple[list[str | None], bool]]:
    return sorted(((row["key"], row["upsert"]) for row in keyed(events, *spans)), key=repr)


@pytest.mark.parametrize(
    ("op", "before", "after", "upsert", "is_insert"),
    [
        ("I", None, {"id": "1", "v": None}, True, True),
        ("U", None, {"id": "1", "v": "x"}, True, False),
        ("U", {"id": "1", "v": "x"}, {"id": "1", "v": "y"}, True, False),
        ("U", {"v": "x"}, {"id": "1", "v": "y"}, True, False),
        ("U", {}, {"id": "1"}, True, False),
        ("D", {"id": "1", "v": "x"}, None, False, False),
        ("D", {"id": "1"}, None, False, False),
    ],
)
def test_an_event_concerns_one_key(op: str, before: Image, after: Image, upsert: bool, is_insert: bool) -> None:
    assert keyed([event(op, before, after)], span(table_no=3, version_no=2)) == [
        {
            "table_no": 3, "key": ["1"], "stage": 20, "upsert": upsert, "is_insert": is_insert, "version_no": 2,
            "commit_ts": 10, "image": image_text(after), "segment": "s", "line": 7,
        }
    ]  # fmt: skip


def test_a_key_has_the_text_that_its_span_says() -> None:
    own = replace(span("t", "id", "w"), key_texts=(None, "ltrim(text, '0')"))
    events = [
        event("U", {"w": "07"}, {"id": "01", "w": "7"}),
        event("U", {"w": "06"}, {"id": "01", "w": "7"}),
        event("U", {"id": "07"}, {"id": "7"}, table="u"),
    ]
    found = keys(events, own, span("u", table_no=1))
    assert found == [
        (["01", "6"], False), (["01", "7"], True), (["01", "7"], True), (["07"], False), (["7"], True)
    ]  # fmt: skip


def test_an_update_of_the_key_deletes_the_old_one() -> None:
    moved = event("U", {"id": "1"}, {"id": "2", "v": "x"})
    same = {"table_no": 0, "stage": 20, "is_insert": False, "version_no": 0, "commit_ts": 10, "segment": "s", "line": 7}
    delete, upsert = sorted(keyed([moved], span()), key=lambda row: row["upsert"])
    assert delete == {"key": ["1"], "upsert": False, "image": None, **same}
    assert upsert == {"key": ["2"], "upsert": True, "image": moved["after"], **same}


@pytest.mark.parametrize("op", ["I", "D"])
def test_only_an_update_has_an_old_key(op: str) -> None:
    assert keys([event(op, {"id": "1"}, {"id": "2"})], span()) == [(["2"], op == "I")]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": "1", "b": "2"}, {"a": "1", "b": "2"}, [(["1", "2"], True)]),
        ({"b": "2"}, {"a": "1", "b": "3"}, [(["1", "2"], False), (["1", "3"], True)]),
        ({"a": "2"}, {"a": "1", "b": None}, [(["1", None], True), (["2", None], False)]),
        ({"a": "1", "b": None}, {"a": "1", "b": "3"}, [(["1", "3"], True), (["1", None], False)]),
        ({"a": "1", "b": None}, {"a": "1", "b": None}, [(["1", None], True)]),
        ({"c": "1"}, {"a": "1"}, [(["1", None], True)]),
        ({"a": ""}, {"a": "", "b": "null"}, [(["", "null"], True)]),
    ],
)
def test_a_key_of_two_parts(before: Image, after: Image, expected: list[Any]) -> None:
    assert keys([event("U", before, after)], span("t", "a", "b")) == expected


@pytest.mark.parametrize(
    "name",
    ["*", "a.b", "", "0", "#", "$", "$.a", "[0]", "a/b", "~", "~1", "~0", "/", "//", "'", '"', "\\", "a b", "名", "😀"],
)
def test_a_column_may_have_any_name(name: str) -> None:
    others = {f"{name}x": "no", "x": "no", "a": "no", "b": "no"}
    moved = event("U", {**others, name: "1\0😀"}, {**others, name: "2"})
    assert keys([moved], span("t", name)) == [(["1\0😀"], False), (["2"], True)]


def test_a_span_has_its_stages() -> None:
    events = [event("I", None, {"id": str(ts), "new": f"n{ts}"}, ts) for ts in (9, 10, 11, 20, 21)]
    events += [event("I", None, {"id": f"s{ts}", "new": f"n{ts}"}, ts, synthetic=True) for ts in (9, 10, 20)]
    first = KeyedSpan(0, 0, "d", "t", synthetic_stage(9), row_stage(10), ("id",))
    second = KeyedSpan(0, 1, "d", "t", row_stage(10), row_stage(20), ("new", "id"))
    found = {tuple(row["key"]): row["version_no"] for row in keyed(events, second, first)}
    assert found == {("10",): 0, ("n10", "s10"): 1, ("n11", "11"): 1, ("n20", "20"): 1}


@pytest.mark.parametrize(("above", "upto"), [(0, 20), (0, 21), (1, 20), (1, 21), (19, 20), (18, 19)])
def test_the_range_of_a_span_is_as_narrow_as_can_be(above: int, upto: int) -> None:
    # Files of what was applied before are not read again for the one commit-ts at which it ended.
    stages = range(above + 1, upto + 1)
    found = commit_ts_range([KeyedSpan(0, 0, "d", "t", above, upto, ("id",))])
    assert found == (min(stages) // 2, max(stages) // 2)
    assert found[0] == 10 or above != synthetic_stage(9)


def test_a_batch_has_events_of_many_tables() -> None:
    events = [event("I", None, {"id": "1", "k": "2"}, table=table) for table in ("t", "other", "u", "t", "w")]
    spans = [span("t"), span("u", "k", "id", table_no=1), span("v", table_no=2), span("w", table_no=3, above=50)]
    found = [(row["table_no"], row["key"]) for row in keyed(events, *spans)]
    assert found == [(0, ["1"]), (1, ["2", "1"]), (0, ["1"])]


def test_a_table_without_a_key_has_events() -> None:
    assert keyed([event("I", None, {"a": "1"})], KeyedSpan(0, 0, "d", "t", 0, 100, ()))[0]["key"] == []


@pytest.mark.parametrize("events", [[], [event("I", None, {"id": "1"}, table="other")]])
def test_there_may_be_no_event_of_a_span(events: list[dict[str, Any]]) -> None:
    assert keyed(events, span()) == []


# --- Against an oracle ---

NAMES: Final = ("id", "a/b", "~", "v")
images = st.none() | st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["1", "2", "\0", None]))
key_names = st.lists(st.sampled_from(NAMES), max_size=3, unique=True).map(tuple)


@st.composite
def spans_of(draw: st.DrawFn) -> list[KeyedSpan]:
    found: list[KeyedSpan] = []
    for number, table in enumerate("tuv"):
        ends = sorted(draw(st.sets(st.integers(0, 26), max_size=6)))
        for version, (above, upto) in enumerate(itertools.pairwise(ends)):
            if draw(st.booleans()):
                found.append(KeyedSpan(number, version, "d", table, above, upto, draw(key_names)))
    return draw(st.permutations(found))


def expected(event: dict[str, Any], spans: Sequence[KeyedSpan], before: Image, after: Image) -> list[dict[str, Any]]:
    stage = 2 * event["commit_ts"] + event[SYNTHETIC]
    found: list[dict[str, Any]] = []
    for each in spans:
        if each.table != event["table_name"] or not each.above < stage <= each.upto:
            continue
        image = before if after is None else after
        key = [(image or {}).get(name) for name in each.key_columns]
        row = {
            "table_no": each.table_no, "key": key, "stage": stage, "upsert": event["op"] != "D",
            "is_insert": event["op"] == "I", "version_no": each.version_no, "commit_ts": event["commit_ts"],
            "image": event["after"], "segment": "s", "line": 7,
        }  # fmt: skip
        found.append(row)
        if event["op"] == "U" and before is not None:
            old = [before.get(name, part) for name, part in zip(each.key_columns, key, strict=True)]
            if old != key:
                found.append({**row, "key": old, "upsert": False, "image": None})
    return found


@given(st.lists(st.tuples(st.sampled_from("IUD"), images, images, st.integers(1, 12), st.sampled_from("tuw"),
                          st.booleans()), max_size=12), spans_of())  # fmt: skip
def test_keyed_events_are_those_of_the_spans(rows: list[Any], spans: list[KeyedSpan]) -> None:
    events = [event(op, before, after, ts, table, synthetic=moved) for op, before, after, ts, table, moved in rows]
    wanted = [
        each
        for made, (_, before, after, *_) in zip(events, rows, strict=True)
        for each in expected(made, spans, before, after)
    ]
    assert sorted(map(repr, keyed(events, *spans))) == sorted(map(repr, wanted))
