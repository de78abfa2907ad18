"""Landing from the frontier: it finds what a listing of the whole sink would, and does not look at what was known.

The sink that a changefeed goes on writing to is made of paths and schema files: data files hold nothing."""

from __future__ import annotations

import datetime
import itertools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cdc_lakehouse.config import DateSeparator
from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from tests import LONG
from tests.boundaries.change_log import SchemaChange, tso, utc_now
from tests.boundaries.sample import sink_writer
from tests.boundaries.sources import FeedRun, LocalStore, StoredObject, UnreadableDirectory, list_sink
from tests.kit.case_files import Case, read_cases
from tests.kit.hand_sinks import CREATE, ID, RENAME
from tests.kit.kills import KillAtCommit
from tests.kit.sink_layouts import layout_with, look_closely
from tests.pipeline import lake_in

FORMS = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y", "none": ""}
FIRST_DAY = datetime.date(2026, 1, 30)
_ADD_INDEX = 7


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
    """What happens, happens to the first table and to its first stream unless it is said to which. Of several sinks in
    one directory each has a clock of its own."""

    def __init__(self, root: Path, separator: DateSeparator = "day", clock: int = 466_000_000_000_000_000) -> None:
        self.root = root
        self.separator = separator
        self.day = FIRST_DAY
        self.tables: list[SinkTable] = []
        self._clock = clock
        root.mkdir(parents=True, exist_ok=True)
        # Later than all files of a test.
        checkpoint = tso(utc_now() + datetime.timedelta(hours=1))
        (root / "metadata").write_text(f'{{"checkpoint-ts": {checkpoint}}}')

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
        table = table or self.tables[0]
        stream = stream or table.streams[0]
        directory = self.place(table, stream, days)
        stem = "CDC" if stream.dispatcher is None else f"CDC_{stream.dispatcher}"
        joint = "" if stream.dispatcher is None else "_"
        number = sum(path.name.startswith(f"{stem}{joint}0") for path in (self.root / directory).glob("CDC*.json"))
        paths = [f"{directory}/{stem}{joint}{number + each:020d}.json" for each in range(1, files + 1)]
        for path in paths:
            stream.last = self.write(path)
        self.write(f"{directory}/meta/{stem}.index", f"{paths[-1].rpartition('/')[2]}\n")
        return paths

    def overwrite(self, table: SinkTable | None = None, stream: Stream | None = None) -> None:
        """After a crash between a file and its index, the last number of the day is written again."""
        table = table or self.tables[0]
        stream = stream or table.streams[0]
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


# --- Runs ---


class Follower:
    """A feed of a changing sink, without Spark: runs land, and record its statements."""

    def __init__(self, directory: Path, separator: DateSeparator = "day", *, files: int = 0, **parts: int) -> None:
        """With `files`, a table with so many files in each stream has landed."""
        self.lake = lake_in(directory, source={"date_separator": separator})
        self.separator = separator
        self.sink = ChangingSink(self.lake.sink, separator)
        if files:
            table = self.sink.create("db/t", **parts)
            for stream in table.streams:
                self.sink.flush(table, stream, files=files)
            self.look()

    def look(self, *, dies: bool = False, through: type[CountingStore] = CountingStore) -> CountingStore:
        """One run; one that dies has landed its segments and does not know how far."""
        run, store = self.lake.run(), through(self.sink.root)
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

    def lands_all(self) -> CountingStore:
        store = self.look()
        assert self.changed() == {}
        return store

    def files(self) -> Mapping[str, str]:
        return {
            file.path: file.etag for file in list_sink(LocalStore(self.sink.root), layout_with(self.separator)).data
        }

    def changed(self) -> dict[str, str]:
        """Files that have not landed, with their etags."""
        landed = {row["segment"]: row["etag"] for row in self.lake.machinery("segments")}
        return {path: etag for path, etag in self.files().items() if landed.get(path) != etag}

    def noticed(self) -> list[str]:
        """Dates that a sensor's tick takes for new."""
        return list(FeedRun(self.lake.feed, self.lake.lake).source.new_dates())

    def changed_dates(self) -> list[str]:
        listing = list_sink(LocalStore(self.sink.root), layout_with(self.separator))
        changed = self.changed()
        return sorted({file.feed_date or "" for file in listing.data if file.path in changed})


# --- Cases: `cases/walk.txt` ---


def results_of(case: Case, directory: Path) -> Iterator[str]:
    """Lines are expressions of the sink; a `look` is a run, and shows what it cost and which files it left behind."""
    settings = case.settings
    follower = Follower(directory, files=settings.get("files", 0), **settings.get("shape", {}))
    sink = follower.sink
    names = {name: getattr(sink, name) for name in dir(sink) if not name.startswith("_")}
    names |= {"sink": sink, "rmtree": shutil.rmtree, "today": utc_now().date(), "configure": follower.lake.configure}
    for line in case.own:
        if line == "look":
            store = follower.look()
            left = ", ".join(sorted(follower.changed())) or "nothing"
            cost = f"{store.requests} requests for {store.objects} objects, " if settings.get("costs", True) else ""
            yield f"{cost}{left} left behind"
        elif line == "frontier":
            (row,) = follower.lake.machinery("frontier")
            ends = ", ".join(f"{each['last']} after {each['previous'] or '-'}" for each in row["sequences"])
            yield f"{row['files']} files: {ends if len(row['sequences']) < 4 else len(row['sequences'])}"
        elif line == "noticed":
            yield f"{', '.join(follower.noticed())} of {', '.join(follower.changed_dates())}"
        else:
            eval(line, names)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/walk.txt"), ids=str)
def test_runs_find_new_files_at_this_cost(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: bool
) -> None:
    # Of how many files on a table is one whose parts are looked at by themselves.
    if (request := case.settings.get("request", 0)) is not None:
        look_closely(monkeypatch, request)
    case.compare(list(results_of(case, tmp_path)), update=update)


# --- Faults ---


def test_directory_that_cannot_be_listed_is_quarantined_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_closely(monkeypatch, 0)

    class Closed(CountingStore):
        def directories(self, prefix: str = "") -> tuple[str, ...]:
            if prefix == "db/t/":
                raise SourceError("cannot list the directory: Input/output error", segment=prefix)
            return super().directories(prefix)

    follower = Follower(tmp_path, files=3)
    follower.sink.flush()
    follower.look(through=Closed)
    (row,) = follower.lake.machinery("quarantine")
    assert (row["segment"], row["error_class"], row["state"]) == ("db/t", "UnreadableDirectory", "open")
    follower.lands_all()
    (row,) = follower.lake.machinery("quarantine")
    assert row["state"] == "replayed"


def test_sink_that_is_gone_is_unreachable(tmp_path: Path) -> None:
    follower = Follower(tmp_path, files=1)
    shutil.rmtree(follower.sink.root)
    with pytest.raises(SourceUnreachableError):
        follower.look()


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
            sink.flush(sink.create(f"{'ac'[number % 2]}db/{NAMES[number]}"))
        case "another dispatcher":
            sink.write(f"{sink.place(table)}/CDC_0_00000000000000000001.json")
        case "rename":
            sink.rename(f"db/{NAMES[more[0]]}", table)
        case "alter":
            sink.alter(table)
        case "flush":
            sink.flush(table, table.streams[more[0] % len(table.streams)], days=more[1], files=more[2])
        case "move":
            sink.move(table, table.streams[more[0] % len(table.streams)])
        case _:
            sink.overwrite(table, table.streams[more[0] % len(table.streams)])


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
    follower = Follower(tmp_path_factory.mktemp("any"), separator)
    follower.sink.create("db/t", partitions=shape[0], dispatchers=shape[1])
    with pytest.MonkeyPatch.context() as patch:
        look_closely(patch, request)
        follower.look()
        for event in itertools.chain(events, [("look", False)]):
            if event[0] != "look":
                happen(follower.sink, event, shape)
                continue
            assert set(follower.noticed()) >= set(follower.changed_dates())
            follower.look(dies=event[1])
            assert event[1] or follower.changed() == {}
