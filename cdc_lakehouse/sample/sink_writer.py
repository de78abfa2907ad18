"""The files of TiCDC's storage sink (v8.5, new architecture, `file://`), written in the same order and form.

A data file comes first, then the index file that names it, then `metadata` with the checkpoint-ts. A schema file comes
after the rows that are older than its DDL. Every file is written under another name and renamed. Options of the sink:
canal-json with enable-tidb-extension; date-separator `day`; index numbers of 20 digits; times in UTC.

Values are text in canal-json's notation: an ENUM is the number of its label, a SET a bitmask, bytes one character each.
The known facts of the formats were compared byte for byte with files that TiCDC wrote (`tests/sample`)."""

from __future__ import annotations

import datetime
import re
import uuid
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from cdc_lakehouse.changelog.mysql_types import BLOBS, LABELS
from cdc_lakehouse.changelog.positions import physical_ms
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.sources.sink.paths import METADATA, checked_text, go_json

LINE_END: Final = "\r\n"
Row = dict[str, str | None]
Key = tuple[str, ...]

_DATA_FILE: Final = re.compile(r"CDC(\d{20})\.\w+")
_SCHEMA_FILE_VERSION: Final = 1
# Constants of java.sql.Types, as TiCDC maps them; TiCDC uses a larger type's for an unsigned number above its signed
# range.
_SQL_TYPES: Final = {
    "tinyint": -6, "smallint": 5, "mediumint": 4, "int": 4, "bigint": -5, "float": 7, "double": 8, "decimal": 3,
    "bit": -7, "year": 12, "date": 91, "datetime": 93, "timestamp": 93, "time": 92, "char": 1, "varchar": 12,
    "tinytext": 2005, "text": 2005, "mediumtext": 2005, "longtext": 2005, **dict.fromkeys(BLOBS, 2004),
    "enum": 4, "set": -7, "json": 12, "vector": 12,
}  # fmt: skip
_CALLED_UNSIGNED: Final = ("bit", "year")
"""TiCDC marks these types as unsigned in schema files, although they have no sign."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its columns in order. `version` is the commit-ts (TSO) of its last DDL."""

    name: TableName
    version: int
    columns: tuple[SourceColumn, ...]

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.primary_key)

    def key_of(self, row: Row) -> Key:
        return tuple(value for name in self.key_columns if (value := row[name]) is not None)


@dataclass(frozen=True, slots=True)
class SampleRowChange:
    """One row that changed: `row` is the one after an INSERT or UPDATE, or before a DELETE; only an UPDATE has `old`.
    Images have the row's columns. `partition` is the id of the physical partition, empty for a plain table."""

    kind: Literal["INSERT", "UPDATE", "DELETE"]
    table: Table
    commit_ts: int
    row: Row
    old: Row | None = None
    partition: str = ""


Encode = Callable[[SampleRowChange, datetime.datetime], str]
"""Formats a change as lines of a data file, without the last line end. The time is that of the encoding."""


class SinkWriter:
    """Writes a sink. Rows are held in memory until `flush`. `now` is the wall clock of the simulated server, with a
    time zone. A new writer continues the numbers of the files in the directory."""

    def __init__(self, directory: Path, encode: Encode | None = None, extension: str = "json") -> None:
        self._directory, self._encode, self._extension = directory, encode or canal_json, extension
        self._waiting: dict[str, list[SampleRowChange]] = {}
        self._last_index: dict[Path, int] = {}

    def write(self, changes: Iterable[SampleRowChange]) -> None:
        for change in changes:
            name = change.table.name
            partition = f"/{change.partition}" if change.partition else ""
            directory = f"{name.database}/{name.table}/{change.table.version}{partition}"
            self._waiting.setdefault(directory, []).append(change)

    def write_ddl(self, change: SchemaChange, now: datetime.datetime) -> None:
        """Write the rows that are held, then the schema file of a DDL."""
        self.flush(now)
        path, content = schema_file(change)
        write_atomically(self._directory / path, content)

    def flush(self, now: datetime.datetime, changes_per_file: int | None = None) -> int:
        """Write the rows that are held, to directories with the date of `now`: for each table one data file, or several
        with `changes_per_file` changes each. Return the number of files."""
        waiting, self._waiting = self._waiting, {}
        date = now.astimezone(datetime.UTC).date().isoformat()
        files = 0
        for table, changes in waiting.items():
            directory, size = self._directory / table / date, changes_per_file or len(changes)
            if directory not in self._last_index:
                found = (_DATA_FILE.fullmatch(path.name) for path in directory.glob("CDC*[0-9].*"))
                self._last_index[directory] = max((int(match[1]) for match in found if match), default=0)
            for start in range(0, len(changes), size):
                self._last_index[directory] += 1
                name = f"CDC{self._last_index[directory]:020d}.{self._extension}"
                lines = (self._encode(change, now) + LINE_END for change in changes[start : start + size])
                write_atomically(directory / name, "".join(lines))
                write_atomically(directory / "meta" / "CDC.index", f"{name}\n")
                files += 1
        return files

    def checkpoint(self, checkpoint_ts: int) -> None:
        """Promise that every event at or below `checkpoint_ts` is in the files."""
        write_atomically(self._directory / METADATA, go_json({"checkpoint-ts": checkpoint_ts}))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file as TiCDC writes local files: a reader sees the old content or the new one. The temporary file has
    `.tmp.` in its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.tmp.{uuid.uuid4()}")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(path)


def canal_json(change: SampleRowChange, encoded: datetime.datetime) -> str:
    columns = [column for column in change.table.columns if column.name in change.row]

    def image(row: Row) -> Row:
        return {column.name: row[column.name] for column in change.table.columns if column.name in row}

    return go_json(
        {
            "id": 0, "database": change.table.name.database, "table": change.table.name.table,
            "pkNames": list(change.table.key_columns),
            "isDdl": False, "type": change.kind,
            "es": physical_ms(change.commit_ts), "ts": round(encoded.timestamp() * 1000), "sql": "",
            "sqlType": {column.name: _SQL_TYPES[column.type.name] for column in columns},
            "mysqlType": {column.name: column.type.name + " unsigned" * column.type.unsigned for column in columns},
            "old": None if change.old is None else [image(change.old)],
            "data": [image(change.row)],
            "_tidb": {"commitTs": change.commit_ts},
        }
    )  # fmt: skip


def schema_file(change: SchemaChange) -> tuple[str, str]:
    """Return the path of a schema file below the sink, and its content: a DDL with the resulting columns. For a
    statement on a database the path has no table level."""
    document = {
        "Table": change.table, "Schema": change.database, "Version": _SCHEMA_FILE_VERSION,
        "TableVersion": change.commit_ts, "Query": change.query, "Type": change.action,
        "TableColumns": [_column(column) for column in change.columns] if change.table else None,
        "TableColumnsTotal": len(change.columns),
    }  # fmt: skip
    directory = f"{change.database}/{change.table}/meta" if change.table else f"{change.database}/meta"
    checksum = zlib.crc32(checked_text(document).encode())
    return f"{directory}/schema_{change.commit_ts}_{checksum:010d}.json", go_json(document, indent=4)


def _column(column: SourceColumn) -> dict[str, Any]:
    words = column.type.name.upper() + " UNSIGNED" * (column.type.unsigned or column.type.name in _CALLED_UNSIGNED)
    has_scale, of = column.type.scale or column.type.name == "decimal", column.type
    attributes = {
        "ColumnName": column.name, "ColumnType": words, "ColumnDefault": column.default,
        "ColumnPrecision": None if of.length is None else str(of.length),
        "ColumnScale": str(of.fraction) if has_scale else None,
        "ColumnNullable": None if column.nullable else "false", "ColumnIsPk": "true" if column.primary_key else None,
        "ColumnElems": list(of.elements) if of.name in LABELS else None,
    }  # fmt: skip
    return {name: value for name, value in attributes.items() if value is not None}
