"""TiCDC's csv in files: one row change per record.

    "U","employee","hr",433305438660591627,101,"Smith","2015-10-08",\\N

An INSERT's row and an UPDATE's new one are in the record; with output-old-value an UPDATE is two records. Values stay
the source's text, NULL is None: NULL is the configured text without quotes; the same text in quotes is text. Without
`quote` the two cannot always be distinguished: a text that equals NULL's is read as NULL. Readers of csv take the
quoted text "\\N" for NULL, or a line end in quotes for the end of a row; so files are parsed here, with Arrow. Format:
`csv_format`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import batch_of
from cdc_lakehouse.decoders.files.csv_events import EventBuilder
from cdc_lakehouse.decoders.files.csv_fast import PieceReader
from cdc_lakehouse.decoders.files.csv_format import (
    COMMIT_TS,
    DATABASE,
    HEADER,
    IS_UPDATE,
    LINE_ENDS,
    OP,
    TABLE,
    Dialect,
    Fields,
)
from cdc_lakehouse.decoders.files.csv_strict import CsvRecord, CsvRecordReader
from cdc_lakehouse.decoders.files.file_format import FileContext, commit_ts_of

_PIECE: Final = 8 * 1024 * 1024
"""Shorter pieces spend more time in calls; longer ones do not fit into the processor's cache."""
_SMALLER: Final = 32
"""The factor by which pieces are smaller where one is not valid."""


def decode(connection: Any, content: bytes, context: FileContext, *, piece: int = _PIECE) -> Iterator[pa.RecordBatch]:
    """Decode the changes of a file, in batches of some ten megabytes and at most 65,536 rows, with the columns of
    `DECODED`.

    Nothing is lost: a record that cannot be used has its `problem`, a key of `problems.PROBLEMS`, and its bytes in
    `value`; its other columns except `line` are null. `piece` is the number of bytes that are read at a time.
    """
    options, layout = context.csv, context.layout
    assert options is not None, "they are known of each file of csv"
    assert layout is not None, "it is known of each file of csv"
    dialect, fields, piece = Dialect.of(options), Fields.of(options, layout), max(piece, _SMALLER)
    strict = CsvRecordReader(content, dialect)
    fast = PieceReader(content, dialect, fields, context.end_ts)
    read_strictly = functools.partial(strict_rows, content, strict, dialect, fields, context.end_ts)
    at, header = behind_header(strict, content)
    events = EventBuilder(context, layout, fields, first_line=2 if header else 1)
    size = piece
    while at < len(content):
        read = fast.read(at, size)
        if read is None and size > piece // _SMALLER:
            size = piece // _SMALLER  # So that little of what is beside a bad record is read the slow way.
            continue
        if read is not None:
            size = min(size * 2, piece)
        rows, at = read or read_strictly(at, min(at + size, len(content)))
        yield from events.events(rows)
    yield from events.rest()


def first_row(head: bytes, options: CsvOptions, *, whole: bool) -> list[str | None] | None:
    """Return the fields of a file's first valid record: not the header, and not a record that is not csv or not UTF-8.

    `head` is the file, or, if not `whole`, its beginning. None when there is no such record, or not all of it."""
    reader = CsvRecordReader(head, Dialect.of(options))
    at, _ = behind_header(reader, head)
    for record in reader.records(at, len(head)):
        if record.following == record.end and not whole:
            return None
        try:
            texts = _texts(record)
        except UnicodeDecodeError:
            continue
        if texts is not None:
            return texts
    return None


def header_names(head: bytes, options: CsvOptions) -> list[str] | None:
    """Return the names of a file's header, including those of the leading columns; None when it has none, or it is
    incomplete or not UTF-8. A name that contains the delimiter is split into two."""
    at, found = behind_header(CsvRecordReader(head, Dialect.of(options)), head)
    if not found or at == len(head):
        return None
    try:
        return head[:at].strip(LINE_ENDS).decode().split(options.delimiter)
    except UnicodeDecodeError:
        return None


def behind_header(reader: CsvRecordReader, content: bytes) -> tuple[int, bool]:
    """Return the start of the first record after the header, and whether there is a header."""
    at = len(content) - len(content.lstrip(LINE_ENDS))
    # Its names may contain anything, even quotes: it is read as one line, whatever its content.
    return (reader.line(at).following, True) if content.startswith(HEADER, at) else (at, False)


def strict_rows(
    content: bytes, reader: CsvRecordReader, dialect: Dialect, fields: Fields, end_ts: int, start: int, stop: int
) -> tuple[pa.RecordBatch, int]:
    """Read the records that begin from `start` to before `stop`; return their rows and the start of the next record."""
    null = dialect.null.decode()
    schema = fields.rows
    rows: list[tuple[object, ...]] = []
    for record in reader.records(start, stop):
        row = _row(record, null, fields, end_ts)
        if isinstance(row, str):
            row = (*[None] * (len(schema) - 2), row, content[record.start : record.end])
        rows.append(row)
        stop = max(stop, record.following)
    return batch_of(rows, schema), stop


def _row(record: CsvRecord, null: str, fields: Fields, end_ts: int) -> tuple[object, ...] | str:
    """Return a record as a row of `Fields.rows`, or the problem with it."""
    try:
        texts = _texts(record)
    except UnicodeDecodeError:
        return problems.NOT_UTF8
    if texts is None:
        return problems.NOT_CSV
    if len(texts) != fields.width:
        return problems.FIELD_COUNT
    # A table may have the name that NULL is written as: no leading field is ever NULL.
    leading = [null if text is None else text for text in texts[: fields.leading]]
    commit_ts = commit_ts_of(leading[COMMIT_TS], end_ts)
    if leading[OP] not in ("I", "U", "D"):
        return problems.NOT_A_ROW_CHANGE
    if commit_ts is None:
        return problems.NO_COMMIT_TS
    row: list[object] = [leading[OP], leading[TABLE], leading[DATABASE], commit_ts]
    if fields.old_value:
        if leading[IS_UPDATE] not in ("true", "false"):
            return problems.NO_IS_UPDATE
        row.append(leading[IS_UPDATE] == "true")
    return (*row, *texts[fields.width - fields.columns :], None, None)


def _texts(record: CsvRecord) -> list[str | None] | None:
    """Decode a record's fields; None when it is not csv. Raises UnicodeDecodeError."""
    if record.fields is None:
        return None
    return [None if text is None else text.decode() for text in record.fields]
