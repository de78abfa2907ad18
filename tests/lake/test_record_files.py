"""Records read from data files, as a task reads them: each partition's in the order of offsets, whatever the files."""

from __future__ import annotations

import itertools
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.decoders.topic_reader import RECORDS
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.files import TableFiles
from cdc_lakehouse.lake.tables import records as table
from cdc_lakehouse.lake.tables.records import (
    PartitionRecords,
    RecordCommits,
    RecordReader,
    RecordRows,
    record_files,
    record_reader,
    state_of,
)
from cdc_lakehouse.sources.record_log import LogPartition, Messages, OffsetRange
from tests.kit.lakes import lake_config

DAY_MS = 86_400_000
TOPICS = ("orders", "returns")

Record = tuple[LogPartition, int, int, int, bytes | None]
"""Partition, offset, batch, time, value."""
Chunk = list[Record]
"""Records of one partition and batch."""


class Log:
    """A table `records` with these files: each is written by one task."""

    def __init__(self, root: Path, files: list[list[Chunk]]) -> None:
        self.lake = Lake(lake_config(root))
        commits = RecordCommits(self.lake, "f")
        stored = TableFiles.of(commits.create(), self.lake)
        for number, chunks in enumerate(files):
            with record_files(stored, f"task-{number:05d}") as written:
                for chunk in chunks:
                    partition, batch = chunk[0][0], chunk[0][2]
                    whole = OffsetRange(partition, 0, 1 << 40, 0)
                    offsets, values = [each[1] for each in chunk], [each[4] for each in chunk]
                    times = [(1, each[3]) for each in chunk]
                    messages = Messages(whole, offsets, times, [b"k"] * len(chunk), values, [None] * len(chunk))
                    for date, rows in RecordRows("UTC", "day", batch).of(messages):
                        written.add(date, rows)
            now = self.lake.existing(system_table("f", "records"))
            commits.commit(now, state_of(now), {}, written.written, {})

    def reader(self, wanted: list[PartitionRecords], tasks: int = 1) -> RecordReader:
        return pickle.loads(pickle.dumps(record_reader(self.lake, "f", wanted, tasks)))


def read(reader: RecordReader) -> dict[tuple[str, int, int], list[dict[str, Any]]]:
    """Of each topic, partition and batch the records as they come; no task has what another one has."""
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for task in range(len(reader.shares)):
        own: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
        for batch in reader.read(task):
            assert batch.schema == RECORDS
            assert batch.num_rows
            for row in batch.to_pylist():
                own.setdefault((row["topic"], row["partition"], row["batch"]), []).append(row)
        assert not own.keys() & found.keys()
        found |= own
    return found


def row_of(record: Record, batch: int) -> dict[str, Any]:
    (topic, number), offset, of_batch, time_ms, value = record
    return {
        "feed_date": f"1970-01-{time_ms // DAY_MS + 1:02d}",
        "topic": topic,
        "partition": number,
        "offset": offset,
        "time_ms": time_ms,
        "key": b"k",
        "value": value,
        "segment": f"{topic}/{number}/{0:020d}",
        "batch": batch,
        "is_before": of_batch < batch,
    }


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[list[Chunk]], list[PartitionRecords]]:
    """Files as tasks write them, some with their records out of order; and of some partitions and batches all."""
    files: list[list[Chunk]] = []
    wanted: list[PartitionRecords] = []
    starts: dict[LogPartition, list[tuple[int, int]]] = {}
    ends: dict[LogPartition, int] = {}
    for batch in range(1, draw(st.integers(1, 3)) + 1):
        tasks: list[list[Chunk]] = [[] for _ in range(draw(st.integers(1, 3)))]
        for topic, number in itertools.product(TOPICS, range(2)):
            partition = LogPartition(topic, number)
            start = ends.get(partition, draw(st.integers(0, 5)))
            offsets = [start + n for n in range(draw(st.integers(0, 8))) if draw(st.integers(0, 3))]
            if not offsets:
                continue
            back = draw(st.integers(0, 6))
            known = [n for n, first in starts.get(partition, []) if first <= start - back]
            since = max(known, default=min((n for n, _ in starts.get(partition, [])), default=batch))
            if not back:
                since = batch
            starts.setdefault(partition, []).append((batch, start))
            ends[partition] = offsets[-1] + 1
            if draw(st.integers(0, 3)):
                wanted.append(PartitionRecords(partition, batch, start, start - back, since, len(offsets)))
            while offsets:
                count = draw(st.integers(1, len(offsets)))
                days = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
                values = draw(st.lists(st.none() | st.binary(max_size=9), min_size=count, max_size=count))
                chunk = [
                    (partition, offset, batch, day * DAY_MS + offset, value)
                    for offset, day, value in zip(offsets[:count], days, values, strict=True)
                ]
                offsets = offsets[count:]
                draw(st.sampled_from(tasks)).append(chunk)
        files += [draw(st.permutations(chunks)) if draw(st.booleans()) else chunks for chunks in tasks]
    return files, wanted


@pytest.mark.slow
@given(logs(), st.integers(1, 3), st.sampled_from([1, 20, 1 << 20]))
@settings(max_examples=8, deadline=None)
def test_each_partition_comes_whole_and_in_order(
    log: tuple[list[list[Chunk]], list[PartitionRecords]], tasks: int, batch_bytes: int
) -> None:
    files, wanted = log
    records = sorted(record for chunks in files for chunk in chunks for record in chunk)
    expected = {
        (*each.partition, each.batch): [
            row_of(record, each.batch)
            for record in records
            if record[0] == each.partition and (record[2] == each.batch or each.before <= record[1] < each.start)
        ]
        for each in wanted
    }
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_BATCH_BYTES", batch_bytes)
        reader = Log(Path(directory), files).reader(wanted, tasks)
        assert len(reader.shares) <= tasks
        assert read(reader) == expected


def test_batches_are_small_though_values_are_large(tmp_path: Path) -> None:
    one = LogPartition("orders", 0)
    sizes = [1, 9 << 20, 9 << 20, 1, 40 << 20, 1]
    chunk: Chunk = [(one, n, 1, 0, bytes(size)) for n, size in enumerate(sizes)]
    reader = Log(tmp_path, [[chunk]]).reader([PartitionRecords(one, 1, 0, 0, 1, 1)])
    batches = list(reader.read(0))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [*range(6)]
    assert all(batch.num_rows == 1 or batch.nbytes <= 17 << 20 for batch in batches)


def test_files_that_have_nothing_of_it_are_left_alone(tmp_path: Path) -> None:
    one = LogPartition("orders", 0)
    log = Log(tmp_path, [[[(one, batch * 10, batch, 0, b"v")]] for batch in range(1, 6)])
    (share,) = log.reader([PartitionRecords(one, 4, 40, 30, 3, 1)]).shares
    assert len(share.files) == 2
    (share,) = log.reader([PartitionRecords(one, 4, 40, 40, 4, 1)]).shares
    assert len(share.files) == 1
