"""Decisions about quarantined rows: what a replay lands again, and what counts for the limit of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.decoders.problems import MISSING_FILE, UNREADABLE_DIRECTORY, Rejected
from cdc_lakehouse.decoders.topic_order import PartitionSummary
from cdc_lakehouse.errors import QuarantineLimitError, SourceError
from cdc_lakehouse.lake.tables.segments import Segment, contents_of
from cdc_lakehouse.operate.decisions import replay
from cdc_lakehouse.pipeline.dump import DumpSource
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.sink_files import LastFiles, quarantine_missing
from cdc_lakehouse.pipeline.steps import require_few_rejected
from cdc_lakehouse.sources.record_log import LogPartition, OffsetRange
from cdc_lakehouse.sources.sink.paths import Listing
from tests.kit import dumps
from tests.kit.lakes import TestLake
from tests.lake import LATER, NOON, segment
from tests.pipeline import Sink, lake_in


def bad(segment: str, line: int | None = 1, kind: str = "NotJson", raw: bytes = b"x") -> Rejected:
    return Rejected(segment, line, kind, "it is bad", raw, "d", "a")


def discard(run: FeedRun, *ids: str) -> None:
    quarantine = run.quarantine
    quarantine.discard(set(ids) or {row.id for row in quarantine.open()}, "ann", "test data", LATER)


def states(run: FeedRun) -> list[tuple[str, str]]:
    return sorted((row.segment, row.state) for row in run.quarantine.rows)


@pytest.fixture
def sink(lake: TestLake) -> Sink:
    return Sink(lake.sink, "t", checkpoint=10)


def decoded(lake: TestLake, *paths: str) -> FeedRun:
    """A run that finds these files decoded, each with a line that could not be used."""
    run = lake.run()
    run.source.land()
    rows = pa.table({"segment": list(paths)})
    lake.lake.catalog.create_table((f"cdc_{lake.name}", "events"), rows.schema).append(rows)
    for segments in run.segments.undecoded("file").values():
        run.segments.mark_decoded([replace(each, state="decoded", events=1) for each in segments])
    run.quarantine.replace(lambda _: False, [bad(path) for path in paths], NOON)
    return lake.run()


def test_replay_lands_segments_of_rows_and_no_others(lake: TestLake, sink: Sink) -> None:
    first, second = sink.file("t"), sink.file("t", at=2)
    run = decoded(lake, first, second)
    snapshot = run.appended().snapshot_id
    (row,) = [row for row in run.quarantine.rows if row.segment == first]
    discard(run, row.id)
    again = lake.run()
    found = replay(again, [row for row in again.quarantine.rows if row.segment == first])
    assert [each.segment for each in found.landed] == [first] and found.others == ()
    (waiting,) = lake.run().segments.undecoded("file")[2]
    assert (waiting.segment, contents_of(waiting.replaces), waiting.events) == (first, [(1, snapshot)], None)
    # The decision is taken back.
    assert states(lake.run()) == sorted([(first, "open"), (second, "open")])
    # Once more before the next run: it waits already.
    assert replay(lake.run(), lake.run().quarantine.rows[:1]).landed == ()


@pytest.mark.parametrize("change_of", ["gone", "changed"])
def test_replay_of_missing_segment_is_refused(lake: TestLake, sink: Sink, change_of: str) -> None:
    first, second = sink.file("t"), sink.file("t", at=2)
    run = decoded(lake, first, second)
    path = lake.sink / first
    if change_of == "gone":
        path.unlink()
    else:
        path.write_text("{}\r\n")
    before = lake.metadata()
    with pytest.raises(SourceError, match="1 segments cannot be decoded again") as caught:
        replay(run, run.quarantine.rows)
    assert caught.value.segment == first and "content changed" in str(caught.value)
    assert lake.metadata() == before


def test_replay_leaves_rows_that_each_run_retries(lake: TestLake, sink: Sink) -> None:
    path = sink.file("t")
    run = lake.run()
    run.source.land()
    run.quarantine.replace(lambda _: False, [bad(path, None, "UnreadableSegment"), bad("d/a/meta/schema")], NOON)
    before = lake.metadata()
    found = replay(lake.run(), run.quarantine.rows)
    assert not found.landed and len(found.others) == 2
    assert lake.metadata() == before


def test_replay_of_range_of_topic_lands_its_batch(tmp_path: Path) -> None:
    source = {"type": "kafka", "format": "canal-json", "bootstrap_servers": "k:9092", "topics": ["t"]}
    lake = lake_in(tmp_path, source=source)
    ranges = [
        OffsetRange(LogPartition("t", number), start, start + 9, 10).segment
        for number, start in ((0, 0), (1, 0), (0, 10))
    ]
    rows = [
        Segment(
            segment=name, kind="offsets", size=10, batch=batch, record_batch=batch, state="decoded", landed_at=NOON,
            events=3,
        )
        for name, batch in zip(ranges, (1, 1, 2), strict=True)
    ]  # fmt: skip
    lake.run().segments.land(rows)
    lake.run().quarantine.replace(lambda _: False, [bad(ranges[0], 4, "BadMessage")], NOON)
    run = lake.run()
    replay(run, run.quarantine.rows)
    (landed,) = lake.run().segments.undecoded("offsets").values()
    assert sorted((row.segment, row.batch, row.record_batch, row.events) for row in landed) == sorted(
        (name, 3, 1, None) for name in ranges[:2]
    )
    # Times of messages are judged anew. Where nobody has asked for it, they are judged as before.
    assert all(row.landed_at > NOON for row in landed)
    run.signals.write(2, {("t", 0, 2): PartitionSummary(0, 0, left_out={("d", "t")})})
    times = {row.segment: row.landed_at for row in run.source.land_left_out()}
    assert times[ranges[2]] == NOON


def test_replay_of_file_of_dump_lands_that_file_alone(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dumps.dumpling(dump, [dumps.DumpTable("d", "t", {"id": "int PRIMARY KEY"}, [(1,), (2,)])], rows_per_file=1)
    lake = lake_in(tmp_path, source={"initial": {"type": "dumpling", "uri": str(dump), "start_ts": 1}})
    Sink(lake.sink, checkpoint=10)
    assert lake.feed.initial is not None
    first, second = DumpSource(lake.run(), lake.feed.initial).land().new
    run = lake.run()
    run.segments.mark_decoded([replace(each, state="decoded", events=1) for each in (first, second)])
    run.quarantine.replace(lambda _: False, [bad(first.segment, 1, "NotAValue")], NOON)
    run = lake.run()
    (landed,) = replay(run, run.quarantine.rows).landed
    assert (landed.segment, landed.batch, landed.state) == (first.segment, 2, "landed")
    run.segments.mark_decoded([replace(landed, state="decoded", events=1)])

    next(dump.glob("*.000000000.csv")).unlink()
    run, before = lake.run(), lake.metadata()
    with pytest.raises(SourceError, match="are no longer part of it"):
        replay(run, run.quarantine.rows)
    assert lake.metadata() == before


def test_sink_is_listed_whole_while_a_part_could_not_be(lake: TestLake, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Sink(lake.sink, "t", checkpoint=10).file("t")
    lake.run().source.land()
    run = lake.run()
    run.quarantine.replace(lambda _: False, [bad("d/b", None, UNREADABLE_DIRECTORY)], NOON)
    discard(run)
    caplog.clear()
    lake.run().source.land()
    assert "listing the whole sink: parts of it could not be listed" in caplog.text


def test_files_that_cannot_be_read_do_not_count_for_limit(tmp_path: Path) -> None:
    run = lake_in(tmp_path, policy={"max_quarantined_rows": 0}).run()
    run.segments.land([segment("d/a/10/CDC000001.json")])
    run.quarantine.replace(lambda _: False, [bad("d/a/10/CDC000001.json", None, "UnreadableSegment")], NOON)
    require_few_rejected(run)
    run.segments.mark_decoded([replace(segment("d/a/10/CDC000001.json"), state="decoded", events=1)])
    with pytest.raises(QuarantineLimitError):
        require_few_rejected(run)


def test_limit_is_no_setting_that_tables_depend_on(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    before = lake.run().settings
    lake.configure(policy={"max_quarantined_rows": 5})
    assert lake.run().settings == before


def test_discarded_missing_input_is_resolved_when_it_comes(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    run = lake.run()
    schemas: Any = SimpleNamespace(name_at=lambda path: ("d", "a"))
    quarantine_missing(run, Listing(), LastFiles({"d/a/10/CDC000001.json": "it is missing"}, {}, set()), schemas)
    rejected = Rejected("d/b", None, UNREADABLE_DIRECTORY, "it cannot be listed", None, "d", "b")
    run.quarantine.replace(lambda _: False, [rejected], NOON)
    discard(run)
    assert {row.error_class for row in run.quarantine.discarded()} == {MISSING_FILE, UNREADABLE_DIRECTORY}
    run.segments.land([segment("d/a/10/CDC000001.json")])
    quarantine_missing(run, Listing(), LastFiles({}, {}, set()), schemas)
    assert {row.state for row in run.quarantine.rows} == {"replayed"}
