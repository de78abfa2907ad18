"""Whatever is written to files is read back; whatever befalls them, every reader finds the same, in pieces of any size,
and only what is damaged is lost. Rows that are taken at once are rows of texts, each name once."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, reject
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders import event_schema, problems
from cdc_lakehouse.decoders.formats.csv import notation_of
from cdc_lakehouse.decoders.formats.ticdc_canal_json import (
    NUMBERS,
    ROWS,
    FlatKind,
    RowForm,
    are_flat,
    have_known_entries,
    lines_of,
    read_rows,
)
from cdc_lakehouse.decoders.text import StrictReader
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import InsertNotation, TextNotation
from tests.kit.case_files import edited
from tests.kit.decoding import (
    DATABASE,
    PIECES,
    TABLE,
    TS,
    Events,
    csv_context,
    csv_options,
    dump_context,
    eagerly,
    read_csv,
    read_dump,
    read_json,
    strictly,
)
from tests.kit.dumps import COLUMNS, LABELS, MARKS, InsertWriter, Row, TextWriter, image

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
SLIPS = (
    *(bytes([byte]) for byte in b"\"'\\,:;\n\r\xff\0(){}[]x 1.eN-0a%\xf8\x01"), b"", b"\r\n", b'"I"', b"--", b"/*",
    b",}", b"\\u", b"\\ud800", b"NaN", b"inf", b"null", b"true", b'"a":1,',
)  # fmt: skip
texts = st.lists(st.sampled_from(PARTS), max_size=5).map("".join) | st.text(st.characters(exclude_categories=["Cs"]))
Places = Sequence[tuple[float, int, bytes]]
damage = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 3), st.sampled_from(SLIPS) | st.binary(max_size=2)),
    min_size=1,
    max_size=3,
)


def damaged(content: bytes, places: Places) -> bytes:
    """With some bytes at each place, a share of the content, replaced by others."""
    for share, cut, put in places:
        at = int(share * len(content))
        content = content[:at] + put + content[at + cut :]
    return content


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

    @property
    def op(self) -> str:
        return "I" if self.before is None else "D" if self.after is None else "U"


class Encoder:
    def __init__(self, options: CsvOptions, names: Sequence[str], handle_key: bool = False) -> None:
        self.options, self.names, self.handle_key = options, tuple(names), handle_key

    def file(self, changes: Sequence[Change]) -> bytes:
        return self.header() + b"".join(record for change in changes for record in self.records(change))

    def header(self) -> bytes:
        if not self.options.output_field_header:
            return b""
        meta = ["operation", "table", "schema", "commit-ts", *["is-update"] * self.options.output_old_value]
        fields = [*(f"ticdc-meta${name}" for name in meta), *self.names]
        return (self.options.delimiter.join(fields) + self.options.terminator).encode()

    def records(self, change: Change) -> list[bytes]:
        rows = [(change.op, change.before if change.after is None else change.after)]
        if change.op == "U" and self.options.output_old_value:
            rows = [("D", change.before), ("I", change.after)]
        is_update = [Bare("true" if change.op == "U" else "false")] * self.options.output_old_value
        leading = (change.table, change.database, Bare(str(change.commit_ts)), *is_update)
        handle, delimiter = [change.handle] * self.handle_key, self.options.delimiter.encode()
        lines = (delimiter.join(map(self.field, (op, *leading, *handle, *(row or ())))) for op, row in rows)
        return [line + self.options.terminator.encode() for line in lines]

    def field(self, value: str | Bare | None) -> bytes:
        if value is None or isinstance(value, Bare):
            return (self.options.null if value is None else value.text).encode()
        if quote := self.options.quote:
            return (quote + value.replace(quote, quote * 2) + quote).encode()
        delimiter, text = self.options.delimiter.encode(), value.encode()
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

    def read_as(self, value: str | Bare | None, *, leading: bool = False) -> str | None:
        """What a reader can know of a value: without quotes, a text may be written as NULL is."""
        if value is None or isinstance(value, Bare):
            return value and value.text
        if not self.options.quote and self.field(value) == self.options.null.encode():
            return self.options.null if leading else None
        return value


def events(changes: Sequence[Change], encoder: Encoder) -> Iterator[dict[str, object]]:
    """What a parser should give for a file of `changes` of the table `TABLE`."""

    def named(row: CsvRow | None) -> dict[str, str | None] | None:
        return None if row is None else {n: encoder.read_as(v) for n, v in zip(encoder.names, row, strict=True)}

    line = 2 if encoder.options.output_field_header else 1
    for change in changes:
        before = change.before if change.op == "D" or encoder.options.output_old_value else None
        found = event(line, change.op, change.commit_ts, named(before), named(change.after))
        of = [encoder.read_as(name, leading=True) for name in (change.database, change.table)]
        if of != [DATABASE, TABLE]:
            images = {"before": found["before"], "after": found["after"]}
            found = dict.fromkeys(found) | {"line": line, "problem": problems.WRONG_TABLE, "value": images}
        yield found
        line += len(encoder.records(change))


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
    encoder = Encoder(draw(options), names, draw(st.booleans()))
    row = st.none() | st.tuples(*[st.none() | numbers | texts] * len(names))
    tables, databases = st.just(TABLE) | texts, st.just(DATABASE) | texts
    changes = draw(st.lists(st.builds(Change, stamps, row, row, tables, databases, texts), max_size=8))
    changes = [change for change in changes if change.before is not None or change.after is not None]
    records = [b"".join(encoder.records(change)) for change in changes]
    context = csv_context(encoder.options, names, encoder.handle_key)
    end = b"" if encoder.options.output_old_value else encoder.options.terminator.encode()
    return File(
        lambda parts, piece: read_csv(parts, context, piece),
        records, list(events(changes, encoder)), end, encoder.header(),
    )  # fmt: skip


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


FORMATS = ("csv", "json", "text", "insert")
DUMPS_AND_JSON = (json_files(), text_files(), insert_files())
pieces = st.sampled_from((1, *PIECES))


@pytest.mark.slow
@pytest.mark.parametrize("reader", [eagerly, strictly])
@pytest.mark.parametrize("of", [csv_files(all_options()), *DUMPS_AND_JSON], ids=FORMATS)
@given(data=st.data(), piece=pieces, batch=st.integers(2, 5))
def test_written_file_is_read_back(reader: Any, of: Any, data: st.DataObject, piece: int, batch: int) -> None:
    file = data.draw(of)
    with patch.object(event_schema, "BATCH_ROWS", batch), reader():
        assert file.read([file.head + file.body], piece) == file.expected


@pytest.mark.slow
@pytest.mark.parametrize("of", [csv_files(usual), *DUMPS_AND_JSON], ids=FORMATS)
@given(data=st.data(), places=damage, shares=st.lists(st.floats(0, 1), max_size=8), piece=pieces)
def test_readers_agree_on_damaged_file(of: Any, data: Any, places: Places, shares: list[float], piece: int) -> None:
    file = data.draw(of)
    content = file.head + file.tail + damaged(file.body, places) + file.tail
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
@pytest.mark.parametrize("of", [csv_files(usual), json_files(), text_files(plain=True)], ids=FORMATS[:3])
@given(data=st.data(), places=damage, which=st.integers(0, 7))
def test_damaged_record_leaves_others_as_they_are(of: Any, data: Any, places: Places, which: int) -> None:
    file = data.draw(of)
    assume(file.end and file.records)
    which %= len(file.records)
    bad = damaged(file.records[which].removesuffix(file.end), places)
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
def test_no_byte_of_csv_is_lost(content: bytes, options: CsvOptions) -> None:
    at = 0
    for record in StrictReader(notation_of(options)).records(content, 0, len(content)):
        assert not content[at : record.start].strip(b"\r\n") and record.start < record.end <= record.following
        at = record.end
    assert not content[at:].strip(b"\r\n")
    found = read_csv(content, csv_context(options, NAMES))
    assert all(each["value"] in content for each in found if isinstance(each["value"], bytes))


# --- Lines and images ---


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
        found = [(n, each.line(at)) for each in lines_of(of, piece) for at, n in enumerate(each.numbers.tolist())]
        assert found == [(number, line) for number, line in enumerate(lines, 1) if line]


@given(st.data(), st.integers(0, 2))
@example(None, 0)
def test_image_is_json_of_its_row(data: st.DataObject | None, start: int) -> None:
    every = "".join(map(chr, [*range(0x100), 0x2028, 0xFFFF, 0x1F600]))
    names, rows = [every, "b"], [(every, "x"), (None, "y")]
    if data is not None:
        short = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
        names = data.draw(st.lists(short, max_size=4, unique=True))
        cells = [data.draw(st.sampled_from([st.none() | short, short, st.just("7")])) for _ in names]
        rows = data.draw(st.lists(st.tuples(*cells), max_size=6))
    columns = [pa.array([row[place] for row in rows], pa.string()).slice(start) for place in range(len(names))]
    images = event_schema.row_images(names, columns, len(rows[start:]))
    assert images.type == pa.string()
    found = [json.loads(image) for image in images.to_pylist()]
    assert found == [dict(zip(names, row, strict=True)) for row in rows[start:]]


# --- Rows of Canal-JSON that are taken at once ---

ROW_NAMES = st.sampled_from(["a", "b", "id", ":", ",", "null", "{", "né", "a b"])
PLAIN = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=5)
ROW_TEXTS = PLAIN | st.sampled_from(["", ":", ",", "null", '"', "\\", '":"', '","b":"', "}", "\n", ":null"])
ROW_SLIPS = st.sampled_from(
    [b"", b'"', b":", b",", b"\\", b"\n", b" ", b"\xff", b"{", b"}", b"[", b"null", b"1", b"\xc3"]
)
ROW_DAMAGE = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), ROW_SLIPS), max_size=2)


def written(row: Mapping[str, str | None]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


def is_row(text: bytes) -> bool:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    try:
        found = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, AssertionError):
        return False
    return isinstance(found, dict) and all(value is None or isinstance(value, str) for value in found.values())


row_and_damage = st.tuples(st.dictionaries(ROW_NAMES, st.none() | ROW_TEXTS, max_size=4), ROW_DAMAGE)
batches = st.lists(st.lists(row_and_damage, max_size=8), max_size=4)
Batches = Sequence[Sequence[tuple[dict[str, str | None], Places]]]


@pytest.mark.slow
@given(batches)
def test_text_that_is_not_a_row_is_never_taken(batches: Batches) -> None:
    forms: list[RowForm] = []
    for batch in batches:
        texts = [damaged(written(row), places) for row, places in batch]
        found, of_form = read_rows(pa.array(texts, pa.binary()), forms)
        assert found[of_form >= 0].all()
        # With the forms that are known by then.
        assert found.tolist() == read_rows(pa.array(texts, pa.binary()), forms)[0].tolist()
        for text, (row, places), is_taken in zip(texts, batch, found.tolist(), strict=True):
            assert not is_taken or is_row(text), text
            assert is_taken or places or not row, text


@pytest.mark.slow
@given(batches, st.sampled_from([ROWS, NUMBERS]))
def test_text_of_known_entries_is_an_object(batches: Batches, of: FlatKind) -> None:
    known: dict[bytes | str, int] = {}
    for batch in batches:
        texts = pa.array([damaged(written(row), places) for row, places in batch], pa.binary())
        found = have_known_entries(texts, of, known)
        assert not (found & ~are_flat(texts, of)).any()


def test_row_shorter_than_a_form_is_taken() -> None:
    forms: list[RowForm] = []
    for rows in ([{"a": "1", "a long name": "2"}], [{"a": "1", "b": "2"}], [{"a": "1", "a long name": "2"}]):
        sound, of_form = read_rows(pa.array([*map(written, rows)], pa.binary()), forms)
        assert sound.all() and (of_form >= 0).all()
