r"""Data files of dumps: each row is an event that the row was read, at one commit-ts.

Nothing is lost: a record that cannot be used has its `problem`, a key of `problems.PROBLEMS`, and its first bytes in
`value`; its other columns are null except `line`, the row's number in the file. A header is not a row, nor is the text
around the rows of INSERT statements. For the formats of rows see `text.strict` and `dump_insert`.

A row of delimited text, whose values are those of `dump_values`:

    1,"lamp",\N
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lakehouse import duckdb_sql
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import DECODED, most_rows, row_images
from cdc_lakehouse.decoders.formats import dump_values
from cdc_lakehouse.decoders.formats.dump_insert import InsertReader
from cdc_lakehouse.decoders.formats.dump_values import (
    DumpColumn,
    DumpContext,
    MoreNeededError,
    Reader,
    RowBuilder,
    Rows,
    columns_of,
)
from cdc_lakehouse.decoders.text.columns import TextPieceReader
from cdc_lakehouse.decoders.text.strict import TextRecordReader
from cdc_lakehouse.sources.dump.contents import TextNotation


class TextReader:
    """A `dump_values.Reader`. Raises SourceError for a header with other columns than the notation's."""

    def __init__(self, context: DumpContext, notation: TextNotation) -> None:
        self._context = context
        self._notation = notation
        self._columns = columns_of(context.own_names(notation.columns), context)
        self._records = TextRecordReader(notation)
        self._pieces = TextPieceReader(notation, self._columns)
        # A table without dumped columns has no header.
        self._at_header = notation.header and bool(notation.columns)
        self._within_long = False

    def fast(self, content: bytes, start: int, stop: int, final: bool) -> Rows | None:
        if self._at_header or self._within_long:
            return None
        stop = min(stop, start + dump_values.RECORD_LIMIT)
        return self._pieces.read(content, start, stop, whole=final and stop == len(content))

    def strict(self, content: bytes, start: int, stop: int, final: bool) -> Rows:
        rows, at = RowBuilder(self._columns), start
        while at < stop:
            if self._within_long:
                at = self._behind_long(content, at, final)
                if self._within_long:
                    break
                continue
            try:
                record = self._records.record(content, at, final)
            except MoreNeededError:
                if len(content) - at > dump_values.RECORD_LIMIT:
                    rows.reject(problems.NOT_A_DUMP_ROW, content[at : at + problems.RAW_LIMIT])
                    self._within_long, self._at_header = True, False
                    continue
                break
            raw = content[at : min(record.end, at + problems.RAW_LIMIT)]
            at = record.following
            if self._at_header:
                self._at_header = False
                self._check_header(record.cells)
                break  # What is behind it may be usual.
            if record.cells is None:
                rows.reject(problems.NOT_A_DUMP_ROW, raw)
            else:
                # Rows without columns are empty lines.
                rows.add([] if not self._columns and not raw else record.cells, raw)
        return rows.rows(at)

    def rest(self) -> Rows | None:
        return None

    def _behind_long(self, content: bytes, at: int, final: bool) -> int:
        """Return the position after the terminator; where it is not there, the position up to which it is not."""
        terminator = self._notation.terminator
        end = content.find(terminator, at)
        if end >= 0:
            self._within_long = False
            return end + len(terminator)
        return len(content) if final else max(at, len(content) - len(terminator) + 1)

    def _check_header(self, cells: list[bytes | None] | None) -> None:
        names = [(cell or b"").decode(errors="replace") for cell in cells or []]
        expected = self._notation.columns
        if [name.lower() for name in names] != [name.lower() for name in expected]:
            raise self._context.other_columns("a file's header says", names, "the rows of the dump have", expected)


_PIECE: Final = 4 * 1024 * 1024
"""Shorter pieces spend more time in calls; longer ones do not fit into the processor's cache."""
_SMALLER: Final = 32
"""The factor by which pieces are smaller where one is not valid."""


def decode_rows(
    connection: Any, pieces: Iterator[bytes], context: DumpContext, *, piece: int = _PIECE
) -> Iterator[pa.RecordBatch]:
    """Decode a file into events, in batches with the columns of `DECODED`, with a DuckDB connection of
    `duckdb_sql.database`.

    `pieces` are the content's parts in order, cut anywhere. A few of them are held, or a record that is longer. `piece`
    is the number of bytes that are read at a time. Raises SourceError for a file with other columns.
    """
    reader: Reader
    notation = context.notation
    reader = TextReader(context, notation) if isinstance(notation, TextNotation) else InsertReader(context, notation)
    piece = max(piece, _SMALLER)
    events = _EventBuilder(connection, context, piece // 2)
    content, at, final = b"", 0, False
    size, needed = piece, piece // 2
    while not final or at < len(content):
        if not final and len(content) - at < needed:
            content, final = _filled(content[at:], pieces, max(needed, piece))
            at = 0
        stop = min(at + size, len(content))
        rows = reader.fast(content, at, stop, final)
        if rows is None and size > piece // _SMALLER:
            size = piece // _SMALLER  # So that little of what is beside a bad record is read the slow way.
            continue
        if rows is None:
            rows = reader.strict(content, at, stop, final)
        else:
            size = min(size * 2, piece)
        # A row that extends beyond the content needs more of it.
        needed = piece // 2 if rows.end > at else min(2 * (len(content) - at), dump_values.RECORD_LIMIT) + piece
        at = rows.end
        yield from events.events(rows)
    rest = reader.rest()
    if rest is not None:
        yield from events.events(rest)
    yield from events.rest()


def _filled(content: bytes, pieces: Iterator[bytes], wanted: int) -> tuple[bytes, bool]:
    """Append further pieces up to `wanted` bytes and at most a piece more; return the content and whether it is
    complete."""
    parts, length = [content], len(content)
    while length < wanted:
        part = next(pieces, None)
        if part is None:
            return b"".join(parts), True
        parts.append(part)
        length += len(part)
    return b"".join(parts), False


class _EventBuilder:
    def __init__(self, connection: Any, context: DumpContext, least: int) -> None:
        """`least` is the number of bytes of rows that are collected before they become events."""
        self._connection = connection
        self._commit_ts = context.commit_ts
        self._least = least
        self._line = 1
        self._columns: Sequence[DumpColumn] = ()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def events(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Yield the events of the rows. Some wait for more rows, as a statement may have few."""
        if rows.columns != self._columns:
            yield from self.rest()
            self._columns = rows.columns
        self._waiting.append(rows.batch)
        self._waiting_bytes += rows.batch.nbytes
        if self._waiting_bytes >= self._least:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the events of the rows that wait."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        rows = pa.concat_batches(waiting)
        limit = most_rows([column.name for column in self._columns])
        for at in range(0, rows.num_rows, limit):
            yield self._batch(rows.slice(at, limit))

    def _batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        count = batch.num_rows
        line = pa.array(np.arange(self._line, self._line + count))
        self._line += count
        problem, value = batch.column("problem"), batch.column("value")
        events = [pa.repeat("R", count), pa.repeat(pa.scalar(self._commit_ts, pa.int64()), count)]
        events += [pa.nulls(count, pa.string()), self._images(batch)]
        if problem.null_count < count:
            sound = problem.is_null()
            events = [pc.if_else(sound, column, pa.scalar(None, column.type)) for column in events]
        return pa.RecordBatch.from_arrays([line, *events, problem, value], schema=DECODED)

    def _images(self, batch: pa.RecordBatch) -> pa.Array:
        texts = [
            batch.column(number) if column.zones is None else self._in_feed_zone(column, batch.column(number))
            for number, column in enumerate(self._columns)
        ]
        return row_images([column.name for column in self._columns], texts, batch.num_rows)

    def _in_feed_zone(self, column: DumpColumn, texts: pa.Array) -> pa.Array:
        found = duckdb_sql.query(
            self._connection, f"SELECT {column.expression('text')} FROM texts", texts=pa.table({"text": texts})
        )
        return found.column(0).combine_chunks()
