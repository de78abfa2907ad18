"""Files that a table of cases cannot show: large ones, cut ones, and which readers read them."""

from __future__ import annotations

import datetime
import itertools
import json
import re
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import patch

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import Protocol, StorageConfig
from cdc_lakehouse.config.sources import KafkaFormat
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders import text as quoted_text
from cdc_lakehouse.decoders.format import FileContext
from cdc_lakehouse.decoders.formats import csv, dump, ticdc_canal_json
from cdc_lakehouse.decoders.formats.csv import first_row, header_names
from cdc_lakehouse.decoders.formats.dump import InsertReader, NotSoundError, decode_rows
from cdc_lakehouse.decoders.registry import FILE_FORMATS, FORMATS
from cdc_lakehouse.decoders.text import StrictReader, TextReader
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.events import SegmentFile, _groups
from cdc_lakehouse.sample.sink_writer import SampleRowChange, Table, canal_json
from cdc_lakehouse.sources.dump.contents import InsertNotation, TextNotation
from cdc_lakehouse.sources.object_store import SegmentRef, read_in_parts
from tests.decoders.test_file_properties import NAMES, Bare, Change, CsvRow, Encoder, events, json_line
from tests.kit import changefeed
from tests.kit.decoding import (
    PIECES,
    TS,
    Events,
    agreed,
    at_once,
    csv_context,
    csv_options,
    dump_context,
    eagerly,
    images,
    json_context,
    read_csv,
    read_dump,
    read_json,
    strictly,
)
from tests.kit.hand_sinks import integer, text
from tests.lake import ID, NOON, segment

A: dict[str, Any] = {"id": "1", "name": "a"}
GOOD = [b'"I","parcels","shop",450000000000000001,1,"a","b"', b'"D","parcels","shop",450000000000000002,2,"c\r\n",\\N']
TWO = {"id": ColumnType.of("int"), "name": ColumnType.of("varchar", length=20)}
ESCAPES, DOUBLED = InsertNotation(tuple(TWO)), InsertNotation(tuple(TWO), backslash_escapes=False)
TEXT = TextNotation(tuple(TWO))
RAW = replace(TEXT, backslash_escapes=False)


def read_rows(content: bytes, piece: int = 1 << 20, end_ts: int = END_TS, **options: object) -> Events:
    return read_csv(content, csv_context(csv_options(**options), NAMES, end_ts=end_ts), piece)


def test_each_configured_format_is_registered() -> None:
    assert {*FILE_FORMATS} == {*get_args(Protocol)}
    assert {*FORMATS} == {*get_args(KafkaFormat), "canal-entries"}


def test_first_line_without_commit_ts_is_told_from_a_bad_one() -> None:
    lacks = FILE_FORMATS["canal-json"].lacks_commit_ts
    assert lacks is not None and lacks(b'{"type":"INSERT"}\r\n{"type":"INSERT","_tidb":{}}')
    assert not any(map(lacks, (b'{"type":"INSERT","_tidb":{}}', b'{"type":"INS', b"[" * 100_000)))


# --- What is read at once ---


# Every delimiter, and every quote with a delimiter of one byte and one of several.
@pytest.mark.parametrize(
    ("quote", "delimiter"), [('"', ","), ('"', "|#|"), ("'", " "), ("'", "¦"), ("", "\x00"), ("", "€;"), ("", ",")]
)
def test_usual_csv_is_read_at_once(quote: str, delimiter: str) -> None:
    encoder = Encoder(csv_options(quote=quote, delimiter=delimiter, output_field_header=True), NAMES)
    nasty: list[CsvRow] = [
        (Bare("1"), 'say "hi"', "two\r\nlines\\"), (None, delimiter, ""), (Bare("-2"), "\\N", '"'),
        (Bare("3"), "日本語\x00\x1f", delimiter + "\n" + '""'), (Bare("4"), "x" * 300_000, None),
    ]  # fmt: skip
    changes = [Change(TS, None, row) for row in nasty * 3]
    with at_once():
        assert read_csv(encoder.file(changes), csv_context(encoder.options, NAMES)) == list(events(changes, encoder))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_usual_json_is_read_at_once(end: bytes) -> None:
    """Names of types in any order; a form is tried with other digits, which make times beyond the bound."""
    lines: list[bytes] = []
    for number in range(300):
        row = {"id": str(number), "name": "x" * number, "n": None if number % 3 else '"\n\\'}
        kind = ("INSERT", "UPDATE", "DELETE")[number % 3]
        text = json_line(kind, row, {"name": "b"} if kind == "UPDATE" else None, TS + number, number)
        lines.append(text.replace(b'{"id":-5,"name":-5', b'{"name":-5,"id":-5') if number % 2 else text)
    with strictly():
        expected = read_json(end.join(lines))
    with at_once():
        assert read_json(end.join(lines), context=json_context(end_ts=TS + 1000)) == expected
    assert len(expected) == 300 and not any(each["problem"] for each in expected)


def test_lines_that_are_read_one_by_one_say_so() -> None:
    lines = [json_line("INSERT", {"id": str(number)}, None) for number in range(300)]
    lines[7:9], lines[100] = [b"garbage", lines[7].replace(b'"id":"7"', b'"id":7')], lines[100].replace(b":", b": ")
    with eagerly():
        batches = [*ticdc_canal_json.decode([b"\n".join(lines)], json_context())]
    assert [row["line"] for batch in batches for row in batch.to_pylist() if row["strict"]] == [8, 9, 101]


@pytest.mark.parametrize("gap", [b",\n", b"\n,", b","])
@pytest.mark.parametrize("cell", [b"x'00ff'", b"_binary '\xff\\0'", b"CONVERT('\xff' USING UTF8MB4)", b"'\xff'"])
def test_usual_insert_is_read_at_once(gap: bytes, cell: bytes) -> None:
    columns = TWO | {"data": ColumnType.of("blob")}
    rows = gap.join(rb"(%d,'it\'s \"%d\"\n',%s)" % (number, number, cell) for number in range(2000))
    content = b"/*!40101 SET NAMES binary*/;\nINSERT INTO `parcels` VALUES\n" + rows + b";\n"
    with at_once():
        found = read_dump(content, dump_context(InsertNotation(tuple(columns)), columns, binary="hex"))
    data = "00ff" if b"x'" in cell else "ff00" if b"_b" in cell else "ff"
    assert images(found) == [{"id": str(n), "name": f'it\'s "{n}"\n', "data": data} for n in range(2000)]


@pytest.mark.parametrize("gap", [b",\n", b"\n,", b","])
@pytest.mark.parametrize("per_statement", [1, 7, 1000])
def test_statements_that_begin_alike_are_read_together(gap: bytes, per_statement: int) -> None:
    rows = [b"(%d,'it''s %d')" % (number, number) for number in range(1000)]
    statements = [gap.join(rows[at : at + per_statement]) for at in range(0, len(rows), per_statement)]
    content = b"".join(b"INSERT INTO `parcels` VALUES\n" + tuples + b";\n" for tuples in statements)
    with at_once(), patch.object(dump, "read_tuples", wraps=dump.read_tuples) as reads:
        found = read_dump(content, dump_context(ESCAPES, TWO))
    assert images(found) == [{"id": str(number), "name": f"it's {number}"} for number in range(1000)]
    assert reads.call_count == 1


def test_usual_text_is_read_at_once() -> None:
    rows = b"".join(rb'%d,"it\'s\\ \"%d\"\n",\N' % (number, number) + b"\r\n" for number in range(2000))
    columns = TWO | {"note": ColumnType.of("text")}
    with at_once():
        found = read_dump(rows, dump_context(replace(TEXT, columns=tuple(columns)), columns))
    assert images(found) == [{"id": str(n), "name": f'it\'s\\ "{n}"\n', "note": None} for n in range(2000)]


@pytest.mark.slow
@pytest.mark.parametrize("bad", [b"garbage", b'"I","parcels","shop",5,1,"never closed,"b"'])
def test_one_bad_record_does_not_make_others_slow(bad: bytes) -> None:
    """Only what is near it is read record by record."""
    good = GOOD[0] + b"\r\n"
    content = good * 30_000 + bad + b"\r\n" + good * 30_000
    with patch.object(TextReader, "strict", autospec=True, side_effect=TextReader.strict) as strict:
        found = read_rows(content)
    assert found[30_000]["problem"] == problems.NOT_CSV
    assert [event["line"] for event in found] == list(range(1, 60_002))
    assert sum(call.args[3] - call.args[2] for call in strict.call_args_list) < 300_000 < len(content) / 8


# --- Commit-ts ---


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("ahead", [[10], list(range(19)), [0, 18]], ids=["one", "all but one", "two"])
@pytest.mark.parametrize("kind", ["json", '"', ""])
def test_commit_ts_far_beyond_landing_is_none(kind: str, ahead: list[int], strict: bool) -> None:
    end = TS + 1000
    times = [end + number if number in ahead else end - 1 - number for number in range(20)]
    row = '"I","parcels","shop",{},1,"a","b"'.replace('"', kind)
    with strictly() if strict else eagerly():
        if kind == "json":
            content = b"\n".join(json_line("INSERT", A, None, ts) for ts in times)
            found = read_json(content, context=json_context(end_ts=end))
        else:
            found = read_rows("\r\n".join(map(row.format, times)).encode(), end_ts=end, quote=kind)
    assert [each["commit_ts"] or each["problem"] for each in found] == [
        ts if ts < end else problems.NO_COMMIT_TS for ts in times
    ]


@pytest.mark.parametrize("wrong", [0, END_TS, 1 << 62, (1 << 63) - 1, 1 << 63, 10**19 - 1])
def test_impossible_commit_ts_is_none(wrong: int) -> None:
    """Taken for one, it would be above every checkpoint, for good. Beside others of its width."""
    width = min(len(str(wrong)), 18)
    times = [int("1" * width), 10 ** (width - 1), wrong, END_TS - 1, 10**18]
    found = read_json(b"\n".join(json_line("INSERT", A, None, ts) for ts in times))
    assert [each["commit_ts"] for each in found] == [*times[:2], None, *times[3:]]
    assert found[2]["problem"] == problems.NO_COMMIT_TS


# --- Csv ---


@pytest.mark.parametrize("piece", PIECES)
def test_csv_cut_anywhere_keeps_whole_records(piece: int) -> None:
    changes = [Change(TS + n, None, (Bare(str(n)), 'say "hi"\r\n', None)) for n in range(3)]
    encoder = Encoder(csv_options(), NAMES)
    content, whole = encoder.file(changes), list(events(changes, encoder))
    ends = [len(encoder.file(changes[:n])) for n in range(4)]
    for length in range(len(content)):
        found = read_rows(content[:length], piece)
        done = sum(end <= length for end in ends) - 1
        rest, last = content[ends[done] : length], found[done:]
        assert found[:done] == whole[:done] and len(last) == bool(rest)
        if rest.rstrip(b"\r\n").endswith(rb",\N"):
            assert last == [whole[done]]  # Only its line end is missing.
        elif rest.endswith((b'\r\n",', b'\r\n",\\')):
            # What is left of NULL is read as a text: nothing in the record shows that more was to come.
            after: Any = whole[done]["after"]
            cut = {**after, "note": rest[rest.rindex(b",") + 1 :].decode()}
            assert last == [whole[done] | {"after": cut}]
        elif rest:
            assert last[0]["problem"] and last[0]["value"] in (rest, rest.rstrip(b"\r\n"))


def test_csv_header_and_first_row() -> None:
    header = Encoder(csv_options(output_field_header=True), ['q"uote', "b\\", "c"]).header()
    fields = ["D", "parcels", "shop", "450000000000000002", "2", "c\r\n", None]
    content, end = header + GOOD[1] + b"\r\n" + GOOD[0] + b"\r\n", len(header + GOOD[1])
    assert (
        first_row(content, csv_options(), whole=True) == first_row(content[:end], csv_options(), whole=True) == fields
    )
    for length in range(len(content)):
        assert first_row(content[:length], csv_options(), whole=False) == (fields if length > end else None)
    bad = b'"I","parcels","never closed\r\n"I","a\xff",1\r\n'
    assert first_row(bad + b'"I",1\r\n', csv_options(), whole=False) == ["I", "1"]
    assert first_row(b"I,a\\,b,\\N,\\\\N\n", csv_options(quote=""), whole=False) == ["I", "a,b", None, "\\N"]
    for none in (header, b"", bad):
        assert first_row(none, csv_options(), whole=True) is None
    meta = [f"ticdc-meta${name}" for name in ("operation", "table", "schema", "commit-ts")]
    assert header_names(content, csv_options()) == [*meta, 'q"uote', "b\\", "c"]
    # None, read in part, not UTF-8.
    for none in (GOOD[0], header.rstrip(), header.replace(b"uote", b"\xff") + GOOD[0]):
        assert header_names(none, csv_options()) is None
    # Whatever the options say, a header is skipped; blank lines are no records.
    for quote in ('"', ""):
        (found,) = read_rows(header + GOOD[0], quote=quote)
        assert (found["line"], found["problem"] is None) == (2, quote == '"')
    assert read_rows(b"\r\n\n\r\r\n") == read_rows(header) == read_rows(header.rstrip()) == []
    assert [e["line"] for e in read_rows(b"\n\n" + GOOD[0] + b"\n\r\n\n" + GOOD[1])] == [1, 2]


# --- A file that was cut off, and later ones: only what is proved to have come again is said to ---

SENT = Table(TableName("d", "a"), 5, (ID, text("old"), integer("ts")))
WRITERS = {"canal-json": canal_json, "csv": changefeed.csv, "csv with old values": changefeed.csv_with_old_values}


def sent_change(at: int) -> SampleRowChange:
    row: dict[str, str | None] = {"id": str(at), "old": f'one\r\n"two","old":[{at}', "ts": "1234"}
    before = {**row, "ts": None} if at % 3 == 0 else None
    return SampleRowChange("UPDATE" if before else "INSERT", SENT, 1_000_000 + at, row, before)


def lines(kind: str, ats: Sequence[int], minutes: int = 0) -> list[bytes]:
    """Each change's text, with its line ends: the same ones, however later they are sent, but for what TiCDC has of the
    clock and of chance."""
    sent = NOON + datetime.timedelta(minutes=minutes)
    texts = [WRITERS[kind](sent_change(at), sent) for at in ats]
    if kind == "canal-json" and minutes:
        messages = [json.loads(text) for text in texts]
        messages = [each | {"mysqlType": dict(reversed(each["mysqlType"].items()))} for each in messages]
        texts = [json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in messages]
    return [f"{text}\r\n".encode() for text in texts]


def redelivers(kind: str, cut: bytes, *later: bytes, **options: object) -> bool:
    return FILE_FORMATS[kind.split()[0]].redelivers(cut, later, csv_options(**options))


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
    options = {"quote": "", "output_field_header": True}
    header = b"ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,id\r\n"
    rows = [f"I,a,d,{100 + at},{at}\r\n".encode() for at in range(9)]

    def of(*ats: int) -> bytes:
        return header + b"".join(rows[at] for at in ats)

    cut = of(2, 3) + rows[4][:9]
    for later in ([of(1, 2, 3, 4, 5)], [of(2, 3, 4)], [of(1, 2), of(3, 4, 5)]):
        assert redelivers("csv", cut, *later, **options)
    # Nothing behind the whole rows; not from the begin of a row on; in another order.
    for later in ([of(2, 3)], [header + b"x" + of(2, 3, 4, 5).removeprefix(header)], [of(3, 4, 5), of(1, 2)]):
        assert not redelivers("csv", cut, *later, **options)
    assert not redelivers("csv", of() + rows[4][:9], of(2, 3, 4, 5), **options)


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


# --- Canal-JSON ---

LINE = json_line("INSERT", A, None)
TAIL_TYPES = LINE.replace(b'"mysqlType":{"id":"bigint","name":"bigint"},', b"").replace(
    b'"_tidb":', b'"_tidb":{"commitTs":%d,"mysqlType":{"a":"int"},"z":""},"y":' % TS
)
TWO_TIMES = LINE.replace(b'"_tidb":{', b'"_tidb":{"x":{"commitTs":%d},' % TS)


@pytest.mark.parametrize(
    ("usual", "before", "after"),
    [
        (TAIL_TYPES, b'{"a":"int"}', b"garbage????"),
        (TWO_TIMES, b'"x":{"commitTs":4', b'"x":{"commitTs":5'),
        # A table whose name looks like a number's place in a line.
        (LINE.replace(b'"parcels"', b'"\\":11,\\""'), b"11", b"12"),
    ],
)
def test_unusual_place_of_json_is_not_taken_on_trust(usual: bytes, before: bytes, after: bytes) -> None:
    content = b"\n".join([usual, usual, usual, usual.replace(before, after), usual])
    assert before in usual and len(agreed(lambda piece: read_json(content, piece))) == 5


@pytest.mark.slow
def test_json_values_of_64_mib_are_batches_of_their_own() -> None:
    large = json_line("UPDATE", A | {"name": "x" * (64 << 20)}, A | {"name": "y" * (64 << 20)})
    content, context = b"\n".join([LINE, large, json_line("DELETE", A, None)]), json_context()
    for readers in (at_once, strictly):
        with readers():
            found = list(ticdc_canal_json.decode([content], context))
        assert [batch.column("line").to_pylist() for batch in found] == [[1], [2], [3]]
        for image, letter in (("after", "x"), ("before", "y")):
            text = found[1].column(image)[0].as_py()
            assert text == f'{{"id":"1","name":"{letter * (64 << 20)}"}}', image


def test_batches_are_bounded() -> None:
    names = tuple(f"column_{number}_of_a_wide_table" for number in range(1000))
    wide = (b'"I","t","d",1' + b",\\N" * 1000 + b"\n") * 5000
    for content, columns, rows in ((b'"I","t","d",1,2\n' * 200_000, ("n",), 200_000), (wide, names, 5000)):
        context = FileContext("d", "t", csv_options(), columns)
        batches = list(csv.decode([content], context))
        assert sum(batch.num_rows for batch in batches) == rows
        assert max(batch.num_rows for batch in batches) <= 65_536
        assert max(batch.nbytes for batch in batches) < 64 << 20
    content = (json_line("INSERT", {"": ""}, None) + b"\n") * 150_000
    sizes = [batch.num_rows for batch in ticdc_canal_json.decode([content], json_context())]
    assert sum(sizes) == 150_000 and max(sizes) <= 65_536


# --- Dumps ---


@pytest.mark.parametrize(("size", "piece"), [(1, 32), (7, 32), (100, 1 << 20), (5000, 64)])
@pytest.mark.parametrize("notation", [TEXT, RAW, ESCAPES])
def test_dumped_row_that_is_too_long_is_bad_alone(notation: TextNotation, size: int, piece: int) -> None:
    head, rows, gap = b"", (b"1,a", b"3,b\r\n"), b"\r\n"
    longs = (b'2,"' + b"x" * 300 + b'"', b"2," + b"y" * 101, b'2,"' + b"z" * 400)
    if notation is ESCAPES:
        head, rows, gap = b"INSERT INTO parcels VALUES\n", (b"(1,'a')", b"(3,'b');\n"), b",\n"
        longs = (b"(2,'" + b"x" * 300 + b"')", b"(2,'" + b"y" * 100 + b"'", b"(2" + b" " * 200 + b")")
    for long in longs:
        content = head + gap.join([rows[0], long, rows[1]])
        parts = [content[at : at + size] for at in range(0, len(content), size)]
        with patch.object(quoted_text, "RECORD_LIMIT", 100), patch.object(problems, "RAW_LIMIT", 50):
            good, bad, after = read_dump(parts, dump_context(notation, TWO), piece)
        assert (good["after"], after["after"]) == ({"id": "1", "name": "a"}, {"id": "3", "name": "b"})
        assert (bad["problem"], bad["value"], after["line"]) == (problems.NOT_A_DUMP_ROW, long[:50], 3)


HEADS = ("INSERT INTO t{}", "INSERT INTO t ({}", "INSERT{}", "INSERT INTO t (a,{} b", "SET {}")


@pytest.mark.parametrize("text", [" ", "``", '""', "'", "''", "ab''", r"\'", "`a`,", "(", "a", "/*", "a\\b", "a\r;,"])
def test_long_text_is_read_once(text: str) -> None:
    """Were it tried again from each of its bytes, this would not end."""
    insert, long = InsertReader(dump_context(ESCAPES, TWO), ESCAPES), text.encode() * 200_000
    for head in HEADS:
        with pytest.raises(NotSoundError):
            insert.statement(head.encode().replace(b"{}", long), 0, True)
    with pytest.raises(NotSoundError):
        insert.row(b"('" + long, 0, True)
    if text != "'":
        (cell,) = insert.row(b"('" + long + b"');", 0, True).cells
        assert len(cell or b"") == 200_000 * len(re.sub(r"\\(.)|''", "-", text))
    for notation in (TEXT, RAW):
        assert StrictReader(notation).record(b'"' + long, 0, True).cells is None
        if (text == '""') is not notation.backslash_escapes:
            found = StrictReader(notation).record(b'"' + long + b'"\r\n', 0, True)
            plain = re.sub(r'\\(.)|""', "-", text) if notation.backslash_escapes or text == '""' else text
            assert found.cells is not None and len(found.cells[0] or b"") == 200_000 * len(plain)


@pytest.mark.parametrize("table", ["parcels", "par'cels", "par\\cels"])
@pytest.mark.parametrize("listed", ["", "(`id`,`name`) ", "(`name`,`id`) "])
def test_end_of_statement_may_stand_in_text(table: str, listed: str) -> None:
    head = f"INSERT INTO `{table}` {listed}VALUES\n".encode()
    one, other = (b"'2',1", b"'4',3") if listed.startswith("(`name") else (b"1,'2'", b"3,'4'")
    within = b"5,'" + b"x);\n" + head + b"(6'" if b"'" not in head else b"5,'x'"
    content = head + b"(" + one + b");\n" + head + b"(" + other + b"),\n(" + within + b");\n"
    found = agreed(lambda piece: read_dump(content, dump_context(DOUBLED, TWO, table=table), piece))
    assert images(found)[:2] == [{"id": "1", "name": "2"}, {"id": "3", "name": "4"}]


def test_dump_is_read_piece_by_piece() -> None:
    taken = 0

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield b'%d,"%s"\r\n' % (number, b"x" * 1000)

    batches = decode_rows(pieces(), dump_context(TEXT, TWO), piece=4096)
    next(batches)
    assert taken < 10
    assert sum(batch.num_rows for batch in batches) > 80 and taken == 100


# --- Which files a task reads ---


@pytest.mark.parametrize("piece", [None, 10**6, 8 << 20, 10**8])
def test_tasks_take_each_file_once_in_order(piece: int | None) -> None:
    for sizes in (
        [], [0], [5] * 1000, [10**9, 1, 1, 10**9], [67 * 10**6] * 3, [33 << 20] * 6, list(range(0, 10**8, 10**6)),
    ):  # fmt: skip
        files = [
            SegmentFile(segment("d/t/1"), SegmentRef(str(n), size, ""), json_context(), size // (piece or size + 1) + 1)
            for n, size in enumerate(sizes)
        ]
        groups, taken = _groups(files, 2), dict[str, list[tuple[int, int | None]]]()
        for file in itertools.chain.from_iterable(groups):
            taken.setdefault(file.ref.path, []).append(file.context.pieces)
        assert [*taken] == [file.ref.path for file in files]
        for pieces in taken.values():
            starts, stops = zip(*pieces, strict=True)
            assert starts == (0, *stops[:-1]) and stops[-1] is None
        assert all(len({file.ref.path for file in group}) == len(group) for group in groups)
        weights = [sum((_stop(file) - file.context.pieces[0]) * _weight(file) for file in group) for group in groups]
        assert all(groups) and len(groups) <= max(4, 2 * -(-sum(weights) // 2**28))
        assert max(weights, default=0) <= sum(weights) / max(1, len(groups)) + max(map(_weight, files), default=0) + 1


def _stop(file: SegmentFile) -> int:
    return file.context.pieces[1] or file.pieces


def _weight(file: SegmentFile) -> float:
    """Of a piece: its bytes, and its part of the request for the file."""
    return (file.ref.size + 2**20) / file.pieces


@pytest.mark.parametrize("ends", [(2,), (1, 3), (4, 5, 100)])
def test_pieces_of_a_file_together_are_the_file(ends: tuple[int, ...]) -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        content = end.join([LINE, b"", b"bad", *[LINE] * 9, json_line("UPDATE", A, A), json_line("DELETE", A, None)])
        parts = [content[at : at + 300] for at in range(0, len(content), 300)]
        whole = read_json(parts, 300)
        found = [
            event
            for pieces in itertools.pairwise([0, *ends, None])
            for event in read_json(parts, 300, replace(json_context(), pieces=pieces))
        ]
        assert found == whole and len(whole) == 13


def test_a_file_on_a_disk_comes_in_parts(tmp_path: Path) -> None:
    content = b"a line\n" * 2_000_000
    (tmp_path / "a").write_bytes(content)
    ref = SegmentRef("a", len(content), None)
    (parts,) = read_in_parts(tmp_path.as_uri(), StorageConfig(), [ref])
    found = list(parts)
    assert len(found) == 2 and b"".join(found) == content
    too_large = [SegmentRef("a", 1 << 31, None)]
    with pytest.raises(SourceError, match="larger than 2147483647 bytes"):
        list(read_in_parts(tmp_path.as_uri(), StorageConfig(), too_large))


def test_parts_of_a_long_record_are_not_held_beside_it() -> None:
    held: list[float] = []

    def read(content: bytes, at: int, _: int, final: bool) -> Any:
        held.append(tracemalloc.get_traced_memory()[0] / len(content))
        return SimpleNamespace(end=len(content) if final else at)

    reader: Any = SimpleNamespace(fast=read, rest=lambda: None, within_long=False)
    tracemalloc.start()
    try:
        assert list(quoted_text.read_rows(reader, (bytes(1 << 20) for _ in range(24)), 1 << 20))
    finally:
        tracemalloc.stop()
    assert max(held[2:]) < 1.5, held
