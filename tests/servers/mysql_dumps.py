"""Dumps of a real MySQL: by mydumper where it is installed, else as it would write them; and as MySQL Shell would."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pymysql.converters

from cdc_lakehouse.changelog.schema import quoted
from tests.kit.dumps import DumpTable, Row, mydumper, mysqlshell
from tests.servers.canal import binlog_end, executed
from tests.servers.mysql import MySqlServer


def dump(mysql: MySqlServer, databases: Sequence[str], root: Path) -> tuple[str, int]:
    """A dump of the tables of databases; gives its position."""
    program = shutil.which("mydumper")
    return _by_hand(mysql, databases, root) if program is None else _by_mydumper(program, mysql, databases, root)


def dump_as_shell(mysql: MySqlServer, databases: Sequence[str], root: Path) -> tuple[str, int]:
    """As MySQL Shell would dump tables whose columns are numbers and texts. Otherwise as `dump`."""
    position, gtid, tables = _read(mysql, databases)

    def as_texts(row: Row) -> Row:
        return [value.decode() if isinstance(value, bytes) else value for value in row]

    texts = [dataclasses.replace(table, rows=[as_texts(row) for row in table.rows]) for table in tables]
    start = {"binlogFile": position[0], "binlogPosition": position[1], "gtidExecuted": gtid}
    mysqlshell(root, texts, rows_per_file=50, start=start)
    return position


def _by_mydumper(program: str, mysql: MySqlServer, databases: Sequence[str], root: Path) -> tuple[str, int]:
    with mysql.connect() as connection, connection.cursor() as cursor:
        # With statistics that are kept, as MySQL 8 does, mydumper 0.10 waits for itself.
        cursor.execute("SET GLOBAL information_schema_stats_expiry = 0")
    chosen = f"^({'|'.join(databases)})\\."
    command = [program, "--socket", str(mysql.socket), "--user", "root", "--regex", chosen, "--outputdir", str(root)]
    for timeout in (10, 20, 40, 80):
        try:
            subprocess.run(command, capture_output=True, check=True, timeout=timeout)
            break
        except subprocess.TimeoutExpired:
            # At its end mydumper 0.10 frees a queue that a thread of its own may still wait for.
            shutil.rmtree(root, ignore_errors=True)
    else:
        raise AssertionError("mydumper did not end in four tries")
    lines = [line.strip() for line in (root / "metadata").read_text().splitlines()]
    said = {key: value for key, _, value in (line.partition(": ") for line in lines)}
    return said["Log"], int(said["Pos"])


@dataclass(frozen=True)
class _Stated(DumpTable):
    """A table with the server's own statement."""

    statement: str = ""

    @property
    def create(self) -> str:
        return self.statement


def _by_hand(mysql: MySqlServer, databases: Sequence[str], root: Path) -> tuple[str, int]:
    position, gtid, tables = _read(mysql, databases)
    status = f"\tLog: {position[0]}\n\tPos: {position[1]}\n\tGTID:{gtid}\n"
    began, ended = "Started dump at: 2026-06-10 01:02:03", "Finished dump at: 2026-06-10 01:02:09"
    mydumper(root, tables, text_metadata=f"{began}\nSHOW MASTER STATUS:\n{status}\n{ended}\n")
    return position


def _read(mysql: MySqlServer, databases: Sequence[str]) -> tuple[tuple[str, int], str, list[DumpTable]]:
    """A position, the executed GTIDs and the tables there; bytes of all values as the server has them: `SET NAMES
    binary`."""
    tables: list[DumpTable] = []
    lock, session = mysql.connect(), mysql.connect(conv=pymysql.converters.encoders, use_unicode=False)
    with lock, lock.cursor() as locking, session, session.cursor() as cursor:
        locking.execute("FLUSH TABLES WITH READ LOCK")
        cursor.execute("SET NAMES binary")
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        position, gtid = binlog_end(mysql), executed(mysql)
        locking.execute("UNLOCK TABLES")
        for database in databases:
            cursor.execute(f"SHOW TABLES FROM {database}")
            for name in [row[0].decode() for row in cursor.fetchall()]:
                cursor.execute(f"SHOW CREATE TABLE {database}.{quoted(name)}")
                statement = cursor.fetchall()[0][1].decode()
                cursor.execute(f"SHOW COLUMNS FROM {database}.{quoted(name)}")
                shown = [(row[0].decode(), row[5].decode()) for row in cursor.fetchall()]
                columns = {column: "x AS (x)" if "GENERATED" in extra else "x" for column, extra in shown}
                own = [column for column, kind in columns.items() if kind == "x"]
                cursor.execute(f"SELECT {', '.join(map(quoted, own))} FROM {database}.{quoted(name)}")
                tables.append(_Stated(database, name, columns, cursor.fetchall(), statement=statement))
    return position, gtid, tables
