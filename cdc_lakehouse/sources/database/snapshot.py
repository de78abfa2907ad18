"""Reading of the source database for an initial load: the position of its log, its tables, and their rows.

MySQL is read without a lock. Rows of a table are read at different times between two positions, the low and the high
one: the log after the low position has the changes made in between, and corrects the rows. TiDB is read at one TSO.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Mapping
from typing import Final

from cdc_lakehouse.changelog.positions import is_commit_ts
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from cdc_lakehouse.sources.database.client import Row, SourceDatabase, TableChangedError
from cdc_lakehouse.sources.database.reading import Bound, KeyRange, TableDefinition
from cdc_lakehouse.sources.dump.contents import DumpPosition

_TABLES: Final = (
    "SELECT table_schema, table_name, create_time, table_rows FROM information_schema.tables "
    "WHERE table_type = 'BASE TABLE' AND "
    "LOWER(table_schema) NOT IN ('information_schema', 'performance_schema', 'mysql', 'sys', 'metrics_schema')"
)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
_OF_BINARY_LOG: Final = (8, 2)
"""Since this version, SHOW BINARY LOG STATUS replaces SHOW MASTER STATUS."""
_COMMIT_SECONDS: Final = 2
"""A commit is in the binlog some time before it is visible; this is the wait where the server does not list such
commits."""
_MOST_SECONDS: Final = 600
_PAUSE_SECONDS: Final = 0.02
_BATCH_ROWS: Final = 10_000
_BATCH_CHARACTERS: Final = 4 << 20
_MOST_GAPS: Final = 10
"""The maximum ratio of numbers to rows for a key that is split by arithmetic."""


def position_of(database: SourceDatabase) -> DumpPosition:
    """Return the current end of the log, or the current TSO. Raises `SourceError` where the server does not give it."""
    if database.is_tidb:
        database.run(["BEGIN"])
        ((found,),) = database.all("SELECT @@tidb_current_ts")
        database.run(["ROLLBACK"])
        tso = int(found)
        if not is_commit_ts(tso):
            raise SourceError(
                f"the database says the TSO {tso}, which is none", advice="see whether PD of TiDB is sound"
            )
        return DumpPosition(tso=tso)
    found = database.all(
        "SHOW BINARY LOG STATUS" if _is_new(database) else "SHOW MASTER STATUS",
        advice="grant the user REPLICATION CLIENT, which lets it see where the binlog ends",
    )
    if not found:
        raise SourceError(
            "the database writes no binlog", advice="read the server whose binlog Canal reads, with log_bin on"
        )
    file, offset = found[0][:2]
    return DumpPosition(log_file=str(file), log_offset=int(offset), server_id=_server_id(database))


def _server_id(database: SourceDatabase) -> int | None:
    """Return the server's id; None for a replica, whose binlog has what others wrote, and where the user may not read
    it."""
    try:
        is_replica = database.all("SHOW REPLICA STATUS" if _is_new(database) else "SHOW SLAVE STATUS")
    except SourceError:
        return None
    found = None if is_replica else database.variable("server_id")
    return None if found is None else int(found)


def _is_new(database: SourceDatabase) -> bool:
    match = _VERSION.match(database.version)
    return (
        match is not None
        and "mariadb" not in database.version.lower()
        and (int(match[1]), int(match[2])) >= _OF_BINARY_LOG
    )


def wait_for_commits(database: SourceDatabase) -> None:
    """Wait until everything that was in the binlog before is visible: MySQL writes a transaction there before it
    commits it, and with semi-synchronous replication a replica responds in between.

    Raises `SourceError` where the server does not list the transactions that it waits for, and `SourceUnreachableError`
    where one does not end.
    """
    if database.variable("gtid_mode") == "ON":
        waiting, end = _committing(database), time.monotonic() + _MOST_SECONDS
        while waiting := waiting & _committing(database):
            if time.monotonic() > end:
                raise SourceUnreachableError(
                    f"a transaction has been committing for {_MOST_SECONDS} seconds",
                    advice="see what holds it up (SHOW PROCESSLIST), then run again",
                )
            time.sleep(_PAUSE_SECONDS)
        return
    if "ON" in (database.variable(f"rpl_semi_sync_{name}_enabled") for name in ("master", "source")):
        raise SourceError(
            "the database waits for its replicas before what is in its binlog can be seen (semi-synchronous "
            "replication), and does not say for how long",
            advice="set gtid_mode to ON there, or load a dump",
        )
    time.sleep(_COMMIT_SECONDS)


def _committing(database: SourceDatabase) -> set[str]:
    """Return the transactions that are committing, each with its thread."""
    owned = database.variable("gtid_owned") or ""
    return {each for each in re.split(r"[,:\s]+", owned) if "#" in each}


def definitions_of(database: SourceDatabase, takes: Callable[[TableName], bool]) -> Mapping[TableName, TableDefinition]:
    """Return the current definitions of the tables that `takes` selects."""
    found: dict[TableName, TableDefinition] = {}
    for schema, table, created, rows in database.all(_TABLES):
        name = TableName(str(schema), str(table))
        if takes(name):
            try:
                ((_, statement, *_),) = database.all(f"SHOW CREATE TABLE {name.quoted}")
            except TableChangedError:
                continue  # Dropped meanwhile.
            found[name] = TableDefinition.of(name, str(statement), str(created), int(rows or 0))
    return found


def ranges_of(database: SourceDatabase, table: TableDefinition, rows: int) -> list[KeyRange]:
    """Return ranges of about `rows` rows, which together cover the table, whatever it contains by then. They do not
    depend on the server's statistics for a table that has just been filled."""
    if not table.key:
        return [KeyRange()]
    bounds = _steps(database, table, rows)
    if bounds is None:
        bounds = list(_walk(database, table, rows))
    return [KeyRange(lower, upper) for lower, upper in zip([None, *bounds], [*bounds, None], strict=True)]


def _steps(database: SourceDatabase, table: TableDefinition, rows: int) -> list[Bound] | None:
    """Return bounds without reading the keys, where the key's numbers have few gaps; None where they have many."""
    if not table.is_numbered:
        return None
    ((least, greatest),) = database.all(table.least_and_greatest()[0])
    if least is None or greatest is None:
        return []
    numbers = int(greatest) - int(least) + 1
    if numbers <= rows:
        return []
    if numbers > _MOST_GAPS * table.estimated_rows:
        return None
    step = max(1, numbers * rows // table.estimated_rows)
    return [(str(bound),) for bound in range(int(least) + step - 1, int(greatest), step)]


def _walk(database: SourceDatabase, table: TableDefinition, rows: int) -> Generator[Bound]:
    last: Bound | None = None
    while found := database.all(*table.bound(last, rows)):
        last = tuple(str(value) for value in found[0])
        yield last


def rows_of(database: SourceDatabase, table: TableDefinition, of: KeyRange) -> Generator[list[Row]]:
    """Yield the rows of a range in batches: texts, and None for NULL. Raises `TableChangedError` where the table has
    changed meanwhile."""
    batch: list[Row] = []
    size = 0
    for row in database.stream(*table.rows(of)):
        batch.append(row)
        size += sum(len(value) for value in row if value is not None)
        if size >= _BATCH_CHARACTERS or len(batch) >= _BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
