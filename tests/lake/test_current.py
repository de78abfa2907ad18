"""Finding current-state tables: by what they are, not by what they are called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.errors import UnreadableTableError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.schema_plan import LakeColumn
from cdc_lakehouse.lake.current.tables import CurrentTables, schema_fingerprint
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.names import Identifier
from tests.changelog.statements import history
from tests.kit.lakes import TestLake
from tests.lake import ADD_COLUMN, CREATE, DROP, ID, RENAME, change, make_current_table, text

A, B = TableName("d", "a"), TableName("d", "b")
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("x y", pa.string()), pa.field("_commit_ts", pa.int64())])


@pytest.fixture
def tables(lake: TestLake) -> CurrentTables:
    return CurrentTables(lake.lake, lake.feed)


def life_of(*changes: SchemaChange) -> Incarnation:
    return history(*changes).incarnations()["d.a#1"]


BORN = change(10, "a", CREATE, "CREATE TABLE a (id BIGINT PRIMARY KEY)")
LIFE = life_of(BORN)
MOVED = life_of(BORN, change(20, "b", RENAME, "RENAME TABLE d.a TO d.b"))
DROPPED = life_of(BORN, change(30, "a", DROP, "DROP TABLE a"))


def make(lake: TestLake, where: Identifier, **properties: str) -> Any:
    return make_current_table(lake, LIFE, where, COLUMNS, **properties)


def test_a_table_belongs_where_the_configured_namespace_says(lake: TestLake, tables: CurrentTables) -> None:
    assert tables.identifier(TableName("shop.eu", "a/b")) == Identifier(f"{lake.name}__shop%2Eeu", "a%2Fb")


def test_a_table_is_found_under_every_name_it_had(lake: TestLake, tables: CurrentTables) -> None:
    assert tables.find(MOVED) is None
    make(lake, tables.identifier(A))
    found = tables.find(MOVED)
    assert found is not None and found.identifier == tables.identifier(A)
    assert (found.row_count, found.snapshot_id, found.columns) == (0, None, ())
    lake.lake.catalog.rename_table(tables.identifier(A).parts, tables.identifier(B).parts)
    found = tables.find(MOVED)
    assert found is not None and found.identifier == tables.identifier(B)


@pytest.mark.parametrize(
    ("life", "parked_as"),
    [(LIFE, LIFE), (MOVED, MOVED), (DROPPED, DROPPED), (DROPPED, LIFE)],
    ids=["live", "moved", "dropped", "dropped, where it stood between two renames"],
)
def test_a_table_that_stands_aside_is_found(
    lake: TestLake, tables: CurrentTables, life: Incarnation, parked_as: Incarnation
) -> None:
    place = tables.parking_identifier(parked_as, A)
    make(lake, place)
    found = tables.find(life)
    assert found is not None and found.identifier == place


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
    table = make(lake, where, cdc_columns='[[1, "id"], [7, "x y"]]', cdc_lineage="abc")
    with table.transaction() as transaction:
        transaction.set_properties({"cdc.applied-ts": str(2**62), "cdc.applied-batch": "9"})
    rows = [{"id": n, "x y": "v", "_commit_ts": 1} for n in range(3)]
    table.append(pa.Table.from_pylist(rows, schema=COLUMNS))
    state = tables.at(where)
    assert state is not None
    assert (state.applied_ts, state.applied_batch, state.schema_fingerprint) == (2**62, 9, "abc")
    assert (state.name, state.incarnation) == (A, "d.a#1")
    assert state.columns == (LakeColumn(1, "id", "long"), LakeColumn(7, "x y", "string"))
    assert state.order == ("id", "x y", "_commit_ts")
    assert (state.row_count, state.dropped_ts) == (3, None) and state.snapshot_id is not None


def test_two_lives_of_one_name_have_files_of_their_own(tables: CurrentTables) -> None:
    second = replace(LIFE, id="d.a#2")
    assert tables.location(LIFE, A) != tables.location(second, A)
    assert tables.parking_identifier(LIFE, A) != tables.parking_identifier(second, A)


def test_two_feeds_of_one_source_in_one_namespace_have_files_of_their_own(lake: TestLake) -> None:
    feeds = [lake.feed.model_copy(update={"name": name, "namespace": "both"}) for name in ("one", "two")]
    one, two = (CurrentTables(lake.lake, feed) for feed in feeds)
    assert one.identifier(A) == two.identifier(A)
    assert one.location(LIFE, A) != two.location(LIFE, A)


@pytest.mark.parametrize(
    ("life", "reading"),
    [
        (LIFE, ValueFormat("Asia/Shanghai")),
        (LIFE, ValueFormat(zero_dates="string")),
        (life_of(BORN, change(20, "a", ADD_COLUMN, "ALTER TABLE a ADD COLUMN x VARCHAR(20)", ID, text("x"))),
         ValueFormat()),
        (MOVED, ValueFormat()),
        (DROPPED, ValueFormat()),
    ],
)  # fmt: skip
def test_a_lineage_tells_what_changes_values(life: Incarnation, reading: ValueFormat) -> None:
    assert schema_fingerprint(life, reading) != schema_fingerprint(LIFE, ValueFormat())


def test_a_lineage_does_not_tell_what_changes_none() -> None:
    indexed = life_of(BORN, change(20, "a", 7, "ALTER TABLE a ADD INDEX i (id)"))
    assert len(indexed.versions) == 2
    assert schema_fingerprint(indexed, ValueFormat()) == schema_fingerprint(LIFE, ValueFormat())


def test_a_table_whose_metadata_is_gone_is_neither_found_nor_taken_for_none(
    lake: TestLake, tables: CurrentTables
) -> None:
    """Its files say whose it is, where they are at a place of its own: the one before it under the name is not it."""
    dropped, life = history(BORN, change(20, "a", DROP), change(30, "a", CREATE)).incarnations().values()
    where = tables.identifier(A)
    lake.lake.ensure_namespace(where.namespace)
    properties = {**tables.first_properties(life), "format-version": "2"}
    made = lake.lake.catalog.create_table(
        where.parts, COLUMNS, location=tables.location(life, A), properties=properties
    )
    file = Path(made.metadata_location.removeprefix("file://"))
    sound = file.read_bytes()
    again = CurrentTables(Lake(lake.config.lake), lake.feed)
    for damaged in (b"", sound[:99], b"{}"):
        file.write_bytes(damaged)
        with pytest.raises(UnreadableTableError, match=rf"{file} cannot be read.*`cdc-lakehouse rebuild d\.a`"):
            again.find(life)
        assert again.find(dropped) is None and again.at(where) is None and not again.is_free(where)
    file.unlink()
    assert again.drop_unreadable(dropped) is None
    assert again.drop_unreadable(life) == where and again.is_free(where) and again.find(life) is None
    assert again.drop_unreadable(life) is None


def test_a_table_whose_properties_are_damaged_cannot_be_read(lake: TestLake, tables: CurrentTables) -> None:
    make(lake, tables.identifier(A), **{"cdc_applied-ts": "yesterday"})
    with pytest.raises(UnreadableTableError, match=r"the properties `cdc\.\*` of the Iceberg table .* ValueError"):
        tables.find(LIFE)
