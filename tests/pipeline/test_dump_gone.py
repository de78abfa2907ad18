"""A dump that is gone, or is another one, before all of it was loaded: in the steps that need no JVM."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.decoding import DecodedFiles, SegmentFile
from cdc_lakehouse.lake.tables.events import BatchCounts, SegmentCounts
from cdc_lakehouse.lake.tables.segments import DUMP, Appended, Segment, contents_of
from cdc_lakehouse.pipeline import dump
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.landing import loads_of
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps, load
from tests.kit import dumps
from tests.kit.dumps import TSO
from tests.pipeline import Sink, lake_in

LATER = TSO + 1000


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
        return Appended(max(self.batches, default=0), dict.fromkeys(self.batches, ""))

    def commit(self, data_files: Sequence[str], segments: Sequence[Segment]) -> None:
        batch = segments[0].batch
        assert batch not in self.batches and not any(contents_of(segment.replaces) for segment in segments)
        self.batches[batch] = list(data_files)

    def counts(self, segments: Sequence[Segment]) -> BatchCounts:
        return BatchCounts({(name, "d", "t"): SegmentCounts(1) for name in self.batches.get(segments[0].batch, [])})

    def decode(self, session: object, files: Sequence[SegmentFile], read: Any, rows: Any, writer: Any) -> DecodedFiles:
        names = [file.segment for file in files]
        self.read += names
        return DecodedFiles(names, [], dict.fromkeys(names, 1))


class Loading:
    """A feed of a sink, which begins with a dump of tables with a row a file."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, *tables: str) -> None:
        self.directory = directory / "dump"
        self.events = Events()
        self.write(*(tables or ("a", "b")))
        initial = {"type": "dumpling", "uri": str(self.directory), "start_ts": 1}
        self.lake = lake_in(directory, source={"initial": initial})
        Sink(self.lake.sink, checkpoint=10)
        self.begun = True
        monkeypatch.setattr(dump, "decode_segments", self.events.decode)
        monkeypatch.setattr(FeedRun, "spark", None)

    def write(self, *tables: str, tso: int = TSO) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        made = [dumps.DumpTable("d", name, {"id": "int PRIMARY KEY"}, [(1,), (2,)]) for name in tables]
        dumps.dumpling(self.directory, made, rows_per_file=1, status=dumps.dumpling_status("tidb-binlog", tso))

    def run(self, again: Sequence[str] = ()) -> FeedRun:
        run = self.lake.run(reload_tables=frozenset(again))
        vars(run).update(events=self.events)
        if self.begun:
            vars(run).update(last_cut=SimpleNamespace(checkpoint_ts=TSO))
        return run

    def load(self, *again: str) -> tuple[Segment, ...]:
        return Steps(self.run(again)).upto(load).segments

    def kill(self, *again: str, committed: bool = True) -> None:
        """A run that ends before or right after the commit of its batch."""

        def ends(*_: object) -> None:
            raise Killed

        run = self.run(again)
        vars(run.segments)["mark_decoded"] = ends
        if not committed:
            vars(run).update(events=SimpleNamespace(ensure=ends))
        with pytest.raises(Killed):
            Steps(run).upto(load)

    def quarantined(self) -> list[tuple[str, str]]:
        rows = self.lake.run().quarantine.open()
        return sorted((row.error_class, f"{row.table} {row.segment.rpartition('/')[2]}") for row in rows)

    def held(self) -> dict[str, str]:
        run = self.lake.run()
        return {
            id.rpartition("@")[0]: why
            for id, why in find_holds(run, run.history.history.incarnations(), LATER).reasons.items()
        }

    def undecoded(self) -> int:
        return sum(map(len, self.lake.run().segments.undecoded(DUMP).values()))

    def loads(self) -> dict[str, int]:
        return {str(name): at for name, at in loads_of(self.lake.run().history).items()}


@pytest.fixture
def loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loading:
    return Loading(tmp_path, monkeypatch)


def test_what_is_in_events_is_marked_when_the_dump_is_gone(loading: Loading) -> None:
    loading.load()
    assert loading.loads() == {"d.a": TSO, "d.b": TSO} and not loading.quarantined()
    loading.write("a", "b", tso=LATER)
    loading.kill("d.a")
    shutil.rmtree(loading.directory)
    loading.events.read.clear()
    marked = loading.load()
    assert [segment.events for segment in marked] == [1, 1] and loading.undecoded() == 0
    assert not loading.events.read and len(loading.events.batches) == 2
    assert loading.quarantined() == [
        ("BadTableOfDump", "a "),
        ("NotLookedAt", "a d.a.000000000.csv"),
        ("NotLookedAt", "a d.a.000000001.csv"),
    ]
    assert list(loading.held()) == ["d.a"], "the others go on"
    assert "restore the dump" in loading.held()["d.a"]
    assert loading.load() == ()

    # With the dump there again the load comes to its end.
    loading.write("a", "b", tso=LATER)
    loading.load()
    assert loading.loads() == {"d.a": LATER, "d.b": TSO}
    assert {kind for kind, _ in loading.quarantined()} == {"NotLookedAt"}


def test_rows_that_are_missing_hold_their_table_alone(loading: Loading) -> None:
    loading.load()
    loading.write("a", "b", tso=LATER)
    loading.kill("d.a", committed=False)
    shutil.rmtree(loading.directory)
    for _ in range(2):
        assert loading.load() == () and loading.undecoded() == 2
        assert loading.quarantined() == [
            ("BadTableOfDump", "a "),
            ("UnreadableSegment", "a d.a.000000000.csv"),
            ("UnreadableSegment", "a d.a.000000001.csv"),
        ]
        assert list(loading.held()) == ["d.a"]
    assert "has no metadata file" in loading.held()["d.a"] and "source.initial.uri" in loading.held()["d.a"]

    # Another dump is a way out.
    loading.write("a", "b", tso=LATER + 1000)
    assert len(loading.load("d.a")) == 4
    assert loading.undecoded() == 0 and not loading.quarantined() and not loading.held()
    assert loading.loads() == {"d.a": LATER + 1000, "d.b": TSO}


def test_files_that_are_missing_hold_their_table_alone(loading: Loading) -> None:
    """In the first load, too."""
    loading.kill(committed=False)
    (loading.directory / "d.a.000000001.csv").unlink()
    assert len(loading.load()) == 3 and loading.undecoded() == 1
    assert loading.quarantined() == [("UnreadableSegment", "a d.a.000000001.csv")]
    assert list(loading.held()) == ["d.a"]
    loading.write("a", "b")
    assert len(loading.load()) == 1
    assert not loading.undecoded() and not loading.quarantined()


@pytest.mark.parametrize("committed", [False, True])
def test_a_first_load_goes_on_from_another_dump(loading: Loading, committed: bool) -> None:
    loading.kill(committed=committed)
    shutil.rmtree(loading.directory)
    loading.begun = False
    with pytest.raises(SourceError, match=r"4 files of the dump at .* no metadata file.* restore the dump"):
        loading.load()
    loading.begun = True
    loading.write("a", "b", tso=LATER)
    loading.load()
    assert loading.undecoded() == 0 and not loading.quarantined()
    assert loading.loads() == {"d.a": LATER, "d.b": LATER}
    landed = {name for names in loading.events.batches.values() for name in names if f"/{LATER}/" in name}
    assert len(landed) == 4, "all rows of the new one"


def test_a_first_load_that_ended_before_its_tables_were_recorded_takes_no_rows_from_another_dump_for_granted(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("cdc_lakehouse.pipeline.steps._evolve", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            loading.load()
    assert loading.undecoded() == 0 and not loading.loads()
    loading.write("a", "b", tso=LATER)
    assert len(loading.load()) == 4
    assert loading.loads() == {"d.a": LATER, "d.b": LATER}


def test_a_table_that_was_never_loaded_needs_the_dump(loading: Loading) -> None:
    """It would begin empty."""
    loading.lake.configure(tables={"exclude": ["d.b"]})
    loading.load()
    loading.lake.configure(tables={})
    shutil.rmtree(loading.directory)
    with pytest.raises(SourceError, match="no metadata file"):
        loading.load()
