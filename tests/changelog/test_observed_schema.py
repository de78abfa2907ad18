"""A log of DDL as text, and what tables it leaves: names, columns, keys, effects."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import iceberg_type
from cdc_lakehouse.changelog.observed_schema import ObservedColumns, Statement, message_type, schema_changes
from cdc_lakehouse.changelog.schema import TableVersion

_clock = itertools.count(10, 10)


def statement(text: str, table: str = "t", database: str = "d") -> Statement:
    at = next(_clock)
    return Statement(at, database, table, text, f"o{at}")


def row(table: str = "t", key: tuple[str, ...] | None = ("id",), **columns: str) -> ObservedColumns:
    at = next(_clock)
    return ObservedColumns(at, "d", table, tuple(columns.items()), key, f"o{at}")


def versions(*log: Statement | ObservedColumns, **options: object) -> list[TableVersion]:
    history = History()
    history.apply(schema_changes(log, escapes=True, **options))  # pyright: ignore[reportArgumentType]
    return list(history.versions)


def columns(version: TableVersion) -> list[tuple[str, str]]:
    return [(column.name, iceberg_type(column.type)) for column in version.columns]


CREATED = statement("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(5))")


def test_statements_are_carried_out_one_after_the_other() -> None:
    made = versions(
        CREATED,
        statement("ALTER TABLE t ADD COLUMN w DECIMAL(5,2) DEFAULT 1.5 AFTER id, DROP COLUMN v"),
        statement("RENAME TABLE t TO a, a TO b"),
        statement("TRUNCATE b"),
        statement("DROP TABLE b"),
    )
    assert [(str(v.name), v.effect, v.incarnation) for v in made] == [
        ("d.t", "create", "d.t#1"), ("d.t", "evolve", "d.t#1"), ("d.a", "move", "d.t#1"), ("d.b", "move", "d.t#1"),
        ("d.b", "empty", "d.t#1"), ("d.b", "drop", "d.t#1"),
    ]  # fmt: skip
    assert columns(made[1]) == [("id", "int"), ("w", "decimal(5,2)")]
    assert made[1].columns[1].initial.text == "1.50" and made[1].key_names == ("id",)


LATE = [row(id="bigint", v="", w=""), row(id="bigint", v="longblob", w=""), row(V="", id="bigint")]


@pytest.mark.parametrize(
    ("log", "types", "effects", "expected"),
    [
        pytest.param([row(id="bigint", v="varchar"), statement("ALTER TABLE t ADD COLUMN w BIT(3)")], {},
                     ["create", "evolve"], [("id", "long"), ("v", "string"), ("w", "long")],
                     id="no statement makes it: its first row does"),
        # NULL does not tell a type. So the table is not made twice, and nothing contradicts.
        pytest.param(LATE, {}, ["create"], [("id", "long"), ("v", "binary"), ("w", "string")],
                     id="a type that only later rows tell is the column's from the beginning"),
        pytest.param([row(id="int", p="decimal")], {"d.t": {"p": "decimal(10,2)"}}, ["create"],
                     [("id", "int"), ("p", "decimal(10,2)")], id="types of the configuration go before those of rows"),
        pytest.param([statement("ALTER TABLE t ADD COLUMN w INT"), row(id="int", w="int")], {}, ["none", "create"],
                     [("id", "int"), ("w", "int")], id="a statement on an unknown table waits for a row"),
    ],
)  # fmt: skip
def test_a_table_whose_create_is_not_in_the_log(
    log: list[Statement | ObservedColumns], types: dict[str, Any], effects: list[str], expected: list[tuple[str, str]]
) -> None:
    made = versions(*log, types=types)
    assert ([each.effect for each in made], columns(made[-1])) == (effects, expected)
    first = made[effects.index("create")]
    assert (first.kind, first.since, first.incarnation, made[-1].key_names) == ("seen", 0, "d.t#1", ("id",))
    assert {each.incarnation for each in made if each.effect == "none"} <= {""}


def test_configured_types_are_for_what_there_is() -> None:
    types = {"d.t": {"ID": "int", "v": "decimal(5,2)", "gone": "date"}}
    made = versions(
        row(key=None, id="", v=""), statement("ALTER TABLE t DROP COLUMN gone"), row(key=None, V=""),
        row(key=None, id="", late=""), types=types,
    )  # fmt: skip
    # All that is configured belongs to a table of which nothing else is known; not what was dropped since.
    assert columns(made[0]) == [("id", "int"), ("v", "decimal(5,2)"), ("gone", "date")]
    assert columns(made[-1]) == [("id", "int"), ("v", "decimal(5,2)"), ("late", "string")]


def test_a_column_that_only_rows_have_is_there_for_that_row() -> None:
    shown = row(id="int", v="varchar", extra="json")
    made = versions(CREATED, shown)
    assert columns(made[-1])[-1] == ("extra", "string")
    assert made[-1].commit_ts == shown.commit_ts - 1 and made[-1].note is not None


@pytest.mark.parametrize(
    ("rows", "held"),
    [
        ([{"id": "int", "v": "varchar"}, {"id": "int"}], None),
        ([{"id": "bigint", "v": "text"}], None),
        ([{"id": "bigint", "v": ""}], None),
        ([{"id": "bigint", "v": "bigint"}], "column v as bigint"),
        ([{"id": "bigint", "v": "datetime"}], "column v as datetime"),
        ([{"id": "datetime", "v": "varchar"}], "column id as datetime"),
    ],
)
def test_rows_show_types_loosely_and_hold_a_table_whose_statements_they_contradict(
    rows: list[dict[str, str]], held: str | None
) -> None:
    made = versions(CREATED, *(row(key=("id",), **each) for each in rows))
    if held is None:
        assert [version.hold for version in made] == [None]
    else:
        assert made[-1].hold is not None and held in made[-1].hold


@pytest.mark.parametrize(
    ("text", "effect", "expected", "note"),
    [
        ("ALTER TABLE t DROP COLUMN nowhere", "none", ["id", "v"], "nowhere"),
        ("ALTER TABLE t RENAME COLUMN nowhere TO w", "none", ["id", "v"], "nowhere"),
        ("ALTER TABLE t CHANGE nowhere w INT", "evolve", ["id", "v", "w"], "nowhere"),
        ("ALTER TABLE t MODIFY nowhere INT", "evolve", ["id", "v", "nowhere"], "nowhere"),
        ("ALTER TABLE t ADD w INT AFTER nowhere", "evolve", ["id", "v", "w"], "nowhere"),
        # An index never holds.
        ("ALTER TABLE t ADD INDEX i (nowhere)", "none", ["id", "v"], None),
        ("ALTER TABLE t DROP INDEX nowhere", "none", ["id", "v"], None),
        ("ALTER TABLE t FROBNICATE", "hold", ["id", "v"], None),
    ],
)
def test_what_does_not_fit_is_carried_out_as_far_as_it_does_with_a_note(
    text: str, effect: str, expected: list[str], note: str | None
) -> None:
    """The source accepted it: what is known of the table is less than there is. What is not understood holds it."""
    last = versions(CREATED, statement(text))[-1]
    assert (last.query, last.effect, [column.name for column in last.columns]) == (text, effect, expected)
    assert (last.hold is not None) == (effect == "hold")
    assert last.note is None if note is None else last.note is not None and note in last.note


@pytest.mark.parametrize("text", ["CREATE VIEW w AS SELECT 1", "CREATE DATABASE e", "SET GLOBAL x = 1"])
def test_every_statement_is_told(text: str) -> None:
    assert len(versions(CREATED, statement(text))) == 2


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int unsigned", "long"), ("bigint(20) unsigned", "decimal(20,0)"), ("decimal", "string"), ("enum", "string"),
        ("enum('a','b')", "string"), ("datetime(6)", "timestamp"), ("no such type", "string"), ("", "string"),
        ("varbinary", "binary"), ("bit", "decimal(20,0)"), ("bit unsigned", "decimal(20,0)"), ("bit(8)", "long"),
        ("decimal unsigned", "string"), ("decimal unsigned zerofill", "string"), ("DECIMAL ZEROFILL", "string"),
        ("numeric", "string"), ("dec", "string"), ("fixed unsigned", "string"), ("decimal(10)", "decimal(10,0)"),
    ],
)  # fmt: skip
def test_types_as_messages_tell_them(text: str, kind: str) -> None:
    assert iceberg_type(message_type(text)) == kind


def test_a_statement_that_is_sent_again_changes_nothing() -> None:
    """The same text of the same moment. An ADD of a column that is there is done; a CREATE of another moment is
    another table's, whose predecessor was dropped unseen."""
    add = replace(statement("ALTER TABLE t ADD COLUMN w INT"), time_ms=5000)
    first, second, third = versions(CREATED, add, replace(add, commit_ts=next(_clock)))
    assert columns(second) == [*columns(first), ("w", "int")]
    assert (third.effect, third.hold, third.columns) == ("none", None, second.columns)
    create = replace(CREATED, time_ms=4000)
    again, later = replace(create, commit_ts=next(_clock)), replace(create, commit_ts=next(_clock), time_ms=6000)
    assert [(v.effect, v.incarnation) for v in versions(create, again)] == [("create", "d.t#1"), ("none", "")]
    assert [v.effect for v in versions(create, later)] == ["create", "drop", "create"]


# --- Rows whose columns are in another order than their table's ---

ORDERED = Statement(10, "d", "t", "CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", "a")


def row_at(at: int, *columns: str) -> ObservedColumns:
    return ObservedColumns(at, "d", "t", tuple((name, "int") for name in columns), None, f"row{at}")


def holds(*log: Statement | ObservedColumns) -> list[tuple[int, str]]:
    changes = schema_changes(log, escapes=True, in_table_order=True)
    found = [change for change in changes if change.kind == "contradiction"]
    assert all("tsdb" in str(change.fault) for change in found)
    return [(change.commit_ts, change.table) for change in found]


@pytest.mark.parametrize(
    ("columns", "held"),
    [
        *((columns, False) for columns in ("id v w", "ID V w", "id w", "w", "id x v w", "")),
        *((columns, True) for columns in ("id w v", "v id", "w x id")),
    ],
)
def test_what_is_not_in_the_tables_order_holds_it(columns: str, held: bool) -> None:
    assert holds(ORDERED, row_at(20, *columns.split())) == ([(19, "t")] if held else [])


def test_the_order_is_that_of_the_rows_point_of_the_log() -> None:
    move = Statement(30, "d", "t", "ALTER TABLE t MODIFY w INT FIRST", "b")
    exchange = Statement(50, "d", "t", "ALTER TABLE t RENAME COLUMN v TO w, RENAME COLUMN w TO v", "c")
    rows = [row_at(20, "id", "v", "w"), row_at(40, "w", "id", "v"), row_at(60, "v", "id", "w")]
    assert holds(ORDERED, move, exchange, *rows) == []
    early = [row_at(25, "w", "id", "v"), row_at(45, "v", "id", "w")]
    assert holds(ORDERED, move, exchange, *rows, *early) == [(24, "t"), (44, "t")]
    # Of a table whose CREATE is not in the log the first row tells.
    assert holds(row_at(20, "b", "a"), row_at(30, "b", "a"), row_at(40, "a", "b")) == [(39, "t")]


def test_a_table_that_is_dropped_or_renamed_is_another_one() -> None:
    drop = Statement(30, "d", "t", "DROP TABLE t", "b")
    assert holds(ORDERED, drop, row_at(40, "w", "v", "id")) == []
    renamed = Statement(30, "d", "u", "RENAME TABLE t TO u", "b")
    again = Statement(35, "d", "t", "CREATE TABLE t (w INT PRIMARY KEY, v INT)", "c")
    assert holds(ORDERED, renamed, again, row_at(40, "w", "v")) == []


@pytest.mark.parametrize(
    "places", ["c/0/3 c/0/4 c/0/5 c/0/6", "c/0/8 c/0/9 c/0/10 c/0/11", "test_y/0/2 test_z/0/2 db2_x/0/2 test_w/0/0"]
)
def test_a_rename_of_several_tables_comes_in_messages_of_one_commit_ts(places: str) -> None:
    tables = [("test", "y"), ("test", "z"), ("db2", "x")]
    log = [
        Statement(n, *name, f"CREATE TABLE `{name[1]}` (`id` INT PRIMARY KEY)", f"c/0/{n}@{n}")
        for n, name in enumerate(tables, 1)
    ]
    pairs = [*zip(tables, [("test", "w"), tables[0], tables[1]], strict=True), (("test", "w"), tables[2])]
    for (old, new), place in zip(pairs, places.split(), strict=True):
        text = f"RENAME TABLE `{old[0]}`.`{old[1]}` TO `{new[0]}`.`{new[1]}`;"
        log.append(Statement(9, *new, text, f"{place}@9"))
    history = History()
    history.apply(schema_changes(log, escapes=False))
    lives = {str(life.versions[0].name): life.last for life in history.incarnations().values()}
    assert {born: (str(last.name), last.hold) for born, last in lives.items()} == {
        "test.y": ("db2.x", None), "test.z": ("test.y", None), "db2.x": ("test.z", None),
    }  # fmt: skip


# --- Names as they are typed ---


NAMED = [
    Statement(10, "Uds", "Data8", "CREATE TABLE `Data8` (id INT PRIMARY KEY, gone INT, v VARCHAR(20))"
              " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (9))", "1"),
    Statement(11, "Uds", "Keep", "CREATE TABLE `Keep` (id INT PRIMARY KEY, gone INT, v VARCHAR(20))", "2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "named", "made"),
    [
        ("ALTER TABLE `DATA8` ADD COLUMN c INT", "Data8", [("Uds.Data8", "evolve", "id gone v c")]),
        ("ALTER TABLE `uds`.`keep` DROP COLUMN GONE", "Keep", [("Uds.Keep", "evolve", "id v")]),
        ("ALTER TABLE uds.data8 CHANGE Gone GONE INT AFTER V", "Data8", [("Uds.Data8", "evolve", "id v GONE")]),
        ("TRUNCATE TABLE `data8`", "Data8", [("Uds.Data8", "empty", "id gone v")]),
        ("ALTER TABLE data8 TRUNCATE PARTITION P0", "Data8", [("Uds.Data8", "empty", "id gone v")]),
        ("ALTER TABLE DATA8 EXCHANGE PARTITION P0 WITH TABLE UDS.KEEP", "Data8",
         [("Uds.Data8", "swap", "id gone v"), ("Uds.Keep", "swap", "id gone v")]),
        ("RENAME TABLE `UDS`.`data8` TO `uds`.`New8`", "New8", [("Uds.New8", "move", "id gone v")]),
        ("RENAME TABLE data8 TO DATA8", "DATA8", [("Uds.DATA8", "move", "id gone v")]),
        ("ALTER TABLE keep RENAME TO KEEP", "KEEP", [("Uds.KEEP", "move", "id gone v")]),
        ("RENAME TABLE DATA8 TO tmp, KEEP TO `Data8`, TMP TO keep", "",
         [("Uds.tmp", "move", "id gone v"), ("Uds.Data8", "move", "id gone v"), ("Uds.keep", "move", "id gone v")]),
        ("DROP TABLE data8, uds.KEEP", "", [("Uds.Data8", "drop", "id gone v"), ("Uds.Keep", "drop", "id gone v")]),
        ("DROP DATABASE uds", "", [("uds.", "drop", ""), ("Uds.Data8", "drop", "id gone v"),
                                   ("Uds.Keep", "drop", "id gone v")]),
        ("CREATE TABLE uds.twin LIKE data8", "twin", [("Uds.twin", "create", "id gone v")]),
        ("CREATE UNIQUE INDEX i ON KEEP (V)", "Keep", [("Uds.Keep", "none", "id gone v")]),
        # A dot before the name, of the database of the session.
        ("ALTER TABLE .`keep` DROP COLUMN gone", "Keep", [("Uds.Keep", "evolve", "id v")]),
        # It changes what the message names, and the text has another name.
        ("TRUNCATE TABLE other", "Keep", [("Uds.Keep", "hold", "id gone v")]),
        ("DROP TABLE other.data8", "Keep", [("Uds.Keep", "hold", "id gone v")]),
        ("DROP TEMPORARY TABLE other", "Keep", [("Uds.Keep", "none", "id gone v")]),
    ],
)  # fmt: skip
def test_names_of_a_statement_mean_tables_in_any_letter_case(
    text: str, named: str, made: list[tuple[str, str, str]]
) -> None:
    found = versions(*NAMED, Statement(20, "Uds", named, text, "3"))[2:]
    shown = [(str(v.name), v.effect, " ".join(column.name for column in v.columns)) for v in found]
    assert shown == made


@pytest.mark.parametrize(
    ("text", "effects"),
    [
        ("ALTER TABLE .`Keep` DROP COLUMN gone", {"Uds.Keep": "evolve"}),
        ("ALTER TABLE .`keep` DROP COLUMN gone", {"Uds.Keep": "evolve"}),
        ("TRUNCATE data8", {"Uds.Data8": "hold", "e.Data8": "hold"}),
        ("CREATE TABLE new (id INT)", {".": "none"}),
    ],
)
def test_a_statement_whose_database_nobody_names_is_of_the_only_such_table(text: str, effects: dict[str, str]) -> None:
    """Canal names neither table nor database of a statement that it does not understand."""
    other = Statement(12, "e", "Data8", "CREATE TABLE Data8 (id INT PRIMARY KEY)", "3")
    found = versions(*NAMED, other, Statement(20, "", "", text, "4"))[3:]
    assert {str(v.name): v.effect for v in found if v.effect != "none" or v.name.table == ""} == effects


@pytest.mark.parametrize(
    ("old", "effects"),
    [("keep", {"e.k2": "move"}), ("Data8", {"Uds.Data8": "hold", "f.Data8": "hold"}), ("gone", {})],
)
def test_rename_into_another_database_means_a_table_of_any(old: str, effects: dict[str, str]) -> None:
    """The message names the new table with its database, and nobody the session's."""
    other = Statement(12, "f", "Data8", "CREATE TABLE Data8 (id INT PRIMARY KEY)", "3")
    found = versions(*NAMED, other, Statement(20, "e", "k2", f"ALTER TABLE `{old}` RENAME TO e.k2", "4"))[3:]
    assert {str(v.name): v.effect for v in found if v.effect != "none"} == effects


@pytest.mark.parametrize("text", ["DROP TABLE {}", "ALTER TABLE d.{} DROP COLUMN v", "RENAME TABLE {} TO x"])
def test_tables_whose_names_differ_in_letter_case_alone(text: str) -> None:
    """The text decides, and where it is neither name, both wait."""
    born = [statement(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)", name) for name in ("Tab", "tab", "other")]
    exact = versions(*born, statement(text.format("tab"), "tab"))[3:]
    assert [str(v.previous_name or v.name) for v in exact] == ["d.tab"] and exact[0].effect != "hold"
    neither = versions(*born, statement(text.format("TAB"), "TAB"), statement(text.format("OTHER"), "OTHER"))[3:]
    assert [str(v.previous_name or v.name) for v in neither] == ["d.Tab", "d.tab", "d.other"]
    assert [v.hold for v in neither[:2]] == ["the statement names {}, which can be d.Tab or d.tab".format(
        "d.TAB" if "d." in text else "TAB")] * 2  # fmt: skip


STORED = [
    statement("CREATE TABLE Shop (id INT PRIMARY KEY, v INT)", "Shop"),
    row("shop", id="int", v="int"),
    statement("ALTER TABLE SHOP ADD w INT", "SHOP"),
    statement("CREATE TABLE IF NOT EXISTS Shop (id INT)", "Shop"),
    row("shop", id="int", v="int", w="int"),
    statement("RENAME TABLE Shop TO New", "New"),
    row("new", id="int", v="int", w="int"),
    statement("DROP TABLE NEW", "NEW"),
]


def test_rows_show_the_name_of_a_table_that_a_server_keeps_in_lower_case() -> None:
    """With lower_case_table_names=1 statements come as they were typed, and rows have the stored name."""
    made = versions(*STORED)
    assert {v.incarnation for v in made if v.effect != "none"} == {"d.Shop#1"}
    assert [(str(v.name), v.effect) for v in made if v.effect != "none"] == [
        ("d.Shop", "create"), ("d.shop", "move"), ("d.shop", "evolve"), ("d.New", "move"), ("d.new", "move"),
        ("d.new", "drop"),
    ]  # fmt: skip
    # In pieces it is the same.
    history, changes = History(), list(schema_changes(STORED, escapes=True))
    for change in changes:
        history = History(history.versions)
        history.apply([change])
    assert list(history.versions) == made


def test_rows_of_two_names_are_of_two_tables() -> None:
    """A server that tells letter case: the rows of the first show its name."""
    both = [
        statement("CREATE TABLE T (id INT PRIMARY KEY, v INT)", "T"), row("T", id="int", v="int"),
        row("t", id="int", v="int"), statement("TRUNCATE T", "T"), statement("DROP TABLE t", "t"),
    ]  # fmt: skip
    assert [(str(v.name), v.effect) for v in versions(*both)] == [
        ("d.T", "create"), ("d.t", "create"), ("d.T", "empty"), ("d.t", "drop"),
    ]  # fmt: skip
