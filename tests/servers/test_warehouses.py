"""What removes files, and what stops in the middle, in a warehouse on a disk and in one on S3: live files stay."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.operate.maintenance import Maintained, Maintenance
from tests.kit.changefeed import Changefeed
from tests.kit.hand_sinks import COLUMNS as SINK_COLUMNS
from tests.kit.hand_sinks import CREATE, CSV, HandSink, put
from tests.kit.kafka import MemoryTopic
from tests.kit.kills import kill_everywhere
from tests.kit.lakes import TestLake, check_events, run_all
from tests.kit.log import Column, Ddl, RowChange, fold, seen
from tests.servers.buckets import S3Bucket
from tests.servers.conftest import S3Server

pytestmark = [pytest.mark.server, pytest.mark.spark]

TS = 450_000_000_000_000_000
TOPIC = {"type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": "localhost:1", "topics": ["c"]}
ONLY_ORPHANS = {"min_small_files": 1000, "max_delete_ratio": 1, "keep_cut_hours": 1000}
Make = Callable[..., "Warehouse"]


@dataclass
class Warehouse:
    """A feed in a warehouse of its own, whose files lie in a directory of this machine."""

    lake: TestLake
    root: Path

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}

    def place(self, location: str) -> str:
        """A location in the warehouse as a path from its root."""
        _, found, place = location.partition(f"/{self.root.name}/")
        assert found, location
        return place

    def tables(self) -> dict[str, Any]:
        """By the name that maintenance gives them, those in which it looks for orphans."""
        own = [self.lake.lake.catalog.load_table((f"cdc_{self.lake.name}", name)) for name in ("events", "records")]
        return {".".join(table.name()): table for table in (*self.lake.tables().values(), *own)}

    def referenced(self) -> set[str]:
        """All files that a table's metadata names, in any of its snapshots."""
        found: set[str] = set()
        for table in self.tables().values():
            found |= {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
            for snapshot in table.snapshots():
                found.add(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    found.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    found |= {entry.data_file.file_path for entry in entries}
        return {self.place(path) for path in found}

    def maintain(self, *table: str, dry_run: bool = False) -> Maintained:
        done = Maintenance(self.lake.feed, self.lake.lake, self.lake.session).maintain(*table, dry_run=dry_run)
        assert [each.deferred for each in done.tables] == [None] * len(done.tables)
        return done


@pytest.fixture(params=["disk", "s3"])
def warehouse(request: pytest.FixtureRequest, lake_elsewhere: Callable[..., TestLake], tmp_path: Path) -> Make:
    """Makes one with a blank in its path."""
    root, place, storage = tmp_path / "ware house", str(tmp_path / "ware house"), {}
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        bucket = S3Bucket(server.endpoint, prefix="ware house")
        root, place, storage = server.data / bucket.name / "ware house", bucket.uri, bucket.storage
    return lambda **feed: Warehouse(lake_elsewhere(warehouse=place, storage=storage, **feed), root)


@pytest.mark.in_turn
def test_orphans_are_removed_and_no_live_file(warehouse: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"d.t2": {"format_version": 2}, "d.t3": {"format_version": 3}}
    found = warehouse(source=TOPIC, tables={"settings": settings}, maintenance=ONLY_ORPHANS)
    lake, topic = found.lake, MemoryTopic(monkeypatch).writer
    feed = Changefeed(lake.sink, database="d", topic=topic)
    names = ("t2", "t3")
    for at, name in enumerate(names):
        feed.send(Ddl(TS + at, name, "create", (Column("id", "int"), Column("v", "int")), ("id",)))
    for number in range(3):
        for at, name in enumerate(names, TS + 10 * (number + 1)):
            row, last = {"id": f"{number}", "v": "1"}, {"id": f"{number - 1}", "v": "1"}
            feed.send(RowChange(at, name, None, row))
            feed.send(RowChange(at, name, None, {"id": f"{number + 100}", "v": "1"}))
            if number:
                feed.send(RowChange(at, name, last, {**last, "v": "2"}))
        feed.checkpoint(TS + 10 * (number + 1) + 5)
        lake.go_through()
    tables = found.tables()
    assert {table.format_version for table in tables.values()} == {2, 3}
    deletes = {
        entry.data_file.file_format.value
        for table in tables.values()
        for manifest in table.current_snapshot().manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content.value
    }
    assert deletes == {"PARQUET", "PUFFIN"}

    locations = {name: found.place(table.location()) for name, table in tables.items()}
    planted = {"data/old ü 1.parquet", "data/feed_date=2020-01-01/00000-0-old.parquet", "metadata/old-m0.avro"}
    for location in locations.values():
        for name in planted:
            (found.root / location / name).parent.mkdir(parents=True, exist_ok=True)
            (found.root / location / name).write_bytes(b"of a task that died")
    before = found.files()
    days_ago = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=4)).timestamp()
    for name in before:
        os.utime(found.root / name, (days_ago, days_ago))
    fresh = {f"{location}/data/fresh.parquet" for location in locations.values()}
    for name in fresh:
        (found.root / name).write_bytes(b"of a task that works")
    live = found.referenced()
    assert live <= before
    orphans = {
        name: {path for path in before - live if path.startswith(f"{location}/")}
        for name, location in locations.items()
    }
    assert all(paths >= {f"{locations[name]}/{each}" for each in planted} for name, paths in orphans.items())

    # Nothing but what it says is done, and in a dry run nothing at all.
    def counts(done: Maintained) -> dict[str, int]:
        assert all(each.counts["compacted_files"] == each.counts["expired_snapshots"] == 0 for each in done.tables)
        return {each.table: each.counts["orphan_files"] for each in done.tables}

    metadata = lake.metadata()
    assert counts(found.maintain(dry_run=True)) == {name: len(paths) for name, paths in orphans.items()}
    assert (found.files(), lake.metadata()) == (before | fresh, metadata)
    counts(found.maintain("d.t2"))
    assert before - found.files() == orphans[f"{lake.name}__d.t2"]
    counts(found.maintain())
    under = tuple(f"{location}/" for location in locations.values())
    gone = {path for path in before - found.files() if path.startswith(under)}
    assert gone == set().union(*orphans.values())
    assert fresh <= found.files()
    for table in found.tables().values():
        for snapshot in table.snapshots():
            table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    done = run_all(lake.run(rebuild=lake.names(), dates=frozenset({r["feed_date"] for r in lake.machinery("records")})))
    assert not done.applied.held
    expected = {name: table.typed() for name, table in fold(feed.entries, feed.checkpoint_ts).items()}
    assert {name: seen(t.schema(), t.scan()) for (_, name), t in lake.tables().items()} == expected


@pytest.mark.in_turn
@pytest.mark.parametrize("warehouse", ["s3"], indirect=True)
def test_feed_on_s3_is_killed_compacted_and_decoded_again(warehouse: Make) -> None:
    """As one on a disk (`tests/scenarios/kills.txt`): what is there after each kill is continued, and all dates come
    again, from the archive."""
    found = warehouse(source={**CSV, "archive": True}, maintenance={"min_small_files": 2, "keep_cut_hours": 1})
    lake, sink = found.lake, HandSink(found.lake.sink)
    for name in ("p", "u"):
        sink.schema(name, 1, *SINK_COLUMNS, action=CREATE, query=f"CREATE TABLE `{name}` (`id` BIGINT PRIMARY KEY)")
    expected: dict[str, list[tuple[Any, ...]]] = {}
    for number in range(3):
        at = 10 * (number + 1)
        for name in ("p", "u"):
            put(sink, name, 1, ("I", at, number, 1), ("I", at, 50 + number, 1), index=number * 2 + 1)
            put(sink, name, 1, ("U", at + 1, number, 2), ("D", at + 2, 50, 0), index=number * 2 + 2)
            expected[name] = [(n, 2, f"{name}{10 * (n + 1) + 1}") for n in range(number + 1)]
            expected[name] += [(50 + n, 1, f"{name}{10 * (n + 1)}") for n in range(1, number + 1)]
        sink.checkpoint(at + 5)
        if number < 2:
            lake.go_through()
        else:
            hit = kill_everywhere(lake, lambda: run_all(lake.run()))
            # Both tables are committed at once: either may be the first.
            assert {"update segments", "update events"} < set(hit) and {"update d.p", "update d.u"} & set(hit), hit
        assert lake.all_rows() == expected
        check_events(lake)
    plan = {each.table: each.counts["compacted_files"] for each in found.maintain(dry_run=True).tables}
    assert all(count > 1 for count in plan.values()), plan
    found.maintain()
    assert lake.all_rows() == expected
    for table in lake.tables().values():
        assert len(list(table.scan().plan_files())) == 1
    before = lake.events_by_segment()
    for path in sorted(lake.sink.rglob("CDC*[0-9].csv")):
        path.unlink()
    dates = frozenset({row["feed_date"] for row in lake.machinery("segments")})
    assert not run_all(lake.run(dates=dates, rebuild=lake.names())).applied.held
    assert (lake.all_rows(), lake.events_by_segment()) == (expected, before)
