"""Data files that cannot be decoded, or were cut off: they wait with their tables, and the others go on."""

import datetime
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from cdc_lakehouse.changelog.positions import AHEAD_MS, LOGICAL_BITS
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import ConcurrentRunError, SourceError
from cdc_lakehouse.lake.current.update_tasks import UpdatedTable
from cdc_lakehouse.lake.tables import events
from cdc_lakehouse.lake.tables.events import COUNTS, DecodedFiles, SegmentFile
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.lake.tables.segments import DUMP, Appended, Segment, Segments, SourceFiles, contents_of
from cdc_lakehouse.pipeline import dump
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps, load
from cdc_lakehouse.sample.sink_writer import LINE_END, SampleRowChange, Table, canal_json
from cdc_lakehouse.sources import object_store
from tests.kit import dumps
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.dumps import TSO
from tests.kit.kills import KillAtCall
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import segment
from tests.lake import CREATE, ID, LATER, NOON, change
from tests.pipeline import DAY, T0, Sink, events_of, lake_in


class Events:
    """Stands for the table without a JVM: the files of each batch, and those that were read for what is bad in them."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}
        self.read: list[str] = []
        self._rows: dict[int, int] = {}

    def ensure(self) -> None:
        return

    def writer(self) -> "Events":
        return self

    def write(self, decoded: Iterator[Any]) -> list[str]:
        """No data file, once all is decoded."""
        list(decoded)
        return []

    @property
    def appended(self) -> Appended:
        return Appended(max(self.batches, default=0), frozenset(self.batches))

    def commit(self, data_files: Sequence[str], segments: Sequence[Segment]) -> None:
        batch = segments[0].batch
        assert batch not in self.batches
        for each in segments:
            for replaced, _ in contents_of(each.replaces):
                self.batches[replaced].remove(each.segment)
        self.batches[batch] = list(data_files)
        self._rows[batch] = len(data_files)

    def counts(self, segments: Sequence[Segment]) -> pa.Table:
        names = self.batches.get(segments[0].batch, [])
        return pa.Table.from_pylist([{"segment": name, "events": 1} for name in names], COUNTS)

    mark_decoded: Any = events.Events.mark_decoded
    decode: Any = events.Events.decode

    def named(self, files: Sequence[SegmentFile], *_: object) -> DecodedFiles:
        names = [file.segment.segment for file in files]
        self.read += names
        return DecodedFiles(names, lines=Counter(names))


def fresh(lake: TestLake) -> tuple[FeedRun, dict[int, list[str]]]:
    lake.session = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    run, events = lake.run(), Events()
    vars(run)["events"] = events
    return run, events.batches


@pytest.mark.parametrize("tables", [("a", "b"), ("a",)], ids=["beside another", "alone"])
def test_a_file_that_is_too_large_waits_with_its_table(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch, tables: tuple[str, ...]
) -> None:
    sink = Sink(lake.sink, *tables, checkpoint=10)
    large, *others = [sink.file(table) for table in tables]
    with (lake.sink / large).open("a") as file:
        file.write("\r\n")
    run, appended = fresh(lake)
    landed = run.source.land().new  # The module of the source is loaded with the true limit.
    monkeypatch.setattr(object_store, "SEGMENT_LIMIT", (lake.sink / large).stat().st_size - 2)
    decoded, rejected = run.source.decode(landed)
    assert ([segment.segment for segment in decoded], list(rejected)) == (others, [])
    assert [*appended] == [2] * len(others)
    (row,) = run.quarantine.open()
    assert (row.segment, row.error_class) == (large, "UnreadableSegment") and "larger than" in row.message


def test_a_file_is_judged_by_when_it_landed(lake: TestLake) -> None:
    """So it is decoded as before, whenever that is done again."""
    sink = Sink(lake.sink, "a", checkpoint=10)
    paths = [sink.file("a"), sink.file("a", at=2 * AHEAD_MS << LOGICAL_BITS)]
    run, _ = fresh(lake)
    landed = [replace(segment, landed_at=DAY) for segment in run.source.land().new]
    _, rejected = run.source.decode(landed)
    assert [(each.segment, each.line, each.error_class) for each in rejected] == [(paths[1], 1, "NoCommitTs")]
    later = [replace(segment, landed_at=DAY + datetime.timedelta(days=1)) for segment in landed]
    assert list(run.source.decode(later)[1]) == []


def test_file_that_an_earlier_run_landed_gets_a_new_batch(lake: TestLake) -> None:
    """Tables may have read up to the batch that it had."""
    path = lake.sink / Sink(lake.sink, "a", checkpoint=10).file("a")
    run, _ = fresh(lake)
    landed = run.source.land().new
    away = path.rename(lake.sink.with_name("away"))
    assert run.source.decode(landed) == ([], [])
    away.rename(path)
    run, appended = fresh(lake)
    ((batch, segments),) = run.segments.undecoded("file").items()
    decoded, _ = run.source.decode(segments)
    assert (batch, [each.batch for each in decoded], [*appended]) == (1, [2], [2])


def test_file_gone_after_its_events_came_in_is_decoded(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a task sees. They are of a run that was killed before it marked them: they are counted and applied."""
    sink = Sink(lake.sink, "a", "b", checkpoint=10)
    gone, there = sink.file("a"), sink.file("b", at=2)
    lake.run().source.land()
    row = {"schema_name": "d", "table_name": "a", "op": "I"}
    rows = pa.Table.from_pylist([{"segment": gone, **row, "commit_ts": T0 + 1}, {"segment": there, **row}])
    table = events_of(lake, rows, Appended(1, frozenset({1})))
    (lake.sink / gone).unlink()
    monkeypatch.setattr(SourceFiles, "unreadable", lambda *_: dict[str, str]())
    run, appended = lake.run(), list[int]()
    vars(run.events).update(writer=Events().writer, commit=lambda _, segments: appended.append(segments[0].batch))
    ((_, segments),) = run.segments.undecoded("file").items()
    ((decoded,), _) = run.source.decode(segments)
    snapshot = table.current_snapshot()
    assert snapshot is not None and contents_of(decoded.replaces) == [(1, snapshot.snapshot_id)]
    assert (decoded.segment, [decoded.batch]) == (there, appended) and decoded.batch > 1
    found = lake.run().segments.find([gone, there])[gone]
    assert (found.state, found.events, found.max_commit_ts) == ("decoded", 1, T0 + 1)
    assert found.batch not in (1, decoded.batch) and contents_of(found.replaces) == contents_of(decoded.replaces)
    (why,) = lake.run().quarantine.open()
    assert (why.segment, why.error_class) == (gone, "UnreadableSegment") and "quarantine replay" in why.message
    assert lake.run().segments.rows.num_rows == 2


@pytest.mark.parametrize("by", ["date", "replay"])
def test_unreadable_file_that_landed_again_is_tried(by: str, lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was decoded before. Events of another one, of the same batch and a run that was killed, are marked."""
    sink = Sink(lake.sink, "a", checkpoint=10)
    done, run = sink.file("a"), lake.run()
    (file,) = run.source.land().new
    run.segments.mark_decoded([replace(file, state="decoded", decoded_at=NOON, events=1)])
    killed = sink.file("a", at=2)
    lake.run().source.land()
    row = {"segment": killed, "schema_name": "d", "table_name": "a", "op": "I", "commit_ts": T0 + 2}
    events_of(lake, pa.Table.from_pylist([row]), Appended(2, frozenset({2})))
    run = lake.run(dates=frozenset({file.feed_date or ""} if by == "date" else ()))
    landed = run.source.land().new or run.source.replay([*run.segments.find([done, killed]).values()])
    again = {each.segment: each for each in landed}
    monkeypatch.setattr(SourceFiles, "unreadable", lambda *_: {done: "no answer", killed: "no answer"})
    for each in (run, lake.run()):
        (waiting,) = each.segments.undecoded("file").values()
        assert each.source.decode(waiting) == ([], [])
        found = lake.run().segments.find(again)
        assert found[done] == again[done] and (again[done].state, again[done].decoded_at) == ("landed", NOON)
        assert (found[killed].state, found[killed].batch, found[killed].events) == ("decoded", 4, 1)
        assert len(lake.run().segments.rows) == 2
        why = {why.segment: why.message for why in each.quarantine.open()}
        assert why[done] == "no answer" and why[killed].startswith("no answer; its events are in: `cdc-lakehouse")


@pytest.mark.parametrize("written", [2, 1])
def test_rows_of_a_dump_that_were_not_written_are_not_counted(written: int, lake: TestLake) -> None:
    """They are read again if fewer were written than decoded."""
    of: dict[str, Any] = {"database": "d", "table": "a", "table_version": 7, "lines": 2, "batch": 1}
    run, made = lake.run(), SimpleNamespace(commit=lambda **_: 7)
    run.segments.land(files := [Segment(segment="f", kind=DUMP, size=1, state="landed", landed_at=DAY, **of)])
    row = {"segment": "f", "schema_name": "d", "table_name": "a", "op": "I", "commit_ts": 7}
    events_of(lake, pa.Table.from_pylist([row]))
    vars(run).update(iceberg=SimpleNamespace(transaction=lambda *_: made))
    run.events.commit([json.dumps({"record-count": written})], files)
    ((found,), counts) = run.events.mark_decoded(files, NOON)
    assert (found.events, found.min_commit_ts, counts["events"].to_pylist()) == (written, 7, [written])


def test_second_batch_that_was_not_marked_names_a_snapshot(lake: TestLake) -> None:
    """The one that the run has made of the first has its events too."""
    sink = Sink(lake.sink, "a", checkpoint=10)
    for at in (1, 2):
        sink.file("a", at=at)
        lake.run().source.land()
    events_of(lake, appended=Appended(2, frozenset({1, 2})))
    run, made = lake.run(), SimpleNamespace(commit=lambda **_: 7)
    vars(run).update(iceberg=SimpleNamespace(transaction=lambda *_: made))
    vars(run.events).update(writer=Events().writer)
    (_, first), (_, second) = run.segments.undecoded("file").items()
    run.source.decode(first)
    with pytest.raises(ConcurrentRunError):  # What stands for the commit has left the table as it was.
        run.source.decode(second)
    (again,) = run.segments.find([second[0].segment]).values()
    assert contents_of(again.replaces) == [(2, 7)]


# --- The end of a file that was cut off is resolved where a later file proves it, and nowhere else ---

ROWS = Table(TableName("d", "a"), 10, (ID,))


def messages(ats: Sequence[int]) -> bytes:
    changes = (SampleRowChange("INSERT", ROWS, 100 + at, {"id": str(at)}) for at in ats)
    return "".join(canal_json(each, DAY) + LINE_END for each in changes).encode()


def path_of(name: str) -> str:
    """`2` is a file's number, `9/06-02/1` also its version and date."""
    version, date, number = ["10", "06-01", name] if "/" not in name else name.split("/")
    return f"d/a/{version}/2026-{date}/CDC00000{number}.json"


PART = messages([6]).partition(b'"_tidb"')[0]


@dataclass
class Files:
    """Data files of `a` that have been decoded, with the counts that they gave."""

    lake: TestLake

    def file(self, name: str, ats: Sequence[int], part: bytes = b"", **more: Any) -> str:
        """Rows, and after them the part of one."""
        path, content = path_of(name), messages(ats) + part
        place = self.lake.sink / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        run = self.lake.run()
        (listed,) = [each for each in run.store.list() if getattr(each, "path", "") == path]
        fields: dict[str, Any] = {
            "feed_date": path.split("/")[3], "file_index": int(path[-8:-5]), "size": len(content),
            "etag": getattr(listed, "etag", None), "events": len(ats), "quarantined": 1 if part else 0,
            "min_commit_ts": 100 + min(ats, default=0), "max_commit_ts": 100 + max(ats, default=0),
        }  # fmt: skip
        run.segments.land([segment(path, **fields | more)])
        if part:
            bad = Rejected(path, len(ats) + 1, "NotJson", "it is bad", part, "d", "a")
            self.lake.run().quarantine.replace(lambda _: False, [bad], LATER)
        return self.resolved()

    def quarantine(self, *rows: Rejected, replaced: bool = False) -> str:
        self.lake.run().quarantine.replace(lambda _: replaced, rows, LATER)
        return self.resolved()

    def gone(self, name: str) -> str:
        (self.lake.sink / path_of(name)).unlink()
        return self.resolved()

    def resolved(self) -> str:
        """The states of all rows, by segment, which files have a cut one's rows, and whether the table is held."""
        self.lake.run().source.resolve_redelivered()
        before, run = self.lake.metadata(), self.lake.run()
        rows = sorted(run.quarantine.rows, key=lambda row: row.segment)
        held = find_holds(run, run.history.history.incarnations(), 200)
        run.source.resolve_redelivered()
        assert self.lake.metadata() == before
        proofs = [row.message.partition("cut off: ")[2] for row in rows if row.state == "redelivered"]
        states = " ".join([*(row.state for row in rows), *(["held"] if held else [])])
        return re.sub(r"d/a/(\d+)/2026-(\S+)/CDC0+(\d+).json", r"\1/\2/\3", "; ".join([states, *proofs]))


ALL, SEVENTH = range(3, 8), {"dispatcher": "7", "modified_at": LATER}


@pytest.mark.slow
@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/cut_off.txt"), ids=str)
def test_cut_is_proved_by_its_rows_in_later_files(tmp_path: Path, case: Case, update: bool) -> None:
    files = Files(lake_in(tmp_path))
    files.lake.run().history.record([change(10, "a", CREATE)], NOON)
    assert files.file("1", [4, 5], PART) == "open held"
    names = {name: getattr(files, name) for name in ("file", "gone", "quarantine")}
    names["again"] = Rejected(path_of("1"), 3, "NotJson", "it is bad", PART, "d", "a")
    case.compare(evaluated(case, {**names, "ALL": ALL, "SEVENTH": SEVENTH, "of_8": messages([8])[:40]}), update=update)


# --- A dump that is gone, or is another one, before all of it was loaded: steps of runs, as each `load` shows them ---

DECODED_NOW: Any = {"size": 1, "state": "decoded", "landed_at": DAY}

KILLS: dict[str, tuple[type, str]] = {
    "kill": (Events, "ensure"),
    "kill-committed": (Segments, "mark_decoded"),
    "kill-unrecorded": (SchemaHistory, "record"),
}


class Play:
    """A feed of a sink, which begins with a dump of tables with two rows in a file each; positions count from the first
    dump's. `load` (`load TABLE`: again) shows the batches in `events`, the tables that are loaded and from where, files
    whose rows were read, and what waits; `kill TABLE` ends before the commit of its batch, `kill-committed` right after
    it, `kill-unrecorded` before its tables are recorded; `first` says that nothing was published yet."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.events, self.begun, self.results = directory / "dump", Events(), True, list[str]()
        self.lake = lake_in(
            directory, source={"initial": {"type": "dumpling", "uri": str(self.directory), "start_ts": 1}}
        )
        self.do_dump("0", "a", "b")
        Sink(self.lake.sink, checkpoint=10)
        self.events.decode = self.events.named

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

    def kill(self, verb: str, *again: str) -> None:
        with KillAtCall(*KILLS[verb], 1, after=False)(self.lake) as killed:
            Steps(self.run([f"d.{table}" for table in again])).upto(load)
        assert killed.happened

    def do_load(self, *again: str) -> None:
        self.events.read.clear()
        try:
            marked = Steps(self.run([f"d.{table}" for table in again])).upto(load).segments
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
        for id, why in find_holds(run, run.history.history.incarnations(), TSO + 1000).items():
            self.results.append(self.shown(f"  held {id.rpartition('@')[0]}: {why.partition('. What is mended')[0]}"))

    def shown(self, text: str) -> str:
        return text.replace(str(self.directory), "DUMP").replace(f"feed {self.lake.name}", "feed FEED")


@pytest.mark.slow
@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/dump_gone.txt"), ids=str)
def test_load_of_a_dump_that_changes_goes_on_or_waits(tmp_path: Path, case: Case, update: bool) -> None:
    play = Play(tmp_path)
    for verb, *words in (step.split() for line in case.own for step in line.split(" ; ")):
        play.kill(verb, *words) if verb in KILLS else getattr(play, f"do_{verb}")(*words)
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
def test_rows_are_typed_where_it_counts(decoded: Segment | None, typed: set[str], fails: bool, tmp_path: Path) -> None:
    """Of tables with no other events, and without lists, whose fields get other ids. Decoding does not fail with it."""
    play, tried = Play(tmp_path), list[set[str]]()

    def decode(files: Sequence[SegmentFile], *rest: Any) -> DecodedFiles:
        typing = rest[2] if len(rest) > 2 else None
        tried.append(set() if typing is None else {name for _, name in typing.args[0]})
        if typing and fails:
            raise PySparkException("the task is gone")
        return play.events.named(files)

    play.events.decode = decode
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


def test_files_that_no_table_takes_are_deleted(tmp_path: Path) -> None:
    """Those of rows that were typed, when the run ends before their tables are made."""
    play, unused = Play(tmp_path), tmp_path / "rows.parquet"
    unused.touch()
    part = UpdatedTable(0, TableName("d", "a"), [json.dumps({"file-path": f"file://{unused}"})])

    play.events.decode = lambda *_: DecodedFiles(typed=[part])
    play.begun = False
    with KillAtCall(Events, "commit", 1, after=False)(play.lake) as killed:
        Steps(play.run()).upto(load)
    assert killed.happened and not unused.exists()
