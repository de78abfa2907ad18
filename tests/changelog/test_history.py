"""Which table a name stood for at any time, and that a history is the same however it is read."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.schema import SchemaChange
from tests.changelog import statements
from tests.changelog.statements import DROP_DATABASE, RENAME, SEEN, change, history
from tests.chaos import history as chaos
from tests.kit.changefeed import Changefeed

SPEC = "id:bigint:pk v"


def create(ts: int, name: str) -> SchemaChange:
    return change(ts, name, statements.CREATE, f"CREATE TABLE {quoted(name)} (`id` BIGINT PRIMARY KEY, `v` INT)", SPEC)


def rename(ts: int, old: str, new: str) -> SchemaChange:
    return change(ts, new, RENAME, f"RENAME TABLE {quoted(old)} TO {quoted(new)}", SPEC)


def drop(ts: int, name: str) -> SchemaChange:
    return change(ts, name, statements.DROP, f"DROP TABLE {quoted(name)}", SPEC)


def drop_database(ts: int, name: str) -> SchemaChange:
    return change(ts, name, DROP_DATABASE, f"DROP DATABASE `{name}`")


def quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))


def owners(found: History, name: str, commit_ts: int) -> list[str]:
    """The incarnations that events of a name at a time belong to: one, or none."""
    return [
        life.id
        for life in found.incarnations().values()
        for span in life.spans()
        if str(span.name) == name and span.above < commit_ts and (span.upto is None or commit_ts <= span.upto)
    ]


# --- Examples ---

BORN = [create(10, "db.a"), create(11, "db.b")]


@pytest.mark.parametrize(
    ("pairs", "after"),
    [
        ([("a", "tmp"), ("b", "a"), ("tmp", "b")], {"a": ["db.b#1"], "b": ["db.a#1"], "tmp": []}),
        ([("b", "c"), ("a", "b"), ("c", "d")], {"a": [], "b": ["db.a#1"], "c": [], "d": ["db.b#1"]}),
        ([("a", "z"), ("z", "y"), ("y", "x")], {"a": [], "b": ["db.b#1"], "x": ["db.a#1"], "y": [], "z": []}),
    ],
    ids=["swap", "chain", "several names within one statement"],
)
def test_renames_of_one_statement_in_any_order_of_their_files(
    pairs: list[tuple[str, str]], after: dict[str, list[str]]
) -> None:
    before = {"a": ["db.a#1"], "b": ["db.b#1"]}
    for order in itertools.permutations(pairs):
        found = history(*BORN, *(rename(20, f"db.{old}", f"db.{new}") for old, new in order))
        for ts, expected in ((20, {name: list[str]() for name in after} | before), (21, after)):
            assert {name: owners(found, f"db.{name}", ts) for name in expected} == expected


def test_names_with_the_dot_elsewhere_are_two_tables() -> None:
    born = create(10, "a.b.c")
    assert len(history(born, replace(born, database="a.b", table="c")).incarnations()) == 2


def test_a_life_up_to_a_time_has_the_versions_till_then() -> None:
    life = history(create(10, "db.t"), rename(20, "db.t", "db.u"), drop(30, "db.u")).incarnations()["db.t#1"]
    parts = [life.upto(ts) for ts in (9, 10, 29, 30)]
    assert [part and len(part.versions) for part in parts] == [None, 1, 2, 3]


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        (change(15, "db.t", SEEN), True),
        (change(15, "db.s", SEEN), True),
        (change(15, "db.new", SEEN), False),
        (change(15, "other.t", SEEN), False),
        (change(20, "db.t", SEEN), False),
        (change(15, "db", DROP_DATABASE), True),
        (change(15, "other", DROP_DATABASE), False),
        (change(25, "gone.new", SEEN), True),
        (change(35, "gone.new", SEEN), False),
        (change(15, "old.a", SEEN), True),
        (change(25, "old.c", 25, "FLASHBACK TABLE a TO c"), True),
    ],
)
def test_a_change_before_one_of_the_same_table_is_late(late: SchemaChange, expected: bool) -> None:
    lost = create(1, "old.a"), drop(2, "old.a"), change(20, "old.b", 25, "FLASHBACK TABLE a TO b", SPEC)
    found = history(*lost, create(10, "db.s"), rename(20, "db.s", "db.t"), change(30, "gone", DROP_DATABASE, "…"))
    assert found.is_late(late) == expected


# --- Random histories of `tests/chaos`, which compares the rows that they leave ---


class Told:
    """In the place of a sink: keeps what its schema files say."""

    def __init__(self) -> None:
        self.changes: list[SchemaChange] = []

    def write_ddl(self, change: SchemaChange, _: object) -> None:
        self.changes.append(change)

    def nothing(self, *_: object) -> None: ...

    write = flush = checkpoint = nothing


def play(data: st.DataObject) -> list[list[SchemaChange]]:
    """What the schema files of each statement say."""
    told, random = Told(), chaos.History()
    feed = Changefeed(Path(), database="d", topic=lambda _: told)  # pyright: ignore[reportArgumentType]
    entries = [each for number in (0, 1) for each in random.create(f"t{number}", number)]
    for kind in data.draw(st.lists(st.sampled_from(chaos.STATEMENTS), max_size=15)):
        random.pause()
        entries += random.command(kind, *(data.draw(st.integers(0, 11)) for _ in range(3)))
    groups: list[list[SchemaChange]] = []
    for entry in entries:
        feed.send(entry)
        groups.append(told.changes)
        told.changes = []
    return groups


@settings(deadline=None)
@given(st.data())
def test_the_history_does_not_depend_on_how_it_is_read(data: st.DataObject) -> None:
    """At once, shuffled; or in pieces, stored and loaded in between."""
    groups = play(data)
    at_once, pieces = history(*data.draw(st.permutations(list(itertools.chain(*groups))))), History()
    for group in groups:
        if data.draw(st.booleans()):
            pieces = History(pieces.versions)
        pieces.apply(group)
    assert list(pieces.versions) == list(at_once.versions)
    assert not any(version.hold for version in at_once.versions)
