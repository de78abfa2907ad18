"""What statements make of tables is what a real MySQL makes of them."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import pymysql
import pytest

from cdc_lakehouse.errors import CdcError
from tests import LONG
from tests.changelog.statements import in_odd_case
from tests.servers import partitioned
from tests.servers.ddl_oracle import Oracle
from tests.servers.ddl_sequences import Statements
from tests.servers.mysql import MySqlServer, mysql_server

pytestmark = pytest.mark.server

SEQUENCES = int(os.environ.get("CDC_DDL_SEQUENCES", 5000 if LONG else 40))
"""How many random sequences; more on demand."""
FIRST_SEED = int(os.environ.get("CDC_DDL_SEED", "0"))
PARTITIONED = int(os.environ.get("CDC_DDL_PARTITIONED", 1000 if LONG else 100))
"""How many partitioned tables."""
LENGTH = 15
SHOWN = 50


@pytest.fixture(scope="module")
def oracle(mysql: MySqlServer) -> Oracle:
    return Oracle(mysql)


@pytest.fixture(scope="module")
def folding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySqlServer]:
    with mysql_server(tmp_path_factory.mktemp("folding"), folding=True) as server:
        yield server


@pytest.mark.parametrize("half", range(2))
@pytest.mark.parametrize("has_rows", [False, True])
def test_random_sequences(folding: MySqlServer, half: int, has_rows: bool) -> None:
    """Names are typed in any letter case. With rows, a table is held where the server changes them as the log does not
    say, and nowhere else."""
    oracle = Oracle(folding, has_rows=has_rows, folding=True)
    taken: Counter[bool] = Counter()
    different: list[str] = []
    for seed in range(FIRST_SEED + half, FIRST_SEED + SEQUENCES, 2):
        oracle.begin()
        statements = Statements(random.Random(seed), generated=0.15 if has_rows else 0.06)
        try:
            for _ in range(LENGTH):
                taken[oracle.run(in_odd_case(statements.next(oracle.current), seed))] += 1
        except AssertionError as error:
            different.append(f"seed {seed}: {error}")
    shown = "\n\n".join(different[:SHOWN])
    assert not different, f"{len(different)} sequences are different:\n{shown}"
    # A generator whose statements are mostly refused tells little; rows refuse more of them.
    assert taken[True] > (0.3 if has_rows else 0.45) * taken.total()


@pytest.fixture(scope="module")
def zoned(mysql: MySqlServer) -> Any:
    connection = mysql.connect()
    connection.autocommit(True)
    cursor = connection.cursor()
    for number, zone in enumerate(partitioned.ZONES, start=1):
        if "/" in zone:
            partitioned.load_zone(cursor, number, zone)
    return cursor


@pytest.mark.parametrize("half", range(2))
def test_emptied_partition_removes_the_rows_that_the_server_removes(zoned: Any, half: int) -> None:
    counts: Counter[str] = Counter()
    different: list[str] = []
    for seed in range(FIRST_SEED + half, FIRST_SEED + PARTITIONED, 2):
        chance = random.Random(seed)
        table, zone = partitioned.random_definition(chance), chance.choice(partitioned.ZONES)
        name = in_odd_case(chance.choice(table.partitions), seed)
        for statement in ("DROP DATABASE IF EXISTS d", "CREATE DATABASE d", "USE d"):
            zoned.execute(statement)
        zoned.execute(f"SET NAMES utf8mb4, time_zone = '{'+00:00' if zone == 'UTC' else zone}'")
        try:
            zoned.execute(table.statement)
            before = _filled(zoned, table)
        except pymysql.MySQLError:  # It makes some tables that it cannot open.
            counts["refused"] += 1
            continue
        zoned.execute(f"ALTER TABLE t TRUNCATE PARTITION {name}")
        zoned.execute("SELECT CAST(id AS CHAR) FROM t")
        gone = {row["id"] for row in before} - {id for (id,) in zoned.fetchall()}
        try:
            found = partitioned.rows_of_partition(table.statement, name, before, zone)
        except duckdb.Error as error:
            different.append(f"seed {seed}: {table.statement}: {error}")
            continue
        except CdcError as error:
            counts["held"] += "collation" in str(error)
            different += [] if "collation" in str(error) else [f"seed {seed}: {table.statement}: {error}"]
            continue
        counts["compared"] += 1
        if found != gone:
            rows = {row["id"]: row for row in before}
            odd = [rows[id] for id in sorted(found ^ gone)]
            different.append(f"seed {seed}: {table.statement}: {name} in {zone}: {odd}, the server removed {gone}")
    shown = "\n\n".join(different[:SHOWN])
    assert not different, f"{len(different)} tables are different:\n{shown}"
    assert counts["compared"] > 0.5 * counts.total(), counts


def _filled(cursor: Any, table: partitioned.Definition) -> list[dict[str, str | None]]:
    """Insert the rows that have a partition; return all as a change log has them."""
    moment = table.columns.startswith("c TIMESTAMP")
    for number, row in enumerate(table.rows):
        values = ", ".join("FROM_UNIXTIME(%s)" if moment else "%s" for _ in row)
        with contextlib.suppress(pymysql.MySQLError):
            cursor.execute(f"INSERT INTO t VALUES ({number}, {values})", row)
    names = ["id", "c", *(["d"] if len(table.rows[0]) > 1 else [])]
    cursor.execute(f"SELECT {', '.join(f'CAST({name} AS CHAR CHARACTER SET utf8mb4)' for name in names)} FROM t")
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    if not moment:
        return rows
    # The text of a time that clocks show twice is not one moment.
    cursor.execute(
        "SELECT CAST(id AS CHAR) FROM t WHERE c IS NULL OR FROM_UNIXTIME(UNIX_TIMESTAMP(CAST(c AS CHAR))) = c"
    )
    certain = {id for (id,) in cursor.fetchall()}
    cursor.executemany("DELETE FROM t WHERE id = %s", [(row["id"],) for row in rows if row["id"] not in certain])
    return [row for row in rows if row["id"] in certain]


TABLE = "CREATE TABLE t (a INT, b VARCHAR(10) DEFAULT 'q', c TEXT, d INT DEFAULT 5)"
KEYED = "CREATE TABLE t (a INT, b INT, c INT, PRIMARY KEY (a, b), UNIQUE u (c), KEY k (b))"
OTHER = "CREATE TABLE u (z INT)"

# What the server takes: each story is run from an empty database.
TAKEN = {
    "first, after, several": [TABLE, "ALTER TABLE t ADD e INT FIRST, ADD f INT AFTER a, MODIFY d BIGINT AFTER e"],
    "after a column that moves": [TABLE, "ALTER TABLE t ADD e INT AFTER d, MODIFY d INT FIRST"],
    "moves in turn": [TABLE, "ALTER TABLE t MODIFY a INT AFTER d, MODIFY b CHAR(3) AFTER a, ADD e INT FIRST"],
    "names without case": [TABLE, "ALTER TABLE t DROP A, CHANGE B bB CHAR(2), ADD x INT AFTER Bb"],
    "change of case": [TABLE, "ALTER TABLE t RENAME COLUMN a TO A, CHANGE d D INT"],
    "names exchanged": [
        TABLE, "ALTER TABLE t RENAME COLUMN a TO d, RENAME COLUMN d TO a, CHANGE b c INT, CHANGE c b INT",
    ],
    "after a new name": [TABLE, "ALTER TABLE t CHANGE a e INT, ADD f INT AFTER e"],
    "drop and add": [TABLE, "ALTER TABLE t DROP a, ADD a BIGINT FIRST"],
    "add in parentheses": [TABLE, "ALTER TABLE t ADD (e INT, f INT UNIQUE, PRIMARY KEY (e), KEY (f))"],
    "key columns are NOT NULL": ["CREATE TABLE t (a INT, b INT, PRIMARY KEY (a, b))", "ALTER TABLE t MODIFY a BIGINT"],
    "a key loses a part": [KEYED, "ALTER TABLE t DROP a", "ALTER TABLE t DROP b", "ALTER TABLE t DROP c, ADD d INT"],
    "a key column added again": ["CREATE TABLE t (a INT PRIMARY KEY, b INT)", "ALTER TABLE t DROP a, ADD a INT"],
    "a key's name goes first": [
        "CREATE TABLE t (a INT PRIMARY KEY)", "ALTER TABLE t RENAME COLUMN a TO c, ADD a INT FIRST",
    ],
    "labels in a key that become text": [
        "CREATE TABLE t (a SET('x', 'y') NOT NULL, b INT NOT NULL, UNIQUE (a), UNIQUE (b)) CHARSET latin1",
        "ALTER TABLE t MODIFY a TEXT NOT NULL",
    ],
    "primary key": [
        TABLE, "ALTER TABLE t ADD PRIMARY KEY (a)", "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (d, b)",
        "ALTER TABLE t DROP INDEX `PRIMARY`", "ALTER TABLE t MODIFY a INT PRIMARY KEY",
    ],
    "a unique key for the primary": [
        "CREATE TABLE t (a INT NOT NULL UNIQUE, b INT NOT NULL, c VARCHAR(9) NOT NULL, UNIQUE (c(3)), UNIQUE (b))",
        "ALTER TABLE t MODIFY a INT", "ALTER TABLE t DROP KEY b", "ALTER TABLE t MODIFY c VARCHAR(2) NOT NULL",
        "ALTER TABLE t ADD PRIMARY KEY (c)",
    ],
    "the first unique key": [
        "CREATE TABLE t (z INT NOT NULL, x INT NOT NULL, y INT NOT NULL, UNIQUE (x, y), UNIQUE (z))",
        "ALTER TABLE t RENAME INDEX x TO w", "DROP INDEX w ON t", "CREATE UNIQUE INDEX x ON t (x)",
    ],
    "virtual columns stand for no key": [
        "CREATE TABLE t (a INT AS (1) VIRTUAL NOT NULL UNIQUE, b INT NOT NULL UNIQUE)",
    ],
    "defaults": [
        TABLE, "ALTER TABLE t ALTER a SET DEFAULT 1.7, ALTER b SET DEFAULT NULL", "ALTER TABLE t ALTER d DROP DEFAULT",
        "ALTER TABLE t ADD e DECIMAL(9,2) DEFAULT 3 NOT NULL, ADD f DATE DEFAULT '20-1-2', ADD g BIT(4) DEFAULT 5",
    ],
    "serial": ["CREATE TABLE t (id SERIAL, a INT)", OTHER, "ALTER TABLE u ADD id SERIAL FIRST",
               "CREATE TABLE v (a SMALLINT SERIAL DEFAULT VALUE)"],
    "auto_increment": [
        "CREATE TABLE t (a INT NULL AUTO_INCREMENT, KEY (a))", "ALTER TABLE t ALTER a SET DEFAULT 3",
        "ALTER TABLE t MODIFY a INT",
    ],
    "float": ["CREATE TABLE t (a FLOAT(24), b FLOAT(25), c FLOAT(7,3), d FLOAT(0), e DOUBLE(5,1), f REAL(4,2))"],
    "numbers": [
        "CREATE TABLE t (a INTEGER, b BOOL, c NUMERIC, d DEC(5), e FIXED(5,1), f REAL, g DOUBLE PRECISION, h INT1,"
        " i INT2, j INT3, k INT4, l INT8, m MIDDLEINT, n BOOLEAN, o FLOAT4, p FLOAT8, q INT(0), r INT(3),"
        " s DECIMAL(0), t BIT,"
        " u YEAR, v TINYINT(1), w INT SIGNED, x DEC UNSIGNED)",
    ],
    "zerofill": ["CREATE TABLE t (a INT ZEROFILL DEFAULT 7, b TINYINT(1) ZEROFILL, c DECIMAL(6,2) ZEROFILL DEFAULT 1,"
                 " d FLOAT ZEROFILL, e BIGINT ZEROFILL)"],
    "texts": [
        "CREATE TABLE t (a NATIONAL CHAR(3), b NCHAR, c NVARCHAR(4), d LONG, e LONG VARCHAR, f LONG VARBINARY,"
        " g CHARACTER VARYING(9), h CHAR BYTE, i NATIONAL VARCHAR(3), j CHAR VARYING(4), k NCHAR VARYING(5), l CHAR)",
    ],
    "binary": [
        "CREATE TABLE t (a CHAR(3) CHARACTER SET binary, b VARCHAR(5) CHARSET binary, c TEXT CHARACTER SET binary,"
        " d TINYTEXT BYTE, e ENUM('a') CHARSET binary, f CHAR(3) BINARY)",
        "CREATE TABLE u (a CHAR(3), b LONGTEXT, c TEXT CHARSET utf8) CHARSET binary",
    ],
    "sizes": [
        "CREATE TABLE t (a TEXT(0), b TEXT(63), c TEXT(64), d TEXT(16383), e TEXT(16384), f BLOB(255), g BLOB(256),"
        " h BLOB(65536), i TEXT(255) CHARSET latin1, j TEXT(256) CHARSET latin1, k BLOB(20000000))",
    ],
    "convert": [
        "CREATE TABLE t (a TEXT, b TINYTEXT, c CHAR(3) DEFAULT 'a', d VARCHAR(4) DEFAULT 'é', e JSON, f SET('x', 'y')"
        " DEFAULT 'x') CHARSET latin1",
        "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4, ADD z TEXT(100) CHARACTER SET latin1",
        "ALTER TABLE t CONVERT TO CHARACTER SET binary", "ALTER TABLE t CONVERT TO CHARACTER SET utf8",
    ],
    "default character set": [
        TABLE, "ALTER TABLE t DEFAULT CHARACTER SET latin1, ADD z TEXT(200), MODIFY c TEXT(200)",
        "ALTER TABLE t CHARSET binary, ADD y CHAR(3)",
    ],
    "collations tell case": ["CREATE TABLE t (a ENUM('a', 'A') DEFAULT 'A') COLLATE utf8mb4_bin"],
    "generated columns": [
        "CREATE TABLE t (a INT, b INT AS (a + 1), c INT GENERATED ALWAYS AS (a * 2) STORED NOT NULL,"
        " d INT AS (b) UNIQUE)",
        "ALTER TABLE t CHANGE a a BIGINT", "ALTER TABLE t MODIFY c INT", "ALTER TABLE t ALTER b SET DEFAULT 3",
        "ALTER TABLE t RENAME COLUMN d TO e, ADD f INT AS (e)",
    ],
    "like": [KEYED, "CREATE TABLE v LIKE t", "ALTER TABLE v DROP KEY u", "CREATE TABLE IF NOT EXISTS v LIKE t"],
    "as select": ["CREATE TABLE t (a INT, b BIGINT, c CHAR(3)) AS SELECT 1 AS c, 2 AS a FROM DUAL WHERE 1 = 0"],
    "rename": [TABLE, OTHER, "RENAME TABLE t TO v", "RENAME TABLE v TO s, u TO v, s TO u", "ALTER TABLE u RENAME TO w",
               "ALTER TABLE w RENAME AS w", "ALTER TABLE w RENAME x, DROP a", "ALTER TABLE x RENAME d.x"],
    "drop and truncate": [TABLE, OTHER, "TRUNCATE t", "DROP TABLE IF EXISTS t, nope", "DROP TABLE u"],
    "times": [
        "CREATE TABLE t (a TIMESTAMP, b TIMESTAMP NOT NULL, c TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE"
        " CURRENT_TIMESTAMP(3), d DATETIME(6) DEFAULT NOW(6), e TIME(2), f DATETIME DEFAULT LOCALTIME, g YEAR(4))",
    ],
    "indexes": [TABLE, "ALTER TABLE t ADD KEY (a), ADD KEY (a), ADD KEY k (b(3))", "ALTER TABLE t DROP KEY a_2",
                "ALTER TABLE t DROP KEY a, ADD KEY a (d), RENAME KEY k TO K2", "DROP INDEX k2 ON t"],
    "if not exists": [TABLE, "CREATE TABLE IF NOT EXISTS t (z INT)", "CREATE DATABASE IF NOT EXISTS d"],
    "labels": [r"CREATE TABLE t (a ENUM('it''s', 'b\\c', 'd\ne', 'f ') DEFAULT 'F', b SET('x', 'Y') DEFAULT 'y,X')"],
}  # fmt: skip


@pytest.mark.parametrize("story", TAKEN)
def test_what_the_server_takes(oracle: Oracle, story: str) -> None:
    oracle.begin()
    for statement in TAKEN[story]:
        assert oracle.run(statement), statement


TYPES = (
    "INT", "TINYINT UNSIGNED", "BIGINT", "INT(5) ZEROFILL", "DECIMAL(10,3)", "DECIMAL(4,4) UNSIGNED", "FLOAT", "DOUBLE",
    "FLOAT(7,3)", "DOUBLE(9,2)", "BIT(9)", "BIT(64)", "YEAR", "CHAR(3)", "VARCHAR(9)", "BINARY(4)", "VARBINARY(4)",
    "ENUM('a','b','1','2')", "SET('x','y','z')", "DATE", "TIME(2)", "DATETIME(3)", "TIMESTAMP", "TEXT", "JSON", "POINT",
    "VARCHAR(9) CHARACTER SET latin1", "CHAR(0)",
)  # fmt: skip
DEFAULTS = (
    "NULL", "0", "1", "-1", "'7'", "' 7'", "'7 '", "1.7", "'1.7'", "2.5", "-0", "-0.4", "'abc'", "''", "' a '", "'B'",
    "'x,z'", "'z,x,z'", "TRUE", "1e2", "1e-7", "0.1", "'1e2'", "123456789", "123456789.123", "18446744073709551615",
    "2147483648", "300", "0x41", "x'4142'", "0x0", "b'101'", "b'1010101010'", "'2020-1-2'", "20200102",
    "'2020-01-02 3:4:5.6789'", "'2020-01-02 23:59:59.999999'", "20200102030405", "'0000-00-00'", "'2020-02-30'",
    "'838:59:59'", "101112", "'1970-01-01 00:00:00'", "'2038-01-19 03:14:08'", "20", "'70'", "1901", "2156",
    "CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP(3)", "LOCALTIME", "_latin1'abc'", "N'abc'", "'é'", "'表'", r"'a\nb'",
    "'abc       '", "1.23456789", "00012", "+5", ".5", "5.", "1e15", "123456789012345678", "16777217", "x''", "'1'",
)  # fmt: skip


def spoils(kind: str, default: str) -> bool:
    """MySQL 8.0.12 makes the table although it refuses a time as the default of a DECIMAL."""
    return kind.startswith("DECIMAL") and default.startswith("'") and any(sign in default for sign in "-:")


@pytest.mark.parametrize("kind", TYPES)
def test_defaults(oracle: Oracle, kind: str) -> None:
    oracle.begin()
    for default in DEFAULTS:
        if not spoils(kind, default) and oracle.run(f"CREATE TABLE t (c {kind} DEFAULT {default})"):
            oracle.run("DROP TABLE t")
