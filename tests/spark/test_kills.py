"""Runs that are killed: the next one goes on from what is committed; nothing is lost, nothing is there twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.schema import SourceColumn
from tests import LONG
from tests.kit.data_sets import apply_stage
from tests.kit.hand_sinks import (
    ADD_COLUMN,
    COLUMNS,
    CREATE,
    CSV,
    DROP,
    EXCHANGE,
    ID,
    MODIFY,
    PARTITIONED,
    RENAME,
    T0,
    TRUNCATE,
    HandSink,
    integer,
    put,
    text,
)
from tests.kit.kills import KillAtCommit, hold_commit, kill_everywhere, kill_further_and_further
from tests.kit.lakes import TestLake, run_all
from tests.kit.processes import command_of, descendants, in_session
from tests.kit.truth import Truth
from tests.kit.waiting import until

pytestmark = pytest.mark.spark

SEVEN = SourceColumn("n", integer("n").type, default="7")


def create(sink: HandSink) -> None:
    sink.schema("p", 1, *COLUMNS, action=CREATE, query=PARTITIONED)
    sink.schema("u", 2, *COLUMNS, action=CREATE, query="CREATE TABLE `u` LIKE `p`")
    put(sink, "p", 1, ("I", 3, 1, 1), ("I", 4, 2, 2), ("I", 5, 11, 3))
    put(sink, "u", 2, ("I", 6, 1, 10), ("I", 7, 3, 30))


def exchange(sink: HandSink) -> None:
    swap = "ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `d`.`u`"
    sink.schema("p", 20, *COLUMNS, action=EXCHANGE, query=swap)
    sink.schema("u", 20, *COLUMNS)
    put(sink, "p", 20, ("U", 21, 3, 31), ("D", 22, 1, 10), ("I", 23, 4, 4))
    put(sink, "u", 20, ("U", 24, 2, 22))


def late_bad_replaced_and_altered(sink: HandSink) -> None:
    """A row of before the exchange, a line that is none, a file with other rows than it had; then statements."""
    put(sink, "u", 2, ("I", 8, 5, 5), index=2)
    sink.rows("d/u", 20, "garbage", index=2)
    put(sink, "p", 20, ("U", 21, 3, 32), ("D", 22, 1, 10), ("I", 23, 4, 4), ("I", 25, 12, 5))
    retyped = (ID, text("v"), text("s"))
    sink.schema("p", 30, *retyped, action=MODIFY, query="ALTER TABLE `p` MODIFY COLUMN `v` VARCHAR(50)")
    wide = (*COLUMNS, SEVEN)
    sink.schema("u", 31, *wide, action=ADD_COLUMN, query="ALTER TABLE `u` ADD COLUMN `n` INT DEFAULT 7")
    sink.schema("w", 32, *wide, action=RENAME, query="RENAME TABLE `d`.`u` TO `d`.`w`")


def truncate_and_drop(sink: HandSink) -> None:
    sink.schema("p", 40, ID, text("v"), text("s"), action=TRUNCATE, query="TRUNCATE TABLE `p`")
    wide = (*COLUMNS, SEVEN)
    sink.schema("w", 41, *wide, action=DROP, query="DROP TABLE `d`.`w`")


STAGES: list[tuple[Callable[[HandSink], None], dict[str, list[tuple[Any, ...]]]]] = [
    (create, {"p": [(1, 1, "p3"), (2, 2, "p4"), (11, 3, "p5")], "u": [(1, 10, "u6"), (3, 30, "u7")]}),
    (exchange, {"p": [(3, 31, "p21"), (4, 4, "p23"), (11, 3, "p5")], "u": [(1, 1, "p3"), (2, 22, "u24")]}),
    (
        late_bad_replaced_and_altered,
        {
            "p": [(3, "32", "p21"), (4, "4", "p23"), (5, "5", "u8"), (11, "3", "p5"), (12, "5", "p25")],
            "w": [(1, 1, "p3", 7), (2, 22, "u24", 7)],
        },
    ),
    (truncate_and_drop, {"p": []}),
]
MACHINERY = {"checkpoints", "events", "frontier", "schema_history", "segments"}


def test_one_history_killed_after_each_commit(new_lake: Callable[..., TestLake]) -> None:
    """With all kinds of commit: tables made, written, evolved, rewritten, renamed, emptied and purged; events appended,
    replaced and moved; and all that the machinery writes."""
    lake = new_lake(source=CSV, policy={"quarantine": "skip", "ddl": {"drop": "purge"}})
    sink = HandSink(lake.sink)
    hit: Counter[str] = Counter()
    for at, (stage, expected) in zip((19, 29, 39, 49), STAGES, strict=True):
        stage(sink)
        sink.checkpoint(at)
        # After each commit of all stages in `make test-long`.
        kill = kill_everywhere if LONG or stage in (create, truncate_and_drop) else kill_further_and_further
        hit.update(kill(lake, lambda: run_all(lake.run())))
        assert lake.all_rows() == expected
        # A row that an exchange moves is deleted and inserted by one line of its segment.
        events = [(event["segment"], event["line"], event["op"]) for event in lake.machinery("events")]
        assert len(set(events)) == len(events)
        before = lake.metadata()
        run_all(lake.run())
        assert lake.metadata() == before
    wanted = {f"update {name}" for name in MACHINERY} | {
        f"{what} d.{table}" for what in ("insert", "update") for table in "pu"
    }
    if LONG:
        wanted |= {"update quarantine", "rename d.w", "update d.w"}
    assert wanted <= set(hit), wanted - set(hit)


def test_a_backlog_goes_on_behind_the_batches_that_are_decoded(
    data_sets: Path, new_lake: Callable[..., TestLake]
) -> None:
    truth = Truth(data_sets / "canal-json/rename_swap")
    lake = new_lake(source={**truth.source, "max_files": 2})
    last = len(truth.stages) - 1
    apply_stage(truth.dataset, last, lake.sink)
    with KillAtCommit(10)(lake) as killed:
        run_all(lake.run())
    assert killed.happened
    segments = {row["segment"]: row for row in lake.machinery("segments")}
    decoded = {name: row for name, row in segments.items() if row["state"] == "decoded"}
    assert 2 <= len(decoded) < len(segments)
    done = run_all(lake.run())
    assert not done.applied.held
    lake.check(truth.tables(last))
    assert lake.events_by_segment() == truth.events_by_segment(last)
    after = {row["segment"]: row for row in lake.machinery("segments")}
    assert {name: after[name] for name in decoded} == decoded
    assert len({row["batch"] for row in after.values()}) > 2


def test_a_process_that_is_killed(data_sets: Path, new_lake: Callable[..., TestLake], tmp_path: Path) -> None:
    """A real one, when it has appended its events: its JVM ends with it, and the next run does what is left."""
    truth = Truth(data_sets / "canal-json/rename_swap")
    lake = new_lake(source=truth.source)
    last = len(truth.stages) - 1
    apply_stage(truth.dataset, last, lake.sink)
    environment = {**os.environ, "CDC_LAKEHOUSE_CONFIG": str(lake.sink.parent / "lakehouse.yaml")}
    command = [str(Path(sys.executable).with_name("cdc-lakehouse")), "run"]
    with (tmp_path / "log").open("wb") as log:
        # In a session of its own, which its JVM is in too.
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: lake.machinery("events") or process.poll() is not None)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL, (tmp_path / "log").read_text()
        until(lambda: not in_session(process.pid))
        assert not in_session(process.pid), "the JVM outlives its run"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert lake.events_by_segment() == truth.events_by_segment(last)
    assert not lake.machinery("checkpoints")
    done = lake.go_through()
    assert done.published.cut.checkpoint_ts == truth.stages[last]["checkpoint_ts"]
    lake.check(truth.tables(last))
    assert lake.events_by_segment() == truth.events_by_segment(last)


def test_follow_continues_after_its_jvm_dies_and_ends_with_its_group(
    new_lake: Callable[..., TestLake], tmp_path: Path
) -> None:
    """The JVM dies between two passes, then while one makes a commit. SIGTERM comes to the whole group in a pass."""
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    sink.schema("p", 1, *COLUMNS, action=CREATE, query=PARTITIONED)

    def write(number: int) -> None:
        put(sink, "p", 1, ("I", 10 * number, number, number), index=number)
        sink.checkpoint(10 * number)

    def published(number: int) -> bool:
        return process.poll() is not None or lake.run().checkpoints.last().checkpoint_ts == T0 + 10 * number

    def kill_jvm() -> None:
        (jvm,) = [each for each in descendants(process.pid) if "SparkSubmit" in command_of(each)]
        os.kill(jvm, signal.SIGKILL)

    home = tmp_path / "home"
    environment = {
        **os.environ, "CDC_LAKEHOUSE_CONFIG": str(lake.config_path), "DAGSTER_HOME": str(home),
    }  # fmt: skip
    command = [str(Path(sys.executable).with_name("cdc-lakehouse")), "run", "--follow", "--interval", "0.5"]
    log = tmp_path / "log"
    write(1)
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        until(lambda: published(1))
        kill_jvm()
        write(2)
        until(lambda: published(2))
        with hold_commit(lake, 3) as is_there:
            write(3)
            until(lambda: is_there() or process.poll() is not None)
            kill_jvm()
        write(4)
        until(lambda: published(4))
        assert lake.all_rows() == {"p": [(number, number, f"p{10 * number}") for number in (1, 2, 3, 4)]}
        with hold_commit(lake, 3) as is_there:
            write(5)
            until(lambda: is_there() or process.poll() is not None)
            os.killpg(process.pid, signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()
        assert published(5) and lake.run().checkpoints.last().checkpoint_ts == T0 + 50, "the pass is whole"
        until(lambda: not in_session(process.pid))
        assert not in_session(process.pid), "the JVM outlives its run"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("name", ["random_3", "rename_swap", "drop_recreate", "odd_names"])
def test_data_sets_killed_after_each_commit(name: str, data_sets: Path, new_lake: Callable[..., TestLake]) -> None:
    truth = Truth(data_sets / "canal-json" / name)
    lake = new_lake(source=truth.source)
    for stage in range(len(truth.stages)):
        apply_stage(truth.dataset, stage, lake.sink)
        assert kill_everywhere(lake, lambda: run_all(lake.run()))
        lake.check(truth.tables(stage))
        assert lake.events_by_segment() == truth.events_by_segment(stage)
