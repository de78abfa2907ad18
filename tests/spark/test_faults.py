"""Bad input: a clear reason, other tables go on, and nothing is lost once it is mended."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse import duckdb_sql
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn
from cdc_lakehouse.decoders.registry import FILE_FORMATS
from cdc_lakehouse.lake.current import update_job
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit.data_sets import apply_stage
from tests.kit.hand_sinks import CREATE, CSV, ID, HandSink, row
from tests.kit.jobs import let_spark_do_all
from tests.kit.kills import KillAtCommit
from tests.kit.lakes import TestLake, run_all
from tests.kit.truth import Truth

pytestmark = pytest.mark.spark

T0, T1 = ("test", "t0"), ("test", "t1")


class Faulty:
    """A changefeed of two tables, t0 and t1, in four stages; faults are put into t1 at stage 2."""

    def __init__(self, data_sets: Path, lake: TestLake) -> None:
        # The rows are sound in all of its files; only its metadata of stage 2 is not.
        self.truth = Truth(data_sets / "canal-json" / "fault_metadata_backwards")
        self.lake = lake

    @property
    def sink(self) -> Path:
        return self.lake.sink

    def stage(self, number: int) -> None:
        apply_stage(self.truth.dataset, number, self.sink)
        checkpoint = self.truth.stages[number]["checkpoint_ts"]
        (self.sink / "metadata").write_text(json.dumps({"checkpoint-ts": checkpoint}))

    def new_file(self) -> Path:
        """A data file of t1 that only stage 2 brings."""
        stages = json.loads((self.truth.dataset / "stages.json").read_text())["stages"]
        before, after = ({entry["path"] for entry in stages[number]["files"]} for number in (1, 2))
        return self.sink / min(path for path in after - before if re.search(r"test/t1/.*CDC\d+\.json$", path))

    def run(self) -> Steps:
        return run_all(self.lake.run())

    def check(self, number: int, *, t1: int | None = None) -> None:
        """t0 as of a stage; t1 as of the same, or as of an earlier one."""
        expected = self.truth.tables(number)
        if t1 is not None:
            expected[T1] = self.truth.tables(t1)[T1]
        self.lake.check(expected)

    def check_held(self, done: Steps, *words: str) -> None:
        """At stage 2 t1 stays at stage 1, and the reason is told."""
        (reason,) = done.applied.held.values()
        for word in words:
            assert word in reason, reason
        self.check(2, t1=1)
        assert T1 not in {(row.database, row.table) for row in done.published.rows}

    def check_mended(self) -> None:
        done = self.run()
        assert not done.applied.held
        assert not done.run.quarantine.open()
        self.check(2)


@pytest.fixture
def faulty(data_sets: Path, new_lake: Callable[..., TestLake]) -> Faulty:
    faulty = Faulty(data_sets, new_lake(source={"date_separator": "none"}))
    faulty.stage(1)
    faulty.run()
    faulty.check(1)
    faulty.stage(2)
    return faulty


def test_a_table_whose_rows_end_the_worker_waits_alone(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    work = update_job.run_tasks

    def dying(properties: Any, batches: Any) -> Any:
        kept = list(batches)
        if any(b"test.t1" in plan for batch in kept for plan in batch.column("plan").drop_null().to_pylist()):
            os.kill(os.getpid(), signal.SIGKILL)
        return work(properties, iter(kept))

    with monkeypatch.context() as patch:
        let_spark_do_all(patch)
        patch.setattr(update_job, "run_tasks", dying)
        done = faulty.run()
    faulty.check_held(done, "fails when this table alone is updated", "a Python worker ended")
    faulty.check_mended()


def test_row_without_memory_to_read_it_holds_its_table_alone(
    new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    value = SourceColumn("v", ColumnType.of("LONGTEXT"))
    for table, length in (("large", 12 << 20), ("small", 1)):
        sink.schema(table, 1, ID, value, action=CREATE)
        sink.rows(f"d/{table}", 1, row("I", table, 10, "1", f'"{"x" * length}"'))
    sink.checkpoint(100)
    with monkeypatch.context() as patch:
        patch.setattr(duckdb_sql, "_MEMORY", "30MB")
        patch.setattr(duckdb_sql, "_idle", {})
        done = run_all(lake.run())
    assert list(done.applied.held) == ["d.large#1"] and "Out of Memory" in str(done.applied.held)
    assert lake.rows("small") == [(1, "x")]
    lake.go_through()
    assert lake.rows("large") == [(1, "x" * (12 << 20))]


def test_a_file_that_ends_the_worker_waits_alone(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    form = FILE_FORMATS["canal-json"]

    def dying(connection: Any, content: Any, context: Any) -> Any:
        if context.table == "t1":
            os.kill(os.getpid(), signal.SIGKILL)
        return form.decode(connection, content, context)

    with monkeypatch.context() as patch:
        let_spark_do_all(patch)
        patch.setitem(FILE_FORMATS, "canal-json", replace(form, decode=dying))  # pyright: ignore[reportArgumentType]
        done = faulty.run()
    faulty.check_held(done, "Spark fails when it decodes this segment alone", "a Python worker ended")
    assert {row.error_class for row in done.run.quarantine.open()} == {"UnreadableSegment"}
    faulty.check_mended()


@pytest.mark.parametrize("killed", [False, True], ids=["ends", "is killed"])
def test_a_file_that_cannot_be_read_by_one_run(
    killed: bool, data_sets: Path, new_lake: Callable[..., TestLake], tmp_path: Path
) -> None:
    """By the policy its table goes on without it. It is decoded later, under a number of its own: also where the run
    before has appended the other files and was killed before it said so."""
    faulty = Faulty(data_sets, new_lake(source={"date_separator": "none"}, policy={"quarantine": "skip"}))
    faulty.stage(1)
    faulty.run()
    faulty.stage(2)
    path = faulty.new_file()
    steps = Steps(faulty.lake.run())
    _ = steps.landed
    path.rename(tmp_path / "away")
    path.symlink_to(path)
    if killed:
        with KillAtCommit(5)(faulty.lake) as kill:
            _ = steps.published
        assert kill.happened and kill.commits[-2:] == ["update segments", "update events"]
    else:
        assert not steps.applied.held
    path.unlink()
    (tmp_path / "away").rename(path)
    done = faulty.run()
    assert not done.applied.held
    faulty.check(2)
    assert faulty.lake.events_by_segment() == faulty.truth.events_by_segment(2)


FAULT_SETS = ["fault_garbage_line", "fault_index_gap", "fault_missing_schema", "fault_truncated_line"]


@pytest.mark.parametrize(
    ("name", "stages"),
    [*((name, 2) for name in FAULT_SETS), *((name, None) for name in ("fault_index_gap", "fault_missing_schema"))],
)
def test_fault_sets(name: str, stages: int | None, data_sets: Path, new_lake: Callable[..., TestLake]) -> None:
    """Tables that the fault does not touch are right at each stage; the touched one is held, with the file named."""
    truth = Truth(data_sets / "canal-json" / name)
    (fault,) = truth.expected["faults"]
    touched = tuple(fault["path"].split("/")[:2])
    lake = new_lake(source=truth.source)
    for stage in range(len(truth.stages)) if stages is None else [stages]:
        apply_stage(truth.dataset, stage, lake.sink)
        done = run_all(lake.run())
        sound = fault["stage"] > stage or (name == "fault_missing_schema" and (lake.sink / fault["path"]).exists())
        if sound or (name == "fault_index_gap" and stages is None):
            # A file that was read before it went is not missed, a schema file that came late is taken up.
            assert not done.applied.held
            lake.check(truth.tables(stage))
            continue
        (reason,) = done.applied.held.values()
        assert fault["path"].rpartition("/")[0].removesuffix("/meta") in reason
        lake.check(truth.tables(stage), except_for={touched})
