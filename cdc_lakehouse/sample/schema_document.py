"""A schema file's name and content: a DDL with the columns it leads to, as TiCDC writes it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

from cdc_lakehouse.changelog.mysql_types import LABELS, ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.sample import go_json

_VERSION: Final = 1
_UNSIGNED: Final = ("bit", "year")
"""Types that TiCDC calls unsigned though they have no sign."""


def schema_path(change: SchemaChange) -> str:
    """Where the file lies below the sink; a statement on a database has no table level."""
    directory = f"{change.database}/{change.table}/meta" if change.table else f"{change.database}/meta"
    return f"{directory}/schema_{change.commit_ts}_{_checksum(change):010d}.json"


def schema_document(change: SchemaChange) -> str:
    return go_json.indented(
        {
            "Table": change.table,
            "Schema": change.database,
            "Version": _VERSION,
            "TableVersion": change.commit_ts,
            "Query": change.query,
            "Type": change.action,
            "TableColumns": _columns(change.columns) if change.table else None,
            "TableColumnsTotal": len(change.columns),
        }
    )


def _checksum(change: SchemaChange) -> int:
    ordered = sorted(change.columns, key=lambda column: column.name.encode())
    text = go_json.indented(
        {
            "Table": change.table,
            "Schema": change.database,
            "Version": 0,
            # Unlike the document's, an empty list: TiCDC makes the sorted copy with a length.
            "TableColumns": _columns(ordered),
            "TableColumnsTotal": len(change.columns),
        }
    )
    return zlib.crc32(text.encode())


def _columns(columns: Sequence[SourceColumn]) -> list[dict[str, Any]]:
    return [_column(column) for column in columns]


def _column(column: SourceColumn) -> dict[str, Any]:
    attributes: dict[str, Any] = {"ColumnName": column.name, "ColumnType": _type_words(column.type)}
    if column.default is not None:
        attributes["ColumnDefault"] = column.default
    if column.type.length is not None:
        attributes["ColumnPrecision"] = str(column.type.length)
    if column.type.scale or column.type.name == "decimal":
        attributes["ColumnScale"] = str(column.type.fraction)
    if not column.nullable:
        attributes["ColumnNullable"] = "false"
    if column.primary_key:
        attributes["ColumnIsPk"] = "true"
    if column.type.name in LABELS:
        attributes["ColumnElems"] = list(column.type.elements)
    return attributes


def _type_words(column: ColumnType) -> str:
    return column.name.upper() + " UNSIGNED" * (column.unsigned or column.name in _UNSIGNED)
