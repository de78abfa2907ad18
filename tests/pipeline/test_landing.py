"""What a run lands of a sink: everything once, found from the frontier or by a listing of the whole sink, under a
checkpoint that makes sense. Cases are steps of a changefeed; their results are what each run shows (`Play`)."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.positions import tso, utc_now
from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import CdcError, CheckpointError, ConfigurationError
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.lake.tables.segments import Appended, contents_of, index_gaps
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sources.object_store import LocalStore
from tests.kit.case_files import Case, bytes_of, read_cases
from tests.kit.lakes import TestLake
from tests.kit.sink_layouts import look_closely
from tests.lake import ID
from tests.pipeline import DAY, T0, Sink, events_of, kafka, paths
from tests.sources.test_walk import CountingStore

# Later than all files of a test, by the clocks' tolerance too.
LATER = tso(utc_now() + datetime.timedelta(hours=1)) - T0
ONE_DAY = 24 * 60 * 60 * 1000 << 18
HOUR = 60 * 60 * 1000 << 18
_FILE = re.compile(r"d/(\w+)/(\d+)/2026-(\d\d-\d\d)/(?:CDC0*(\d+)\.json|meta/CDC\.(index))")
_SHORT = re.compile(r"(\w+)/(\d\d-\d\d)/(?:(\d+)|index)")


@pytest.fixture(autouse=True)
def _no_table_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    look_closely(monkeypatch, 0)


class Play:
    """Carries out steps; `t/06-01/2` is the second file of that date of the first version of `d.t`, `t/06-01/index` its
    index file, and `@t` its first version's directory. Positions count commit-ts from `T0`, or days (`3d`)."""

    def __init__(self, lake: TestLake) -> None:
        self.lake = lake
        self.sink = Sink(lake.sink)
        self.sink.checkpoint(LATER)
        self.removed: dict[str, bytes] = {}
        self.results: list[str] = []

    def step(self, verb: str, *words: str) -> None:
        getattr(self, f"do_{verb}")(*words)

    def place(self, name: str) -> Path:
        short = _SHORT.fullmatch(name)
        if short is None:
            return self.lake.sink / os.fsdecode(bytes_of(re.sub(r"^@(\w+)", rf"d/\1/{T0}", name)))
        file = "meta/CDC.index" if short[3] is None else f"CDC{int(short[3]):020d}.json"
        return self.lake.sink / f"d/{short[1]}/{T0}/2026-{short[2]}/{file}"

    def shown(self, text: str) -> str:
        def file(match: re.Match[str]) -> str:
            at = int(match[2]) - T0
            return f"{match[1]}{f'@{at // ONE_DAY}d' if at else ''}/{match[3]}/{match[4] or match[5]}"

        text = re.sub(r"(is not JSON): .*? \[", r"\1 [", _FILE.sub(file, text).replace(self.lake.name, "FEED"))
        return re.sub(rf"{str(T0)[:5]}\d{{13}}", lambda found: f"T+{int(found[0]) - T0}", text)

    def do_table(self, name: str, at: str = "0") -> None:
        self.sink.create(name, at=_at(at))

    def do_file(self, name: str, *words: str) -> None:
        """A file each of so many commit-ts (`at 1-3`), or of so many days (`day 1-6`)."""
        said = dict(zip(words[::2], words[1::2], strict=True))
        first, _, last = said.get("day", "0").partition("-")
        for day in range(int(first), int(last or first) + 1):
            ats = said.get("at", "1").split("-")
            for at in range(int(ats[0]), int(ats[-1]) + 1):
                version = 0 if "version" not in said else _at(said["version"])
                self.sink.file(name, at=day * ONE_DAY + at, days=day, version=version)

    def do_truncate(self, at: str) -> None:
        change = SchemaChange(T0 + _at(at), "d", "t", 11, "TRUNCATE TABLE `t`", (ID,), "")
        self.sink.writer.write_ddl(change, DAY)

    def do_expire(self, last: str) -> None:
        for place in self.lake.sink.glob("d/*/*/2026-*"):
            if place.name <= f"2026-{last}":
                shutil.rmtree(place)

    def do_write(self, name: str, *content: str) -> None:
        place = self.place(name)
        if place.is_file():
            self.removed.setdefault(name, place.read_bytes())
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bytes_of(" ".join(content)))

    def do_remove(self, name: str) -> None:
        place = self.place(name)
        self.removed.setdefault(name, place.read_bytes())
        place.unlink()

    def do_restore(self, name: str) -> None:
        self.place(name).write_bytes(self.removed.pop(name))

    def do_age(self, name: str, hours: str) -> None:
        time = (utc_now() + datetime.timedelta(hours=int(hours))).timestamp()
        os.utime(self.place(name), (time, time))

    def do_hide(self, name: str) -> None:
        """A directory that cannot be listed."""
        here = self.lake.sink / "d" / name
        if here.exists():
            here.rename(self.lake.sink.parent / name)
        here.symlink_to(here)

    def do_show(self, name: str) -> None:
        here, away = self.lake.sink / "d" / name, self.lake.sink.parent / name
        here.unlink()
        if away.exists():
            away.rename(here)

    def do_checkpoint(self, at: str) -> None:
        self.sink.checkpoint(_at(at))

    def do_publish(self, at: str) -> None:
        self.lake.run().checkpoints.publish(Cut(T0 + _at(at)), [])

    def do_configure(self, *words: str) -> None:
        self.lake.configure(**json.loads(" ".join(words)))

    def do_quarantine(self, name: str) -> None:
        path = str(self.place(name).relative_to(self.lake.sink))
        rows = [Rejected(path, 1, "NotJson", "m", b"", "d", "t")]
        self.lake.run().quarantine.replace(lambda _: False, rows, utc_now())

    def do_resolve(self) -> None:
        self.lake.run().quarantine.replace(lambda _: True, [], utc_now())

    def do_follow(self, day: str) -> None:
        """A run at the checkpoint of a day, which publishes it for the tables that it takes."""
        at = _at(f"{day}d")
        self.sink.checkpoint(at)
        (run := self.lake.run()).source.land()
        tables = {path.name for path in self.lake.sink.glob("d/*") if run.feed.tables.takes("d", path.name)}
        rows = [CutRow(T0 + at, "d", table, None, 0, utc_now()) for table in sorted(tables)]
        run.checkpoints.publish(Cut(T0 + at, run.segments.batch), rows)
        open_rows = [row for row in self.lake.machinery("quarantine") if row["state"] == "open"]
        assert {row["error_class"] for row in open_rows} <= {"ExpiredFiles"}
        self.results.append(f"lacks {' '.join(sorted(row['table'] for row in open_rows)) or 'nothing'}")

    def do_run(self, *words: str) -> None:
        """Shows whether the whole sink was listed, what landed (with the batches, where there are several), what the
        run says, and the quarantine."""
        said = dict(zip(words[::2], words[1::2], strict=True))
        hours = datetime.timedelta(hours=int(said.get("later", "0")))
        before = self.lake.metadata()
        run = self.lake.run(
            dates=frozenset(said["dates"].split(",") if "dates" in said else ()), clock=lambda: utc_now() + hours
        )
        run.store = store = CountingStore(self.lake.sink)
        try:
            landed = run.source.land()
            upto = run.source.checkpoint_ts() - T0
        except CdcError as error:
            untouched = "" if self.lake.metadata() == before else " (not without changes)"
            self.results.append(self.shown(f"{type(error).__name__}: {error}{untouched}"))
            return
        batches = {segment.batch for segment in landed.new}
        new = " ".join(
            self.shown(each.segment) + (f" in {each.batch}" if len(batches) > 1 else "")
            for each in sorted(landed.new, key=lambda each: (each.batch or 0, each.segment))
        )
        assert len({segment.landed_at for segment in landed.new}) <= 1
        how = "whole sink" if ("", None) in store.listed else "what is new"
        reached = f", upto {'nothing' if upto == -T0 else upto}" if upto < LATER else ""
        untouched = ", untouched" if not new and self.lake.metadata() == before else ""
        self.results.append(f"{how}: {new or 'nothing'}{reached}{untouched}")
        self.results += [self.shown(f"  says {fault}") for fault in landed.faults]
        gaps = index_gaps(self.lake.run().segments.rows)
        self.results += [self.shown(f"  gap {gap.directory}: {gap.missing}") for gap in gaps]
        rows = sorted(self.lake.machinery("quarantine"), key=lambda row: (row["segment"], row["error_class"]))
        self.results += [self.shown(f"  {row['state']} {row['segment']}: {row['error_class']}") for row in rows]


def _at(text: str) -> int:
    if text == "now":
        return tso(utc_now()) - T0
    if text.startswith("later"):
        return LATER + int(text.removeprefix("later") or 0) * HOUR
    return int(text[:-1]) * ONE_DAY if text.endswith("d") else int(text)


@pytest.mark.parametrize("case", read_cases(*sorted((Path(__file__).parent / "cases").glob("land*.txt"))), ids=str)
def test_sink_lands_as_written(lake: TestLake, case: Case, update: bool) -> None:
    play = Play(lake)
    for line in case.given:
        for step in filter(None, map(str.strip, line.split(";"))):
            play.step(*step.split(" "))
    case.compare(play.results, update=update)


# --- What a case cannot say ---


def filed(lake: TestLake) -> tuple[Sink, str]:
    sink = Sink(lake.sink, "t", checkpoint=10)
    return sink, sink.file("t")


def test_source_of_another_kind_is_refused(lake: TestLake) -> None:
    filed(lake)
    lake.run().source.land()
    lake.configure(source=kafka("canal-json", "x"))
    before = lake.metadata()
    with pytest.raises(ConfigurationError, match=r"source is topics .* lake is of a storage sink.*another name"):
        _ = Steps(lake.run()).landed
    assert lake.metadata() == before


def test_checkpoint_far_in_the_future_is_not_believed(lake: TestLake) -> None:
    """It would stay above all that the source shows after it was set right."""
    sink, path = filed(lake)
    sink.checkpoint((2 * 24 * 60 * 60 * 1000 << 18) + tso(utc_now()) - T0)
    run = lake.run()
    landed = run.source.land()
    assert (paths(landed), landed.source_ts, run.source.checkpoint_ts()) == ([path], None, 0)
    assert "more than a day after it was read" in landed.faults[0]
    with pytest.raises(CheckpointError, match="more than a day"):
        FeedRun(run.feed, run.lake).source.poll(None)
    assert isinstance(FeedRun(run.feed, run.lake).source.status().error, CheckpointError)


def test_checkpoint_is_read_before_the_sink_is_listed(lake: TestLake) -> None:
    """The changefeed goes on right after the read: its new file can be taken, its new promise cannot."""
    sink = Sink(lake.sink, "t", checkpoint=10)
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
    assert (paths(run.source.land()), run.source.checkpoint_ts()) == (new, T0 + 10)


def decoded(lake: TestLake) -> None:
    for segments in lake.run().segments.undecoded("file").values():
        lake.run().segments.mark_decoded([replace(each, state="decoded", events=1) for each in segments])


@pytest.mark.parametrize("mark", [decoded, None], ids=["decoded", "not marked yet"])
def test_file_that_lands_again_names_the_snapshot_of_its_events(
    lake: TestLake, mark: Callable[[TestLake], None] | None
) -> None:
    """Also the events of a run that ended before it could say that they are in."""
    _, path = filed(lake)
    lake.run().source.land()
    events = events_of(lake, pa.table({"segment": [path]}), None if mark else Appended(1, frozenset({1})))
    if mark:
        mark(lake)
    snapshot = events.current_snapshot()
    (lake.sink / path).write_text("{}\r\n")
    (changed,) = lake.run().source.land().new
    assert snapshot is not None and contents_of(changed.replaces) == [(1, snapshot.snapshot_id)]


def test_expired_files_hold_their_table_with_the_dates(lake: TestLake) -> None:
    play = Play(lake)
    for step in ("table t", "file t", "follow 0", "file t day 1", "expire 06-02", "file t day 9", "follow 9"):
        play.step(*step.split(" "))
    (run := lake.run()).source.peek()
    run.history.record(run.source.schema_changes(T0 + 9 * ONE_DAY)[0], utc_now())
    incarnations = run.history.history.incarnations()
    (reason,) = find_holds(run, incarnations, T0 + 9 * ONE_DAY).values()
    assert "from 2026-06-01 00:00 to 2026-06-10 00:00 UTC" in reason and "load --table" in reason
    lake.configure(policy={"index_gap": "skip"})
    run.feed = lake.feed
    assert find_holds(run, incarnations, T0 + 9 * ONE_DAY) == {}
