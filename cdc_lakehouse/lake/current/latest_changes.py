"""Find the latest change of each key among the keyed events of a task (`keyed_events.KEYED_EVENTS`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.duckdb_sql import query
from cdc_lakehouse.errors import TableHeldError


def key_part(position: int) -> str:
    """Return the name of the column with a part of the keys."""
    return f"t{position}"


def key_texts(keys: Any, width: int) -> dict[str, Any]:
    """Split keys (an array of lists of strings) into columns, by name."""
    return {key_part(n): pc.list_element(keys, n) for n in range(width)}


def latest_changes(connection: Any, events: pa.Table, width: int, table: str | None = None) -> np.ndarray[Any, Any]:
    """Return the indices of the latest events, one for each key of `width` parts, in ascending order. Raises
    `TableHeldError` when an event lacks a part of its key."""
    parts = key_texts(events.column("key"), width)
    if any(part.null_count for part in parts.values()):
        raise TableHeldError(
            "events lack a column of the table's key",
            table=table,
            advice="have the source write its binlog with binlog_row_image=FULL, then load the table again; where "
            "tables.settings has its primary_key, name columns there that every event has, those of DELETE included",
        )
    groups = pa.table(parts).group_by([*parts], use_threads=False).aggregate([])
    if groups.num_rows == events.num_rows:
        return np.arange(events.num_rows)
    positions = {name: events.column(name) for name in ("stage", "upsert", "segment", "line")}
    place = pa.array(np.arange(events.num_rows), pa.int64())
    # Synthetic events are ordered by segment first. Most batches have none, and then no second sort by it is needed.
    synthetic = pc.any(pc.not_equal(pc.bit_wise_and(events.column("stage"), 1), 0)).as_py()
    first = "CASE WHEN stage % 2 <> 0 THEN segment END DESC, " if synthetic else ""
    found = query(
        connection,
        f"SELECT place FROM keyed QUALIFY row_number() OVER (PARTITION BY {', '.join(parts)} "
        f"ORDER BY stage DESC, {first}upsert DESC, segment DESC, line DESC) = 1 ORDER BY place",
        keyed=pa.table({**parts, **positions, "place": place}),
    )
    return found.column("place").to_numpy()
