"""What a run lands of a sink: everything once, found from the frontier or by a listing of the whole sink, under a
checkpoint that makes sense. Cases are steps of a changefeed; their results are what each run shows (`Play`)."""

import datetime
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cdc_lakehouse.config import DateSeparator
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.errors import CdcError, CheckpointError, ConfigurationError, SourceError
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
from tests.pipeline import DAY, T0, Sink, events_of, kafka, lake_in

CASES = Path(__file__).parent / "cases"
FORMS = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y", "none": ""}
# Later than all files of a test, by the clocks' tolerance too.
LATER = tso(utc_now() + datetime.timedelta(hours=1)) - T0
ONE_DAY = 24 * 60 * 60 * 1000 << 18
HOUR = 60 * 60 * 1000 << 18
_FILE = re.compile(r"d/(\w+)/(\d+)/2026-(\d\d-\d\d)/(?:CDC0*(\d+)\.json|meta/CDC\.(index))")
_SHORT = re.compile(r"(\w+)/(\d\d-\d\d)/(?:(\d+)|index)")


class CountingStore(LocalStore):
    """Counts requests, and the objects that they gave. One directory can be `closed`."""

    def __init__(self, root: Path, closed: str | None) -> None:
        super().__init__(root)
        self.closed, self.requests, self.objects = closed, 0, 0
        self.listed: list[tuple[str, str | None]] = []

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[StoredObject | UnreadableDirectory]:
        self.requests += 1
        self.listed.append((prefix, after))
        for found in super().list(prefix, after):
            self.objects += 1
            yield found

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        self.requests += 1
        if prefix == self.closed:
            raise SourceError("cannot list the directory: Input/output error", segment=prefix)
        return super().directories(prefix)


@dataclass
class Stream:
    """One dispatcher: its part of a table, the version that it writes under, and how its files begin."""

    version: int
    part: str = ""
    stem: str = "CDC"
    last: Path | None = None


@dataclass
class SinkTable:
    directory: str
    streams: list[Stream]


class ChangingSink:
    """A feed, without Spark, of a sink in which things happen; `do_...` are the steps of cases. `t/06-01/2` is the
    second file of that date of the first version of `d.t`, `t/06-01/index` its index file, and `@t` its first version's
    directory. Positions count commit-ts from `T0`, or days (`3d`). What is in data files does not matter."""

    def __init__(self, lake: TestLake, patch: pytest.MonkeyPatch | None = None) -> None:
        self.lake, self.root, self.patch = lake, lake.sink, patch
        self.day, self.tables, self._clock = DAY, list[SinkTable](), T0
        self.removed, self.results, self.closed = dict[str, bytes](), list[str](), None
        self.do_checkpoint("later")

    def tick(self) -> int:
        self._clock += 1_000
        return self._clock

    def create(self, directory: str, at: int | None = None, *, partitions: int = 0, dispatchers: int = 0) -> SinkTable:
        """A new table, or one that is called by an old name again."""
        version = self.schema(directory, CREATE, "CREATE TABLE `{}` (`id` BIGINT PRIMARY KEY)", at)
        parts = [str(100 + number) for number in range(partitions)] or [""]
        stems = [f"CDC_{10 ** (20 - number)}_" for number in range(dispatchers)] or ["CDC"]
        table = SinkTable(directory, [Stream(version, part, stem) for part in parts for stem in stems])
        self.tables = [each for each in self.tables if each.directory != directory] + [table]
        return table

    def schema(self, directory: str, action: int = 0, query: str = "", at: int | None = None) -> int:
        """A schema file; without a query one that a restart or a move writes."""
        version = self.tick() if at is None else T0 + at
        database, _, table = directory.partition("/")
        change = SchemaChange(version, database, table, action, query.format(table.replace("`", "``")), (ID,), "")
        self.write(*sink_writer.schema_file(change))
        return version

    def alter(self, table: SinkTable, action: int = 7, query: str = "ALTER TABLE `{}` ADD INDEX (`id`)") -> None:
        version = self.schema(table.directory, action, query)
        for stream in table.streams:
            stream.version = version

    def move(self, table: SinkTable, stream: Stream) -> None:
        """A dispatcher starts again on another node: under a version of its own, while the others go on in theirs."""
        stream.version = self.schema(table.directory)

    def rename(self, directory: str, table: SinkTable) -> None:
        self.tables = [each for each in self.tables if each.directory != directory or each is table]
        old, table.directory = table.directory.partition("/")[2], directory
        self.alter(table, RENAME, f"RENAME TABLE `{old}` TO `{{}}`")

    def flush(self, table: SinkTable, stream: Stream, *, days: int = 0, files: int = 1) -> None:
        """Data files and then their index file; `days` is by how much the server's clock differs."""
        directory, stem = self.place(table, stream, days), stream.stem
        numbers = (re.fullmatch(rf"{stem}(\d{{20}})\.json", path.name) for path in (self.root / directory).glob("CDC*"))
        first = 1 + max((int(match[1]) for match in numbers if match), default=0)
        for number in range(first, first + files):
            stream.last = self.write(f"{directory}/{stem}{number:020d}.json")
        self.write(f"{directory}/meta/{stem.removesuffix('_')}.index", f"{stem}{first + files - 1:020d}.json\n")

    def overwrite(self, table: SinkTable, stream: Stream) -> None:
        """After a crash between a file and its index, the last number of the day is written again."""
        if stream.last is not None and stream.last.parent == self.root / self.place(table, stream):
            stream.last.write_text(stream.last.read_text() + "y")

    def place(self, table: SinkTable, stream: Stream, days: int = 0) -> str:
        form = FORMS[self.lake.feed.storage_sink.date_separator]
        date = (self.day + datetime.timedelta(days=days)).strftime(form)
        return "/".join(filter(None, [table.directory, str(stream.version), stream.part, date]))

    def write(self, path: str, content: str | bytes = "x") -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return place

    def look(self, *, dies: bool = False) -> CountingStore:
        """A run, which also records statements; one that dies has landed its segments and does not know how far."""
        run, store = self.lake.run(), CountingStore(self.root, self.closed)
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
        listed = list_sink(LocalStore(self.root), layout_with(self.lake.feed.storage_sink.date_separator)).data
        return {each.path: each.feed_date or "" for each in listed if landed.get(each.path) != each.etag}

    def noticed(self) -> list[str]:
        """Dates that a sensor's tick takes for new."""
        return list(FeedRun(self.lake.feed, self.lake.lake).source.new_dates())

    # --- Steps of cases ---

    def play(self, lines: Iterable[str]) -> list[str]:
        for verb, *words in (step.split() for line in lines for step in line.split(" ; ")):
            STEPS[verb](self, *words) if verb in STEPS else getattr(self, f"do_{verb}")(*words)
        return self.results

    def file_at(self, name: str) -> Path:
        short = _SHORT.fullmatch(name)
        if short is None:
            return self.root / os.fsdecode(bytes_of(re.sub(r"^@(\w+)", rf"d/\1/{T0}", name)))
        file = "meta/CDC.index" if short[3] is None else f"CDC{int(short[3]):020d}.json"
        return self.root / f"d/{short[1]}/{T0}/2026-{short[2]}/{file}"

    def shown(self, text: str) -> str:
        def file(match: re.Match[str]) -> str:
            at = int(match[2]) - T0
            return f"{match[1]}{f'@{at // ONE_DAY}d' if at else ''}/{match[3]}/{match[4] or match[5]}"

        text = re.sub(r"(is not JSON): .*? \[", r"\1 [", _FILE.sub(file, text).replace(self.lake.name, "FEED"))
        text = text.replace(str(self.root), "SINK")
        return re.sub(rf"{str(T0)[:5]}\d{{13}}", lambda found: f"T+{int(found[0]) - T0}", text)

    def do_request(self, objects: str) -> None:
        """Of how many files on a table is one whose parts are looked at by themselves: 0 where nothing is said."""
        assert self.patch is not None
        self.patch.undo() if objects == "usual" else look_closely(self.patch, int(objects))

    def do_file(self, name: str, *words: str) -> None:
        """A file each of so many numbers (`at 1-3`), or of so many days (`day 1-6`), of its table's `stream` 0."""
        said = dict(zip(words[::2], words[1::2], strict=True))
        (table,) = (each for each in self.tables if each.directory == f"d/{name}")
        stream, ends = table.streams[int(said.get("stream", 0))], r"(-?\d+)(?:-(\d+))?"
        days, numbers = (re.fullmatch(ends, said.get(*each)) for each in (("day", "0"), ("at", "1")))
        assert days is not None and numbers is not None
        for day in range(int(days[1]), int(days[2] or days[1]) + 1):
            self.flush(table, stream, days=day, files=int(numbers[2] or numbers[1]) - int(numbers[1]) + 1)

    def do_today(self) -> None:
        self.day = utc_now()

    def do_expire(self, last: str) -> None:
        for place in self.root.glob("d/*/*/2026-*"):
            if place.name <= f"2026-{last}":
                shutil.rmtree(place)

    def do_write(self, name: str, *content: str) -> None:
        place = self.file_at(name)
        if place.is_file():
            self.removed.setdefault(name, place.read_bytes())
        self.write(str(place), bytes_of(" ".join(content)))

    def do_remove(self, name: str) -> None:
        place = self.file_at(name)
        self.removed.setdefault(name, place.read_bytes())
        place.unlink()

    def do_age(self, name: str, hours: str) -> None:
        time = (utc_now() + datetime.timedelta(hours=int(hours))).timestamp()
        os.utime(self.file_at(name), (time, time))

    def do_hide(self, name: str = ".") -> None:
        """A directory that cannot be listed; the sink itself is gone."""
        here = self.root / name
        here.rename(self.root.with_name("away"))
        if name != ".":
            here.symlink_to(here)

    def do_show(self, name: str) -> None:
        here = self.root / name
        here.unlink()
        self.root.with_name("away").rename(here)

    def do_close(self, name: str | None = None) -> None:
        self.closed = name

    def do_checkpoint(self, at: str) -> None:
        self.write("metadata", f'{{"checkpoint-ts": {T0 + _at(at)}}}')

    def do_quarantine(self, name: str) -> None:
        path = str(self.file_at(name).relative_to(self.root))
        rows = [Rejected(path, 1, "NotJson", "m", b"", "d", "t")]
        self.lake.run().quarantine.replace(lambda _: False, rows, utc_now())

    def do_look(self, *words: str) -> None:
        """What a run costs, and which files it leaves behind; `look left`: these alone."""
        store, left = self.look(), ", ".join(sorted(map(self.shown, self.changed()))) or "nothing"
        cost = "" if words else f"{store.requests} requests for {store.objects} objects, "
        self.results.append(f"{cost}{left} left behind")

    def do_frontier(self) -> None:
        (row,) = self.lake.machinery("frontier")
        ends = ", ".join(f"{each['last']} after {each['previous'] or '-'}" for each in row["sequences"])
        self.results.append(f"{row['files']} files: {ends if len(row['sequences']) < 4 else len(row['sequences'])}")

    def do_follow(self, day: str) -> None:
        """A run at the checkpoint of a day, which publishes it for the tables that it takes."""
        at = _at(f"{day}d")
        self.do_checkpoint(f"{day}d")
        (run := self.lake.run()).source.land()
        tables = {path.name for path in self.root.glob("d/*") if run.feed.tables.takes("d", path.name)}
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
        dates, before = frozenset(said["dates"].split(",") if "dates" in said else ()), self.lake.metadata()
        run = self.lake.run(dates=dates, clock=lambda: utc_now() + hours)
        run.store = store = CountingStore(self.root, self.closed)
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


STEPS: dict[str, Callable[..., object]] = {
    "table": lambda of, name, at="0", partitions="0": of.create(f"d/{name}", _at(at), partitions=int(partitions)),
    "alter": lambda of: of.alter(of.tables[0]),
    "truncate": lambda of, at: of.schema("d/t", 11, "TRUNCATE TABLE `t`", _at(at)),
    "restore": lambda of, name: of.file_at(name).write_bytes(of.removed.pop(name)),
    "publish": lambda of, at: of.lake.run().checkpoints.publish(Cut(T0 + _at(at)), []),
    "configure": lambda of, *words: of.lake.configure(**json.loads(" ".join(words))),
    "resolve": lambda of: of.lake.run().quarantine.replace(lambda _: True, [], utc_now()),
    "noticed": lambda of: of.results.append(
        f"{', '.join(of.noticed())} of {', '.join(sorted({*of.changed().values()}))}"
    ),
}


def _at(text: str) -> int:
    if text == "now":
        return tso(utc_now()) - T0
    if text.startswith("later"):
        return LATER + int(text.removeprefix("later") or 0) * HOUR
    return int(text[:-1]) * ONE_DAY if text.endswith("d") else int(text)


@pytest.mark.slow
@pytest.mark.parametrize("case", read_cases(CASES / "landing.txt", CASES / "walk.txt"), ids=str)
def test_sink_lands_as_written(lake: TestLake, case: Case, monkeypatch: pytest.MonkeyPatch, update: bool) -> None:
    with monkeypatch.context() as patch:
        look_closely(patch, 0)
        case.compare(ChangingSink(lake, patch).play(case.given), update=update)


# --- What a case cannot say ---


def filed(lake: TestLake) -> tuple[Sink, str]:
    sink = Sink(lake.sink, "t", checkpoint=10)
    return sink, sink.file("t")


def test_source_of_another_kind_is_refused(lake: TestLake) -> None:
    filed(lake)
    lake.run().source.land()
    lake.configure(source=kafka("canal-json", "x"))
    said = r"source is topics .* lake is of a storage sink.*another name"
    with lake.without_changes(), pytest.raises(ConfigurationError, match=said):
        _ = Steps(lake.run()).landed


def test_checkpoint_far_in_the_future_is_not_believed(lake: TestLake) -> None:
    """It would stay above all that the source shows after it was set right."""
    sink, path = filed(lake)
    sink.checkpoint((2 * 24 * 60 * 60 * 1000 << 18) + tso(utc_now()) - T0)
    run = lake.run()
    landed = run.source.land()
    assert [each.segment for each in landed.new] == [path]
    assert (landed.source_ts, run.source.checkpoint_ts()) == (None, 0)
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
    assert [each.segment for each in run.source.land().new] == new and run.source.checkpoint_ts() == T0 + 10


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


def test_expired_files_hold_their_table_with_the_dates(lake: TestLake) -> None:
    ChangingSink(lake).play(["table t ; file t ; follow 0 ; file t day 1 ; expire 06-02 ; file t day 9 ; follow 9"])
    (run := lake.run()).source.peek()
    run.history.record(run.source.schema_changes(T0 + 9 * ONE_DAY)[0], utc_now())
    incarnations = run.history.history.incarnations()
    (reason,) = find_holds(run, incarnations, T0 + 9 * ONE_DAY).values()
    assert "from 2026-06-01 00:00 to 2026-06-10 00:00 UTC" in reason and "load --table" in reason
    lake.configure(policy={"index_gap": "skip"})
    run.feed = lake.feed
    assert find_holds(run, incarnations, T0 + 9 * ONE_DAY) == {}


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
            sink.day += datetime.timedelta(days=number)
        case "create":
            sink.create(f"db/{NAMES[number]}", partitions=shape[0], dispatchers=shape[1])
        case "another database":
            table = sink.create(f"{'ac'[number % 2]}db/{NAMES[number]}")
            sink.flush(table, table.streams[0])
        case "another dispatcher":
            sink.write(f"{sink.place(table, table.streams[0])}/CDC_0_00000000000000000001.json")
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
    sink = ChangingSink(lake_in(tmp_path_factory.mktemp("any"), source={"date_separator": separator}))
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
