"""A changefeed of a scenario's entries: the sink's files, in canal-json or csv, as they would come.

The bytes are those of the sample's writer. What the tables should hold is the model's own (`fold`)."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName, quoted
from cdc_lakehouse.sample import sink_writer
from cdc_lakehouse.sample.database import column_definition, create_statement
from cdc_lakehouse.sample.sink_writer import SinkWriter
from tests.changelog.statements import in_odd_case
from tests.kit import csv_sinks
from tests.model.fold import LIMIT, Column, Ddl, Entry, RowChange, Table, Tables, Values, apply
from tests.model.history import PARTITIONED
from tests.model.topic import TopicWriter

DATABASE: Final = "shop"
_ACTIONS: Final = {
    "create": 3, "drop": 4, "add": 5, "drop column": 6, "truncate": 11, "rename column": 12, "retype": 12,
    "rename table": 14, "rekey": 61, "exchange": 42, "recover": 25,
}  # fmt: skip
_PARTITIONS: Final = (
    f" PARTITION BY RANGE ({{}}) (PARTITION p0 VALUES LESS THAN ({LIMIT}), PARTITION p1 VALUES LESS THAN MAXVALUE)"
)
_FIRST_DAY: Final = datetime.datetime(2025, 12, 31, tzinfo=datetime.UTC)


@dataclass
class Changefeed:
    """Of one database. Rows wait until they are flushed. With csv `old_values` is its output-old-value."""

    sink: Path
    csv: bool = False
    old_values: bool = False
    database: str = DATABASE
    topic: Callable[[], TopicWriter] | None = None
    """Where it goes in the place of a sink."""
    date: int = 1
    checkpoint_ts: int = 0
    entries: list[Entry] = field(default_factory=list)
    _writer: SinkWriter | TopicWriter = field(init=False)
    _tables: Tables = field(default_factory=Tables)
    _versions: dict[str, int] = field(default_factory=dict)
    _sent: list[sink_writer.SampleRowChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def send(self, entry: Entry) -> None:
        self.entries.append(entry)
        if isinstance(entry, Ddl):
            self.flush(3)
            self._schema_file(entry)
            return
        changes = list(self._changes(entry, self._tables[entry.table]))
        self._sent += changes
        self._writer.write(changes)
        apply(self._tables, entry)

    def flush(self, lines: int) -> None:
        """One file for each directory and so many changes."""
        self._writer.flush(self._now(), lines)

    def advance(self, behind: int) -> int:
        """Everything is written, and the checkpoint goes to the entry that is so many back."""
        self.checkpoint(self.entries[max(0, len(self.entries) - 1 - behind)].commit_ts)
        return self.checkpoint_ts

    def checkpoint(self, commit_ts: int) -> None:
        """Everything is written, and the checkpoint goes to a commit-ts, never back."""
        self.flush(4)
        self.checkpoint_ts = max(self.checkpoint_ts, commit_ts)
        self._writer.checkpoint(self.checkpoint_ts)

    def restart(self) -> None:
        """What waits is lost, and what is above the checkpoint is sent once more."""
        csv = csv_sinks.csv_with_old_values if self.old_values else csv_sinks.csv
        encode, extension = (csv, "csv") if self.csv else (sink_writer.canal_json, "json")
        self._writer = self.topic() if self.topic else SinkWriter(self.sink, encode, extension)
        self._writer.write(change for change in self._sent if change.commit_ts > self.checkpoint_ts)

    def _now(self) -> datetime.datetime:
        return _FIRST_DAY + datetime.timedelta(days=self.date)

    def _schema_file(self, ddl: Ddl) -> None:
        query, before = self._typed(ddl), self._tables.get(ddl.table)
        apply(self._tables, ddl)
        name = ddl.new_name if ddl.kind in ("rename table", "recover") else ddl.table
        table = self._tables.get(name, before)
        assert table is not None
        self._write_schema(ddl.commit_ts, name, table, _ACTIONS[ddl.kind], query)
        if ddl.kind == "exchange":
            self._write_schema(ddl.commit_ts, ddl.new_name, self._tables[ddl.new_name], 0, "")

    def _typed(self, ddl: Ddl) -> str:
        """The statement as a user types it: names in any letter case, with the database or without it."""
        query = query(ddl, self._tables, self.database)
        if ddl.kind == "create":
            return query
        if ddl.commit_ts // 7 % 3 == 0:
            query = query.replace(f"{quoted(self.database)}.", "")
        if ddl.commit_ts // 7 % 2 and ddl.kind == "rename table":
            query = query.replace("RENAME TABLE", "ALTER TABLE", 1).replace(" TO ", " RENAME TO ", 1)
        # The names that the statement makes. A MODIFY makes its column's anew.
        is_named = ddl.kind.startswith("rename") or ddl.kind == "recover"
        made = {ddl.new_name} if is_named else {ddl.column.name} if ddl.column else set[str]()
        return in_odd_case(query, ddl.commit_ts, keep=made)

    def _write_schema(self, commit_ts: int, name: str, table: Table, action: int, query: str) -> None:
        self._versions[name] = commit_ts
        columns = tuple(_source_columns(table))
        self._writer.write_ddl(
            SchemaChange(commit_ts, self.database, name, action, query, columns, origin=""), self._now()
        )

    def _changes(self, change: RowChange, table: Table) -> Iterable[sink_writer.SampleRowChange]:
        """The messages of a change. What of the images they carry depends on the format and the change's style."""
        before, after = change.before, change.after
        name = TableName(self.database, change.table)
        written = sink_writer.Table(name, self._versions[change.table], tuple(_source_columns(table)))

        def inserted(row: Values) -> sink_writer.SampleRowChange:
            place = _partition(change, table, row)
            return sink_writer.SampleRowChange("INSERT", written, change.commit_ts, row, partition=place)

        def deleted(row: Values) -> sink_writer.SampleRowChange:
            # Some changefeeds send nothing but the key of a deleted row.
            image = {name: row[name] for name in table.key} if change.style % 3 == 0 and not self.csv else row
            place = _partition(change, table, row)
            return sink_writer.SampleRowChange("DELETE", written, change.commit_ts, image, partition=place)

        if before is None:
            assert after is not None
            yield inserted(after)
            return
        if after is None:
            yield deleted(before)
            return
        # Without old values nobody could tell which key went.
        two = change.style % 2 or change.table == PARTITIONED or (self.csv and not self.old_values)
        if table.key_of(before) != table.key_of(after) and two:
            yield deleted(before)
            yield inserted(after)
            return
        row, old = after, before
        if not self.csv:
            row = {name: text for name, text in after.items() if name not in change.partial}
            changed = {name: text for name, text in before.items() if text != after[name]}
            old = changed if change.style % 3 else before
        partition = _partition(change, table, after)
        yield sink_writer.SampleRowChange("UPDATE", written, change.commit_ts, row, old, partition)


def _partition(change: RowChange, table: Table, row: Values) -> str:
    return f"{sum(map(ord, row[table.key[0]] or '')) % 2 + 100}" if change.table == PARTITIONED else ""


def query(ddl: Ddl, tables: Tables, database: str) -> str:
    """The statement, with names as they are."""
    name = TableName(database, ddl.table)
    match ddl.kind:
        case "create":
            created = create_statement(name, list(_source_columns(Table(list(ddl.columns), ddl.key, {}))))
            return created + (_PARTITIONS.format(quoted(ddl.partition)) if ddl.partition else "")
        case "drop":
            return f"DROP TABLE {name.quoted}"
        case "recover":
            other = "" if ddl.new_name == ddl.table else f" TO {quoted(ddl.new_name)}"
            return f"{'FLASHBACK' if other or ddl.commit_ts % 7 < 4 else 'RECOVER'} TABLE {name.quoted}{other}"
        case "truncate":
            return f"TRUNCATE TABLE {name.quoted}"
        case "rename table":
            return f"RENAME TABLE {name.quoted} TO {TableName(database, ddl.new_name).quoted}"
        case "add":
            assert ddl.column is not None
            place = " FIRST" if ddl.first else ""
            definition = column_definition(_source_column(ddl.column, key=False))
            return f"ALTER TABLE {name.quoted} ADD COLUMN {definition}{place}"
        case "retype":
            assert ddl.column is not None
            definition = column_definition(_source_column(ddl.column, key=ddl.name in tables[ddl.table].key))
            return f"ALTER TABLE {name.quoted} MODIFY COLUMN {definition}"
        case "rekey":
            key = ", ".join(quoted(column) for column in ddl.key)
            return f"ALTER TABLE {name.quoted} DROP PRIMARY KEY, ADD PRIMARY KEY ({key})"
        case "exchange":
            other = TableName(database, ddl.new_name).quoted
            return f"ALTER TABLE {name.quoted} EXCHANGE PARTITION `{ddl.name}` WITH TABLE {other}"
        case "drop column":
            return f"ALTER TABLE {name.quoted} DROP COLUMN {quoted(ddl.name)}"
        case "rename column":
            old, new = quoted(ddl.name), quoted(ddl.new_name)
            return f"ALTER TABLE {name.quoted} RENAME COLUMN {old} TO {new}"


def _source_columns(table: Table) -> Iterable[SourceColumn]:
    return (_source_column(column, key=column.name in table.key) for column in table.columns)


def _source_column(column: Column, *, key: bool) -> SourceColumn:
    base, _, size = column.type.partition("(")
    numbers = [int(number) for number in size.removesuffix(")").split(",") if number]
    length, scale = (*numbers, None, None)[:2]
    kind = ColumnType.of(base, length=length, scale=scale)
    return SourceColumn(column.name, kind, nullable=not key, primary_key=key, default=column.default)
