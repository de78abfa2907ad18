"""What a run lands of a sink: everything once, found from the frontier or by a listing of the whole sink, under a
checkpoint that makes sense. Cases are steps of a changefeed; their results are what each run shows (`Play`)."""

import datetime
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cdc_lakehouse.config import DateSeparator
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import CdcError, CheckpointError, ConfigurationError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.lake.tables.segments import Appended, contents_of, index_gaps
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.steps import Steps
from tests import LONG
from tests.boundaries.change_log import SchemaChange, tso, utc_now
from tests.boundaries.sample import sink_writer
from tests.boundaries.sources import FeedRun, LocalStore, StoredObject, UnreadableDirectory, list_sink
from tests.kit.case_files import Case, bytes_of, read_cases
from tests.kit.hand_sinks import CREATE, ID, RENAME, layout_with, look_closely
from tests.kit.kills import KillAtCommit
from tests.kit.lakes import TestLake
from tests.pipeline import DAY, T0, Sink, events_of, kafka, lake_in, paths

# Later than all files of a test, by the clocks' tolerance too.
LATER = tso(utc_now() + datetime.timedelta(hours=1)) - T0
ONE_DAY = 24 * 60 * 60 * 1000 << 18
HOUR = 60 * 60 * 1000 << 18
_FILE = re.compile(r"d/(\w+)/(\d+)/2026-(\d\d-\d\d)/(?:CDC0*(\d+)\.json|meta/CDC\.(index))")
_SHORT = re.compile(r"(\w+)/(\d\d-\d\d)/(?:(\d+)|index)")


class CountingStore(LocalStore):
    """Counts requests, and the objects that they gave."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests = 0
        self.objects = 0
        self.listed: list[tuple[str, str | None]] = []

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[StoredObject | UnreadableDirectory]:
        self.requests += 1
        self.listed.append((prefix, after))
        for found in super().list(prefix, after):
            self.objects += 1
            yield found

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        self.requests += 1
        return super().directories(prefix)


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


@pytest.fixture
def no_table_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    look_closely(monkeypatch, 0)


@pytest.mark.usefixtures("no_table_is_small")
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


@pytest.mark.usefixtures("no_table_is_small")
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


@pytest.mark.parametrize("is_marked", [True, False], ids=["decoded", "not marked yet"])
def test_file_that_lands_again_names_the_snapshot_of_its_events(lake: TestLake, is_marked: bool) -> None:
    """Also the events of a run that ended before it could say that they are in."""
    _, path = filed(lake)
    lake.run().source.land()
    events = events_of(lake, pa.table({"segment": [path]}), None if is_marked else Appended(1, frozenset({1})))
    if is_marked:
        lake.mark_decoded()
    snapshot = events.current_snapshot()
    (lake.sink / path).write_text("{}\r\n")
    (changed,) = lake.run().source.land().new
    assert snapshot is not None and contents_of(changed.replaces) == [(1, snapshot.snapshot_id)]


@pytest.mark.usefixtures("no_table_is_small")
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


# --- Landing from the frontier finds what a listing of the whole sink would, and does not look at what was known ---

FORMS = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y", "none": ""}
FIRST_DAY = datetime.date(2026, 1, 30)
_ADD_INDEX = 7


@dataclass
class Stream:
    """One dispatcher: its part of a table, and the version that it writes under."""

    version: int
    partition: int | None = None
    dispatcher: str | None = None
    last: Path | None = None


@dataclass
class SinkTable:
    directory: str
    streams: list[Stream] = field(default_factory=list[Stream])


class ChangingSink:
    """A feed, without Spark, of a sink in which things happen: to the first table and to its first stream unless it is
    said to which. Runs land, and record its statements."""

    def __init__(self, directory: Path, separator: DateSeparator = "day", *, files: int = 0, **parts: int) -> None:
        """With `files`, a table with so many files in each stream has landed."""
        self.lake = lake_in(directory, source={"date_separator": separator})
        self.root, self.separator, self.day = self.lake.sink, separator, FIRST_DAY
        self.tables: list[SinkTable] = []
        self._clock = 466_000_000_000_000_000
        # Later than all files of a test.
        self.write("metadata", f'{{"checkpoint-ts": {T0 + LATER}}}')
        if files:
            table = self.create("db/t", **parts)
            for stream in table.streams:
                self.flush(table, stream, files=files)
            self.look()

    def tick(self) -> int:
        self._clock += 1_000
        return self._clock

    def days(self, number: int) -> None:
        self.day += datetime.timedelta(days=number)

    def create(self, directory: str, *, partitions: int = 0, dispatchers: int = 0) -> SinkTable:
        """A new table, or one that is called by an old name again."""
        version = self.schema(directory, CREATE, "CREATE TABLE `{}` (`id` BIGINT PRIMARY KEY)")
        parts = [100 + number for number in range(partitions)] or [None]
        nodes = [str(10 ** (20 - number)) for number in range(dispatchers)] or [None]
        table = SinkTable(directory, [Stream(version, part, node) for part in parts for node in nodes])
        self.tables = [each for each in self.tables if each.directory != directory] + [table]
        return table

    def schema(self, directory: str, action: int = 0, query: str = "") -> int:
        """A schema file; without a query one that a restart or a move writes. Without a table a database's."""
        version = self.tick()
        database, _, table = directory.partition("/")
        query = query.format(table.replace("`", "``"))
        change = SchemaChange(version, database, table, action, query, (ID,) if table else (), "")
        self.write(*sink_writer.schema_file(change))
        return version

    def alter(self, table: SinkTable | None = None, action: int = _ADD_INDEX, query: str = "") -> None:
        table = table or self.tables[0]
        version = self.schema(table.directory, action, query or "ALTER TABLE `{}` ADD INDEX (`id`)")
        for stream in table.streams:
            stream.version = version

    def move(self, table: SinkTable | None = None, stream: Stream | None = None) -> None:
        """A dispatcher starts again on another node: under a version of its own, while the others go on in theirs."""
        table = table or self.tables[0]
        (stream or table.streams[0]).version = self.schema(table.directory)

    def rename(self, directory: str, table: SinkTable | None = None) -> None:
        table = table or self.tables[0]
        self.tables = [each for each in self.tables if each.directory != directory or each is table]
        old, table.directory = table.directory.partition("/")[2], directory
        self.alter(table, RENAME, f"RENAME TABLE `{old}` TO `{{}}`")

    def flush(
        self, table: SinkTable | None = None, stream: Stream | None = None, *, days: int = 0, files: int = 1
    ) -> list[str]:
        """Data files and then their index file; `days` is by how much the server's clock differs."""
        stream = stream or (table or self.tables[0]).streams[0]
        directory = self.place(table, stream, days)
        stem, joint = ("CDC", "") if stream.dispatcher is None else (f"CDC_{stream.dispatcher}", "_")
        number = sum(path.name.startswith(f"{stem}{joint}0") for path in (self.root / directory).glob("CDC*.json"))
        paths = [f"{directory}/{stem}{joint}{number + each:020d}.json" for each in range(1, files + 1)]
        for path in paths:
            stream.last = self.write(path)
        self.write(f"{directory}/meta/{stem}.index", f"{paths[-1].rpartition('/')[2]}\n")
        return paths

    def overwrite(self, table: SinkTable | None = None, stream: Stream | None = None) -> None:
        """After a crash between a file and its index, the last number of the day is written again."""
        stream = stream or (table or self.tables[0]).streams[0]
        if stream.last is not None and stream.last.parent == self.root / self.place(table, stream):
            stream.last.write_text(stream.last.read_text() + "y")

    def place(self, table: SinkTable | None = None, stream: Stream | None = None, days: int = 0) -> str:
        table = table or self.tables[0]
        stream = stream or table.streams[0]
        date = (self.day + datetime.timedelta(days=days)).strftime(FORMS[self.separator])
        partition = None if stream.partition is None else str(stream.partition)
        return "/".join(filter(None, [table.directory, str(stream.version), partition, date]))

    def write(self, path: str, text: str = "x") -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def look(self, *, dies: bool = False, through: type[CountingStore] = CountingStore) -> CountingStore:
        """One run; one that dies has landed its segments and does not know how far."""
        run, store = self.lake.run(), through(self.root)
        run.store = store
        if dies:
            with KillAtCommit(2)(self.lake):
                run.source.land()
            return store
        run.source.land()
        changes, bad = run.source.schema_changes()
        assert not bad
        run.history.record(changes, utc_now())
        return store

    def changed(self) -> dict[str, str]:
        """Files that have not landed, with their dates."""
        landed = {row["segment"]: row["etag"] for row in self.lake.machinery("segments")}
        listed = list_sink(LocalStore(self.root), layout_with(self.separator)).data
        return {each.path: each.feed_date or "" for each in listed if landed.get(each.path) != each.etag}

    def noticed(self) -> list[str]:
        """Dates that a sensor's tick takes for new."""
        return list(FeedRun(self.lake.feed, self.lake.lake).source.new_dates())


# --- Cases: `cases/walk.txt` ---


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/walk.txt"), ids=str)
def test_runs_find_new_files_at_this_cost(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: bool
) -> None:
    """Lines are expressions of the sink; a `look` is a run, and shows what it cost and which files it left behind."""
    settings, results = case.settings, list[str]()
    # Of how many files on a table is one whose parts are looked at by themselves.
    if (request := settings.get("request", 0)) is not None:
        look_closely(monkeypatch, request)
    sink = ChangingSink(tmp_path, files=settings.get("files", 0), **settings.get("shape", {}))
    names = {name: getattr(sink, name) for name in dir(sink) if not name.startswith("_")}
    names |= {"sink": sink, "rmtree": shutil.rmtree, "today": utc_now().date(), "configure": sink.lake.configure}
    for line in case.own:
        if line == "look":
            store = sink.look()
            left = ", ".join(sorted(sink.changed())) or "nothing"
            cost = f"{store.requests} requests for {store.objects} objects, " if settings.get("costs", True) else ""
            results.append(f"{cost}{left} left behind")
        elif line == "frontier":
            (row,) = sink.lake.machinery("frontier")
            ends = ", ".join(f"{each['last']} after {each['previous'] or '-'}" for each in row["sequences"])
            results.append(f"{row['files']} files: {ends if len(row['sequences']) < 4 else len(row['sequences'])}")
        elif line == "noticed":
            results.append(f"{', '.join(sink.noticed())} of {', '.join(sorted({*sink.changed().values()}))}")
        else:
            eval(line, names)
    case.compare(results, update=update)


# --- Faults ---


@pytest.mark.usefixtures("no_table_is_small")
def test_directory_that_cannot_be_listed_is_quarantined_until_it_can(tmp_path: Path) -> None:

    class Closed(CountingStore):
        def directories(self, prefix: str = "") -> tuple[str, ...]:
            if prefix == "db/t/":
                raise SourceError("cannot list the directory: Input/output error", segment=prefix)
            return super().directories(prefix)

    sink = ChangingSink(tmp_path, files=3)
    sink.flush()
    sink.look(through=Closed)
    (row,) = sink.lake.machinery("quarantine")
    assert (row["segment"], row["error_class"], row["state"]) == ("db/t", "UnreadableDirectory", "open")
    sink.look()
    assert sink.changed() == {}
    (row,) = sink.lake.machinery("quarantine")
    assert row["state"] == "replayed"


def test_sink_that_is_gone_is_unreachable(tmp_path: Path) -> None:
    sink = ChangingSink(tmp_path, files=1)
    shutil.rmtree(sink.root)
    with pytest.raises(SourceUnreachableError):
        sink.look()


# --- Any history ---

NAMES = ["t", "a/b", "!", "meta", "u", "a/b/7"]
PICK = st.integers(0, 5)
EVENTS = st.one_of(
    st.tuples(st.just("flush"), PICK, PICK, st.integers(-1, 0), st.integers(1, 4)),
    st.tuples(st.just("flush"), PICK, PICK, st.just(0), st.just(1)),
    st.tuples(st.sampled_from(["overwrite", "move"]), PICK, PICK),
    st.tuples(st.sampled_from(["alter", "create"]), PICK, PICK),
    st.tuples(st.just("days"), st.integers(1, 40) | st.just(365)),
    st.tuples(st.just("rename"), PICK, PICK),
    st.tuples(st.just("another database"), PICK),
    st.tuples(st.just("another dispatcher"), PICK),
    st.tuples(st.just("look"), st.booleans()),
)


def happen(sink: ChangingSink, event: tuple[Any, ...], shape: tuple[int, int]) -> None:
    kind, number, *more = event
    table = sink.tables[number % len(sink.tables)]
    match kind:
        case "days":
            sink.days(number)
        case "create":
            sink.create(f"db/{NAMES[number]}", partitions=shape[0], dispatchers=shape[1])
        case "another database":
            sink.flush(sink.create(f"{'ac'[number % 2]}db/{NAMES[number]}"))
        case "another dispatcher":
            sink.write(f"{sink.place(table)}/CDC_0_00000000000000000001.json")
        case "rename":
            sink.rename(f"db/{NAMES[more[0]]}", table)
        case "alter":
            sink.alter(table)
        case _:
            options = dict(zip(("days", "files"), more[1:], strict=False))
            getattr(sink, kind)(table, table.streams[more[0] % len(table.streams)], **options)


@pytest.mark.slow
@settings(max_examples=200 if LONG else 6, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # Each is seconds.
@given(
    separator=st.sampled_from(["day", "month", "year", "none"]),
    shape=st.sampled_from([(0, 0), (3, 0), (0, 2), (2, 2)]),
    request=st.sampled_from([0, 3, 50]),
    events=st.lists(EVENTS, min_size=10, max_size=40),
)
def test_any_history_lands_as_a_whole_listing_would_land_it(
    tmp_path_factory: pytest.TempPathFactory,
    separator: DateSeparator,
    shape: tuple[int, int],
    request: int,
    events: list[tuple[Any, ...]],
) -> None:
    sink = ChangingSink(tmp_path_factory.mktemp("any"), separator)
    sink.create("db/t", partitions=shape[0], dispatchers=shape[1])
    with pytest.MonkeyPatch.context() as patch:
        look_closely(patch, request)
        sink.look()
        for event in itertools.chain(events, [("look", False)]):
            if event[0] != "look":
                happen(sink, event, shape)
                continue
            assert set(sink.noticed()) >= {*sink.changed().values()}
            sink.look(dies=event[1])
            assert event[1] or sink.changed() == {}
