"""Canal-JSON files: what is read of good lines, what is said of bad ones, and that lines read together are read as
each alone."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.event_schema import DECODED
from cdc_lakehouse.decoders.format import FileContext
from cdc_lakehouse.decoders.formats import canal_json_files
from cdc_lakehouse.decoders.json.forms import Form
from tests.decoders.damage import damaged
from tests.kit.duckdb_sql import connection

TS = 450000000000000001
CONTEXT = FileContext("shop", "parcels")
PIECES = (1, 700, 1 << 20)
Row = dict[str, Any]


def read(content: bytes, piece: int = 1 << 20, context: FileContext = CONTEXT) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in canal_json_files.decode(connection(), [content], context, piece=piece):
        batch.validate(full=True)
        assert batch.schema == DECODED
        found += batch.to_pylist()
    for event in found:
        event |= {name: event[name] and json.loads(event[name]) for name in ("before", "after")}
    return found


def strictly() -> Any:
    """Each line is read alone."""
    return patch.object(Form, "of", lambda line, context: None)


def together() -> Any:
    """No line is read alone, but to know its form."""

    def refuse(lines: Any, context: FileContext) -> None:
        if len(lines.numbers):
            raise AssertionError("lines were taken for ones that are not as usual")

    return patch.object(canal_json_files, "read_strictly", refuse)


def line(kind: str, rows: Any, old: Any = None, ts: Any = TS, **other: Any) -> bytes:
    """As TiCDC writes it."""
    names = list(rows[0]) if isinstance(rows, list) and rows and isinstance(rows[0], dict) else []
    message = {
        "id": 0, "database": "shop", "table": "parcels", "pkNames": names[:1], "isDdl": False, "type": kind,
        "es": 1768435200001, "ts": 1768435200128, "sql": "", "sqlType": dict.fromkeys(names, -5),
        "mysqlType": dict.fromkeys(names, "bigint unsigned"), "old": old, "data": rows, "_tidb": {"commitTs": ts},
    } | other  # fmt: skip
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")


def event(number: int, op: str, before: Row | None, after: Row | None, ts: int = TS) -> dict[str, Any]:
    return {
        "line": number, "op": op, "commit_ts": ts, "before": before, "after": after, "problem": None, "value": None
    }  # fmt: skip


def bad(number: int, problem: str, value: bytes) -> dict[str, Any]:
    return dict.fromkeys(DECODED.names) | {"line": number, "problem": problem, "value": value}


A, B = {"id": "1", "name": "a"}, {"id": "2", "name": None}
GOOD = line("INSERT", [A])

# Single lines that can be used, and what they say.


@pytest.mark.parametrize("old", [None, [B]])
@pytest.mark.parametrize("at", range(6))
def test_a_bad_row_in_any_place_among_others_of_its_form(at: int, old: Any) -> None:
    lines = [line("UPDATE", [{"id": str(number), "name": "a"}], old) for number in range(6)]
    lines[at] = lines[at].replace(b'"a"', b'"\xff"')
    found = read(b"\n".join(lines))
    assert [each["line"] for each in found if each["problem"] == problems.NOT_UTF8] == [at + 1]
    assert [each["after"]["id"] for each in found if each["after"]] == [str(n) for n in range(6) if n != at]


TAIL_TYPES = GOOD.replace(b'"mysqlType":{"id":"bigint unsigned","name":"bigint unsigned"},', b"").replace(
    b'"_tidb":', b'"_tidb":{"commitTs":%d,"mysqlType":{"a":"int"},"z":""},"y":' % TS
)
TWO_TIMES = GOOD.replace(b'"_tidb":{', b'"_tidb":{"x":{"commitTs":%d},' % TS)


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        (TAIL_TYPES, TAIL_TYPES.replace(b'{"a":"int"}', b"garbage????")),
        (TWO_TIMES, TWO_TIMES.replace(b'"x":{"commitTs":4', b'"x":{"commitTs":5')),
    ],
)
def test_what_stands_in_an_unusual_place_is_not_taken_on_trust(usual: bytes, other: bytes) -> None:
    content = b"\n".join([usual, usual, usual, other])
    with strictly():
        expected = read(content)
    assert read(content) == expected


# Lines that cannot be used, one kind each, between others.


def test_numbers_of_lines() -> None:
    content = b"\xef\xbb\xbf" + GOOD + b"\n\r\n\n" + GOOD + b"\r" + line("DELETE", [B]) + b"\r\n\r" + GOOD[:50]
    for piece in PIECES:
        assert [each["line"] for each in read(content, piece)] == [1, 4, 5, 7]
    assert read(b"") == read(b"\n\r\n\r") == []


def test_largest_commit_ts() -> None:
    times = [END_TS - 1, 1, 10**17, 10**18 - 1, 10**18]
    found = read(b"\n".join(line("INSERT", [A], ts=ts) for ts in times))
    assert [each["commit_ts"] for each in found] == times


@pytest.mark.parametrize("wrong", [0, END_TS, 1 << 62, (1 << 63) - 1, 1 << 63, 10**19 - 1])
def test_a_commit_ts_that_is_no_time_is_none(wrong: int) -> None:
    """Taken for one, it would be above every checkpoint, for good. Beside others of its width."""
    others = [int("1" * min(len(str(wrong)), 18))] * 3
    found = read(b"\n".join(line("INSERT", [A], ts=ts) for ts in [*others, wrong, *others]))
    assert [each["commit_ts"] for each in found] == [*others, None, *others]
    assert "no commit-ts" in found[3]["problem"] or found[3]["problem"] == "NoCommitTs"


END = TS + 1000


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("ahead", [[10], list(range(19)), [0, 18]], ids=["one", "all but one", "first and last"])
def test_a_commit_ts_far_beyond_the_time_of_landing_is_none(ahead: list[int], alone: bool) -> None:
    times = [END + number if number in ahead else END - 1 - number for number in range(20)]
    content = b"\n".join(line("INSERT", [A], ts=ts) for ts in times)
    context = FileContext("shop", "parcels", end_ts=END)
    with strictly() if alone else contextlib.nullcontext():
        found = read(content, context=context)
    problem = problems.NO_COMMIT_TS
    assert [each["commit_ts"] or each["problem"] for each in found] == [ts if ts < END else problem for ts in times]


def test_a_bound_keeps_no_line_from_being_read_together() -> None:
    """A form is tried with other digits, which make times beyond it."""
    lines = [line("INSERT", [A | {"id": str(number)}], ts=TS + number) for number in range(300)]
    with together():
        assert len(read(b"\n".join(lines), context=FileContext("shop", "parcels", end_ts=END))) == 300


def test_what_ticdc_writes_is_read_together() -> None:
    def types(*order: str) -> dict[str, Any]:
        return {"sqlType": dict.fromkeys(order, 4), "mysqlType": {name: f"char({name})" for name in order}}

    rows = [{"id": str(number), "name": "x" * number, "n": None if number % 3 else '"\n\\'} for number in range(300)]
    orders = [types("id", "name", "n"), types("n", "id", "name"), types("name", "n", "id")]
    lines: list[bytes] = []
    expected: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        op = "IUD"[number % 3 if number % 2 else 1]
        kind = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}[op]
        old = {"name": "before"} if op == "U" else None
        lines.append(line(kind, [row], old and [old], TS + number, es=1768435200000 + number, **orders[number % 3]))
        expected.append(event(number, op, row if op == "D" else old, None if op == "D" else row, TS + number))
    for end in (b"\n", b"\r\n"):
        with together():
            assert read(end.join(lines)) == expected


def test_names_with_digits_are_not_numbers() -> None:
    """A table whose name looks like a number's place in a line."""
    context = FileContext("shop", '":11,"')
    mine, other = (line("INSERT", [A], table=table) for table in ('":11,"', '":12,"'))
    found = read(b"\n".join([mine, other, mine]), context=context)
    assert [each["problem"] for each in found] == [None, problems.WRONG_TABLE, None]


def test_batches_are_bounded() -> None:
    content = (line("INSERT", [{"": ""}]).replace(b"parcels", b"p") + b"\n") * 150_000
    sizes = [batch.num_rows for batch in canal_json_files.decode(connection(), [content], FileContext("shop", "p"))]
    assert sum(sizes) == 150_000 and max(sizes) <= 65_536


@pytest.mark.slow
def test_values_of_64_mib() -> None:
    size = 64 << 20
    lines = [GOOD, line("UPDATE", [A | {"name": "x" * size}], [A | {"name": "y" * size}]), line("DELETE", [A])]
    with together():
        first, large, last = canal_json_files.decode(connection(), [b"\n".join([*lines[:2], lines[2]])], CONTEXT)
    assert (first.column("line")[0].as_py(), last.column("line")[0].as_py()) == (1, 3)
    assert json.loads(large.column("after")[0].as_py())["name"] == "x" * size
    assert json.loads(large.column("before")[0].as_py())["name"] == "y" * size
    with strictly():
        (_, again, _) = canal_json_files.decode(connection(), [b"\n".join(lines)], CONTEXT)
    assert again == large


# Whatever befalls a file, what is read together is what is read line by line.

names = st.sampled_from(["id", "n", "data", "old", "type", "_tidb", "", '"', "é", "a\0", "commitTs", "sqlType"])
texts = st.sampled_from(["", "1", "a,}", '"', "\\", '}],"data":[{', '],"_tidb":{', "\0", "\r\n", "😀", "null", "NaN"])
values = st.none() | texts | st.text(st.characters(exclude_categories=["Cs"]))
rows = st.dictionaries(names, values, max_size=3)
kinds = st.sampled_from(["INSERT", "UPDATE", "DELETE"])


@st.composite
def good_lines(draw: st.DrawFn) -> tuple[bytes, dict[str, Any]]:
    kind, row, old = draw(kinds), draw(rows), draw(st.none() | rows)
    ts = draw(st.sampled_from([TS, TS + 1, 1]) | st.integers(1, END_TS - 1))
    content = line(kind, [row], None if old is None else [old], ts, es=draw(st.integers(1, 99)))
    before = row if kind == "DELETE" else old if kind == "UPDATE" else None
    return content, event(0, kind[0], before, None if kind == "DELETE" else row, ts)


damage = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 3),
        st.sampled_from([b"", b'"', b",", b",}", b"\\", b"\\u", b"\n", b"\r", b"\xff", b"\0", b"}", b"{", b"[", b" "])
        | st.sampled_from([b"NaN", b"inf", b"-", b"0", b"1", b"a", b"e", b":", b"\\ud800", b"null", b"true", b'"a":1,'])
        | st.binary(max_size=2),
    ),
    max_size=4,
)


@pytest.mark.slow
@given(st.lists(good_lines(), max_size=8), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.sampled_from(PIECES))
def test_good_lines_are_read(lines: list[tuple[bytes, dict[str, Any]]], end: bytes, piece: int) -> None:
    found = read(end.join(content for content, _ in lines), piece)
    assert found == [says | {"line": number} for number, (_, says) in enumerate(lines, 1)]


@pytest.mark.slow
@given(st.lists(good_lines(), min_size=1, max_size=4), st.integers(1, 3), damage, st.sampled_from(PIECES))
def test_lines_are_read_together_as_each_alone(
    lines: list[tuple[bytes, dict[str, Any]]], times: int, places: list[tuple[float, int, bytes]], piece: int
) -> None:
    whole = b"\n".join([content for content, _ in lines] * times)
    content = whole + b"\n" + damaged(whole, places) + b"\n" + whole
    found = read(content, piece)
    with strictly():
        assert found == read(content)
