"""A dump as a source: its files are read as rows of their tables at the dump's position, from which the log continues.

Rows are synthetic events of op `R` with the position's commit-ts, at which each table of the dump begins a new
incarnation: changes of the log at or below the position belong to its earlier incarnation and are ignored, in whatever
order they arrive."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import pyarrow.compute as pc

from cdc_lakehouse.changelog.ddl import apply
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.config import InitialLoad
from cdc_lakehouse.decoders.files.dump_rows import decode_rows
from cdc_lakehouse.decoders.files.dump_values import DumpContext
from cdc_lakehouse.decoders.problems import BAD_TABLE_OF_DUMP, Rejected
from cdc_lakehouse.errors import DdlError, DumpError, SourceError
from cdc_lakehouse.lake.tables.event_files import EventWriter
from cdc_lakehouse.lake.tables.segment_decoding import DecodedFiles, SegmentFile, decode_segments
from cdc_lakehouse.lake.tables.segments import DUMP, LANDED, Kind, Segment, replayed_segment
from cdc_lakehouse.pipeline.batches import Batches
from cdc_lakehouse.pipeline.database_load import DatabaseDump
from cdc_lakehouse.pipeline.database_progress import ReadingProgress, location_of, reading_of
from cdc_lakehouse.pipeline.deferred_segments import UNREADABLE_SEGMENT, decode_isolated, defer
from cdc_lakehouse.pipeline.loads import loads_of, require_no_gap
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import JoinPoint, Landed
from cdc_lakehouse.pipeline.taken_tables import TakenNames
from cdc_lakehouse.sources.dump.contents import Compression, Dump, DumpedTable, DumpFile, DumpPosition
from cdc_lakehouse.sources.dump.directory import read_dump
from cdc_lakehouse.sources.dump.reading import open_pieces
from cdc_lakehouse.sources.object_store import open_store
from cdc_lakehouse.sources.object_store.segments import SegmentRef

if TYPE_CHECKING:
    from cdc_lakehouse.config import StorageConfig
    from cdc_lakehouse.lake.current.value_parsing import ValueFormat

_MAX_FILES: Final = 2_000
_MAX_BYTES: Final = 16 << 30
"""The limits of a batch, and so of the work that a run which ends early has to repeat."""


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


class DumpSource:
    """The `Source` of a feed's initial dump."""

    kind: Kind = DUMP
    schema_faults = frozenset({BAD_TABLE_OF_DUMP})

    def __init__(self, run: FeedRun, initial: InitialLoad) -> None:
        self._run = run
        self._initial = initial
        self._joined: dict[DumpPosition, JoinPoint] = {}
        self._store = open_store(initial.uri or location_of(run.lake, run.feed.name), run.lake.storage)

    @functools.cached_property
    def _dump(self) -> Dump:
        dump = self._read_dump()
        for sentence in dump.left_out:
            self._run.log.info("the dump: %s", sentence)
        if not (dump.tables or dump.unread):
            raise DumpError(
                f"the dump at {self._store.uri} has no table",
                feed=self._run.feed.name,
                advice="correct source.initial.uri, or dump with the tables that the feed takes",
            )
        return dump

    def _read_dump(self) -> Dump:
        if self._initial.database is not None:
            return DatabaseDump(self._run, self._initial, self._store, self._taken.takes_name).read()
        return read_dump(self._store, self._initial)

    @property
    def _taken(self) -> TakenNames:
        """The names that are taken by the current history; evolving adds to it."""
        lives = self._run.history.history.incarnations().values()
        return TakenNames.of(self._run.feed.tables, lives, self._run.last_cut.checkpoint_ts)

    @property
    def has_rows_left(self) -> bool:
        """Whether a taken table has rows that are not in `events` yet, or could not be loaded. Once the dump is loaded,
        this does not read the dump."""
        loads = loads_of(self._run.history)
        return (
            not loads
            or bool(self._run.segments.undecoded(DUMP))
            or any(row.error_class in self.schema_faults for row in self._run.quarantine.open())
            or any(map(self._taken.takes_name, loads.keys() - self._landed().keys()))
        )

    def pending(self) -> PendingLoad | None:
        """Return the rest of the load; None when nothing is left. Neither loads anything nor queries the database."""
        if not self.has_rows_left:
            return None
        if self._initial.database is not None and not loads_of(self._run.history):
            return PendingLoad(None, None, None, None, reading_of(self._run.lake, self._run.feed))
        landed = [segment for batch in self._run.segments.undecoded(DUMP).values() for segment in batch]
        wanted = self._wanted_tables()
        names = {(segment.database, segment.table) for segment in landed}
        names |= {(table.name.database, table.name.table) for table in wanted}
        sizes = [segment.size for segment in landed] + [file.size for table in wanted for file in table.files]
        return PendingLoad(len(names), len(sizes), sum(sizes), self.waits)

    def land(self) -> Landed:
        run = self._run
        require_no_gap(run, run.source.first_ts(), self.first_ts())
        batches = Batches(run.segments.batch + 1, _MAX_FILES, _MAX_BYTES)
        tables = self._wanted_tables()
        segments = [segment for table in tables for segment in self._segments(table, batches)]
        known = run.segments.known(segment.segment for segment in segments)
        new = tuple(segment for segment in segments if segment.segment not in known)
        if new:
            run.segments.land(new)
            run.log.info("landed %d files of %d tables of the dump", len(new), len(tables))
        return Landed(new)

    def _wanted_tables(self) -> list[DumpedTable]:
        """Return the taken tables that are not loaded yet, and those to load again."""
        run, names = self._run, {str(table.name): table.name for table in self._dump.tables}
        taken_names = self._taken
        taken = {name for name, known in names.items() if taken_names.takes_name(known)}
        reloaded = set(run.reload_tables) if run.reload_tables != {"*"} else taken
        for name in sorted(reloaded - taken):
            why = "has no such table" if name not in names else "has it, and the feed does not take it"
            raise SourceError(
                f"{name} cannot be loaded: the dump at {self._store.uri} {why}",
                feed=run.feed.name,
                advice="write database.table, as the dump has it",
            )
        landed = self._landed()
        return [
            table
            for table in self._dump.tables
            if str(table.name) in reloaded or (str(table.name) in taken and table.name not in landed)
        ]

    def _landed(self) -> Mapping[TableName, set[int | None]]:
        """Return the positions at which tables have landed, decoded or not."""
        rows = self._run.segments.rows.filter(pc.field("kind") == DUMP)
        found: dict[TableName, set[int | None]] = {}
        for row in rows.group_by(["database", "table", "table_version"]).aggregate([]).to_pylist():
            found.setdefault(TableName(row["database"], row["table"]), set()).add(row["table_version"])
        return found

    def _segments(self, table: DumpedTable, batches: Batches) -> Iterator[Segment]:
        """Yield the segments of a table's files; for a table without rows, its schema file."""
        at = self._at(table)
        files = [(file.path, file.size, file.etag, file.modified) for file in table.files]
        for path, size, etag, modified in files or [(table.schema_path, 0, None, None)]:
            yield Segment(
                segment=_segment_name(at, path),
                kind=DUMP,
                database=table.name.database,
                table=table.name.table,
                table_version=at,
                size=size,
                etag=etag,
                modified_at=modified,
                batch=batches.of_file(size),
                state=LANDED,
                landed_at=self._run.landed_at,
            )

    def peek(self) -> None:
        _ = self._dump

    def decode(self, segments: Sequence[Segment], *, append: bool) -> tuple[Sequence[Segment], Sequence[Rejected]]:
        run, faults = self._run, dict[str, str]()
        self._require_files(segments)
        while True:
            readable = [segment for segment in segments if segment.segment not in faults]
            ready = defer(run, segments, {UNREADABLE_SEGMENT: faults}) if append else segments
            if not ready:
                return [], []
            try:
                writer = run.events.writer() if append else None
                decoded = decode_isolated(run.spark, ready, functools.partial(self._decode, writer=writer))
            except SourceError as error:
                # A fault of one file defers it; a fault of the whole store ends the run.
                fault = next((s for s in readable if s.segment == error.segment), None)
                if fault is None or not append:
                    raise
                faults[fault.segment] = error.advised
                continue
            if append:
                run.events.commit(decoded.data_files, ready)
            return decoded.counted(ready), decoded.rejected

    def _decode(self, segments: Sequence[Segment], writer: EventWriter | None) -> DecodedFiles:
        files = [self._file(segment) for segment in segments if segment.segment in self._files]
        compressions: dict[str, Compression | None] = {file.path: file.compression for _, file in self._files.values()}
        read = functools.partial(_read, self._store.uri, self._run.lake.storage, compressions)
        return decode_segments(self._run.spark, files, read, decode_rows, writer)

    def _file(self, segment: Segment) -> SegmentFile:
        table, file = self._files[segment.segment]
        at = self._at(table)
        types = self._types[table.name]
        target = self._run.source.value_format("null")
        context = DumpContext(
            table.name.database,
            table.name.table,
            at,
            file.notation,
            types,
            labels=target.labels or target.labels_uncertain,
            binary=target.binary,
            zone=self._initial.time_zone,
            feed_zone=target.zone,
        )
        ref = SegmentRef(file.path, file.size, file.etag)
        return SegmentFile(ref, segment.segment, context, at, synthetic=True)

    def _require_files(self, segments: Sequence[Segment]) -> None:
        known = self._files.keys() | {_segment_name(self._at(t), t.schema_path) for t in self._dump.tables}
        gone = [segment.segment for segment in segments if segment.segment not in known]
        if gone:
            raise SourceError(
                f"{len(gone)} files of the dump that were to be loaded are no longer part of it",
                feed=self._run.feed.name,
                segment=gone[0],
                advice="restore the dump as it was when the load began",
            )

    @functools.cached_property
    def _files(self) -> Mapping[str, tuple[DumpedTable, DumpFile]]:
        return {
            _segment_name(self._at(table), file.path): (table, file)
            for table in self._dump.tables
            for file in table.files
        }

    @functools.cached_property
    def _types(self) -> Mapping[TableName, Mapping[str, ColumnType]]:
        """The types of the columns of each table."""
        return {
            table.name: {column.name: column.type for column in apply.created(table.definition).columns}
            for table in self._dump.tables
        }

    def land_left_out(self) -> Sequence[Segment]:
        return ()

    def replay(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        self._require_files(segments)
        run, snapshot = self._run, self._run.events_snapshot()
        batches = Batches(run.segments.batch + 1, _MAX_FILES, _MAX_BYTES)
        replayed = [
            replayed_segment(segment, batches.of_file(segment.size), snapshot, run.landed_at) for segment in segments
        ]
        if replayed:
            run.segments.land(replayed)
        return replayed

    def first_ts(self) -> int | None:
        return self.load_ts[0]

    @property
    def load_ts(self) -> Sequence[int]:
        """The commit-ts of the rows of all tables, in order."""
        return sorted({self._at(table) for table in self._dump.tables} or {self.checkpoint_ts()})

    def _at(self, table: DumpedTable) -> int:
        """Return the commit-ts of a table's rows."""
        return self._reached(table.position or self._dump.position)

    def checkpoint_ts(self) -> int:
        """Return the commit-ts at which the dump's rows, together with the log up to there, are consistent."""
        return self._reached(self._dump.until or self._dump.position)

    def _reached(self, position: DumpPosition) -> int:
        commit_ts = self._join(position).commit_ts
        assert commit_ts is not None, "it waits: nothing is done with it"
        return commit_ts

    def _join(self, position: DumpPosition) -> JoinPoint:
        if position not in self._joined:
            self._joined[position] = self._run.source.join(position)
        return self._joined[position]

    @property
    def waits(self) -> str | None:
        """A sentence on what the log must reach before the dump can be loaded; None when it can be loaded."""
        if self._initial.database is not None and not self._has_log_begun:
            return "the tables are read when the log has begun: nothing of it has landed"
        return self._join(self._dump.until or self._dump.position).waits

    @property
    def _has_log_begun(self) -> bool:
        """Whether the log has begun: some logs show their beginning only when something of them has landed."""
        return self._run.source.dump_comes_first or self._run.segments.rows.num_rows > 0

    def schema_changes(self, upto: int | None = None) -> tuple[Sequence[SchemaChange], Sequence[Rejected]]:
        """Return a load of each table that can be loaded, at a commit-ts up to `upto`, and all tables that cannot."""
        changes: list[SchemaChange] = []
        rejected = list(self._unread())
        counted, loads, landed = self._counted(), loads_of(self._run.history), self._landed()
        for table in self._dump.tables:
            at = self._at(table)
            if loads and at not in {loads.get(table.name), *landed.get(table.name, ())}:
                continue  # A table of a later dump that is not loaded again.
            name, origin = table.name, _segment_name(at, table.schema_path)
            try:
                columns = self._without_rows(table)
                change = SchemaChange(
                    at, name.database, name.table, None, table.create_statement, columns, origin,
                    backslash_escapes=True, kind="load",
                )  # fmt: skip
                if upto is None or at <= upto:
                    changes.append(change)
            except DdlError as error:
                rejected.append(Rejected(origin, None, BAD_TABLE_OF_DUMP, str(error), None, name.database, name.table))
            rows = counted.get(name)
            if None not in (table.rows, rows) and table.rows != rows:
                message = f"the dump says that the table has {table.rows} rows, and its files have {rows}"
                rejected.append(Rejected(origin, None, BAD_TABLE_OF_DUMP, message, None, name.database, name.table))
        return changes, rejected

    def _unread(self) -> Iterator[Rejected]:
        """Yield the taken tables whose columns the dump does not contain."""
        taken, loads = self._taken, loads_of(self._run.history)
        for table in self._dump.unread:
            if table.name not in loads and taken.takes_name(table.name):
                origin = _segment_name(self.checkpoint_ts(), table.schema_path)
                name = table.name
                yield Rejected(origin, None, BAD_TABLE_OF_DUMP, table.reason, None, name.database, name.table)

    def _without_rows(self, table: DumpedTable) -> tuple[SourceColumn, ...]:
        """Return the columns that the rows lack by the configuration. Raises `DdlError` for a table that cannot be
        loaded because its rows lack columns that those of the log have."""
        definition, name = table.definition, table.name
        configured = self._run.feed.settings_of(name.database, name.table).virtual_columns or ()
        virtual = {each.lower() for each in configured}
        stored = [
            each.name
            for each in definition.columns
            if each.generated == "stored"
            and each.name.lower() not in virtual
            and any(each.name not in file.notation.columns for file in table.files)
        ]
        if stored:
            raise DdlError(
                f"the dump leaves out the values of the stored generated column {stored[0]}",
                advice=f'name all such columns in tables.settings."{name}".virtual_columns, and the lake goes without '
                "them; or leave the table out",
            )
        return tuple(each for each in apply.created(definition).columns if each.name.lower() in virtual)

    def _counted(self) -> Mapping[TableName, int]:
        """Count the rows in the files of each table that is completely decoded."""
        rows = self._run.segments.find(self._files)
        waiting = {(row.database, row.table) for row in rows.values() if row.state == LANDED}
        found: Counter[TableName] = Counter()
        for row in rows.values():
            if (row.database, row.table) not in waiting:
                found[TableName(row.database or "", row.table or "")] += (row.events or 0) + (row.quarantined or 0)
        return found

    def value_format(self, zero_dates: Literal["null", "string", "error"]) -> ValueFormat:
        return self._run.source.value_format(zero_dates)


def is_cut_missing(run: FeedRun) -> bool:
    """Whether the feed begins with its dump: nothing is published yet."""
    return run.last_cut.checkpoint_ts == BEGINNING


def _segment_name(commit_ts: int, path: str) -> str:
    """Return the segment name of a file: a table may be loaded again, from files of the same names."""
    return f"//dump/{commit_ts}/{path}"


def _read(
    root: str, storage: StorageConfig, compressions: Mapping[str, Compression | None], files: Sequence[SegmentRef]
) -> Iterator[tuple[SegmentRef, Iterator[bytes]]]:
    for file in files:
        yield file, open_pieces(root, storage, file.path, file.etag, compressions[file.path])
