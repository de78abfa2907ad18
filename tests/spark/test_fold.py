"""current(T) = fold(events up to T): for every T, every order of arrival, every restart, every kill."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, note, settings
from hypothesis import strategies as st

from tests import LONG
from tests.kit.kills import KillAtCommit
from tests.kit.lakes import TestLake, run_all
from tests.model.changefeed import DATABASE, Changefeed
from tests.model.fold import Column, Ddl, Entry, Kind, RowChange, Values, fold, seen
from tests.model.history import Flush, Midnight, Restart, Run, Step, new_clock, scenarios

pytestmark = pytest.mark.spark

# `make test-long` has other examples each time; as many as one likes.
SPARK_EXAMPLES = settings(
    max_examples=int(os.environ.get("CDC_LAKEHOUSE_EXAMPLES", 300 if LONG else 2)),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    # An example takes seconds: to look for a smaller one that fails needs hundreds, and is for those who ask for it.
    phases=set(Phase) if LONG else {Phase.explicit, Phase.generate},
)


@pytest.mark.parametrize("csv", [False, True], ids=["canal-json", "csv"])
@SPARK_EXAMPLES
@given(steps=scenarios(), old_values=st.booleans())
def test_current_is_the_fold_at_every_cut(
    csv: bool, steps: list[Step], old_values: bool, new_lake: Callable[..., TestLake]
) -> None:
    source = {"protocol": "csv", "csv": {"include-commit-ts": True, "output-old-value": old_values}} if csv else {}
    lake = new_lake(source=source)
    feed = Changefeed(lake.sink, csv, old_values)
    for step in steps:
        note(str(step))
        match step:
            case Run():
                run(lake, feed, step)
            case Flush():
                feed.flush(step.lines)
            case Midnight():
                feed.date += 1
            case Restart():
                feed.restart()
            case _:
                feed.send(step)

    # The same files, seen for the first time when all of them are there; then each date once more.
    late = new_lake(source=source)
    late.sink.symlink_to(lake.sink)
    run_all(late.run())
    check(late, feed.entries, feed.checkpoint_ts)
    dates = {row["feed_date"] for row in late.machinery("segments")} - {None}
    run_all(late.run(dates=frozenset(dates)))
    check(late, feed.entries, feed.checkpoint_ts)


@pytest.mark.long
@SPARK_EXAMPLES
@given(steps=scenarios(excluding=True))
def test_a_table_that_was_left_out_for_some_runs_is_the_fold(
    steps: list[Step], new_lake: Callable[..., TestLake]
) -> None:
    """Whatever has happened to it meanwhile: rows, TRUNCATE, DROP, other types, another key."""
    lake = new_lake()
    feed = Changefeed(lake.sink)
    for step in steps:
        note(str(step))
        if isinstance(step, Run):
            run(lake, feed, step)
        else:
            assert isinstance(step, Entry)
            feed.send(step)


def run(lake: TestLake, feed: Changefeed, step: Run) -> None:
    if not feed.entries:
        return
    upto = feed.advance(step.behind)
    lake.configure(tables={"exclude": [f"{DATABASE}.{step.excluded}"] if step.excluded else []})
    if step.kill:
        is_first = not lake.metadata()
        with step.kill(lake) as killed:
            run_all(lake.run())
        assert killed.happened or not is_first
        event(f"killed: {killed.happened}")
    done = run_all(lake.run())
    assert not done.applied.held
    assert done.published.cut.checkpoint_ts == upto
    check(lake, feed.entries, upto, step.excluded)


def check(lake: TestLake, entries: list[Entry], upto: int, excluded: str | None = None) -> None:
    expected = {(DATABASE, name): table.typed() for name, table in fold(entries, upto).items() if name != excluded}
    tables = {name: table for name, table in lake.tables().items() if name != (DATABASE, excluded)}
    assert {name: seen(table.schema(), table.scan()) for name, table in tables.items()} == expected
    # The same for those who read the published cut.
    cut = [row for row in lake.machinery("checkpoints") if row["checkpoint_ts"] == upto]
    assert {(row["database"], row["table"]) for row in cut} == set(expected)
    for row in cut:
        name, snapshot = (row["database"], row["table"]), row["snapshot_id"]
        assert row["row_count"] == len(expected[name][1])
        if snapshot is not None:
            scan = tables[name].scan(snapshot_id=snapshot)
            assert seen(scan.projection(), scan) == expected[name]


def test_a_date_from_before_a_truncate_is_decoded_again(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake()
    feed = Changefeed(lake.sink)
    feed.send(Ddl(450_000_000_000_000_000, "t0", "create", columns=(Column("id", "int"),), key=("id",)))
    feed.send(RowChange(450_000_000_001_000_000, "t0", None, {"id": "1"}))
    feed.send(Ddl(450_000_000_002_000_000, "t0", "truncate"))
    run(lake, feed, Run(0, None))
    run_all(lake.run(dates=frozenset({"2026-01-01"})))
    check(lake, feed.entries, feed.checkpoint_ts)


@pytest.mark.parametrize("purge", [False, True])
def test_dropped_and_truncated_tables_come_back_as_they_were(purge: bool, new_lake: Callable[..., TestLake]) -> None:
    """Also those whose Iceberg tables are gone, killed at some commits, with dates decoded again and all rebuilt."""
    lake = new_lake(policy={"ddl": {"drop": "purge"}} if purge else {})
    feed, clock = Changefeed(lake.sink), new_clock()

    def row(table: str, before: Values | None, after: Values | None, *partial: str) -> None:
        feed.send(RowChange(next(clock), table, before, after, frozenset(partial)))

    def ddl(table: str, kind: Kind, **parts: Any) -> None:
        feed.send(Ddl(next(clock), table, kind, **parts))

    columns = (Column("id", "int"), Column("v", "varchar(20)"))
    for name in ("t0", "t1"):
        ddl(name, "create", columns=columns, key=("id",))
        row(name, None, {"id": "1", "v": "a"})
        row(name, None, {"id": "2", "v": "b"})
        ddl(name, "add", column=Column("c0", "int", "7"))
        row(name, {"id": "1", "v": "a", "c0": "7"}, {"id": "1", "v": "a", "c0": "8"}, "v")
        ddl(name, "rekey", key=("v",))
        row(name, None, {"id": "3", "v": "c", "c0": None})
    run(lake, feed, Run(0, None))
    ddl("t0", "drop")
    ddl("t1", "truncate")
    row("t1", None, {"id": "9", "v": "z", "c0": "9"})
    run(lake, feed, Run(0, None))
    ddl("t0", "recover", new_name="t0")
    ddl("t1", "recover", new_name="Table 2")
    row("t0", {"id": "2", "v": "b", "c0": "7"}, None)
    row("Table 2", None, {"id": "4", "v": "d", "c0": "1"})
    upto = feed.advance(0)
    for commit in (4, 2, 3):
        with KillAtCommit(commit)(lake) as killed:
            run_all(lake.run())
        assert killed.happened
    run(lake, feed, Run(0, None))
    assert feed.checkpoint_ts == upto
    run_all(lake.run(dates=frozenset({"2026-01-01"})))
    check(lake, feed.entries, feed.checkpoint_ts)
    run_all(lake.run(rebuild=lake.names()))
    check(lake, feed.entries, feed.checkpoint_ts)
    # Which rows they were is known by the table that had them.
    lake.configure(tables={"exclude": [f"{DATABASE}.t1"]})
    (reason,) = run_all(lake.run()).applied.held.values()
    assert "FLASHBACK" in reason and "the configuration takes" in reason
