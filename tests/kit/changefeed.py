"""A changefeed brings the entries of a log to where a feed reads them: a sink's files in canal-json or csv, or a topic.

The bytes are those of the sample's writer. What the tables should hold is the log model's own (`tests.kit.log`)."""

import datetime
import functools
import json
import os
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cdc_lakehouse.changelog.ddl.statements import parse_type
from cdc_lakehouse.changelog.mysql_types import INTEGERS
from cdc_lakehouse.changelog.positions import physical_ms
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName, quoted
from cdc_lakehouse.sample import sink_writer
from cdc_lakehouse.sample.sink_writer import LINE_END, SampleRowChange, SinkWriter
from tests.changelog.statements import in_odd_case
from tests.kit.log import LIMIT, Column, Ddl, Entry, RowChange, Table, Tables, Values, apply

_ACTIONS: Final = {
    "older": 0, "create": 3, "drop": 4, "add": 5, "drop column": 6, "truncate": 11, "rename column": 12, "retype": 12,
    "rename table": 14, "drop partition": 20, "truncate partition": 23, "recover": 25, "drop key": 33, "exchange": 42,
    "rekey": 61, "remove partitioning": 72,
}  # fmt: skip
_MESSAGES: Final = {3: "CREATE", 4: "ERASE", 11: "TRUNCATE", 14: "RENAME", 25: "QUERY", 42: "QUERY"}
"""What a message of a statement says of its action, where not ALTER."""
_AGAIN: Final = 0.1
_BARE: Final = INTEGERS | {"float", "double", "bit", "year"}
_BARE_DEFAULTS: Final = _BARE | {"decimal"}
_PARTITIONS: Final = (
    f" PARTITION BY RANGE ({{}}) (PARTITION p0 VALUES LESS THAN ({LIMIT}), PARTITION p1 VALUES LESS THAN MAXVALUE)"
)
_FIRST_DAY: Final = datetime.datetime(2025, 12, 31, tzinfo=datetime.UTC)

Damage = Callable[[SampleRowChange, Callable[[SampleRowChange], str]], str]
"""What is written in the place of a change; it is given what writes one as it should be."""


def _definition(column: Column, key: Sequence[str]) -> str:
    """A column's definition for a statement: name, type, NOT NULL, DEFAULT."""
    # Only the words are in upper case: an ENUM's labels keep their case.
    words, bracket, rest = column.type.partition("(")
    text = f"{quoted(column.name)} {words.upper()}{bracket}{rest}{' NOT NULL' * (column.name in key)}"
    if column.default is None:
        return text
    if words.split()[0] in _BARE_DEFAULTS:
        return f"{text} DEFAULT {column.default}"
    escaped = column.default.replace("\\", "\\\\").replace("'", "''")
    return f"{text} DEFAULT _UTF8MB4'{escaped}'"


def table_name(database: str, table: str) -> TableName:
    """Table `2.t` is `t` of the database's neighbour `{database}_2`."""
    other, _, name = table.rpartition(".")
    return TableName(f"{database}_{other}" if other else database, name)


@dataclass
class Changefeed:
    """Of one database. `entries` are those that were sent, `checkpoint_ts` is what they are known to be complete up to,
    `date` counts days. Rows wait until they are flushed. With csv `old_values` is its output-old-value."""

    sink: Path
    csv: bool = False
    old_values: bool = False
    database: str = "shop"
    topic: Callable[[sink_writer.Encode], "TopicWriter"] | None = None
    """Where it goes in the place of a sink."""
    date: int = 1
    checkpoint_ts: int = 0
    entries: list[Entry] = field(default_factory=list)
    _writer: "SinkWriter | TopicWriter" = field(init=False)
    tables: Tables = field(default_factory=Tables)
    _versions: dict[str, int] = field(default_factory=dict)
    _sent: list[tuple[RowChange, list[SampleRowChange]]] = field(default_factory=list)
    _damaged: dict[int, str] = field(default_factory=dict)
    """By the identity of a change, what is written in its place."""

    def __post_init__(self) -> None:
        self.restart()

    def send(self, entry: Entry) -> None:
        self.entries.append(entry)
        if isinstance(entry, Ddl):
            self.flush(3)
            query, before = self._typed(entry), self.tables.get(entry.table)
            adds_key = entry.kind == "rekey" and before is not None and not before.key
            action = 32 if adds_key else _ACTIONS.get(entry.kind, entry.action)
            apply(self.tables, entry)
            name = entry.new_name if entry.kind in ("rename table", "recover") else entry.table
            self._write_schema(entry.commit_ts, name, self.tables.get(name, before), action, query)
            if entry.kind == "exchange":
                self._write_schema(entry.commit_ts, entry.new_name, self.tables[entry.new_name], 0, "")
            return
        changes = list(self._changes(entry, self.tables[entry.table]))
        self._sent.append((entry, changes))
        self._writer.write(changes)
        apply(self.tables, entry)

    def flush(self, lines: int) -> None:
        """One file for each directory and so many changes."""
        self._writer.flush(self._now(), lines)

    def checkpoint(self, commit_ts: int) -> None:
        """Everything is written, and the checkpoint goes to a commit-ts, never back."""
        self.flush(4)
        self.checkpoint_ts = max(self.checkpoint_ts, commit_ts)
        self._writer.checkpoint(self.checkpoint_ts)

    def restart(self, after: int | None = None) -> None:
        """What waits is lost, and what is above the checkpoint, or another commit-ts, is sent once more."""
        extension = "csv" if self.csv else "json"
        self._writer = self.topic(self._encode) if self.topic else SinkWriter(self.sink, self._encode, extension)
        after = self.checkpoint_ts if after is None else after
        again = [change for _, changes in self._sent for change in changes if change.commit_ts > after]
        self._writer.write(again)

    def spoil(self, damage: Damage) -> RowChange:
        """Write the last change, which still waits, in another way; gives its entry."""
        entry, changes = self._sent[-1]
        right = self._line(changes[-1], self._now())
        self._damaged[id(changes[-1])] = damage(changes[-1], lambda change: self._line(change, self._now()))
        assert self._damaged[id(changes[-1])] != right
        return entry

    def mend(self, *, unseen: bool = False) -> None:
        """All files get the lines that they should have; `unseen`: so that they look as before."""
        self.flush(9)
        for _, changes in self._sent:
            if (spoiled := self._damaged.pop(id(changes[-1]), None)) is not None:
                (path,) = [path for path in self.files() if spoiled.encode() in path.read_bytes()]
                right, times = self._line(changes[-1], self._now()), path.stat()
                path.write_bytes(path.read_bytes().replace(spoiled.encode(), right.encode(), 1))
                if unseen:
                    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
                    assert path.stat().st_size == times.st_size

    def files(self, table: str = "*") -> list[Path]:
        """Data files in the order in which they were begun."""
        assert self.topic is None, "a topic has no files"
        self.flush(9)
        where = table_name(self.database, table)
        found = self.sink.glob(f"{where.database}/{where.table}/*/**/CDC*[0-9].*")
        return sorted(found, key=lambda path: (path.relative_to(self.sink).parts[2], path.parent.name, path.name))

    def entries_of(self, path: Path) -> list[RowChange]:
        content = path.read_bytes().decode()
        return [entry for entry, changes in self._sent if self._encode(changes[-1], self._now()) in content]

    def _encode(self, change: SampleRowChange, encoded: datetime.datetime) -> str:
        return self._damaged.get(id(change)) or self._line(change, encoded)

    def _line(self, change: SampleRowChange, encoded: datetime.datetime) -> str:
        return csv(change, encoded, old_values=self.old_values) if self.csv else sink_writer.canal_json(change, encoded)

    def _now(self) -> datetime.datetime:
        return _FIRST_DAY + datetime.timedelta(days=self.date)

    def _typed(self, ddl: Ddl) -> str:
        """The statement as a user types it: names in any letter case, with the database or without it."""
        query = statement(ddl, self.tables, self.database)
        if ddl.kind in ("create", "alter"):
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
        columns, where = _source_columns(table), table_name(self.database, name)
        change = SchemaChange(commit_ts, where.database, where.table, action, query, columns, origin="")
        self._writer.write_ddl(change, self._now())

    def _changes(self, change: RowChange, table: Table) -> Iterable[SampleRowChange]:
        """The messages of a change. What of the images they carry depends on the format and the change's style."""
        before, after = change.before, change.after
        name = table_name(self.database, change.table)
        written = sink_writer.Table(name, self._versions[change.table], _source_columns(table))

        def message(kind: Any, of: Values, image: Values, old: Values | None = None) -> SampleRowChange:
            return SampleRowChange(kind, written, change.commit_ts, image, old, _partition(table, of))

        moved = before is not None and after is not None and table.key_of(before) != table.key_of(after)
        # Without old values nobody could tell which key went.
        two = moved and (change.style % 2 or table.partition or (self.csv and not self.old_values))
        if before is not None and (after is None or two):
            # Some changefeeds send nothing but the key of a deleted row.
            only_key = change.style % 3 == 0 and not self.csv
            yield message("DELETE", before, {name: before[name] for name in table.key} if only_key else before)
        if after is not None and (before is None or two):
            yield message("INSERT", after, after)
        if before is not None and after is not None and not two:
            row, old = after, before
            if not self.csv:
                row = {name: text for name, text in after.items() if name not in change.partial}
                changed = {name: text for name, text in before.items() if text != after[name]}
                old = changed if change.style % 3 else before
            yield message("UPDATE", after, row, old)


def _partition(table: Table, row: Values) -> str:
    return f"{sum(map(ord, row[table.key[0]] or '')) % 2 + 100}" if table.partition and table.key else ""


def statement(ddl: Ddl, tables: Tables, database: str) -> str:
    """The text of a statement, before it is carried out on `tables`."""
    own = table_name(database, ddl.table)
    table, other = own.quoted, table_name(database, ddl.new_name).quoted
    name, new_name, key = quoted(ddl.name), quoted(ddl.new_name), ", ".join(map(quoted, ddl.key))
    old_key = tables[ddl.table].key if ddl.table in tables else ()
    column = "" if ddl.column is None else _definition(ddl.column, [ddl.column.name] * (ddl.name in old_key))
    match ddl.kind:
        case "older":
            return ""
        case "create":
            keyed = [quoted(each.name) for each in ddl.columns if each.name in ddl.key]
            parts = [_definition(each, ddl.key) + " PRIMARY KEY" * ([each.name] == [*ddl.key]) for each in ddl.columns]
            parts += [f"PRIMARY KEY({', '.join(keyed)})"] * (len(keyed) > 1)
            by = f" PARTITION BY {ddl.query}" if ddl.query else ""
            by = _PARTITIONS.format(quoted(ddl.partition)) if ddl.partition else by
            return f"CREATE TABLE {table} ({','.join(parts)}){by}"
        case "drop" | "truncate":
            return f"{ddl.kind.upper()} TABLE {table}"
        case "recover":
            to = "" if ddl.new_name == ddl.table else f" TO {new_name}"
            return f"{'FLASHBACK' if to or ddl.commit_ts % 7 < 4 else 'RECOVER'} TABLE {table}{to}"
        case "rename table":
            return f"RENAME TABLE {table} TO {other}"
        case kind:
            clause = {
                "alter": ddl.query,
                "drop partition": f"DROP PARTITION {name}",
                "truncate partition": f"TRUNCATE PARTITION {name}",
                "remove partitioning": "REMOVE PARTITIONING",
                "drop key": "DROP PRIMARY KEY",
                "add": f"ADD COLUMN {column}{' FIRST' * ddl.first}",
                "retype": f"MODIFY COLUMN {column}",
                "rekey": f"{'DROP PRIMARY KEY, ' if old_key else ''}ADD PRIMARY KEY ({key})",
                "exchange": f"EXCHANGE PARTITION {name} WITH TABLE {other}{ddl.query}",
                "drop column": f"DROP COLUMN {name}",
                "rename column": f"RENAME COLUMN {name} TO {new_name}",
            }[kind]
            return f"ALTER TABLE {table} {clause}"


def _source_columns(table: Table) -> tuple[SourceColumn, ...]:
    return tuple(
        SourceColumn(each.name, parse_type(each.type), nullable=not is_key, primary_key=is_key, default=each.default)
        for each in table.columns
        for is_key in [each.name in table.key]
    )


# --- Changes as TiCDC writes them in csv ---


def csv(change: SampleRowChange, encoded: datetime.datetime, *, old_values: bool = False) -> str:
    """A change as csv with include-commit-ts; with output-old-value an UPDATE is two rows."""
    name, columns, is_two = change.table.name, change.table.columns, old_values and change.old is not None
    rows = [("D", change.old or {}), ("I", change.row)] if is_two else [(change.kind[0], change.row)]
    is_update = [str(is_two).lower()] * old_values
    return LINE_END.join(
        ",".join([
            f'"{op}"', f'"{name.table}"', f'"{name.database}"', str(change.commit_ts), *is_update,
            *(_csv_value(row[column.name], column.type.name) for column in columns),
        ])
        for op, row in rows
    )  # fmt: skip


csv_with_old_values = functools.partial(csv, old_values=True)


def _csv_value(text: str | None, type_name: str) -> str:
    if text is None:
        return r"\N"
    return text if type_name in _BARE else '"' + text.replace('"', '""') + '"'


# --- A topic ---


@dataclass
class TopicWriter:
    """As `SinkWriter`, of records that it gives to `send`, in TiCDC's canal-json: rows by table or `by_key` to the
    partitions, statements to the first one, watermarks to all. What was sent before comes again now and then."""

    send: Callable[[list[dict[str, Any]]], None]
    partitions: int
    by_key: bool
    chance: random.Random
    encode: sink_writer.Encode = sink_writer.canal_json

    def __post_init__(self) -> None:
        self._waiting: list[SampleRowChange] = []
        self._sent: list[dict[str, Any]] = []
        self._flushed = datetime.datetime.now(datetime.UTC)

    def write(self, changes: Iterable[SampleRowChange]) -> None:
        self._waiting += changes

    def flush(self, now: datetime.datetime, _: int | None = None) -> None:
        self._flushed = now
        waiting, self._waiting = self._waiting, []
        records = [_record(self._partition(each), self.encode(each, now), now) for each in waiting]
        self._sent += records
        # A producer that has lost an answer sends a batch once more; an earlier one may come late.
        if self._sent and self.chance.random() < _AGAIN:
            start = self.chance.randrange(len(self._sent))
            records += self._sent[start : start + self.chance.randint(1, 20)]
        self.send(records)

    def write_ddl(self, change: SchemaChange, now: datetime.datetime) -> None:
        self.flush(now)
        if change.action == 0:
            return  # Files alone have the columns of the second table.
        kind = _MESSAGES.get(change.action, "ALTER")
        message = _message(change.database, change.table, kind, change.commit_ts, now, {"commitTs": change.commit_ts})
        record = _record(0, json.dumps({**message, "isDdl": True, "sql": change.query}), now)
        self.send([record] * (2 if self.chance.random() < _AGAIN else 1))

    def checkpoint(self, checkpoint_ts: int) -> None:
        now = self._flushed
        message = _message("", "", "TIDB_WATERMARK", checkpoint_ts, now, {"watermarkTs": checkpoint_ts})
        self.send([_record(partition, json.dumps(message), now) for partition in range(self.partitions)])

    def _partition(self, change: SampleRowChange) -> int:
        name = change.table.name
        told = [name.database, name.table, *(change.table.key_of(change.row) if self.by_key else ())]
        return zlib.crc32(json.dumps(told).encode()) % self.partitions


def _record(partition: int, value: str, now: datetime.datetime) -> dict[str, Any]:
    return {"partition": partition, "key": None, "value": value, "timestamp": _ms(now)}


def _message(
    database: str, table: str, kind: str, commit_ts: int, now: datetime.datetime, extension: dict[str, int]
) -> dict[str, Any]:
    nothing = dict.fromkeys(("pkNames", "sqlType", "mysqlType", "old", "data"))
    of = {"id": 0, "database": database, "table": table, "isDdl": False, "type": kind, "sql": ""}
    return {**of, **nothing, "es": physical_ms(commit_ts), "ts": _ms(now), "_tidb": extension}


def _ms(time: datetime.datetime) -> int:
    return round(time.timestamp() * 1000)
