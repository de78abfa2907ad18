"""TiCDC's schema files: the columns of a table at a version, and the DDL that made it.

The checksum in the name (the layout up to v7.0 has none) is CRC32-IEEE over Go's JSON of the table's name and columns
(without statement, type and version), the columns sorted by name, indented by four spaces, with `<`, `>` and `&`
escaped. A byte that is not UTF-8, as a default can have it, is an escaped U+FFFD there and in the file; the character
itself is never escaped.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

from cdc_lakehouse.changelog import versions
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.errors import SchemaFileError, in_one_line
from cdc_lakehouse.sources import read_json
from cdc_lakehouse.sources.object_store import ObjectStore
from cdc_lakehouse.sources.sink.paths import SchemaFilePath

SIZE_LIMIT: Final = 64 * 1024 * 1024  # 4,096 columns with long labels stay far below.

# Go's encoding/json escapes only these.
_GO_ESCAPES: Final = str.maketrans({
    "<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029",
    **{chr(0xDC00 + byte): "\\ufffd" for byte in range(0x80, 0x100)},
})  # fmt: skip
_ESCAPE: Final = re.compile(rb"\\(ufffd|.)", re.DOTALL)


def read_schema_file(store: ObjectStore, file: SchemaFilePath) -> SchemaChange:
    """Read one schema file: its statement, with the resulting columns.

    Raises `SchemaFileError` when the content is invalid, and as `ObjectStore.read` does.
    """
    content = store.read(file.path, limit=SIZE_LIMIT)
    table = read_json(content, "the schema file", partial(SchemaFileError, segment=file.path))
    try:
        if file.checksum is not None and not _checksum_matches(content, file.checksum):
            raise SchemaFileError(
                "the schema file's content does not match the checksum in its name", segment=file.path
            )
        return _change(table, file)
    except KeyError as error:
        raise SchemaFileError(f"the schema file lacks {error.args[0]}", segment=file.path) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SchemaFileError(
            f"a value of the schema file is not what TiCDC writes there: {in_one_line(error)}", segment=file.path
        ) from None


def checked_text(document: Mapping[str, Any]) -> str:
    """Return the text that a schema file's checksum covers. Raises `KeyError` when the document lacks a part of it."""
    columns = sorted(document["TableColumns"] or [], key=lambda column: column["ColumnName"].encode())
    checked = {
        "Table": document["Table"],
        "Schema": document["Schema"],
        "Version": 0,
        "TableColumns": columns,
        "TableColumnsTotal": document["TableColumnsTotal"],
    }
    return go_json(checked, indent=4)


def go_json(value: Any, indent: int | None = None) -> str:
    """Format JSON as Go's encoding/json does; bytes that are not UTF-8 are given as Python's surrogateescape does."""
    separators = (",", ":") if indent is None else None
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators).translate(_GO_ESCAPES)


def _checksum_matches(content: bytes, checksum: int) -> bool:
    marked = _ESCAPE.sub(lambda found: rb"\udcff" if found[1] == b"ufffd" else found[0], content)
    text = checked_text(json.loads(marked))
    # Go before 1.22 has no short escape for backspace and form feed.
    older = text.replace("\\b", "\\u0008").replace("\\f", "\\u000c")
    return checksum in (zlib.crc32(text.encode()), zlib.crc32(older.encode()))


def _change(table: dict[str, Any], file: SchemaFilePath) -> SchemaChange:
    version = int(table["TableVersion"])
    if version != file.version:
        raise ValueError(f"TableVersion {version} is not the version in the file's name")
    if table["Table"] and not table["Schema"]:
        raise ValueError("Schema is empty, which is the table's database")
    columns = tuple(_column(column) for column in table["TableColumns"] or ())
    action = int(table["Type"])
    return SchemaChange(
        commit_ts=version,
        database=str(table["Schema"]),
        table=str(table["Table"]),
        action=action,
        query=str(table["Query"]),
        columns=columns,
        origin=file.path,
        kind="columns" if action == versions.SEEN else "statement",
    )


def _column(column: dict[str, Any]) -> SourceColumn:
    def number(key: str) -> int | None:
        return int(column[key]) if column.get(key) not in (None, "") else None

    name = str(column["ColumnName"])
    declared = str(column["ColumnType"])
    # The documentation calls the length ColumnLength; the code writes ColumnPrecision.
    length = number("ColumnPrecision") if "ColumnPrecision" in column else number("ColumnLength")
    elements: Any = column.get("ColumnElems") or []
    if type(elements) is not list or any(type(each) is not str for each in cast("list[object]", elements)):
        raise TypeError("ColumnElems is no list of texts")
    source_id = column.get("ColumnId")
    default = column.get("ColumnDefault")
    return SourceColumn(
        name=name,
        type=ColumnType.of(
            declared, length=length, scale=number("ColumnScale"), elements=tuple(cast("list[str]", elements))
        ),
        nullable=column.get("ColumnNullable") != "false",
        primary_key=column.get("ColumnIsPk") == "true",
        default=None if default is None else str(default),
        source_id=None if source_id in (None, "") else int(str(source_id)),
    )
