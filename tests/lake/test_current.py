"""Finding current-state tables: by what they are, not by what they are called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.lake.current.schema_plan import LakeColumn
from cdc_lakehouse.lake.current.tables import CurrentTables, schema_fingerprint
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.names import Identifier
from tests.kit.lakes import TestLake
from tests.lake import ADD_COLUMN, CREATE, DROP, ID, RENAME, change, text

A, B = TableName("d", "a"), TableName("d", "b")
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("x y", pa.string()), pa.field("_commit_ts", pa.int64())])


@pytest.fixture
def tables(lake: TestLake) -> CurrentTables:
    return CurrentTables(lake.lake, lake.feed)


def life_of(*changes: Any) -> Incarnation:
    history = History()
    history.apply(changes)
    return history.incarnations()["d.a#1"]


BORN = change(10, "a", CREATE, "CREATE TABLE a (id BIGINT PRIMARY KEY)")
LIFE = life_of(BORN)
MOVED = life_of(BORN, change(20, "b", RENAME, "RENAME TABLE d.a TO d.b"))
DROPPED = life_of(BORN, change(30, "a", DROP, "DROP TABLE a"))


def make(lake: TestLake, where: Identifier, **properties: str) -> None:
    own = {**CurrentTables(lake.lake, lake.feed).first_properties(LIFE), "format-version": "2"}
    lake.lake.ensure_namespace(where.namespace)
    settings = {**own, **{name.replace("_", "."): value for name, value in properties.items()}}
    lake.lake.catalog.create_table(where.parts, COLUMNS, properties=settings)


def test_a_table_belongs_where_the_configured_namespace_says(lake: TestLake, tables: CurrentTables) -> None:
    assert tables.identifier(TableName("shop.eu", "a/b")) == Identifier(f"{lake.name}__shop%2Eeu", "a%2Fb")


def test_a_table_is_found_under_every_name_it_had(lake: TestLake, tables: CurrentTables) -> None:
    assert tables.find(MOVED) is None
    make(lake, tables.identifier(A))
    found = tables.find(MOVED)
    assert found is not None and found.identifier == tables.identifier(A)
    lake.lake.catalog.rename_table(tables.identifier(A).parts, tables.identifier(B).parts)
    found = tables.find(MOVED)
    assert found is not None and found.identifier == tables.identifier(B)


@pytest.mark.parametrize("life", [LIFE, MOVED, DROPPED])
def test_a_table_that_stands_aside_is_found(lake: TestLake, tables: CurrentTables, life: Incarnation) -> None:
    place = tables.parking_identifier(life, A)
    make(lake, place)
    found = tables.find(life)
    assert found is not None and found.identifier == place


def test_a_dropped_table_is_found_where_it_stood_between_two_renames(lake: TestLake, tables: CurrentTables) -> None:
    make(lake, tables.parking_identifier(LIFE, A))
    assert tables.find(DROPPED) is not None


@pytest.mark.parametrize("properties", [{"cdc_feed": "another"}, {"cdc_incarnation": "d.a#2"}])
def test_anothers_table_under_the_name_is_not_taken(
    lake: TestLake, tables: CurrentTables, properties: dict[str, str]
) -> None:
    make(lake, tables.identifier(A), **properties)
    assert tables.find(LIFE) is None
    assert not tables.is_free(tables.identifier(A))


def test_a_users_own_table_is_not_the_feeds(lake: TestLake, tables: CurrentTables) -> None:
    where = tables.identifier(A)
    lake.lake.ensure_namespace(where.namespace)
    lake.lake.catalog.create_table(where.parts, COLUMNS)
    assert tables.at(where) is None and tables.find(LIFE) is None and not tables.is_free(where)


def test_a_state_is_what_the_properties_say(lake: TestLake, tables: CurrentTables) -> None:
    where = tables.identifier(A)
    make(lake, where, cdc_columns='[[1, "id"], [7, "x y"]]', cdc_staged='["x y"]', cdc_lineage="abc")
    lake.lake.catalog.load_table(where.parts).transaction().set_properties(
        {"cdc.applied-ts": str(2**62), "cdc.applied-batch": "9"}
    ).commit_transaction()
    lake.lake.catalog.load_table(where.parts).append(
        pa.Table.from_pylist([{"id": n, "x y": "v", "_commit_ts": 1} for n in range(3)], schema=COLUMNS)
    )
    state = tables.at(where)
    assert state is not None
    assert (state.applied_ts, state.applied_batch, state.schema_fingerprint) == (2**62, 9, "abc")
    assert (state.name, state.incarnation) == (A, "d.a#1")
    assert state.columns == (LakeColumn(1, "id", "long"), LakeColumn(7, "x y", "string"))
    assert (state.order, state.staged) == (("id", "x y", "_commit_ts"), ("x y",))
    assert (state.row_count, state.dropped_ts) == (3, None) and state.snapshot_id is not None


def test_a_table_without_a_row_has_no_snapshot(lake: TestLake, tables: CurrentTables) -> None:
    make(lake, tables.identifier(A))
    state = tables.at(tables.identifier(A))
    assert state is not None and (state.row_count, state.snapshot_id, state.columns) == (0, None, ())


def test_two_lives_of_one_name_have_files_of_their_own(tables: CurrentTables) -> None:
    second = replace(LIFE, id="d.a#2")
    assert tables.location(LIFE, A) != tables.location(second, A)
    assert tables.parking_identifier(LIFE, A) != tables.parking_identifier(second, A)


@pytest.mark.parametrize(
    ("life", "reading"),
    [
        (LIFE, ValueFormat("Asia/Shanghai")),
        (LIFE, ValueFormat(zero_dates="string")),
        (
            life_of(BORN, change(20, "a", ADD_COLUMN, "ALTER TABLE a ADD COLUMN x VARCHAR(20)", ID, text("x"))),
            ValueFormat(),
        ),
        (MOVED, ValueFormat()),
        (DROPPED, ValueFormat()),
    ],
)
def test_a_lineage_tells_what_changes_values(life: Incarnation, reading: ValueFormat) -> None:
    assert schema_fingerprint(life, reading) != schema_fingerprint(LIFE, ValueFormat())


def test_a_lineage_does_not_tell_what_changes_none() -> None:
    indexed = life_of(BORN, change(20, "a", 7, "ALTER TABLE a ADD INDEX i (id)"))
    assert len(indexed.versions) == 2
    assert schema_fingerprint(indexed, ValueFormat()) == schema_fingerprint(LIFE, ValueFormat())
