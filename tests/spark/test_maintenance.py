"""Maintenance beside runs: whatever it does between two commits of a run, and wherever it ends, tables hold the rows
that they should, and cuts that are kept can be read."""

from __future__ import annotations

import datetime
import functools
import os
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.config import CutsConfig
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.tables import lease
from cdc_lakehouse.lake.tables.decisions import ManualHold
from cdc_lakehouse.lake.tables.segments import Segments
from cdc_lakehouse.operate import maintenance
from cdc_lakehouse.operate.maintenance import Maintained, Maintenance, Procedures
from cdc_lakehouse.operate.retention import Removed, Retention
from cdc_lakehouse.operate.state import manifest_count, table_health
from tests import LONG
from tests.kit.hand_sinks import ADD_COLUMN, COLUMNS, CREATE, CSV, HandSink, integer, put
from tests.kit.kills import KillAtCall, KillAtCommit
from tests.kit.lakes import TestLake, run_all
from tests.kit.other_writer import optimize
from tests.spark.test_two_runs import before_commit

pytestmark = pytest.mark.spark

_KEEP = {"keep_archive_days": 1, "keep_segments_days": 1}
_SMALL = {"maintenance": {"min_small_files": 2, "keep_cut_hours": 1, **_KEEP}}


def later() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)


def maintain(lake: TestLake, table: str | None = None, clock: Any = later, **options: Any) -> Maintained:
    done = Maintenance(lake.feed, lake.lake, lake.session, clock=clock).maintain(table, **options)
    assert [each.actions.deferred for each in done.tables if each.actions.deferred is not None] == []
    return done


def small_changes(lake: TestLake, sink: HandSink, runs: int, first: int = 0) -> None:
    """Each run updates the first row of `p` and `u`, deletes another of `p`, and inserts one."""
    for number in range(first, first + runs):
        at = 100 + number * 10
        put(sink, "p", 1, ("U", at, 1, number), ("D", at, 10 + number, 0), ("I", at, 11 + number, 0), index=2 + number)
        put(sink, "u", 1, ("U", at, 1, number), index=2 + number)
        sink.checkpoint(at + 5)
        lake.go_through()


def new_feed(new_lake: Callable[..., TestLake], runs: int, **cuts: int) -> tuple[TestLake, HandSink]:
    """`cuts` are settings of `lake.cuts`."""
    lake = new_lake(source={**CSV, "archive": True}, **_SMALL)
    of_lake = lake.config.lake.model_copy(update={"cuts": CutsConfig(**cuts)})
    lake.config = lake.config.model_copy(update={"lake": of_lake})
    lake.lake = Lake(of_lake)
    sink = HandSink(lake.sink)
    for table in ("p", "u"):
        sink.schema(table, 1, *COLUMNS, action=CREATE, query=f"CREATE TABLE `{table}` (`id` BIGINT PRIMARY KEY)")
    put(sink, "p", 1, ("I", 3, 1, 1), ("I", 3, 2, 2), ("I", 3, 10, 0))
    put(sink, "u", 1, ("I", 3, 1, 1), ("I", 3, 2, 2))
    sink.checkpoint(9)
    lake.go_through()
    small_changes(lake, sink, runs)
    return lake, sink


def expected(runs: int) -> dict[str, list[tuple[Any, ...]]]:
    last = 100 + (runs - 1) * 10
    changed = f"{last}"
    return {
        "p": [(1, runs - 1, f"p{changed}"), (2, 2, "p3"), (10 + runs, 0, f"p{changed}")],
        "u": [(1, runs - 1, f"u{changed}"), (2, 2, "u3")],
    }


def check_cuts(lake: TestLake) -> list[int]:
    """Every row of every cut can be read and has as many rows as the cut says; gives the snapshots of the newest."""
    tables = lake.tables()
    newest = max(row["checkpoint_ts"] for row in lake.machinery("checkpoints"))
    shown: list[int] = []
    for row in lake.machinery("checkpoints"):
        found = tables[row["database"], row["table"]].scan(snapshot_id=row["snapshot_id"]).to_arrow()
        assert len(found) == row["row_count"]
        if row["checkpoint_ts"] == newest:
            shown.append(row["snapshot_id"])
    return shown


def without_lease(lake: TestLake) -> dict[str, str]:
    return {name: place for name, place in lake.metadata().items() if not name.endswith(".lease")}


def test_what_is_needed_is_done_and_no_more(new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch) -> None:
    # To look for orphans takes most of the time: one table shows it.
    look = Procedures.remove_orphan_files
    monkeypatch.setattr(
        Procedures,
        "remove_orphan_files",
        lambda self, table, *args, **options: look(self, table, *args, **options) if table.name == "p" else 0,
    )
    lake, sink = new_feed(new_lake, 4, keep_all_hours=0, keep_daily_days=0)
    events = lake.events_by_segment()
    directory = lake.data_files("p")[0].parent
    orphan, fresh = directory / "orphan.parquet", directory / "fresh.parquet"
    for file in (orphan, fresh):
        file.write_bytes(b"of a task that died")
    old = (datetime.datetime.now() - datetime.timedelta(days=4)).timestamp()  # noqa: DTZ005 - An mtime.
    os.utime(orphan, (old, old))
    recent = check_cuts(lake)
    assert len(recent) == 2

    before = lake.metadata()
    planned = maintain(lake, dry_run=True, clock=lambda: datetime.datetime.now(datetime.UTC))
    assert without_lease(lake) == {name: place for name, place in before.items() if not name.endswith(".lease")}
    plan = {str(each.source): each for each in planned.tables if each.source is not None}
    assert plan["d.p"].actions.compacted_files > 2 and plan["d.p"].after is None
    assert plan["d.p"].actions.orphan_files == 1 and orphan.exists()
    assert plan["d.p"].actions.expired_snapshots == 0, "cuts of the last hour are kept"

    # Cuts that are kept still name their snapshots.
    maintain(lake, clock=lambda: datetime.datetime.now(datetime.UTC))
    assert not orphan.exists() and fresh.exists()
    assert lake.all_rows() == expected(4) and lake.events_by_segment() == events
    assert len({row["checkpoint_ts"] for row in lake.machinery("checkpoints")}) == 5
    assert set(check_cuts(lake)) == {table.metadata.current_snapshot_id for table in lake.tables().values()}
    for table in lake.tables().values():
        health = table_health(table)
        assert (health.files, health.deleted_rows) == (1, 0) and health.compacted_at is not None

    # Two days later they are outdated, but for the newest.
    done = maintain(lake)
    assert done.forgotten_cut_rows == 8
    assert {row["checkpoint_ts"] for row in lake.machinery("checkpoints")} == {lake.run().last_cut.checkpoint_ts}
    assert set(check_cuts(lake)) == {table.metadata.current_snapshot_id for table in lake.tables().values()}
    assert all(each.after is not None and each.after.snapshots <= 3 for each in done.tables if each.source is not None)
    assert len(lake.data_files()) == 3, "one of each table, and that which is no orphan yet"

    # What is done is not done again, and a run without news changes nothing.
    after = without_lease(lake)
    maintain(lake, "d.p")
    run_all(lake.run())
    assert without_lease(lake) == after
    small_changes(lake, sink, 2, first=4)
    assert lake.all_rows() == expected(6)
    check_cuts(lake)


@pytest.mark.usefixtures("no_orphans")
def test_tags_are_kept_as_long_as_is_configured_and_keep_their_rows(new_lake: Callable[..., TestLake]) -> None:
    lake, sink = new_feed(new_lake, 3, keep_all_hours=24)
    before = lake.all_rows()
    tagged = tags(lake)
    assert {len(found) for found in tagged.values()} == {3}

    def counts() -> dict[str, list[int]]:
        tables = {name: table for (_, name), table in lake.tables().items()}
        return {
            name: [tables[name].scan(snapshot_id=each).to_arrow().num_rows for each in found.values()]
            for name, found in tagged.items()
        }

    seen = counts()
    # By the clock their cuts are not kept any longer, and what tags name is.
    maintain(lake)
    assert tags(lake) == tagged and counts() == seen
    # The log goes on for two days without a change: only the last state that another took the place of is left.
    sink.checkpoint((2 * 86_400_000) << 18)
    lake.go_through()
    maintain(lake)
    assert {name: list(found) for name, found in tags(lake).items()} == {
        name: [max(found, key=lambda tag: int(tag.removeprefix("cut_")))] for name, found in tagged.items()
    }
    assert lake.all_rows() == before


def tags(lake: TestLake) -> dict[str, dict[str, int]]:
    """By table: the tags of cuts, with their snapshots."""
    return {
        name: {tag: ref.snapshot_id for tag, ref in table.metadata.refs.items() if tag.startswith("cut_")}
        for (_, name), table in lake.tables().items()
    }


@pytest.mark.usefixtures("no_orphans")
def test_maintenance_between_any_two_commits_of_a_run(new_lake: Callable[..., TestLake]) -> None:
    """The lease keeps them apart; the run here does not ask for it, as one whose lease was lost."""
    met, number = 0, 1
    removed: list[Removed] = []
    while True:
        lake, sink = new_feed(new_lake, 1)
        # Of another date: what was before it need not be kept.
        put(sink, "p", 1, ("U", 200, 1, 7), ("D", 200, 2, 2), date="2026-06-11")
        put(sink, "u", 1, ("D", 200, 2, 2), date="2026-06-11")
        wide = (*COLUMNS, integer("n"))
        sink.schema("u", 210, *wide, action=ADD_COLUMN, query="ALTER TABLE `u` ADD COLUMN `n` INT")
        sink.checkpoint(220)
        others: list[Maintained] = []

        def other(lake: TestLake = lake, others: list[Maintained] = others) -> None:
            others += [maintain(lake, table) for table in ("d.p", "d.u", "events")]
            removed.append(Retention(lake.run(clock=later)).remove())

        with before_commit(number, other) as begun:
            try:
                done = run_all(lake.run())
            except Exception as error:
                if "another" not in str(error):
                    raise
            else:
                assert not done.applied.held, f"before commit {number}: {done.applied.held}"
        if not others:
            assert len(begun) < number
            break
        met += sum(each.actions.compacted_files for done in others for each in done.tables)
        lake.go_through()
        assert lake.all_rows() == {"p": [(1, 7, "p200"), (11, 0, "p100")], "u": [(1, 0, "u100", None)]}, number
        check_cuts(lake)
        number += 1 if LONG else 4
    assert number > 5 and met > 6, "they hardly met"
    assert any(each.segments for each in removed) and any(each.archived_files for each in removed)


@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize("format_version", [3, pytest.param(2, marks=pytest.mark.long)])
def test_maintenance_that_is_killed_anywhere(
    format_version: int, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_is_gone", lambda _: True)  # The process of the killed one.
    # A lease that cannot be written looks as if another run had just taken it: that would be waited for.
    monkeypatch.setattr(maintenance, "_PATIENCE", datetime.timedelta(0))
    lake, sink = new_feed(functools.partial(new_lake, format_version=format_version), 3)
    committed: list[str] = []
    number = 1
    while True:
        before = without_lease(lake)
        with KillAtCommit(number)(lake) as killed:
            try:
                maintain(lake)
            except AssertionError as error:
                raise RuntimeError("the run is killed before this commit") from error
        assert lake.all_rows() == expected(3), killed.commits
        check_cuts(lake)
        if not killed.happened:
            break
        committed += killed.commits[-1:]
        # After the first commit but that of the lease, as long as there is one more to do.
        number = number + 1 if without_lease(lake) == before else 3
    assert any("d.p" in each for each in committed), committed
    small_changes(lake, sink, 1, first=3)
    # Of one table alone the cuts are not forgotten: what they name stays.
    maintain(lake, "d.p")
    check_cuts(lake)
    assert lake.all_rows() == expected(4)


def test_compaction_alone_writes_worn_tables_anew_and_nothing_else(new_lake: Callable[..., TestLake]) -> None:
    lake, sink = new_feed(new_lake, 4)
    # Of five batches.
    assert max(manifest_count(table) for table in lake.tables().values()) <= 4
    before, segments = lake.metadata(), lake.machinery("segments")
    planned = Maintenance(lake.feed, lake.lake, lake.session).compact(dry_run=True)
    assert [(str(each.source), each.actions.compacted_files > 2) for each in planned.tables] == [
        ("d.p", True),
        ("d.u", True),
    ]
    assert without_lease(lake) == {name: place for name, place in before.items() if not name.endswith(".lease")}

    done = Maintenance(lake.feed, lake.lake, lake.session, clock=later).compact()
    assert [each.actions.expired_snapshots for each in done.tables] == [0, 0], "no cut goes"
    assert (
        lake.machinery("segments") == segments and len({r["checkpoint_ts"] for r in lake.machinery("checkpoints")}) == 5
    )
    assert lake.all_rows() == expected(4)
    assert set(check_cuts(lake)) == {table.metadata.current_snapshot_id for table in lake.tables().values()}
    assert {table_health(table).files for table in lake.tables().values()} == {1}
    # What needs nothing is left alone; runs go on over it.
    before = lake.metadata()
    maintenance = Maintenance(lake.feed, lake.lake, lake.session)
    assert sum(each.actions.compacted_files for each in maintenance.compact().tables) == 0
    assert without_lease(lake) == {name: place for name, place in before.items() if not name.endswith(".lease")}
    small_changes(lake, sink, 1, first=4)
    assert lake.all_rows() == expected(5)


class OtherWriter:
    """A feed with a held table `u` and one that is not, `p`, and what another writer does to its own tables."""

    def __init__(self, lake: TestLake) -> None:
        self.lake, self.sink = lake, HandSink(lake.sink)
        for table, at in (("p", 1), ("u", 2)):
            query = f"CREATE TABLE `{table}` (`id` BIGINT PRIMARY KEY)"
            self.sink.schema(table, at, *COLUMNS, action=CREATE, query=query)
            put(self.sink, table, at, ("I", at + 2, 1, 1), ("I", at + 4, 2, 2))
        self.sink.checkpoint(9)
        lake.go_through()
        (self.held,) = (id for id in lake.run().history.history.incarnations() if id.startswith("d.u"))

    def hold(self) -> None:
        hold = ManualHold(self.held, "d", "u", "a test", "me", datetime.datetime.now(datetime.UTC))
        self.lake.run().manual_holds.add(hold)

    def release(self) -> None:
        self.lake.run().manual_holds.remove(self.held)

    def land(self, *u: tuple[Any, ...], at: int) -> None:
        """The file of `u` has other rows than it had, and `p` a new file."""
        put(self.sink, "u", 2, *u)
        put(self.sink, "p", 1, ("I", at - 1, at, at), index=at // 10)
        self.sink.checkpoint(at)

    def optimize(self, *names: str) -> None:
        for name in names:
            optimize(self.lake.session(), system_table(self.lake.name, name))


@pytest.mark.parametrize("expires", [False, True])
def test_file_that_changes_twice_while_its_table_is_held(new_lake: Callable[..., TestLake], expires: bool) -> None:
    """Keys of its first content that no later one has are gone; also where another writer has let the snapshot expire
    that has them: then the table is made anew, and the other one goes on."""
    feed = OtherWriter(new_lake(source=CSV))
    feed.hold()
    for at, key in ((20, 3), (30, 4)):
        feed.land(("I", 4, 1, 1), ("I", 6, key, key), at=at)
        assert set(run_all(feed.lake.run()).applied.held) == {feed.held}
    if expires:
        feed.optimize("events")
    feed.release()
    feed.land(("I", 4, 1, 1), ("I", 6, 4, 4), ("I", 35, 9, 9), at=40)
    done = feed.lake.go_through()
    assert [row[:2] for row in feed.lake.rows("u")] == [(1, 1), (4, 4), (9, 9)]
    assert [row[:2] for row in feed.lake.rows("p")] == [(1, 1), (2, 2), (20, 20), (30, 30), (40, 40)]
    assert {each.life.id: each.rebuilt for each in done.applied.tables}[feed.held] == expires


def test_batch_that_is_committed_and_not_marked_is_found_after_another_writers_maintenance(
    new_lake: Callable[..., TestLake],
) -> None:
    feed = OtherWriter(new_lake(source=CSV))
    feed.land(("I", 4, 1, 1), ("I", 6, 2, 20), at=20)
    with KillAtCall(Segments, "mark_decoded", 1, after=False)(feed.lake):
        feed.lake.go_through()
    assert [row["state"] for row in feed.lake.machinery("segments")].count("landed") == 2
    feed.optimize("events", "segments", "checkpoints", "frontier")
    feed.optimize("events")
    feed.lake.go_through()
    places = [(event["segment"], event["line"]) for event in feed.lake.machinery("events")]
    assert len(set(places)) == len(places) == 5
    assert {row["segment"]: row["events"] for row in feed.lake.machinery("segments")} == feed.lake.events_by_segment()
    assert [row[:2] for row in feed.lake.rows("u")] == [(1, 1), (2, 20)]
    before = feed.lake.metadata()
    feed.lake.go_through()
    assert feed.lake.metadata() == before


def test_a_table_of_the_source_may_be_named_events(new_lake: Callable[..., TestLake]) -> None:
    """Its name alone is that of the machinery table: of the source's one nothing but small files goes."""
    lake = new_lake(source={**CSV, "archive": True}, **_SMALL)
    sink = HandSink(lake.sink)
    sink.schema("events", 1, *COLUMNS, action=CREATE, query="CREATE TABLE `events` (`id` BIGINT PRIMARY KEY)")
    for number in range(3):
        put(sink, "events", 1, ("I", 3 + number * 10, number, number), index=1 + number)
        sink.checkpoint(9 + number * 10)
        lake.go_through()
    (machinery,) = maintain(lake, "events", dry_run=True).tables
    assert machinery.source is None
    (own,) = maintain(lake, "d.events").tables
    assert str(own.source) == "d.events" and own.actions.compacted_files == 3 and own.actions.superseded_events == 0
    maintain(lake)
    assert [row[0] for row in lake.rows("events")] == [0, 1, 2]
