"""A storage sink as a source: its checkpoint is read, then it is listed, then new files are recorded."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.files.registry import FORMATS, layout_of
from cdc_lakehouse.decoders.problems import BAD_SCHEMA_FILE, Rejected
from cdc_lakehouse.errors import CheckpointError, SourceError
from cdc_lakehouse.lake.archive import Archive
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.tables.segments import FILE, LANDED, Kind, Segment, replaced_contents, replayed_segment
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.cut_off_files import resolve_redelivered
from cdc_lakehouse.pipeline.deferred_segments import find_unreadable
from cdc_lakehouse.pipeline.loads import join_at_tso, loads_of, require_no_gap
from cdc_lakehouse.pipeline.missing_files import quarantine_expired, quarantine_missing
from cdc_lakehouse.pipeline.sink_decoding import decode_files
from cdc_lakehouse.pipeline.sink_listing import list_source, save_listing_state
from cdc_lakehouse.pipeline.sink_schemas import SchemaFiles
from cdc_lakehouse.pipeline.source import Batches, JoinPoint, Landed
from cdc_lakehouse.pipeline.taken_tables import TakenNames
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.sink.paths import DataFile, Listing, list_sink, read_checkpoint


class Sink:
    """The `Source` of a storage sink."""

    kind: Kind = FILE
    schema_faults = frozenset({BAD_SCHEMA_FILE})

    def __init__(self, run: FeedContext) -> None:
        self._run = run
        self._checkpoint_ts = 0
        self._listing = Listing()

    @functools.cached_property
    def _schemas(self) -> SchemaFiles:
        return SchemaFiles(self._run.feed, self._run.store, self._run.history, self._listing.schemas)

    def land(self) -> Landed:
        # In this order the listing contains everything that the checkpoint guarantees.
        run = self._run
        source_ts, faults = _shown_checkpoint(run)
        self._checkpoint_ts = max(source_ts or 0, run.last_cut.checkpoint_ts)
        # Where the checkpoint cannot be read now, the clock says how long the feed may have stood still.
        shown_ts = self._checkpoint_ts if source_ts is not None else max(self._checkpoint_ts, tso(run.clock()))
        found = list_source(run, self._checkpoint_ts, shown_ts)
        listing, self._schemas = found.listing, found.schemas
        if listing.unknown:
            examples = ", ".join(listing.unknown[:5])
            faults.append(f"{len(listing.unknown)} files are not what a TiCDC sink holds and were not read: {examples}")
        require_no_gap(run, self._schemas.first_ts())
        files, nameless = _named(listing.data, self._schemas)
        if nameless:
            faults.append(f"{len(nameless)} files wait for the schema file that says their table: {nameless[0]}")
        # Before anything of this run lands: it is compared with what had landed.
        quarantine_expired(run, files, self._schemas, found.taken, shown_ts, whole=found.since is None)
        wanted = [file for file in files if found.taken.takes(file.database, file.table)]
        wanted, late = _without_summarized(run, wanted)
        if late:
            faults.append(f"{len(late)} files were written after the rows of their date went, and not read: {late[0]}")
        source = run.feed.storage_sink
        batches = Batches(run.segments.batch + 1, source.max_files, source.max_bytes)
        new = tuple(_new_segments(run, wanted, batches, found.taken))
        if new:
            run.segments.land(new)
            run.log.info("landed %d segments in batches %d to %d", len(new), new[0].batch, batches.number)
        quarantine_missing(run, listing, found.last, self._schemas)
        # This is last: when a run dies before, the next one lists from an older state, and finds all of this again.
        unclear = bool(listing.unknown or nameless or listing.unreadable)
        save_listing_state(run, found, self._checkpoint_ts, unclear=unclear)
        return Landed(new, tuple(faults), source_ts, len(listing.data))

    def peek(self) -> None:
        run = self._run
        self._checkpoint_ts = max(read_checkpoint(run.store, run.clock()), run.last_cut.checkpoint_ts)
        self._listing = list_sink(run.store, layout_of(run.feed.storage_sink))

    def first_ts(self) -> int | None:
        self._listing = list_sink(self._run.store, layout_of(self._run.feed.storage_sink))
        return self._schemas.first_ts()

    dump_comes_first = True

    def join(self, position: DumpPosition) -> JoinPoint:
        return join_at_tso(self._run, position)

    def decode(self, segments: Sequence[Segment], *, append: bool) -> tuple[Sequence[Segment], Sequence[Rejected]]:
        return decode_files(self._run, self._schemas, segments, append=append)

    def resolve_redelivered(self) -> None:
        resolve_redelivered(self._run)

    def land_left_out(self) -> Sequence[Segment]:
        return ()  # Schema files contain the names before anything is decoded.

    def replay(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        run, source = self._run, self._run.feed.storage_sink
        unreadable = find_unreadable(run, segments)
        if unreadable:
            segment, reason = next(iter(unreadable.items()))
            raise SourceError(
                f"{len(unreadable)} segments cannot be decoded again: {reason}",
                feed=run.feed.name,
                segment=segment,
                advice="restore them; a file whose content changed is taken by the next run, without being asked",
            )
        batches = Batches(run.segments.batch + 1, source.max_files, source.max_bytes)
        appended = functools.cache(run.appended)
        replayed = [replayed_segment(s, batches.of_file(s.size), appended(), run.landed_at) for s in segments]
        if replayed:
            run.segments.land(replayed)
        return replayed

    def checkpoint_ts(self) -> int:
        return self._checkpoint_ts

    def schema_changes(self, upto: int | None = None) -> tuple[Sequence[SchemaChange], Sequence[Rejected]]:
        return self._schemas.changes(upto)

    def value_format(self, zero_dates: Literal["null", "string", "error"]) -> ValueFormat:
        source = self._run.feed.storage_sink
        file_format = FORMATS[source.protocol]
        binary = file_format.binary(source.csv)
        return ValueFormat(source.time_zone, zero_dates, labels=file_format.has_labels, binary=binary)


def _named(files: Sequence[DataFile], schema_files: SchemaFiles) -> tuple[list[DataFile], list[str]]:
    """Return files with the names of their tables, and the paths of those that no schema file names."""
    named: list[DataFile] = []
    nameless: list[str] = []
    for file in files:
        if file.table:
            named.append(file)
        elif (change := schema_files.of(file.directory, file.version)) is not None:
            named.append(replace(file, database=change.database, table=change.table))
        else:
            nameless.append(file.path)
    return named, nameless


def _without_summarized(run: FeedContext, files: Sequence[DataFile]) -> tuple[list[DataFile], list[str]]:
    """Return the files without those of dates whose segments were summarized, and the paths of such files that were
    written since."""
    summaries = run.segments.summarized()
    others: list[DataFile] = []
    late: list[str] = []
    for file in files:
        summary = summaries.get(TableName(file.database, file.table))
        if summary is None or file.feed_date is None or file.feed_date > (summary.feed_date or ""):
            others.append(file)
        elif summary.modified_at is not None and file.modified > summary.modified_at:
            late.append(file.path)
    for date in sorted(run.dates):
        if any(date <= (summary.feed_date or "") for summary in summaries.values()):
            raise SourceError(
                f"{date} cannot be decoded again: it is no longer known what its segments were",
                feed=run.feed.name,
                advice="they were removed by maintenance.keep_segments_days; their events are there, untouched",
            )
    return others, late


def _shown_checkpoint(run: FeedContext) -> tuple[int | None, list[str]]:
    try:
        shown = read_checkpoint(run.store, run.clock())
    except CheckpointError as error:
        return None, [str(error)]
    published = run.last_cut.checkpoint_ts
    if shown < published and published not in loads_of(run.history).values():
        fault = f"the source's checkpoint-ts went backwards, from {published} (published) to {shown}"
        return shown, [f"{fault}: nothing new is applied"]
    return shown, []


def _new_segments(
    run: FeedContext, files: Sequence[DataFile], batches: Batches, taken: TakenNames
) -> Iterable[Segment]:
    present = {file.path for file in files}
    expired = _expired(run, present, taken)
    _refuse_partial_backfill(run, expired)
    appended = functools.cache(run.appended)
    known = run.segments.etags(file.path for file in files)
    new = [file for file, etag in zip(files, known, strict=True) if etag != file.etag or file.feed_date in run.dates]
    before = run.segments.find(file.path for file in new)
    for file in new:
        old = before.get(file.path)
        yield Segment(
            segment=file.path,
            kind=FILE,
            database=file.database,
            table=file.table,
            table_version=file.version,
            physical_partition=file.physical_partition,
            feed_date=file.feed_date,
            dispatcher=file.dispatcher,
            file_index=file.index,
            size=file.size,
            etag=file.etag,
            modified_at=file.modified,
            batch=batches.of_file(file.size),
            state=LANDED,
            landed_at=run.landed_at,
            replaces=None if old is None else replaced_contents(old, appended()),
        )
    for row in expired:
        yield replayed_segment(row, batches.of_file(row.size), appended(), run.landed_at)


def _expired(run: FeedContext, present: set[str], taken: TakenNames) -> list[Segment]:
    """Return the segments of the dates to decode again that the source no longer has."""
    if not run.dates:
        return []
    dated = run.segments.select((pc.field("kind") == FILE) & pc.field("feed_date").isin(sorted(run.dates)))
    return [row for row in dated if row.segment not in present and taken.takes(row.database or "", row.table or "")]


def _refuse_partial_backfill(run: FeedContext, expired: Sequence[Segment]) -> None:
    """Raises `SourceError` when a date cannot be decoded again completely: its events are replaced."""
    archive = run.raw if isinstance(run.raw, Archive) else None
    for date in sorted(run.dates):
        gone = [
            row.segment for row in expired if row.feed_date == date and not (archive is not None and archive.has(row))
        ]
        if gone:
            raise SourceError(
                f"{date} cannot be decoded again: {len(gone)} of its segments are no longer in the source",
                feed=run.feed.name,
                segment=gone[0],
                advice="restore them; the events that were decoded before are still there and were not touched",
            )
