"""Data files of a batch: one that only its reader finds a fault with waits with its table, and the others go on."""

from __future__ import annotations

import datetime
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_lakehouse.changelog.positions import AHEAD_MS, LOGICAL_BITS
from cdc_lakehouse.lake.tables.segments import Appended
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources import object_store
from tests.kit.lakes import TestLake
from tests.pipeline import DAY, Sink


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
