"""A Canal server of the tests' own, before a MySQL of theirs that changes, and someone who reads the changes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

import pymysql.converters
from pyiceberg.table import Table

from cdc_lakehouse.changelog.events import Message, MessageError, MessagePart, RowChange
from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES
from cdc_lakehouse.changelog.schema import quoted
from cdc_lakehouse.config import CanalSource
from cdc_lakehouse.decoders.formats import canal_entries
from cdc_lakehouse.sources.canal.client import CanalClient, CanalRedeliveryError
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from tests.kit.truth import differences
from tests.servers.mysql import MySqlServer, Session
from tests.servers.process import free_port, running
from tests.servers.tools import canal

DESTINATION: Final = "example"
USER, PASSWORD = "reader", "reader-secret-51c0"
_AT_MYSQL: Final = "canal"


@dataclass(frozen=True)
class CanalServer:
    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def source(self, **other: Any) -> CanalSource:
        own = {"addresses": [self.address], "destination": DESTINATION, "user": USER, "password": PASSWORD}
        return CanalSource.model_validate({"type": "canal", **own, **other})


StartCanal = Callable[..., CanalServer]


def add_canals_user(mysql: MySqlServer) -> None:
    Session(mysql).run(
        f"CREATE USER {_AT_MYSQL} IDENTIFIED WITH mysql_native_password BY '{_AT_MYSQL}'",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {_AT_MYSQL}",
    )


def binlog_end(mysql: MySqlServer) -> tuple[str, int]:
    return mysql.one("SHOW MASTER STATUS")[:2]


def executed(mysql: MySqlServer) -> str:
    return "".join(mysql.one("SELECT @@global.gtid_executed")[0].split())


@contextlib.contextmanager
def canal_server(
    directory: Path, mysql: MySqlServer, begin: tuple[str, int], *, port: int | None = None, zone: str = "UTC",
    gtids: str | None = None,
) -> Iterator[CanalServer]:  # fmt: skip
    """Reads from `begin`, or with GTIDs from after a set of them, where `directory` does not hold how far it came."""
    port = port or free_port()
    directory.mkdir(exist_ok=True)
    said = {
        "port": port, "destination": DESTINATION, "mysqlPort": mysql.port, "mysqlUser": _AT_MYSQL,
        "mysqlPassword": _AT_MYSQL, "dataDir": directory, "user": USER, "password": PASSWORD,
        "position": json.dumps({"journalName": begin[0], "position": begin[1], "gtid": gtids}),
        "gtid": "true" if gtids else "false",
    }  # fmt: skip
    command = [*canal("CanalServer"), *(f"{name}={value}" for name, value in said.items())]
    with running(command, port, directory / "log", {**os.environ, "TZ": zone}) as process:
        yield CanalServer(port, process)


_MARKS = itertools.count(1)


class Writer(Session):
    """A mark in the binlog tells a reader that it has seen all before."""

    def __init__(self, mysql: MySqlServer, database: str) -> None:
        super().__init__(mysql)
        self.mysql, self.database = mysql, database
        self.run("CREATE DATABASE IF NOT EXISTS marks", "CREATE TABLE IF NOT EXISTS marks.m (n INT PRIMARY KEY)")

    def begin(self) -> None:
        name = self.database
        self.run(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}", f"USE {name}")

    def mark(self) -> int:
        number = next(_MARKS)
        self.run(f"INSERT INTO marks.m VALUES ({number})")
        return number

    def shown(self, table: str) -> tuple[list[list[str]], list[list[dict[str, str | None]]]]:
        """Columns as name, type and kind; of each value its `text`, null where it is not one, and what HEX() gives."""
        # Without decoders: values stay the server's text.
        session = Session(self.mysql, conv=pymysql.converters.encoders)
        columns = [
            list(map(str, row))
            for row in session.rows(
                "SELECT column_name, column_type, data_type FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                (self.database, table),
            )
        ]
        cells = [
            f"{'NULL' if kind in BLOBS | GEOMETRIES | {'bit'} else quoted(name)}, HEX({quoted(name)})"
            for name, _, kind in columns
        ]
        rows = session.rows(f"SELECT {', '.join(cells)} FROM {self.database}.`{table}`")
        found = [list(zip(row[::2], row[1::2], strict=True)) for row in rows]
        session.connection.close()
        return columns, [[{"text": text, "hex": digits} for text, digits in row] for row in found]

    def check(self, tables: Mapping[str, Table], *, left_out: tuple[str, ...] = ()) -> None:
        """The lake's tables, by their names, have what SELECT shows; but for some columns."""
        wrong: dict[str, Any] = {}
        for name, table in tables.items():
            columns, rows = self.shown(name)
            told = differences(table, [(each[0], each[1]) for each in columns], rows, left_out=left_out)
            wrong |= {f"{name}.{column}": how for column, how in told.items()}
        assert not wrong, "\n".join(f"{what}: {how}" for what, how in wrong.items())

    def tables(self) -> list[str]:
        return [name for (name,) in self.rows(f"SHOW TABLES FROM {self.database}")]


@dataclass
class Reader:
    """Keeps each entry once, by its place in the binlog."""

    entries: dict[tuple[str, int], bytes] = field(default_factory=dict[tuple[str, int], bytes])

    def read(self, client: CanalClient, mark: int) -> None:
        """Until the mark has come and is acknowledged."""
        while True:
            try:
                batch = client.get(wait_seconds=0.2)
                if batch is None:
                    continue
                for entry in batch.entries:
                    header = wire.Entry.FromString(entry).header
                    self.entries.setdefault((header.logfile_name, header.logfile_offset), entry)
                client.ack(batch)
            except CanalRedeliveryError:
                continue
            if holds(batch.entries, mark):
                return

    def messages(self) -> list[Message]:
        """All but the marks."""
        messages = [canal_entries.decode(entry) for entry in self.entries.values()]
        return [message for message in messages if not any(map(_is_mark, message.parts))]

    def changes(self, table: str) -> list[RowChange]:
        parts = itertools.chain.from_iterable(message.parts for message in self.messages())
        return [part for part in parts if isinstance(part, RowChange) and part.table == table]


def _is_mark(part: MessagePart) -> TypeGuard[RowChange]:
    return isinstance(part, RowChange) and part.database == "marks"


def holds(entries: Iterable[bytes], mark: int) -> bool:
    for entry in entries:
        with contextlib.suppress(MessageError):
            if any(_is_mark(part) and part.after == {"n": str(mark)} for part in canal_entries.decode(entry).parts):
                return True
    return False


# --- What happens in the databases ---

WORKLOAD: Final = {
    block.splitlines()[0].removeprefix("# ").partition(":")[0]: [
        line for line in block.splitlines() if not line.startswith("#")
    ]
    for block in Path(__file__).with_name("workload.txt").read_text(encoding="utf-8").split("\n\n")
}
"""By name, columns of all types with their values, and statements."""
_SPATIAL: Final = ("p", "ge")


def every_type(writer: Writer, *, spatial: bool = True) -> None:
    """In the table `types`, each value of each type, inserted, changed to, and deleted; among them NULL. Without
    `spatial` types for a TiDB, which has none."""
    columns = dict(line.partition(" = ")[::2] for line in WORKLOAD["types"])
    columns = {c: values for c, values in columns.items() if spatial or c.split()[0] not in _SPATIAL}
    writer.run("SET SESSION sql_mode = ''", f"CREATE TABLE types ({', '.join(columns)})")
    values = {column.split()[0]: each.split(" | ") for column, each in columns.items() if each}
    for number in range(max(map(len, values.values()))):
        row = [each[number] if number < len(each) else "NULL" for each in values.values()]
        writer.run(f"INSERT INTO types ({', '.join(values)}) VALUES ({', '.join(row)})")
    writer.run("INSERT INTO types (id) VALUES (18446744073709551614)")
    for name, each in values.items():
        writer.run(f"UPDATE types SET {name} = {each[-1]} WHERE id = 2")
    writer.run("UPDATE types SET id = 1000 WHERE id = 3", "DELETE FROM types WHERE id = 4")
