"""Dumps of a real MySQL, as mydumper writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pymysql.converters

from cdc_lakehouse.changelog.schema import quoted
from tests.kit.dumps import DumpTable, mydumper
from tests.servers.canal import binlog_end, executed
from tests.servers.mysql import MySqlServer


@dataclass(frozen=True)
class _Stated(DumpTable):
    """A table with the server's own statement."""

    statement: str = ""

    @property
    def create(self) -> str:
        return self.statement


def dump(mysql: MySqlServer, databases: Sequence[str], root: Path) -> tuple[str, int]:
    """A dump of the tables of databases; gives its position."""
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
