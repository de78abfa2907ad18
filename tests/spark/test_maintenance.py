"""Maintenance beyond `tests/scenarios/retention.txt`, other writers, and feeds that are old or wide."""

import datetime
import gc
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from cdc_lakehouse.config import CutsConfig
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.current.keyed_events import KeyedSpan
from cdc_lakehouse.lake.files import live_files
from cdc_lakehouse.lake.tables.quarantine import Decision
from cdc_lakehouse.lake.tables.segments import Segments
from cdc_lakehouse.operate import maintenance
from cdc_lakehouse.operate.maintenance import Maintained, Maintenance
from cdc_lakehouse.operate.state import conservation, table_health
from tests.kit.hand_sinks import CSV, HandSink
from tests.kit.kills import KillAtCall, KillAtCommit
from tests.kit.lakes import NewLake, TestLake, check_events, optimize, run_all

pytestmark = pytest.mark.spark


def maintain(lake: TestLake, days: int = 0, table: str | None = None, **options: Any) -> Maintained:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    done = Maintenance(lake.feed, lake.lake, lake.session, clock=lambda: later).maintain(table, **options)
    assert [each.deferred for each in done.tables if each.deferred is not None] == []
    return done


def check_cuts(lake: TestLake, count: int) -> None:
    """So many cuts are kept, each has the rows that it says, and the newest one shows the tables as they are."""
    tables, cuts = lake.tables(), lake.machinery("checkpoints")
    assert len({row["checkpoint_ts"] for row in cuts}) == count
    for row in cuts:
        table = tables[row["database"], row["table"]]
        assert len(table.scan(snapshot_id=row["snapshot_id"]).to_arrow()) == row["row_count"]
    newest = {row["snapshot_id"] for row in cuts if row["checkpoint_ts"] == lake.run().last_cut.checkpoint_ts}
    assert newest == {table.metadata.current_snapshot_id for table in tables.values()}


@pytest.mark.in_turn
@pytest.mark.usefixtures("no_orphans")
def test_cuts_are_removed_once_they_are_old(new_lake: NewLake) -> None:
    lake = new_lake(source=CSV, maintenance={"min_small_files": 2, "keep_cut_hours": 1})
    of_lake = lake.config.lake.model_copy(update={"cuts": CutsConfig(keep_all_hours=0, keep_daily_days=0)})
    lake.config = lake.config.model_copy(update={"lake": of_lake})
    lake.lake = Lake(of_lake)
    (sink := HandSink(lake.sink)).create("p", "u")
    for number in range(5):
        for table in ("p", "u"):
            changes = ("U", 10 * number + 5, 1, number), ("I", 10 * number + 6, 10 + number, 0)
            sink.put(table, 1, *changes, index=number + 1)
        sink.checkpoint(10 * number + 9)
        lake.go_through()
    rows, events = lake.all_rows(), lake.events_by_segment()
    with lake.without_changes():
        plan = {str(each.source): each for each in maintain(lake, dry_run=True).tables if each.source is not None}
    assert plan["d.p"].counts["compacted_files"] > 2 and plan["d.p"].after is None
    assert plan["d.p"].counts["expired_snapshots"] == 0, "cuts of the last hour are kept"
    maintain(lake)
    assert lake.all_rows() == rows and lake.events_by_segment() == events
    check_cuts(lake, 5)

    done = maintain(lake, days=2)
    assert done.removed["cut_rows"] == 8
    check_cuts(lake, 1)
    assert all(each.after is not None and each.after.snapshots <= 3 for each in done.tables if each.source is not None)
    assert len(lake.data_files()) == 2, "one of each table"
    with lake.without_changes():  # What is done is not done again.
        maintain(lake, 2, "d.p")
        run_all(lake.run())


@pytest.mark.in_turn
@pytest.mark.usefixtures("no_orphans")
def test_deletes_left_by_an_interrupted_one_are_removed(new_lake: NewLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of format version 2, since Iceberg takes vectors away itself; rows are counted without them meanwhile."""
    lake = new_lake(source=CSV, maintenance={"min_small_files": 2}, tables={"settings": {"d.p": {"format_version": 2}}})
    (sink := HandSink(lake.sink)).create("p")
    inserts, updates = [("I", 3, id, id) for id in range(5)], [("U", 15, 1, 10), ("I", 15, 8, 8)]
    for number, changes in enumerate([inserts, updates, [("D", 25, 2, 2)], [("D", 35, 3, 3)]]):
        if number == 3:
            with monkeypatch.context() as patched:
                rules = [rule for rule in maintenance.RULES if rule.work is not Maintenance.dangling]
                patched.setattr(maintenance, "RULES", rules)
                maintain(lake, table="d.p")
        sink.put("p", 1, *changes, index=number + 1)
        sink.checkpoint(10 * number + 9)
        lake.go_through()
        check_cuts(lake, number + 1)
        live_files(table := lake.tables()["d", "p"], dangling=(left := list[str]()))
        assert conservation(table).holds and bool(left) == (number == 3)
    maintain(lake, 2)
    live_files(table := lake.tables()["d", "p"], dangling=(left := list[str]()))
    assert not left and conservation(table).holds and table_health(table).deleted_rows == 0
    assert [row[:2] for row in lake.rows("p")] == [(0, 0), (1, 10), (4, 4), (8, 8)]


def test_superseded_events_are_found_a_batch_at_a_time(new_lake: NewLake) -> None:
    lake = new_lake(source=CSV)
    (sink := HandSink(lake.sink)).create("p")
    for day in range(3):
        sink.put("p", 1, *[("UI"[not day], 10 * day + id, id, day) for id in range(2, 6)], date=f"2026-06-1{day}")
    sink.checkpoint(29)
    lake.go_through()
    span, reader = KeyedSpan(0, 0, "d", "p", 0, 1 << 62, (("id", None),)), lake.run().events.reader(0, 1 << 61)
    given = [(span, ())], pa.array([], pa.string()), [reader], 2, 0, None
    blocks = [*maintenance._changes(*given)]
    assert {pa.ipc.open_stream(rows).read_all().num_rows for _, rows in blocks} <= {1, 2, 3}, "four rows have two tasks"
    found = [each for task in (0, 1) for each in maintenance._superseded(0, [own for own in blocks if own[0] == task])]
    assert sum(len(BitMap64.deserialize(positions)) for _, is_whole, positions in found if is_whole) == 8
    (path := Path(reader.files[1].path.removeprefix("file://"))).unlink()
    with pytest.raises(RuntimeError, match=f"warehouse cannot be read or written: .*{path.name}.*cdc-error"):
        list(maintenance._changes(*given))


class OtherWriter:
    """A feed with a held table `u` and one that is not, `p`, and what another writer does to its own tables."""

    def __init__(self, lake: TestLake) -> None:
        self.lake, self.sink = lake, HandSink(lake.sink)
        self.sink.begin("p", "u", rows=2)
        lake.go_through()
        (self.held,) = (id for id in lake.run().history.history.incarnations() if id.startswith("d.u"))

    def land(self, *u: tuple[Any, ...], at: int) -> None:
        """The file of `u` has other rows than it had, and `p` a new file."""
        self.sink.put("u", 2, *u)
        self.sink.put("p", 1, ("I", at - 1, at, at), index=at // 10)
        self.sink.checkpoint(at)

    def optimize(self, *names: str) -> None:
        for name in names:
            optimize(self.lake.session(), system_table(self.lake.name, name))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return [row[:2] for row in self.lake.rows(table)]


@pytest.mark.parametrize("expires", [False, True])
def test_file_that_changes_twice_while_its_table_is_held(new_lake: NewLake, expires: bool) -> None:
    """Keys of its first content that no later one has are gone; also where another writer has let the snapshot expire
    that has them: then the table is made anew, and the other one goes on."""
    feed = OtherWriter(new_lake(source=CSV))
    hold = Decision("hold", feed.held, "d", "u", datetime.datetime.now(datetime.UTC), "me", "a test")
    feed.lake.run().decisions.add(hold)
    for at, key in ((20, 3), (30, 4)):
        feed.land(("I", 4, 1, 1), ("I", 6, key, key), at=at)
        assert set(run_all(feed.lake.run()).applied.held) == {feed.held}
    if expires:
        feed.optimize("events")
    feed.lake.run().decisions.release(feed.held)
    feed.land(("I", 4, 1, 1), ("I", 6, 4, 4), ("I", 35, 9, 9), at=40)
    done = feed.lake.go_through()
    assert feed.rows("u") == [(1, 1), (4, 4), (9, 9)]
    assert feed.rows("p") == [(1, 1), (2, 2), (20, 20), (30, 30), (40, 40)]
    assert {each.life.id: each.rebuilt for each in done.applied.tables}[feed.held] == expires


@pytest.mark.in_turn
def test_batch_that_is_not_marked_is_decoded_again_in_its_place(new_lake: NewLake) -> None:
    """Also after another writer has rewritten `events`."""
    feed = OtherWriter(new_lake(source=CSV))
    feed.land(("I", 4, 1, 1), ("I", 6, 2, 20), at=20)
    with KillAtCall(Segments, "mark_decoded", 1, after=False)(feed.lake) as killed:
        feed.lake.go_through()
    assert killed.happened
    assert [row["state"] for row in feed.lake.machinery("segments")].count("landed") == 2
    feed.optimize("events", "segments", "checkpoints", "frontier", "events")
    feed.lake.go_through()
    assert len(feed.lake.machinery("events")) == 5
    check_events(feed.lake)
    assert feed.rows("u") == [(1, 1), (2, 20)]
    with feed.lake.without_changes():
        feed.lake.go_through()


def test_archived_copy_that_a_crash_cut_short_is_made_again(new_lake: NewLake) -> None:
    lake = OtherWriter(new_lake(source={**CSV, "archive": True})).lake
    copy = min(path for path in (lake.warehouse / f"cdc_{lake.name}" / "archive").rglob("*") if path.is_file())
    content = copy.read_bytes()
    copy.write_bytes(content[: len(content) // 2])
    lake.go_through(dates=frozenset(row["feed_date"] for row in lake.machinery("segments")))
    assert copy.read_bytes() == content


_RUNS, _TABLES, _WARM = 300, 300, 20


def _of_process(file: str) -> int:
    """The second word: of `io` the bytes read so far (the lake, the JVM's answers), of `statm` the pages in memory."""
    return int(Path("/proc/self", file).read_text(encoding="ascii").split()[1])


def _commits(lake: TestLake) -> list[str]:
    with KillAtCommit(1_000_000)(lake) as done:
        lake.go_through()
    return done.commits


@pytest.mark.long
def test_feed_after_hundreds_of_runs_costs_as_before(new_lake: NewLake) -> None:
    """With maintenance each fiftieth run: commits, bytes read, memory and threads."""
    lake = new_lake(source=CSV, maintenance={"keep_cut_hours": 1, "min_small_files": 5})
    (sink := HandSink(lake.sink)).create("p")
    rows, seen = dict[int, tuple[object, ...]](), list[tuple[int, int, int, int]]()
    for number in range(1, _RUNS + 1):
        at, id = 10 * number, number % 40
        sink.put("p", 1, ("U" if id in rows else "I", at, id, number), index=number)
        rows[id] = (id, number, f"p{at}")
        sink.checkpoint(at)
        before, commits = _of_process("io"), _commits(lake)
        read = _of_process("io") - before
        gc.collect()
        memory = _of_process("statm") * os.sysconf("SC_PAGE_SIZE") >> 20
        seen.append((len(commits), read, memory, len([*Path("/proc/self/task").iterdir()])))
        if number % 50 == 0:
            maintain(lake, 2)
            assert lake.rows("p") == sorted(rows.values())
            check_events(lake)
    parts = seen[_WARM : 2 * _WARM], seen[-_WARM:]
    commits, read, memory, threads = ([max(row[place] for row in part) for part in parts] for place in range(4))
    assert commits[0] == commits[1] > 4
    assert 0 < read[1] <= read[0] * 1.5, f"bytes that a run reads: {read[0]}, then {read[1]}"
    assert memory[1] - memory[0] < 100, f"MiB: {memory[0]}, then {memory[1]}"
    assert threads[1] <= threads[0] + 4, f"threads: {threads[0]}, then {threads[1]}"


@pytest.mark.long
def test_feed_of_hundreds_of_tables_commits_changed_ones_only(new_lake: NewLake) -> None:
    lake = new_lake(source=CSV)
    sink, names = HandSink(lake.sink), [f"t{number}" for number in range(_TABLES)]
    sink.create(*names)
    for name in names:
        sink.put(name, 1, ("I", 2, 1, 1), ("I", 3, 2, 2))
    sink.checkpoint(9)
    lake.go_through()
    expected = {name: [(1, 1, f"{name}2"), (2, 2, f"{name}3")] for name in names}
    assert lake.all_rows() == expected
    for name in (changed := names[::60]):
        sink.put(name, 1, ("U", 11, 1, 10), ("D", 12, 2, 2), index=2)
        expected[name] = [(1, 10, f"{name}11")]
    sink.checkpoint(19)
    commits = [each for each in _commits(lake) if each.startswith("update d.")]
    assert sorted(commits) == sorted(f"update d.{name}" for name in changed)
    assert lake.all_rows() == expected
    before = lake.metadata()
    assert _commits(lake) == [] and lake.metadata() == before
    cut = {(row["database"], row["table"]) for row in lake.machinery("checkpoints") if row["checkpoint_ts"]}
    assert cut == {("d", name) for name in names}
