"""Records in their table: rows made of messages, files read by offsets, and places of a binlog among them."""

import datetime
import itertools
import pickle
import tempfile
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_lakehouse.config import DateSeparator, FeedConfig
from cdc_lakehouse.decoders.topic_reader import RECORDS
from cdc_lakehouse.errors import SourceError, StoredFormError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.files import TableFiles
from cdc_lakehouse.lake.tables import records as table
from cdc_lakehouse.pipeline.canal import EntryRecords, commit_ts_of
from cdc_lakehouse.sources.canal.client import Round
from cdc_lakehouse.sources.canal.positions import BinlogPosition, BinlogSearch, placed
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from cdc_lakehouse.sources.record_log import ByteColumn, LogPartition, Messages, OffsetRange
from tests.canal_captures import capture
from tests.kit.lakes import lake_config

ZONES = ["UTC", "+08:00", "Asia/Shanghai", "America/St_Johns", "America/Havana", "Africa/Monrovia",
         "Pacific/Kiritimati"]  # fmt: skip
LAST_MS = 253_402_300_799_999

times = st.integers(0, 4 * 10**12) | st.integers(0, LAST_MS)


def rows(
    timestamps: list[tuple[int, int]], zone: str = "UTC", separator: DateSeparator = "day"
) -> list[dict[str, Any]]:
    """Of messages with these timestamps, each a kind and a time."""
    count, found = len(timestamps), list[dict[str, Any]]()
    where, nothing = OffsetRange(LogPartition("orders", 3), 100, 100 + count, 1), [None] * count
    offsets, times = [*range(100, 100 + count)], [*itertools.chain.from_iterable(timestamps)]
    messages = Messages(where, offsets, times, ByteColumn(nothing), ByteColumn(nothing), nothing)
    files: Any = SimpleNamespace(
        add=lambda date, dated: found.extend(row | {"feed_date": date} for row in dated.to_pylist())
    )
    whole, dates = table.RecordRows(zone, separator, 7).add(messages, files)
    found.sort(key=lambda row: row["offset"])
    assert found == whole.to_pylist() and dates == {row["feed_date"] for row in found} - {None}
    return found


@given(st.lists(times, min_size=1, max_size=20), st.sampled_from(ZONES))
@example([562_130_000_000, 562_130_070_000, 562_133_700_000], "America/St_Johns")  # Set back at 00:01, 1987-10-25.
@example([63_593_070_000, 63_593_069_999], "Africa/Monrovia")  # 44:30 minutes off UTC, up to 1972-01-07.
def test_dates_are_those_of_the_zone(moments: list[int], zone: str) -> None:
    seen = rows([(1, moment) for moment in moments], zone)
    for moment, row in zip(moments, seen, strict=True):
        if moment >= LAST_MS - 365 * 86_400_000:
            continue
        local = datetime.datetime.fromtimestamp(moment // 1000, zoneinfo.ZoneInfo(zone.replace("+08:00", "Etc/GMT-8")))
        assert row["feed_date"] == f"{local:%Y}".zfill(4) + f"{local:-%m-%d}"
        second = datetime.datetime.fromtimestamp(moment // 1000, datetime.UTC)
        assert row["timestamp"] == second.replace(microsecond=moment % 1000 * 1000)


def test_feed_date_is_of_its_length_or_none() -> None:
    """Without a timestamp, or with one beyond the calendar, there is none."""
    at = int(datetime.datetime(2026, 2, 28, 16, 0, tzinfo=datetime.UTC).timestamp() * 1000)
    dates: dict[DateSeparator, str | None] = {"none": None, "year": "2026", "month": "2026-03", "day": "2026-03-01"}
    assert {each: rows([(1, at)], "Asia/Shanghai", each)[0]["feed_date"] for each in dates} == dates
    kinds = {0: None, 1: "CreateTime", 2: "LogAppendTime"}
    for timestamp in ((0, -1), (0, 0), (1, -1), (1, LAST_MS + 1), (2, 2**63 - 1)):
        known, odd = rows([(1, 1000), timestamp])
        assert (known["feed_date"], odd["feed_date"], odd["timestamp"]) == ("1970-01-01", None, None)
        assert (known["timestamp_type"], odd["timestamp_type"]) == ("CreateTime", kinds[timestamp[0]])


DAY_MS, TOPICS = 86_400_000, ("orders", "returns")

Record = tuple[LogPartition, int, int, int, bytes | None]
"""Partition, offset, batch, time, value."""
Chunk = list[Record]
"""Records of one partition and batch."""


class Log:
    """A table `records` with these files: each is written by one task."""

    def __init__(self, root: Path, files: list[list[Chunk]]) -> None:
        self.lake = Lake(lake_config(root))
        commits = table.RecordCommits(self.lake, "f")
        stored = TableFiles.of(commits.create(), self.lake)
        for number, chunks in enumerate(files):
            with table.record_files(stored, f"task-{number:05d}") as written:
                for chunk in chunks:
                    partition, batch = chunk[0][0], chunk[0][2]
                    whole = OffsetRange(partition, 0, 1 << 40, 0)
                    offsets, values = [each[1] for each in chunk], ByteColumn(each[4] for each in chunk)
                    times = [each for record in chunk for each in (1, record[3])]
                    of = offsets, times, ByteColumn([b"k"] * len(chunk)), values, [None] * len(chunk)
                    table.RecordRows("UTC", "day", batch).add(Messages(whole, *of), written)
            now = self.lake.existing(system_table("f", "records"))
            commits.commit(now, table.state_of(now), {}, written.written, 0, ())

    def shares(self, wanted: list[table.PartitionRecords], tasks: int = 1) -> list[table.RecordShare]:
        return pickle.loads(pickle.dumps(table.record_shares(self.lake, "f", wanted, tasks)))


def read(shares: list[table.RecordShare]) -> dict[tuple[str, int, int], list[dict[str, Any]]]:
    """Of each topic, partition and batch the records as they come; no task has what another one has."""
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for share in shares:
        own: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
        for batch in share.read():
            assert batch.schema == RECORDS and batch.num_rows
            for row in batch.to_pylist():
                own.setdefault((row["topic"], row["partition"], row["batch"]), []).append(row)
        assert not own.keys() & found.keys()
        found |= own
    return found


def row_of(record: Record, batch: int) -> dict[str, Any]:
    (topic, number), offset, of_batch, time_ms, value = record
    return {
        "feed_date": f"1970-01-{time_ms // DAY_MS + 1:02d}", "topic": topic, "partition": number, "offset": offset,
        "time_ms": time_ms, "key": b"k", "value": value, "segment": f"{topic}/{number}/{0:020d}", "batch": batch,
        "is_before": of_batch < batch,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "stored"), [
    ("landed.orders", '{"id": "", "ends": {"0": 7}, "bytes": 1.0}'), ("landed.orders", "{"), ("batch", "x"),
    ("landed.orders", '{"id": "", "ends": [], "bytes": 1.0, "behind": {}}'),
    ("batch-segments", '[["s", "t", 0, 0, 9, 9, 99, ["2026-01-01"]]]'),
])  # fmt: skip
def test_landed_offsets_in_another_form_are_refused(tmp_path: Path, name: str, stored: str) -> None:
    lake = Lake(lake_config(tmp_path))
    with table.RecordCommits(lake, "f").create().transaction() as change:
        change.set_properties({f"cdc.{name}": stored})
    with pytest.raises(StoredFormError, match="properties of `records` cannot be read"):
        table.landed_state(lake, "f")


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[list[Chunk]], list[table.PartitionRecords]]:
    """Files as tasks write them, some with their records out of order; and of some partitions and batches all."""
    files: list[list[Chunk]] = []
    wanted: list[table.PartitionRecords] = []
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
                wanted.append(table.PartitionRecords(partition, batch, start, start - back, since, len(offsets)))
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
    log: tuple[list[list[Chunk]], list[table.PartitionRecords]], tasks: int, batch_bytes: int
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
        shares = Log(Path(directory), files).shares(wanted, tasks)
        assert len(shares) <= tasks and read(shares) == expected


def test_records_of_earlier_batch_in_later_file_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_an_empty_part(*of: Any) -> Iterator[pa.Table]:
        for rows in read_rows(*of):
            yield from (rows.slice(0, 0), rows)  # All of a part's rows are deleted.

    one, read_rows = LogPartition("orders", 0), table.lake_files.read_rows
    monkeypatch.setattr(table.lake_files, "read_rows", with_an_empty_part)
    chunks: list[Chunk] = [[(one, n, batch, 0, b"v") for n in of] for batch, of in ((2, (10, 11, 12)), (1, (5, 6)))]
    (rows,) = read(Log(tmp_path, [chunks]).shares([table.PartitionRecords(one, 2, 10, 5, 1, 5)])).values()
    assert [(row["offset"], row["is_before"]) for row in rows] == [
        (5, True), (6, True), (10, False), (11, False), (12, False)
    ]  # fmt: skip


def test_batches_are_small_though_values_are_large(tmp_path: Path) -> None:
    one, sizes = LogPartition("orders", 0), [1, 9 << 20, 9 << 20, 1, 40 << 20, 1]
    chunk: Chunk = [(one, n, 1, 0, bytes(size)) for n, size in enumerate(sizes)]
    (share,) = Log(tmp_path, [[chunk]]).shares([table.PartitionRecords(one, 1, 0, 0, 1, 1)])
    batches = list(share.read())
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [*range(6)]
    assert all(batch.num_rows == 1 or batch.nbytes <= 17 << 20 for batch in batches)


def test_files_that_have_nothing_of_it_are_left_alone(tmp_path: Path) -> None:
    one = LogPartition("orders", 0)
    log = Log(tmp_path, [[[(one, batch * 10, batch, 0, b"v")]] for batch in range(1, 6)])
    (share,) = log.shares([table.PartitionRecords(one, 4, 40, 30, 3, 1)])
    assert len(share.files) == 2
    (share,) = log.shares([table.PartitionRecords(one, 4, 40, 40, 4, 1)])
    assert len(share.files) == 1


FEED = FeedConfig.model_validate({
    "name": "shop", "start_date": "2020-01-01",
    "source": {"type": "canal", "addresses": ["canal-1:11111"], "destination": "example"},
})  # fmt: skip


class Landed:
    """The first entries of a captured session, in batches of so many."""

    def __init__(self, root: Path, count: int, size: int = 50) -> None:
        self.lake = Lake(lake_config(root))
        self.entries = capture("mysql8.0.12").entries[:count]
        self.commit_ts: list[list[int]] = []
        self.seeds: dict[int, int] = {}
        last = 0
        for number, start in enumerate(range(0, count, size), start=1):
            batch = self.entries[start : start + size]
            EntryRecords(self.lake, FEED, number).append(Round(1, tuple(map(placed, batch)), ()))
            self.seeds[number] = last
            found = [list(commit_ts_of(batch[: end + 1], last)) for end in range(len(batch))]
            for before, after in itertools.pairwise([[], *found]):
                self.commit_ts.append(after[len(before) :])
            last = found[-1][-1] if found[-1] else last

    def find(self, position: BinlogPosition) -> BinlogSearch:
        return EntryRecords(self.lake, FEED).find(position, self.seeds.__getitem__)

    def headers(self) -> list[wire.Header]:
        return [wire.Entry.FromString(entry).header for entry in self.entries]


def at(header: wire.Header, further: int = 0) -> BinlogPosition:
    return BinlogPosition.of(header.logfile_name, header.logfile_offset + further)


def test_place_has_the_commit_ts_of_what_is_before_it(tmp_path: Path) -> None:
    landed = Landed(tmp_path, 120)
    headers, ts = landed.headers(), landed.commit_ts
    for number in (0, *range(1, len(headers), 17)):
        before, behind = ([each for told in of for each in told] for of in (ts[:number], ts[number:]))
        found, between = landed.find(at(headers[number])), landed.find(at(headers[number], -1))
        assert found.reached and found.covered and between.covered == (number > 0)
        assert found.first == at(headers[0]) and found.commit_ts is not None
        assert max(before, default=min(behind) - 1) <= found.commit_ts < min(behind)
        assert (found.commit_ts, found.values) == (between.commit_ts, between.values), "between two entries"
    found = landed.find(at(headers[-1], 100_000))
    assert (found.reached, found.commit_ts, found.last) == (False, None, at(headers[-1]))
    with pytest.raises(SourceError, match="these are not files of one binlog"):
        landed.find(BinlogPosition.of("other-bin.000001", 4))
    with pytest.raises(SourceError, match="it does not end in a number"):
        BinlogPosition.of("binlog", 4)


def test_the_end_of_a_transaction_is_reached_with_it(tmp_path: Path) -> None:
    entries = [wire.Entry.FromString(entry) for entry in capture("mysql8.0.12").entries[:120]]
    count = next(n for n, entry in enumerate(entries, start=1) if entry.entry_type == wire.TRANSACTION_END and n > 20)
    landed, header = Landed(tmp_path, count), entries[count - 1].header
    found = landed.find(at(header, header.event_length))
    assert found.reached and found.commit_ts == max(each for told in landed.commit_ts for each in told)
    assert not landed.find(at(header, header.event_length + 1)).reached


def test_entry_without_a_time_is_sought_in_no_file_of_others(tmp_path: Path) -> None:
    landed = Landed(tmp_path, 120)
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    untimed = wire.Entry.FromString(landed.entries[60])
    untimed.header.ClearField("execute_time")
    again = Round(1, (placed(untimed.SerializeToString()),), ())
    assert [EntryRecords(landed.lake, FEED, number).append(again) for number in (4, 5)] == [1, 0]
