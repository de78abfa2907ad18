"""What of segments, copies and messages goes, and that a source which shows it again is not taken for new."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from cdc_lakehouse.decoders.topic_order import PartitionSummary
from cdc_lakehouse.lake.tables.checkpoints import Cut
from cdc_lakehouse.lake.tables.records import RecordCommits, files_before, first_batch, remove_before, removed_upto
from cdc_lakehouse.operate.retention import Retention
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from tests.kit.lakes import TestLake
from tests.pipeline import DAY, T0, Sink, lake_in

LATER = datetime.timedelta(days=40)
KEEP = {"maintenance": {"keep_segments_days": 30, "keep_archive_days": 30, "keep_records_days": 30}}


def later() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + LATER


class Feed:
    """Tables `t` and `u` with a file a day, and what a run does to them but for their events and rows."""

    def __init__(self, directory: Path) -> None:
        self.lake: TestLake = lake_in(directory, **KEEP)
        self.sink = Sink(self.lake.sink, "t", "u")
        self.at = 0

    def run(self, **options: Any) -> FeedRun:
        return self.lake.run(clock=later, **options)

    def day(self, *tables: str, days: int) -> None:
        """A file of each table, landed."""
        for table in tables:
            self.at += 1
            self.sink.file(table, at=self.at, days=days)
        self.sink.checkpoint(self.at)
        self.lake.run().source.land()

    def decode(self, *, cut: bool = True, held: tuple[tuple[str, str], ...] = ()) -> None:
        """As if all that landed was decoded, and applied unless it is held."""
        run = self.lake.run()
        for landed in run.segments.undecoded("file").values():
            counts = {"events": 1, "inserts": 1, "min_commit_ts": T0 + 1, "max_commit_ts": T0 + self.at}
            done = [replace(each, state="decoded", decoded_at=run.clock(), **counts) for each in landed]
            run.segments.mark_decoded(done)
        run.source.peek()
        found, _ = run.source.schema_changes(None)
        run.history.record(
            [change for change in found if run.history.changes.get(change.origin) != change], run.clock()
        )
        if cut:
            versions = len(run.history.history.versions)
            run.checkpoints.publish(Cut(T0 + self.at, run.segments.batch, versions, run.settings, held), [])

    def outdated(self) -> list[str]:
        """The segments that would go, without their directories and numbers."""
        rows = Retention(self.run()).passed
        return sorted(
            f"{table} {date}"
            for table, date in zip(*(rows[n].to_pylist() for n in ("table", "feed_date")), strict=True)
        )


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    found = Feed(tmp_path)
    for days in range(3):
        found.day("t", "u", days=days)
    found.decode()
    return found


def test_what_is_still_needed_stays(feed: Feed) -> None:
    (t, _) = feed.lake.run().history.history.incarnations()
    # A held table has not passed its segments.
    feed.decode(held=((t, "by a person"),))
    assert feed.outdated() == ["u 2026-06-01", "u 2026-06-02"]
    feed.decode()
    # So has one whose date has a gap: a file that may still come.
    feed.day("t", days=3)
    feed.day("t", days=4)
    feed.decode()
    assert feed.outdated()[:4] == ["t 2026-06-01", "t 2026-06-02", "t 2026-06-03", "t 2026-06-04"]
    directory = next(feed.lake.sink.glob("d/t/*/2026-06-02"))
    number = directory / "CDC00000000000000000003.json"
    number.write_bytes(b"")
    feed.run().source.land()
    feed.decode()
    assert feed.outdated()[:2] == ["t 2026-06-01", "u 2026-06-01"]


def record(date: str | None, batch: int, offset: int) -> dict[str, Any]:
    return {
        "feed_date": date, "topic": "t", "partition": 0, "offset": offset, "timestamp": DAY, "key": b"k", "value": b"v",
        "size": 2, "segment": "s", "batch": batch,
    }  # fmt: skip


@pytest.fixture
def records(lake: TestLake) -> Table:
    """Batches 1, 1 and 2, 3, a file each of two dates."""
    table = RecordCommits(lake.lake, lake.name).create()
    schema = schema_to_pyarrow(table.schema())
    for date, batches in (("2026-06-01", [1]), ("2026-06-01", [1, 2]), ("2026-06-02", [3])):
        table.append(pa.Table.from_pylist([record(date, batch, batch * 10) for batch in batches], schema=schema))
    return table


@pytest.mark.parametrize(
    ("batch", "left", "upto"),
    [(1, [1, 1, 2, 3], ""), (2, [1, 2, 3], "2026-06-01"), (3, [3], "2026-06-01"), (4, [], "2026-06-02")],
)
def test_messages_go_by_whole_files(lake: TestLake, records: Table, batch: int, left: list[int], upto: str) -> None:
    files = files_before(records, batch)
    if files:
        remove_before(records, batch, files)
    assert sorted(row["batch"] for row in lake.machinery("records")) == left
    assert (first_batch(lake.lake, lake.name), removed_upto(lake.lake, lake.name)) == (batch if files else 0, upto)


def test_a_table_whose_messages_went_while_it_was_left_out_is_held(tmp_path: Path) -> None:
    source = {"type": "kafka", "format": "canal-json", "bootstrap_servers": "127.0.0.1:1", "topics": ["x"]}
    lake = lake_in(tmp_path, source=source, tables={"exclude": ["d.z"]})
    # Batches of the topic: `z` is left out from 1 on, `a` from 2 on, `b` from 3 on.
    for batch, name in enumerate("zab", 1):
        found = PartitionSummary(0, 0, left_out={("d", name)})
        lake.run().signals.write(batch, {("x", 0, batch): found})
    table = RecordCommits(lake.lake, lake.name).create()
    table.append(pa.Table.from_pylist([record("2026-06-01", 2, 0)], schema=schema_to_pyarrow(table.schema())))
    assert find_holds(lake.run(), {}, 1).reasons == {}
    remove_before(table, 3, files_before(table, 3))
    (held,) = find_holds(lake.run(), {}, 1).reasons.values()
    assert "no longer in `records`" in held
    lake.configure(tables={})
    assert len(find_holds(lake.run(), {}, 1).reasons) == 2
