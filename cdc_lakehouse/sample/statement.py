"""DDL text as TiCDC re-prints it: backquoted names, key words in upper case, texts with their character set."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_lakehouse.changelog.mysql_types import INTEGERS, type_text
from cdc_lakehouse.changelog.schema import SourceColumn, TableName

_BARE_DEFAULTS = INTEGERS | {"decimal", "float", "double", "year", "bit"}
_NOW = "CURRENT_TIMESTAMP"


def create_database(database: str) -> str:
    return f"CREATE DATABASE {quoted(database)}"


def create_table(name: TableName, columns: Sequence[SourceColumn]) -> str:
    key = [column for column in columns if column.primary_key]
    parts = [column_definition(column) + " PRIMARY KEY" * (key == [column]) for column in columns]
    if len(key) > 1:
        parts.append(f"PRIMARY KEY({', '.join(quoted(column.name) for column in key)})")
    return f"CREATE TABLE {qualified(name)} ({','.join(parts)})"


def alter_table(name: TableName, clause: str) -> str:
    return f"ALTER TABLE {qualified(name)} {clause}"


def rename_table(name: TableName, new: TableName) -> str:
    return f"RENAME TABLE {qualified(name)} TO {qualified(new)}"


def truncate_table(name: TableName) -> str:
    return f"TRUNCATE TABLE {qualified(name)}"


def column_definition(column: SourceColumn) -> str:
    return f"{quoted(column.name)} {_type(column)}{' NOT NULL' * (not column.nullable)}{_default(column)}"


def qualified(name: TableName) -> str:
    return f"{quoted(name.database)}.{quoted(name.table)}"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _type(column: SourceColumn) -> str:
    # Only the words: an ENUM's labels keep their case.
    name, bracket, rest = type_text(column.type).partition("(")
    return name.upper() + bracket + rest


def _default(column: SourceColumn) -> str:
    if column.default is None:
        return ""
    if column.default == _NOW:
        return f" DEFAULT {_NOW}({column.type.scale or ''})"
    if column.type.name in _BARE_DEFAULTS:
        return f" DEFAULT {column.default}"
    text = column.default.replace("\\", "\\\\").replace("'", "''")
    return f" DEFAULT _UTF8MB4'{text}'"
