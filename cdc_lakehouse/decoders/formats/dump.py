r"""Data files of dumps: each row is an event that the row was read, at one commit-ts.

Nothing is lost: a record that cannot be used has its `problem`, a key of `problems.PROBLEMS`, and its first bytes in
`value`; its other columns are null except `line`, the row's number in the file. A header is not a row, nor is the text
around the rows of INSERT statements. For the formats of rows see `decoders.text` and `dump_insert`.

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
from cdc_lakehouse.decoders.formats.dump_insert import InsertReader
from cdc_lakehouse.decoders.formats.dump_values import DumpColumn, DumpContext, DumpTable
from cdc_lakehouse.decoders.text import Cells, Dialect, Rows, TextReader, read_rows
from cdc_lakehouse.sources.dump.contents import TextNotation


def _text_reader(context: DumpContext, notation: TextNotation) -> TextReader:
    """Return the reader of delimited text. It raises SourceError for a header with other columns than the
    notation's."""

    def check_header(cells: Cells | None) -> None:
        names = [(cell or b"").decode(errors="replace") for cell in cells or []]
        if [name.lower() for name in names] != [name.lower() for name in notation.columns]:
            raise context.other_columns("a file's header says", names, "the rows of the dump have", notation.columns)

    table = DumpTable(context.own_names(notation.columns), context)
    # A table without dumped columns has no header.
    has_header = notation.header and notation.columns
    header = check_header if has_header else None
    return TextReader(Dialect.of_dump(notation), table, problems.NOT_A_DUMP_ROW, header)


_PIECE: Final = 4 * 1024 * 1024
"""Shorter pieces spend more time in calls; longer ones do not fit into the processor's cache."""


def decode_rows(
    connection: Any, pieces: Iterator[bytes], context: DumpContext, *, piece: int = _PIECE
) -> Iterator[pa.RecordBatch]:
    """Decode a file into events, in batches with the columns of `DECODED`, with a DuckDB connection of
    `duckdb_sql.database`.

    `pieces` are the content's parts in order, cut anywhere. A few of them are held, or a record that is longer. `piece`
    is the number of bytes that are read at a time. Raises SourceError for a file with other columns.
    """
    notation = context.notation
    is_text = isinstance(notation, TextNotation)
    reader = _text_reader(context, notation) if is_text else InsertReader(context, notation)
    events = _EventBuilder(connection, context, piece // 2)
    for rows in read_rows(reader, pieces, piece):
        yield from events.events(rows)
    yield from events.rest()


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
        if rows.table.dump_columns != self._columns:
            yield from self.rest()
            self._columns = rows.table.dump_columns
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
