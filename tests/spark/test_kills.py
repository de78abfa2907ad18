"""Processes that are killed: the next run continues from what is committed. Runs that are killed after each commit are
in `tests/scenarios/kills.txt`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.data_sets import apply_stage
from tests.kit.hand_sinks import COLUMNS, CREATE, CSV, PARTITIONED, T0, HandSink, put
from tests.kit.kills import hold_commit
from tests.kit.lakes import TestLake
from tests.kit.processes import command_of, descendants, in_session
from tests.kit.truth import Truth
from tests.kit.waiting import until

pytestmark = pytest.mark.spark


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
    environment = {**os.environ, "CDC_LAKEHOUSE_CONFIG": str(lake.config_path), "DAGSTER_HOME": str(home)}
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
