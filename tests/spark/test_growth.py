"""Feeds that are old or wide: what a run reads, commits and keeps does not grow with runs, only with changed tables."""

from __future__ import annotations

import datetime
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_lakehouse.operate.maintenance import Maintenance
from tests.kit.hand_sinks import COLUMNS, CREATE, CSV, HandSink, put
from tests.kit.kills import KillAtCommit
from tests.kit.lakes import TestLake, check_events

pytestmark = [pytest.mark.spark, pytest.mark.long]

_RUNS, _TABLES, _WARM = 300, 300, 20


def _days_later() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)


def _bytes_read() -> int:
    """By this process so far: files of the lake, and what the JVM answers."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def _resident_mib() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def _commits(lake: TestLake) -> list[str]:
    with KillAtCommit(1_000_000)(lake) as done:
        lake.go_through()
    return done.commits


def test_feed_after_hundreds_of_runs_costs_as_before(new_lake: Callable[..., TestLake]) -> None:
    """With maintenance each fiftieth run: commits, bytes read, memory and threads."""
    lake = new_lake(source=CSV, maintenance={"keep_cut_hours": 1, "min_small_files": 5})
    sink = HandSink(lake.sink)
    sink.schema("p", 1, *COLUMNS, action=CREATE, query="CREATE TABLE `p` (`id` BIGINT PRIMARY KEY)")
    rows: dict[int, tuple[object, ...]] = {}
    seen: list[tuple[int, int, int, int]] = []
    for number in range(1, _RUNS + 1):
        at, id = 10 * number, number % 40
        put(sink, "p", 1, ("U" if id in rows else "I", at, id, number), index=number)
        rows[id] = (id, number, f"p{at}")
        sink.checkpoint(at)
        before = _bytes_read()
        commits = _commits(lake)
        read = _bytes_read() - before
        threads = sum(1 for _ in Path("/proc/self/task").iterdir())
        seen.append((len(commits), read, _resident_mib(), threads))
        if number % 50 == 0:
            Maintenance(lake.feed, lake.lake, lake.session, clock=_days_later).maintain()
            assert lake.rows("p") == sorted(rows.values())
            check_events(lake)
    early, late = seen[_WARM : 2 * _WARM], seen[-_WARM:]
    commits, read, memory, threads = (
        tuple(max(row[place] for row in part) for part in (early, late)) for place in range(4)
    )
    assert commits[0] == commits[1] > 4
    assert 0 < read[1] <= read[0] * 1.5, f"bytes that a run reads: {read[0]}, then {read[1]}"
    assert memory[1] - memory[0] < 100, f"MiB: {memory[0]}, then {memory[1]}"
    assert threads[1] <= threads[0] + 4, f"threads: {threads[0]}, then {threads[1]}"


def test_feed_of_hundreds_of_tables_commits_changed_ones_only(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink, names = HandSink(lake.sink), [f"t{number}" for number in range(_TABLES)]
    for name in names:
        sink.schema(name, 1, *COLUMNS, action=CREATE, query=f"CREATE TABLE `{name}` (`id` BIGINT PRIMARY KEY)")
        put(sink, name, 1, ("I", 2, 1, 1), ("I", 3, 2, 2))
    sink.checkpoint(9)
    lake.go_through()
    expected = {name: [(1, 1, f"{name}2"), (2, 2, f"{name}3")] for name in names}
    assert lake.all_rows() == expected
    changed = names[::60]
    for name in changed:
        put(sink, name, 1, ("U", 11, 1, 10), ("D", 12, 2, 2), index=2)
        expected[name] = [(1, 10, f"{name}11")]
    sink.checkpoint(19)
    assert sorted(each for each in _commits(lake) if each.startswith("update d.")) == sorted(
        f"update d.{name}" for name in changed
    )
    assert lake.all_rows() == expected
    before = lake.metadata()
    assert _commits(lake) == [] and lake.metadata() == before
    cut = {(row["database"], row["table"]) for row in lake.machinery("checkpoints") if row["checkpoint_ts"]}
    assert cut == {("d", name) for name in names}
