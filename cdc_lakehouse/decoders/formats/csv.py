r"""TiCDC's csv in files: one row change per record.

    "U","employee","hr",433305438660591627,101,"Smith","2015-10-08",\N

An INSERT's row and an UPDATE's new one are in the record; with output-old-value an UPDATE is two records. Values stay
the source's text, NULL is None: NULL is the configured text without quotes; the same text in quotes is text. Without
`quote` the two cannot always be distinguished: a text that equals NULL's is read as NULL. Readers of csv take the
quoted text "\N" for NULL, or a line end in quotes for the end of a row; so files are parsed here (see `decoders.text`).
The fields are

    op, table, schema, commit-ts, [is-update], [handle key], data columns

`is-update` exists with output-old-value; the handle key, with output-handle-key, only from classic TiCDC. Numbers,
booleans and NULL are not quoted.

With output-old-value TiCDC writes an UPDATE as its old row with operation D, immediately followed by its new row with
operation I, both with `is-update` true (TiCDC csv protocol documentation); they become one event.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lakehouse.changelog.positions import BEGINNING, is_commit_ts
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders import problems, text
from cdc_lakehouse.decoders.arrow import Mask, Positions, pc
from cdc_lakehouse.decoders.event_schema import DECODED, most_rows, row_images
from cdc_lakehouse.decoders.format import PIECE, FileContext, Sample
from cdc_lakehouse.decoders.text import BACKSLASH, LINE_ENDS, Cells, NotUsualError, StrictReader, Table, TextReader
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import TextNotation

OP, TABLE, DATABASE, COMMIT_TS, IS_UPDATE = range(5)
"""The leading fields; the last one only with output-old-value."""

HEADER: Final = b"ticdc-meta$operation"
"""The beginning of a file's header (output-field-header). Its names are not quoted, whatever they contain."""
_DIGITS: Final = re.compile("[0-9]{1,19}")
_OPERATIONS: Final = pa.array(["I", "U", "D"])
_TRUTHS: Final = pa.array(["true", "false"])


def notation_of(options: CsvOptions) -> TextNotation:
    """Return TiCDC's. It writes a quote only around a whole cell, always around a record's first one; without quotes, a
    backslash only in an escape or in NULL."""
    separator, quote, null = options.delimiter.encode(), options.quote.encode(), options.null.encode()
    escapes, begin = dict[bytes, bytes](), re.escape(quote) + b"[IUD]" + re.escape(quote) if quote else b""
    if not quote:
        # TiCDC escapes the delimiter byte by byte, and writes each byte as the character of that number: `¦` (C2 A6)
        # becomes `\Â\¦` (5C C3 82 5C C2 A6). For an ASCII delimiter this is simply a backslash before it.
        whole = b"".join(BACKSLASH + chr(byte).encode() for byte in separator)
        escapes = {rb"\\": BACKSLASH, whole: separator, rb"\n": b"\n", rb"\r": b"\r"}
        single = {BACKSLASH + character.encode(): character.encode() for character in options.delimiter}
        escapes |= {escape: character for escape, character in single.items() if escape not in escapes}
    return TextNotation((), separator, quote, null, None, backslash_escapes=False, escapes=escapes, begin=begin)


class CsvTable(Table):
    """The fields of a row: rows have the leading fields, then the data columns by number, without the handle key."""

    def __init__(self, options: CsvOptions, names: Sequence[str], end_ts: int) -> None:
        self.old_value = options.output_old_value
        self._null = options.null
        self._end_ts = end_ts
        self._columns = len(names)
        self._leading = IS_UPDATE + self.old_value
        texts = ("op", pa.string()), ("table_name", pa.string()), ("schema_name", pa.string())
        leading = [*texts, ("commit_ts", pa.int64()), ("is_update", pa.bool_())][: self._leading]
        data = [(str(number), pa.string()) for number in range(self._columns)]
        super().__init__([*leading, *data], self._leading + options.output_handle_key + self._columns)

    def row(self, cells: Cells) -> tuple[object, ...] | str:
        try:
            texts = [None if cell is None else cell.decode() for cell in cells]
        except UnicodeDecodeError:
            return problems.NOT_UTF8
        if len(texts) != self.width:
            return problems.FIELD_COUNT
        # A table may have the name that NULL is written as: no leading field is ever NULL.
        leading = [self._null if text is None else text for text in texts[: self._leading]]
        digits = leading[COMMIT_TS].lstrip("0")
        commit_ts = int(digits) if _DIGITS.fullmatch(digits) else 0
        if leading[OP] not in ("I", "U", "D"):
            return problems.NOT_A_ROW_CHANGE
        if not is_commit_ts(commit_ts, self._end_ts):
            return problems.NO_COMMIT_TS
        row: list[object] = [leading[OP], leading[TABLE], leading[DATABASE], commit_ts]
        if self.old_value:
            if leading[IS_UPDATE] not in ("true", "false"):
                return problems.NO_IS_UPDATE
            row.append(leading[IS_UPDATE] == "true")
        return (*row, *texts[self.width - self._columns :])

    def columns(self, cells: list[Any]) -> list[Any]:
        texts = [column.cast(pa.string()) for column in cells]
        leading = [column.fill_null(self._null) for column in texts[: self._leading]]
        commit_ts = leading[COMMIT_TS].cast(pa.int64())
        checks = [pc.is_in(leading[OP], _OPERATIONS), pc.ascii_is_decimal(leading[COMMIT_TS])]
        checks += [pc.greater(commit_ts, BEGINNING), pc.less(commit_ts, self._end_ts)]
        rows = [leading[OP], leading[TABLE], leading[DATABASE], commit_ts]
        if self.old_value:
            checks.append(pc.is_in(leading[IS_UPDATE], _TRUTHS))
            rows.append(pc.equal(leading[IS_UPDATE], "true"))
        if not all(pc.all(check).as_py() for check in checks):
            raise NotUsualError
        return [*rows, *texts[self.width - self._columns :]]


def _events(
    context: FileContext, names: Sequence[str], rows: pa.RecordBatch, has_old: bool, line: int
) -> pa.RecordBatch:
    """Return the events of a file's rows from that line on; with `has_old` an UPDATE's two rows are one event."""
    count, delete = rows.num_rows, _mask(pc.equal(rows.column(OP), "D"))
    # Which rows are the old row of an UPDATE whose new row comes next.
    updates = np.zeros(count, bool)
    if has_old and count > 1:
        is_update = _mask(rows.column(IS_UPDATE))
        is_new = is_update & _mask(pc.equal(rows.column(OP), "I"))
        updates[:-1] = delete[:-1] & is_update[:-1] & is_new[1:]
        for number in (COMMIT_TS, TABLE, DATABASE):
            column = rows.column(number)
            updates[:-1] &= _mask(pc.equal(column.slice(0, count - 1), column.slice(1)))
    events: Positions = np.flatnonzero(~np.roll(updates, 1))
    # The row of each event; for an UPDATE its old one.
    old, update = delete[events], updates[events]
    new = update | ~(old | _mask(rows.column("problem").is_valid())[events])
    columns: list[Any] = [rows.column(each) for each in (TABLE, DATABASE, OP, COMMIT_TS, "problem", "value", "strict")]
    if len(events) < count:
        columns = [column.take(pa.array(events)) for column in columns]
        columns[2] = pc.if_else(pa.array(update), "U", columns[2])
    table, database, op, commit_ts, problem, value, strict = columns
    images = row_images(names, [rows.column(str(number)) for number in range(len(names))], count)
    before = images.take(pa.array(events, mask=~old))
    after = images.take(pa.array(events + update, mask=~new))
    foreign = pc.or_(pc.not_equal(table, context.table), pc.not_equal(database, context.database)).fill_null(False)
    if foreign.true_count:
        parts = ['{"before":', before.fill_null("null"), ',"after":', after.fill_null("null"), "}", ""]
        value = pc.if_else(foreign, pc.binary_join_element_wise(*parts).cast(pa.binary()), value)
        problem = pc.if_else(foreign, problems.WRONG_TABLE, problem)
        decoded = (op, commit_ts, before, after)
        op, commit_ts, before, after = (pc.if_else(foreign, pa.scalar(None, each.type), each) for each in decoded)
    found = [pa.array(events + line), op, commit_ts, before, after, problem, value, strict]
    return pa.RecordBatch.from_arrays(found, schema=DECODED)


def _mask(values: pa.Array) -> Mask:
    return values.fill_null(False).to_numpy(zero_copy_only=False)


def decode(parts: Iterable[bytes], context: FileContext, *, piece: int = PIECE) -> Iterator[pa.RecordBatch]:
    """Decode a file, which comes in parts that are cut anywhere, into batches of `DECODED` of some ten megabytes and at
    most 65,536 rows. `piece` is the number of bytes that are read at a time."""
    options, names = context.csv, context.columns
    assert options is not None, "they are known of each file of csv"
    assert names is not None, "they are known of each file of csv"
    notation, fields, parts = notation_of(options), CsvTable(options, names, context.end_ts), iter(parts)
    head, at, header = b"", 0, False
    for part in parts:
        head += part
        at, header = behind_header(StrictReader(notation), head)
        if len(head) > at + len(HEADER):
            break
    # An UPDATE needs two rows.
    limit, line, held = max(2, most_rows(names)), 2 if header else 1, None
    reader = TextReader(notation, fields, problems.NOT_CSV)
    for found in text.read_rows(reader, itertools.chain([head[at:]], parts), piece):
        rows = found.batch if held is None else pa.concat_batches([held, found.batch])
        start, held = 0, None
        while start < rows.num_rows:
            stop = min(start + limit, rows.num_rows)
            ops = rows.column(OP)
            if fields.old_value and ops[stop - 1].as_py() == "D" and rows.column(IS_UPDATE)[stop - 1].as_py() is True:
                stop -= 1  # Its new row comes next.
            if stop == start:
                held = rows.slice(start)
                break
            yield _events(context, names, rows.slice(start, stop - start), fields.old_value, line)
            start, line = stop, line + stop - start
    if held is not None:
        yield _events(context, names, held, fields.old_value, line)


def first_row(head: bytes, options: CsvOptions, *, whole: bool) -> list[str | None] | None:
    """Return the fields of the first record that is csv and UTF-8, and not the header; None when there is none, or not
    all of it. `head` is the file, or, if not `whole`, its beginning."""
    reader = StrictReader(notation_of(options))
    at, _ = behind_header(reader, head)
    for record in reader.records(head, at, len(head)):
        if record.following == record.end and not whole:
            return None
        with contextlib.suppress(UnicodeDecodeError):
            if record.cells is not None:
                return [None if cell is None else cell.decode() for cell in record.cells]
    return None


def header_names(head: bytes, options: CsvOptions) -> list[str] | None:
    """Return the names of a file's header, including those of the leading columns; None when it has none, or it is
    incomplete or not UTF-8. A name that contains the delimiter is split into two."""
    at, found = behind_header(StrictReader(notation_of(options)), head)
    if not found or at == len(head):
        return None
    try:
        return head[:at].strip(LINE_ENDS).decode().split(options.delimiter)
    except UnicodeDecodeError:
        return None


def behind_header(reader: StrictReader, content: bytes) -> tuple[int, bool]:
    """Return the start of the first record after the header, and whether there is a header."""
    at = reader.after_blank(content, 0)
    # Its names may contain anything, even quotes: it is read as one line, whatever its content.
    return (reader.line(content, at).following, True) if content.startswith(HEADER, at) else (at, False)


# Detection of the options with which files of TiCDC's csv were written, from their content.

_ENDS: Final = (b"\r\n", b"\n", b"\r")
_NUMBER: Final = re.compile(rb"[+-]?[\d.]+(?:[eE][+-]?\d+)?")


def detect_csv(samples: Sequence[Sample]) -> tuple[dict[str, Any], list[str]]:
    """Combine the options that the samples show, in order: what does not show in one may show in the next. Raises
    SourceError for rows without a commit-ts."""
    options: dict[str, Any] = {}
    for sample in samples:
        found = options_of(sample.head, sample.table, sample.database)
        if found is not None and not found["include-commit-ts"]:
            advice = "set include-commit-ts = true under [sink.csv] in the changefeed, and start it afresh"
            raise SourceError("the csv rows have no commit-ts, and so no order", segment=sample.path, advice=advice)
        options = {**(found or {}), **options}
    unsure = ["csv: binary-encoding-method does not show; it is base64, if the changefeed does not say hex"]
    if not options:
        unsure.insert(0, "the csv options do not show in its files: write those of the changefeed's [sink.csv]")
    return {"csv": options or {"include-commit-ts": True}}, unsure


def options_of(content: bytes, table: str | None = None, database: str | None = None) -> dict[str, Any] | None:
    """Return the options that differ from TiCDC's defaults, by TiCDC's names; None where a file that begins so is not
    TiCDC's csv. `table` and `database` are those of its rows, None where the path does not give them.
    `binary-encoding-method` and `output-handle-key` cannot be detected."""
    # A value may contain another line end: the one at the end of the content is preferred.
    ends = [end for end in _ENDS if content.endswith(end)] + [end for end in _ENDS if end in content]
    if not ends:
        return None
    end, has_header = ends[0], content.startswith((HEADER, b'"' + HEADER))
    if has_header:
        content = content[content.index(end) + len(end) :]
    # A row's first columns: op, table, schema, commit-ts, is-update.
    of_table, of_database = (rb".*?" if name is None else re.escape(name.encode()) for name in (table, database))
    between = rb"(?P=quote)(?P=delimiter)(?P=quote)"
    row = re.match(
        rb"(?P<quote>[^\w\s]?)[IUD](?P=quote)(?P<delimiter>[^\r\n]{1,3}?)(?P=quote)" + of_table + between + of_database
        + rb"(?P=quote)(?P=delimiter)(?P<commit_ts>\d{15,20}(?=(?P=delimiter)))?"
        rb"(?:(?P=delimiter)(?P<is_update>true|false)(?=(?P=delimiter)))?",
        content,
        re.DOTALL,
    )  # fmt: skip
    if row is None:
        return None
    quote, delimiter, null = row["quote"], row["delimiter"], b"\\N"
    if quote:
        # NULL is the most frequent value without quotes that is not a number. Without a quote character it cannot be
        # distinguished from text.
        q = re.escape(quote)
        quoted = re.compile(q + rb"(?:[^" + q + rb"]|" + q + q + rb")*" + q)
        bare = Counter(
            value
            for row in quoted.sub(quote, content).split(end)[:-1]
            for value in row.split(delimiter)
            if value != quote and value not in (b"true", b"false") and not _NUMBER.fullmatch(value)
        )
        null = max(bare, key=lambda value: bare[value], default=null)
    options = {
        "terminator": end.decode(), "output-field-header": has_header,
        "include-commit-ts": row["commit_ts"] is not None, "quote": quote.decode(),
        "delimiter": delimiter.decode("utf-8", "replace"), "output-old-value": row["is_update"] is not None,
        "null": null.decode("utf-8", "replace"),
    }  # fmt: skip
    usual = CsvOptions.model_construct().model_dump(by_alias=True)
    return {name: value for name, value in options.items() if name == "include-commit-ts" or value != usual[name]}


def redelivers_csv(cut: bytes, later: Sequence[bytes], csv: CsvOptions | None) -> bool:
    """Whether the later csv files contain the cut one: a row always has the same bytes."""
    assert csv is not None, "they are known of each file of csv"
    reader = StrictReader(notation_of(csv))
    first, _ = behind_header(reader, cut)
    starts = [record.start for record in reader.records(cut, first, len(cut))]
    if len(starts) < 2 or cut[-1:] in (b"\r", b"\n"):
        return False
    rest, part = cut[first:], len(cut) - starts[-1]
    text = b"".join(each[behind_header(reader, each)[0] :] for each in later)
    reader = StrictReader(notation_of(csv))
    at = text.find(rest)
    while at >= 0:
        if at == 0 or text[at - 1] in LINE_ENDS:
            start = at + len(rest) - part
            record = next(reader.records(text, start, len(text)), None)
            if record is not None and record.cells and record.start == start and part < record.end - start:
                return record.following > record.end
        at = text.find(rest, at + 1)
    return False
