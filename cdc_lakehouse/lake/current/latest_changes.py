"""The latest change of each key, among the keyed events that a task has (`keyed_events.KEYED_EVENTS`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lakehouse.errors import TableHeldError

_compute: Any = pc  # What its functions take is hidden from type checkers.


def key_columns(events: pa.Table, width: int) -> dict[str, pa.ChunkedArray]:
    """The parts of the keys: `t0` … (string), by place. Raises `TableHeldError` where an event lacks one."""
    parts = {f"t{n}": _compute.list_element(events.column("key"), n) for n in range(width)}
    if any(part.null_count for part in parts.values()):
        raise TableHeldError("events lack a column of the table's key")
    return parts


def latest_changes(connection: Any, events: pa.Table, width: int) -> np.ndarray[Any, Any]:
    """The places of the latest events, one for each key of `width` parts, in the order of their places."""
    parts = key_columns(events, width)
    if events.num_rows < 2:
        return np.arange(events.num_rows)
    positions = {name: events.column(name) for name in ("stage", "upsert", "segment", "line")}
    place = pa.array(np.arange(events.num_rows), pa.int64())
    connection.register("keyed", pa.table({**parts, **positions, "place": place}))
    try:
        found = connection.sql(
            f"SELECT place FROM keyed QUALIFY row_number() OVER (PARTITION BY {', '.join(parts)} "
            "ORDER BY stage DESC, upsert DESC, segment DESC, line DESC) = 1 ORDER BY place"
        ).to_arrow_table()
    finally:
        connection.unregister("keyed")
    return found.column("place").to_numpy()
