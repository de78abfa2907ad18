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
    for zone in partitioned.ZONES:
        if "/" in zone:
            partitioned.load_zone(cursor, zone)
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
