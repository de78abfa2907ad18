"""A storage sink as a source: its checkpoint is read, then it is listed, then new files are recorded."""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog.positions import commit_time, end_ts_at, tso, utc_now
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.config.reporting import listed, plural
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.format import FileContext, Layout
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.decoders.registry import FILE_FORMATS
from cdc_lakehouse.errors import CdcError, CheckpointError, SourceError
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints
from cdc_lakehouse.lake.tables.decoding import DecodedFiles, SegmentFile, decode_segments
from cdc_lakehouse.lake.tables.events import EventWriter
from cdc_lakehouse.lake.tables.schema_history import Frontiers
from cdc_lakehouse.lake.tables.segments import (
    FILE,
    LANDED,
    Archive,
    Segment,
    Segments,
    index_gaps,
    replaced_contents,
    replayed_segment,
)
from cdc_lakehouse.pipeline import sink_files
from cdc_lakehouse.pipeline.feed_tables import TakenNames
from cdc_lakehouse.pipeline.run import DecodeFiles, FeedRun, append_files
from cdc_lakehouse.pipeline.source import Batches, JoinPoint, Landed, LogSource, SourceKind, SourceState, SourceStatus
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.object_store import SegmentRef, read_in_parts
from cdc_lakehouse.sources.sink import paths
from cdc_lakehouse.sources.sink.listing import (
    Frontier,
    is_of_settings,
    list_new,
    may_have_expired,
    next_frontier,
    settings_digest,
)
from cdc_lakehouse.sources.sink.paths import DataFile, Listing, list_sink, read_checkpoint

_LINES_SOUGHT_IN: Final = 16
"""The most segments whose first line is looked at."""
_WATCHED_LIMIT: Final = 500
"""The most directories that are listed completely in addition: with more of them the whole sink is listed instead."""


class Sink(LogSource):
    """The `Source` of a storage sink."""

    kind = FILE
    schema_faults = frozenset({problems.BAD_SCHEMA_FILE})
    shown = SourceKind(
        "ticdc", "What the sink holds: each data file is listed once. Files stay where they are.",
        "checkpoint", "Follows the checkpoint-ts of the sink's metadata file.",
    )  # fmt: skip
    has_files = True

    def __init__(self, run: FeedRun) -> None:
        self._run = run
        self._checkpoint_ts = 0
        self.has_labels = FILE_FORMATS[run.feed.storage_sink.protocol].has_labels

    def _list(self) -> Listing:
        return list_sink(self._run.store, self._run.feed.storage_sink)

    @functools.cached_property
    def _schemas(self) -> sink_files.SchemaFiles:
        return sink_files.SchemaFiles(self._run, self._list().schemas)

    def land(self) -> Landed:
        # In this order the listing contains everything that the checkpoint guarantees.
        run, source, faults = self._run, self._run.feed.storage_sink, list[str]()
        published, source_ts = run.last_cut.checkpoint_ts, None
        try:
            source_ts = read_checkpoint(run.store, run.clock())
        except CheckpointError as error:
            faults.append(str(error))
        if source_ts is not None and source_ts < published and published not in run.loaded.values():
            fault = f"the source's checkpoint-ts went backwards, from {published} (published) to {source_ts}"
            faults.append(f"{fault}: nothing new is applied")
        self._checkpoint_ts = max(source_ts or 0, published)
        # Where the checkpoint cannot be read now, the clock says how long the feed may have stood still.
        shown_ts = self._checkpoint_ts if source_ts is not None else max(self._checkpoint_ts, tso(run.clock()))
        listing, taken, last, since = self._list_due(shown_ts)
        if listing.unknown:
            faults.append(f"not read, because a TiCDC sink has no such files: {listed(listing.unknown, 'file', 5)}")
        run.require_no_gap()
        files: list[DataFile] = []
        nameless: list[str] = []
        for file in listing.data:
            if file.table:
                files.append(file)
            elif (change := self._schemas.by_place.get((file.directory, file.version))) is not None:
                files.append(replace(file, database=change.database, table=change.table))
            else:
                nameless.append(file.path)
        if nameless:
            faults.append(f"waiting for the schema file that names their table: {listed(nameless, 'file', 1)}")
        # Before anything of this run lands: it is compared with what had landed.
        sink_files.quarantine_expired(run, files, self._schemas, taken, shown_ts, whole=since is None)
        wanted = [file for file in files if taken.takes(file.database, file.table)]
        wanted, late = _without_summarized(run, wanted)
        if late:
            faults.append(f"not read, because the rows of their date were removed before: {listed(late, 'file', 1)}")
        batches = Batches(run.segments.batch + 1, source.max_files, source.max_bytes)
        new = tuple(_new_segments(run, wanted, batches, taken))
        if new:
            run.segments.land(new)
            run.log.info("landed %s, up to batch %d", plural(len(new), "segment"), batches.number)
        sink_files.quarantine_missing(run, listing, last, self._schemas)
        # The state of the listing is last: when a run dies before, the next one lists from an older state, and finds
        # all of this again. Everything that the next run does not list again has landed.
        covered = sink_files.covered_before(self._checkpoint_ts)
        # Whether their last files exist is known once the checkpoint has passed them.
        kept = frozenset(index.directory for index in listing.indexes if index.modified >= covered)
        # The last DDL by directory, as recorded by earlier runs: the sink was listed after all of it.
        stated = (origin for origin, change in run.history.changes.items() if change.kind == "statement")
        last_ddl = dict(sorted(filter(None, map(paths.schema_file_at, stated))))
        before, settings = run.frontiers.last(), settings_digest(run.feed, taken.earlier)
        unclear = bool(listing.unknown or nameless or listing.unreadable)
        frontier = next_frontier(since, listing, source, settings, run.clock(), last_ddl, kept=kept, unclear=unclear)
        if before is None or frontier.adds_to(before) or (since is None and self._is_old(before)):
            run.frontiers.write(frontier)
        return Landed(new, tuple(faults), source_ts, len(listing.data))

    def _is_old(self, frontier: Frontier) -> bool:
        hours = self._run.feed.storage_sink.full_listing_hours
        return self._run.clock() - frontier.whole_at >= datetime.timedelta(hours=hours)

    def _list_due(self, shown_ts: int) -> tuple[Listing, TakenNames, sink_files.LastFiles, Frontier | None]:
        """List only new files when the saved listing state allows it, otherwise the whole sink; the checkpoint-ts must
        have been read before, and `shown_ts` is a TSO up to which the source may have gone. Return the listing, the
        names that the feed takes according to its schema files, the results of its index files, and the listing state
        that it began at, None for the whole sink."""
        run, source = self._run, self._run.feed.storage_sink
        missing = {row.segment for row in run.quarantine.unresolved() if row.error_class == problems.MISSING_FILE}
        # Directories in which files are expected that are not new by their number: those that would close a gap,
        # repaired ones that replace unusable ones, and those whose index file names no last file.
        watched, rows = {gap.directory for gap in index_gaps(run.segments.rows)}, run.quarantine.open()
        known = run.segments.known(row.segment for row in rows)
        for row in rows:
            if row.error_class == problems.MISSING_FILE or row.segment in known:
                watched.add(row.segment.rpartition("/")[0])
            elif row.error_class == problems.UNREADABLE_INDEX:
                watched.add(row.segment.rpartition("/meta/")[0])
        frontier = run.frontiers.last()
        reason = "it is the first time" if frontier is None else self._reason_for_all(frontier, len(watched), shown_ts)

        def found(listing: Listing) -> tuple[TakenNames, sink_files.LastFiles]:
            self._schemas = sink_files.SchemaFiles(run, listing.schemas)
            taken = TakenNames.of(run.feed.tables, self._schemas.history, run.last_cut.checkpoint_ts)
            return taken, sink_files.check_last_files(run, listing, self._checkpoint_ts)

        if frontier is not None and reason is None:
            listing = list_new(run.store, source, frontier, watched)
            taken, last = found(listing)
            if not last.missing.keys() <= missing:
                reason = "an index file names a data file that is not where it is expected"
            elif frontier.settings != settings_digest(run.feed, taken.earlier):
                reason = "other names of tables are taken, for tables were renamed"
            else:
                return listing, taken, last, frontier
        run.log.info("listing the whole sink: %s", reason)
        listing = self._list()
        return listing, *found(listing), None

    def _reason_for_all(self, frontier: Frontier, watched: int, shown_ts: int) -> str | None:
        run = self._run
        if not is_of_settings(frontier, run.feed):
            return "the settings of the source or of its tables have changed"
        if run.dates:
            return "dates are decoded again"
        if frontier.unclear:
            return "it held files that nothing could be made of"
        if any(row.error_class == problems.UNREADABLE_DIRECTORY for row in run.quarantine.unresolved()):
            return "parts of it could not be listed"
        if self._is_old(frontier):
            return f"it was not for {run.feed.storage_sink.full_listing_hours} hours"
        read = commit_time(run.last_cut.checkpoint_ts)
        if run.last_cut.checkpoint_ts and may_have_expired(run.feed, read, shown_ts):
            return f"files may have expired since the last cut, of {read:%Y-%m-%d %H:%M} UTC"
        return f"{watched} directories have missing or quarantined files" if watched > _WATCHED_LIMIT else None

    def peek(self) -> None:
        run = self._run
        self._checkpoint_ts = max(read_checkpoint(run.store, run.clock()), run.last_cut.checkpoint_ts)
        _ = self._schemas

    def first_ts(self) -> int | None:
        return self._schemas.first_ts()

    def join_point(self, position: DumpPosition) -> JoinPoint:
        return JoinPoint.at_tso(self._run.feed.name, position)

    def decode(self, segments: Sequence[Segment]) -> tuple[Sequence[Segment], Sequence[Rejected]]:
        run, raw, source = self._run, self._run.raw, self._run.feed.storage_sink
        form = FILE_FORMATS[source.protocol]
        faults = raw.keep(segments)
        if raw.store.uri.startswith("file:"):  # Elsewhere a check costs a request, and the tasks report it.
            faults |= sink_files.find_unreadable(
                raw, [segment for segment in segments if segment.segment not in faults]
            )

        def prepare(readable: Sequence[Segment]) -> tuple[DecodeFiles, Mapping[str, str]]:
            layouts, unknown = dict[str, Layout](), dict[str, str]()
            if source.csv is not None:
                layouts, unknown = sink_files.find_layouts(run, source.csv, self._schemas, readable)
            # When lines were ever decoded, or one of the first files has it, the other files are bad. Otherwise the
            # sink has none, which is said once instead of quarantining every line.
            if form.lacks_commit_ts is not None and run.appended().snapshot_id is None:
                wanted = (each for each in readable if each.size and each.segment not in unknown)
                looked_at = list(itertools.islice(wanted, _LINES_SOUGHT_IN))
                if looked_at and all(form.lacks_commit_ts(raw.head(each, sink_files.HEAD)) for each in looked_at):
                    message, first = problems.PROBLEMS[problems.NO_COMMIT_TS], looked_at[0].segment
                    advice = "then start the feed afresh"
                    raise SourceError(message, feed=run.feed.name, segment=first, line=1, advice=advice)

            def decode(writer: EventWriter, ready: Sequence[Segment]) -> DecodedFiles:
                files: list[SegmentFile] = []
                for each in ready:
                    ref = SegmentRef(raw.place(each), each.size, raw.etag(each))
                    layout, end_ts = layouts.get(each.segment), end_ts_at(each.landed_at)
                    context = FileContext(each.database or "", each.table or "", source.csv, layout, end_ts)
                    of_file = each.table_version, each.physical_partition, each.feed_date
                    # Elsewhere it takes longer to ask for a file twice than to decode it.
                    pieces = -(-each.size // form.piece) if form.piece and raw.store.uri.startswith("file:") else 1
                    files.append(SegmentFile(ref, each.segment, context, *of_file, pieces=max(1, pieces)))
                read = functools.partial(read_in_parts, raw.store.uri, run.lake.storage)
                return decode_segments(lambda: run.spark, files, read, form.decode, writer)

            return decode, unknown

        def find_faults(readable: Sequence[Segment], error: SourceError) -> Mapping[str, str]:
            # A check of each segment does not find all, such as one that is too large.
            named = [each for each in readable if error.segment in (each.segment, raw.place(each))]
            return sink_files.find_unreadable(raw, readable) or {each.segment: error.advised for each in named}

        return append_files(run, segments, faults, prepare, find_faults)

    def resolve_redelivered(self) -> None:
        sink_files.resolve_redelivered(self._run)

    def replay(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        run, source = self._run, self._run.feed.storage_sink
        unreadable = sink_files.find_unreadable(run.raw, segments)
        if unreadable:
            segment, reason = next(iter(unreadable.items()))
            message = f"cannot decode {plural(len(unreadable), 'segment')} again: {reason}"
            advice = "restore them; a file whose content changed is taken by the next run, without being asked"
            raise SourceError(message, feed=run.feed.name, segment=segment, advice=advice)
        return run.land_again(segments, Batches(run.segments.batch + 1, source.max_files, source.max_bytes))

    def checkpoint_ts(self) -> int:
        return self._checkpoint_ts

    def schema_changes(self, upto: int | None = None) -> tuple[Sequence[SchemaChange], Sequence[Rejected]]:
        return self._schemas.changes(upto)

    # --- What a sensor and a status see ---

    def _published_ts(self) -> int:
        """The last cut now."""
        return Checkpoints(self._run.lake, self._run.feed.name).last().checkpoint_ts

    def poll(self, asked: str | None) -> SourceState:
        shown, published = read_checkpoint(self._run.store, utc_now()), self._published_ts()
        last = max(published, int(asked or 0))
        if shown < last:
            reason = f"the source's checkpoint-ts went backwards, to {shown} from {last}"
        elif shown == last:
            reason = f"the checkpoint-ts has not moved from {shown}"
        else:
            reason = f"the checkpoint-ts moved to {shown}"
        return SourceState(str(shown), shown > published, shown > last, reason)

    def new_dates(self) -> list[str]:
        lake, feed = self._run.lake, self._run.feed
        frontier = Frontiers(lake, feed.name).last()
        if frontier is not None and is_of_settings(frontier, feed):
            # Listed from the frontier, so that the cost of a tick depends on what is new.
            files = filter(frontier.is_new, list_new(self._run.store, feed.storage_sink, frontier).data)
        else:
            data = self._list().data
            known = Segments(lake, feed.name).etags(file.path for file in data)
            files = (file for file, etag in zip(data, known, strict=True) if etag != file.etag)
        # Where directories are named by ids, the tables' names are not known here.
        takes = feed.tables.takes
        return sorted({file.feed_date or "" for file in files if not file.table or takes(file.database, file.table)})

    def status(self) -> SourceStatus:
        try:
            self._run.store.check()
            return SourceStatus(checkpoint_ts=read_checkpoint(self._run.store, utc_now()))
        except CdcError as error:
            return SourceStatus(error=error)

    def expiration(self, checkpoint_ts: int | None) -> tuple[str, str | None]:
        read, days = self._published_ts(), self._run.feed.storage_sink.file_expiration_days
        if days:
            said = f"files expire after {plural(days, 'day')}"
        else:
            oldest = min(filter(None, {file.feed_date for file in self._list().data}), default=None)
            said = "when files expire is not known" + ("" if oldest is None else f"; the oldest ones are of {oldest}")
        if not read or checkpoint_ts is None or not may_have_expired(self._run.feed, commit_time(read), checkpoint_ts):
            return said, None
        return said, f"some may have before they were read: the last cut is of {commit_time(read):%Y-%m-%d %H:%M} UTC"


def _without_summarized(run: FeedRun, files: Sequence[DataFile]) -> tuple[list[DataFile], list[str]]:
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
            message = f"{date} cannot be decoded again: it is no longer known what its segments were"
            advice = "they were removed by maintenance.keep_segments_days; their events are there, untouched"
            raise SourceError(message, feed=run.feed.name, advice=advice)
    return others, late


def _new_segments(run: FeedRun, files: Sequence[DataFile], batches: Batches, taken: TakenNames) -> Iterable[Segment]:
    """Yield the segments of new and changed files, and those of the dates to decode again. Raises `SourceError` when a
    date cannot be decoded again completely: its events are replaced."""
    expired: list[Segment] = []
    if run.dates:
        present = {file.path for file in files}
        dated = run.segments.select((pc.field("kind") == FILE) & pc.field("feed_date").isin(sorted(run.dates)))
        gone = (row for row in dated if row.segment not in present)
        expired = [row for row in gone if taken.takes(row.database or "", row.table or "")]
    archive = run.raw if isinstance(run.raw, Archive) else None
    for date in sorted(run.dates):
        lost = [row for row in expired if row.feed_date == date and (archive is None or not archive.has(row))]
        if lost:
            message = f"{date} cannot be decoded again: {len(lost)} of its segments are no longer in the source"
            advice = "restore them; the events that were decoded before are still there and were not touched"
            raise SourceError(message, feed=run.feed.name, segment=lost[0].segment, advice=advice)
    appended = functools.cache(run.appended)
    known = run.segments.etags(file.path for file in files)
    new = [file for file, etag in zip(files, known, strict=True) if etag != file.etag or file.feed_date in run.dates]
    before = run.segments.find(file.path for file in new)
    for file in new:
        old = before.get(file.path)
        yield Segment(
            segment=file.path, kind=FILE, database=file.database, table=file.table, table_version=file.version,
            physical_partition=file.physical_partition, feed_date=file.feed_date, dispatcher=file.dispatcher,
            file_index=file.index, size=file.size, etag=file.etag, modified_at=file.modified,
            batch=batches.of_file(file.size), state=LANDED, landed_at=run.landed_at,
            replaces=None if old is None else replaced_contents(old, appended()),
        )  # fmt: skip
    for row in expired:
        yield replayed_segment(row, batches.of_file(row.size), appended(), run.landed_at)
