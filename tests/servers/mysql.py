"""A MySQL server of the tests' own, empty when it starts, and someone who writes there."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import zoneinfo
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pymysql.converters

from cdc_lakehouse.changelog.mysql_types import BLOBS, GEOMETRIES
from cdc_lakehouse.changelog.schema import quoted
from tests.kit.lakes import TestLake
from tests.kit.processes import free_port, running
from tests.kit.truth import differences
from tests.servers.tools import mysqld, run_tool

# Small and quick: what it holds need not outlive it. Root may run it, as in a container.
_BOTH = (
    "--no-defaults", "--user=root", "--innodb-use-native-aio=OFF",
    "--default-authentication-plugin=mysql_native_password",
)  # fmt: skip
_RUNNING = (
    "--bind-address=127.0.0.1", "--performance-schema=OFF", "--mysqlx=OFF",
    "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync",
    "--default-time-zone=+00:00",
)  # fmt: skip
_BINLOG = (
    "--server-id=1", "--log-bin=mysql-bin", "--binlog-format=ROW", "--binlog-row-image=FULL", "--sync-binlog=0",
    "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
)  # fmt: skip


@dataclass(frozen=True)
class MySqlServer:
    socket: Path
    port: int

    def connect(self, **options: Any) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(unix_socket=str(self.socket), user="root", charset="utf8mb4", **options)

    def one(self, statement: str) -> Any:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()

    def binlog_end(self) -> tuple[str, int]:
        return self.one("SHOW MASTER STATUS")[:2]

    def executed(self) -> str:
        """The GTIDs."""
        return "".join(self.one("SELECT @@global.gtid_executed")[0].split())


class Session:
    """One in which each statement is committed."""

    def __init__(self, server: Any, **options: Any) -> None:
        self.connection: Any = server.connect(autocommit=True, **options)
        self.cursor = self.connection.cursor()

    def run(self, *statements: str, values: Sequence[Any] | None = None) -> list[Any]:
        """Gives the rows of the last one."""
        for statement in statements:
            self.cursor.execute(statement, values)
        return list(self.cursor.fetchall())


@contextlib.contextmanager
def mysql_server(directory: Path, *, folding: bool = False) -> Iterator[MySqlServer]:
    """With a binlog; or `folding`, without one: it compares names of tables without case, as Windows and many a cloud
    do."""
    program, environment = mysqld()
    names = f"--lower-case-table-names={int(folding)}"
    places = [f"--basedir={program.parents[1]}", f"--datadir={directory / 'data'}", names]
    command = [str(program), *_BOTH, *places]
    run_tool([*command, "--initialize-insecure", "--innodb-log-file-size=8M"], environment, 300, tries=1)
    port, socket = free_port(), directory / "socket"
    command += [*_RUNNING, *(("--skip-log-bin",) if folding else _BINLOG)]
    command += [f"--port={port}", f"--socket={socket}", f"--pid-file={directory / 'pid'}"]
    with running(command, port, directory / "log", {**os.environ, **environment}) as process:
        try:
            yield MySqlServer(socket, port)
        finally:
            process.kill()  # Else it waits for those who read its binlog.


def load_zone(cursor: Any, zone: str) -> None:
    """Make a time zone that changes at full hours known to a server, from 1970 on, if it is not yet."""
    info = zoneinfo.ZoneInfo(zone)
    if cursor.execute("SELECT * FROM mysql.time_zone_name WHERE name = %s", (zone,)):
        return

    def kind(moment: int) -> tuple[float, bool, str]:
        local = datetime.datetime.fromtimestamp(moment, info)
        return (local.utcoffset() or datetime.timedelta()).total_seconds(), bool(local.dst()), str(local.tzname())[:8]

    changes = {next(hours): each for each, hours in itertools.groupby(range(0, 2**31 - 1, 3600), kind)}
    types = list(dict.fromkeys(changes.values()))
    cursor.execute("INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
    number = cursor.lastrowid
    cursor.execute("INSERT INTO mysql.time_zone_name VALUES (%s, %s)", (zone, number))
    for table, rows in (
        ("time_zone_transition_type", [(place, *each) for place, each in enumerate(types)]),
        ("time_zone_transition", [(at, types.index(each)) for at, each in changes.items()]),
    ):
        cursor.executemany(
            f"INSERT INTO mysql.{table} VALUES (%s{', %s' * len(rows[0])})", [(number, *r) for r in rows]
        )


# --- What happens in a database, and what it shows ---

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
            for row in session.run(
                "SELECT column_name, column_type, data_type FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                values=(self.database, table),
            )
        ]
        cells = [
            f"{'NULL' if kind in BLOBS | GEOMETRIES | {'bit'} else quoted(name)}, HEX({quoted(name)})"
            for name, _, kind in columns
        ]
        rows = session.run(f"SELECT {', '.join(cells)} FROM {self.database}.`{table}`")
        found = [list(zip(row[::2], row[1::2], strict=True)) for row in rows]
        session.connection.close()
        return columns, [[{"text": text, "hex": digits} for text, digits in row] for row in found]

    def tables(self) -> set[str]:
        return {name for (name,) in self.run(f"SHOW TABLES FROM {self.database}")}

    def check(self, lake: TestLake, *, held: Collection[str] = (), left_out: Collection[str] = ()) -> None:
        """The lake's tables are those of the database but for some, and have what SELECT shows but for some columns."""
        tables = {table: found for (database, table), found in lake.tables().items() if database == self.database}
        assert set(tables) == self.tables() - set(held)
        wrong: dict[str, Any] = {}
        for name, table in tables.items():
            columns, rows = self.shown(name)
            told = differences(table, [(each[0], each[1]) for each in columns], rows, left_out=left_out)
            wrong |= {f"{name}.{column}": how for column, how in told.items()}
        assert not wrong, "\n".join(f"{what}: {how}" for what, how in wrong.items())


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
