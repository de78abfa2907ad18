"""A dump that is gone, or is another one, before all of it was loaded: in the steps that need no JVM. Cases are steps
of runs; their results are what each `load` shows (`Play`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.current.update_tasks import UpdatedTable
from cdc_lakehouse.lake.tables import events
from cdc_lakehouse.lake.tables.events import COUNTS, DecodedFiles, SegmentFile
from cdc_lakehouse.lake.tables.segments import DUMP, Appended, Segment, contents_of
from cdc_lakehouse.pipeline import dump
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps, load
from tests.kit import dumps
from tests.kit.case_files import Case, read_cases
from tests.kit.dumps import TSO
from tests.pipeline import DAY, Sink, lake_in

LATER = TSO + 1000
DECODED_NOW: Any = {"size": 1, "state": "decoded", "landed_at": DAY}


class Killed(BaseException):
    pass


class Events:
    """Stands for the table: the files of each batch, and those that were read for what is bad in them."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}
        self.read: list[str] = []

    def ensure(self) -> None:
        return

    def writer(self) -> Events:
        return self

    @property
    def appended(self) -> Appended:
        return Appended(max(self.batches, default=0), frozenset(self.batches))

    def commit(self, data_files: Sequence[str], segments: Sequence[Segment]) -> None:
        batch = segments[0].batch
        assert batch not in self.batches
        for segment in segments:
            for replaced, _ in contents_of(segment.replaces):
                self.batches[replaced].remove(segment.segment)
        self.batches[batch] = list(data_files)

    def counts(self, segments: Sequence[Segment]) -> pa.Table:
        names = self.batches.get(segments[0].batch, [])
        return pa.Table.from_pylist([{"segment": name, "events": 1} for name in names], COUNTS)

    mark_decoded: Any = events.Events.mark_decoded

    def decode(self, session: object, files: Sequence[SegmentFile], *_: object) -> DecodedFiles:
        names = [file.segment for file in files]
        self.read += names
        return DecodedFiles(names, [], dict.fromkeys(names, 1))


class Play:
    """A feed of a sink, which begins with a dump of tables with two rows in a file each; positions count from the first
    dump's. `load` (`load TABLE`: again) shows the batches in `events`, the tables that are loaded and from where, files
    whose rows were read, and what waits; `kill TABLE` ends before the commit of its batch, `kill-committed` right after
    it, `kill-unrecorded` before its tables are recorded; `first` says that nothing was published yet."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.events, self.begun, self.results = directory / "dump", Events(), True, list[str]()
        self.monkeypatch = monkeypatch
        self.lake = lake_in(
            directory, source={"initial": {"type": "dumpling", "uri": str(self.directory), "start_ts": 1}}
        )
        self.do_dump("0", "a", "b")
        Sink(self.lake.sink, checkpoint=10)
        monkeypatch.setattr(dump, "decode_segments", self.events.decode)
        monkeypatch.setattr(FeedRun, "spark", None)

    def run(self, again: Sequence[str] = ()) -> FeedRun:
        run = self.lake.run(reload_tables=frozenset(again))
        vars(run).update(events=self.events)
        vars(self.events).update(_segments=run.segments)
        if self.begun:
            vars(run).update(last_cut=SimpleNamespace(checkpoint_ts=TSO))
        return run

    def do_dump(self, at: str, *tables: str) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        made = [dumps.DumpTable("d", name, {"id": "int PRIMARY KEY"}, [(1,), (2,)]) for name in tables]
        status = dumps.dumpling_status("tidb-binlog", TSO + int(at))
        dumps.dumpling(self.directory, made, rows_per_file=1, status=status)

    def do_remove(self, file: str = "") -> None:
        _ = (self.directory / f"d.{file}.csv").unlink() if file else shutil.rmtree(self.directory)

    def do_first(self, *_: str) -> None:
        self.begun = not self.begun

    def do_exclude(self, *tables: str) -> None:
        self.lake.configure(tables={"exclude": [f"d.{table}" for table in tables]})

    def _killed(self, run: FeedRun) -> None:
        def ends(*_: object) -> None:
            raise Killed

        vars(run.segments)["mark_decoded"] = ends
        with pytest.raises(Killed):
            Steps(run).upto(load)

    def do_kill_committed(self, *again: str) -> None:
        self._killed(self.run([f"d.{table}" for table in again]))

    def do_kill(self, *again: str) -> None:
        def ends() -> None:
            raise Killed

        run = self.run([f"d.{table}" for table in again])
        vars(run).update(events=SimpleNamespace(ensure=ends))
        self._killed(run)

    def do_kill_unrecorded(self) -> None:
        steps = Steps(self.run())
        with self.monkeypatch.context() as patch:
            patch.setattr("cdc_lakehouse.pipeline.steps._evolve", lambda *_: (_ for _ in ()).throw(Killed))
            with pytest.raises(Killed):
                steps.upto(load)

    def do_load(self, *again: str) -> None:
        self.events.read.clear()
        try:
            marked = Steps(self.run([f"d.{table}" for table in again])).upto(load).decoded.segments
        except SourceError as error:
            self.results.append(self.shown(f"SourceError: {error}"))
            return
        run = self.lake.run()
        waiting = sum(map(len, run.segments.undecoded(DUMP).values()))
        loads = ", ".join(f"{name.table} at {at - TSO}" for name, at in run.loaded.items())
        counts = f"{len(marked)} files loaded, {len(self.events.read)} read, {waiting} wait"
        self.results.append(f"{counts}; {loads}; {len(self.events.batches)} batches")
        rows = sorted(
            (row.error_class, f"{row.table} {row.segment.rpartition('/')[2]}") for row in run.quarantine.open()
        )
        self.results += [f"  {kind} {what}".rstrip() for kind, what in rows]
        for id, why in find_holds(run, run.history.history.incarnations(), LATER).items():
            self.results.append(self.shown(f"  held {id.rpartition('@')[0]}: {why.partition('. What is mended')[0]}"))

    def shown(self, text: str) -> str:
        return text.replace(str(self.directory), "DUMP").replace(f"feed {self.lake.name}", "feed FEED")


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/dump_gone.txt"), ids=str)
def test_load_of_a_dump_that_changes_goes_on_or_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, update: bool
) -> None:
    play = Play(tmp_path, monkeypatch)
    for step in (step.split() for line in case.own for step in line.split(" ; ")):
        getattr(play, f"do_{step[0].replace('-', '_')}")(*step[1:])
    case.compare(play.results, update=update)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("decoded", "typed"),
    [
        (None, {"a", "b"}),
        (Segment(segment="d/a/1", kind="file", database="d", table="a", batch=1, **DECODED_NOW), {"b"}),
        (Segment(segment="t/0/1", kind="offsets", record_batch=1, batch=1, **DECODED_NOW), set()),
    ],
)
def test_rows_are_typed_where_that_counts(
    decoded: Segment | None, typed: set[str], fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tables with no other events, and without lists, whose fields get other ids. Decoding does not fail with it."""
    play, tried = Play(tmp_path, monkeypatch), list[set[str]]()

    def decode(_: object, files: Sequence[SegmentFile], *rest: Any) -> DecodedFiles:
        typing = rest[3] if len(rest) > 3 else None
        tried.append(set() if typing is None else {name for _, name in typing.args[0]})
        if typing and fails:
            raise PySparkException("the task is gone")
        return play.events.decode(None, files)

    monkeypatch.setattr(dump, "decode_segments", decode)
    play.do_dump("0", "a", "b")
    vectors = [dumps.DumpTable("d", "v", {"id": "int PRIMARY KEY", "e": "vector(3)"}, [(1, "[1,2,3]")])]
    dumps.dumpling(play.directory, vectors, status=dumps.dumpling_status("tidb-binlog", TSO))
    play.begun = False
    run = play.run()
    if decoded is not None:
        run.segments.land([decoded])
    assert run.feed.initial is not None
    source = dump.DumpSource(run, run.feed.initial)
    landed = source.land().new
    assert len(source.decode(landed)[0]) == len(landed) == 5
    assert tried == ([typed, set()] if fails and typed else [typed])


def test_files_that_no_table_takes_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of rows that were typed, when the run ends before their tables are made."""
    play, unused = Play(tmp_path, monkeypatch), tmp_path / "rows.parquet"
    unused.touch()
    part = UpdatedTable(0, TableName("d", "a"), [json.dumps({"file-path": f"file://{unused}"})])

    def committed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(dump, "decode_segments", lambda *_: DecodedFiles(typed=[part]))
    monkeypatch.setattr(play.events, "commit", committed)
    play.begun = False
    with pytest.raises(Killed):
        Steps(play.run()).upto(load)
    assert not unused.exists()
