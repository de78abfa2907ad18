"""Processes that the system kills while they make a commit, each at a later one: what a `finally` would mend stays."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.data_sets import apply_stage
from tests.kit.dumped_truth import dump_of
from tests.kit.kills import hold_commit
from tests.kit.lakes import TestLake, check_events
from tests.kit.processes import in_session
from tests.kit.truth import Truth
from tests.kit.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.long]


def killed_at_each_commit(lake: TestLake, home: Path, *command: str) -> int:
    """Run a command in processes of which each is killed one commit later, until one ends; gives how many were."""
    program = [str(Path(sys.executable).with_name("cdc-lakehouse")), *command]
    environment = {**os.environ, "CDC_LAKEHOUSE_CONFIG": str(lake.config_path), "DAGSTER_HOME": str(home)}
    for number in itertools.count(1):
        log = home.with_suffix(".log")
        with hold_commit(lake, number) as is_there, log.open("wb") as out:
            process = subprocess.Popen(program, env=environment, stdout=out, stderr=out, start_new_session=True)
            try:
                until(lambda: is_there() or process.poll() is not None)  # noqa: B023 - asked here alone
                ended = process.poll()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
            until(lambda: not in_session(process.pid))  # noqa: B023
        if ended is not None:
            assert ended == 0, log.read_text()
            return number - 1
    raise AssertionError


@pytest.mark.parametrize("name", ["rename_swap", "drop_recreate"])
def test_processes_killed_at_each_commit_lose_nothing(
    name: str, data_sets: Path, new_lake: Callable[..., TestLake], tmp_path: Path
) -> None:
    """A dump is loaded, a log of DDL applied, then small files are compacted."""
    truth = Truth(data_sets / "canal-json" / name)
    last, middle = len(truth.stages) - 1, (len(truth.stages) - 1) // 2
    dump_of(truth, middle, tmp_path / "dump", rows_per_file=3)
    initial = {"type": "dumpling", "uri": str(tmp_path / "dump")}
    lake = new_lake(
        source={**truth.source, "initial": initial},
        policy={"ddl": {"drop": "purge"}},
        maintenance={"min_small_files": 2, "max_delete_ratio": 0.01},
    )
    apply_stage(truth.dataset, last, lake.sink)
    assert killed_at_each_commit(lake, tmp_path / "runs", "run") > 6
    lake.check(truth.tables(last))
    check_events(lake)
    assert killed_at_each_commit(lake, tmp_path / "maintenance", "maintain") > 0
    lake.check(truth.tables(last))
    check_events(lake)
    before = lake.metadata()
    lake.go_through()
    assert lake.metadata() == before
