"""Conversion of csv rows to events: operations, images of rows before and after, and an UPDATE's two rows as one event.

With output-old-value TiCDC writes an UPDATE as its old row with operation D, immediately followed by its new row with
operation I, both with `is-update` true (TiCDC csv protocol documentation).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import Mask, Positions, pc
from cdc_lakehouse.decoders.event_schema import DECODED
from cdc_lakehouse.decoders.files.csv_format import COMMIT_TS, DATABASE, IS_UPDATE, OP, TABLE, Fields, Layout
from cdc_lakehouse.decoders.files.file_format import FileContext
from cdc_lakehouse.decoders.row_images import most_rows, row_images


class EventBuilder:
    """Builds events from the rows of one file, which come in order."""

    def __init__(self, context: FileContext, layout: Layout, fields: Fields, first_line: int) -> None:
        self._context = context
        self._fields = fields
        self._line = first_line
        self._held: pa.RecordBatch | None = None
        self._names = layout.names
        # An UPDATE needs two rows.
        self._limit = max(2, most_rows(layout.names))

    def events(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the events of the next rows (see `Fields.rows`). An UPDATE's old row at their end is kept for the next
        call."""
        if self._held is not None:
            rows = pa.concat_batches([self._held, rows])
            self._held = None
        at = 0
        while at < rows.num_rows:
            stop = min(at + self._limit, rows.num_rows)
            if self._is_old_row(rows, stop - 1):
                stop -= 1
            if stop == at:
                self._held = rows.slice(at)
                return
            yield self._batch(rows.slice(at, stop - at))
            at = stop

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the event of a kept row that no row follows."""
        if self._held is not None:
            yield self._batch(self._held)
            self._held = None

    def _is_old_row(self, rows: pa.RecordBatch, number: int) -> bool:
        if not self._fields.old_value:
            return False
        return rows.column(OP)[number].as_py() == "D" and rows.column(IS_UPDATE)[number].as_py() is True

    def _batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        count, problem = rows.num_rows, rows.column("problem")
        delete = _mask(pc.equal(rows.column(OP), "D"))
        updates = self._updates(rows, delete)
        events: Positions = np.flatnonzero(~np.roll(updates, 1))
        # The row of each event; for an UPDATE its old one.
        old, update = delete[events], updates[events]
        new = update | ~(old | _mask(problem.is_valid())[events])
        line = pa.array(events + self._line)
        self._line += count
        columns = [*(rows.column(number) for number in (TABLE, DATABASE, OP, COMMIT_TS)), problem, rows.column("value")]
        if len(events) < count:
            columns = [column.take(pa.array(events)) for column in columns]
            columns[2] = pc.if_else(pa.array(update), "U", columns[2])
        table, database, op, commit_ts, problem, value = columns
        texts = [rows.column(str(number)) for number in range(len(self._names))]
        images = row_images(self._names, texts, count)
        before = images.take(pa.array(events, mask=~old))
        after = images.take(pa.array(events + update, mask=~new))
        foreign = pc.or_(
            pc.not_equal(table, self._context.table), pc.not_equal(database, self._context.database)
        ).fill_null(False)
        if foreign.true_count:
            parts = ['{"before":', before.fill_null("null"), ',"after":', after.fill_null("null"), "}", ""]
            value = pc.if_else(foreign, pc.binary_join_element_wise(*parts).cast(pa.binary()), value)
            problem = pc.if_else(foreign, problems.WRONG_TABLE, problem)
            op, commit_ts, before, after = (
                pc.if_else(foreign, pa.scalar(None, column.type), column) for column in (op, commit_ts, before, after)
            )
        return pa.RecordBatch.from_arrays([line, op, commit_ts, before, after, problem, value], schema=DECODED)

    def _updates(self, rows: pa.RecordBatch, delete: Mask) -> Mask:
        """Return which rows are the old row of an UPDATE whose new row comes next."""
        updates = np.zeros(rows.num_rows, bool)
        if not self._fields.old_value or rows.num_rows < 2:
            return updates
        is_update = _mask(rows.column(IS_UPDATE))
        is_new = is_update & _mask(pc.equal(rows.column(OP), "I"))
        updates[:-1] = delete[:-1] & is_update[:-1] & is_new[1:]
        for number in (COMMIT_TS, TABLE, DATABASE):
            column = rows.column(number)
            updates[:-1] &= _mask(pc.equal(column.slice(0, rows.num_rows - 1), column.slice(1)))
        return updates


def _mask(values: pa.Array) -> Mask:
    return values.fill_null(False).to_numpy(zero_copy_only=False)
