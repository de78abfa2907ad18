"""A log of DDL as text, and what tables it leaves: names, columns, keys, effects."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.message_types import message_type, same_kind
from cdc_lakehouse.changelog.mysql_types import iceberg_type
from cdc_lakehouse.changelog.observed_schema import DdlLog, Sight, Statement
from cdc_lakehouse.changelog.schema import TableVersion

_clock = itertools.count(10, 10)


def statement(text: str, table: str = "t", database: str = "d") -> Statement:
    at = next(_clock)
    return Statement(at, database, table, text, f"o{at}")


def sight(table: str = "t", key: tuple[str, ...] | None = ("id",), **columns: str) -> Sight:
    at = next(_clock)
    return Sight(at, "d", table, tuple(columns.items()), key, f"o{at}")


def versions(*told: Statement | Sight, **options: object) -> list[TableVersion]:
    history = History()
    history.apply(DdlLog(escapes=True, **options).changes(told))  # pyright: ignore[reportArgumentType]
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


def test_a_table_that_no_statement_makes_is_known_from_its_first_row() -> None:
    made = versions(sight(id="bigint", v="varchar"), statement("ALTER TABLE t ADD COLUMN w BIT(3)"))
    assert [(v.effect, v.kind) for v in made] == [("create", "seen"), ("evolve", "add_column")]
    assert columns(made[-1]) == [("id", "long"), ("v", "string"), ("w", "long")] and made[-1].key_names == ("id",)
    assert made[0].since == 0


def test_a_type_that_only_later_rows_tell_is_the_columns_from_the_beginning() -> None:
    """NULL does not tell it. So the table is not made twice, and nothing contradicts."""
    made = versions(sight(id="bigint", v="", w=""), sight(id="bigint", v="longblob", w=""), sight(V="", id="bigint"))
    assert [v.effect for v in made] == ["create"]
    assert columns(made[0]) == [("id", "long"), ("v", "binary"), ("w", "string")]


def test_configured_types_are_for_what_there_is() -> None:
    types = {"d.t": {"ID": "int", "v": "decimal(5,2)", "gone": "date"}}
    made = versions(
        sight(key=None, id="", v=""), statement("ALTER TABLE t DROP COLUMN gone"), sight(key=None, V=""),
        sight(key=None, id="", late=""), types=types,
    )  # fmt: skip
    # All that is configured belongs to a table of which nothing else is known; not what was dropped since.
    assert columns(made[0]) == [("id", "int"), ("v", "decimal(5,2)"), ("gone", "date")]
    assert columns(made[-1]) == [("id", "int"), ("v", "decimal(5,2)"), ("late", "string")]


def test_a_column_that_only_rows_have_is_there_for_that_row() -> None:
    row = sight(id="int", v="varchar", extra="json")
    made = versions(CREATED, row)
    assert columns(made[-1])[-1] == ("extra", "string")
    assert made[-1].commit_ts == row.commit_ts - 1 and made[-1].note is not None


def test_rows_that_contradict_statements_hold_the_table() -> None:
    made = versions(CREATED, sight(id="datetime", v="varchar"))
    assert made[-1].hold is not None and "column id as datetime" in made[-1].hold


def test_rows_that_agree_make_no_version() -> None:
    assert len(versions(CREATED, sight(id="int", v="varchar"), sight(id="int"))) == 1


@pytest.mark.parametrize("text", ["ALTER TABLE t FROBNICATE", "ALTER TABLE t DROP COLUMN nowhere"])
def test_what_cannot_be_carried_out_holds_a_known_table(text: str) -> None:
    made = versions(CREATED, statement(text))
    assert made[-1].effect == "hold" and made[-1].hold and made[-1].query == text


def test_of_an_unknown_table_it_waits_for_a_row() -> None:
    made = versions(statement("ALTER TABLE t ADD COLUMN w INT"), sight(id="int", w="int"))
    assert [(v.effect, v.incarnation) for v in made] == [("none", ""), ("create", "d.t#1")]


@pytest.mark.parametrize("text", ["ALTER TABLE t ADD INDEX i (nowhere)", "ALTER TABLE t DROP INDEX nowhere"])
def test_an_index_never_holds(text: str) -> None:
    assert versions(CREATED, statement(text))[-1].effect == "none"


@pytest.mark.parametrize("text", ["CREATE VIEW w AS SELECT 1", "CREATE DATABASE e", "SET GLOBAL x = 1"])
def test_every_statement_is_told(text: str) -> None:
    assert len(versions(CREATED, statement(text))) == 2


def test_types_of_the_configuration_go_before_those_of_rows() -> None:
    (version,) = versions(sight(id="int", p="decimal"), types={"d.t": {"p": "decimal(10,2)"}})
    assert columns(version)[1] == ("p", "decimal(10,2)")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int unsigned", "long"), ("bigint(20) unsigned", "decimal(20,0)"), ("decimal", "string"), ("enum", "string"),
        ("enum('a','b')", "string"), ("datetime(6)", "timestamp"), ("no such type", "string"), ("", "string"),
        ("varbinary", "binary"), ("bit", "decimal(20,0)"),
    ],
)  # fmt: skip
def test_types_as_messages_tell_them(text: str, kind: str) -> None:
    assert iceberg_type(message_type(text)) == kind


def test_messages_tell_types_loosely() -> None:
    assert same_kind(message_type("varchar(5)"), message_type("text"))
    assert same_kind(message_type("tinyint(1)"), message_type("bigint"))
    assert not same_kind(message_type("int"), message_type("datetime"))


def test_a_statement_that_is_sent_again_holds_nothing() -> None:
    """The same text of the same moment: of another moment it is another one, and what is known is not what there is."""
    add = replace(statement("ALTER TABLE t ADD COLUMN w INT"), time_ms=5000)
    again, later = replace(add, commit_ts=next(_clock)), replace(add, commit_ts=next(_clock), time_ms=6000)
    first, second, third = versions(CREATED, add, again)
    assert columns(second) == [*columns(first), ("w", "int")]
    assert (third.effect, third.hold) == ("none", None)
    *_, last = versions(CREATED, add, later)
    assert last.hold is not None and "w" in last.hold
