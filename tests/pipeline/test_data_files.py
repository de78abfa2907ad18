"""Data files that cannot be decoded, or were cut off: they wait with their tables, and the others go on."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.positions import AHEAD_MS, LOGICAL_BITS
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.tables.segments import Appended, Segment, contents_of
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sample.sink_writer import LINE_END, SampleRowChange, Table, canal_json
from cdc_lakehouse.sources import object_store
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.lakes import TestLake
from tests.lake import CREATE, ID, LATER, NOON, change
from tests.pipeline import DAY, T0, Sink, events_of, lake_in


class _Events:
    """Decodes without a JVM, and notes the batches that are appended."""

    def __init__(self) -> None:
        self.appended, self.batches = Appended(), list[int]()

    def writer(self) -> SimpleNamespace:
        return SimpleNamespace(write=lambda events: list(events) and [])

    def commit(self, _: Any, segments: Any) -> None:
        self.batches.append(segments[0].batch)


def fresh(lake: TestLake) -> tuple[FeedRun, list[int]]:
    lake.session = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    run, events = lake.run(), _Events()
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
    assert appended == [2] * len(others)
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
    assert (batch, [each.batch for each in decoded], appended) == (1, [2], [2])


@pytest.mark.parametrize("is_local", [True, False], ids=["seen at first", "seen by the task"])
def test_file_gone_after_its_events_came_in_is_decoded(
    is_local: bool, lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that was killed before it marked them: they are counted, and their table has them to apply."""
    sink = Sink(lake.sink, "a", "b", checkpoint=10)
    gone, there = sink.file("a"), sink.file("b", at=2)
    lake.run().source.land()
    row = {"schema_name": "d", "table_name": "a", "op": "I"}
    rows = pa.Table.from_pylist([{"segment": gone, **row, "commit_ts": T0 + 1}, {"segment": there, **row}])
    table = events_of(lake, rows, Appended(1, frozenset({1})))
    (lake.sink / gone).unlink()
    if not is_local:
        monkeypatch.setattr("cdc_lakehouse.pipeline.sink.find_unreadable", lambda *_: dict[str, str]())
    run, appended = lake.run(), list[int]()
    vars(run.events).update(writer=_Events().writer, commit=lambda _, segments: appended.append(segments[0].batch))
    ((_, segments),) = run.segments.undecoded("file").items()
    ((decoded,), _) = run.source.decode(segments)
    snapshot = table.current_snapshot()
    assert snapshot is not None and contents_of(decoded.replaces) == [(1, snapshot.snapshot_id)]
    assert (decoded.segment, [decoded.batch]) == (there, appended) and decoded.batch > 1
    found = lake.run().segments.find([gone])[gone]
    assert (found.state, found.batch, found.events, found.max_commit_ts) == ("decoded", 1, 1, T0 + 1)
    (why,) = lake.run().quarantine.open()
    assert (why.segment, why.error_class) == (gone, "UnreadableSegment") and "quarantine replay" in why.message
    assert len(lake.run().segments.rows) == 2


def test_second_batch_that_was_not_marked_names_a_snapshot(lake: TestLake) -> None:
    """The one that the run has made of the first has its events too."""
    sink = Sink(lake.sink, "a", checkpoint=10)
    for at in (1, 2):
        sink.file("a", at=at)
        lake.run().source.land()
    events_of(lake, appended=Appended(2, frozenset({1, 2})))
    run, made = lake.run(), SimpleNamespace(commit=lambda **_: 7)
    vars(run).update(iceberg=SimpleNamespace(transaction=lambda *_: made))
    vars(run.events).update(writer=_Events().writer)
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
        _, _, version, date, name = path.split("/")
        segment = Segment(
            segment=path, kind="file", database="d", table="a", table_version=int(version), feed_date=date,
            file_index=int(name[-8:-5]), size=len(content), etag=getattr(listed, "etag", None), batch=1,
            state="decoded", landed_at=NOON, modified_at=NOON, events=len(ats), quarantined=1 if part else 0,
            min_commit_ts=100 + min(ats, default=0), max_commit_ts=100 + max(ats, default=0),
        )  # fmt: skip
        run.segments.land([replace(segment, **more)])
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


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/cut_off.txt"), ids=str)
def test_cut_is_proved_by_its_rows_in_later_files(tmp_path: Path, case: Case, update: bool) -> None:
    files = Files(lake_in(tmp_path))
    files.lake.run().history.record([change(10, "a", CREATE)], NOON)
    assert files.file("1", [4, 5], PART) == "open held"
    names = {name: getattr(files, name) for name in ("file", "gone", "quarantine")}
    names["again"] = Rejected(path_of("1"), 3, "NotJson", "it is bad", PART, "d", "a")
    case.compare(evaluated(case, {**names, "ALL": ALL, "SEVENTH": SEVENTH, "of_8": messages([8])[:40]}), update=update)
