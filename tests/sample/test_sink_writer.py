"""The writer makes the bytes that the simulator of TiCDC made: its sinks are read and written again."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.boundaries.change_log import ColumnType, SchemaChange, SourceColumn, TableName, tso, utc_now
from tests.boundaries.sample import SampleRowChange, SinkWriter, Table
from tests.boundaries.sources import LocalStore, list_sink, read_checkpoint, read_schema_file
from tests.kit.sink_layouts import layout_with
from tests.sample import contents

NAMES = ["date_dirs", "multi_schema_change", "pk_updates", "rename_chain", "types_enum_set", "types_text", "types_time"]
DAY = datetime.datetime(2026, 6, 1, 23, 30, tzinfo=datetime.UTC)
COLUMNS = (
    SourceColumn("id", ColumnType.of("BIGINT", length=20), nullable=False, primary_key=True),
    SourceColumn("s", ColumnType.of("VARCHAR", length=50)),
)
TABLE = Table(TableName("shop", "things"), tso(DAY), COLUMNS)
FILES = ["CDC00000000000000000001.json", "CDC00000000000000000002.json"]


def insert(number: int) -> SampleRowChange:
    return SampleRowChange("INSERT", TABLE, tso(DAY) + number, {"id": str(number), "s": None})


def without_chance(content: bytes) -> bytes:
    """Go prints a map in any order: the types of `mysqlType` are put in order."""

    def ordered(match: re.Match[bytes]) -> bytes:
        return b'"mysqlType":{' + b",".join(sorted(match[1].split(b","))) + b"}"

    return re.sub(rb'"mysqlType":\{([^}]*)\}', ordered, content)


@pytest.mark.parametrize("name", NAMES)
def test_a_simulated_sink_is_written_byte_for_byte(name: str, data_sets: Path, tmp_path: Path) -> None:
    simulated = data_sets / "canal-json" / name / "tree"
    store = LocalStore(simulated)
    listing = list_sink(store, layout_with())
    writer = SinkWriter(tmp_path)
    tables: dict[tuple[str, str, int], Table] = {}
    for file in listing.schemas:
        change = read_schema_file(store, file)
        table = Table(TableName(change.database, change.table), change.commit_ts, change.columns)
        tables[change.database, change.table, change.commit_ts] = table
        writer.write_ddl(change, DAY)
    for file in sorted(listing.data, key=lambda file: file.path):
        table = tables[file.database, file.table, file.version]
        lines = [json.loads(line) for line in (simulated / file.path).read_bytes().split(b"\r\n")[:-1]]
        for line in lines:
            old = None if line["old"] is None else line["old"][0]
            writer.write([SampleRowChange(line["type"], table, line["_tidb"]["commitTs"], line["data"][0], old)])
        writer.flush(datetime.datetime.fromtimestamp(lines[0]["ts"] / 1000, datetime.UTC))
    writer.checkpoint(read_checkpoint(store, utc_now()))

    written, expected = contents(tmp_path), contents(simulated)
    assert sorted(written) == sorted(expected)
    for path, content in expected.items():
        assert without_chance(written[path]) == without_chance(content), path


def test_a_ddl_waits_for_the_rows_before_it(tmp_path: Path) -> None:
    writer = SinkWriter(tmp_path)
    assert (writer.flush(DAY), contents(tmp_path)) == (0, {})
    writer.write([insert(1)])
    writer.write_ddl(SchemaChange(tso(DAY) + 2, "shop", "things", 7, "", COLUMNS, ""), DAY)
    assert [path.name for path in tmp_path.glob("shop/things/*/*/*.json")] == ["CDC00000000000000000001.json"]


def test_numbers_begin_at_one_each_day_by_the_clock_in_utc(tmp_path: Path) -> None:
    writer = SinkWriter(tmp_path)
    shanghai = datetime.timezone(datetime.timedelta(hours=8))
    for number, now in enumerate((DAY, DAY.astimezone(shanghai), DAY + datetime.timedelta(hours=1)), start=1):
        writer.write([insert(number)])
        assert writer.flush(now) == 1
    table = f"shop/things/{TABLE.version}"
    assert sorted(contents(tmp_path)) == [
        f"{table}/2026-06-01/{FILES[0]}", f"{table}/2026-06-01/{FILES[1]}", f"{table}/2026-06-01/meta/CDC.index",
        f"{table}/2026-06-02/{FILES[0]}", f"{table}/2026-06-02/meta/CDC.index",
    ]  # fmt: skip
    assert contents(tmp_path)[f"{table}/2026-06-01/meta/CDC.index"] == b"CDC00000000000000000002.json\n"


def test_a_partition_and_a_limit_of_changes_make_files_of_their_own(tmp_path: Path) -> None:
    writer = SinkWriter(tmp_path)
    writer.write(replace(insert(number), partition="101" if number == 3 else "") for number in range(4))
    assert writer.flush(DAY, 2) == 3
    table = tmp_path / f"shop/things/{TABLE.version}"
    found = {str(path.relative_to(table)): len(path.read_bytes().splitlines()) for path in table.rglob("CDC*.json")}
    day = "2026-06-01"
    assert found == {f"{day}/{FILES[0]}": 2, f"{day}/{FILES[1]}": 1, f"101/{day}/{FILES[0]}": 1}
