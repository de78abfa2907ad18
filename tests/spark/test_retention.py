"""What is not kept any longer is never what a table depends on: whatever goes, wherever that ends, and whatever the
source shows again afterwards, tables hold the rows that they should."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cdc_lakehouse
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables import lease
from cdc_lakehouse.operate import maintenance
from cdc_lakehouse.operate.maintenance import Maintained, Maintenance
from cdc_lakehouse.operate.retention import Removed
from cdc_lakehouse.operate.state import event_counts
from cdc_lakehouse.pipeline.reading import NotReadableError, fold_upto
from tests import LONG
from tests.kit.hand_sinks import COLUMNS, CREATE, CSV, T0, HandSink, row
from tests.kit.kills import KillAtCommit
from tests.kit.lakes import TestLake, run_all

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("no_orphans")]

_KEEP = {"keep_records_days": 1, "keep_archive_days": 1, "keep_segments_days": 1}
DATES = ("2026-06-10", "2026-06-11", "2026-06-12")


def later() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3)


def maintain(lake: TestLake, **options: Any) -> Maintained:
    done = Maintenance(lake.feed, lake.lake, lake.session, clock=later).maintain(**options)
    assert [each.actions.deferred for each in done.tables if each.actions.deferred is not None] == []
    return done


class Days:
    """A sink with a date a day. Each day updates the first row of `p` and `u`, and inserts one; `expected` is what the
    tables are to hold by then."""

    def __init__(self, new_lake: Callable[..., TestLake], days: int, **keep: int) -> None:
        self.lake = new_lake(source={**CSV, "archive": True}, maintenance=_KEEP | keep)
        self.sink = HandSink(self.lake.sink)
        for table in ("p", "u"):
            query = f"CREATE TABLE `{table}` (`id` BIGINT PRIMARY KEY)"
            self.sink.schema(table, 1, *COLUMNS, action=CREATE, query=query)
        self.expected: dict[str, dict[int, tuple[Any, ...]]] = {"p": {}, "u": {}}
        self.days = 0
        for _ in range(days):
            self.day()

    def day(self, *tables: str) -> None:
        date, at = f"2026-06-{10 + self.days}", 100 * (self.days + 1)
        for table in tables or ("p", "u"):
            lines = [row("I", table, at + 1, str(10 + self.days), "7", f'"{table}{at}"')]
            kind = "I" if 1 not in self.expected[table] else "U"
            lines.append(row(kind, table, at + 2, "1", str(self.days), f'"{table}{at}"'))
            self.sink.rows(f"d/{table}", 1, *lines, date=date)
            self.expected[table] |= {
                10 + self.days: (10 + self.days, 7, f"{table}{at}"),
                1: (1, self.days, f"{table}{at}"),
            }
        self.days += 1
        self.sink.checkpoint(at + 50)
        held = run_all(self.lake.run()).applied.held
        assert not held or "p" not in (tables or ("p",)), held

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        return {table: sorted(rows.values()) for table, rows in self.expected.items()}


def archived(lake: TestLake) -> list[Path]:
    root = Path(lake.config.lake.warehouse.removeprefix("file://"))
    return [path for path in (root / f"cdc_{lake.name}" / "archive").rglob("*") if path.is_file()]


def list_all(days: Days, **options: Any) -> Any:
    """A run that lists the whole sink."""
    return run_all(days.lake.run(clock=lambda: later() + datetime.timedelta(days=30), **options))


def test_what_a_table_has_passed_goes_and_nothing_is_taken_twice(new_lake: Callable[..., TestLake]) -> None:
    days = Days(new_lake, 3)
    lake, events = days.lake, days.lake.events_by_segment()
    before, copies = lake.metadata(), archived(lake)
    planned = maintain(lake, dry_run=True).removed
    assert (planned.segments, planned.archived_files) == (4, 6) and planned.archived_bytes > 0
    assert lake.metadata() == before and archived(lake) == copies, "a dry run changes nothing"
    assert maintain(lake).removed == planned
    assert maintain(lake).removed == Removed(), "what is done is not done again"
    assert archived(lake) == []
    assert sorted(each["kind"] for each in lake.machinery("segments")) == ["file", "file", "summary", "summary"]
    assert sum(each["events"] for each in lake.machinery("segments")) == sum(events.values())

    # All files are still in the sink: listed again they are known.
    assert lake.all_rows() == days.rows()
    done = list_all(days)
    assert (done.landed.new, done.landed.faults) == ((), ()) and lake.events_by_segment() == events
    # A date that nothing is known of any more is refused, the newest is decoded again.
    before = lake.metadata()
    with pytest.raises(SourceError, match="cannot be decoded again"):
        run_all(lake.run(dates=frozenset({DATES[1]})))
    assert lake.metadata() == before
    lake.go_through(dates=frozenset({DATES[2]}))
    assert lake.all_rows() == days.rows() and lake.events_by_segment() == events
    # What is written to such a date all the same is said.
    days.sink.rows("d/p", 1, row("I", "p", 120, "99", "1", '"late"'), index=2, date=DATES[0])
    (fault,) = list_all(days).landed.faults
    assert "1 files were written after" in fault and DATES[0] in fault

    # The log goes on, and a table is made anew from all of its events.
    days.day()
    assert maintain(lake).removed.segments == 2
    days.day()
    lake.go_through(rebuild=lake.names())
    assert lake.all_rows() == days.rows()


def test_a_table_that_was_left_out_meanwhile_gets_all_of_its_rows(new_lake: Callable[..., TestLake]) -> None:
    days = Days(new_lake, 2)
    lake = days.lake
    lake.configure(tables={"exclude": ["d.u"]})
    days.day()
    # Another file of the last date that is known of `u`.
    days.sink.rows("d/u", 1, row("I", "u", 205, "77", "1", '"u205"'), index=2, date=DATES[1])
    days.expected["u"][77] = (77, 1, "u205")
    days.day()
    # Of `u` its first date goes, which it had passed; what is behind its newest date is not taken for known.
    assert maintain(lake).removed.segments == 3 + 1
    lake.configure(tables={})
    lake.go_through()
    assert lake.all_rows() == days.rows()
    # Its segments are of the newest batch until the next one.
    days.day()
    assert maintain(lake).removed.segments > 2
    list_all(days)
    assert lake.all_rows() == days.rows()


def test_what_is_in_quarantine_stays(new_lake: Callable[..., TestLake]) -> None:
    days = Days(new_lake, 1)
    lake = days.lake
    bad = days.sink.rows("d/p", 1, row("I", "p", 160, "50", "1", '"p160"'), "nonsense", index=2)
    days.sink.checkpoint(170)
    assert run_all(lake.run()).applied.held
    days.day("u")
    days.day("u")
    removed = maintain(lake).removed
    assert (removed.segments, removed.archived_files) == (2, 4), "all copies but that with the bad line"
    # Mended, from the source: the file is another one.
    bad.write_bytes(bad.read_bytes().replace(b"nonsense\r\n", b""))
    days.expected["p"][50] = (50, 1, "p160")
    list_all(days)
    assert lake.all_rows() == days.rows()


def test_retention_that_is_killed_anywhere(new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_is_gone", lambda _: True)  # The process of the killed one.
    monkeypatch.setattr(maintenance, "_PATIENCE", datetime.timedelta(0))
    monkeypatch.setattr(Maintenance, "_targets", lambda _: [])  # What is done to tables is killed elsewhere.
    days = Days(new_lake, 3)
    lake, events = days.lake, days.lake.events_by_segment()
    number = 0
    while True:
        number += 1
        with KillAtCommit(number)(lake) as killed:
            try:
                maintain(lake)
            except AssertionError as error:
                raise RuntimeError("the run is killed before this commit") from error
        assert lake.all_rows() == days.rows(), killed.commits
        if LONG:
            list_all(days)
            assert lake.all_rows() == days.rows() and lake.events_by_segment() == events
        if not killed.happened:
            break
    assert number > 3
    list_all(days)
    days.day()
    assert lake.all_rows() == days.rows()
    assert all(count == lake.events_by_segment()[segment] for segment, count in events.items())


# --- Superseded events ---


def superseded(done: Maintained) -> int:
    return sum(each.actions.superseded_events for each in done.tables)


def test_superseded_events_go_and_tables_are_the_same(new_lake: Callable[..., TestLake]) -> None:
    days = Days(new_lake, 4, keep_superseded_days=1)
    lake, cut = days.lake, T0 + 450
    # Of three dates the segments are gone. The first two changes of row 1 are superseded there, in each table.
    assert superseded(maintain(lake)) == 4
    assert superseded(maintain(lake)) == 0, "there is nothing new to be looked at"
    left = (each["commit_ts"] - T0 for each in lake.machinery("events") if each["table_name"] == "p")
    assert sorted(left) == [101, 201, 301, 302, 401, 402]
    counts = event_counts(lake.lake, lake.name)
    assert (counts.of_segments, counts.in_table, counts.superseded) == (16, 12, 4)
    lake.go_through(rebuild=lake.names())
    assert lake.all_rows() == days.rows()
    # Rows as of a moment before are not known any more, but for cuts.
    assert cdc_lakehouse.read(lake.config, "d.p", as_of=cut).num_rows == 5
    with pytest.raises(NotReadableError, match=rf"events of then were removed.*as of {cut} .* or later"):
        fold_upto(lake.run(), next(iter(lake.run().history.history.incarnations().values())), cut - 1)

    days.day()
    assert superseded(maintain(lake, dry_run=True)) == 0, "the segments of the next date are there yet"
    assert superseded(maintain(lake)) == 2
    days.day()
    lake.go_through(rebuild=lake.names())
    assert lake.all_rows() == days.rows()
