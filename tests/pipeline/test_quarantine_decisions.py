"""What a person decides of quarantined rows, and the limit of a run, in the steps that need no JVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from cdc_lakehouse.decoders.partition_summary import PartitionSummary
from cdc_lakehouse.decoders.problems import BAD_VALUE, MISSING_FILE, UNREADABLE_DIRECTORY, Rejected
from cdc_lakehouse.errors import PermanentError, QuarantineLimitError, SourceError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.events import BatchCounts
from cdc_lakehouse.lake.tables.segments import Appended, Segment, contents_of, replayed_segment
from cdc_lakehouse.pipeline import apply as applying
from cdc_lakehouse.pipeline.dump_source import DumpSource
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.missing_files import LastFiles, quarantine_missing
from cdc_lakehouse.pipeline.quarantine_limit import require_few_rejected
from cdc_lakehouse.pipeline.replay import replay
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps, apply, decode, publish
from cdc_lakehouse.pipeline.table_changes import find_changed_tables
from cdc_lakehouse.pipeline.table_update import plan_update
from cdc_lakehouse.sources.record_log import LogPartition, OffsetRange
from cdc_lakehouse.sources.sink.paths import Listing
from tests.kit import dumps
from tests.kit.lakes import TestLake
from tests.lake import CREATE, LATER, NOON, change, segment
from tests.pipeline import Sink, lake_in
from tests.pipeline.test_work import Feed

A = change(10, "a", CREATE)
ONE, TWO, OTHER = (f"d/a/10/CDC00000{n}.json" for n in (1, 2, 3))


def bad(segment: str, line: int | None = 1, kind: str = "NotJson", raw: bytes = b"x", count: int = 1) -> Rejected:
    return Rejected(segment, line, kind, "it is bad", raw, "d", "a", count)


def discard(run: FeedRun, *ids: str) -> None:
    quarantine = run.quarantine
    quarantine.discard(set(ids) or {row.id for row in quarantine.open()}, "ann", "test data", LATER)


def states(run: FeedRun) -> list[tuple[str, str]]:
    return sorted((row.segment, row.state) for row in run.quarantine.rows)


class Decoder:
    """A source whose segments have landed, and that rejects what it is told to. `events` stands for the table."""

    kind = "file"
    dump_comes_first = True

    def __init__(self, lake: TestLake) -> None:
        self.lake = lake
        self.rejects: list[Rejected] = []
        self.decoded: list[int] = []

    def run(self) -> FeedRun:
        run = self.lake.run()
        nothing: Any = SimpleNamespace(
            ensure=lambda: None, appended=Appended(), counts=lambda segments: BatchCounts({})
        )
        vars(run).update(source=self, events=nothing)
        return run

    def land(self) -> None:
        return

    def land_left_out(self) -> tuple[()]:
        return ()

    def resolve_redelivered(self) -> None:
        return

    def decode(self, segments: Sequence[Segment], *, append: bool) -> tuple[Sequence[Segment], Sequence[Rejected]]:
        self.decoded.append(segments[0].batch)
        names = {each.segment for each in segments}
        return segments, [row for row in self.rejects if row.segment in names]


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    return limited(tmp_path, None)


def limited(directory: Path, limit: int | None, *segments: Segment) -> Decoder:
    decoder = Decoder(lake_in(directory, policy={} if limit is None else {"max_quarantined_rows": limit}))
    decoder.lake.run().segments.land(segments or [segment(ONE), segment(TWO, file_index=2)])
    return decoder


def decode_again(decoder: Decoder) -> FeedRun:
    """All segments in a new batch, as though they were asked for."""
    run = decoder.run()
    rows = run.segments.find([ONE, TWO]).values()
    run.segments.land([replayed_segment(row, run.segments.batch + 1, Appended(1, {}, 7), NOON) for row in rows])
    run = decoder.run()
    Steps(run).upto(decode)
    return run


# --- Lines that were given up ---


def test_a_discarded_line_stays_so_when_its_segment_is_decoded_again(decoder: Decoder) -> None:
    decoder.rejects = [bad(ONE), bad(TWO)]
    Steps(run := decoder.run()).upto(decode)
    discard(run, run.quarantine.rows[0].id)
    assert states(decode_again(decoder)) == [(ONE, "discarded"), (TWO, "open")]


def test_other_bytes_at_the_same_place_are_open(decoder: Decoder) -> None:
    decoder.rejects = [bad(ONE)]
    Steps(run := decoder.run()).upto(decode)
    discard(run)
    decoder.rejects = [bad(ONE, raw=b"y")]
    assert states(decode_again(decoder)) == [(ONE, "open"), (ONE, "replayed")]


def test_rows_that_tables_could_not_take_stay_discarded_when_their_segment_is_decoded_again(decoder: Decoder) -> None:
    """Whether they are bad is found when they are applied."""
    Steps(run := decoder.run()).upto(decode)
    run.quarantine.replace(lambda _: False, [bad(ONE, kind=BAD_VALUE), bad(ONE, 2, BAD_VALUE)], NOON)
    discard(run, run.quarantine.rows[0].id)
    assert states(decode_again(decoder)) == [(ONE, "discarded"), (ONE, "replayed")]


def test_what_is_discarded_holds_no_table(tmp_path: Path) -> None:
    run = lake_in(tmp_path).run()
    run.history.record([A], NOON)
    run.segments.land([segment(ONE)])
    run.quarantine.replace(lambda _: True, [bad(ONE), bad(ONE, 2)], NOON)

    def held() -> list[str]:
        return list(find_holds(run, run.history.history.incarnations(), 100).reasons)

    first, second = (row.id for row in run.quarantine.open())
    discard(run, first)
    assert held() == ["d.a#1"]
    discard(run, second)
    assert held() == []


def test_missing_input_that_was_discarded_is_known_until_it_is_there(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    run = lake.run()
    schemas: Any = SimpleNamespace(name_at=lambda path: ("d", "a"))
    quarantine_missing(run, Listing(), LastFiles({ONE: "it is missing"}, {}, set()), schemas)
    rejected = Rejected("d/b", None, UNREADABLE_DIRECTORY, "it cannot be listed", None, "d", "b")
    run.quarantine.replace(lambda _: False, [rejected], NOON)
    discard(run)
    assert {row.error_class for row in run.quarantine.discarded()} == {MISSING_FILE, UNREADABLE_DIRECTORY}
    run.segments.land([segment(ONE)])
    quarantine_missing(run, Listing(), LastFiles({}, {}, set()), schemas)
    assert {row.state for row in run.quarantine.rows} == {"replayed"}


def test_the_whole_sink_is_listed_as_long_as_a_part_could_not_be_whether_it_was_given_up_or_not(
    lake: TestLake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    Sink(lake.sink, "t", checkpoint=10).file("t")
    lake.run().source.land()
    run = lake.run()
    run.quarantine.replace(lambda _: False, [bad("d/b", None, UNREADABLE_DIRECTORY)], NOON)
    discard(run)
    caplog.clear()
    lake.run().source.land()
    assert "listing the whole sink: parts of it could not be listed" in caplog.text


# --- Rows that a table cannot take ---

FIRST, SECOND = bad(ONE, 1, BAD_VALUE, b"1"), bad(ONE, 2, BAD_VALUE, b"2")


def audit(run: FeedRun, rejected: Sequence[Rejected], **changes: Any) -> tuple[list[Any], dict[str, str]]:
    name = A.table
    table: Any = SimpleNamespace(
        changes=SimpleNamespace(
            number=0,
            life=SimpleNamespace(id="d.a#1"),
            target=SimpleNamespace(name=SimpleNamespace(database="d", table=name)),
            **{"redecoded": (), "is_rebuilt": False, **changes},
        )
    )
    updated: Any = SimpleNamespace(failure=None, collides=False, misfit=None, rejected=tuple(rejected))
    sound, holds = applying._audit(run, [table], {0: updated})
    return sound, dict(holds.reasons)


@pytest.mark.parametrize(
    ("policy", "given_up", "goes_on"),
    [("hold", [], False), ("hold", [FIRST], False), ("hold", [FIRST, SECOND], True), ("skip", [], True)],
)
def test_a_table_goes_on_only_if_every_row_that_it_cannot_take_was_discarded(
    tmp_path: Path, policy: str, given_up: list[Rejected], goes_on: bool
) -> None:
    run = lake_in(tmp_path, policy={"quarantine": policy}).run()
    run.quarantine.replace(lambda _: False, given_up, NOON)
    if given_up:
        discard(run)
    sound, reasons = audit(run, [FIRST, SECOND])
    assert (bool(sound), bool(reasons)) == (goes_on, not goes_on)
    assert run.quarantine.count() == 2 - len(given_up)
    # With other bytes at the place of one of them it would wait.
    sound, _ = audit(run, [FIRST, replace(SECOND, raw=b"other")])
    assert bool(sound) == (policy == "skip")


@pytest.mark.parametrize(
    ("changes", "state"),
    [({}, "discarded"), ({"is_rebuilt": True}, "replayed"), ({"redecoded": (segment(ONE),)}, "replayed")],
    ids=["passed by", "computed anew", "its keys computed anew"],
)
def test_a_discarded_row_is_used_after_all_only_where_it_was_tried_again(
    tmp_path: Path, changes: dict[str, Any], state: str
) -> None:
    run = lake_in(tmp_path).run()
    run.quarantine.replace(lambda _: False, [FIRST], NOON)
    discard(run)
    audit(run, [], **changes)
    assert [row.state for row in run.quarantine.rows] == [state]


def test_the_tasks_of_a_table_write_without_bad_rows_where_some_are_discarded(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    feed.table("a")
    feed.land(segment(TWO, 2, "decoded", file_index=2, events=1, min_commit_ts=55, max_commit_ts=55))
    schema = Schema(NestedField(1, "id", LongType())).model_dump_json()

    def skips() -> bool:
        run = feed.lake.run()
        opened: Any = SimpleNamespace(
            upgrade=lambda _: None, change_schema=lambda steps: None, schema_json=lambda: schema
        )
        vars(run)["iceberg"] = SimpleNamespace(transaction=lambda *_: opened)
        tables = CurrentTables(run.lake, run.feed)
        lives = {id: life for id, life in run.history.history.incarnations().items() if id == "d.a#1"}
        (changes,), _ = find_changed_tables(run, tables, lives, find_holds(run, lives, 60), 60)
        return plan_update(run, tables, changes).update.skips_rejected

    run = feed.lake.run()
    run.quarantine.replace(lambda _: False, [FIRST, replace(bad(OTHER, kind=BAD_VALUE), table="b")], NOON)
    of_a, of_b = (row.id for row in run.quarantine.open())
    assert not skips()
    discard(run, of_b)
    assert not skips()
    discard(run, of_a)
    assert skips()


# --- Decoding again ---


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


def test_a_replay_lands_the_segments_of_the_rows_and_no_others(lake: TestLake, sink: Sink) -> None:
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
def test_a_segment_that_is_not_there_any_more_is_refused_and_nothing_changes(
    lake: TestLake, sink: Sink, change_of: str
) -> None:
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


def test_what_each_run_tries_by_itself_is_said_and_left_alone(lake: TestLake, sink: Sink) -> None:
    path = sink.file("t")
    run = lake.run()
    run.source.land()
    run.quarantine.replace(lambda _: False, [bad(path, None, "UnreadableSegment"), bad("d/a/meta/schema")], NOON)
    before = lake.metadata()
    found = replay(lake.run(), run.quarantine.rows)
    assert not found.landed and len(found.others) == 2
    assert lake.metadata() == before


def test_a_replay_of_a_range_of_a_topic_lands_its_whole_batch(tmp_path: Path) -> None:
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


def test_a_replay_of_a_file_of_a_dump_lands_that_file_alone_and_not_one_that_is_gone(tmp_path: Path) -> None:
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


# --- The limit of a run ---


def test_a_run_with_too_many_stops_before_it_applies_and_its_rows_are_recorded(tmp_path: Path) -> None:
    decoder = limited(tmp_path, 2)
    decoder.rejects = [bad(ONE), bad(TWO, None, count=2)]
    with pytest.raises(QuarantineLimitError) as caught:
        Steps(decoder.run()).upto(publish)
    run = decoder.run()
    assert run.quarantine.count() == 3 and run.segments.undecoded("file") == {}
    assert decoder.lake.machinery("checkpoints") == []
    text = str(caught.value)
    assert isinstance(caught.value, PermanentError), "it must not be retried"
    assert caught.value.feed == decoder.lake.name and (caught.value.segment, caught.value.line) == (ONE, 1)
    first = next(row.id for row in run.quarantine.open() if row.segment == ONE)
    assert (
        "3 rows of what the run of 2026-06-01 12:00:00 UTC has landed" in text
        and "max_quarantined_rows (2)" in text
        and first in text
        and "discard" in text
    )


def test_the_next_run_stops_too_until_the_rows_are_discarded_or_mended(tmp_path: Path) -> None:
    decoder = limited(tmp_path, 1)
    decoder.rejects = [bad(ONE), bad(TWO)]
    for _ in range(2):
        with pytest.raises(QuarantineLimitError):
            Steps(decoder.run()).upto(apply)
    assert decoder.decoded == [1]
    run = decoder.run()
    discard(run, run.quarantine.open()[0].id)
    Steps(decoder.run()).upto(decode)

    decoder.rejects = []
    decode_again(decoder)


def test_the_limit_is_of_what_a_run_has_landed_in_all_of_its_batches(tmp_path: Path) -> None:
    batches = [segment(path, number, file_index=number) for number, path in enumerate((ONE, TWO, OTHER), start=1)]
    decoder = limited(tmp_path, 1, *batches)
    decoder.rejects = [bad(ONE), bad(TWO)]
    with pytest.raises(QuarantineLimitError, match="2 rows of what"):
        Steps(decoder.run()).upto(decode)
    assert decoder.decoded == [1, 2], "what comes behind waits"
    # Of two runs each is within it, and they may be decoded by one that follows.
    decoder = limited(tmp_path / "other", 1, batches[0], replace(batches[1], landed_at=LATER))
    decoder.rejects = [bad(ONE), bad(TWO)]
    Steps(decoder.run()).upto(decode)
    assert decoder.decoded == [1, 2]


def test_what_has_landed_since_is_decoded_before_the_feed_is_stopped_once_more(tmp_path: Path) -> None:
    """It may be mended files."""
    decoder = limited(tmp_path, 1, segment(ONE), segment(TWO, 2, file_index=2, landed_at=LATER))
    decoder.rejects = [bad(ONE), bad(ONE, 2)]
    for decoded in ([1], [1, 2]):
        with pytest.raises(QuarantineLimitError):
            Steps(decoder.run()).upto(decode)
        assert decoder.decoded == decoded


def test_rows_that_a_table_cannot_take_do_not_stop_the_feed(tmp_path: Path) -> None:
    decoder = limited(tmp_path, 0)
    Steps(run := decoder.run()).upto(decode)
    run.quarantine.replace(lambda _: False, [bad(ONE, kind=BAD_VALUE), bad("d/a/meta/schema", None)], NOON)
    Steps(decoder.run()).upto(decode)


def test_files_that_cannot_be_read_yet_do_not_stop_the_feed(tmp_path: Path) -> None:
    run = limited(tmp_path, 0).run()
    run.quarantine.replace(lambda _: False, [bad(ONE, None, "UnreadableSegment")], NOON)
    require_few_rejected(run)


def test_the_limit_is_no_setting_that_tables_depend_on(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    before = lake.run().settings
    lake.configure(policy={"max_quarantined_rows": 5})
    assert lake.run().settings == before
