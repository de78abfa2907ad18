"""A real TiDB in one process: its tables are read at a TSO, the log of a sink goes on, and `verify` compares them."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pymysql
import pytest
from click.testing import Result
from pymysql.converters import escape_string

from cdc_lakehouse.changelog.schema import quoted
from cdc_lakehouse.pipeline.steps import Steps
from tests.chaos.history import History
from tests.commands import call
from tests.kit.changefeed import Changefeed, statement
from tests.kit.lakes import TestLake, run_all
from tests.kit.log import Column, Ddl, Entry, RowChange, Tables, Values, apply
from tests.kit.processes import free_port, running
from tests.servers import tools
from tests.servers.mysql import Session, Writer, every_type

pytestmark = [
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.long,  # TiDB is built from its source, for ten minutes.
]

READER, DATABASE = "reader", "shop"
HISTORIES = int(os.environ.get("CDC_TIDB_HISTORIES", "40"))
KINDS = ["put"] * 8 + ["recover"] * 3 + ["truncate"] * 2 + [
    "delete", "move", "add", "drop column", "rename column", "retype", "rename table", "drop", "exchange",
]  # fmt: skip

LONG_AGO = "2020-01-01 00:00:00"


@dataclass(frozen=True)
class TidbServer:
    port: int

    def connect(self, **options: Any) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", charset="utf8mb4", **options)

    def keep_versions_since(self, moment: str = LONG_AGO) -> None:
        """Set TiKV's GC safe point (UTC), below which the server refuses to read. The embedded storage has none."""
        Session(self).run(
            "REPLACE INTO mysql.tidb (variable_name, variable_value, comment) VALUES ('tikv_gc_safe_point', "
            "CONCAT(DATE_FORMAT(%s, '%%Y%%m%%d-%%H:%%i:%%s'), ' +0000'), '')",
            values=(moment,),
        )

    def dump(self, database: str, directory: Path, *options: str) -> None:
        command = [
            tools.tidb("dumpling"), "--host", "127.0.0.1", "--port", str(self.port), "--user", "root",
            "--database", database, "--output", str(directory), *options,
        ]  # fmt: skip
        tools.run_tool(command, seconds=120, tries=1)


@pytest.fixture(scope="module")
def tidb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidbServer]:
    """With its embedded storage: one process, empty when it starts."""
    directory, port, status = tmp_path_factory.mktemp("tidb"), free_port(), free_port()
    command = [
        tools.tidb("tidb-server"), "-store", "unistore", "-path", str(directory / "data"),
        "-host", "127.0.0.1", "-P", str(port),
        "-status-host", "127.0.0.1", "-status", str(status), "-socket", str(directory / "socket"), "-L", "warn",
    ]  # fmt: skip
    with running(command, port, directory / "log", directory=directory):
        server = TidbServer(port)
        server.keep_versions_since()
        yield server


class TidbFeed:
    """A sink without files whose feed begins with database `d` of the server."""

    def __init__(self, server: TidbServer) -> None:
        self.writer = Writer(server, "d")
        self.writer.begin()
        self.writer.run(f"CREATE USER IF NOT EXISTS {READER}@'%'", f"GRANT SELECT ON *.* TO {READER}@'%'")
        self.url = f"mysql://{READER}@127.0.0.1:{server.port}"

    def begin(self, new_lake: Callable[..., TestLake], initial: dict[str, Any] | None = None) -> None:
        """With the database, where there is no other beginning."""
        initial = initial or {"type": "database", "url": self.url, "chunk_rows": 30}
        source = {"protocol": "canal-json", "initial": initial}
        self.lake = new_lake(source=source, tables={"include": ["d.*"]}, verify={"url": self.url})
        self.feed = Changefeed(self.lake.sink, database="d")

    def answer(self, variable: str) -> Any:
        ((found,),) = self.writer.run(f"SELECT @@{variable}")
        return json.loads(found)

    def now(self) -> int:
        """TiDB's clock, as a TSO."""
        self.writer.run("BEGIN")
        found = self.answer("tidb_current_ts")
        self.writer.run("ROLLBACK")
        return found

    def commit(self, statement: str) -> int:
        """Run a statement as a transaction; gives its commit-ts."""
        self.writer.run(statement)
        return self.answer("tidb_last_txn_info")["commit_ts"]

    def follow(self) -> None:
        """The sink goes on from here, as a changefeed that begins: with a schema file of the table `t` as it is."""
        columns = Column("id", "bigint"), Column("v", "int"), Column("s", "varchar(50)")
        self.feed.send(Ddl(self.now(), "t", "older", columns, ("id",)))

    def change(self, before: Values | None, after: Values | None) -> None:
        """Of a row of that table, which comes to the sink."""
        entry = RowChange(0, "t", before, after, style=2)
        self.feed.send(replace(entry, commit_ts=self.commit(_statement(entry, self.feed.tables))))

    def verify(self) -> Result:
        return call("verify", "--pause", "0", "--json", config=self.lake.config_path)

    def differences(self) -> dict[str, int]:
        """How many rows of which tables `verify` says to differ."""
        (found,) = json.loads(self.verify().stdout)["feeds"]
        return {each["table"]: len(each["differences"]) for each in found["tables"] if each["result"] != "equal"}

    def run(self) -> Steps:
        self.feed.checkpoint(self.now())
        return run_all(self.lake.run())

    def check(self, done: Steps) -> None:
        assert not done.applied.held, done.applied.held
        self.writer.check(self.lake, left_out=("vi",))


def _row(id: int, v: int, s: str) -> Values:
    return {"id": str(id), "v": str(v), "s": s}


@pytest.mark.parametrize(
    "options", ["--filetype sql", "--filetype csv --compress zstd", "--filetype csv --escape-backslash=false"]
)
def test_a_dump_of_dumpling(options: str, tidb: TidbServer, new_lake: Callable[..., TestLake], tmp_path: Path) -> None:
    feed = TidbFeed(tidb)
    every_type(feed.writer, spatial=False)
    # Dumpling leaves the values of generated columns out.
    feed.writer.run("ALTER TABLE types DROP COLUMN st, DROP COLUMN vi")
    feed.writer.run("CREATE TABLE t (id BIGINT PRIMARY KEY, v INT, s VARCHAR(50))", "INSERT INTO t VALUES (3, 1, 'a')")
    csv = {"csv": {"escape_backslash": False}} if "--escape-backslash=false" in options else {}
    feed.begin(new_lake, {"type": "dumpling", "uri": str(tmp_path / "dump"), **csv})
    feed.follow()
    tidb.dump("d", tmp_path / "dump", "--rows", "3", *options.split())
    feed.change(_row(3, 1, "a"), _row(3, 2, "a"))
    feed.check(feed.run())
    assert feed.differences() == {}


def test_the_log_goes_on_and_what_differs_is_found(tidb: TidbServer, new_lake: Callable[..., TestLake]) -> None:
    """From a database with each type on."""
    feed = TidbFeed(tidb)
    feed.begin(new_lake)
    every_type(feed.writer, spatial=False)
    feed.writer.run(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v INT, s VARCHAR(50))",
        "CREATE TABLE parts (a VARCHAR(9), b DATETIME(3), v INT, PRIMARY KEY (a, b) NONCLUSTERED) "
        "PARTITION BY KEY (a) PARTITIONS 3",
        *(f"INSERT INTO t VALUES ({n}, {n * 7 % 5}, 's{n}')" for n in range(200)),
        *(f"INSERT INTO parts VALUES ('{'aÀbB'[n % 4]}{n % 7}', '2024-01-0{n % 9 + 1} 00:00:00.{n:03d}', {n})"
          for n in range(90)),
    )  # fmt: skip
    feed.follow()
    done = feed.run()
    feed.check(done)
    assert done.loaded.commit_ts is not None
    feed.change(_row(3, 1, "s3"), _row(3, 77, "s3"))
    feed.change(_row(4, 3, "s4"), None)
    feed.change(None, _row(900, 1, "new"))
    feed.check(feed.run())
    # The database goes on: it is read as it was at the cut.
    feed.change(_row(3, 77, "s3"), _row(3, 78, "s3"))
    feed.commit("UPDATE t SET v = -1 WHERE id = 5")
    assert feed.differences() == {}
    feed.run()
    assert feed.differences() == {"t": 1}
    tidb.keep_versions_since("2100-01-01 00:00:00")
    try:
        done = feed.verify()
    finally:
        tidb.keep_versions_since()
    assert done.exit_code and "tidb_gc_life_time" in done.stdout


def test_random_history_on_tidb_equals_the_fold(tidb: TidbServer) -> None:
    """The oracle of the other tests, TiDB's RECOVER and FLASHBACK TABLE among its statements."""
    played: Counter[str] = Counter()
    with tidb.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for seed in range(HISTORIES):
            chance, tables = random.Random(seed), Tables()
            history = History(tables)
            cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
            cursor.execute(f"CREATE DATABASE {DATABASE}")
            cursor.execute(f"USE {DATABASE}")
            for kind in ["begin", *chance.choices(KINDS, k=40)]:
                numbers = (chance.randrange(12) for _ in range(3))
                entries = history.begin() if kind == "begin" else history.command(kind, *numbers)
                if not all(_run_on(cursor, entry, tables, played) for entry in entries):
                    break
            cursor.execute("SHOW TABLES")
            assert {name for (name,) in cursor.fetchall()} == set(tables)
            for name, table in tables.items():
                cursor.execute(f"SELECT {', '.join(quoted(each.name) for each in table.columns)} FROM {quoted(name)}")
                rows = [tuple(v.normalize() if isinstance(v, Decimal) else v for v in row) for row in cursor.fetchall()]
                expected = [row[:-1] for row in table.typed()[1]]
                assert sorted(rows, key=repr) == sorted(expected, key=repr), f"seed {seed}: {name}"
    assert played["recover"] > HISTORIES
    assert played["refused"] < HISTORIES / 2


def _run_on(cursor: Any, entry: Entry, tables: Tables, played: Counter[str]) -> bool:
    """Carry an entry out on the server and the oracle; False where the server refuses the statement."""
    try:
        cursor.execute(_statement(entry, tables))
    except pymysql.MySQLError:
        assert isinstance(entry, Ddl)
        played["refused"] += 1
        return False
    played[entry.kind if isinstance(entry, Ddl) else "row"] += 1
    apply(tables, entry)
    return True


def _statement(entry: Entry, tables: Tables) -> str:
    if isinstance(entry, Ddl):
        return statement(entry, tables, DATABASE)
    name, before, after = quoted(entry.table), entry.before, entry.after
    if before is None:
        return f"INSERT INTO {name} SET {', '.join(_equal(after or {}))}"
    where = " AND ".join(_equal({column: before[column] for column in tables[entry.table].key}))
    return (
        f"DELETE FROM {name} WHERE {where}"
        if after is None
        else f"UPDATE {name} SET {', '.join(_equal(after))} WHERE {where}"
    )


def _equal(values: Values) -> list[str]:
    texts = {name: "NULL" if text is None else f"'{escape_string(text)}'" for name, text in values.items()}
    return [f"{quoted(name)} = {text}" for name, text in texts.items()]
