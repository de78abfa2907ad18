"""Rows of a csv file as changes: operations, rows before and after as maps, and an UPDATE's two rows as one.

With output-old-value TiCDC writes an UPDATE as its old row with operation D and, at once behind it, its new row with
operation I, both with `is-update` true (TiCDC csv protocol documentation)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from cdc_lakehouse.decoders.event_schema import DECODED
from cdc_lakehouse.decoders.files.csv_layout import COMMIT_TS, DATABASE, IS_UPDATE, OP, TABLE, Fields, Layout

# Arrow makes its functions when it is imported: no type checker knows them.
compute: Any = pyarrow.compute

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]

_MAP: Final = DECODED.field("before").type
EVENTS: Final = DECODED.remove(DECODED.get_field_index("file"))
"""One change, or one record that cannot be used, of one file."""

_ROWS: Final = 64 * 1024
"""In a batch, at most."""
_KEY_BYTES: Final = 32 * 1024 * 1024
"""Of column names in a batch: each row repeats them, and a table may have a thousand."""


class EventBuilder:
    """Makes events of the rows of one file, which come in order."""

    def __init__(self, layout: Layout, fields: Fields, first_line: int) -> None:
        self._names = pa.array(layout.names, pa.string())
        self._fields = fields
        self._line = first_line
        self._held: pa.RecordBatch | None = None
        self._keys = self._names.slice(0, 0)
        per_row = sum(len(name.encode()) + 4 for name in layout.names)
        # An UPDATE needs two.
        self._limit = max(2, min(_ROWS, _KEY_BYTES // max(per_row, 1)))

    def events(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The events of the next rows (see `Fields.rows`). An UPDATE's old row at their end is kept for the next."""
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
        """What was kept, when nothing follows it."""
        if self._held is not None:
            yield self._batch(self._held)
            self._held = None

    def _is_old_row(self, rows: pa.RecordBatch, number: int) -> bool:
        if not self._fields.old_value:
            return False
        return rows.column(OP)[number].as_py() == "D" and rows.column(IS_UPDATE)[number].as_py() is True

    def _batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        count, problem, value = rows.num_rows, rows.column("problem"), rows.column("value")
        delete = _mask(compute.equal(rows.column(OP), "D"))
        updates = self._updates(rows, delete)
        events: Numbers = np.flatnonzero(~np.roll(updates, 1))
        # The row of each event; an UPDATE's own is its old one.
        old, update = delete[events], updates[events]
        new = update | ~(old | _mask(problem.is_valid())[events])
        line = pa.array(events + self._line)
        self._line += count
        op, table, database, commit_ts = (rows.column(number) for number in (OP, TABLE, DATABASE, COMMIT_TS))
        columns = [database, table, op, commit_ts, problem, value]
        if len(events) < count:
            columns = [column.take(pa.array(events)) for column in columns]
            columns[2] = compute.if_else(pa.array(update), "U", columns[2])
        first = self._fields.leading
        items = pa.concat_arrays([self._names.slice(0, 0), *rows.columns[first : first + self._fields.columns]])
        before = self._maps(items, count, events[old], old)
        after = self._maps(items, count, (events + update)[new], new)
        return pa.RecordBatch.from_arrays([line, *columns[:4], before, after, *columns[4:]], schema=EVENTS)

    def _updates(self, rows: pa.RecordBatch, delete: Mask) -> Mask:
        """Which rows are old ones of an UPDATE whose new one is the next row."""
        updates = np.zeros(rows.num_rows, bool)
        if not self._fields.old_value or rows.num_rows < 2:
            return updates
        is_update = _mask(rows.column(IS_UPDATE))
        is_new = is_update & _mask(compute.equal(rows.column(OP), "I"))
        updates[:-1] = delete[:-1] & is_update[:-1] & is_new[1:]
        for number in (COMMIT_TS, TABLE, DATABASE):
            column = rows.column(number)
            updates[:-1] &= _mask(compute.equal(column.slice(0, rows.num_rows - 1), column.slice(1)))
        return updates

    def _maps(self, items: pa.Array, count: int, rows: Numbers, present: Mask) -> pa.Array:
        """A map for each event that is `present`, of one of `rows` each; `items` are the columns of `count` rows, one
        behind the other."""
        if not len(rows):
            return pa.nulls(len(present), _MAP)
        width = len(self._names)
        by_row = (rows[:, None] + np.arange(width) * count).ravel()
        offsets = np.zeros(len(present) + 1, np.int32)
        np.cumsum(present * width, out=offsets[1:])
        keys = self._keys_of(len(rows))
        items = compute.take(items, pa.array(by_row), boundscheck=False)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, items, mask=pa.array(~present))

    def _keys_of(self, rows: int) -> pa.Array:
        width = len(self._names)
        if len(self._keys) < rows * width:
            self._keys = self._names.take(pa.array(np.tile(np.arange(width), rows)))
        return self._keys.slice(0, rows * width)


def _mask(values: pa.Array) -> Mask:
    return values.fill_null(False).to_numpy(zero_copy_only=False)
