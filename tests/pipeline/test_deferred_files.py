"""Data files of a batch: one that only its reader finds a fault with waits with its table, and the others go on."""

from __future__ import annotations

import datetime
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_lakehouse.changelog.positions import AHEAD_MS, LOGICAL_BITS
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.segments import Appended
from cdc_lakehouse.pipeline import sink as sink_decoding
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.object_store import opening as segments
from tests.kit.lakes import TestLake
from tests.pipeline import DAY, Sink


def fresh(lake: TestLake) -> tuple[FeedRun, list[int]]:
    """A run that decodes without a JVM, and the batches that it appends."""
    lake.session = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    run, appended = lake.run(), list[int]()
    events: Any = SimpleNamespace(
        appended=Appended(), writer=lambda: None, commit=lambda files, segments: appended.append(segments[0].batch)
    )
    run.__dict__["events"] = events
    return run, appended


@pytest.mark.parametrize("tables", [("a", "b"), ("a",)], ids=["beside another", "alone"])
def test_a_file_that_is_too_large_waits_with_its_table(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch, tables: tuple[str, ...]
) -> None:
    sink = Sink(lake.sink, *tables, checkpoint=10)
    large, *others = [sink.file(table) for table in tables]
    limit = (lake.sink / large).stat().st_size
    with (lake.sink / large).open("a") as file:
        file.write("\r\n")
    monkeypatch.setattr(segments, "SEGMENT_LIMIT", limit)
    run, appended = fresh(lake)
    decoded, rejected = run.source.decode(run.source.land().new, append=True)
    assert ([segment.segment for segment in decoded], list(rejected)) == (others, [])
    assert appended == [2] * len(others)
    assert [(row.segment, row.error_class) for row in run.quarantine.open()] == [(large, "UnreadableSegment")]
    assert "larger than" in run.quarantine.open()[0].message


def test_a_file_is_judged_by_when_it_landed(lake: TestLake) -> None:
    """So it is decoded as before, whenever that is done again."""
    sink = Sink(lake.sink, "a", checkpoint=10)
    paths = [sink.file("a"), sink.file("a", at=2 * AHEAD_MS << LOGICAL_BITS)]
    run, _ = fresh(lake)
    landed = [replace(segment, landed_at=DAY) for segment in run.source.land().new]
    _, rejected = run.source.decode(landed, append=False)
    assert [(each.segment, each.line, each.error_class) for each in rejected] == [(paths[1], 1, "NoCommitTs")]
    later = [replace(segment, landed_at=DAY + datetime.timedelta(days=1)) for segment in landed]
    assert list(run.source.decode(later, append=False)[1]) == []


def test_a_fault_of_a_setting_ends_the_run(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: FeedRun, segments: Any) -> None:
        raise SourceError("a setting is wrong", feed=run.feed.name, segment=segments[0].segment)

    Sink(lake.sink, "a", checkpoint=10).file("a")
    monkeypatch.setattr(sink_decoding, "_require_commit_ts", refuse)
    run, _ = fresh(lake)
    with pytest.raises(SourceError, match="a setting is wrong"):
        run.source.decode(run.source.land().new, append=True)
    assert run.quarantine.open() == []


def test_file_that_an_earlier_run_landed_gets_a_new_batch(lake: TestLake) -> None:
    """Tables may have read up to the batch that it had."""
    sink = Sink(lake.sink, "a", checkpoint=10)
    path = lake.sink / sink.file("a")
    run, appended = fresh(lake)
    landed = run.source.land().new
    away = path.rename(lake.sink.with_name("away"))
    assert run.source.decode(landed, append=True) == ([], [])
    away.rename(path)
    run, appended = fresh(lake)
    ((batch, segments),) = run.segments.undecoded("file").items()
    decoded, _ = run.source.decode(segments, append=True)
    assert (batch, [each.batch for each in decoded], appended) == (1, [2], [2])
