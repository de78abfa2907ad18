"""Listing from the frontier: it finds what a full listing would, and does not look at what was known."""

from __future__ import annotations

import datetime
import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.config import DateSeparator
from cdc_lakehouse.errors import SourceUnreachableError
from cdc_lakehouse.sources.object_store import LocalStore, UnreadableDirectory
from cdc_lakehouse.sources.sink import incremental_listing
from cdc_lakehouse.sources.sink.incremental_listing import list_new
from cdc_lakehouse.sources.sink.listing_state import Frontier, ListingContext, next_frontier
from cdc_lakehouse.sources.sink.paths import Listing, list_sink
from tests.kit.sink_layouts import layout_with
from tests.sources.changing_sink import NOW, ChangingSink, CountingStore


@dataclass
class Follower:
    """What a feed does with a sink, in memory: it keeps what landed and the frontier."""

    sink: ChangingSink
    frontier: Frontier | None = None
    landed: dict[str, str] = field(default_factory=dict[str, str])
    ddl: dict[str, int] = field(default_factory=dict[str, int])
    watched: tuple[str, ...] = ()

    @classmethod
    def of_one_table(cls, directory: Path, *, files: int = 3, **parts: int) -> Follower:
        """It has looked at a sink with one table and `files` of each of its streams."""
        sink = sink_in(directory)
        table = sink.create("db/t", **parts)
        for stream in table.streams:
            sink.flush(table, stream, files=files)
        follower = cls(sink)
        follower.look()
        return follower

    def store(self) -> CountingStore:
        return CountingStore(self.sink.root)

    def look(self, store: LocalStore | None = None, *, dies: bool = False) -> Listing:
        """One run; one that dies does so after its segments landed and before the frontier is written."""
        store, layout = store or self.store(), self.sink.layout
        if self.frontier is None:
            listing = list_sink(store, layout)
        else:
            listing = list_new(store, layout, self.frontier, self.watched)
        if not dies:
            given = ListingContext(layout, "", NOW, dict(self.ddl))
            self.frontier = next_frontier(self.frontier, listing, given)
        self.landed |= {file.path: file.etag for file in listing.data}
        self.ddl = dict(self.sink.ddl)
        return listing

    def lands_all(self, store: LocalStore | None = None) -> Listing:
        listing = self.look(store)
        assert self.landed == self.true_files()
        return listing

    def true_files(self) -> dict[str, str]:
        return {file.path: file.etag for file in list_sink(LocalStore(self.sink.root), self.sink.layout).data}

    def true_schemas(self) -> set[str]:
        return {schema.path for schema in list_sink(LocalStore(self.sink.root), self.sink.layout).schemas}

    def noticed(self) -> set[str]:
        """The files that a sensor's tick would take for new."""
        assert self.frontier is not None
        listing = list_new(self.store(), self.sink.layout, self.frontier)
        return {file.path for file in listing.data if self.frontier.is_new(file)}

    def changed(self) -> set[str]:
        return {path for path, etag in self.true_files().items() if self.landed.get(path) != etag}


@pytest.fixture(autouse=True)
def _no_table_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incremental_listing, "REQUEST", 0)


def sink_in(directory: Path, separator: DateSeparator = "day") -> ChangingSink:
    return ChangingSink(directory / "sink", layout_with(separator))


# --- What it costs ---


def test_a_large_sink_that_gained_little_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    sink = sink_in(tmp_path)
    tables = [sink.create(f"db/t{number}") for number in range(3)]
    for _ in range(6):
        for table in tables:
            sink.flush(table, files=60)
        sink.day += datetime.timedelta(days=1)
    follower = Follower(sink)
    store = follower.store()
    follower.look(store)
    assert store.objects > 1000 and store.requests == 1
    new = sink.flush(files=10)
    assert follower.noticed() == set(new)
    store = follower.store()
    assert set(new) <= {file.path for file in follower.lands_all(store).data}
    # A schema file, an index file and two data files for each of at most three dates of each table.
    assert store.objects <= 3 * (1 + 3 * 3) + 10 + 1
    assert store.requests <= 2 + 3 * 6 + 1


def test_a_frontier_does_not_grow_with_the_files(tmp_path: Path) -> None:
    follower = Follower.of_one_table(tmp_path, files=20)
    sizes: list[int] = []
    for _ in range(20):
        assert follower.frontier is not None
        (known,) = follower.frontier.tables
        sizes.append(len(known.sequences))
        assert known.files == len(follower.true_files())
        follower.sink.day += datetime.timedelta(days=1)
        follower.sink.flush(files=20)
        follower.look()
    assert sizes[4:] == [3] * 16


def test_a_small_table_is_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    follower = Follower.of_one_table(tmp_path, files=20)
    store = follower.store()
    follower.look(store)
    assert store.listed == [("db/t/", None)] and store.requests == 3


def test_dates_with_few_files_are_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incremental_listing, "REQUEST", 10)
    follower = Follower.of_one_table(tmp_path, files=60)
    sink = follower.sink
    for _ in range(4):
        sink.day += datetime.timedelta(days=1)
        sink.flush(files=3)
    follower.look()
    (stream,) = sink.tables[0].streams
    for days in (-2, 0, -1):
        sink.flush(days=days)
        store = follower.store()
        follower.lands_all(store)
        assert (f"db/t/{stream.version}/", f"db/t/{stream.version}/2026-02-01") in store.listed
        assert store.requests == 6 and store.objects <= 20


def test_partitions_are_gone_through_one_by_one(tmp_path: Path) -> None:
    follower = Follower.of_one_table(tmp_path, files=30, partitions=2)
    table = follower.sink.tables[0]
    new = follower.sink.flush(table, table.streams[1], files=2)
    store = follower.store()
    follower.look(store)
    assert set(new) <= set(follower.landed) and store.objects <= 10


def test_listing_again_adds_nothing(tmp_path: Path) -> None:
    follower = Follower.of_one_table(tmp_path, partitions=2, dispatchers=2)
    follower.sink.alter()
    follower.sink.flush()
    follower.look()
    first = follower.frontier
    follower.look()
    # The DDL is known by now: what lies before it is left behind, which is less and so not worth a commit.
    assert follower.frontier is not None and not follower.frontier.adds_to(first)
    assert follower.frontier != first


# --- What it must find ---

Change = Callable[[ChangingSink], Any]


def _new_partition_of_an_old_version(sink: ChangingSink) -> None:
    """Two partitions move, so that the table has later versions, and then a third one writes for the first time."""
    table = sink.tables[0]
    for stream in table.streams[:2]:
        sink.move(table, stream)
        sink.flush(table, stream, files=3)
    sink.flush(table, table.streams[2])


def _a_year_later(sink: ChangingSink) -> None:
    sink.day += datetime.timedelta(days=365)
    sink.flush()


CHANGES: dict[str, Change] = {
    "a file": lambda sink: sink.flush(),
    "many files": lambda sink: sink.flush(files=30),
    "the last file again": lambda sink: sink.overwrite(),
    "a day later": lambda sink: sink.flush(days=1),
    "a year later": _a_year_later,
    "a day before": lambda sink: sink.flush(days=-1),
    "two days before": lambda sink: sink.flush(days=-2),
    "a DDL": lambda sink: (sink.alter(), sink.flush()),
    "three DDL": lambda sink: [(sink.alter(), sink.flush()) for _ in range(3)],
    "a move": lambda sink: (sink.move(), sink.flush()),
    "a partition that was quiet": _new_partition_of_an_old_version,
    "a new table": lambda sink: sink.flush(sink.create("db/u")),
    "a new database": lambda sink: sink.flush(sink.create("ab/u")),
    "a table that sorts before": lambda sink: sink.flush(sink.create("db/!")),
    "a table below another": lambda sink: sink.flush(sink.create("db/t/7")),
    "a table called meta": lambda sink: sink.flush(sink.create("db/meta")),
    "a table of two levels": lambda sink: sink.flush(sink.create("db/a/b")),
    "a rename": lambda sink: (sink.rename("db/v"), sink.flush()),
    "a version without a schema file": lambda sink: sink.write("db/t/17/2026-01-30/CDC000001.json"),
    "another dispatcher": lambda sink: sink.write(f"{sink.place()}/CDC_0_00000000000000000001.json"),
}


def _can_be(separator: str, shape: str, what: str) -> bool:
    if what == "a partition that was quiet":
        return shape == "partitions"
    return separator == "day" or what != "a version without a schema file"  # Its path is of days.


SEPARATORS = get_args(DateSeparator)
SHAPES = ["plain", "partitions", "dispatchers", "a dispatcher"]
BOUND = {"a partition that was quiet", "a version without a schema file"}
# Every pair of two of the three; those that are bound to one shape or separator with all that they can have.
WAYS = [
    (separator, shape, what)
    for (s, separator), (n, shape), (c, what) in itertools.product(*map(enumerate, (SEPARATORS, SHAPES, CHANGES)))
    if _can_be(separator, shape, what) and (what in BOUND or (s + n + c) % len(SHAPES) == 0)
]


@pytest.mark.parametrize(("separator", "shape", "what"), WAYS)
def test_it_finds_what_is_new(tmp_path: Path, separator: DateSeparator, shape: str, what: str) -> None:
    sink = sink_in(tmp_path, separator)
    # A schema file of the database lies beside the table called meta.
    sink.schema("db")
    dispatchers = {"dispatchers": 2, "a dispatcher": 1}.get(shape, 0)
    table = sink.create("db/t", partitions=3 * (shape == "partitions"), dispatchers=dispatchers)
    for stream in table.streams[:2]:
        sink.flush(table, stream, files=3)
    follower = Follower(sink)
    follower.look()
    follower.look()
    CHANGES[what](sink)
    assert follower.changed() and follower.noticed() == follower.changed()
    follower.lands_all()
    CHANGES["a file"](sink)
    follower.lands_all()


def test_numbers_of_another_width_are_found_by_the_index_file(tmp_path: Path) -> None:
    """Longer names of the same directory sort before the shorter ones that are known."""
    sink = sink_in(tmp_path)
    sink.create("db/t")
    place = sink.place()
    for number in (1, 2, 3):
        sink.write(f"{place}/CDC{number:06d}.json")
    sink.write(f"{place}/meta/CDC.index", "CDC000003.json\n")
    follower = Follower(sink)
    follower.look()
    for number in (4, 5):
        sink.write(f"{place}/CDC{number:020d}.json")
        sink.write(f"{place}/meta/CDC.index", f"CDC{number:020d}.json\n")
        follower.lands_all()


def test_a_directory_that_starts_afresh_is_listed_whole(tmp_path: Path) -> None:
    follower = Follower.of_one_table(tmp_path, files=9)
    sink = follower.sink
    shutil.rmtree(sink.root / sink.place())
    (new,) = sink.flush()
    sink.write(new, "another")
    assert new in {file.path for file in follower.look().data}
    assert follower.frontier is not None
    assert [(s.last, s.previous) for s in follower.frontier.tables[0].sequences] == [(new.rpartition("/")[2], "")]


def test_schema_files_are_listed_each_time(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    sink.schema("db")
    for name in ("t", "meta", "a/b", "meta/x"):
        table = sink.create(f"db/{name}")
        sink.flush(table, files=3)
        sink.alter(table)
    follower = Follower(sink)
    for _ in range(4):
        assert sorted(schema.path for schema in follower.look().schemas) == sorted(follower.true_schemas())


def test_directories_called_by_ids_of_tables(tmp_path: Path) -> None:
    sink = ChangingSink(tmp_path / "sink", layout_with(table_ids=True))
    sink.flush(sink.create("112"), files=3)
    follower = Follower(sink)
    follower.look()
    new = [*sink.flush(files=2), *sink.flush(sink.create("7"))]
    assert follower.noticed() == set(new)
    store = follower.store()
    follower.lands_all(store)
    assert ("112/", None) not in store.listed


def test_the_layout_before_v7_1_is_always_listed_whole(tmp_path: Path) -> None:
    sink = ChangingSink(tmp_path / "sink", layout_with("none", "csv"))
    follower = Follower(sink)
    for version in (7, 19, 8):
        sink.write(f"db/t/{version}/schema.json")
        sink.write(f"db/t/{version}/CDC000001.csv")
        follower.lands_all()
        assert len(follower.look().schemas) == len(list(sink.root.rglob("schema.json")))


def test_what_lies_before_a_known_ddl_is_left_behind(tmp_path: Path) -> None:
    """Rows written again after a restart may still come there: a full listing takes them, this one does not."""
    follower = Follower.of_one_table(tmp_path)
    sink, old = follower.sink, follower.sink.place()
    sink.alter()
    sink.write(f"{old}/CDC{4:020d}.json")  # Before the DDL was seen: it must be found.
    follower.lands_all()
    follower.look()
    sink.write(f"{old}/CDC{5:020d}.json")
    follower.look()
    assert follower.changed() == {f"{old}/CDC{5:020d}.json"}
    follower.watched = (old,)
    follower.lands_all()


def test_a_date_ahead_of_our_own_clock_leaves_nothing_behind(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    sink.create("db/t")
    sink.day = NOW.date()
    sink.flush(files=3)
    sink.flush(files=3, days=300)
    follower = Follower(sink)
    follower.look()
    follower.look()
    for days in (0, -2, 300, 3):
        sink.flush(days=days)
        follower.lands_all()


def test_a_part_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    follower = Follower.of_one_table(tmp_path)

    class Closed(LocalStore):
        def directories(self, prefix: str = "") -> tuple[str, ...]:
            if prefix == "db/t/":
                (tmp_path / "loop").symlink_to("loop")
                return LocalStore(tmp_path).directories("loop/")
            return super().directories(prefix)

    (unreadable,) = follower.look(Closed(follower.sink.root)).unreadable
    assert isinstance(unreadable, UnreadableDirectory)
    follower.sink.flush()
    follower.lands_all()


def test_a_sink_that_is_gone_is_unreachable(tmp_path: Path) -> None:
    follower = Follower(sink_in(tmp_path))
    follower.look()
    shutil.rmtree(follower.sink.root)
    with pytest.raises(SourceUnreachableError):
        follower.look()


# --- Any history ---

NAMES = ["t", "a/b", "a", "meta", "u", "a/b/7"]
PICK = st.integers(0, 5)
EVENTS = st.one_of(
    st.tuples(st.just("flush"), PICK, PICK, st.integers(-1, 0), st.integers(1, 4)),
    st.tuples(st.just("flush"), PICK, PICK, st.just(0), st.just(1)),
    st.tuples(st.sampled_from(["overwrite", "move"]), PICK, PICK),
    st.tuples(st.sampled_from(["alter", "rename", "create"]), PICK, PICK),
    st.tuples(st.just("days"), st.integers(1, 40)),
    st.tuples(st.just("look"), st.booleans()),
    st.tuples(st.just("look"), st.just(False)),
)


def happen(sink: ChangingSink, event: tuple[Any, ...], shape: tuple[int, int]) -> None:
    kind, number, *more = event
    table = sink.tables[number % len(sink.tables)]
    match kind:
        case "days":
            sink.day += datetime.timedelta(days=number)
        case "create":
            sink.create(f"db/{NAMES[number]}", partitions=shape[0], dispatchers=shape[1])
        case "alter":
            sink.alter(table)
        case "rename":
            sink.rename(f"db/{NAMES[more[0]]}", table)
        case "flush":
            sink.flush(table, table.streams[more[0] % len(table.streams)], days=more[1], files=more[2])
        case "move":
            sink.move(table, table.streams[more[0] % len(table.streams)])
        case _:
            sink.overwrite(table, table.streams[more[0] % len(table.streams)])


@pytest.mark.slow
@given(
    separator=st.sampled_from(["day", "month", "year", "none"]),
    shape=st.sampled_from([(0, 0), (3, 0), (0, 2), (2, 2)]),
    request=st.sampled_from([0, 3, 50]),
    events=st.lists(EVENTS, min_size=5, max_size=40),
)
def test_any_history_lands_as_a_full_listing_would_land_it(
    tmp_path_factory: pytest.TempPathFactory,
    separator: DateSeparator,
    shape: tuple[int, int],
    request: int,
    events: list[tuple[Any, ...]],
) -> None:
    """But for what is written again in a version that lies before a DDL, which holds nothing new."""
    sink = sink_in(tmp_path_factory.mktemp("any"), separator)
    sink.schema("db")
    sink.create("db/t", partitions=shape[0], dispatchers=shape[1])
    follower = Follower(sink)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incremental_listing, "REQUEST", request)
        follower.look()
        for event in [*events, ("look", False)]:
            if event[0] != "look":
                happen(sink, event, shape)
                continue
            assert follower.noticed() >= follower.changed()
            listing = follower.look(dies=event[1])
            assert follower.landed == follower.true_files()
            assert {schema.path for schema in listing.schemas} == follower.true_schemas()
