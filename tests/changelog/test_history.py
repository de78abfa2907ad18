"""Which table a name stood for at any time, against a database that is played through."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.schema import SchemaChange
from tests.changelog import statements
from tests.changelog.statements import ADD, DROP_COLUMN, DROP_DATABASE, RENAME, SEEN, change, history

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


# --- A database played through ---


@dataclass
class Played:
    """Tables by name, each a number and its columns as (name, number); every step is one commit-ts."""

    tables: dict[str, tuple[int, list[tuple[str, int]]]] = field(default_factory=dict)
    changes: list[list[SchemaChange]] = field(default_factory=list)
    states: list[dict[str, tuple[int, list[tuple[str, int]]]]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    gone: dict[str, tuple[int, list[tuple[str, int]]]] = field(default_factory=dict)
    """What was last dropped or truncated of each name, and is not back."""
    gone_with: dict[str, tuple[int, list[tuple[str, int]]]] = field(default_factory=dict)
    """The tables of the database that was dropped last."""
    restored: dict[int, int] = field(default_factory=dict)
    """Of each table that came back, which one it was."""

    @property
    def ts(self) -> int:
        return 10 * (len(self.changes) + 1)

    def done(self, *changes: SchemaChange) -> None:
        self.changes.append(list(changes))
        self.states.append({name: (number, list(columns)) for name, (number, columns) in self.tables.items()})

    def restore(self, lost: tuple[int, list[tuple[str, int]]], name: str) -> str:
        """Make it a table anew; return its columns."""
        number = next(self.numbers)
        self.restored[number] = lost[0]
        self.tables[name] = number, [(column, next(self.numbers)) for column, _ in lost[1]]
        return " ".join(f"{column}:bigint:pk" if column == "id" else column for column, _ in lost[1])

    def alter(self, name: str, action: int, clauses: str = "") -> None:
        spec = " ".join(f"{column}:bigint:pk" if column == "id" else column for column, _ in self.tables[name][1])
        self.done(change(self.ts, name, action, f"ALTER TABLE {quoted(name)} {clauses}" if clauses else "", spec))


NAMES = [f"{database}.{table}" for database in "xy" for table in "tuv"]
COLUMNS = ["c", "d", "e"]
STEPS = [
    "create", "create", "drop", "rename", "swap", "truncate", "add", "drop column", "rename column", "seen", "drop db",
    "recover", "recover", "recover db",
]  # fmt: skip


def play(draw: st.DataObject, steps: int) -> Played:
    played = Played()
    for _ in range(steps):
        live = sorted(played.tables)
        free = [name for name in NAMES if name not in played.tables]
        step = draw.draw(st.sampled_from(STEPS)) if live else "create"
        ts = played.ts
        if step == "create":
            if not free:
                continue
            name = draw.draw(st.sampled_from(free))
            played.tables[name] = (next(played.numbers), [(column, next(played.numbers)) for column in ("id", "v")])
            played.done(create(ts, name))
            continue
        name = draw.draw(st.sampled_from(live))
        _, columns = played.tables[name]
        own = [column for column, _ in columns if column in COLUMNS]
        unused = [column for column in COLUMNS if column not in own]
        match step:
            case "drop":
                played.gone[name] = played.tables.pop(name)
                played.done(drop(ts, name))
            case "drop db":
                played.gone_with = {other: table for other, table in played.tables.items() if other[0] == name[0]}
                for other in played.gone_with:
                    del played.tables[other]
                played.done(drop_database(ts, name[0]))
            case "recover" if played.gone:
                lost = draw.draw(st.sampled_from(sorted(played.gone)))
                new = draw.draw(st.sampled_from([each for each in free if each[0] == lost[0]] or [""]))
                if new:
                    spec = played.restore(played.gone.pop(lost), new)
                    query = f"RECOVER TABLE `{lost[2:]}`"
                    query = query if new == lost else f"FLASHBACK TABLE {quoted(lost)} TO `{new[2:]}`"
                    played.done(change(ts, new, 25, query, spec))
            case "recover db" if played.gone_with:
                database = next(iter(played.gone_with))[0]
                if not any(other[0] == database for other in live):
                    for lost, table in played.gone_with.items():
                        played.restore(table, lost)
                    played.gone_with = {}
                    played.done(change(ts, database, 63, f"FLASHBACK DATABASE {database}"))
            case "rename" if free:
                new = draw.draw(st.sampled_from(free))
                played.tables[new] = played.tables.pop(name)
                played.done(rename(ts, name, new))
            case "swap" if len(live) > 1:
                other = draw.draw(st.sampled_from([each for each in live if each != name]))
                played.tables[name], played.tables[other] = played.tables[other], played.tables[name]
                pairs = [(name, "x.tmp"), (other, name), ("x.tmp", other)]
                played.done(*(rename(ts, *pair) for pair in draw.draw(st.permutations(pairs))))
            case "truncate":
                played.gone[name] = played.tables[name]
                played.tables[name] = (played.tables[name][0], list(columns))
                played.done(change(ts, name, statements.TRUNCATE, f"TRUNCATE TABLE {quoted(name)}", SPEC))
            case "add" if unused:
                column = draw.draw(st.sampled_from(unused))
                columns.append((column, next(played.numbers)))
                played.alter(name, ADD, f"ADD COLUMN `{column}` INT")
            case "drop column" if own:
                column = draw.draw(st.sampled_from(own))
                columns[:] = [each for each in columns if each[0] != column]
                played.alter(name, DROP_COLUMN, f"DROP COLUMN `{column}`")
            case "rename column" if own and unused:
                old, new = draw.draw(st.sampled_from(own)), draw.draw(st.sampled_from(unused))
                columns[:] = [(new if column == old else column, number) for column, number in columns]
                played.alter(name, statements.MODIFY, f"RENAME COLUMN `{old}` TO `{new}`")
            case _:
                played.alter(name, SEEN)
    return played


@settings(deadline=None)
@given(st.data())
def test_every_event_finds_its_table_and_columns(data: st.DataObject) -> None:
    played = play(data, data.draw(st.integers(1, 15)))
    found = history(*itertools.chain(*played.changes))
    tables: dict[int, str] = {}
    columns: dict[int, tuple[str, int]] = {}
    for step, state in enumerate(played.states):
        # Events of the same commit-ts as the next DDL come before it.
        for commit_ts, name in itertools.product((10 * step + 11, 10 * step + 20), [*NAMES, "x.tmp"]):
            spans = spans_at(found, name, commit_ts)
            assert len(spans) == (name in state)
            for id, named in spans:
                number, own = state[name]
                assert tables.setdefault(number, id) == id
                assert [column for column, _ in named] == [column for column, _ in own]
                for (_, column_id), (_, column_number) in zip(named, own, strict=True):
                    assert columns.setdefault(column_number, (id, column_id)) == (id, column_id)
    assert len(set(tables.values())) == len(tables)
    assert len(set(columns.values())) == len(columns)
    assert not any(version.hold or version.note for version in found.versions)
    restored = {version.incarnation: version.restored.incarnation for version in found.versions if version.restored}
    assert restored == {tables[new]: tables[old] for new, old in played.restored.items()}


@settings(deadline=None)
@given(st.data())
def test_the_history_does_not_depend_on_how_it_is_read(data: st.DataObject) -> None:
    """At once, shuffled; or in pieces, stored and loaded in between."""
    played = play(data, data.draw(st.integers(1, 12)))
    at_once, pieces = history(*data.draw(st.permutations(list(itertools.chain(*played.changes))))), History()
    for group in played.changes:
        if data.draw(st.booleans()):
            pieces = History(pieces.versions)
        pieces.apply(group)
    assert list(pieces.versions) == list(at_once.versions)
