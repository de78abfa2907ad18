"""A changefeed of a scenario's entries: the sink's files, in canal-json or csv, as they would come."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.sample import statement
from cdc_lakehouse.sample.schema_document import schema_document, schema_path
from tests.model.fold import LIMIT, Column, Ddl, Entry, RowChange, Table, Tables, Values, apply
from tests.model.history import PARTITIONED

DATABASE: Final = "shop"
_ACTIONS: Final = {
    "create": 3, "drop": 4, "add": 5, "drop column": 6, "truncate": 11, "rename column": 12, "retype": 12,
    "rename table": 14, "rekey": 61, "exchange": 42,
}  # fmt: skip


_PARTITIONS: Final = (
    f" PARTITION BY RANGE ({{}}) (PARTITION p0 VALUES LESS THAN ({LIMIT}), PARTITION p1 VALUES LESS THAN MAXVALUE)"
)


@dataclass
class Changefeed:
    """Lines wait by directory until they are flushed. With csv `old_values` is its output-old-value."""

    sink: Path
    csv: bool = False
    old_values: bool = False
    date: int = 1
    checkpoint_ts: int = 0
    entries: list[Entry] = field(default_factory=list)
    _tables: Tables = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)
    _sent: list[tuple[int, str, str]] = field(default_factory=list)
    _waiting: list[tuple[str, str]] = field(default_factory=list)
    _index: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def send(self, entry: Entry) -> None:
        self.entries.append(entry)
        if isinstance(entry, Ddl):
            self.flush(3)
            self._schema_file(entry)
            return
        table = self._tables[entry.table]
        messages = _csv_rows(entry, table, self.old_values) if self.csv else _messages(entry, table)
        for part, message in messages:
            directory = f"{DATABASE}/{entry.table}/{self._versions[entry.table]}{part}"
            self._sent.append((entry.commit_ts, directory, message))
            self._waiting.append((directory, message))
        apply(self._tables, entry)

    def flush(self, lines: int) -> None:
        """One file for each directory and so many lines."""
        waiting, self._waiting = self._waiting, []
        by_directory: dict[str, list[str]] = defaultdict(list)
        for directory, message in waiting:
            by_directory[f"{directory}/2026-01-{self.date:02}"].append(message)
        for directory, messages in by_directory.items():
            for start in range(0, len(messages), lines):
                self._index[directory] += 1
                name = f"CDC{self._index[directory]:020d}.{'csv' if self.csv else 'json'}"
                self._write(f"{directory}/{name}", "".join(f"{line}\r\n" for line in messages[start : start + lines]))
                self._write(f"{directory}/meta/CDC.index", f"{name}\n")

    def advance(self, behind: int) -> int:
        """Everything is written, and the checkpoint goes to the entry that is so many back."""
        self.flush(4)
        self.checkpoint_ts = max(self.checkpoint_ts, self.entries[max(0, len(self.entries) - 1 - behind)].commit_ts)
        self._write("metadata", json.dumps({"checkpoint-ts": self.checkpoint_ts}))
        return self.checkpoint_ts

    def restart(self) -> None:
        self._waiting = [(place, message) for commit_ts, place, message in self._sent if commit_ts > self.checkpoint_ts]

    def _schema_file(self, ddl: Ddl) -> None:
        text, before = _query(ddl, self._tables), self._tables.get(ddl.table)
        apply(self._tables, ddl)
        name = ddl.new_name if ddl.kind == "rename table" else ddl.table
        table = self._tables.get(name, before)
        assert table is not None
        self._versions[name] = ddl.commit_ts
        change = SchemaChange(
            ddl.commit_ts, DATABASE, name, _ACTIONS[ddl.kind], text, tuple(_source_columns(table)), origin=""
        )
        self._write(schema_path(change), schema_document(change))
        if ddl.kind == "exchange":
            other, columns = ddl.new_name, tuple(_source_columns(self._tables[ddl.new_name]))
            self._versions[other] = ddl.commit_ts
            sight = SchemaChange(ddl.commit_ts, DATABASE, other, 0, "", columns, origin="")
            self._write(schema_path(sight), schema_document(sight))

    def _write(self, path: str, text: str) -> None:
        place = self.sink / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode())


def _messages(change: RowChange, table: Table) -> Iterable[tuple[str, str]]:
    """Each with the directory of its physical partition."""
    before, after = change.before, change.after

    def place(row: Values) -> str:
        return _partition(change, table, row)

    def message(kind: str, data: Values, old: Values | None = None) -> str:
        return json.dumps(_message(change, table, kind, data, old), ensure_ascii=False)

    moved = before is not None and after is not None and table.key_of(before) != table.key_of(after)
    if after is None or (moved and (change.style % 2 or change.table == PARTITIONED)):
        assert before is not None
        # Some changefeeds send nothing but the key of a deleted row.
        gone = {name: before[name] for name in table.key} if change.style % 3 == 0 else before
        yield place(before), message("DELETE", gone)
        if after is not None:
            yield place(after), message("INSERT", after)
    elif before is None:
        yield place(after), message("INSERT", after)
    else:
        changed = {name: text for name, text in before.items() if text != after[name]}
        data = {name: text for name, text in after.items() if name not in change.partial}
        yield place(after), message("UPDATE", data, changed if change.style % 3 else before)


def _csv_rows(change: RowChange, table: Table, old_values: bool) -> Iterable[tuple[str, str]]:
    before, after = change.before, change.after

    def row(op: str, values: Values, *, is_update: bool = False) -> str:
        told = [f'"{op}"', f'"{change.table}"', f'"{DATABASE}"', str(change.commit_ts)]
        told += [str(is_update).lower()] if old_values else []
        texts = (values[column.name] for column in table.columns)
        return ",".join([*told, *("\\N" if text is None else '"' + text.replace('"', '""') + '"' for text in texts)])

    moved = before is not None and after is not None and table.key_of(before) != table.key_of(after)
    if before is None:
        assert after is not None
        yield _partition(change, table, after), row("I", after)
    elif after is None:
        yield _partition(change, table, before), row("D", before)
    elif moved and (change.style % 2 or change.table == PARTITIONED or not old_values):
        # Without old values nobody could tell which key went.
        yield _partition(change, table, before), row("D", before)
        yield _partition(change, table, after), row("I", after)
    elif old_values:
        pair = row("D", before, is_update=True) + "\r\n" + row("I", after, is_update=True)
        yield _partition(change, table, after), pair
    else:
        yield _partition(change, table, after), row("U", after)


def _partition(change: RowChange, table: Table, row: Values) -> str:
    return f"/{sum(map(ord, row[table.key[0]] or '')) % 2 + 100}" if change.table == PARTITIONED else ""


def _message(change: RowChange, table: Table, kind: str, data: Values, old: Values | None) -> dict[str, Any]:
    return {
        "id": 0,
        "database": DATABASE,
        "table": change.table,
        "pkNames": list(table.key),
        "isDdl": False,
        "type": kind,
        "es": change.commit_ts >> 18,
        "ts": 0,
        "sql": "",
        "sqlType": {},
        "mysqlType": {},
        "old": None if old is None else [old],
        "data": [data],
        "_tidb": {"commitTs": change.commit_ts},
    }


def _query(ddl: Ddl, tables: Tables) -> str:
    name = TableName(DATABASE, ddl.table)
    match ddl.kind:
        case "create":
            created = statement.create_table(name, list(_source_columns(Table(list(ddl.columns), ddl.key, {}))))
            return created + (_PARTITIONS.format(statement.quoted(ddl.partition)) if ddl.partition else "")
        case "drop":
            return f"DROP TABLE {statement.qualified(name)}"
        case "truncate":
            return statement.truncate_table(name)
        case "rename table":
            return statement.rename_table(name, TableName(DATABASE, ddl.new_name))
        case "add":
            assert ddl.column is not None
            place = " FIRST" if ddl.first else ""
            definition = statement.column_definition(_source_column(ddl.column, key=False))
            return statement.alter_table(name, f"ADD COLUMN {definition}{place}")
        case "retype":
            assert ddl.column is not None
            definition = statement.column_definition(_source_column(ddl.column, key=ddl.name in tables[ddl.table].key))
            return statement.alter_table(name, f"MODIFY COLUMN {definition}")
        case "rekey":
            key = ", ".join(statement.quoted(column) for column in ddl.key)
            return statement.alter_table(name, f"DROP PRIMARY KEY, ADD PRIMARY KEY ({key})")
        case "exchange":
            other = statement.qualified(TableName(DATABASE, ddl.new_name))
            return statement.alter_table(name, f"EXCHANGE PARTITION `{ddl.name}` WITH TABLE {other}")
        case "drop column":
            return statement.alter_table(name, f"DROP COLUMN {statement.quoted(ddl.name)}")
        case "rename column":
            old, new = statement.quoted(ddl.name), statement.quoted(ddl.new_name)
            return statement.alter_table(name, f"RENAME COLUMN {old} TO {new}")


def _source_columns(table: Table) -> Iterable[SourceColumn]:
    return (_source_column(column, key=column.name in table.key) for column in table.columns)


def _source_column(column: Column, *, key: bool) -> SourceColumn:
    base, _, size = column.type.partition("(")
    numbers = [int(number) for number in size.removesuffix(")").split(",") if number]
    length, scale = (*numbers, None, None)[:2]
    kind = ColumnType.of(base, length=length, scale=scale)
    return SourceColumn(column.name, kind, nullable=not key, primary_key=key, default=column.default)
