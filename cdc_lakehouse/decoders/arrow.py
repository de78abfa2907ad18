"""Arrow's functions and numpy's arrays, as the decoders use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

# Arrow creates its functions when it is imported: no type checker knows them.
pc: Any = pyarrow.compute

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Positions = np.ndarray[Any, np.dtype[np.int64]]  # Positions in a text, or numbers of rows.


def batch_of(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a batch; each row has a value for each column."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, of.type) for column, of in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def where(rows: Any, mask: Mask) -> Any:
    """Filter rows by a mask; if all match, return them unchanged: a copy of texts costs as much as reading them."""
    return rows if mask.all() else rows.filter(pa.array(mask))


def cut(text: Bytes, starts: Positions, stops: Positions) -> pa.Array:
    """Return the pieces of a text from each start to its stop, which are in order."""
    places = np.column_stack([starts, stops]).ravel().astype(np.int32)
    # Every other piece is the text between two of them.
    buffers: Any = [None, *map(pa.py_buffer, (places, text))]
    pieces: Any = pa.Array.from_buffers(pa.binary(), max(len(places) - 1, 0), buffers)
    return pieces.take(pa.array(np.arange(0, len(places) - 1, 2)))
