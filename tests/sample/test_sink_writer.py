"""The writer makes the bytes that TiCDC made: real sinks are read and written again."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.sample.row_change import RowChange, Table
from cdc_lakehouse.sample.sink_writer import SinkWriter
from cdc_lakehouse.sources.object_store import LocalStore
from cdc_lakehouse.sources.sink.paths import SinkLayout, list_sink, read_checkpoint
from cdc_lakehouse.sources.sink.schema_file import read_schema_file
from tests.sample.fold import contents

REAL = ["date_dirs", "multi_schema_change", "pk_updates", "rename_chain", "types_enum_set", "types_text", "types_time"]
DAY = datetime.datetime(2026, 6, 1, 23, 30, tzinfo=datetime.UTC)
COLUMNS = (
    SourceColumn("id", ColumnType.of("BIGINT", length=20), nullable=False, primary_key=True),
    SourceColumn("s", ColumnType.of("VARCHAR", length=50)),
)
TABLE = Table(TableName("shop", "things"), tso(DAY), COLUMNS)


def insert(number: int) -> RowChange:
    return RowChange("INSERT", TABLE, tso(DAY) + number, {"id": str(number), "s": None})


def without_chance(content: bytes) -> bytes:
    """Go prints a map in any order: the types of `mysqlType` are put in order."""

    def ordered(match: re.Match[bytes]) -> bytes:
        return b'"mysqlType":{' + b",".join(sorted(match[1].split(b","))) + b"}"

    return re.sub(rb'"mysqlType":\{([^}]*)\}', ordered, content)


@pytest.mark.parametrize("name", REAL)
def test_a_real_sink_is_written_byte_for_byte(name: str, data_sets: Path, tmp_path: Path) -> None:
    real = data_sets / "canal-json" / name / "tree"
    store = LocalStore(real)
    listing = list_sink(store, SinkLayout())
    writer = SinkWriter(tmp_path)
    tables: dict[tuple[str, str, int], Table] = {}
    for file in listing.schemas:
        change = read_schema_file(store, file)
        name_of_table = TableName(change.database, change.table)
        tables[change.database, change.table, change.commit_ts] = Table(name_of_table, change.commit_ts, change.columns)
        writer.write_ddl(change, DAY)
    for file in sorted(listing.data, key=lambda file: file.path):
        table = tables[file.database, file.table, file.version]
        lines = [json.loads(line) for line in (real / file.path).read_bytes().split(b"\r\n")[:-1]]
        for line in lines:
            old = None if line["old"] is None else line["old"][0]
            writer.write([RowChange(line["type"], table, line["_tidb"]["commitTs"], line["data"][0], old)])
        writer.flush(datetime.datetime.fromtimestamp(lines[0]["ts"] / 1000, datetime.UTC))
    writer.checkpoint(read_checkpoint(store))

    written, expected = contents(tmp_path), contents(real)
    assert sorted(written) == sorted(expected)
    for path, content in expected.items():
        assert without_chance(written[path]) == without_chance(content), path


def test_a_ddl_waits_for_the_rows_before_it(tmp_path: Path) -> None:
    writer = SinkWriter(tmp_path)
    writer.write([insert(1)])
    writer.write_ddl(SchemaChange(tso(DAY) + 2, "shop", "things", 7, "", COLUMNS, ""), DAY)
    assert [path.name for path in tmp_path.glob("shop/things/*/*/*.json")] == ["CDC00000000000000000001.json"]


def test_a_statement_on_a_database_lies_beside_its_tables(tmp_path: Path) -> None:
    change = SchemaChange(tso(DAY), "shop", "", 1, "CREATE DATABASE `shop`", (), "")
    SinkWriter(tmp_path).write_ddl(change, DAY)
    (path,) = contents(tmp_path)
    document = json.loads((tmp_path / path).read_bytes())
    assert path.startswith(f"shop/meta/schema_{tso(DAY)}_")
    assert (document["Table"], document["TableColumns"], document["TableColumnsTotal"]) == ("", None, 0)
    listing = list_sink(LocalStore(tmp_path), SinkLayout())
    assert read_schema_file(LocalStore(tmp_path), listing.schemas[0]).query == "CREATE DATABASE `shop`"


def test_numbers_begin_at_one_each_day_by_the_clock_in_utc(tmp_path: Path) -> None:
    writer = SinkWriter(tmp_path)
    shanghai = datetime.timezone(datetime.timedelta(hours=8))
    for number, now in enumerate((DAY, DAY.astimezone(shanghai), DAY + datetime.timedelta(hours=1)), start=1):
        writer.write([insert(number)])
        assert writer.flush(now) == 1
    table = f"shop/things/{TABLE.version}"
    assert sorted(contents(tmp_path)) == [
        f"{table}/2026-06-01/CDC00000000000000000001.json",
        f"{table}/2026-06-01/CDC00000000000000000002.json",
        f"{table}/2026-06-01/meta/CDC.index",
        f"{table}/2026-06-02/CDC00000000000000000001.json",
        f"{table}/2026-06-02/meta/CDC.index",
    ]
    assert contents(tmp_path)[f"{table}/2026-06-01/meta/CDC.index"] == b"CDC00000000000000000002.json\n"


def test_a_new_writer_goes_on_with_the_numbers(tmp_path: Path) -> None:
    for number in (1, 2):
        writer = SinkWriter(tmp_path)
        writer.write([insert(number)])
        writer.flush(DAY)
    names = sorted(path.name for path in tmp_path.rglob("CDC*.json"))
    assert names == ["CDC00000000000000000001.json", "CDC00000000000000000002.json"]


def test_nothing_waiting_writes_nothing(tmp_path: Path) -> None:
    assert SinkWriter(tmp_path).flush(DAY) == 0
    assert contents(tmp_path) == {}
