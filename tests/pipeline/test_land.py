"""What a run takes from a sink: everything once, and nothing from a checkpoint that makes no sense."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.positions import tso, utc_now
from cdc_lakehouse.errors import CheckpointError, ConfigurationError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.tables.checkpoints import Cut
from cdc_lakehouse.lake.tables.segments import Appended, contents_of, index_gaps
from cdc_lakehouse.pipeline.source import open_monitor
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sources.object_store import LocalStore
from tests.kit.lakes import TestLake
from tests.pipeline import T0, Sink, lake_in, paths


@pytest.fixture
def sink(lake: TestLake) -> Sink:
    return Sink(lake.sink, "t", checkpoint=10)


def batches(lake: TestLake) -> dict[str, int]:
    return {row["segment"]: row["batch"] for row in lake.machinery("segments")}


def test_a_file_lands_with_what_its_path_says(lake: TestLake, sink: Sink) -> None:
    path = sink.file("t")
    run = lake.run()
    landed = run.source.land()
    assert (run.source.checkpoint_ts(), landed.source_ts, landed.faults) == (T0 + 10, T0 + 10, ())
    (row,) = lake.machinery("segments")
    (segment,) = landed.new
    assert row["segment"] == path == segment.segment == f"d/t/{T0}/2026-06-01/CDC00000000000000000001.json"
    assert (row["database"], row["table"], row["table_version"]) == ("d", "t", T0)
    assert (row["feed_date"], row["file_index"], row["dispatcher"]) == ("2026-06-01", 1, None)
    assert (row["size"], row["batch"], row["state"]) == ((lake.sink / path).stat().st_size, 1, "landed")


def test_source_of_another_kind_is_refused_for_a_lake_with_segments(lake: TestLake, sink: Sink) -> None:
    sink.file("t")
    lake.run().source.land()
    topics = {"type": "kafka", "format": "canal-json", "bootstrap_servers": "127.0.0.1:1", "topics": ["x"]}
    lake.configure(source=topics)
    before = lake.metadata()
    with pytest.raises(ConfigurationError, match=r"source is topics .* lake is of a storage sink.*another name"):
        _ = Steps(lake.run()).landed
    assert lake.metadata() == before


def test_each_file_lands_once_and_a_run_without_new_files_commits_nothing(lake: TestLake, sink: Sink) -> None:
    sink.file("t")
    lake.run().source.land()
    before = lake.metadata()
    again = lake.run().source.land()
    assert paths(again) == []
    assert lake.metadata() == before
    new = sink.file("t", at=2, days=1)
    (third,) = lake.run().source.land().new
    assert (third.segment, third.batch, third.feed_date) == (new, 2, "2026-06-02")


@pytest.mark.parametrize(
    ("limits", "numbers"),
    [({}, [1, 1, 1, 1, 1]), ({"max_files": 2}, [1, 1, 2, 2, 3]), ({"max_bytes": 1}, [1, 2, 3, 4, 5])],
    ids=["all fit", "two files", "fewer bytes than a file"],
)
def test_a_backlog_is_landed_in_batches(tmp_path: Path, limits: dict[str, int], numbers: list[int]) -> None:
    lake = lake_in(tmp_path, source=limits)
    sink = Sink(lake.sink, "t", checkpoint=10)
    for at in range(1, 6):
        sink.file("t", at=at)
    landed = lake.run().source.land().new
    assert [segment.batch for segment in landed] == numbers
    assert len({segment.landed_at for segment in landed}) == 1, "which tells what one run has landed"
    sink.file("t", at=6)
    assert [segment.batch for segment in lake.run().source.land().new] == [numbers[-1] + 1]


def test_a_checkpoint_far_in_the_future_is_not_believed(lake: TestLake, sink: Sink) -> None:
    """It would stay above all that the source shows after it was set right."""
    path = sink.file("t")
    sink.checkpoint((2 * 24 * 60 * 60 * 1000 << 18) + tso(utc_now()) - T0)
    run = lake.run()
    landed = run.source.land()
    assert (paths(landed), landed.source_ts, run.source.checkpoint_ts()) == ([path], None, 0)
    assert "more than a day after it was read" in landed.faults[0]
    with pytest.raises(CheckpointError, match="more than a day"):
        open_monitor(run.lake, run.feed).poll(None)
    assert isinstance(open_monitor(run.lake, run.feed).status().error, CheckpointError)
    sink.checkpoint(10)
    run = lake.run()
    assert run.source.land().faults == ()
    assert run.source.checkpoint_ts() == T0 + 10


def test_a_sink_is_only_read(lake: TestLake, sink: Sink) -> None:
    sink.file("t")

    def tree() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in lake.sink.rglob("*")}

    before = tree()
    lake.run().source.land()
    assert tree() == before


def test_a_file_that_is_still_being_written_is_not_there(lake: TestLake, sink: Sink) -> None:
    path = lake.sink / sink.file("t")
    path.rename(path.with_name(f"{path.name}.tmp.0a1b"))
    landed = lake.run().source.land()
    assert (paths(landed), landed.faults) == ([], ())


def test_tables_that_are_left_out_do_not_land(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, tables={"include": ["d.*"], "exclude": ["*.secret"]})
    sink = Sink(lake.sink, "t", "secret", checkpoint=10)
    kept = sink.file("t")
    sink.file("secret")
    assert paths(lake.run().source.land()) == [kept]


def test_a_file_that_changed_before_it_was_decoded_lands_again(lake: TestLake, sink: Sink) -> None:
    path, other = sink.file("t"), sink.file("t", at=2)
    lake.run().source.land()
    (lake.sink / path).write_text("{}\r\n")
    again = lake.run().source.land()
    assert [(each.segment, each.batch, each.replaces) for each in again.new] == [(path, 2, "[]")]
    assert batches(lake) == {path: 2, other: 1}


def test_a_file_that_changed_after_it_was_decoded_names_the_snapshot_with_its_events(
    lake: TestLake, sink: Sink
) -> None:
    path = sink.file("t")
    run = lake.run()
    run.source.land()
    rows = pa.table({"segment": [path]})
    events = lake.lake.catalog.create_table((f"cdc_{lake.name}", "events"), rows.schema)
    events.append(rows)
    snapshot = events.current_snapshot()
    for segments in run.segments.undecoded("file").values():
        run.segments.mark_decoded([replace(each, state="decoded", events=1) for each in segments])
    (lake.sink / path).write_text("{}\r\n")
    (changed,) = lake.run().source.land().new
    assert snapshot is not None and contents_of(changed.replaces) == [(1, snapshot.snapshot_id)]
    # It changes once more before it is decoded: its earlier events are still those of that snapshot.
    events.append(rows)
    (lake.sink / path).write_text("{}\r\n{}\r\n")
    (changed,) = lake.run().source.land().new
    assert (contents_of(changed.replaces), changed.batch) == ([(1, snapshot.snapshot_id)], 3)


def test_a_file_that_lands_again_may_have_events_of_a_run_that_ended_before_it_said_so(
    lake: TestLake, sink: Sink
) -> None:
    path = sink.file("t")
    lake.run().source.land()
    rows = pa.table({"segment": [path]})
    unmarked = Appended(1, {1: ""}).as_properties()
    events = lake.lake.catalog.create_table((f"cdc_{lake.name}", "events"), rows.schema, properties=unmarked)
    events.append(rows)
    (again,) = lake.run(dates=frozenset({"2026-06-01"})).source.land().new
    snapshot = events.current_snapshot()
    assert snapshot is not None and contents_of(again.replaces) == [(1, snapshot.snapshot_id)]


def test_a_date_that_is_asked_for_lands_again_whole_and_no_other(lake: TestLake, sink: Sink) -> None:
    first, second, other = sink.file("t"), sink.file("t", at=2), sink.file("t", at=3, days=1)
    lake.run().source.land()
    landed = lake.run(dates=frozenset({"2026-06-01"})).source.land()
    assert paths(landed) == sorted([first, second])
    assert batches(lake) == {first: 2, second: 2, other: 1}


def test_a_date_of_which_a_file_is_gone_is_refused_and_nothing_is_touched(lake: TestLake, sink: Sink) -> None:
    first, second, other = sink.file("t"), sink.file("t", at=2), sink.file("t", at=3, days=1)
    lake.run().source.land()
    (lake.sink / first).unlink()
    before = lake.metadata()
    with pytest.raises(SourceError, match="2026-06-01 cannot be decoded again: 1 of its segments") as caught:
        lake.run(dates=frozenset({"2026-06-01"})).source.land()
    assert caught.value.segment == first and lake.metadata() == before
    assert paths(lake.run(dates=frozenset({"2026-06-02"})).source.land()) == [other]
    assert second in batches(lake)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no metadata file"),
        *((text, "is not JSON") for text in ("", '{"checkpoint-ts": 4', "\x00\xff")),
        ("[]", "not an object"),
        ("{}", "not a TSO: None"),
        *(
            (f'{{"checkpoint-ts": {value}}}', "not a TSO")
            for value in ('"450000000000000000"', "true", "0", "-1", "9223372036854775808", "1.5e17")
        ),
        ("a directory", ""),
        ("x" * 65537, ""),
    ],
    ids=lambda value: value[:40] if value else "nothing",
)
def test_files_land_under_a_checkpoint_that_cannot_be_read_and_the_published_one_stays(
    lake: TestLake, sink: Sink, content: str | None, words: str
) -> None:
    path = sink.file("t")
    lake.run().checkpoints.publish(Cut(T0 + 5), [])
    metadata = lake.sink / "metadata"
    metadata.unlink()
    if content == "a directory":
        metadata.mkdir()
    elif content is not None:
        metadata.write_bytes(content.encode("latin-1"))
    run = lake.run()
    landed = run.source.land()
    assert (landed.source_ts, run.source.checkpoint_ts(), paths(landed)) == (None, T0 + 5, [path])
    (fault,) = landed.faults
    assert words in fault


def test_a_checkpoint_that_went_backwards_is_told_and_not_followed(lake: TestLake, sink: Sink) -> None:
    lake.run().checkpoints.publish(Cut(T0 + 10), [])
    assert lake.run().source.land().faults == ()
    lake.run().checkpoints.publish(Cut(T0 + 11), [])
    run = lake.run()
    landed = run.source.land()
    assert (landed.source_ts, run.source.checkpoint_ts()) == (T0 + 10, T0 + 11)
    (fault,) = landed.faults
    assert "backwards" in fault and str(T0 + 10) in fault and str(T0 + 11) in fault


def test_the_checkpoint_is_read_before_the_sink_is_listed(lake: TestLake, sink: Sink) -> None:
    """The changefeed goes on right after the read: its new file may be taken, its new promise may not."""
    new: list[str] = []

    class Moving(LocalStore):
        def read(self, path: str, *, limit: int, etag: str | None = None) -> bytes:
            content = super().read(path, limit=limit, etag=etag)
            if path == "metadata" and not new:
                new.append(sink.file("t", at=15))
                sink.checkpoint(20)
            return content

    run = lake.run()
    run.store = Moving(lake.sink)
    landed = run.source.land()
    assert (run.source.checkpoint_ts(), paths(landed)) == (T0 + 10, new)


def test_a_hole_in_the_numbers_shows_until_the_file_is_there(lake: TestLake, sink: Sink) -> None:
    first, second, third = (sink.file("t", at=at) for at in (1, 2, 3))
    content = (lake.sink / second).read_bytes()
    (lake.sink / second).unlink()
    lake.run().source.land()
    (gap,) = index_gaps(lake.run().segments.rows)
    assert (gap.directory, gap.missing) == (f"d/t/{T0}/2026-06-01", (2,))
    (lake.sink / second).write_bytes(content)
    assert paths(lake.run().source.land()) == [second]
    assert index_gaps(lake.run().segments.rows) == []
    assert {first, third} < set(lake.run().segments.rows["segment"].to_pylist())


@pytest.mark.parametrize(
    "stray",
    [
        "d/README.txt",
        # Numbers beyond 64 bits.
        f"d/t/{T0}/2026-06-01/CDC99999999999999999999.json",
        "d/t/99999999999999999999/2026-06-01/CDC000001.json",
    ],
)
def test_files_that_no_sink_holds_are_named_and_left(lake: TestLake, sink: Sink, stray: str) -> None:
    path = sink.file("t")
    (lake.sink / stray).parent.mkdir(parents=True, exist_ok=True)
    (lake.sink / stray).write_text("{}\r\n")
    landed = lake.run().source.land()
    (fault,) = landed.faults
    assert paths(landed) == [path] and stray in fault


def test_a_sink_with_another_separator_is_refused(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, source={"date_separator": "month"})
    Sink(lake.sink, "t", checkpoint=10).file("t")
    with pytest.raises(SourceError, match="date-separator day"):
        lake.run().source.land()
    assert lake.machinery("segments") == []


def test_a_sink_that_is_not_there_is_unreachable(lake: TestLake) -> None:
    with pytest.raises(SourceUnreachableError):
        lake.run().source.land()


def test_a_directory_that_cannot_be_listed_is_quarantined_until_it_can(lake: TestLake, sink: Sink) -> None:
    path = sink.file("t")
    broken = lake.sink / "d" / "u"
    broken.symlink_to(broken)
    for _ in range(2):
        assert path in {*paths(lake.run().source.land()), *lake.run().segments.known([path])}
        (row,) = lake.machinery("quarantine")
        assert (row["segment"], row["database"], row["table"], row["state"]) == ("d/u", "d", "u", "open")
    broken.unlink()
    lake.run().source.land()
    (row,) = lake.machinery("quarantine")
    assert row["state"] == "replayed" and row["resolved_at"] is not None
