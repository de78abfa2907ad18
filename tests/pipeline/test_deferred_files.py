"""Data files of a batch: one that only its reader finds a fault with waits with its table, and the others go on."""

from __future__ import annotations

import datetime
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.positions import AHEAD_MS, LOGICAL_BITS
from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.tables.segments import Appended, contents_of
from cdc_lakehouse.pipeline import sink as sinks
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources import object_store
from tests.kit.lakes import TestLake
from tests.pipeline import DAY, T0, Sink


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
    monkeypatch.setattr(object_store, "SEGMENT_LIMIT", (lake.sink / large).stat().st_size)
    with (lake.sink / large).open("a") as file:
        file.write("\r\n")
    run, appended = fresh(lake)
    decoded, rejected = run.source.decode(run.source.land().new)
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
    properties = Appended(1, frozenset({1})).as_properties()
    table = lake.lake.catalog.create_table((f"cdc_{lake.name}", "events"), rows.schema, properties=properties)
    table.append(rows)
    (lake.sink / gone).unlink()
    if not is_local:
        monkeypatch.setattr(sinks, "find_unreadable", lambda *_: dict[str, str]())
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
    schema, unmarked = pa.schema([("segment", pa.string())]), Appended(2, frozenset({1, 2}))
    lake.lake.catalog.create_table((f"cdc_{lake.name}", "events"), schema, properties=unmarked.as_properties())
    run, made = lake.run(), SimpleNamespace(commit=lambda **_: 7)
    vars(run).update(iceberg=SimpleNamespace(transaction=lambda *_: made))
    vars(run.events).update(writer=_Events().writer)
    (_, first), (_, second) = run.segments.undecoded("file").items()
    run.source.decode(first)
    with pytest.raises(ConcurrentRunError):  # What stands for the commit has left the table as it was.
        run.source.decode(second)
    (again,) = run.segments.find([second[0].segment]).values()
    assert contents_of(again.replaces) == [(2, 7)]
