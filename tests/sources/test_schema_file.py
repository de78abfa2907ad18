"""Schema files as TiCDC writes them: those of the data sets, and ones that somebody has touched."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.errors import SchemaFileError, SourceError
from cdc_lakehouse.sources.object_store import LocalStore
from cdc_lakehouse.sources.sink.paths import SchemaFilePath, list_sink
from cdc_lakehouse.sources.sink.schema_file import SIZE_LIMIT, read_schema_file
from tests.kit import data_sets as packed
from tests.kit.cases import shown
from tests.kit.sink_layouts import layout_with

VERSION = 466687623483621431
COLUMN = {"ColumnName": "c", "ColumnType": "INT"}


def indented(value: Any) -> str:
    """As Go prints it, for text that holds nothing that Go escapes."""
    return json.dumps(value, indent=4, ensure_ascii=False)


def document(*columns: dict[str, Any], **changed: Any) -> dict[str, Any]:
    own = {"Table": "t", "Schema": "db", "Version": 1, "TableVersion": VERSION, "Query": "", "Type": 0}
    return {**own, "TableColumns": [dict(column) for column in columns], "TableColumnsTotal": len(columns), **changed}


def checksum(table: dict[str, Any]) -> int:
    columns = sorted(table["TableColumns"], key=lambda column: column["ColumnName"])
    summed = {"Table": table["Table"], "Schema": table["Schema"], "Version": 0, "TableColumns": columns}
    return zlib.crc32(indented({**summed, "TableColumnsTotal": table["TableColumnsTotal"]}).encode())


def read(directory: Path, content: str | bytes, summed: int, version: int = VERSION) -> SchemaChange:
    path = f"db/t/meta/schema_{version}_{summed:010d}.json"
    (directory / path).parent.mkdir(parents=True)
    (directory / path).write_bytes(content.encode() if isinstance(content, str) else content)
    (file,) = list_sink(LocalStore(directory), layout_with()).schemas
    return read_schema_file(LocalStore(directory), file)


def read_column(directory: Path, **attributes: Any) -> SourceColumn:
    table = document({**COLUMN, **attributes})
    (column,) = read(directory, indented(table), checksum(table)).columns
    return column


# --- Files of the data sets ---


@pytest.mark.parametrize("name", packed.names("canal-json"))
def test_files_of_data_sets_are_read_as_what_they_are(data_sets: Path, name: str) -> None:
    """Every file matches its checksum, and the DDL among them are those that were run."""
    dataset = data_sets / "canal-json" / name
    expected = json.loads((dataset / "expected.json").read_text(encoding="utf-8"))
    store = LocalStore(dataset / "tree")
    changes = [
        read_schema_file(store, file) for file in list_sink(store, layout_with(expected["sink"]["date"])).schemas
    ]
    assert changes
    run = {(ddl["commit_ts"], ddl["schema"], ddl["table"], ddl["kind"], ddl["query"]) for ddl in expected["ddl"]}
    told = {(c.commit_ts, c.database, c.table, c.action, c.query) for c in changes if c.query}
    assert told <= run
    # A file that the fault took away, or tables that have had no row since: not written.
    assert {ddl for ddl in run - told if ddl[3] not in (21, 24)} == set() or name == "fault_missing_schema"


def test_one_changed_byte_is_noticed(data_sets: Path, tmp_path: Path) -> None:
    tree = data_sets / "canal-json/types_numbers/tree"
    original = next(tree.glob("test/nums/meta/schema_*.json"))
    content = original.read_bytes()
    summed = int(original.stem.rpartition("_")[2])
    version = int(original.stem.split("_")[1])
    assert read(tmp_path / "same", content, summed, version).table == "nums"
    with pytest.raises(SchemaFileError, match=r"does not match the checksum .*restore the file"):
        read(tmp_path / "other", content.replace(b'"38"', b'"37"', 1), summed, version)


# --- The checksum ---

# Go's text of a string in JSON; where versions of Go differ, each has a line of its own.
GO_TEXTS = [
    ("plain", '"plain"'),
    ("<&>", r'"\u003c\u0026\u003e"'),
    ("\u2028\u2029", r'"\u2028\u2029"'),
    ("日é😀", '"日é😀"'),
    ('a"b\\c/', r'"a\"b\\c/"'),
    ("\n\r\t", r'"\n\r\t"'),
    ("\x00\x1f", r'"\u0000\u001f"'),
    ("\x7f\x80", '"\x7f\x80"'),
    ("\b\f", r'"\b\f"'),
    ("\b\f", r'"\u0008\u000c"'),
    ("\\b", r'"\\b"'),
    # The character as it is, and a byte that is not UTF-8, such as the default of a BIT(8) that is 255.
    ("\ufffd", '"\ufffd"'),
    ("\x01\ufffd\ufffd", r'"\u0001\ufffd\ufffd"'),
    ("\ufffd\ufffd\\ufffd", '"\\ufffd\ufffd\\\\ufffd"'),
]


@pytest.mark.parametrize(("value", "go"), GO_TEXTS)
def test_the_checksum_is_over_the_text_that_go_prints(tmp_path: Path, value: str, go: str) -> None:
    text = (
        f'{{\n    "Table": {go},\n    "Schema": "db",\n    "Version": 0,\n    "TableColumns": [\n        {{\n'
        f'            "ColumnName": "c",\n            "ColumnType": "VARCHAR",\n            "ColumnDefault": {go}\n'
        '        }\n    ],\n    "TableColumnsTotal": 1\n}'
    )
    whole = text.replace('"Version": 0', f'"Version": 1, "TableVersion": {VERSION}, "Query": "q", "Type": 3')
    change = read(tmp_path, whole, zlib.crc32(text.encode()))
    assert (change.table, change.columns[0].default) == (value, value)


def test_the_checksum_does_not_depend_on_the_order_of_columns(tmp_path: Path) -> None:
    table = document({**COLUMN, "ColumnName": "b"}, {**COLUMN, "ColumnName": "a"}, {**COLUMN, "ColumnName": "é"})
    change = read(tmp_path, indented(table), checksum(table))
    assert [column.name for column in change.columns] == ["b", "a", "é"]


@pytest.mark.parametrize("changed", [{"Query": "ALTER TABLE `t` ADD INDEX (`c`)"}, {"Type": 7}, {"Version": 2}])
def test_the_checksum_leaves_the_statement_out(tmp_path: Path, changed: dict[str, Any]) -> None:
    summed = checksum(document(COLUMN))
    assert read(tmp_path, indented(document(COLUMN, **changed)), summed).columns


def test_a_database_has_no_columns(tmp_path: Path) -> None:
    table = document(Table="", Query="DROP DATABASE `db`", Type=2)
    change = read(tmp_path, indented({**table, "TableColumns": None}), zlib.crc32(
        b'{\n    "Table": "",\n    "Schema": "db",\n    "Version": 0,\n    "TableColumns": [],\n'
        b'    "TableColumnsTotal": 0\n}'
    ))  # fmt: skip
    assert (change.database, change.table, change.action, change.columns) == ("db", "", 2, ())


# --- Columns ---


INT = ColumnType("int")


@pytest.mark.parametrize(
    ("attributes", "type", "more"),
    [
        ({}, INT, {}),
        ({"ColumnNullable": "false"}, INT, {"nullable": False}),
        ({"ColumnIsPk": "true"}, INT, {"primary_key": True}),
        ({"ColumnId": "12"}, INT, {"source_id": 12}),
        ({"ColumnDefault": ""}, INT, {"default": ""}),
        ({"ColumnDefault": "7"}, INT, {"default": "7"}),
        ({"ColumnType": "INT UNSIGNED", "ColumnPrecision": "10"}, ColumnType("int", unsigned=True, length=10), {}),
        (
            {"ColumnType": "DECIMAL", "ColumnPrecision": "12", "ColumnScale": "2"},
            ColumnType("decimal", length=12, scale=2),
            {},
        ),
        ({"ColumnType": "BIT UNSIGNED", "ColumnPrecision": "64"}, ColumnType("bit", length=64), {}),
        ({"ColumnType": "YEAR UNSIGNED", "ColumnPrecision": "4"}, ColumnType("year", length=4), {}),
        ({"ColumnType": "DATETIME", "ColumnScale": "6"}, ColumnType("datetime", scale=6), {}),
        ({"ColumnType": "ENUM", "ColumnElems": ["a", "b,c", ""]}, ColumnType("enum", elements=("a", "b,c", "")), {}),
        ({"ColumnType": "VARCHAR", "ColumnLength": "50"}, ColumnType("varchar", length=50), {}),
    ],
    ids=shown,
)
def test_attributes_of_columns(
    tmp_path: Path, attributes: dict[str, Any], type: ColumnType, more: dict[str, Any]
) -> None:
    assert read_column(tmp_path, **attributes) == SourceColumn("c", type, **more)


# --- Broken files ---


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((b"", "not JSON"), (b"{", "not JSON"), (b"\xff{}", "not JSON"), (b"[" * 100_000, "JSON")),
        *((b"[]", "no JSON object"), (b"null", "no JSON")),
    ],
    ids=shown,
)
def test_a_file_that_is_no_document(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(SchemaFileError, match=said) as refused:
        read(tmp_path, content, 1)
    assert refused.value.segment == f"db/t/meta/schema_{VERSION}_0000000001.json"


@pytest.mark.parametrize(
    "changed",
    [
        *({key: ...} for key in document() if key != "Version"),
        {"TableColumns": [{"ColumnType": "INT"}]},
        {"TableColumns": ["c"]},
        {"TableColumns": 7},
        {"TableColumns": [{**COLUMN, "ColumnName": 7}]},
        {"TableColumns": [{**COLUMN, "ColumnName": "\ud800"}]},
        {"TableVersion": "soon"},
        {"TableVersion": None},
        {"Type": "CREATE"},
        {"Type": float("inf")},
        {"Query": "\ud800"},
    ],
    ids=shown,
)
def test_a_document_that_lacks_something(tmp_path: Path, changed: dict[str, Any]) -> None:
    """`...` leaves a name out."""
    table = {name: value for name, value in document(COLUMN, **changed).items() if value is not ...}
    with pytest.raises(SchemaFileError) as refused:
        read(tmp_path, indented(table).encode("utf-8", "backslashreplace"), checksum(document(COLUMN)))
    assert refused.value.segment is not None


@pytest.mark.parametrize("column", [
    {"ColumnPrecision": "x"}, {"ColumnScale": "1.5"}, {"ColumnId": "x"}, {"ColumnPrecision": float("inf")},
    {"ColumnElems": [7]}, {"ColumnElems": "a"},
])  # fmt: skip
def test_what_no_column_has_is_refused_though_the_checksum_is_right(tmp_path: Path, column: dict[str, Any]) -> None:
    with pytest.raises(SchemaFileError, match="is not what TiCDC writes there"):
        read_column(tmp_path, **column)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1, 7])
def test_the_version_in_the_name_must_be_the_documents(tmp_path: Path, version: int) -> None:
    """The checksum leaves the version out, so a file under another's name has a right one."""
    table = document(COLUMN)
    with pytest.raises(SchemaFileError, match=rf"{VERSION} is not the version in the file's name"):
        read(tmp_path, indented(table), checksum(table), version)


def test_a_file_above_the_limit_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / f"db/t/meta/schema_{VERSION}_0000000001.json"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(SIZE_LIMIT + 1)
    (listed,) = list_sink(LocalStore(tmp_path), layout_with()).schemas
    with pytest.raises(SourceError, match=f"larger than {SIZE_LIMIT} bytes") as refused:
        read_schema_file(LocalStore(tmp_path), listed)
    assert refused.value.segment == listed.path


def test_a_table_of_the_most_columns_is_far_below_the_limit(tmp_path: Path) -> None:
    """TiDB allows 4,096 columns at most."""
    long = "é" * 60
    table = document(
        *({"ColumnName": f"{long}{n}", "ColumnType": "ENUM", "ColumnElems": [long] * 5} for n in range(4096))
    )
    assert len(indented(table)) < SIZE_LIMIT // 2
    assert len(read(tmp_path, indented(table), checksum(table)).columns) == 4096


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    gone = SchemaFilePath("db/t/meta/schema_7_0000000001.json", "db/t", 7, 1, "")
    with pytest.raises(SourceError, match=re.escape(gone.path)):
        read_schema_file(LocalStore(tmp_path), gone)
