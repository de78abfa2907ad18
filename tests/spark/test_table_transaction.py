"""Transactions of files that Python wrote: Spark and PyIceberg read them, and a lost race changes nothing."""

import datetime
import itertools
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField, PrimitiveType
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from cdc_lakehouse.errors import StoredFormError, TransientError
from cdc_lakehouse.lake import files as lake_files
from cdc_lakehouse.lake import iceberg_java
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import FORMAT_VERSION, TABLE_PROPERTIES
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi, SchemaOperation, TableTransaction
from cdc_lakehouse.lake.names import Identifier, quote
from cdc_lakehouse.lake.spark import open_catalog
from tests.kit.case_files import read_cases
from tests.kit.lakes import lake_config
from tests.lake import moment, utc

pytestmark = pytest.mark.spark

_NUMBERS = itertools.count(1)
NAMESPACE = "transactions"
CASES = Path(__file__).parent / "cases"
NAMES: dict[str, Any] = {"Decimal": Decimal, "date": datetime.date, "moment": moment, "utc": utc}
"""In the values of cases."""


class TransactedTable:
    """A table of a test, changed by transactions and by Spark."""

    def __init__(self, spark: SparkSession, lake: Lake, columns: Iterable[tuple[str, str]]) -> None:
        self.spark = spark
        self.lake = lake
        self.api = IcebergJavaApi(lambda: open_catalog(lake.config, lake.storage))
        self.identifier = Identifier(NAMESPACE, f"t{next(_NUMBERS)}")
        self.directory = lake.location(NAMESPACE, self.identifier.name)
        lake.ensure_namespace(NAMESPACE)
        named = enumerate(columns, 1)
        schema = Schema(*(NestedField(n, name, PrimitiveType.model_validate(type)) for n, (name, type) in named))
        self.api.create(self.identifier, schema, self.directory, {**TABLE_PROPERTIES, FORMAT_VERSION: "3"})

    @property
    def table(self) -> Table:
        table = self.lake.load(self.identifier)
        assert table is not None
        return table

    @property
    def snapshot_id(self) -> int | None:
        snapshot = self.table.current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    @property
    def files(self) -> list[lake_files.StoredFile]:
        return lake_files.live_files(self.table)

    def read(self, *files: lake_files.StoredFile, **options: Any) -> list[dict[str, Any]]:
        """Rows as the project's own reader has them."""
        table = self.table
        names = [field.name for field in table.schema().fields]
        parts = (lake_files.read_rows(table.io, file, table.schema(), names, **options) for file in files)
        return [row for part in itertools.chain.from_iterable(parts) for row in part.to_pylist()]

    def path(self, ending: str) -> str:
        return f"{self.directory}/data/{next(_NUMBERS)}.{ending}"

    def begin(self) -> TableTransaction:
        transaction = self.api.transaction(self.identifier, self.snapshot_id)
        transaction.evolve()
        return transaction

    def write(self, rows: Sequence[dict[str, Any]], schema: Schema | None = None, **properties: str) -> str:
        columns = {name: [row.get(name) for row in rows] for row in rows[:1] for name in row}
        table = self.table
        return lake_files.write_file(
            table.io, self.path("parquet"), schema or table.schema(), pa.table(columns), properties
        )

    def append(self, *parts: Sequence[dict[str, Any]]) -> int | None:
        return self.begin().commit(data_files=[self.write(part) for part in parts])

    def delete(self, wanted: Callable[[dict[str, Any]], bool]) -> tuple[list[str], list[str]]:
        """The vectors with which the wanted rows are deleted too, and those that they replace."""
        table = self.table
        bitmaps: dict[str, BitMap64] = {}
        replaced: list[str] = []
        for file in self.files:
            positions = BitMap64(row["position"] for row in self.read(file) if wanted(row))
            if positions:
                positions |= lake_files.read_deleted(table.io, file)
                replaced += [each.content_file for each in file.deletes]
            bitmaps[file.path] = positions
        return lake_files.write_vectors(table.io, self.path("puffin"), bitmaps), replaced

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.format(t=self.identifier.sql))

    def rows(self) -> list[dict[str, Any]]:
        """The rows in order, which Spark, PyIceberg and the project's own reader see alike."""
        table = self.table
        columns = table.schema().fields
        by_spark = [row.asDict() for row in self.spark.table(self.identifier.sql).collect()]
        by_pyiceberg = table.scan().to_arrow().to_pylist()
        own = [{column.name: row[column.name] for column in columns} for row in self.read(*self.files)]
        first, *others = (sorted(rows, key=repr) for rows in (by_spark, by_pyiceberg, own))
        for other in others:
            assert other == first
        assert sum(file.live_rows for file in self.files) == len(first)
        return first

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())


NewTable = Callable[..., TransactedTable]


@pytest.fixture
def new_table(spark: SparkSession, lake_root: Path) -> NewTable:
    lake = Lake(lake_config(lake_root))

    def make(*columns: tuple[str, str]) -> TransactedTable:
        return TransactedTable(spark, lake, columns or (("id", "long"), ("name", "string")))

    return make


def numbered(*ids: int) -> list[dict[str, Any]]:
    return [{"id": id, "name": f"n{id}"} for id in ids]


def test_schema_rows_deletes_and_properties_are_one_commit(new_table: NewTable) -> None:
    table = new_table()
    first = table.append(numbered(1, 2, 3), numbered(10, 20))
    assert first == table.snapshot_id
    assert table.ids() == [1, 2, 3, 10, 20]
    before = table.table.metadata
    transaction = table.begin()
    schema = Schema.model_validate_json(
        transaction.evolve([[SchemaOperation("add", "n", "int", 7)], [SchemaOperation("move", "n", after="id")]])
    )
    assert [field.name for field in schema.fields] == ["id", "n", "name"]
    vectors, replaced = table.delete(lambda row: row["id"] in (2, 20))
    assert (len(vectors), replaced) == (2, [])
    assert table.ids() == [1, 2, 3, 10, 20]
    second = transaction.commit(
        data_files=[table.write([{"id": 2, "n": None}, {"id": 4, "n": 8}], schema)],
        delete_files=vectors,
        properties={"cdc.applied-ts": "42", "cdc.columns": '[[1, "a\\n\u00e9😀"]]'},
        summary={"cdc.batch": "7"},
    )
    assert second == table.snapshot_id
    after = table.table.metadata
    assert len(after.metadata_log) == len(before.metadata_log) + 1
    kept = [{"id": id, "n": 7, "name": f"n{id}"} for id in (1, 3, 10)]
    added = [{"id": id, "n": n, "name": None} for id, n in ((2, None), (4, 8))]
    assert table.rows() == sorted([*kept, *added], key=repr)
    assert (after.properties["cdc.applied-ts"], after.properties["cdc.columns"]) == ("42", '[[1, "a\\n\u00e9😀"]]')
    snapshot = table.table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    summary = snapshot.summary.additional_properties
    assert (summary["cdc.batch"], summary["total-records"], summary["total-position-deletes"]) == ("7", "7", "2")
    assert snapshot.parent_snapshot_id == first
    assert snapshot.schema_id == after.current_schema_id
    assert table.begin().commit(properties={"cdc.columns": None, "cdc.applied-ts": "43"}) is None
    assert table.table.metadata.schemas == after.schemas
    properties = table.table.properties
    assert (properties["cdc.applied-ts"], properties.get("cdc.columns"), table.snapshot_id) == ("43", None, second)


def test_vectors_of_python_and_of_spark_follow_each_other(new_table: NewTable) -> None:
    table = new_table()
    table.append(numbered(*range(100)), numbered(*range(100, 200)))
    left = set(range(200))
    for gone in ({0, 5, 150}, {6, 99, 151, 199}, set(range(20, 60))):
        vectors, replaced = table.delete(lambda row, gone=gone: row["id"] in gone)
        table.begin().commit(delete_files=vectors, replaced_deletes=replaced)
        left -= gone
        assert table.ids() == sorted(left)
    for condition, gone in (("id IN (7, 160)", {7, 160}), ("id BETWEEN 90 AND 110", set(range(90, 111)))):
        table.sql(f"DELETE FROM {{t}} WHERE {condition}")
        left -= gone
        assert table.ids() == sorted(left)
    assert [len(file.deletes) for file in table.files] == [1, 1]
    table.sql("UPDATE {t} SET name = 'u' WHERE id = 8")
    vectors, replaced = table.delete(lambda row: row["id"] in (8, 9, 190))
    assert len(vectors) == 3 and len(replaced) == 2
    table.begin().commit(data_files=[table.write(numbered(9))], delete_files=vectors, replaced_deletes=replaced)
    left -= {8, 190}
    assert table.ids() == sorted(left)
    assert len(table.files) == 4
    table.sql("INSERT INTO {t} VALUES (1000, 'x')")
    assert table.ids() == sorted({*left, 1000})


def test_rows_from_before_have_the_default_of_a_new_column(new_table: NewTable) -> None:
    table, (case,) = new_table(), read_cases(CASES / "defaults.txt")
    defaults = [(type, eval(value, NAMES)) for type, _, value in (line.partition(" | ") for line in case.own)]
    table.append(numbered(1))
    transaction = table.begin()
    transaction.evolve([[SchemaOperation("add", f"c{n}", type, value) for n, (type, value) in enumerate(defaults)]])
    transaction.commit(mark=True)
    expected = [value for _, value in defaults]
    assert [field.initial_default for field in table.table.schema().fields][2:] == expected
    (row,) = table.table.scan().to_arrow().to_pylist()
    assert list(row.values())[2:] == expected
    names = ", ".join(f"CAST(c{n} AS string)" for n, (type, _) in enumerate(defaults) if type.startswith("timestamp"))
    (seen,) = table.spark.sql(f"SELECT {names} FROM {table.identifier.sql}").collect()
    assert list(seen) == [
        "1970-01-01 00:00:01", "1000-01-01 00:00:00.000001", "1970-01-01 00:00:01", "2038-01-19 03:14:07.999999",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no value of the type"):
        table.begin().evolve([[SchemaOperation("add", "x", "int", "seven")]])


def test_a_schema_can_change_without_rows_and_readers_by_snapshot_see_it_with_a_mark(new_table: NewTable) -> None:
    table = new_table()
    empty = table.begin()
    empty.evolve([[SchemaOperation("add", "n", "int", 7)]])
    assert empty.commit(properties={"p": "1"}) is None
    assert table.snapshot_id is None
    of_nothing = table.begin().commit(mark=True, summary={"cdc.batch": "1"})
    assert of_nothing is not None and of_nothing == table.snapshot_id and not table.rows()
    assert [field.name for field in table.table.schema().fields] == ["id", "name", "n"]
    first = table.append(numbered(1))
    without = table.begin()
    without.evolve([[SchemaOperation("rename", "n", new_name="m")]])
    assert without.commit() is None
    assert table.snapshot_id == first
    marked = table.begin()
    marked.evolve([[SchemaOperation("rename", "m", new_name="k")]])
    second = marked.commit(mark=True, summary={"cdc.batch": "9"})
    assert second == table.snapshot_id != first
    snapshot = table.table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary.additional_properties["cdc.batch"] == "9"
    by_snapshot = table.spark.sql(f"SELECT * FROM {table.identifier.sql} VERSION AS OF {second}")
    assert by_snapshot.columns == ["id", "name", "k"]
    assert table.rows() == [{"id": 1, "name": "n1", "k": None}]


COMMITS: dict[str, Callable[[TransactedTable, TableTransaction], dict[str, Any]]] = {
    "rows": lambda table, _: {"data_files": [table.write(numbered(2))]},
    "deletes": lambda table, _: {"delete_files": table.delete(lambda row: row["id"] == 1)[0]},
    "all rows": lambda table, _: {"data_files": [table.write(numbered(2))], "replace_all": True},
    "no row": lambda table, _: {"replace_all": True},
    "mark": lambda table, _: {"mark": True},
    "properties": lambda table, _: {},
    "schema": lambda table, transaction: {"mark": bool(transaction.evolve([[SchemaOperation("add", "n", "int")]]))},
}
OTHERS = {
    "append": "INSERT INTO {t} VALUES (9, 'x')",
    "delete": "DELETE FROM {t} WHERE id = 1",
    "property": "ALTER TABLE {t} SET TBLPROPERTIES ('q' = '1')",
}

RACES = [
    *((kind, "append") for kind in COMMITS),
    ("deletes", "delete"), ("properties", "delete"), ("rows", "property"), ("properties", "property"),
]  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize(("kind", "other"), RACES)
def test_commit_of_another_writer_makes_it_fail_and_change_nothing(new_table: NewTable, kind: str, other: str) -> None:
    table = new_table()
    table.append(numbered(1, 5))
    transaction = table.begin()
    arguments = COMMITS[kind](table, transaction)
    table.sql(OTHERS[other])
    before = table.table.metadata_location
    with pytest.raises(TransientError, match="another writer") as raised:
        transaction.commit(properties={"p": "1"}, **arguments)
    assert raised.value.advice == "run again"
    assert table.table.metadata_location == before
    assert table.ids() == {"append": [1, 5, 9], "delete": [5], "property": [1, 5]}[other]
    assert [field.name for field in table.table.schema().fields] == ["id", "name"]
    assert "p" not in table.table.properties


def test_a_table_that_is_not_at_the_expected_snapshot_is_left(new_table: NewTable) -> None:
    table = new_table()
    first = table.append(numbered(1))
    table.append(numbered(2))
    for wrong in (first, None, 1):
        with pytest.raises(TransientError, match="another writer"):
            table.api.transaction(table.identifier, wrong).commit(mark=True)
    with pytest.raises(TransientError):
        table.api.transaction(new_table().identifier, first).evolve()


def read_values() -> dict[str, tuple[str, list[Any], list[str]]]:
    """By name: the type, its values, and Spark's literals of them."""
    found = dict[str, Any]()
    for case in read_cases(CASES / "values.txt"):
        (name, type), pairs = case.own[0].split(), [line.split(" | ") for line in case.results]
        found[name] = type, [eval(value, NAMES) for value, _ in pairs], [literal for _, literal in pairs]
    return found


VALUES = read_values()


@pytest.mark.in_turn
def test_readers_find_each_value_in_its_file_alone(new_table: NewTable) -> None:
    names = {short: f"{short} of a.b `q`" for short in VALUES}
    table = new_table(("id", "long"), *((names[short], type) for short, (type, _, _) in VALUES.items()))
    rows = [{"id": n, **{names[short]: values[n] for short, (_, values, _) in VALUES.items()}} for n in range(3)]
    nulls = {"id": 3, **dict.fromkeys(names.values())}
    table.append([rows[0]], [rows[1], nulls], [rows[2]], [nulls | {"id": 4}])
    schema, files = table.table.schema(), table.files
    for short, (_, values, literals) in VALUES.items():
        column = quote(names[short])
        conditions = {"null": f"{column} IS NULL"}
        conditions |= {f"is {n}": f"{column} = {literal}" for n, literal in enumerate(literals)}
        conditions |= {f"to {n}": f"{column} <= {literal}" for n, literal in enumerate(literals)}
        # Each part is a scan of its own.
        parts = (f"SELECT '{what}', id FROM {table.identifier.sql} WHERE {c}" for what, c in conditions.items())
        found = sorted(tuple(row) for row in table.spark.sql(" UNION ALL ".join(parts)).collect())
        within = [(f"to {n}", id) for n in range(3) for id in range(n + 1)]
        assert found == sorted([("null", 3), ("null", 4), *((f"is {n}", n) for n in range(3)), *within]), short
        for number, value in enumerate(values):
            likely = [file for file in files if lake_files.may_hold(file, schema, {names[short]: (value, value)})]
            # A file with NULLs alone has no bounds, and the bounds of texts are those of their first 16 characters.
            assert len(likely) == (3 if short == "s" and number else 2), (short, value)


def test_files_that_spark_wrote_are_read(new_table: NewTable) -> None:
    names = {short: f"{short}.x y" for short in VALUES}
    table = new_table(("id", "int"), *((names[short], type) for short, (type, _, _) in VALUES.items()))
    for n, codec in enumerate(("snappy", "uncompressed", "zstd")):
        table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.manifest.compression-codec' = '{codec}')")
        table.sql(f"INSERT INTO {{t}} VALUES ({n}, {', '.join(literals[n] for _, _, literals in VALUES.values())})")
    table.sql("ALTER TABLE {t} ALTER COLUMN id TYPE bigint")
    table.sql("DELETE FROM {t} WHERE id = 1")
    iceberg = table.table
    seen = {row["id"]: {short: row[names[short]] for short in VALUES} for row in table.read(*table.files)}
    assert seen == {n: {short: values[n] for short, (_, values, _) in VALUES.items()} for n in (0, 2)}
    for short, (_, values, _) in VALUES.items():
        for n in (0, 2):
            ends = {names[short]: (values[n], values[n])}
            likely = [file for file in table.files if lake_files.may_hold(file, iceberg.schema(), ends)]
            assert values[n] in [row[names[short]] for row in table.read(*likely, between=ends)]


def test_deletes_of_several_data_files_are_another_writers(new_table: NewTable) -> None:
    table = new_table()
    table.sql("DROP TABLE {t}")
    table.sql("CREATE TABLE {t} (id bigint) USING iceberg TBLPROPERTIES ('format-version'='2', "
              "'write.delete.mode'='merge-on-read')")  # fmt: skip
    table.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id FROM range(10)")
    table.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id FROM range(10, 20)")
    assert sum(file.record_count for file in table.files) == 20
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.sql("DELETE FROM {t} WHERE id IN (4, 11)")
    assert table.ids() == [id for id in range(20) if id not in (3, 4, 11)]
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.granularity'='partition')")
    table.sql("DELETE FROM {t} WHERE id IN (5, 12)")
    with pytest.raises(StoredFormError, match="not of one data file"):
        lake_files.live_files(table.table)


@pytest.mark.parametrize("few", [0, 16])
def test_vector_is_found_after_manifests_merge(new_table: NewTable, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """By Iceberg's pool of threads and without it."""
    monkeypatch.setattr(iceberg_java, "_FEW_MANIFESTS", few)
    table = new_table()
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('commit.manifest.min-count-to-merge' = '2')")
    left = set()
    for n in range(4):
        table.append(numbered(2 * n, 2 * n + 1))
        left |= {2 * n, 2 * n + 1}
        vectors, replaced = table.delete(lambda row, n=n: row["id"] == 2 * n)
        table.begin().commit(delete_files=vectors, replaced_deletes=replaced)
        left.remove(2 * n)
    vectors, replaced = table.delete(lambda row: row["id"] in (3, 7))
    assert len(replaced) == 2
    table.begin().commit(delete_files=vectors, replaced_deletes=replaced)
    assert table.ids() == sorted(left - {3, 7})
    current = {each.content_file for file in table.files for each in file.deletes}
    assert len(current) == 4 and not current & set(replaced)
