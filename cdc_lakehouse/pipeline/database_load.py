"""Read the source database into a dump in the lake, from which its rows are loaded like those of any other dump.

Spark's tasks read ranges of keys, each with its own connection. A range that was read is not read again, whenever a run
ends. No lock is needed: each table has the log position before its first range, the dump the position after the last
(see `sources.database`). The rows of a table whose definition changed in between are read again, from a later
position. When a table cannot be read, the others still are, and the reason is recorded."""

from __future__ import annotations

import functools
import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import DatabaseConnection, InitialLoad
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.tasks import run_tasks
from cdc_lakehouse.errors import CdcError, SourceError, in_one_line
from cdc_lakehouse.pipeline.progress import reading_of
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources import database as source
from cdc_lakehouse.sources.database import KeyRange, SourceDatabase, TableChangedError, TableDefinition
from cdc_lakehouse.sources.dump import database as dumped
from cdc_lakehouse.sources.dump.contents import Dump, DumpPosition
from cdc_lakehouse.sources.dump.database import End, Plan, PlannedTable
from cdc_lakehouse.sources.dump.reading import SMALL_FILE_LIMIT
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject

_MOST_ROUNDS: Final = 20
"""The most rounds in which tables are read again because their definitions changed."""
_PART_BYTES: Final = 256 << 20
"""The size of rows in a file before compression: the least that a task of the load reads."""
_REPORTED_SECONDS: Final = 10.0
_ALL: Final = "*"


_RangeRead = tuple[TableDefinition, str, int, KeyRange]
"""A range to read: its table, the directory to read it into, its number there, and its keys."""


class DatabaseDump:
    """The dump that a feed begins with, or that tables are loaded from again; it is made when it does not exist.
    `store` is that of `location_of`; `takes` says which tables are read."""

    def __init__(
        self, run: FeedRun, initial: InitialLoad, store: ObjectStore, takes: Callable[[TableName], bool]
    ) -> None:
        assert initial.database is not None
        self._run, self._store, self._takes = run, store, takes
        self._initial, self._database = initial, initial.database
        # The name of the file that this run writes for a table that it could not read: the next run tries again.
        self._failed = f"failed_{secrets.token_hex(4)}"

    def read(self) -> Dump:
        """Return the dump, and make it if necessary. Raises as `SourceDatabase` does."""
        run, wanted = self._run, sorted(self._run.reload_tables) or [_ALL]
        number, numbers = 1, dumped.last_number(self._store)
        if not run.reload_tables:
            # The finished dump, or the one to make or continue.
            ended = (n for n in range(numbers, 0, -1) if dumped.has_document(self._store, n, dumped.DUMP))
            number = next(ended, max(1, numbers))
        elif numbers:
            planned = dumped.read_document(self._store, numbers, Plan).wanted
            landed = pc.match_substring(run.segments.rows.column("segment"), f"/{dumped.directory_of(numbers)}")
            number = numbers if planned == wanted and not pc.any(landed).as_py() else numbers + 1
        if dumped.has_document(self._store, number, dumped.DUMP):
            return dumped.read_database_dump(self._store, number)
        plan = Plan(wanted)
        if dumped.has_document(self._store, number, dumped.PLAN):
            plan = dumped.read_document(self._store, number, Plan)
        for _ in range(_MOST_ROUNDS):
            run.require_lease()
            with SourceDatabase(self._database, texts=True) as database:
                self._plan_tables(database, plan, number)
            self._read_ranges(plan, number)
            with SourceDatabase(self._database, texts=True) as database:
                until = self._end(database, plan)
            # A table that was briefly missing can be unchanged.
            if until is None or self._left(plan, number):
                continue
            end, rows, objects = End(until, []), 0, dumped.list_dump(self._store, number)
            for name, table in plan.tables.items():
                directory = dumped.directory_of(number, table.directory)
                found = objects.get(directory, ())
                if (reason := self._failure(directory, found)) is not None:
                    run.log.warning("%s could not be read: %s", table.definition.name, reason)
                    end.failed[name] = reason
                    continue
                ranges = dumped.read_ranges(found).values()
                end.done += (each.mark.path for each in ranges)
                rows += sum(each.rows for each in ranges)
            # Tables that were dropped meanwhile are no longer in it.
            self._write(dumped.directory_of(number, dumped.PLAN), plan)
            self._write(dumped.directory_of(number, dumped.DUMP), end)
            run.log.info("read %d rows of %d tables of the database", rows, len(plan.tables))
            return dumped.read_database_dump(self._store, number)
        advice = "leave out tables that are made and dropped all the time (tables.exclude), or load a dump"
        raise SourceError("tables have changed in each round of reading them", feed=run.feed.name, advice=advice)

    # --- What is read ---

    def _plan_tables(self, database: SourceDatabase, plan: Plan, number: int) -> None:
        """Plan the tables that are not planned yet and did not change while their position was taken."""
        if plan.position is not None and plan.position.tso is not None:
            return  # All tables are planned at once.
        before = self._definitions(database, plan)
        missing = [name for name in plan.wanted if name != _ALL and name not in map(str, before)]
        if missing and not plan.tables:
            message = f"{missing[0]} cannot be loaded: the database has no such table, or none that the user may see, "
            advice = "correct its name, grant the user SELECT on it, or let tables.include name it"
            raise SourceError(f"{message}or the feed does not take it", feed=self._run.feed.name, advice=advice)
        run, asked = self._run, self._initial.snapshot_ts
        if asked is not None and not database.is_tidb:
            raise SourceError("the database is not a TiDB", advice="leave out source.initial.snapshot_ts")
        position = source.position_of(database) if asked is None else DumpPosition(tso=asked)
        # Before anything is read: the feed's log can be another one, or begin after the position.
        run.source.join_point(position)
        if position.tso is not None:
            run.require_no_gap(position.tso)
            with database.as_of(position.tso):
                self._add(database, plan, position, self._definitions(database, plan).values())
        else:
            source.wait_for_commits(database)
            after = self._definitions(database, plan)
            unread = [name for name in after if name.identity not in plan.tables]
            same = (after[name] for name in unread if before.get(name) == after[name])
            self._add(database, plan, position, same)
        plan.position = plan.position or position
        self._write(dumped.directory_of(number, dumped.PLAN), plan)

    def _definitions(self, database: SourceDatabase, plan: Plan) -> Mapping[TableName, TableDefinition]:
        def takes(name: TableName) -> bool:
            return (plan.wanted == [_ALL] or str(name) in plan.wanted) and self._takes(name)

        return source.definitions_of(database, takes)

    def _add(
        self, database: SourceDatabase, plan: Plan, position: DumpPosition, tables: Iterable[TableDefinition]
    ) -> None:
        for table in tables:
            plan.begun += 1
            try:
                ranges = source.ranges_of(database, table, self._initial.chunk_rows) if table.types else []
            except TableChangedError:
                continue
            except SourceError:
                ranges = [KeyRange()]  # Reading it reports the reason.
            plan.tables[table.name.identity] = PlannedTable(table, f"t{plan.begun:06d}/", position, tuple(ranges))

    def _end(self, database: SourceDatabase, plan: Plan) -> DumpPosition | None:
        """Return the position after everything that was read; None when changed or new tables must be read."""
        if plan.position is not None and plan.position.tso is not None:
            return plan.position
        until, now = source.position_of(database), self._definitions(database, plan)
        for name, table in list(plan.tables.items()):
            if now.get(table.definition.name) != table.definition:
                self._run.log.info("%s has changed while it was read", table.definition.name)
                del plan.tables[name]
        return None if {name.identity for name in now} - plan.tables.keys() else until

    def _failure(self, directory: str, objects: Iterable[StoredObject]) -> str | None:
        """Return why this run could not read a table, from the table's directory; None when it did not fail."""
        path = f"{directory}{self._failed}"
        failed = any(each.path == path for each in objects)
        return self._store.read(path, limit=SMALL_FILE_LIMIT).decode() if failed else None

    def _write(self, path: str, document: Plan | End) -> None:
        self._run.lake.write(f"{self._store.uri}/{path}", dumped.stored_document(document).encode())

    # --- Rows ---

    def _left(self, plan: Plan, number: int) -> list[_RangeRead]:
        """Return the ranges that have not been read."""
        objects = dumped.list_dump(self._store, number)
        left: list[_RangeRead] = []
        for table in plan.tables.values():
            directory = dumped.directory_of(number, table.directory)
            found = objects.get(directory, ())
            if self._failure(directory, found) is None:
                of, known = (table.definition, f"{self._store.uri}/{directory}"), dumped.read_ranges(found)
                left += ((*of, place, each) for place, each in enumerate(table.ranges) if place not in known)
        return left

    def _read_ranges(self, plan: Plan, number: int) -> None:
        run, left = self._run, self._left(plan, number)
        if not left:
            return
        run.log.info("reading %d ranges of %d tables of the database", len(left), len(plan.tables))
        tasks = min(self._initial.connections, len(left))
        shares = [left[place::tasks] for place in range(tasks)]
        tso = None if plan.position is None else plan.position.tso
        io = dict(run.lake.catalog.properties)
        read = functools.partial(_read_share, self._database, tso, io, self._store.uri, self._failed)
        over = threading.Event()

        def report() -> None:
            while not over.wait(_REPORTED_SECONDS):
                try:
                    run.log.info("%s", reading_of(run.lake, run.feed))
                except CdcError as error:
                    # The tasks get the error too, if it concerns them.
                    run.log.debug("how far the load is, is not known: %s", error)

        thread = threading.Thread(target=report, name="progress of the load", daemon=True)
        thread.start()
        try:
            run_tasks(run.spark, shares, read)
        finally:
            over.set()
            thread.join()


def _read_share(
    connection: DatabaseConnection, tso: int | None, io: Mapping[str, str], root: str, failed: str,
    share: Sequence[_RangeRead],
) -> tuple[()]:  # fmt: skip
    """Read the ranges of a task, one after the other, and skip those of a table that has changed."""
    files = load_file_io(dict(io), root)
    over: set[str] = set()
    left = list(share)
    while left:
        with SourceDatabase(connection, texts=True) as database:
            if tso is not None:
                database.read_at(tso)
            while left:
                table, directory, number, keys = left.pop(0)
                if directory in over:
                    continue
                try:
                    _read_range(database, files, table, directory, number, keys)
                except TableChangedError:
                    over.add(directory)
                except (SourceError, UnicodeDecodeError) as error:
                    over.add(directory)
                    with files.new_output(f"{directory}{failed}").create(overwrite=True) as file:
                        file.write((str(error) if isinstance(error, SourceError) else in_one_line(error)).encode())
                    break  # Rows of it may still be in transit in this session.
    return ()


def _read_range(
    database: SourceDatabase, files: FileIO, table: TableDefinition, directory: str, number: int, keys: KeyRange
) -> None:
    """Read a range into files as `sources.dump.database` has them, then write its mark. Raises `TableChangedError`."""
    token, count, parts = secrets.token_hex(8), 0, itertools.count()
    batches = source.rows_of(database, table, keys)
    batch = next(batches, None)
    while batch:
        path = f"{directory}{dumped.part_name(number, token, next(parts))}"
        with files.new_output(path).create(overwrite=True) as file, pa.CompressedOutputStream(file, "zstd") as stream:
            written = 0
            while batch and written < _PART_BYTES:
                values = [pa.array(column, pa.string()) for column in zip(*batch, strict=True)]
                texts = [pc.replace_substring(each, '"', '""') for each in values]
                cells = [pc.binary_join_element_wise('"', each, '"', "").fill_null(r"\N") for each in texts]
                lines = pc.binary_join_element_wise(pc.binary_join_element_wise(*cells, ","), "\n", "")
                size = pc.sum(pc.binary_length(lines)).as_py()
                stream.write(lines.buffers()[2].slice(0, size))
                written += size
                count += len(batch)
                batch = next(batches, None)
    with files.new_output(f"{directory}{dumped.done_name(number, token, count)}").create(overwrite=True) as file:
        file.write(b"done\n")
