"""The `frontier` table: from where a feed's sink is listed. A row is one directory of a table.

It is written after the segments that were found, so a run that dies in between leaves an older frontier, with which
more is listed. Values of the whole frontier are properties of the table."""

from __future__ import annotations

import datetime
from typing import Final

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue

from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.properties import OLDEST_DATE, SETTINGS, UNCLEAR, WHOLE_AT
from cdc_lakehouse.lake.tables.small_table import SmallTable
from cdc_lakehouse.sources.sink.listing_state import FileSequence, Frontier, KnownTable

_SEQUENCE: Final = pa.struct([
    pa.field("place", pa.string()),
    pa.field("dispatcher", pa.string()),
    pa.field("files", pa.int64()),
    pa.field("last", pa.string()),
    pa.field("previous", pa.string()),
    pa.field("etag", pa.string()),
    pa.field("index_etag", pa.string()),
])  # fmt: skip

SCHEMA: Final = pa.schema([
    pa.field("directory", pa.string(), nullable=False),
    pa.field("files", pa.int64(), nullable=False),
    pa.field("oldest_version", pa.int64(), nullable=False),
    pa.field("irregular", pa.bool_(), nullable=False),
    pa.field("places", pa.list_(pa.string())),
    pa.field("sequences", pa.list_(_SEQUENCE)),
])  # fmt: skip


class Frontiers:
    """The frontier of one feed."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "frontier", SCHEMA)

    def last(self) -> Frontier | None:
        """Return the newest frontier; None before the first."""
        properties = self._table.properties()
        if SETTINGS not in properties:
            return None
        tables = [
            KnownTable(
                row["directory"],
                row["files"],
                row["oldest_version"],
                row["irregular"],
                tuple(row["places"]),
                tuple(FileSequence(**each) for each in row["sequences"]),
            )
            for row in sorted(self._table.read(), key=lambda row: row["directory"])
        ]
        return Frontier(
            tuple(tables),
            properties[OLDEST_DATE] or None,
            properties[SETTINGS],
            datetime.datetime.fromisoformat(properties[WHOLE_AT]),
            properties[UNCLEAR] == "true",
        )

    def write(self, frontier: Frontier) -> None:
        """Replace the previous frontier, in one commit."""
        properties = {
            SETTINGS: frontier.settings,
            WHOLE_AT: frontier.whole_at.isoformat(),
            UNCLEAR: str(frontier.unclear).lower(),
            OLDEST_DATE: frontier.oldest_date or "",
        }
        self._table.write(frontier.tables, replacing=AlwaysTrue(), properties=properties)
