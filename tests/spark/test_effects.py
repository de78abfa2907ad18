"""What DDL does to the lake: metadata alone where that is enough, and tables that move between databases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.sample.sink_writer import schema_document, schema_path
from tests.kit.hand_sinks import (
    ADD_COLUMN,
    CREATE,
    CSV,
    DAY,
    DROP_COLUMN,
    ID,
    MODIFY,
    MULTI,
    RENAME,
    T0,
    HandSink,
    integer,
    row,
    text,
)
from tests.kit.lakes import TestLake

pytestmark = pytest.mark.spark

V = integer("v")
SEVEN = SourceColumn("n", V.type, default="7")
WIDE = SourceColumn("v", ColumnType.of("BIGINT", length=20))

# The statement's action and clauses, the columns that it leaves, and what becomes of (1, 5, "x").
EVOLVING: list[tuple[int, str, tuple[SourceColumn, ...], tuple[Any, ...]]] = [
    (ADD_COLUMN, "ADD COLUMN `n` INT DEFAULT 7 FIRST", (SEVEN, ID, V, text("s")), (7, 1, 5, "x")),
    (DROP_COLUMN, "DROP COLUMN `v`", (ID, text("s")), (1, "x")),
    (MODIFY, "RENAME COLUMN `v` TO `w`", (ID, integer("w"), text("s")), (1, 5, "x")),
    (MODIFY, "CHANGE COLUMN `v` `w` BIGINT", (ID, SourceColumn("w", WIDE.type), text("s")), (1, 5, "x")),
    (MODIFY, "MODIFY COLUMN `s` VARCHAR(50) FIRST", (text("s"), ID, V), ("x", 1, 5)),
    (MODIFY, "MODIFY COLUMN `v` BIGINT", (ID, WIDE, text("s")), (1, 5, "x")),
    (MULTI, "DROP COLUMN `v`, ADD COLUMN `v` VARCHAR(50) AFTER `id`", (ID, text("v"), text("s")), (1, None, "x")),
    (
        MULTI,
        "RENAME COLUMN `v` TO `u`, MODIFY COLUMN `s` VARCHAR(50) AFTER `id`",
        (ID, text("s"), integer("u")),
        (1, "x", 5),
    ),
]


def test_evolving_writes_no_data_file(new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    names = [f"t{number}" for number in range(len(EVOLVING))]
    for name in names:
        sink.schema(name, 1, ID, V, text("s"), action=CREATE, query=f"CREATE TABLE `{name}` (`id` BIGINT PRIMARY KEY)")
        sink.rows(f"d/{name}", 1, row("I", name, 2, "1", "5", '"x"'))
    sink.checkpoint(5)
    lake.go_through()
    before = lake.data_files()
    assert len(before) == len(names)
    for at, (name, (action, clauses, columns, _)) in enumerate(zip(names, EVOLVING, strict=True), start=10):
        sink.schema(name, at, *columns, action=action, query=f"ALTER TABLE `{name}` {clauses}")
    sink.checkpoint(30)
    lake.go_through()
    assert lake.data_files() == before
    statements = {each["table"]: each for each in lake.machinery("schema_history") if each["commit_ts"] >= T0 + 10}
    for name, (_, clauses, _, left) in zip(names, EVOLVING, strict=True):
        assert lake.rows(name) == [left], clauses
        assert (statements[name]["effect"], statements[name]["statement"]) == (
            "evolve",
            f"ALTER TABLE `{name}` {clauses}",
        )


def in_database(sink: HandSink, database: str, table: str, at: int, query: str) -> None:
    change = SchemaChange(T0 + at, database, table, RENAME, query, (ID, V, text("s")), "")
    sink.write(schema_path(change), schema_document(change))


def put(sink: HandSink, database: str, table: str, version: int, at: int, id: int) -> None:
    line = row("I", table, at, str(id), "5", f'"{at}"').replace('"d"', f'"{database}"')
    sink.write(f"{database}/{table}/{T0 + version}/{DAY}/CDC{1:020d}.csv", f"{line}\r\n")


@pytest.mark.parametrize("stops", [(50,), (15, 25, 35, 50), (20, 50), (19, 31, 50)])
def test_tables_move_across_databases_in_a_chain(stops: tuple[int, ...], new_lake: Callable[..., TestLake]) -> None:
    """d.a and e.b change places over a third name, in three statements, then one moves on by a fourth."""
    lake = new_lake(source=CSV)
    sink = HandSink(lake.sink)
    sink.schema("a", 1, ID, V, text("s"), action=CREATE, query="CREATE TABLE `a` (`id` BIGINT PRIMARY KEY)")
    put(sink, "d", "a", 1, 3, 1)
    created = SchemaChange(
        T0 + 2, "e", "b", CREATE, "CREATE TABLE `b` (`id` BIGINT PRIMARY KEY)", (ID, V, text("s")), ""
    )
    sink.write(schema_path(created), schema_document(created))
    put(sink, "e", "b", 2, 4, 2)
    in_database(sink, "f", "tmp", 10, "RENAME TABLE `d`.`a` TO `f`.`tmp`")
    put(sink, "f", "tmp", 10, 11, 3)
    in_database(sink, "d", "a", 20, "RENAME TABLE `e`.`b` TO `d`.`a`")
    put(sink, "d", "a", 20, 21, 4)
    in_database(sink, "e", "b", 30, "RENAME TABLE `f`.`tmp` TO `e`.`b`")
    put(sink, "e", "b", 30, 31, 5)
    in_database(sink, "f", "last", 40, "RENAME TABLE `d`.`a` TO `f`.`last`")
    put(sink, "f", "last", 40, 41, 6)
    for at in stops:
        sink.checkpoint(at)
        lake.go_through()
    assert set(lake.tables()) == {("e", "b"), ("f", "last")}
    assert [each[0] for each in lake.rows("b", "e")] == [1, 3, 5]
    assert [each[0] for each in lake.rows("last", "f")] == [2, 4, 6]
