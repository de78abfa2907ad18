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
from cdc_lakehouse.changelog.positions import physical_ms
from cdc_lakehouse.changelog.schema import SourceColumn
from cdc_lakehouse.decoders.files.registry import FORMATS
from cdc_lakehouse.errors import SourceError, SourceUnreachableError
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


def _garbage(line: bytes) -> bytes:
    return b'{"id":0,"database":'


def _truncated(line: bytes) -> bytes:
    return line[: len(line) // 2]


def _glued(line: bytes) -> bytes:
    return line + line


def _wrong_table(line: bytes) -> bytes:
    return line.replace(b'"table":"t1"', b'"table":"t0"')


def _not_utf8(line: bytes) -> bytes:
    return re.sub(rb'"s":"[^"]*"', b'"s":"\xff\xfe"', line)


def _without_commit_ts(line: bytes) -> bytes:
    return re.sub(rb',"_tidb":\{[^}]*\}', b"", line)


def _two_rows(line: bytes) -> bytes:
    return re.sub(rb'"data":\[(\{.*?\})\]', rb'"data":[\1,\1]', line)


def _ddl(line: bytes) -> bytes:
    return line.replace(b'"isDdl":false', b'"isDdl":true')


LINES: dict[Callable[[bytes], bytes], str] = {
    _garbage: "not one JSON object",
    _truncated: "not one JSON object",
    _glued: "not one JSON object",
    _wrong_table: "of another table",
    _not_utf8: "not UTF-8",
    _without_commit_ts: "enable-tidb-extension",
    _two_rows: "exactly one row",
    _ddl: "not an INSERT",
}


def test_bad_lines_are_quarantined_and_hold_their_table(faulty: Faulty) -> None:
    """One of each kind behind those that are sound."""
    path = faulty.new_file()
    sound = path.read_bytes()
    lines = sound.removesuffix(b"\r\n").split(b"\r\n")
    whole = max((line for line in lines if b"INSERT" in line or b"UPDATE" in line), key=len)
    bad = {len(lines) + number: (spoil(whole), said) for number, (spoil, said) in enumerate(LINES.items(), start=1)}
    assert all(raw != whole for raw, _ in bad.values())
    path.write_bytes(b"\r\n".join([*lines, *(raw for raw, _ in bad.values()), b""]))

    done = faulty.run()
    (first, (_, said)) = next(iter(bad.items()))
    faulty.check_held(done, said, str(path.relative_to(faulty.sink)), f"line {first}")
    found = {row.line: row for row in done.run.quarantine.open()}
    assert {line: (row.database, row.table, row.raw) for line, row in found.items()} == {
        line: (*T1, raw) for line, (raw, _) in bad.items()
    }
    for line, (_, said) in bad.items():
        assert said in found[line].message
    path.write_bytes(sound)
    faulty.check_mended()


def _not_of_its_type(line: bytes) -> bytes:
    return re.sub(rb'("data":\[\{"id":"\d+","v":)"-?\d+"', rb'\1"forty"', line)


def _column_not_known(line: bytes) -> bytes:
    return line.replace(b'"data":[{', b'"data":[{"surprise":"1",')


def _column_missing(line: bytes) -> bytes:
    return re.sub(rb'("data":\[\{"id":"\d+"),"v":"-?\d+"', rb"\1", line)


def test_values_that_do_not_fit_are_neither_dropped_nor_null(faulty: Faulty) -> None:
    path = faulty.new_file()
    sound = path.read_bytes()
    lines = sound.removesuffix(b"\r\n").split(b"\r\n")
    # Of rows of their own: only the last change of a row is looked at so closely.
    whole = next(line for line in lines if b"INSERT" in line)
    others = [re.sub(rb'"data":\[\{"id":"\d+"', b'"data":[{"id":"%d"' % id, whole) for id in (9001, 9002, 9003)]
    spoils = (_not_of_its_type, _column_not_known, _column_missing)
    bad = [spoil(line) for spoil, line in zip(spoils, others, strict=True)]
    assert all(line not in bad for line in others)
    path.write_bytes(b"\r\n".join([*lines, *bad, b""]))
    done = faulty.run()
    faulty.check_held(done, "do not fit", str(path.relative_to(faulty.sink)))
    found = {row.line: row.raw for row in done.run.quarantine.open()}
    assert set(found) == {len(lines) + number for number in (1, 2, 3)}
    assert b"forty" in (found[len(lines) + 1] or b"")

    before = faulty.lake.metadata()
    faulty.run()
    assert faulty.lake.metadata() == before, "a run that can do no more than the last has changed something"

    path.write_bytes(sound)
    faulty.check_mended()


def test_a_missing_data_file(faulty: Faulty) -> None:
    path = faulty.new_file()
    sound = path.read_bytes()
    path.unlink()
    faulty.check_held(faulty.run(), "data files are missing")
    path.write_bytes(sound)
    faulty.check_mended()


def test_a_missing_last_file(faulty: Faulty) -> None:
    """No hole in the numbers shows it, only the index file does: as soon as the checkpoint has passed that."""
    index = next(path for path in faulty.sink.glob("test/t1/**/meta/CDC.index"))
    path = index.parent.parent / index.read_text().strip()
    sound = path.read_bytes()
    path.unlink()
    moment = physical_ms(faulty.truth.stages[1]["checkpoint_ts"]) / 1000 - 299
    os.utime(index, (moment, moment))
    faulty.check_held(faulty.run(), "data file is missing", str(path.relative_to(faulty.sink)))
    before = faulty.lake.metadata()
    faulty.run()
    assert faulty.lake.metadata() == before
    path.write_bytes(sound)
    faulty.check_mended()


def _t0_schema(faulty: Faulty) -> Path:
    """The schema file of t0's ALTER, which stage 2 brings."""
    return max((faulty.sink / "test/t0/meta").glob("schema_*.json"))


# What else a file can hold is tested where schema files are read.
@pytest.mark.parametrize("spoiled", [None, b"{", "other columns"])
def test_a_bad_schema_file(faulty: Faulty, spoiled: bytes | str | None) -> None:
    path = _t0_schema(faulty)
    sound = path.read_bytes()
    if spoiled is None:
        path.unlink()
    else:
        path.write_bytes(sound.replace(b'"extra"', b'"other"') if isinstance(spoiled, str) else spoiled)
    done = faulty.run()
    reasons = " ".join(done.applied.held.values())
    assert "schema" in reasons and "t0" in reasons, done.applied.held
    expected = faulty.truth.tables(2)
    expected[T0] = faulty.truth.tables(1)[T0]
    faulty.lake.check(expected)

    path.write_bytes(sound)
    faulty.check_mended()


# What else it can hold is tested where files land.
@pytest.mark.parametrize("content", [None, b"not json"])
def test_bad_metadata(faulty: Faulty, content: bytes | None) -> None:
    path = faulty.sink / "metadata"
    sound = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    done = faulty.run()
    (fault,) = done.landed.faults
    assert "metadata" in fault or "checkpoint-ts" in fault
    faulty.check(1)
    path.write_bytes(sound)
    faulty.check_mended()


def test_metadata_that_goes_backwards(faulty: Faulty) -> None:
    path = faulty.sink / "metadata"
    sound = path.read_bytes()
    path.write_text(json.dumps({"checkpoint-ts": faulty.truth.stages[0]["checkpoint_ts"]}))
    done = faulty.run()
    assert "went backwards" in done.landed.faults[0]
    assert done.published.cut.checkpoint_ts == faulty.truth.stages[1]["checkpoint_ts"]
    faulty.check(1)
    path.write_bytes(sound)
    faulty.check_mended()


def test_a_file_that_is_replaced_after_it_was_read(faulty: Faulty) -> None:
    """Its earlier events go, with what they did to rows; the sound ones come."""
    path = faulty.new_file()
    sound = path.read_bytes()
    last = [line for line in sound.split(b"\r\n") if line][-1]
    assert b'"type":"DELETE"' not in last
    (key,) = re.findall(rb'"data":\[\{"id":"(\d+)"', last)
    path.write_bytes(sound.replace(last, last.replace(b'"id":"%s"' % key, b'"id":"4711"')))
    done = faulty.run()
    assert not done.applied.held
    rows = faulty.lake.tables()[T1].scan().to_arrow().column("id").to_pylist()
    assert 4711 in rows

    path.write_bytes(sound)
    faulty.check_mended()


def test_an_unreadable_directory(faulty: Faulty) -> None:
    directory = next(path for path in (faulty.sink / "test/t1").iterdir() if path.name.isdigit())
    loop = directory / "loop"
    loop.symlink_to(loop)
    done = faulty.run()
    faulty.check_held(done, "cannot be listed", "loop")
    loop.unlink()
    faulty.check_mended()


def test_an_unreadable_file(faulty: Faulty) -> None:
    path = faulty.new_file()
    sound = path.read_bytes()
    path.unlink()
    path.mkdir()
    # A directory where a file was listed: what a run sees when the file goes between listing and reading.
    run = faulty.lake.run()
    path.rmdir()
    path.write_bytes(sound)
    steps = Steps(run)
    _ = steps.landed
    path.unlink()
    path.symlink_to(path)
    _ = steps.published
    faulty.check_held(steps, "cannot read")
    path.unlink()
    path.write_bytes(sound)
    faulty.check_mended()


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
    form = FORMATS["canal-json"]

    def dying(connection: Any, content: Any, context: Any) -> Any:
        if context.table == "t1":
            os.kill(os.getpid(), signal.SIGKILL)
        return form.decode(connection, content, context)

    with monkeypatch.context() as patch:
        let_spark_do_all(patch)
        patch.setitem(FORMATS, "canal-json", replace(form, decode=dying))  # pyright: ignore[reportArgumentType]
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


def test_a_sink_without_commit_ts_is_refused_as_a_whole(data_sets: Path, new_lake: Callable[..., TestLake]) -> None:
    faulty = Faulty(data_sets, new_lake(source={"date_separator": "none"}))
    faulty.stage(0)
    for path in faulty.sink.rglob("CDC*.json"):
        path.write_bytes(re.sub(rb',"_tidb":\{[^}]*\}', b"", path.read_bytes()))
    with pytest.raises(SourceError, match="enable-tidb-extension=true"):
        faulty.run()
    assert not faulty.lake.machinery("quarantine")


def test_a_sink_with_another_date_separator(data_sets: Path, new_lake: Callable[..., TestLake]) -> None:
    faulty = Faulty(data_sets, new_lake())
    faulty.stage(0)
    with pytest.raises(SourceError, match="date-separator none"):
        faulty.run()


def test_a_sink_that_is_not_there(new_lake: Callable[..., TestLake]) -> None:
    with pytest.raises(SourceUnreachableError, match="is not a directory"):
        run_all(new_lake().run())


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
