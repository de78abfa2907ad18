"""Finding current-state tables: by what they are, not by what they are called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.errors import UnreadableTableError
from cdc_lakehouse.lake.catalog import Lake
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


BORN = change(10, "a", CREATE, "CREATE TABLE a (id BIGINT PRIMARY KEY)")


def life_of(*changes: SchemaChange) -> Incarnation:
    return history(BORN, *changes).incarnations()["d.a#1"]


LIFE = life_of()
MOVED = life_of(change(20, "b", RENAME, "RENAME TABLE d.a TO d.b"))
DROPPED = life_of(change(30, "a", DROP, "DROP TABLE a"))


@pytest.mark.parametrize(
    ("name", "parked_as", "properties", "life", "found"),
    [
        # Under every name it had.
        (A, None, {}, MOVED, True),
        (B, None, {}, MOVED, True),
        (B, None, {}, LIFE, False),
        # Where it stands aside; the last: it stood there between two renames, and was dropped.
        (A, LIFE, {}, LIFE, True),
        (A, MOVED, {}, MOVED, True),
        (A, DROPPED, {}, DROPPED, True),
        (A, LIFE, {}, DROPPED, True),
        # Another feed's, another life's, and a user's own.
        (A, None, {"cdc_feed": "another"}, LIFE, False),
        (A, None, {"cdc_incarnation": "d.a#2"}, LIFE, False),
        (A, None, None, LIFE, False),
    ],
)
def test_table_is_found_where_it_stands(
    lake: TestLake, tables: CurrentTables, name: TableName, parked_as: Incarnation | None,
    properties: dict[str, str] | None, life: Incarnation, found: bool,
) -> None:  # fmt: skip
    assert tables.find(life) is None
    where = tables.identifier(name) if parked_as is None else tables.parking_identifier(parked_as, name)
    if properties is None:
        lake.lake.ensure_namespace(where.namespace)
        lake.lake.catalog.create_table(where.parts, COLUMNS)
    else:
        make_current_table(lake, LIFE, where, COLUMNS, **properties)
    state = tables.find(life)
    assert (state is not None) == found and not tables.is_free(where)
    if state is not None:
        assert (state.identifier, state.row_count, state.snapshot_id, state.columns) == (where, 0, None, ())


def test_names_are_shared_and_files_are_not(lake: TestLake, tables: CurrentTables) -> None:
    """Two lives of one name, and two feeds of one source in one namespace, have files of their own."""
    assert tables.identifier(TableName("shop.eu", "a/b")) == Identifier(f"{lake.name}__shop%2Eeu", "a%2Fb")
    second = replace(LIFE, id="d.a#2")
    assert tables.location(LIFE, A) != tables.location(second, A)
    assert tables.parking_identifier(LIFE, A) != tables.parking_identifier(second, A)
    feeds = [lake.feed.model_copy(update={"name": name, "namespace": "both"}) for name in ("one", "two")]
    one, two = (CurrentTables(lake.lake, feed) for feed in feeds)
    assert one.identifier(A) == two.identifier(A) and one.location(LIFE, A) != two.location(LIFE, A)


def test_fingerprint_differs_where_values_do() -> None:
    added = change(20, "a", ADD_COLUMN, "ALTER TABLE a ADD COLUMN x VARCHAR(20)", ID, text("x"))
    plain = ValueFormat()
    for life, reading, differs in (
        (LIFE, ValueFormat("Asia/Shanghai"), True), (LIFE, ValueFormat(zero_dates="string"), True),
        (life_of(added), plain, True), (MOVED, plain, True), (DROPPED, plain, True),
        (life_of(change(20, "a", 7, "ALTER TABLE a ADD INDEX i (id)")), plain, False),
    ):  # fmt: skip
        assert (schema_fingerprint(life, reading) != schema_fingerprint(LIFE, plain)) == differs


def test_table_without_metadata_is_neither_found_nor_free(lake: TestLake, tables: CurrentTables) -> None:
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
