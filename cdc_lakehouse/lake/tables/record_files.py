"""Read records in tasks from the data files of `records`, each file once where that is possible.

A file has records of several partitions, those of each partition in the order of their offsets, because they were
written as they arrived. So many partitions can be read in one pass over their files, if an order of files exists that
is right for each partition. Where there is none (timestamps that go back at midnight, files that maintenance rewrote),
a partition is read separately, a few megabytes of offsets at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.utils.concurrent import ExecutorFactory

from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.topic_reader import RECORDS
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.files import Range, StoredFile, column, live_files, may_contain, read_rows
from cdc_lakehouse.lake.tables.landed_offsets import records_table
from cdc_lakehouse.sources.record_log import LogPartition

_BATCH_BYTES: Final = 16 << 20
_PLACE: Final = ("topic", "partition", "offset", "batch")
_READ: Final = ("feed_date", "topic", "partition", "offset", "timestamp", "key", "value", "segment", "batch")


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """The records of a partition that landed with a batch, from the offset `start` on, and the records from offset
    `before` up to `start`, which landed with batch `since` or later and are read with them. `bytes` is their
    approximate size."""

    partition: LogPartition
    batch: int
    start: int
    before: int
    since: int
    bytes: int


@dataclass(slots=True)
class _Extent:
    """The range of offsets that a file has of a partition's records."""

    first: int
    last: int
    in_order: bool = True

    def add(self, offsets: np.ndarray[Any, Any]) -> None:
        self.in_order = self.in_order and self.last < offsets[0] and bool((np.diff(offsets) > 0).all())
        self.first, self.last = min(self.first, int(offsets.min())), max(self.last, int(offsets.max()))


@dataclass(frozen=True, slots=True)
class RecordShare:
    """The part that one task reads. The order of `files` is right for all partitions but `shuffled`."""

    files: tuple[StoredFile, ...]
    in_order: tuple[PartitionRecords, ...]
    shuffled: tuple[PartitionRecords, ...]


@dataclass(frozen=True)
class StoredRecords:
    """The table's schema and location when the work was planned. It is sent to tasks."""

    schema: Schema
    location: str
    io: Mapping[str, str]

    def rows(
        self, file: StoredFile, wanted: Sequence[PartitionRecords], names: Sequence[str], window: Range | None = None
    ) -> Iterator[pa.Table]:
        """Yield rows of a file that include those of `wanted`, or those of them with offsets in a window."""
        ids = {name: self.schema.find_field(name).field_id for name in names}
        ranges = _ranges(wanted) | ({} if window is None else {"offset": window})
        between = {ids[name]: ends for name, ends in ranges.items()}
        for rows in read_rows(self._open(), file, self.schema, list(ids.values()), between=between):
            yield rows.select([column(id) for id in ids.values()]).rename_columns(list(ids))

    def may_contain(self, file: StoredFile, wanted: PartitionRecords) -> bool:
        return all(may_contain(file, self.schema.find_field(name), *ends) for name, ends in _ranges([wanted]).items())

    def extents(self, file: StoredFile, wanted: Sequence[PartitionRecords]) -> dict[PartitionRecords, _Extent]:
        found: dict[PartitionRecords, _Extent] = {}
        wanted = [each for each in wanted if self.may_contain(file, each)]
        for rows in self.rows(file, wanted, _PLACE) if wanted else ():
            for each, at, _ in _matches(rows, wanted):
                offsets = rows.column("offset").to_numpy()[at]
                found.setdefault(each, _Extent(int(offsets[0]), int(offsets[0]) - 1)).add(offsets)
        return found

    def _open(self) -> FileIO:
        return load_file_io(dict(self.io), self.location)


@dataclass(frozen=True)
class RecordReader:
    """Reads records in tasks."""

    files: StoredRecords
    shares: tuple[RecordShare, ...]

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        """Read a task's share, with the columns of `RECORDS`. The records of each partition and batch are in the order
        of their offsets; those of several may be interleaved."""
        share = self.shares[task]
        for file in share.files if share.in_order else ():
            for rows in self.files.rows(file, share.in_order, _READ):
                yield from _in_batches(_read(rows, share.in_order))
        for each in share.shuffled:
            for window in self._windows(share.files, each):
                found = [
                    _read(rows, [each], window)
                    for file in share.files
                    for rows in self.files.rows(file, [each], _READ, window)
                ]
                yield from _in_batches(pa.concat_tables(found).sort_by("offset"))

    def _windows(self, files: Sequence[StoredFile], wanted: PartitionRecords) -> Iterator[tuple[int, int]]:
        """Split the offsets into ranges, inclusive, of some megabytes or one record each."""
        offsets, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for file in files:
            for rows in self.files.rows(file, [wanted], (*_PLACE, "size")):
                for _, at, _ in _matches(rows, [wanted]):
                    offsets.append(rows.column("offset").to_numpy()[at])
                    sizes.append(rows.column("size").to_numpy()[at])
        all_offsets = np.concatenate(offsets)
        order = np.argsort(all_offsets)
        window = np.cumsum(np.concatenate(sizes)[order]) // _BATCH_BYTES
        starts = all_offsets[order][np.unique(window, return_index=True)[1]].tolist()
        last = all_offsets.max(initial=-1) + 1
        yield from ((start, end - 1) for start, end in itertools.pairwise([*starts, int(last)]))


def record_reader(lake: Lake, feed: str, wanted: Sequence[PartitionRecords], tasks: int) -> RecordReader:
    """Return a reader of the wanted records of a feed for at most `tasks` tasks. Raises ValueError when the feed has no
    records."""
    table = lake.load(records_table(feed))
    if table is None:
        raise ValueError(f"the feed {feed} has no records")
    files = StoredRecords(table.schema(), table.location(), dict(lake.catalog.properties))
    ids = {name: files.schema.find_field(name).field_id for name in _PLACE}
    batch = files.schema.find_field("batch")
    # Batches rise with offsets; within a batch, file names sort in the order in which the files were written.
    stored = sorted(live_files(table, list(ids.values())), key=lambda file: (_least(file, batch.field_id), file.path))
    return RecordReader(files, _shares(files, stored, wanted, tasks))


def _least(file: StoredFile, field_id: int) -> int:
    lower, _ = file.bounds.get(field_id, (None, None))
    return 0 if lower is None else int.from_bytes(lower, "little")


def _shares(
    table: StoredRecords, files: Sequence[StoredFile], wanted: Sequence[PartitionRecords], tasks: int
) -> tuple[RecordShare, ...]:
    """Group partitions that share files into one task each, as far as the tasks get about the same amount of work."""
    all_extents = list(ExecutorFactory.get_or_create().map(lambda file: table.extents(file, wanted), files))
    places = {each: [n for n, extents in enumerate(all_extents) if each in extents] for each in wanted}
    found = sorted(
        (each for each in wanted if places[each]), key=lambda each: (each.batch, places[each], each.partition)
    )
    total, done = sum(each.bytes for each in found) or 1, 0
    groups: dict[int, list[PartitionRecords]] = {}
    for each in found:
        # By its middle: of four that are about equal, the third does not go to the first task too.
        middle = done + each.bytes // 2
        groups.setdefault(min(middle * tasks // total, tasks - 1), []).append(each)
        done += each.bytes
    shares: list[RecordShare] = []
    for group in groups.values():
        right = {each: _is_in_order([all_extents[n][each] for n in places[each]]) for each in group}
        own = sorted({n for each in group for n in places[each]})
        in_order, shuffled = (tuple(each for each in group if right[each] is is_right) for is_right in (True, False))
        shares.append(RecordShare(tuple(files[n] for n in own), in_order, shuffled))
    return tuple(shares)


def _is_in_order(extents: Sequence[_Extent]) -> bool:
    follow = all(one.last < next_one.first for one, next_one in itertools.pairwise(extents))
    return follow and all(each.in_order for each in extents)


def _ranges(wanted: Sequence[PartitionRecords]) -> dict[str, Range]:
    """Return the ranges of topics, partitions, batches and offsets that are wanted."""
    topics, numbers = [each.partition.topic for each in wanted], [each.partition.number for each in wanted]
    return {
        "topic": (min(topics), max(topics)),
        "partition": (min(numbers), max(numbers)),
        "batch": (min(each.since for each in wanted), max(each.batch for each in wanted)),
        "offset": (min(each.before for each in wanted), None),
    }


def _matches(
    rows: pa.Table, wanted: Sequence[PartitionRecords], window: Range | None = None
) -> Iterator[tuple[PartitionRecords, np.ndarray[Any, Any], bool]]:
    """Yield the indices of the rows for each wanted item, and whether they are those before its start. Items without
    rows are left out."""
    by_partition: dict[LogPartition, list[PartitionRecords]] = {}
    for each in wanted:
        by_partition.setdefault(each.partition, []).append(each)
    topics = rows.column("topic").combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    numbers, offsets, batches = (rows.column(name).to_numpy() for name in ("partition", "offset", "batch"))
    codes = topics.indices.to_numpy().astype(np.int64) << 32 | numbers
    order = np.argsort(codes, kind="stable")
    distinct, starts = np.unique(codes[order], return_index=True)
    for code, at in zip(distinct.tolist(), np.split(order, starts[1:]), strict=True):
        if window is not None:
            at = at[(offsets[at] >= window[0]) & (offsets[at] <= window[1])]
        for each in by_partition.get(LogPartition(names[code >> 32], code & 0xFFFFFFFF), ()):
            own = batches[at] == each.batch
            before = (offsets[at] >= each.before) & (offsets[at] < each.start)
            for chosen, is_before in ((before & ~own, True), (own, False)):
                if chosen.any():
                    yield each, at[chosen], is_before


def _read(rows: pa.Table, wanted: Sequence[PartitionRecords], window: Range | None = None) -> pa.Table:
    """Return the wanted rows, in their order, with the columns of `RECORDS`."""
    matches = list(_matches(rows, wanted, window))
    at = np.concatenate([np.empty(0, np.int64), *(at for _, at, _ in matches)])
    batches = np.repeat([each.batch for each, _, _ in matches], [len(at) for _, at, _ in matches])
    is_before = np.repeat([is_before for _, _, is_before in matches], [len(at) for _, at, _ in matches])
    order = np.argsort(at, kind="stable")
    if len(at) != rows.num_rows or (np.diff(at[order]) != 1).any():
        rows = rows.take(pa.array(at[order]))
    millis = pc.divide(rows.column("timestamp").cast(pa.int64()), 1000)
    columns = {name: rows.column(name) for name in _READ if name != "timestamp"} | {
        "time_ms": millis,
        "batch": pa.array(batches[order], pa.int64()),
        "is_before": pa.array(is_before[order], pa.bool_()),
    }
    return pa.table({each.name: columns[each.name].cast(each.type) for each in RECORDS}, schema=RECORDS)


def _in_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Split rows into batches of some megabytes or one record each."""
    if not rows.num_rows:
        return
    lengths = (pc.fill_null(pc.binary_length(rows.column(name)), 0) for name in ("key", "value"))
    ends = np.cumsum(pc.add(*lengths).to_numpy().astype(np.int64))
    number = ends // (ends[-1] // (ends[-1] // _BATCH_BYTES + 1) + 1)
    starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    for start, end in itertools.pairwise([*starts, rows.num_rows]):
        yield from rows.slice(start, end - start).combine_chunks().to_batches()
