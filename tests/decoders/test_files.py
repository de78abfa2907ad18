"""Files. `cases/files/*.txt` say what each record becomes, whichever reader reads it; here are also files that a table
of cases cannot show: any that can be written, damaged ones, large ones, cut ones. Whatever is written is read back;
whatever befalls it, every reader finds the same, in pieces of any size, and only what is damaged is lost.

A case is one record. With `first` and `last` it stands between these, which are read as without it. With `cell` a line
is a column's type and a value, and the result is the value's text. `at once` is a file of which no record is read by
itself. Messages of TiCDC are also read from a topic, where some are `usual`.
"""

import datetime
import itertools
import json
import re
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Literal, get_args
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, reject
from hypothesis import strategies as st

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import CsvOptions, Protocol, StorageConfig
from cdc_lakehouse.config.sources import KafkaFormat
from cdc_lakehouse.decoders import event_schema, problems
from cdc_lakehouse.decoders import text as quoted_text
from cdc_lakehouse.decoders.format import FileContext
from cdc_lakehouse.decoders.formats import csv, dump, ticdc_canal_json
from cdc_lakehouse.decoders.formats.csv import first_row, header_names, notation_of
from cdc_lakehouse.decoders.formats.dump import InsertReader, NotSoundError, decode_rows
from cdc_lakehouse.decoders.registry import FILE_FORMATS, FORMATS
from cdc_lakehouse.decoders.text import StrictReader, TextReader
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.events import SegmentFile, _groups
from cdc_lakehouse.sample.sink_writer import SampleRowChange, Table, canal_json
from cdc_lakehouse.sources.object_store import SegmentRef, read_in_parts
from tests.boundaries.decoders import InsertNotation, TextNotation, parse_type
from tests.kit import changefeed
from tests.kit.case_files import Case, bytes_of, edited, read_cases, text_of
from tests.kit.decoding import (
    DATABASE,
    PIECES,
    TABLE,
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
    read_alike,
    read_csv,
    read_dump,
    read_json,
    strictly,
    usual_messages,
)
from tests.kit.dumps import COLUMNS, LABELS, MARKS, InsertWriter, Row, TextWriter, image
from tests.kit.hand_sinks import integer, text
from tests.kit.mishaps import mutated
from tests.lake import ID, NOON, segment

NAMES = ("id", "name", "note")
DELIMITERS = (",", "|", "\t", " ", ";", "|#|", "||", "ab", "@#", "\x1f", "\x00", "¦", "€", "¦|", "日本", "\\")
PARTS = (
    "a", "b", "I", "N", "'", '"', "''", '""', "`", "“", "\\", "\\N", "\\\\N", "\\n", "\\r", "\\,", "NULL", "<null>",
    "\n", "\r", "\r\n", "\t", "\0", "\b", "\x1a", ",", "|", "#", "|#|", "||", "ab", "@#", "¦", "€", "é", "日本",
    "\U0001f600", "),\n(", ");\n", "(1", "x'00'", "\nINSERT INTO", "%", "\\%", "\ufeff", "\x07", "\x1e", "\x1f", " ",
    "--", "/*", "_binary ", "true",
    '\r\n"I","parcels","shop",1,', "ticdc-meta$operation", "x" * 90, "a,}",
    '}],"data":[{', '],"_tidb":{', "null", "NaN", ");\nINSERT INTO `parcels` VALUES\n(",
    ");\nINSERT INTO `parcels` VALUES ('",
)  # fmt: skip
texts = st.lists(st.sampled_from(PARTS), max_size=5).map("".join) | st.text(st.characters(exclude_categories=["Cs"]))
chances = st.randoms(use_true_random=False)


@dataclass(frozen=True)
class File:
    """Records between bytes that nothing befalls, and the events of the records and their numbers of lines."""

    read: Callable[[Sequence[bytes], int], Events]
    records: Sequence[bytes]
    expected: Events
    end: bytes = b""
    """Of each record, where one that is damaged leaves the others as they are."""
    head: bytes = b""
    tail: bytes = b""
    framed: bytes | None = None
    """All records as a file, where more is between them."""

    @property
    def body(self) -> bytes:
        return b"".join(self.records) if self.framed is None else self.framed


# --- Csv: TiCDC's encoder again, by its rules (`pkg/sink/codec/csv/csv_message.go`) ---


@dataclass(frozen=True)
class Bare:
    """A value that is not a string: a number."""

    text: str


CsvRow = tuple[str | Bare | None, ...]


@dataclass(frozen=True)
class Change:
    """An INSERT has no row before, a DELETE none after."""

    commit_ts: int
    before: CsvRow | None
    after: CsvRow | None
    table: str = TABLE
    database: str = DATABASE
    handle: str = "1"


def csv_field(options: CsvOptions, value: str | Bare | None) -> bytes:
    if value is None or isinstance(value, Bare):
        return (options.null if value is None else value.text).encode()
    if quote := options.quote:
        return (quote + value.replace(quote, quote * 2) + quote).encode()
    delimiter, text = options.delimiter.encode(), value.encode()
    escaped, last = bytearray(), 0
    for at, byte in enumerate(text):
        begins = text.startswith(delimiter, at)
        if byte in b"\r\n\\" or begins:
            if at < last:
                reject()  # TiCDC panics: two delimiters overlap in the value.
            escaped += text[last:at]
            # Go's WriteRune: the byte's number is taken for a character's.
            first = {10: ord("n"), 13: ord("r")}.get(byte, byte)
            for each in (first, *(delimiter[1:] if begins else ())):
                escaped += b"\\" + chr(each).encode()
            last = at + (len(delimiter) if begins else 1)
    rest = text[last:]
    if (rest + delimiter).find(delimiter) < len(rest):
        reject()  # The value's end and the delimiter's beginning make a delimiter: nobody can read it back.
    return bytes(escaped + rest)


def csv_file(
    options: CsvOptions, changes: Sequence[Change], names: Sequence[str] = NAMES, handle_key: bool = False
) -> File:
    """As TiCDC writes changes, of which those of another table than `TABLE` are bad."""

    def read_as(value: str | Bare | None, *, leading: bool = False) -> str | None:
        """What a reader can know of a value: without quotes, a text may be written as NULL is."""
        if value is None or isinstance(value, Bare):
            return value and value.text
        is_null = not options.quote and csv_field(options, value) == options.null.encode()
        return (options.null if leading else None) if is_null else value

    delimiter, end, old_value = options.delimiter, options.terminator.encode(), options.output_old_value
    meta = ["operation", "table", "schema", "commit-ts", *["is-update"] * old_value]
    fields = delimiter.join([*(f"ticdc-meta${name}" for name in meta), *names])
    head = fields.encode() + end if options.output_field_header else b""
    records, expected, line = list[bytes](), Events(), 2 if head else 1
    for change in changes:
        op = "I" if change.before is None else "D" if change.after is None else "U"
        rows = [("D", change.before), ("I", change.after)]
        rows = rows if op == "U" and old_value else [(op, change.before if op == "D" else change.after)]
        is_update = [Bare("true" if op == "U" else "false")] * old_value
        leading = (change.table, change.database, Bare(str(change.commit_ts)), *is_update)
        lines = ((row_op, *leading, *[change.handle] * handle_key, *(row or ())) for row_op, row in rows)
        records.append(b"".join(delimiter.encode().join(csv_field(options, each) for each in of) + end for of in lines))
        images = change.before if op == "D" or old_value else None, change.after
        before, after = (row and dict(zip(names, map(read_as, row), strict=True)) for row in images)
        found = event(line, op, change.commit_ts, before, after)
        if [read_as(name, leading=True) for name in (change.database, change.table)] != [DATABASE, TABLE]:
            value = {"before": before, "after": after}
            found = dict.fromkeys(found) | {"line": line, "problem": problems.WRONG_TABLE, "value": value}
        expected.append(found)
        line += len(rows)
    context = csv_context(options, names, handle_key)
    tail = b"" if old_value else end
    return File(lambda parts, piece: read_csv(parts, context, piece), records, expected, tail, head)


@st.composite
def all_options(draw: st.DrawFn) -> CsvOptions:
    quote = draw(st.sampled_from(['"', "'", "", "`", "\\", "\x00"]))
    delimiter = draw(st.sampled_from(DELIMITERS))
    null = draw(st.sampled_from(["\\N", "NULL", "", "<null>", "N", "é", "true"]))
    assume(delimiter not in null and not (quote and (quote in delimiter or quote in null)))
    # What is part of escapes cannot be both; the configuration refuses it.
    assume(quote or not set(delimiter) & set("\\nr"))
    return csv_options(
        delimiter=delimiter, quote=quote, null=null, terminator=draw(st.sampled_from(["\r\n", "\n", "\r"])),
        output_old_value=draw(st.booleans()), output_field_header=draw(st.booleans()),
    )  # fmt: skip


usual = st.builds(
    csv_options,
    quote=st.sampled_from(['"', ""]),
    delimiter=st.sampled_from([",", "|#|", "¦"]),
    terminator=st.sampled_from(["\r\n", "\n"]),
    output_old_value=st.booleans(),
)
numbers = st.sampled_from(["0", "-1", "18446744073709551615", "3.5e+10", "2155"]).map(Bare)
stamps = st.integers(1, 3) | st.integers(1, END_TS - 1)


@st.composite
def csv_files(draw: st.DrawFn, options: st.SearchStrategy[CsvOptions]) -> File:
    """Of what TiCDC writes so that it can be read back."""
    names = NAMES[: draw(st.integers(1, 3))]
    row = st.none() | st.tuples(*[st.none() | numbers | texts] * len(names))
    tables, databases = st.just(TABLE) | texts, st.just(DATABASE) | texts
    changes = draw(st.lists(st.builds(Change, stamps, row, row, tables, databases, texts), max_size=8))
    changes = [change for change in changes if change.before is not None or change.after is not None]
    return csv_file(draw(options), changes, names, draw(st.booleans()))


# --- Canal-JSON ---

json_names = st.sampled_from(["id", "n", "data", "old", "type", "_tidb", "", '"', "é", "a\0", "commitTs", "sqlType"])
json_rows = st.dictionaries(json_names, st.none() | texts, min_size=1, max_size=3)


def json_line(kind: str, row: Any, old: Any, ts: int = TS, es: int = 1) -> bytes:
    """As TiCDC writes it."""
    message = {
        "id": 0, "database": DATABASE, "table": TABLE, "pkNames": [*row][:1], "isDdl": False, "type": kind, "es": es,
        "ts": 1768435200128, "sql": "", "sqlType": dict.fromkeys(row, -5), "mysqlType": dict.fromkeys(row, "bigint"),
        "old": None if old is None else [old], "data": [row], "_tidb": {"commitTs": ts},
    }  # fmt: skip
    return edited(message, [])


@st.composite
def json_files(draw: st.DrawFn) -> File:
    end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    records: list[bytes] = []
    expected: Events = []
    for number in range(1, draw(st.integers(0, 6)) + 1):
        kind = draw(st.sampled_from(["INSERT", "UPDATE", "DELETE"]))
        row, old = draw(json_rows), draw(st.none() | json_rows)
        ts = draw(st.sampled_from([TS, TS + 1]) | stamps)
        record = json_line(kind, row, old, ts, draw(st.integers(1, 99)))
        records.append((json.dumps(json.loads(record)).encode() if draw(st.booleans()) else record) + end)
        images = {"INSERT": (None, row), "UPDATE": (old, row), "DELETE": (row, None)}[kind]
        expected.append(event(number, kind[0], ts, *images))
    times = draw(st.integers(0, 2))
    return File(lambda parts, piece: read_json(parts, piece), records, expected, end, tail=b"".join(records * times))


def event(line: int, op: str, ts: int, before: Any, after: Any) -> dict[str, Any]:
    images = {"before": before, "after": after}
    return {"line": line, "op": op, "commit_ts": ts, **images, "problem": None, "value": None}


# --- Dumps ---

blobs = st.binary(max_size=6) | st.sampled_from([b"\xff'\"\\", b"\r\n\0", bytes(range(256)), b"\xf8\xf9"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(0, 2**64 - 1) | st.sampled_from([-1, 0.5, -2.5e-07, 1e30]),
    "Name": texts,
    "data": blobs,
    "flags": st.binary(min_size=2, max_size=2),
    "kind": st.sampled_from(["", *LABELS]),
    "marks": st.sets(st.sampled_from(MARKS)).map(lambda labels: ",".join(sorted(labels, key=MARKS.index))),
    "shape": st.binary(min_size=1, max_size=5),
    "note": texts,
}
encodings = st.sampled_from(["raw", "hex", "base64"])


def dumped(draw: st.DrawFn, writer: TextWriter | InsertWriter, rows: list[Row], **more: Any) -> File:
    binary: Literal["characters", "base64", "hex"] = draw(st.sampled_from(["characters", "base64", "hex"]))
    labels, names = draw(st.booleans()), writer.notation.columns
    context = dump_context(writer.notation, COLUMNS, labels, binary)

    def read(parts: Sequence[bytes], piece: int) -> Events:
        try:
            return read_dump(parts, context, piece)
        except SourceError:
            return []  # A statement lists columns that the table does not have.

    expected = [event(n, "R", TS, None, image(row, names, binary, labels)) for n, row in enumerate(rows, 1)]
    return File(read, [writer.row(row) for row in rows], expected, **more)


def tables(draw: st.DrawFn) -> tuple[tuple[str, ...], list[Row]]:
    names = tuple(draw(st.lists(st.sampled_from([*COLUMNS]), min_size=1, max_size=5, unique=True)))
    return names, draw(st.lists(st.tuples(*(st.none() | VALUES[name] for name in names)), max_size=8))


@st.composite
def text_files(draw: st.DrawFn, plain: bool = False) -> File:
    """Of a `plain` one a quote that is lost takes no other row along."""
    names, rows = tables(draw)
    escapes = plain or draw(st.booleans())
    quote = draw(st.sampled_from([b'"'] if plain else [b'"', b"'", b"|'", *([b""] if escapes else [])]))
    separator = draw(st.sampled_from([b",", b"\t", b";", b"|#|", b"\x01", "¦".encode()]))
    null = draw(st.sampled_from([rb"\N", b"NULL", b""]))
    # What is written as NULL is cannot be told from it.
    assume(escapes or null != rb"\N" or quote)
    ends = [b"\n", b"\r\n", *([b"%", b"|\n"] if quote and not plain else [])]
    notation = TextNotation(
        names, separator, quote, null if quote else rb"\N", draw(st.sampled_from(ends)), escapes, draw(st.booleans()),
        draw(encodings), {name: draw(encodings) for name in names if name in ("data", "shape")},
    )  # fmt: skip
    writer = TextWriter(notation, draw(st.booleans()))
    return dumped(draw, writer, rows, end=notation.terminator if plain else b"", head=writer.file([]))


@st.composite
def insert_files(draw: st.DrawFn) -> File:
    names, rows = tables(draw)
    notation = InsertNotation(names, draw(st.booleans()))
    style = draw(st.sampled_from(["dumpling", "mydumper", "mysqldump"]))
    writer = InsertWriter(notation, style, draw(st.booleans()), draw(st.integers(1, 5)), draw(st.booleans()))
    return dumped(draw, writer, rows, framed=writer.file(rows))


WRITTEN = ("csv", "json", "text", "insert")
DUMPS_AND_JSON = (json_files(), text_files(), insert_files())
pieces = st.sampled_from((1, *PIECES))


@pytest.mark.slow
@pytest.mark.parametrize("reader", [eagerly, strictly])
@pytest.mark.parametrize("of", [csv_files(all_options()), *DUMPS_AND_JSON], ids=WRITTEN)
@given(data=st.data(), piece=pieces, batch=st.integers(2, 5))
def test_written_file_is_read_back(reader: Any, of: Any, data: st.DataObject, piece: int, batch: int) -> None:
    file = data.draw(of)
    with patch.object(event_schema, "BATCH_ROWS", batch), reader():
        assert file.read([file.head + file.body], piece) == file.expected


@pytest.mark.slow
@pytest.mark.parametrize("of", [csv_files(usual), *DUMPS_AND_JSON], ids=WRITTEN)
@given(data=st.data(), chance=chances, shares=st.lists(st.floats(0, 1), max_size=8), piece=pieces)
def test_readers_agree_on_damaged_file(of: Any, data: Any, chance: Random, shares: list[float], piece: int) -> None:
    file = data.draw(of)
    content = file.head + file.tail + mutated(chance, [file.body]) + file.tail
    cuts = [0, *sorted(int(share * len(content)) for share in shares), len(content)]
    with strictly():
        expected = file.read([content], 1 << 20)
        assert file.read([content[at : at + 1] for at in range(len(content))], 1 << 20) == expected
    with eagerly():
        parts = [content[start:stop] for start, stop in itertools.pairwise(cuts)]
        assert file.read(parts, piece) == expected
    for found in expected:
        assert found["problem"] in problems.PROBLEMS if found["op"] is None else found["problem"] is None


@pytest.mark.slow
@pytest.mark.parametrize("of", [csv_files(usual), json_files(), text_files(plain=True)], ids=WRITTEN[:3])
@given(data=st.data(), chance=chances, which=st.integers(0, 7))
def test_damaged_record_leaves_others_as_they_are(of: Any, data: Any, chance: Random, which: int) -> None:
    file = data.draw(of)
    assume(file.end and file.records)
    which %= len(file.records)
    bad = mutated(chance, [file.records[which].removesuffix(file.end)])
    # Of a line end that is no more, and of one more, come other numbers of records.
    assume(not bad.endswith((b"\\", b"\r")))
    records = [*file.records[:which], bad + file.end, *file.records[which + 1 :]]
    found = [{**each, "line": 0} for each in file.read([file.head + b"".join(records)], 1 << 20)]
    expected = [{**each, "line": 0} for each in file.expected]
    after = len(expected) - which - 1
    assert found[:which] == expected[:which]
    assert after == 0 or found[-after:] == expected[-after:]
    for each in found[which : len(found) - after]:
        assert (each["value"] is not None) == (each["problem"] is not None)


@pytest.mark.slow
@given(st.binary(max_size=200) | st.lists(st.sampled_from(PARTS)).map(lambda parts: "".join(parts).encode()), usual)
@example(b'"I","a","b",1,"c', csv_options())
def test_strict_reader_of_any_bytes_loses_none(content: bytes, options: CsvOptions) -> None:
    at = 0
    for record in StrictReader(notation_of(options)).records(content, 0, len(content)):
        assert not content[at : record.start].strip(b"\r\n") and record.start < record.end <= record.following
        at = record.end
    assert not content[at:].strip(b"\r\n")
    found = read_csv(content, csv_context(options, NAMES))
    assert all(each["value"] in content for each in found if isinstance(each["value"], bytes))


@given(
    st.lists(st.sampled_from(["a", "bc", "\r", "\n", "\r\n", " ", "\0", "\x0b", "\x1e", "\x85", "\ufeff"])),
    st.sampled_from([1, 2, 5, 1 << 20]),
    st.sets(st.integers(0, 30)),
)
def test_every_line_end_ends_a_line(written: list[str], piece: int, cuts: set[int]) -> None:
    content = "".join(written).encode() + b"\xff"
    lines = re.split(rb"\r\n|\r|\n", content.removeprefix(b"\xef\xbb\xbf"))
    parts = [content[start:stop] for start, stop in itertools.pairwise([0, *sorted(cuts), len(content)])]
    for of in ([content], parts):
        pieces = ticdc_canal_json.lines_of(of, piece)
        found = [(n, each.line(at)) for each in pieces for at, n in enumerate(each.numbers.tolist())]
        assert found == [(number, line) for number, line in enumerate(lines, 1) if line]


@pytest.mark.parametrize("start", [0, 1])
def test_image_is_json_of_its_row(start: int) -> None:
    every = "".join(map(chr, [*range(0x100), 0x2028, 0xFFFF, 0x1F600]))
    rows = [("x", "1"), (None, "2"), (every, "3")]
    columns = [pa.array(texts, pa.string()).slice(start) for texts in zip(*rows, strict=True)]
    images = event_schema.row_images([every, "b"], columns, len(rows) - start)
    assert images.type == pa.string()
    expected = [{every: one, "b": other} for one, other in rows[start:]]
    assert [json.loads(image) for image in images.to_pylist()] == expected


# --- Rows and types of Canal-JSON that are taken at once ---

ROW_NAMES = st.sampled_from(["a", "b", "id", ":", ",", "null", "{", "né", "a b"])
ROW_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(
    ["", ":", ",", "null", '"', "\\", '":"', '","b":"', "}", "\n", ":null"]
)


def row_text(entries: Sequence[tuple[str, str | None]], chance: Random | None) -> bytes:
    """With names that may come twice, and perhaps damaged."""
    text = b"{%b}" % b",".join(edited({name: value}, [])[1:-1] for name, value in entries)
    return mutated(chance, [text, b'{"a":1}']) if chance else text


row_texts = st.builds(row_text, st.lists(st.tuples(ROW_NAMES, st.none() | ROW_TEXTS), max_size=4), st.none() | chances)


def is_row(text: bytes) -> bool:
    try:
        entries: Any = json.loads(text.decode(), object_pairs_hook=tuple)
    except ValueError:
        return False
    texts = isinstance(entries, tuple) and all(value is None or isinstance(value, str) for _, value in entries)
    return texts and len(dict(entries)) == len(entries) and text == text.strip()


@pytest.mark.slow
@given(
    st.lists(st.lists(st.tuples(row_texts, row_texts), max_size=8), max_size=4), st.booleans(), st.sampled_from([1, 8])
)
@example([[(b'{"a":"1"} ', b'{"a":"2"}'), (b'{"a":"1"}', b' {"a":"2"}')]], False, 8)
@example([[(b'{"a":"1"} ', b'{"a":"2"}'), (b'{"a":"1"}', b' {"a":"2"}')]], True, 8)
def test_text_that_is_not_a_row_is_never_taken(batches: Any, two: bool, share: int) -> None:
    forms, between = list[ticdc_canal_json.RowForm](), b'],"data":['
    known = {kind: dict[bytes | str, int]() for kind in (ticdc_canal_json.ROWS, ticdc_canal_json.NUMBERS)}
    for batch in batches:
        texts = pa.array([between.join(rows[: 1 + two]) for rows in batch], pa.binary())
        with patch.object(ticdc_canal_json, "_PAIR_SHARE", share):
            found, of_form, first_ends = ticdc_canal_json.read_rows(texts, forms, two=two)
        assert found[of_form >= 0].all()
        assert found.tolist() == ticdc_canal_json.read_rows(texts, forms, two=two)[0].tolist()  # Known by then.
        taken = [rows.split(between, two) for rows in texts.filter(pa.array(found)).to_pylist()]
        assert all(len(rows) == 1 + two and all(map(is_row, rows)) for rows in taken)
        first_rows = ticdc_canal_json.cut(*ticdc_canal_json.places_of(texts)[:2], first_ends).filter(pa.array(found))
        assert not two or first_rows.to_pylist() == [old for old, _ in taken]
        for kind, entries in known.items():
            taken = ticdc_canal_json.have_known_entries(texts, kind, entries)
            assert not (taken & ~ticdc_canal_json.are_flat(texts, kind)).any()


def test_rows_of_pairs_without_a_form_have_their_own() -> None:
    forms = list[ticdc_canal_json.RowForm]()
    rows = [edited(dict(zip("abc", values, strict=True)), []) for values in itertools.product(["1", None], repeat=3)]
    pairs = pa.array([b'],"data":['.join(of) for of in itertools.product(rows, rows)], pa.binary())
    _, (sound, of_form, _) = (ticdc_canal_json.read_rows(pairs, forms, two=True) for _ in range(2))
    assert sound.all() and (of_form >= 0).all() and len(forms) == len(rows)


def test_row_shorter_than_a_form_is_taken() -> None:
    forms = list[ticdc_canal_json.RowForm]()
    for row in (b'{"a":"1","a long name":"2"}', b'{"a":"1","b":"2"}', b'{"a":""}', b'{"a":null,"b":""}') * 2:
        sound, of_form, _ = ticdc_canal_json.read_rows(pa.array([row], pa.binary()), forms)
        assert sound.all() and (of_form >= 0).all()


# --- Records, byte by byte ---

CASES = read_cases(*sorted(Path(__file__).parent.glob("cases/files/*.txt")))
Read = Callable[[bytes, int], Events]


def readers(case: Case, settings: Mapping[str, Any]) -> Iterator[Read]:
    """What reads a case: each has to find the same."""
    options, end_ts = settings.get("options", {}), settings.get("end_ts", END_TS)
    match case.file.stem.partition("_")[0]:
        case "canal":
            # Behind a few others, whose form it is compared with.
            usual = bytes_of(settings["first"]) + b"\n"

            def read(content: bytes, piece: int) -> Events:
                _, _, *events = read_json(usual * 2 + content, piece, json_context(end_ts=end_ts))
                return [event | {"line": event["line"] - 2} for event in events]

            yield read
        case "csv":
            context = csv_context(csv_options(**options), NAMES, end_ts=end_ts)
            yield lambda content, piece: read_csv(content, context, piece)
        case _:
            columns = {name: parse_type(text) for name, text in settings["columns"].items()}
            text = {name: bytes_of(x) if isinstance(x, str) else x for name, x in settings.get("text", {}).items()}
            names: Any = tuple(text.pop("columns", settings.get("listed", columns)))
            charsets = settings.get("own_charsets", False)
            inserts = (InsertNotation(names, escapes, charsets) for escapes in settings.get("escapes", ()))
            for notation in [TextNotation(names, **text)] if "text" in settings else inserts:
                context = dump_context(notation, columns, **options)
                yield lambda content, piece, context=context: read_dump(content, context, piece)


def event_text(event: Mapping[str, Any], record: bytes, *, of_cell: bool = False) -> str:
    if of_cell:
        return event["problem"] or text_of(json.dumps(event["after"]["v"], ensure_ascii=False))
    before, after = (
        None if event[name] is None else json.dumps(event[name], ensure_ascii=False) for name in ("before", "after")
    )
    if event["problem"] is None:
        at = f"@{event['commit_ts']} " if event["commit_ts"] != TS else ""
        images = f"{before} -> {after}" if event["op"] == "U" else str(after or before)
        return text_of(at + (images if event["op"] == "R" else f"{event['op']} {images}"))
    value = event["value"]
    if isinstance(value, dict):
        return text_of(f"{event['problem']} {json.dumps(value, ensure_ascii=False)}")
    is_record = value in (record, record + b",")
    return event["problem"] if is_record else f"{event['problem']} {text_of(value)}".strip()


def framed(records: Sequence[bytes], settings: Mapping[str, Any], gap: bytes = b"\n") -> bytes:
    head, tail = (bytes_of(settings[name]) if name in settings else None for name in ("head", "tail"))
    if "first" not in settings:
        return (head or b"") + records[0] + (tail or b"")
    rows = [bytes_of(settings["first"]), *records, bytes_of(settings["last"])]
    return (head or b"") + gap.join(rows) + (gap if tail is None else tail)


_FRAMES: dict[tuple[bytes, str], Events] = {}


def found_in(read: Read, content: bytes, settings: Mapping[str, Any], gap: bytes, pieces: Sequence[int]) -> Events:
    """The events of a record, of which all readers find the same."""
    found = agreed(lambda piece: read(content, piece), pieces)
    if "first" not in settings:
        return found
    before, *events, after = found
    frame = framed([], settings, gap)
    # Other cases stand between the same two; what they are read as depends on these settings alone.
    of = frame, shared(settings)
    if of not in _FRAMES:
        _FRAMES[of] = read(frame, PIECES[-1])
        assert [event["problem"] for event in _FRAMES[of]] == [None, None]
    assert [before, after | {"line": 2}] == _FRAMES[of]
    assert [event["line"] for event in events] == [*range(2, len(events) + 2)]
    assert after["line"] == len(events) + 2
    return events


def shared(settings: Mapping[str, Any]) -> str:
    """What cases that are read alike have in common."""
    return json.dumps({name: settings.get(name) for name in ("columns", "options", "text", "listed", "escapes")})


def record_of(case: Case) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a case, and its settings with what is its own."""
    settings, line = case.settings, case.own[0]
    if "cell" in settings:
        kind, cell, *options = line.split(" | ")
        settings["columns"] = {**settings.get("columns", {}), "v": kind}
        settings["options"] = json.loads(options[0] if options else "{}")
        return bytes_of(settings["cell"]).replace(b"%", bytes_of(cell)), settings
    if "base" not in settings:
        return bytes_of(line), settings
    delete = edited(settings["base"], ['type = "DELETE"', 'data = [{"id": "2", "name": null}]'])
    settings |= {"first": text_of(edited(settings["base"], [])), "last": text_of(delete)}
    return edited(settings["base"], case.own), settings


def results_of(case: Case) -> Iterator[str]:
    record, settings = record_of(case)
    found, are_at_once = list[list[str]](), list[bool]()
    pieces = PIECES[-2:-1] if "base" in settings else PIECES
    for read in readers(case, settings):
        for gap in map(bytes_of, settings.get("gaps", ["␊"])):
            content = framed([record], settings, gap)
            events = found_in(read, content, settings, gap, pieces)
            found.append([event_text(each, record, of_cell="cell" in settings) for each in events])
            are_at_once.append(is_at_once(read, content))
            pieces = PIECES[-1:]
    assert all(each == found[0] for each in found), found
    yield from found[0]
    if all(are_at_once):
        yield "at once"
    if "base" in settings:
        # And a topic where that differs, of the message between two others.
        usual = edited(settings["base"], [])
        shown = [*topic_results(record, usual)]
        assert shown
        # What Python's parser says of text that is not JSON differs between versions of Python.
        yield from (re.sub(r"( not JSON): .*", r"\1", f"topic: {each}") for each in shown if shown != found[0])
        if usual_messages("ticdc-canal-json", [usual, record, usual]) == 3:
            yield "usual"


def is_at_once(read: Read, content: bytes) -> bool:
    try:
        with at_once():
            read(content, PIECES[-1])
    except AssertionError:
        return False
    return True


def topic_results(value: bytes, usual: bytes) -> Iterator[str]:
    reading = read_alike("ticdc-canal-json", [[usual, value, usual]])
    (summary,) = reading.summaries.values()
    for event in reading.changes:
        if event["line"] == 1:
            of = (event["schema_name"], event["table_name"])
            text = event_text(event | {"problem": None}, value)
            yield text if of == (DATABASE, TABLE) else f"{'.'.join(of)} {text}"
    yield from (f"statement {statement.text}".strip() for _, statement in summary.statements)
    yield from [f"watermark {summary.watermark}"] if summary.watermark else []
    yield from (f"bad: {each.message}" for each in reading.rejected)
    assert {0, 2} <= {event["line"] for event in reading.changes} | {2 * bool(summary.watermark)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_record_is_read_alike_by_every_reader(case: Case, update: bool) -> None:
    try:
        results = [*results_of(case)]
    except SourceError as error:
        results = [text_of(f"error: {error}")]
    case.compare(results, update=update)


# --- Which readers read a file ---

A: dict[str, Any] = {"id": "1", "name": "a"}
GOOD = [b'"I","parcels","shop",450000000000000001,1,"a","b"', b'"D","parcels","shop",450000000000000002,2,"c\r\n",\\N']
TWO = {"id": ColumnType.of("int"), "name": ColumnType.of("varchar", length=20)}
ESCAPES, DOUBLED = InsertNotation(tuple(TWO)), InsertNotation(tuple(TWO), backslash_escapes=False)
TEXT = TextNotation(tuple(TWO))
RAW = replace(TEXT, backslash_escapes=False)


def csv_rows(content: bytes, piece: int = 1 << 20, **options: object) -> Events:
    return read_csv(content, csv_context(csv_options(**options), NAMES), piece)


def test_each_configured_format_is_registered() -> None:
    assert {*FILE_FORMATS} == {*get_args(Protocol)}
    assert {*FORMATS} == {*get_args(KafkaFormat), "canal-entries"}


def test_first_line_without_commit_ts_is_told_from_a_bad_one() -> None:
    lacks = FILE_FORMATS["canal-json"].lacks_commit_ts
    assert lacks is not None and lacks(b'{"type":"INSERT"}\r\n{"type":"INSERT","_tidb":{}}')
    assert not any(map(lacks, (b'{"type":"INSERT","_tidb":{}}', b'{"type":"INS', b"[" * 100_000)))


def test_lines_that_are_read_one_by_one_say_so() -> None:
    lines = [json_line("INSERT", {"id": str(number)}, None) for number in range(300)]
    lines[7:9], lines[100] = [b"garbage", lines[7].replace(b'"id":"7"', b'"id":7')], lines[100].replace(b":", b": ")
    with eagerly():
        batches = [*ticdc_canal_json.decode([b"\n".join(lines)], json_context())]
    assert [row["line"] for batch in batches for row in batch.to_pylist() if row["strict"]] == [8, 9, 101]


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


@pytest.mark.slow
@pytest.mark.parametrize("bad", [b"garbage", b'"I","parcels","shop",5,1,"never closed,"b"'])
def test_one_bad_record_does_not_make_others_slow(bad: bytes) -> None:
    """Only what is near it is read record by record."""
    good = GOOD[0] + b"\r\n"
    content = good * 30_000 + bad + b"\r\n" + good * 30_000
    with patch.object(TextReader, "strict", autospec=True, side_effect=TextReader.strict) as strict:
        found = csv_rows(content)
    assert found[30_000]["problem"] == problems.NOT_CSV
    assert [event["line"] for event in found] == list(range(1, 60_002))
    assert sum(call.args[3] - call.args[2] for call in strict.call_args_list) < 300_000 < len(content) / 8


# --- Csv ---


@pytest.mark.parametrize("piece", PIECES)
def test_csv_cut_anywhere_keeps_whole_records(piece: int) -> None:
    changes = [Change(TS + n, None, (Bare(str(n)), 'say "hi"\r\n', None)) for n in range(3)]
    file = csv_file(csv_options(), changes)
    content, whole, ends = file.body, file.expected, [0, *itertools.accumulate(map(len, file.records))]
    for length in range(len(content)):
        found = csv_rows(content[:length], piece)
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
    header = csv_file(csv_options(output_field_header=True), [], ['q"uote', "b\\", "c"]).head
    fields = ["D", "parcels", "shop", "450000000000000002", "2", "c\r\n", None]
    content, end = header + GOOD[1] + b"\r\n" + GOOD[0] + b"\r\n", len(header + GOOD[1])
    assert [first_row(of, csv_options(), whole=True) for of in (content, content[:end])] == [fields, fields]
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
        (found,) = csv_rows(header + GOOD[0], quote=quote)
        assert (found["line"], found["problem"] is None) == (2, quote == '"')
    assert csv_rows(b"\r\n\n\r\r\n") == csv_rows(header) == csv_rows(header.rstrip()) == []
    assert [e["line"] for e in csv_rows(b"\n\n" + GOOD[0] + b"\n\r\n\n" + GOOD[1])] == [1, 2]


# --- A file that was cut off, and later ones: only what is proved to have come again is said to ---

SENT = Table(TableName("d", "a"), 5, (ID, text("old"), integer("ts")))
WRITERS = {"canal-json": canal_json, "csv": changefeed.csv, "csv with old values": changefeed.csv_with_old_values}
NO_QUOTES = "csv without quotes"
HEADER = b"ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,id\r\n"


def sent_change(at: int) -> SampleRowChange:
    row: dict[str, str | None] = {"id": str(at), "old": f'one\r\n"two","old":[{at}', "ts": "1234"}
    before = {**row, "ts": None} if at % 3 == 0 else None
    return SampleRowChange("UPDATE" if before else "INSERT", SENT, 1_000_000 + at, row, before)


def lines(kind: str, ats: Sequence[int], minutes: int = 0) -> list[bytes]:
    """Each change's text, with its line ends: the same ones, however later they are sent, but for what TiCDC has of the
    clock and of chance."""
    sent = NOON + datetime.timedelta(minutes=minutes)
    if kind == NO_QUOTES:
        return [f"I,a,d,{100 + at},{at}\r\n".encode() for at in ats]
    texts = [WRITERS[kind](sent_change(at), sent) for at in ats]
    if kind == "canal-json" and minutes:
        messages = [json.loads(text) for text in texts]
        messages = [each | {"mysqlType": dict(reversed(each["mysqlType"].items()))} for each in messages]
        texts = [json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in messages]
    return [f"{text}\r\n".encode() for text in texts]


def redelivers(kind: str, cut: bytes, *later: bytes) -> bool:
    options = {"quote": "", "output_field_header": True} if kind == NO_QUOTES else {}
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


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/cut_off.txt"), ids=str)
def test_cut_off_rows_are_found_where_all_come_again(case: Case, update: bool) -> None:
    """A line is a cut file: its rows by number, the row that was cut or other bytes after them; later files, with `/`
    between them; and what is replaced in these."""
    found = set[bool]()
    for kind, line in itertools.product(case.settings["kinds"], case.own):
        cut, laters, *edits = line.split(" | ")
        rows, _, end = cut.partition(" ")
        part = lines(kind, (int(end),))[0] if end.isdigit() else b""
        head = HEADER if kind == NO_QUOTES else b""
        whole = head + b"".join(lines(kind, [*map(int, rows)])) + (part[: len(part) * 3 // 4] or bytes_of(end))
        later = [head + b"".join(lines(kind, [*map(int, each)], minutes=5)) for each in laters.split("/")]
        for before, _, after in (each.partition(" ~> ") for each in edits):
            later = [each.replace(bytes_of(before), bytes_of(after), 1) for each in later]
        found.add(redelivers(kind, whole, *later))
    case.compare(["come again" if each else "not all" for each in found], update=update)


# --- Canal-JSON ---

LINE = json_line("INSERT", A, None)


@pytest.mark.slow
def test_json_values_of_64_mib_are_batches_of_their_own() -> None:
    large = json_line("UPDATE", A | {"name": "x" * (64 << 20)}, A | {"name": "y" * (64 << 20)})
    content, context = b"\n".join([LINE, large, json_line("DELETE", A, None)]), json_context()
    for readers in (at_once, strictly):
        with readers():
            found = list(ticdc_canal_json.decode([content], context))
        assert [batch.column("line").to_pylist() for batch in found] == [[1], [2], [3]]
        for which, letter in (("after", "x"), ("before", "y")):
            assert found[1].column(which)[0].as_py() == f'{{"id":"1","name":"{letter * (64 << 20)}"}}', which


@pytest.mark.slow
def test_batches_are_bounded() -> None:
    names = tuple(f"column_{number}_of_a_wide_table" for number in range(1000))
    wide = (b'"I","t","d",1' + b",\\N" * 1000 + b"\n") * 5000
    for content, columns, rows in ((b'"I","t","d",1,2\n' * 200_000, ("n",), 200_000), (wide, names, 5000)):
        batches = list(csv.decode([content], FileContext("d", "t", csv_options(), columns)))
        sizes = [batch.num_rows for batch in batches]
        assert sum(sizes) == rows and max(sizes) <= 65_536 and max(batch.nbytes for batch in batches) < 64 << 20
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
    numbers = iter(range(100))
    parts = (b'%d,"%s"\r\n' % (number, b"x" * 1000) for number in numbers)
    batches = decode_rows(parts, dump_context(TEXT, TWO), piece=4096)
    assert next(batches) and next(numbers) < 10
    assert sum(batch.num_rows for batch in batches) > 80 and next(numbers, None) is None


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
        assert all(groups) and len(groups) <= max(4, 2 * -(-sum(weights) // (384 << 20)))
        assert sum(weights) <= 2**22 or len(files) == 1 or len(groups) > 1
        assert max(weights, default=0) <= sum(weights) / max(1, len(groups)) + max(map(_weight, files), default=0) + 1


def _stop(file: SegmentFile) -> int:
    return file.context.pieces[1] or file.pieces


def _weight(file: SegmentFile) -> float:
    """Of a piece: its bytes, and its part of the request for the file."""
    return (file.ref.size + 2**20) / file.pieces


@pytest.mark.parametrize("ends", [(2,), (1, 3), (4, 5, 100)])
def test_pieces_of_a_file_together_are_the_file(ends: tuple[int, ...]) -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        content = end.join(
            [b"\xef\xbb\xbf" + LINE, b"", b"bad", *[LINE] * 9, json_line("UPDATE", A, A), json_line("DELETE", A, None)]
        )
        parts = [content[at : at + 300] for at in range(0, len(content), 300)]
        whole = read_json(parts, 300)
        contexts = (replace(json_context(), pieces=pieces) for pieces in itertools.pairwise([0, *ends, None]))
        found = [event for context in contexts for event in read_json(parts, 300, context)]
        assert found == whole
        assert [(each["line"], bool(each["problem"])) for each in whole] == [(n, n == 3) for n in (1, *range(3, 15))]


def test_a_file_on_a_disk_comes_in_parts(tmp_path: Path) -> None:
    for content in (b"a line\r\n" * 2_000_000, b"a\n" + b"\n" * (8 << 20) + b"a" * 7, b"\n" + b"a" * (20 << 20), b""):
        (tmp_path / "a").write_bytes(content)
        ((*found,),) = read_in_parts(tmp_path.as_uri(), StorageConfig(), [SegmentRef("a", len(content), None)])
        assert b"".join(found) == content and len(found) <= -(-len(content) // (8 << 20))
        # But for the last, each ends with a line that is not longer than a part.
        assert all(part.endswith(b"\n") or len(part) == 16 << 20 for part in found[:-1])
    too_large = [SegmentRef("a", 1 << 31, None)]
    with pytest.raises(SourceError, match="larger than 2147483647 bytes"):
        list(read_in_parts(tmp_path.as_uri(), StorageConfig(), too_large))


def test_parts_of_a_long_record_are_not_held_beside_it() -> None:
    held: list[float] = []

    def read(content: bytes, at: int, _: int, final: bool) -> Any:
        held.append(tracemalloc.get_traced_memory()[0] / len(content))
        return SimpleNamespace(end=len(content) if final else at)

    reader: Any = SimpleNamespace(fast=read, within_long=False)
    tracemalloc.start()
    try:
        assert list(quoted_text.read_rows(reader, (bytes(1 << 20) for _ in range(24)), 1 << 20))
    finally:
        tracemalloc.stop()
    assert max(held[2:]) < 1.5, held
