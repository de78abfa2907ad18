"""Landing from the frontier: it finds what a listing of the whole sink would, and does not look at what was known."""

from __future__ import annotations

import datetime
import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cdc_lakehouse.config import DateSeparator
from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from tests import LONG
from tests.boundaries.change_log import utc_now
from tests.boundaries.sources import LocalStore, list_sink, open_monitor
from tests.kit.kills import KillAtCommit
from tests.kit.sink_layouts import layout_with, look_closely
from tests.pipeline import lake_in
from tests.sources.changing_sink import ChangingSink, CountingStore


@pytest.fixture(autouse=True)
def _no_table_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    look_closely(monkeypatch, 0)


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
        return list(open_monitor(self.lake.lake, self.lake.feed).new_dates())

    def changed_dates(self) -> list[str]:
        listing = list_sink(LocalStore(self.sink.root), layout_with(self.separator))
        changed = self.changed()
        return sorted({file.feed_date or "" for file in listing.data if file.path in changed})


# --- What it costs ---


def test_large_sink_with_few_new_files_is_not_listed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    follower = Follower(tmp_path)
    sink = follower.sink
    tables = [sink.create(f"db/t{number}") for number in range(3)]
    for _ in range(6):
        for table in tables:
            sink.flush(table, files=60)
        sink.day += datetime.timedelta(days=1)
    store = follower.look()
    assert store.objects > 1000 and store.requests == 1
    new = sink.flush(files=10)
    assert set(follower.changed()) == set(new) and follower.noticed() == follower.changed_dates()
    store = follower.lands_all()
    # A schema file, an index file and two data files for each of at most three dates of each table.
    assert store.objects <= 3 * (1 + 3 * 3) + 10 + 1
    assert store.requests <= 2 + 3 * 6 + 1


def test_frontier_does_not_grow_with_the_files(tmp_path: Path) -> None:
    follower = Follower(tmp_path, files=20)
    sizes: list[int] = []
    for _ in range(7):
        (row,) = follower.lake.machinery("frontier")
        sizes.append(len(row["sequences"]))
        assert row["files"] == len(follower.files())
        follower.sink.day += datetime.timedelta(days=1)
        follower.sink.flush(files=20)
        follower.look()
    assert sizes[4:] == [3] * 3


def test_small_table_is_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    store = Follower(tmp_path, files=20).look()
    assert store.listed == [("db/t/", None)] and store.requests == 3


def test_dates_with_few_files_are_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look_closely(monkeypatch, 10)
    follower = Follower(tmp_path, files=60)
    sink = follower.sink
    for _ in range(4):
        sink.day += datetime.timedelta(days=1)
        sink.flush(files=3)
    follower.look()
    (stream,) = sink.tables[0].streams
    for days in (-2, 0, -1):
        sink.flush(days=days)
        store = follower.lands_all()
        assert (f"db/t/{stream.version}/", f"db/t/{stream.version}/2026-02-01") in store.listed
        assert store.requests == 6 and store.objects <= 20


def test_known_partitions_are_not_listed_whole(tmp_path: Path) -> None:
    follower = Follower(tmp_path, files=30, partitions=2)
    table = follower.sink.tables[0]
    follower.sink.flush(table, table.streams[1], files=2)
    assert follower.lands_all().objects <= 10


# --- What it must find ---

Change = Callable[[ChangingSink, str], Any]


def _new_partition_of_an_old_version(sink: ChangingSink, _: str) -> None:
    """Two partitions move, so that the table has later versions, and then a third one writes for the first time."""
    table = sink.tables[0]
    for stream in table.streams[:2]:
        sink.move(table, stream)
        sink.flush(table, stream, files=3)
    sink.flush(table, table.streams[2])


def _a_year_later(sink: ChangingSink, _: str) -> None:
    sink.day += datetime.timedelta(days=365)
    sink.flush()


CHANGES: dict[str, Change] = {
    "a file": lambda sink, _: sink.flush(),
    "many files": lambda sink, _: sink.flush(files=30),
    "the last file again": lambda sink, _: sink.overwrite(),
    "a day later": lambda sink, _: sink.flush(days=1),
    "a year later": _a_year_later,
    "a day before": lambda sink, _: sink.flush(days=-1),
    "two days before": lambda sink, _: sink.flush(days=-2),
    "a DDL": lambda sink, _: (sink.alter(), sink.flush()),
    "three DDL": lambda sink, _: [(sink.alter(), sink.flush()) for _ in range(3)],
    "a move": lambda sink, _: (sink.move(), sink.flush()),
    "a partition that was quiet": _new_partition_of_an_old_version,
    "a new table": lambda sink, db: sink.flush(sink.create(f"{db}/u")),
    "a new database": lambda sink, db: sink.flush(sink.create(f"a{db}/u")),
    "a table that sorts before": lambda sink, db: sink.flush(sink.create(f"{db}/!")),
    "a table below another": lambda sink, db: sink.flush(sink.create(f"{db}/t/7")),
    "a table called meta": lambda sink, db: sink.flush(sink.create(f"{db}/meta")),
    "a table of two levels": lambda sink, db: sink.flush(sink.create(f"{db}/a/b")),
    "a rename": lambda sink, db: (sink.rename(f"{db}/v"), sink.flush()),
    "a version without a schema file": lambda sink, db: sink.write(f"{db}/t/17/2026-01-30/CDC000001.json"),
    "another dispatcher": lambda sink, _: sink.write(f"{sink.place()}/CDC_0_00000000000000000001.json"),
}
SHAPES = {"plain": {}, "partitions": {"partitions": 3}, "dispatchers": {"dispatchers": 2}, "one": {"dispatchers": 1}}


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("separator", "shape"),
    [("day", "partitions"), ("day", "plain"), ("month", "one"), ("year", "dispatchers"), ("none", "plain")],
)
def test_new_files_are_found(tmp_path: Path, separator: DateSeparator, shape: str) -> None:
    """Of all changes side by side, each in a database of its own."""
    follower = Follower(tmp_path, separator)
    sinks: dict[str, ChangingSink] = {}
    for number, change in enumerate(CHANGES):
        if change == "a partition that was quiet" and shape != "partitions":
            continue
        if change == "a version without a schema file" and separator != "day":  # Its path is of days.
            continue
        clock = 466_000_000_000_000_000 + number * 1_000_000
        sink = sinks[change] = ChangingSink(follower.sink.root, separator, clock)
        # A schema file of the database lies beside those of the table called meta.
        sink.schema(f"db{number}", 1, f"CREATE DATABASE `db{number}`")
        table = sink.create(f"db{number}/t", **SHAPES[shape])
        for stream in table.streams[:2]:
            sink.flush(table, stream, files=3)
    follower.look()
    follower.look()
    for change, sink in sinks.items():
        before = set(follower.files().items())
        CHANGES[change](sink, sink.tables[0].directory.partition("/")[0])
        assert set(follower.files().items()) - before, change
    assert follower.noticed() == follower.changed_dates()
    follower.lands_all()
    # One of them is a year later, and dates are closed for the whole sink.
    last = max(sink.day for sink in sinks.values())
    for sink in sinks.values():
        sink.day = last
        sink.flush()
    follower.lands_all()


def test_numbers_of_another_width_are_found_by_the_index_file(tmp_path: Path) -> None:
    """Longer names of the same directory sort before the shorter ones that are known."""
    follower = Follower(tmp_path)
    sink = follower.sink
    sink.create("db/t")
    place = sink.place()
    for number in (1, 2, 3):
        sink.write(f"{place}/CDC{number:06d}.json")
    sink.write(f"{place}/meta/CDC.index", "CDC000003.json\n")
    follower.look()
    for number in (4, 5):
        sink.write(f"{place}/CDC{number:020d}.json")
        sink.write(f"{place}/meta/CDC.index", f"CDC{number:020d}.json\n")
        follower.lands_all()


def test_directory_that_starts_afresh_is_listed_whole(tmp_path: Path) -> None:
    follower = Follower(tmp_path, files=9)
    sink = follower.sink
    shutil.rmtree(sink.root / sink.place())
    (new,) = sink.flush()
    sink.write(new, "another")
    follower.lands_all()
    (row,) = follower.lake.machinery("frontier")
    assert [(each["last"], each["previous"]) for each in row["sequences"]] == [(new.rpartition("/")[2], "")]


def test_files_before_a_known_ddl_are_left_behind(tmp_path: Path) -> None:
    """Rows written again after a restart can still come there: a listing of the whole sink takes them."""
    follower = Follower(tmp_path, files=3)
    sink, old = follower.sink, follower.sink.place()
    sink.alter()
    sink.write(f"{old}/CDC{4:020d}.json")  # Before the DDL was seen: it must be found.
    follower.lands_all()
    sink.flush()
    follower.lands_all()
    late = f"{old}/CDC{5:020d}.json"
    sink.write(late)
    follower.look()
    assert set(follower.changed()) == {late}
    follower.lake.configure(source={"date_separator": "day", "full_listing_hours": 0})
    follower.lands_all()


def test_date_ahead_of_our_own_clock_leaves_nothing_behind(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    sink = follower.sink
    sink.create("db/t")
    sink.day = utc_now().date()
    sink.flush(files=3)
    sink.flush(files=3, days=300)
    follower.look()
    follower.look()
    for days in (0, -2, 300, 3):
        sink.flush(days=days)
        follower.lands_all()


def test_directory_that_cannot_be_listed_is_quarantined_until_it_can(tmp_path: Path) -> None:
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

NAMES = ["t", "a/b", "a", "meta", "u", "a/b/7"]
PICK = st.integers(0, 5)
EVENTS = st.one_of(
    st.tuples(st.just("flush"), PICK, PICK, st.integers(-1, 0), st.integers(1, 4)),
    st.tuples(st.just("flush"), PICK, PICK, st.just(0), st.just(1)),
    st.tuples(st.sampled_from(["overwrite", "move"]), PICK, PICK),
    st.tuples(st.sampled_from(["alter", "create"]), PICK, PICK),
    st.tuples(st.just("days"), st.integers(1, 40)),
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
        case "alter":
            sink.alter(table)
        case "flush":
            sink.flush(table, table.streams[more[0] % len(table.streams)], days=more[1], files=more[2])
        case "move":
            sink.move(table, table.streams[more[0] % len(table.streams)])
        case _:
            sink.overwrite(table, table.streams[more[0] % len(table.streams)])


@pytest.mark.slow
@settings(max_examples=200 if LONG else 5, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # Each is seconds.
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
