"""Data files of the `events` table: decoding tasks write them, applying tasks read them.

Nothing is committed here: files of a failed task are never read."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from cdc_lakehouse.changelog.positions import LOGICAL_BITS
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.data_files import (
    ROW_GROUP_BYTES,
    DataFileWriter,
    GatheringWriter,
    StoredFile,
    column,
    live_files,
    may_contain,
    new_path,
    read_rows,
)

WRITTEN: Final = pa.schema([("data_file", pa.string())])
"""The rows that tasks return for the files that they wrote: JSON for Iceberg's `ContentFileParser`."""

_BUFFERED_BYTES: Final = 2 * ROW_GROUP_BYTES
"""The limit for all dates together."""
_FILE_BYTES: Final = 512 * 1024 * 1024
"""The size of events in memory; on disk they take a third or less."""
_PLAIN: Final = ("before", "after", "commit_ts", "line")
"""Columns whose values hardly repeat."""
_REPEATED: Final = ("schema_name", "table_name", "segment", "feed_date")
"""Columns with a single value in each file of a sink."""


@dataclass(frozen=True)
class EventWriter:
    """Writes events in tasks. `schema`, `location` and `properties` are the table's; `io` holds the properties of
    PyIceberg's FileIO."""

    schema: Schema
    location: str
    properties: Mapping[str, str]
    io: Mapping[str, str]

    def write(self, events: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write events (columns of `NEW_EVENTS`, and `synthetic` if present) to data files of one feed date each; yield
        the files (columns of `WRITTEN`)."""
        io = load_file_io(dict(self.io), self.location)
        files: dict[str | None, GatheringWriter] = {}
        buffered = 0
        for batch in events:
            for date, rows in _by_date(batch):
                file = files.get(date)
                if file is None:
                    file = files[date] = GatheringWriter(self._open(io, date))
                buffered += file.add(rows)
                if file.waiting >= ROW_GROUP_BYTES:
                    buffered -= file.flush()
                if file.written >= _FILE_BYTES:
                    buffered -= file.waiting
                    yield _written(files.pop(date).close())
            if buffered >= _BUFFERED_BYTES:
                buffered -= sum(file.flush() for file in files.values())
        for file in files.values():
            yield _written(file.close())

    def _open(self, io: FileIO, date: str | None) -> DataFileWriter:
        path = new_path(self.location, self.properties, ".parquet")
        return DataFileWriter(io, path, self.schema, self.properties, (date,), _PLAIN, _REPEATED)


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.Table]]:
    if not batch.num_rows:
        return
    rows = pa.Table.from_batches([batch])
    if SYNTHETIC not in rows.column_names:
        rows = rows.append_column(EVENTS.field(SYNTHETIC), pa.repeat(False, rows.num_rows))
    millis = pc.shift_right(rows.column("commit_ts"), LOGICAL_BITS)
    rows = rows.append_column(EVENTS.field("commit_time"), millis.cast(pa.timestamp("ms", "UTC")).cast(_MICROS))
    dates = pc.unique(rows.column("feed_date")).to_pylist()
    for date in dates:
        if len(dates) == 1:
            yield date, rows
        else:
            own = pc.field("feed_date").is_null() if date is None else pc.field("feed_date") == date
            yield date, rows.filter(own)


_MICROS: Final = EVENTS.field("commit_time").type


def _written(data_file: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"data_file": [data_file]}, schema=WRITTEN)


# --- Reading ---


def event_reader(lake: Lake, feed: str) -> EventReader | None:
    """Return a reader of a feed's current events, without a JVM; None when the table does not exist."""
    table = lake.load(system_table(feed, "events"))
    if table is None:
        return None
    return reader_of(lake, table)


def reader_of(lake: Lake, table: Table, snapshot: Snapshot | None = None) -> EventReader:
    """Return a reader of the `events` table in its current state, or in that of a snapshot."""
    schema = table.schema() if snapshot is None else table.schemas()[snapshot.schema_id or 0]
    fields = [schema.find_field(name).field_id for name in ("commit_ts", "schema_name", "table_name")]
    files = tuple(live_files(table, fields, snapshot=snapshot))
    return EventReader(files, schema, table.location(), dict(lake.catalog.properties))


_LOW_CARDINALITY: Final = ("schema_name", "table_name", "op", "segment")


@dataclass(frozen=True)
class EventReader:
    """Reads events in tasks, from the `files` that the table had when the work was planned. `earlier` readers read its
    state before segments were decoded again."""

    files: tuple[StoredFile, ...]
    schema: Schema
    location: str
    io: Mapping[str, str]
    earlier: tuple[EventReader, ...] = ()

    def shares(self, count: int) -> list[EventReader]:
        """Split into `count` readers of about the same size that together read what this one does."""
        readers = (self, *self.earlier)
        files = [(number, file) for number, reader in enumerate(readers) for file in reader.files]
        shares: list[list[list[StoredFile]]] = [[[] for _ in readers] for _ in range(count)]
        sizes = [(0, place) for place in range(count)]
        for number, file in sorted(files, key=lambda each: each[1].size, reverse=True):
            size, place = heapq.heappop(sizes)
            shares[place][number].append(file)
            heapq.heappush(sizes, (size + file.size, place))
        found: list[EventReader] = []
        for share in shares:
            own, *earlier = (replace(reader, files=tuple(files)) for reader, files in zip(readers, share, strict=True))
            found.append(replace(own, earlier=tuple(earlier)))
        return found

    def read(
        self,
        names: Collection[tuple[str, str]],
        lowest: int,
        highest: int,
        columns: Sequence[str] = CHANGE_COLUMNS,
    ) -> Iterator[pa.Table]:
        """Read the events of some tables, (database, table), with a commit-ts in [lowest, highest]; others that are
        stored near them are read too.

        Yields tables with `columns`, which must include `commit_ts`, `schema_name` and `table_name`. Names, operations
        and segments are dictionaries where the file has them."""
        io = load_file_io(dict(self.io), self.location)
        ids = {name: self.schema.find_field(name).field_id for name in columns}
        databases, tables = ({name[place] for name in names} for place in (0, 1))
        between = {
            ids["commit_ts"]: (lowest, highest),
            ids["schema_name"]: (min(databases), max(databases)),
            ids["table_name"]: (min(tables), max(tables)),
        }
        ranges = {self.schema.find_field(id): ends for id, ends in between.items()}
        as_dictionaries = [ids[name] for name in _LOW_CARDINALITY if name in ids]
        for file in self.files:
            if not all(may_contain(file, field, *ends) for field, ends in ranges.items()):
                continue
            for rows in read_rows(
                io, file, self.schema, list(ids.values()), between=between, as_dictionaries=as_dictionaries
            ):
                yield rows.select([column(id) for id in ids.values()]).rename_columns(list(columns))
