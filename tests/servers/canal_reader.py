"""A MySQL that changes, and someone who reads the changes from Canal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import pymysql.converters
from pyiceberg.table import Table

from cdc_lakehouse.changelog.events import Message, MessageError, MessagePart, RowChange
from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES
from cdc_lakehouse.decoders.formats import canal_entries
from cdc_lakehouse.sources.canal.client import Batch, CanalClient, CanalRedeliveryError
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from tests.canal_truth import differences
from tests.servers.mysql import MySqlServer

_MARKS = itertools.count(1)


@dataclass
class Writer:
    """Runs statements, each committed; a mark in the binlog tells a reader that it has seen all before."""

    mysql: MySqlServer
    database: str

    def __post_init__(self) -> None:
        self.connection: Any = self.mysql.connect()
        self.connection.autocommit(True)
        self.run("CREATE DATABASE IF NOT EXISTS marks", "CREATE TABLE IF NOT EXISTS marks.m (n INT PRIMARY KEY)")

    def begin(self) -> None:
        """With an empty database."""
        name = self.database
        self.run(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}", f"USE {name}")

    def run(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def mark(self) -> int:
        number = next(_MARKS)
        self.run(f"INSERT INTO marks.m VALUES ({number})")
        return number

    def rows(self, table: str) -> tuple[list[list[str]], list[list[dict[str, str | None]]]]:
        """Columns as name, type and kind; of each value its `text`, null where it is not one, and what HEX() gives."""
        # Without decoders: values stay the server's text.
        connection = self.mysql.connect(conv=pymysql.converters.encoders)
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT column_name, column_type, data_type FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                (self.database, table),
            )
            columns = [list(map(str, row)) for row in cursor.fetchall()]
            names = ["`{}`".format(name.replace("`", "``")) for name, _, _ in columns]
            shown = [
                f"{'NULL' if kind in BLOBS | GEOMETRIES | {'bit'} else name}, HEX({name})"
                for name, (_, _, kind) in zip(names, columns, strict=True)
            ]
            cursor.execute(f"SELECT {', '.join(shown)} FROM {self.database}.`{table}`")
            found = [list(zip(row[::2], row[1::2], strict=True)) for row in cursor.fetchall()]
        return columns, [[{"text": text, "hex": digits} for text, digits in row] for row in found]

    def check(self, tables: Mapping[str, Table], *, left_out: tuple[str, ...] = ()) -> None:
        """The lake's tables, by their names, have what SELECT shows; but for some columns."""
        wrong: dict[str, Any] = {}
        for name, table in tables.items():
            columns, rows = self.rows(name)
            told = differences(table, [(each[0], each[1]) for each in columns], rows, left_out=left_out)
            wrong |= {f"{name}.{column}": how for column, how in told.items()}
        assert not wrong, "\n".join(f"{what}: {how}" for what, how in wrong.items())

    def tables(self) -> list[str]:
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (self.database,))
            return [row[0] for row in cursor.fetchall()]


@dataclass
class Reader:
    """Keeps each entry once, by its place in the binlog."""

    entries: dict[tuple[str, int], bytes] = field(default_factory=dict[tuple[str, int], bytes])

    def keep(self, entries: tuple[bytes, ...]) -> None:
        for entry in entries:
            self.entries.setdefault(place_of(entry), entry)

    def read(self, client: CanalClient, mark: int) -> None:
        """Until the mark has come and is acknowledged."""
        while True:
            try:
                batch = client.get(wait_seconds=0.2)
                if batch is None:
                    continue
                self.keep(batch.entries)
                client.ack(batch)
            except CanalRedeliveryError:
                continue
            if holds(batch, mark):
                return

    def messages(self) -> list[Message]:
        """All but the marks."""
        messages = [canal_entries.decode_entry(entry) for entry in self.entries.values()]
        return [message for message in messages if not any(map(_is_mark, message.parts))]

    def changes(self, table: str) -> list[RowChange]:
        parts = itertools.chain.from_iterable(message.parts for message in self.messages())
        return [part for part in parts if isinstance(part, RowChange) and part.table == table]


def place_of(entry: bytes) -> tuple[str, int]:
    header = wire.Entry.FromString(entry).header
    return header.logfile_name, header.logfile_offset


def _is_mark(part: MessagePart) -> TypeGuard[RowChange]:
    return isinstance(part, RowChange) and part.database == "marks"


def holds(batch: Batch, mark: int) -> bool:
    return any(
        _is_mark(part) and part.after == {"n": str(mark)} for message in usable(batch.entries) for part in message.parts
    )


def usable(entries: tuple[bytes, ...]) -> Iterator[Message]:
    for entry in entries:
        try:
            yield canal_entries.decode_entry(entry)
        except MessageError:
            continue
