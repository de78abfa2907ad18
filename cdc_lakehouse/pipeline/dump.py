"""A dump as a source: its files are read as rows of their tables at the dump's position, from which the log continues.

Rows are synthetic events of op `R` with the position's commit-ts, at which each table of the dump begins a new
incarnation: changes of the log at or below the position belong to its earlier incarnation and are ignored, in whatever
order they arrive.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final

from pyiceberg.types import ListType

from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.config import InitialLoad, StorageConfig
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.formats.dump import DumpContext, decode_rows
from cdc_lakehouse.decoders.problems import BAD_TABLE_OF_DUMP, Rejected
from cdc_lakehouse.decoders.tasks import spark_errors
from cdc_lakehouse.errors import CdcError, DdlError, DumpError, SourceError
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.current.update_tasks import COMPARED_EVENTS, TableUpdate, TypingTask, file_properties
from cdc_lakehouse.lake.tables.events import DecodedFiles, SegmentFile
from cdc_lakehouse.lake.tables.segments import DUMP, LANDED, Segment
from cdc_lakehouse.pipeline.feed_tables import TakenNames, feed_table, value_format
from cdc_lakehouse.pipeline.progress import ReadingProgress, location_of, reading_of
from cdc_lakehouse.pipeline.run import FeedRun, append_files
from cdc_lakehouse.pipeline.source import Landed, Source
from cdc_lakehouse.sources.dump.contents import Compression, Dump, DumpedTable, DumpFile
from cdc_lakehouse.sources.dump.directory import read_dump
from cdc_lakehouse.sources.dump.reading import open_pieces
from cdc_lakehouse.sources.object_store import SegmentRef, open_store

_MAX_FILES: Final = 2_000
_MAX_BYTES: Final = 16 << 30
"""The limits of a batch, and so of the work that a run which ends early has to repeat."""
_WAY_OUT: Final = (
    "restore the dump as it was when the load began, or name another one in source.initial.uri and load its tables "
    "from that (`cdc-lakehouse load`)"
)


@dataclass(frozen=True)
class PendingLoad:
    """The rest of an initial load: tables and files that are not in `events`, and the bytes of these; None when only
    the database could tell. `reading` is the progress of reading its tables, once that has begun. `waits` is a sentence
    on what the log must reach first."""

    tables: int | None
    files: int | None
    bytes: int | None
    waits: str | None
    reading: ReadingProgress | None = None


class DumpSource(Source):
    """The `Source` of a feed's initial dump."""

    kind = DUMP
    schema_faults = frozenset({BAD_TABLE_OF_DUMP})

    def __init__(self, run: FeedRun, initial: InitialLoad) -> None:
        self._run, self._initial, self._types_rows = run, initial, True
        self._join = functools.cache(lambda position: run.source.join_point(position))
        self._store = open_store(initial.uri or location_of(run.lake, run.feed.name), run.lake.storage)

    @functools.cached_property
    def _dump(self) -> Dump:
        try:
            if self._initial.database is None:
                dump = read_dump(self._store, self._initial)
            else:
                from cdc_lakehouse.pipeline.database_load import DatabaseDump  # noqa: PLC0415 - Few feeds have one.

                dump = DatabaseDump(self._run, self._initial, self._store, self._taken.takes_name).read()
        except SourceError as error:
            landed = sum(map(len, self._run.segments.undecoded(DUMP).values()))
            if not landed:
                raise
            feed, said = self._run.feed.name, f"the dump at {self._store.uri}, with {plural(landed, 'file')} to load"
            message = f"{said}, is unreadable: {error.message}"
            raise SourceError(message, feed=feed, segment=error.segment, advice=_WAY_OUT) from error
        if not (dump.tables or dump.unread):
            advice = "correct source.initial.uri, or dump with the tables that the feed takes"
            raise DumpError(f"the dump at {self._store.uri} has no table", feed=self._run.feed.name, advice=advice)
        return dump

    @property
    def _taken(self) -> TakenNames:
        """The names that are taken by the current history; evolving adds to it."""
        return TakenNames.of(self._run.feed.tables, self._run.history.history, self._run.last_cut.checkpoint_ts)

    @property
    def _is_needed(self) -> bool:
        """Whether the feed cannot continue without the dump: a table without any of its rows would begin empty, as it
        is not known which of the feed's it is by now."""
        loads = self._run.loaded
        return not loads or any(map(self._taken.takes_name, loads.keys() - self._landed().keys()))

    @property
    def has_rows_left(self) -> bool:
        """Whether a taken table has rows that are not in `events`. Does not read a dump that is loaded."""
        is_left = self._is_needed or bool(self._run.segments.undecoded(DUMP))
        return is_left or any(row.error_class in self.schema_faults for row in self._run.quarantine.open())

    @property
    def fault(self) -> str | None:
        """A sentence on why a feed that has begun continues without the rest of the dump, which cannot be read; None
        when it can, or when the feed cannot continue without it."""
        run = self._run
        return None if self._is_needed or run.last_cut.checkpoint_ts == BEGINNING or run.reload_tables else self._gone

    @functools.cached_property
    def _gone(self) -> str | None:
        try:
            _ = self._dump
        except SourceError as error:
            return error.advised
        return None

    def undefined(self) -> Sequence[Rejected]:
        """Return a quarantine row for each table that landed without its columns in the history."""
        recorded = {(TableName(each.database, each.table), each.commit_ts) for each in self._run.loads}
        message = f"the dump went before it told the table's columns: {_WAY_OUT}"
        taken = self._taken
        last = {name: max(each or 0 for each in positions) for name, positions in self._landed().items()}
        lost = [(name, at) for name, at in last.items() if (name, at) not in recorded and taken.takes_name(name)]
        return [_bad_table(name, _segment_name(at, ""), message) for name, at in lost]

    def pending(self) -> PendingLoad | None:
        """Return the rest of the load; None when nothing is left. Neither loads anything nor queries the database."""
        if not self.has_rows_left:
            return None
        if self._initial.database is not None and not self._run.loaded:
            return PendingLoad(None, None, None, None, reading_of(self._run.lake, self._run.feed))
        fault = self.fault
        wanted = self._wanted_tables() if fault is None else []
        left = [(s.database, s.table, s.size) for batch in self._run.segments.undecoded(DUMP).values() for s in batch]
        left += [(table.name.database, table.name.table, file.stored.size) for table in wanted for file in table.files]
        names = {each[:2] for each in left} | {(table.name.database, table.name.table) for table in wanted}
        return PendingLoad(len(names), len(left), sum(size for *_, size in left), fault or self.waits)

    def land(self) -> Landed:
        run = self._run
        run.require_no_gap(self.load_ts[0])
        tables, segments = self._wanted_tables(), list[Segment]()
        for table in tables:
            at, files = self._at(table), [astuple(each.stored) for each in table.files]
            # A table without rows has its schema file.
            for path, size, etag, modified in files or [(table.schema_path, 0, None, None)]:
                segments.append(Segment(
                    segment=_segment_name(at, path), kind=DUMP, database=table.name.database, table=table.name.table,
                    table_version=at, size=size, etag=etag, modified_at=modified, batch=0,
                    state=LANDED, landed_at=run.landed_at,
                ))  # fmt: skip
        known = run.segments.known(segment.segment for segment in segments)
        left = (segment for segment in segments if segment.segment not in known)
        if new := run.land_files(left, _MAX_FILES, _MAX_BYTES):
            run.log.info("landed %s of %s of the dump", plural(len(new), "file"), plural(len(tables), "table"))
        return Landed(new)

    def _wanted_tables(self) -> list[DumpedTable]:
        """Return the taken tables that are not loaded yet, and those to load again."""
        run, names = self._run, {str(table.name): table.name for table in self._dump.tables}
        taken_names = self._taken
        taken = {name for name, known in names.items() if taken_names.takes_name(known)}
        reloaded = set(run.reload_tables) if run.reload_tables != {"*"} else taken
        for name in sorted(reloaded - taken):
            why = "has no such table" if name not in names else "has it, and the feed does not take it"
            message = f"{name} cannot be loaded: the dump at {self._store.uri} {why}"
            raise SourceError(message, feed=run.feed.name, advice="write database.table, as the dump has it")
        loads, landed = run.loaded, self._landed()
        wanted: list[DumpedTable] = []
        for table in self._dump.tables:
            # A load that never came to its end may have been of another dump.
            is_landed = table.name in landed and (table.name in loads or self._at(table) in landed[table.name])
            if str(table.name) in reloaded or (str(table.name) in taken and not is_landed):
                wanted.append(table)
        return wanted

    def _landed(self) -> Mapping[TableName, set[int | None]]:
        """Return the positions at which tables have landed, decoded or not."""
        rows = self._run.segments.rows.filter(pc.field("kind") == DUMP)
        found: dict[TableName, set[int | None]] = {}
        for row in rows.group_by(["database", "table", "table_version"]).aggregate([]).to_pylist():
            found.setdefault(TableName(row["database"], row["table"]), set()).add(row["table_version"])
        return found

    def decode(self, segments: Sequence[Segment]) -> tuple[Sequence[Segment], Sequence[Rejected]]:
        faults = dict.fromkeys(self._missing(segments), self._gone or f"the dump has it no longer: {_WAY_OUT}")
        return append_files(
            self._run,
            segments,
            faults,
            lambda _: (self._decode, {}),
            lambda readable, error: {s.segment: error.advised for s in readable if s.segment == error.segment},
        )

    def _decode(self, segments: Sequence[Segment]) -> DecodedFiles:
        files = [self._file(segment) for segment in segments if segment.segment in self._files]
        if not files:
            return DecodedFiles()
        compressions: dict[str, Compression | None] = {
            file.stored.path: file.compression for _, file in self._files.values()
        }
        read = functools.partial(_read, self._store.uri, self._run.lake.storage, compressions)
        run, updates = self._run, self._typed_updates(files)
        work = functools.partial(run.events.decode, files, read, decode_rows)
        if not updates:
            return work()
        # The hashes of the keys of all rows that were typed wait in memory.
        room = COMPARED_EVENTS - sum(part.counts.rows for _, part in run.typed)
        try:
            decoded = work(functools.partial(TypingTask, updates, run.lake.catalog.properties, room))
        except spark_errors():
            # Rows can do without: what is made beside events must not be why these cannot be made.
            self._types_rows = False
            return work()
        by_number = {update.table_no: update for update in updates.values()}
        return replace(decoded, typed=[(by_number[part.table_no], part) for part in decoded.typed])

    def _typed_updates(self, files: Sequence[SegmentFile]) -> Mapping[tuple[str, str], TableUpdate]:
        """Return the new tables, by (database, table), whose rows can be typed when these files are decoded: all of
        their events are of the dump, and nothing unusual was found in them."""
        run, updates = self._run, dict[tuple[str, str], TableUpdate]()
        others, tables = run.segments.decoded_beside(DUMP), CurrentTables(run.lake, run.feed)
        if not self._types_rows or others is None or run.last_cut.checkpoint_ts != BEGINNING:
            return updates
        short = {update.location for update, part in run.typed if part.keys is None}
        for number, name in enumerate(dict.fromkeys((file.context.database, file.context.table) for file in files)):
            life = self._lives.get(name)
            if life is None or len(life.versions) != 1 or TableName(*name) in others:
                continue
            with contextlib.suppress(CdcError):  # A table at which something is wrong is held later.
                table, location = feed_table(run.feed, life), tables.location(life, life.last.name)
                # The catalog gives elements of lists other ids, and a key with several texts has to be folded.
                lists = any(isinstance(field.field_type, ListType) for field in table.schema.fields)
                several = any(part.value_format for part in table.key_parts)
                if table.key and not (several or lists or location in short):
                    properties = file_properties(tables.first_properties(life))
                    of_table = number, table, location, table.schema, properties
                    updates[name] = TableUpdate(*of_table, skips_rejected=False)
        return updates

    @functools.cached_property
    def _lives(self) -> Mapping[tuple[str, str], Incarnation]:
        """The tables that exist when the dump is loaded, by (database, table)."""
        history = History(self._run.history.history.versions)
        history.apply(self.schema_changes()[0])
        lives = history.incarnations().values()
        return {(life.last.name.database, life.last.name.table): life for life in lives if life.dropped_ts is None}

    def _file(self, segment: Segment) -> SegmentFile:
        table, file = self._files[segment.segment]
        at, target = self._at(table), value_format(self._run.feed, table.name)
        context = DumpContext(
            table.name.database, table.name.table, at, file.notation,
            {column.name: column.type for column in table.columns},
            labels=target.labels or target.labels_uncertain, binary=target.binary, zone=self._initial.time_zone,
            feed_zone=target.zone,
        )  # fmt: skip
        ref = SegmentRef(file.stored.path, file.stored.size, file.stored.etag)
        return SegmentFile(segment, ref, context)

    def _missing(self, segments: Sequence[Segment]) -> list[str]:
        """Return those that are no longer in the dump, without those of tables that it has loaded in their place."""
        tables = () if self._gone else self._dump.tables
        known = self._files.keys() | {_segment_name(self._at(table), table.schema_path) for table in tables}
        missing = [segment for segment in segments if segment.segment not in known]
        landed = self._landed() if missing else {}
        replaced = {table.name: self._at(table) for table in tables if self._at(table) in landed.get(table.name, ())}
        names = ((each, TableName(each.database or "", each.table or "")) for each in missing)
        return [each.segment for each, name in names if replaced.get(name) in (None, each.table_version)]

    @functools.cached_property
    def _files(self) -> Mapping[str, tuple[DumpedTable, DumpFile]]:
        return {
            _segment_name(self._at(table), file.stored.path): (table, file)
            for table in (() if self._gone else self._dump.tables)
            for file in table.files
        }

    def replay(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        if missing := self._missing(segments):
            message = f"the dump no longer has {plural(len(missing), 'file')} that it was loaded from"
            raise SourceError(message, feed=self._run.feed.name, segment=missing[0], advice=_WAY_OUT)
        return self._run.land_again(segments, _MAX_FILES, _MAX_BYTES)

    @property
    def load_ts(self) -> Sequence[int]:
        """The commit-ts of the rows of all tables, in order."""
        return sorted({self._at(table) for table in self._dump.tables} or {self.checkpoint_ts()})

    def _at(self, table: DumpedTable | None) -> int:
        """Return the commit-ts of a table's rows, or with None that of the whole dump."""
        of_dump = self._dump.until or self._dump.position
        commit_ts = self._join(of_dump if table is None else table.position or self._dump.position)
        assert isinstance(commit_ts, int), "it waits: nothing is done with it"
        return commit_ts

    def checkpoint_ts(self) -> int:
        """Return the commit-ts at which the dump's rows, together with the log up to there, are consistent."""
        return self._at(None)

    @property
    def waits(self) -> str | None:
        """A sentence on what the log must reach before the dump can be loaded; None when it can be loaded."""
        # Some logs show their beginning only when something of them has landed.
        has_begun = self._run.source.dump_comes_first or self._run.segments.rows.num_rows > 0
        if self._initial.database is not None and not has_begun:
            return "the tables are read when the log has begun: nothing of it has landed"
        joins = self._join(self._dump.until or self._dump.position)
        return joins if isinstance(joins, str) else None

    def schema_changes(self, upto: int | None = None) -> tuple[Sequence[SchemaChange], Sequence[Rejected]]:
        """Return a load of each table that can be loaded, at a commit-ts up to `upto`, and all tables that cannot."""
        changes: list[SchemaChange] = []
        taken, loads, landed = self._taken, self._run.loaded, self._landed()
        # The rows in the files of each table that is completely decoded.
        counted: Counter[TableName] = Counter()
        files = self._run.segments.find(self._files).values()
        waiting = {(file.database, file.table) for file in files if file.state == LANDED}
        for file in files:
            if (file.database, file.table) not in waiting:
                name = TableName(file.database or "", file.table or "")
                counted[name] += (file.events or 0) + (file.quarantined or 0)
        unread = [each for each in self._dump.unread if each.name not in loads and taken.takes_name(each.name)]
        faults = [(each.name, _segment_name(self.checkpoint_ts(), each.schema_path), each.reason) for each in unread]
        for table in self._dump.tables:
            name, at = table.name, self._at(table)
            if loads and at not in {loads.get(name), *landed.get(name, ())}:
                continue  # A table of a later dump that is not loaded again.
            origin = _segment_name(at, table.schema_path)
            try:
                # The rows may lack those columns that the configuration says, and no others that those of the log have.
                configured = self._run.feed.settings_of(name.database, name.table).virtual_columns or ()
                virtual = {each.lower() for each in configured}
                for each in table.definition.columns:
                    is_known = each.stored_as is None or each.name.lower() in virtual
                    if not is_known and any(each.name not in file.notation.columns for file in table.files):
                        said = f"the dump leaves out the values of the stored generated column {each.name}"
                        advice = f'name all such columns in tables.settings."{name}".virtual_columns, and the lake '
                        raise DdlError(said, advice=f"{advice}goes without them; or leave the table out")
                if upto is None or at <= upto:
                    columns = tuple(each for each in table.columns if each.name.lower() in virtual)
                    query, of = table.create_statement, (name.database, name.table, None)
                    changes.append(SchemaChange(at, *of, query, columns, origin, True, kind="load"))
            except DdlError as error:
                faults.append((name, origin, str(error)))
            rows = counted.get(name)
            if None not in (table.rows, rows) and table.rows != rows:
                faults.append((name, origin, f"rows by the dump: {table.rows}, in its files: {rows}"))
        return changes, [_bad_table(*fault) for fault in faults]

    def definitions(self) -> Iterator[SchemaChange]:
        """Yield the dump's tables, taken or not, as changes at the beginning of time. Raises as reading it does."""
        for table in self._dump.tables:
            of, query = (table.name.database, table.name.table, None), table.create_statement
            yield SchemaChange(BEGINNING + 1, *of, query, (), table.schema_path, True, kind="load")


def _bad_table(name: TableName, origin: str, reason: str) -> Rejected:
    return Rejected(origin, None, BAD_TABLE_OF_DUMP, reason, None, name.database, name.table)


def _segment_name(commit_ts: int, path: str) -> str:
    """Return the segment name of a file: a table may be loaded again, from files of the same names."""
    return f"//dump/{commit_ts}/{path}"


def _read(
    root: str, storage: StorageConfig, compressions: Mapping[str, Compression | None], files: Sequence[SegmentRef]
) -> Iterator[Iterator[bytes]]:
    for file in files:
        yield open_pieces(root, storage, file.path, file.etag, compressions[file.path])
