"""Statements applied to a schema. What a server does is tested against one, in tests/servers/test_ddl.py."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.ddl.definitions import TableName
from cdc_lakehouse.changelog.ddl.parser import parse
from cdc_lakehouse.changelog.ddl_apply import apply
from cdc_lakehouse.changelog.ddl_schema import Database, Schema, TableSchema
from cdc_lakehouse.changelog.mysql_types import server_type_text
from cdc_lakehouse.errors import DdlError
from tests.changelog.ddl.test_fuzz import STATEMENTS, mutated
from tests.servers.ddl_sequences import Statements

T = TableName("d", "t")


def after(*statements: str, schema: Schema | None = None) -> Schema:
    found = schema or Schema(session="d").with_database(Database("d"))
    for statement in statements:
        found = apply(found, parse(statement))
    return found


def table(*statements: str, name: TableName = T) -> TableSchema:
    return after(*statements).table(name)


def shown(*statements: str) -> list[str]:
    """Of the columns of `t`: name, type, and what else there is to say."""
    found = table(*statements)
    return [
        f"{column.name} {server_type_text(column.type)}"
        + " not null" * (not column.nullable)
        + (f" = {column.default}" if column.default is not None else "")
        + " pri" * (column.id in found.primary_key)
        for column in found.columns
    ]


def test_create_table() -> None:
    statement = "CREATE TABLE t (id SERIAL, a INT UNSIGNED DEFAULT 1.7, b NCHAR(3), PRIMARY KEY (id, b))"
    assert shown(statement) == [
        "id bigint(20) unsigned not null pri",
        "a int(10) unsigned = 2",
        "b char(3) not null pri",
    ]


@pytest.mark.parametrize(
    ("declared", "printed"),
    [
        ("BOOL", "tinyint(1)"),
        ("INT ZEROFILL", "int(10) unsigned zerofill"),
        ("FLOAT(25)", "double"),
        ("FLOAT(7,3)", "float(7,3)"),
        ("DEC", "decimal(10,0)"),
        ("YEAR", "year(4)"),
        ("BIT", "bit(1)"),
        ("LONG VARBINARY", "mediumblob"),
        ("TEXT(63)", "tinytext"),
        ("TEXT(64)", "text"),
        ("CHAR(2) CHARACTER SET binary", "binary(2)"),
        ("DATETIME(3)", "datetime(3)"),
        ("GEOMETRYCOLLECTION", "geomcollection"),
        ("ENUM('it''s','b\\\\c','d\\ne')", "enum('it''s','b\\\\c','d\\ne')"),
        ("VECTOR(3)", "vector(3)"),
        ("JSON", "json"),
    ],
)
def test_types(declared: str, printed: str) -> None:
    assert shown(f"CREATE TABLE t (c {declared})") == [f"c {printed}"]


def test_identity_stays_through_changes_and_is_not_given_twice() -> None:
    before = ("CREATE TABLE t (a INT, b INT)", "ALTER TABLE t CHANGE a z BIGINT, DROP b, ADD b INT")
    assert [(column.name, column.id) for column in table(*before).columns] == [("z", 1), ("b", 3)]
    moved = table(*before, "RENAME TABLE t TO u", "ALTER TABLE u ADD c INT", name=TableName("d", "u"))
    assert [(column.name, column.id) for column in moved.columns] == [("z", 1), ("b", 3), ("c", 4)]


def test_a_table_like_another_has_ids_of_its_own() -> None:
    found = table(
        "CREATE TABLE s (a INT, b INT PRIMARY KEY)", "ALTER TABLE s DROP a, ADD c INT FIRST", "CREATE TABLE t LIKE s"
    )
    assert [(column.name, column.id) for column in found.columns] == [("c", 1), ("b", 2)]
    assert found.primary_key == (2,)


def test_a_statement_that_fails_changes_nothing() -> None:
    before = after("CREATE TABLE t (a INT)", "CREATE TABLE u (b INT)")
    for statement in ("ALTER TABLE t ADD c INT, DROP nope", "DROP TABLE t, nope", "RENAME TABLE t TO v, nope TO w"):
        with pytest.raises(DdlError, match="nope"):
            after(statement, schema=before)
    assert set(before.databases["d"].tables) == {"t", "u"}


def test_a_swap_of_tables() -> None:
    found = after("CREATE TABLE t (a INT)", "CREATE TABLE u (b INT)", "RENAME TABLE t TO s, u TO t, s TO u")
    assert [column.name for column in found.table(T).columns] == ["b"]


def test_a_move_to_another_database() -> None:
    found = after("CREATE DATABASE e", "CREATE TABLE t (a INT)", "ALTER TABLE t RENAME e.u, ADD b INT")
    assert [column.name for column in found.table(TableName("e", "u")).columns] == ["a", "b"]
    assert not found.holds(T)


def test_databases() -> None:
    found = after("CREATE DATABASE e CHARACTER SET latin1", "USE e", "CREATE TABLE t (a TEXT(200))")
    assert server_type_text(found.table(TableName("e", "t")).columns[0].type) == "tinytext"
    dropped = after("DROP DATABASE e", schema=found)
    assert dropped.session is None and set(dropped.databases) == {"d"}
    with pytest.raises(DdlError, match="no database is selected"):
        after("CREATE TABLE t (a INT)", schema=dropped)
    with pytest.raises(DdlError, match="database e does not exist"):
        after("CREATE TABLE e.t (a INT)", schema=dropped)


def test_databases_that_are_assumed() -> None:
    found = after("CREATE TABLE e.t (a INT)", "USE f", schema=Schema(assumed=True))
    assert set(found.databases) == {"e", "f"} and found.session == "f"
    with pytest.raises(DdlError, match="database e does not exist"):
        after("DROP DATABASE e", "CREATE TABLE e.t (a INT)", schema=found)


def test_create_as_select_needs_its_columns() -> None:
    defined = "CREATE TABLE t (a INT, b BIGINT, c CHAR(3)) AS SELECT x.c, 1 + 1 AS a FROM x"
    assert shown(defined) == ["b bigint(20)", "c char(3)", "a int(11)"]
    with pytest.raises(DdlError, match="only its definitions are known"):
        table("CREATE TABLE t AS SELECT * FROM x")
    with pytest.raises(DdlError, match="adds columns whose types are not in the statement: b"):
        table("CREATE TABLE t (a INT) AS SELECT a, b FROM x")


def test_temporary_tables_are_another_sessions_business() -> None:
    found = after("CREATE TABLE t (a INT)", "CREATE TEMPORARY TABLE t (b INT)", "ALTER TABLE t DROP b", "DROP TABLE t")
    assert [column.name for column in found.table(T).columns] == ["a"]
    with pytest.raises(DdlError, match="columns of temporary tables are not kept"):
        after("CREATE TEMPORARY TABLE s (b INT)", "CREATE TABLE u LIKE s")


def test_what_later_servers_and_tidb_say() -> None:
    assert shown(
        "CREATE TABLE t (a INT, b JSON DEFAULT (JSON_ARRAY()), KEY ((a + 1)))",
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS a INT, DROP COLUMN IF EXISTS z, MODIFY COLUMN IF EXISTS y INT",
        "ALTER TABLE t SET TIFLASH REPLICA 1, ADD c INT DEFAULT (1)",
        "ALTER TABLE t DROP CONSTRAINT nope, DROP KEY functional_index",
    ) == ["a int(11)", "b json = JSON_ARRAY()", "c int(11) = 1"]
    with pytest.raises(DdlError, match="recovered"):
        after("FLASHBACK TABLE t")


def test_expressions_read_columns() -> None:
    for expression in ("nope + 1", "f(nope)", "`nope`", "(nope)", "a + nope * 2"):
        with pytest.raises(DdlError, match="nope"):
            table(f"CREATE TABLE t (a INT, b INT AS ({expression}))")
    for expression in (
        "CONVERT(a, SIGNED)", "CAST(a AS CHAR(3))", "a > 1 AND a IS NOT NULL", "timestampdiff(SECOND, a, a)",
        "CASE WHEN a THEN 1 ELSE NULL END", "concat(_utf8mb4'x', a)", "json_extract(a, '$.b')",
    ):  # fmt: skip
        assert len(shown(f"CREATE TABLE t (a INT, b INT AS ({expression}))")) == 2


@settings(max_examples=300, deadline=None)
@given(mutated(), st.sampled_from(STATEMENTS))
def test_whatever_is_understood_is_applied_or_an_error(statement: str, first: str) -> None:
    schema = after(
        "CREATE TABLE t (z INT, a INT, p INT, d SET('u'), e INT, c INT)", schema=Schema(session="d", assumed=True)
    )
    for each in (first, statement):
        try:
            schema = apply(schema, parse(each))
        except DdlError:
            continue


@pytest.mark.parametrize("seed", range(20))
def test_random_sequences_keep_the_table_whole(seed: int) -> None:
    schema, statements = after(), Statements(random.Random(seed))
    for _ in range(15):
        try:
            schema = after(statements.next(schema.databases["d"]), schema=schema)
        except DdlError:
            continue
        for found in schema.databases["d"].tables.values():
            ids = [column.id for column in found.columns]
            assert len(set(ids)) == len(ids) and max(ids) < found.next_id
            assert all(set(key.columns) <= set(ids) for key in found.keys)
            assert len({key.name.lower() for key in found.keys}) == len(found.keys)
