"""Which table a name stood for at any time, against a database that is played through."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
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
from tests.kit.log import Ddl

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


def spans_at(found: History, name: str, commit_ts: int) -> list[tuple[str, list[tuple[str, int]]]]:
    return [
        (life.id, [(column.name, column.id) for column in span.version.columns])
        for life in found.incarnations().values()
        for span in life.spans()
        if str(span.name) == name and span.above < commit_ts and (span.upto is None or commit_ts <= span.upto)
    ]


def owners(found: History, name: str, commit_ts: int) -> list[str]:
    """The incarnations that events of a name at a time belong to: one, or none."""
    return [id for id, _ in spans_at(found, name, commit_ts)]


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


@pytest.mark.parametrize(
    "statement",
    ["RENAME TABLE `t` TO `b`.`t`", "ALTER TABLE `t` RENAME AS `b`.`t`", "ALTER TABLE `a`.`t` RENAME TO `b`.`t`"],
)
def test_rename_without_session_database_finds_table(statement: str) -> None:
    found = history(create(10, "a.t"), change(20, "b.t", RENAME, statement, SPEC), drop_database(30, "a"))
    assert owners(found, "b.t", 40) == ["a.t#1"]
    assert found.incarnations()["a.t#1"].dropped_ts is None


def test_names_that_differ_in_where_the_dot_is_are_two_tables() -> None:
    born = create(10, "a.b.c")
    found = history(born, replace(born, database="a.b", table="c"))
    assert sorted(life.last.name.table for life in found.incarnations().values()) == ["b.c", "c"]


def test_the_first_sight_of_a_table_may_be_late() -> None:
    """It is older than the feed: its events before the first file are its own too."""
    found = history(create(10, "db.u"), change(500, "db.t", SEEN, "", SPEC))
    assert [owners(found, "db.t", ts) for ts in (1, 500, 501)] == [["db.t#1"]] * 3


def test_a_life_up_to_a_time_and_between_two() -> None:
    life = history(create(10, "db.t"), rename(20, "db.t", "db.u"), drop(30, "db.u")).incarnations()["db.t#1"]
    parts = [life.upto(ts) for ts in (9, 10, 29, 30)]
    assert [part and len(part.versions) for part in parts] == [None, 1, 2, 3]
    assert [version.commit_ts for version in life.between(10, 30)] == [20, 30]
    assert (life.between(30, 99), life.last.effect) == ((), "drop")


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


# --- A database played through: the random histories of `tests/chaos` ---

Numbered = tuple[int, list[int]]
"""The number of a table, and those of its columns in their order."""


class Told:
    """In the place of a sink: keeps what its schema files say."""

    def __init__(self) -> None:
        self.changes: list[SchemaChange] = []

    def write_ddl(self, change: SchemaChange, _: object) -> None:
        self.changes.append(change)

    def nothing(self, *_: object) -> None: ...

    write = flush = checkpoint = nothing


@dataclass
class Played:
    steps: list[tuple[int, list[SchemaChange], dict[str, tuple[int, dict[str, int]]]]] = field(default_factory=list)
    """Of each statement its time, what is told of it, and by name the tables after it with numbers of their columns."""
    restored: dict[int, int] = field(default_factory=dict)
    """Of each table that came back, which one it was."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _tables: dict[str, Numbered] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)

    def carry_out(self, ddl: Ddl, before: list[str], after: list[str]) -> None:
        """`before` and `after` are the names of the columns of a table that is altered, or that is there then."""
        number, columns = self._tables.get(ddl.table, (0, []))
        match ddl.kind:
            case "create":
                self._tables[ddl.table] = next(self._numbers), [next(self._numbers) for _ in after]
            case "drop":
                self._gone[ddl.table] = self._tables.pop(ddl.table)[0]
            case "truncate":
                self._gone[ddl.table] = number
            case "rename table":
                self._tables[ddl.new_name] = self._tables.pop(ddl.table)
            case "recover":
                new = next(self._numbers)
                self.restored[new] = self._gone.pop(ddl.table)
                self._tables[ddl.new_name] = new, [next(self._numbers) for _ in after]
            case "add":
                columns.insert(0 if ddl.first else len(columns), next(self._numbers))
            case "drop column":
                del columns[before.index(ddl.name)]
            case _:
                pass


def play(data: st.DataObject) -> Played:
    played, told, random = Played(), Told(), chaos.History()
    feed = Changefeed(Path(), database="d", topic=lambda _: told)  # pyright: ignore[reportArgumentType]
    entries = [each for number in (0, 1) for each in random.create(f"t{number}", number)]
    for kind in data.draw(st.lists(st.sampled_from(chaos.STATEMENTS), max_size=15)):
        random.pause()
        entries += random.command(kind, *(data.draw(st.integers(0, 11)) for _ in range(3)))
    for entry in entries:
        before = columns_of(feed, entry.table)
        feed.send(entry)
        if isinstance(entry, Ddl):
            played.carry_out(
                entry, before, columns_of(feed, entry.new_name if entry.kind == "recover" else entry.table)
            )
            state = {
                name: (number, dict(zip(columns_of(feed, name), columns, strict=True)))
                for name, (number, columns) in played._tables.items()
            }
            played.steps.append((entry.commit_ts, told.changes, state))
            told.changes = []
    return played


def columns_of(feed: Changefeed, table: str) -> list[str]:
    return [column.name for column in feed.tables[table].columns] if table in feed.tables else []


@settings(deadline=None)
@given(st.data())
def test_every_event_finds_its_table_and_columns(data: st.DataObject) -> None:
    played = play(data)
    found = history(*(change for _, changes, _ in played.steps for change in changes))
    tables: dict[int, str] = {}
    columns: dict[int, tuple[str, int]] = {}
    ends = [ts for ts, _, _ in played.steps[1:]]
    for (ts, _, state), end in zip(played.steps, [*ends, played.steps[-1][0] + 10], strict=True):
        # Events of the same commit-ts as the next DDL come before it.
        for commit_ts, name in itertools.product((ts + 1, end), chaos.NAMES):
            spans = spans_at(found, f"d.{name}", commit_ts)
            assert len(spans) == (name in state)
            for id, named in spans:
                number, own = state[name]
                assert tables.setdefault(number, id) == id
                assert [column for column, _ in named] == list(own)
                for column, column_id in named:
                    assert columns.setdefault(own[column], (id, column_id)) == (id, column_id)
    assert len(set(tables.values())) == len(tables)
    assert len(set(columns.values())) == len(columns)
    assert not any(version.hold for version in found.versions)
    restored = {version.incarnation: version.restored.incarnation for version in found.versions if version.restored}
    assert restored == {tables[new]: tables[old] for new, old in played.restored.items()}


@settings(deadline=None)
@given(st.data())
def test_the_history_does_not_depend_on_how_it_is_read(data: st.DataObject) -> None:
    """At once, shuffled; or in pieces, stored and loaded in between."""
    groups = [changes for _, changes, _ in play(data).steps]
    at_once, pieces = history(*data.draw(st.permutations(list(itertools.chain(*groups))))), History()
    for group in groups:
        if data.draw(st.booleans()):
            pieces = History(pieces.versions)
        pieces.apply(group)
    assert list(pieces.versions) == list(at_once.versions)


def test_tables_of_a_recovered_database_are_those_that_went_with_it() -> None:
    gone = drop_database(20, "db")
    found = history(*BORN, gone, change(30, "db", 63, "FLASHBACK DATABASE db"))
    restored = {version.incarnation: version.restored.incarnation for version in found.versions if version.restored}
    assert sorted(restored.values()) == ["db.a#1", "db.b#1"]
    assert [owners(found, f"db.{name}", 40) for name in "ab"] == [[new] for new in sorted(restored)]
