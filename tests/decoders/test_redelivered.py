"""A file that was cut off, and a later one: only what is proved to have come again is said to."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn, TableName
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders.registry import FILE_FORMATS
from cdc_lakehouse.sample.sink_writer import SampleRowChange, Table, canal_json
from tests.kit.changefeed import csv, csv_with_old_values
from tests.lake import ID, NOON

COLUMNS = (ID, SourceColumn("old", ColumnType.of("VARCHAR", length=50)), SourceColumn("ts", ColumnType.of("INT")))
TABLE = Table(TableName("d", "a"), 5, COLUMNS)
OPTIONS = CsvOptions.model_validate({"include-commit-ts": True})
WRITERS = {"canal-json": canal_json, "csv": csv, "csv with old values": csv_with_old_values}


def change(at: int) -> SampleRowChange:
    row: dict[str, str | None] = {"id": str(at), "old": f'one\r\n"two","old":[{at}', "ts": "1234"}
    before = {**row, "ts": None} if at % 3 == 0 else None
    return SampleRowChange("UPDATE" if before else "INSERT", TABLE, 1_000_000 + at, row, before)


def lines(kind: str, ats: Sequence[int], minutes: int = 0) -> list[bytes]:
    """Each change's text, with its line ends: the same ones, however later they are sent, but for what TiCDC has of the
    clock and of chance."""
    sent = NOON + datetime.timedelta(minutes=minutes)
    texts = [WRITERS[kind](change(at), sent) for at in ats]
    if kind == "canal-json" and minutes:
        messages = [json.loads(text) for text in texts]
        messages = [each | {"mysqlType": dict(reversed(each["mysqlType"].items()))} for each in messages]
        texts = [json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in messages]
    return [f"{text}\r\n".encode() for text in texts]


def redelivers(kind: str, cut: bytes, *later: bytes, options: CsvOptions = OPTIONS) -> bool:
    return FILE_FORMATS[kind.split()[0]].redelivers(cut, later, options)


@pytest.mark.parametrize(
    ("kind", "at"),
    [*((kind, 4) for kind in WRITERS), ("canal-json", 6), ("csv", 6)],  # With old values a row that is cut is of two.
)
@pytest.mark.parametrize("begin", [1, 2], ids=["from before", "from the same row"])
def test_wherever_a_file_was_cut_its_rows_are_found_in_one_that_goes_on_beyond_them(
    kind: str, at: int, begin: int
) -> None:
    whole = b"".join(lines(kind, range(2, at)))
    last = lines(kind, (at,))[0].removesuffix(b"\r\n")
    later = b"".join(lines(kind, range(begin, at + 2), minutes=5))
    for size in range(1, len(last)):
        cut = whole + last[:size]
        if last[:size].endswith((b"\r", b"\n")) and kind != "canal-json":
            continue  # Within a text, where it could be the end of a line.
        assert redelivers(kind, cut, later), last[:size]
        # Without a whole row behind the ones that were whole, nothing is proved.
        ends_there = b"".join(lines(kind, range(begin, at), minutes=5))
        assert not redelivers(kind, cut, ends_there)
        again = lines(kind, (at,), minutes=5)[0]
        assert not redelivers(kind, cut, ends_there + again[: len(again) // 2])


def test_messages_that_differ_in_a_value_are_others() -> None:
    cut = b"".join(lines("canal-json", (2, 3))) + b'{"id":0'
    later = b"".join(lines("canal-json", (2, 3, 4), minutes=5))
    assert redelivers("canal-json", cut, later)
    assert not redelivers("canal-json", cut, later.replace(b'"1234"', b'"1235"', 1))
    assert not redelivers("canal-json", cut, later.replace(b'"commitTs":1000003', b'"commitTs":1000004'))
    assert not redelivers("canal-json", cut, b"{\r\n" + later.replace(b'"data"', b'"date"', 1))


def test_a_header_is_no_row_and_without_quotes_lines_are_rows() -> None:
    options = CsvOptions.model_validate({"include-commit-ts": True, "quote": "", "output-field-header": True})
    header = b"ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,id\r\n"
    rows = [f"I,a,d,{100 + at},{at}\r\n".encode() for at in range(9)]
    cut = header + b"".join(rows[2:4]) + rows[4][:9]
    assert redelivers("csv", cut, header + b"".join(rows[1:6]), options=options)
    assert redelivers("csv", cut, header + b"".join(rows[2:5]), options=options)
    assert not redelivers("csv", cut, header + b"".join(rows[2:4]), options=options)
    assert not redelivers("csv", cut, header + b"x" + b"".join(rows[2:6]), options=options), (
        "not from the begin of a row on"
    )
    assert not redelivers("csv", header + rows[4][:9], header + b"".join(rows[2:6]), options=options)
    first, second = header + b"".join(rows[1:3]), header + b"".join(rows[3:6])
    assert redelivers("csv", cut, first, second, options=options)
    assert not redelivers("csv", cut, second, first, options=options)


# A cut file: its rows, the row that was cut or other bytes behind them; and the later files, with `/` between them.
FOUND = {"23 4": "2345 12345 1/2345 12/345 123/45 1234/5 2345/1"}
LOST = {
    # In another order, or not at all.
    "23 4": "345/12 45/123 1 123 / 2356 2456 345 29345 789",
    # Without a whole row before the cut nothing is proved, and a file that ends in a line end was not cut off.
    " 4": "456",
    "23 ": "234",
    # Garbage is not the beginning of a row.
    **{f"23 {garbage}": "2345" for garbage in ("\0\0\0", "{}", '{"id":1', '"I","b"', "\x80")},
}


@pytest.mark.parametrize("kind", WRITERS)
def test_cut_off_rows_are_found_where_all_come_again(kind: str) -> None:
    for found, table in ((True, FOUND), (False, LOST)):
        for cut, laters in table.items():
            rows, _, end = cut.partition(" ")
            part = lines(kind, (int(end),))[0][:-20] if end.isdigit() else end.encode("latin-1")
            whole = b"".join(lines(kind, [*map(int, rows)])) + part
            for later in laters.split():
                files = [b"".join(lines(kind, [*map(int, each)], minutes=5)) for each in later.split("/")]
                assert redelivers(kind, whole, *files) == found, (cut, later)
