"""What a run sees: what is new, and the whole sink where only that is safe."""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.positions import tso, utc_now
from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.config import TablesConfig
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.lake.tables.schema_history import Frontiers
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import Landed
from cdc_lakehouse.sources.sink import listing
from tests.kit.lakes import TestLake
from tests.lake import ID
from tests.pipeline import DAY, T0, Sink, lake_in, paths
from tests.sources.changing_sink import CountingStore

# Later than all files of the test, by the clocks' tolerance too.
LATER = tso(utc_now() + datetime.timedelta(hours=1)) - T0


@pytest.fixture(autouse=True)
def _no_table_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "REQUEST", 0)


@pytest.fixture
def sink(lake: TestLake) -> Sink:
    return Sink(lake.sink, "t", checkpoint=LATER)


def look(lake: TestLake, *, whole: bool, run: FeedRun | None = None, **options: Any) -> Landed:
    """One run; whether it lists the whole sink is as it should be."""
    run = run or lake.run(**options)
    store = CountingStore(lake.sink)
    run.store = store
    landed = run.source.land()
    assert (("", None) in store.listed) == whole, store.listed
    return landed


def files(sink: Sink, days: Iterable[int], at: int = 1) -> list[str]:
    """A file of each of these days after the first."""
    return [sink.file("t", at=at + day, days=day) for day in days]


def states(lake: TestLake) -> list[str]:
    return [row["state"] for row in lake.machinery("quarantine")]


def test_a_run_after_the_first_lists_what_is_new(lake: TestLake, sink: Sink) -> None:
    first = [sink.file("t", at=at) for at in (1, 2, 3)]
    assert paths(look(lake, whole=True)) == first
    before = lake.metadata()
    assert paths(look(lake, whole=False)) == []
    assert lake.metadata() == before
    new = sink.file("t", at=4)
    assert paths(look(lake, whole=False)) == [new]
    sink.create("u")
    assert paths(look(lake, whole=False)) == []
    other = sink.file("u", at=5)
    assert paths(look(lake, whole=False)) == [other]
    assert {row["directory"]: row["files"] for row in lake.machinery("frontier")} == {"d/t": 4, "d/u": 1}


def test_a_run_that_dies_before_it_leaves_a_frontier_has_landed_once(
    lake: TestLake, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: Frontiers, __: Any) -> None:
        raise KeyboardInterrupt

    first = sink.file("t")
    look(lake, whole=True)
    second = sink.file("t", at=2)
    with monkeypatch.context() as patch:
        patch.setattr(Frontiers, "write", die)
        with pytest.raises(KeyboardInterrupt):
            look(lake, whole=False)
    third = sink.file("t", at=3)
    assert paths(look(lake, whole=False)) == [third]
    assert sorted(row["segment"] for row in lake.machinery("segments")) == sorted([first, second, third])


def test_a_table_that_is_taken_in_later_lands_all_its_files(lake: TestLake, sink: Sink) -> None:
    sink.create("u")
    kept, left_out = sink.file("t"), [sink.file("u", at=at) for at in (1, 2, 3)]

    def run(*exclude: str) -> FeedRun:
        run = lake.run()
        run.feed = run.feed.model_copy(update={"tables": TablesConfig.model_validate({"exclude": exclude})})
        return run

    assert paths(look(lake, whole=True, run=run("d.u"))) == [kept]
    assert paths(look(lake, whole=False, run=run("d.u"))) == []
    assert paths(look(lake, whole=True, run=run())) == left_out
    assert paths(look(lake, whole=False, run=run())) == []


def test_a_directory_that_could_not_be_listed_is_looked_for_until_it_can(lake: TestLake, sink: Sink) -> None:
    sink.create("u")
    hidden = [sink.file("u", at=at) for at in (1, 2, 3)]
    here, away = lake.sink / "d" / "u", lake.sink.parent / "away"
    here.rename(away)
    here.symlink_to(here)
    assert paths(look(lake, whole=True)) == []
    assert states(lake) == ["open"]
    new = sink.file("t")
    assert paths(look(lake, whole=True)) == [new]
    here.unlink()
    away.rename(here)
    assert paths(look(lake, whole=True)) == hidden
    assert states(lake) == ["replayed"]
    assert paths(look(lake, whole=False)) == []


def test_a_file_that_closes_an_old_gap_is_found_where_it_is_missing(lake: TestLake, sink: Sink) -> None:
    _, gap, _ = (sink.file("t", at=at) for at in (1, 2, 3))
    content = (lake.sink / gap).read_bytes()
    (lake.sink / gap).unlink()
    files(sink, range(1, 5), at=3)
    files(sink, range(1, 5), at=9)
    look(lake, whole=True)
    look(lake, whole=False)
    (row,) = lake.machinery("frontier")
    assert gap.rpartition("/")[0] not in {f"d/t/{each['place']}" for each in row["sequences"]}
    (lake.sink / gap).write_bytes(content)
    assert paths(look(lake, whole=False)) == [gap]


def test_a_mended_file_is_found_where_one_was_quarantined(lake: TestLake, sink: Sink) -> None:
    bad, other = sink.file("t"), sink.file("t", at=2)
    files(sink, range(1, 5), at=2)
    run = lake.run()
    look(lake, whole=True, run=run)
    now = utc_now()
    run.quarantine.replace(lambda _: False, [Rejected(bad, 1, "NotJson", "m", b"", "d", "t")], now)
    for path in (bad, other):
        (lake.sink / path).write_text("{}\r\n")
    assert paths(look(lake, whole=False)) == sorted([bad, other])
    run = lake.run()
    run.quarantine.replace(lambda _: True, [], now)
    (lake.sink / bad).write_text("{}\r\n{}\r\n")
    # Nothing says that it could change: that waits for the next listing of everything, or for its date to be asked for.
    assert paths(look(lake, whole=False)) == []
    assert bad in paths(look(lake, whole=True, dates=frozenset({"2026-06-01"})))


@pytest.mark.parametrize(("hours", "whole"), [(0, True), (23, False), (24, True)])
def test_the_whole_sink_is_listed_again_and_again(lake: TestLake, sink: Sink, hours: int, whole: bool) -> None:
    sink.file("t")
    look(lake, whole=True)

    def later(extra: int) -> FeedRun:
        run = lake.run(clock=lambda: utc_now() + datetime.timedelta(hours=hours + extra))
        if hours == 0:
            source = run.feed.storage_sink.model_copy(update={"full_listing_hours": 0})
            run.feed = run.feed.model_copy(update={"source": source})
        return run

    look(lake, whole=whole, run=later(0))
    if hours == 24:
        look(lake, whole=False, run=later(23))


def test_files_that_no_sink_holds_are_told_by_each_run_until_they_are_gone(lake: TestLake, sink: Sink) -> None:
    sink.file("t")
    stray = lake.sink / "d" / "README.txt"
    stray.write_text("hello")
    told = [look(lake, whole=True).faults for _ in range(3)]
    assert told[0] and told[0] == told[1] == told[2]
    stray.unlink()
    assert look(lake, whole=True).faults == ()
    assert look(lake, whole=False).faults == ()


def test_a_name_that_is_not_utf8_is_told_and_ends_no_run(lake: TestLake, sink: Sink) -> None:
    path = sink.file("t")
    stray = lake.sink / os.fsdecode(b"d\xff/t/1/2026-06-01")
    stray.mkdir(parents=True)
    (stray / "CDC000001.json").write_text("{}\r\n")
    landed = look(lake, whole=True)
    assert paths(landed) == [path]
    assert "d\\xff/t/1/2026-06-01/CDC000001.json" in landed.faults[0]


def test_a_last_file_that_is_not_where_it_is_expected_is_looked_for_everywhere(lake: TestLake, sink: Sink) -> None:
    """Its index file names it: under a longer number it sorts before the known ones, and no newer one is in sight."""
    first = sink.file("t")
    look(lake, whole=True)
    lake.run().checkpoints.publish(Cut(tso(utc_now())), [])
    index = lake.sink / first.replace(first.rpartition("/")[2], "meta/CDC.index")
    place = index.parent.parent
    for number in (2, 3):
        (place / f"CDC{number:020d}.json").write_text("{}\r\n")
    index.write_text("CDC00000000000000000009.json\n")
    landed = look(lake, whole=True)
    assert [path.rpartition("/")[2] for path in paths(landed)] == [f"CDC{number:020d}.json" for number in (2, 3)]
    assert [row["error_class"] for row in lake.machinery("quarantine")] == ["MissingFile"]
    look(lake, whole=False)
    (place / "CDC00000000000000000009.json").write_text("{}\r\n")
    assert len(paths(look(lake, whole=False))) == 1
    assert states(lake) == ["replayed"]


@pytest.mark.parametrize("damaged", [b"", b"CDC0000", b"\0" * 24], ids=["empty", "cut off", "zeros"])
def test_an_index_file_that_names_nothing_is_looked_at_until_it_does(
    lake: TestLake, sink: Sink, damaged: bytes
) -> None:
    """The last file may be missing, and nothing else tells it."""
    missing = sink.file("t")
    index = (lake.sink / missing).parent / "meta" / "CDC.index"
    sound = index.read_bytes()
    (lake.sink / missing).unlink()
    index.write_bytes(damaged)
    files(sink, range(1, 7))
    look(lake, whole=True)
    for _ in range(2):
        lake.run().checkpoints.publish(Cut(T0 + LATER), [])
        look(lake, whole=False)
        (row,) = lake.run().quarantine.open()
        assert (row.segment, row.error_class) == (str(index.relative_to(lake.sink)), "UnreadableIndex")
        assert (row.database, row.table) == ("d", "t")
    index.write_bytes(sound)
    look(lake, whole=True)
    assert [row.segment for row in lake.run().quarantine.open()] == [missing]
    assert states(lake) == ["replayed", "open"]


def test_an_index_file_that_names_nothing_is_over_when_it_is_gone(lake: TestLake, sink: Sink) -> None:
    """As when the changefeed's files expire."""
    index = (lake.sink / sink.file("t")).parent / "meta" / "CDC.index"
    index.write_bytes(b"")
    files(sink, range(1, 7))
    look(lake, whole=True)
    assert states(lake) == ["open"]
    index.unlink()
    look(lake, whole=False)
    assert states(lake) == ["replayed"]


def test_an_index_file_that_was_mended_is_over_when_the_checkpoint_passes_it(lake: TestLake, sink: Sink) -> None:
    """TiCDC may write it before the file that it names."""
    last = sink.file("t")
    index = (lake.sink / last).parent / "meta" / "CDC.index"
    sound = index.read_bytes()
    index.write_bytes(b"")
    look(lake, whole=True)
    lake.run().checkpoints.publish(Cut(T0 + LATER), [])
    index.write_bytes(sound)
    later = (utc_now() + datetime.timedelta(hours=2)).timestamp()
    os.utime(index, (later, later))
    look(lake, whole=False)
    assert states(lake) == ["open"]
    sink.checkpoint(LATER + (2 * 60 * 60 * 1000 << 18))
    look(lake, whole=False)
    assert states(lake) == ["replayed"]


def test_an_index_file_is_looked_at_until_the_checkpoint_has_passed_it(lake: TestLake, sink: Sink) -> None:
    """A changefeed that lags goes on to later dates long before."""
    sink.checkpoint(1)
    missing = sink.file("t")
    (lake.sink / missing).unlink()
    files(sink, range(1, 7))
    look(lake, whole=True)
    for day in (7, 8):
        files(sink, [day])
        look(lake, whole=False)
    assert lake.machinery("quarantine") == []
    sink.checkpoint(LATER)
    look(lake, whole=True)
    assert [row["segment"] for row in lake.machinery("quarantine")] == [missing]


ONE_DAY = 24 * 60 * 60 * 1000 << 18
CREATED, FIRST = ("create", 0), ("file", 0)


def expired(lake: TestLake, sink: Sink, *steps: tuple[str, int]) -> list[str]:
    """Carry out steps, each at a day after the first: a table is created or written to, the date directories up to one
    are removed, or the feed runs. Return the tables with rows of expired files, and the message's dates."""
    for step, day in steps:
        match step.partition(" ")[::2]:
            case "create", name:
                sink.create(name or "t", at=day * ONE_DAY)
            case "file", name:
                sink.file(name or "t", at=day * ONE_DAY + 1, days=day, version=0 if name == "" else day * ONE_DAY)
            case "truncate", _:
                change = SchemaChange(T0 + day * ONE_DAY, "d", "t", 11, "TRUNCATE TABLE `t`", (ID,), "")
                sink.writer.write_ddl(change, DAY)
            case "expire", _:
                for place in lake.sink.glob("d/*/*/2026-*"):
                    if place.name <= f"2026-06-{day + 1:02}":
                        shutil.rmtree(place)
            case _:
                sink.checkpoint(day * ONE_DAY)
                (run := lake.run()).source.land()
                tables = {path.name for path in lake.sink.glob("d/*") if run.feed.tables.takes("d", path.name)}
                rows = [CutRow(T0 + day * ONE_DAY, "d", table, None, 0, utc_now()) for table in sorted(tables)]
                run.checkpoints.publish(Cut(T0 + day * ONE_DAY, run.segments.batch), rows)
    open_rows = [row for row in lake.machinery("quarantine") if row["state"] == "open"]
    assert {row["error_class"] for row in open_rows} <= {"ExpiredFiles"}
    return sorted(row["table"] for row in open_rows)


@pytest.mark.parametrize(
    ("steps", "held"),
    [
        ([CREATED, FIRST, ("run", 0), ("file", 1), ("expire", 1), ("file", 9), ("run", 9)], ["t"]),
        ([CREATED, FIRST, ("run", 0), ("file", 1), ("file", 9), ("run", 9)], []),
        ([CREATED, FIRST, ("run", 0), ("file", 1), ("file", 2), ("expire", 1), ("file", 9), ("run", 9)], ["t"]),
        ([CREATED, FIRST, *(("run", day) for day in range(9)), ("expire", 0), ("file", 9), ("run", 9)], []),
        ([CREATED, FIRST, ("file", 5), ("run", 5), ("expire", 4), ("file", 9), ("run", 9)], []),
        ([CREATED, FIRST, ("run", 0), ("create u", 1), ("file u", 1), ("expire", 1), ("run", 9)], ["t", "u"]),
        ([CREATED, FIRST, ("run", 0), ("expire", 0), ("create u", 9), ("file u", 9), ("run", 10)], ["t"]),
        ([CREATED, ("run", 0), ("file", 9), ("run", 9)], []),
        ([CREATED, FIRST, ("expire", 0), ("file", 9), ("run", 9)], []),
    ],
    ids=[
        "files between", "outage shorter than they are kept", "some of the files between", "feed that ran each day",
        "older file is there", "table that was new then", "table that is newer", "nothing was expired", "first run",
    ],
)  # fmt: skip
def test_files_expired_before_they_were_read_are_reported(
    lake: TestLake, sink: Sink, steps: list[tuple[str, int]], held: list[str]
) -> None:
    assert expired(lake, sink, *steps) == held


UNREAD = (CREATED, FIRST, ("run", 0), ("file", 1), ("expire", 1), ("file", 9), ("run", 9))


def test_sink_that_keeps_files_longer_than_the_outage_holds_nothing(tmp_path: Path) -> None:
    for days, held in ((0, ["t"]), (8, ["t"]), (10, [])):
        lake = lake_in(tmp_path / str(days), source={"file_expiration_days": days})
        assert expired(lake, Sink(lake.sink), *UNREAD) == held, days


def test_expired_files_hold_their_table_with_the_dates(lake: TestLake) -> None:
    sink = Sink(lake.sink)
    expired(lake, sink, *UNREAD)
    (run := lake.run()).source.peek()
    run.history.record(run.source.schema_changes(T0 + 9 * ONE_DAY)[0], utc_now())
    lives = run.history.history.incarnations()
    (reason,) = find_holds(run, lives, T0 + 9 * ONE_DAY).reasons.values()
    assert "from 2026-06-01 00:00 to 2026-06-10 00:00 UTC" in reason and "load --table" in reason
    lake.configure(policy={"index_gap": "skip"})
    run.feed = lake.feed
    assert find_holds(run, lives, T0 + 9 * ONE_DAY).reasons == {}
    assert expired(lake, sink, ("run", 9), ("file", 10), ("run", 10)) == ["t"], "it stays open"


@pytest.mark.parametrize(("steps", "held"), [
    ((("run", 10), ("file", 10), ("run", 11)), ["t"]),
    ((FIRST, ("run", 11)), []),
    ((("truncate", 10), ("run", 9)), ["t"]),
    ((("truncate", 10), ("run", 11)), []),
])  # fmt: skip
def test_expired_files_are_resolved_when_they_are_there(
    lake: TestLake, steps: tuple[tuple[str, int], ...], held: list[str]
) -> None:
    sink = Sink(lake.sink)
    assert expired(lake, sink, *UNREAD) == ["t"]
    assert expired(lake, sink, *steps) == held


def test_table_left_out_while_its_files_expired_is_reported(lake: TestLake) -> None:
    sink = Sink(lake.sink)
    lake.configure(tables={"include": ["d.*"]})
    assert expired(lake, sink, CREATED, ("create u", 0), FIRST, ("file u", 0), ("run", 0)) == []
    lake.configure(tables={"include": ["d.*"], "exclude": ["d.t"]})
    assert expired(lake, sink, ("run", 1), ("file", 2), ("file u", 2), ("run", 5), ("expire", 4), ("file", 6)) == []
    lake.configure(tables={"include": ["d.*"]})
    assert expired(lake, sink, ("run", 6)) == ["t"]
