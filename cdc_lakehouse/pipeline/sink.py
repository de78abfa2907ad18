"""A storage sink as a source: its checkpoint is read, then it is listed, then new files are recorded."""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time, end_ts_at, tso, utc_now
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName, TableVersion
from cdc_lakehouse.config import CsvOptions, FeedConfig
from cdc_lakehouse.config.reporting import listed, plural
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.format import FileContext
from cdc_lakehouse.decoders.formats.csv import first_row, header_names
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.decoders.registry import FILE_FORMATS
from cdc_lakehouse.errors import CdcError, CheckpointError, ObjectMissingError, SchemaFileError, SourceError
from cdc_lakehouse.lake.tables import segments as lake_segments
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints
from cdc_lakehouse.lake.tables.events import DecodedFiles, SegmentFile
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.schema_history import Frontiers
from cdc_lakehouse.lake.tables.segments import DECODED, FILE, LANDED, SUMMARY, Archive, Segment, SourceFiles, attempt
from cdc_lakehouse.pipeline.feed_tables import TakenNames, is_taken
from cdc_lakehouse.pipeline.run import DecodeFiles, FeedRun, append_files
from cdc_lakehouse.pipeline.source import Landed, LogSource, SourceKind, SourceState, SourceStatus
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.object_store import SEGMENT_LIMIT, read_in_parts
from cdc_lakehouse.sources.sink import listing as walk
from cdc_lakehouse.sources.sink import paths
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
    def _schemas(self) -> SchemaFiles:
        return SchemaFiles(self._run, self._list().schemas)

    def land(self) -> Landed:
        # In this order the listing contains everything that the checkpoint guarantees.
        run, source, faults = self._run, self._run.feed.storage_sink, list[str]()
        published, source_ts = run.last_cut.checkpoint_ts, None
        try:
            source_ts = read_checkpoint(run.store, run.clock())
        except CheckpointError as error:
            faults.append(str(error))
        if source_ts is not None and source_ts < published and published not in run.loaded.values():
            where = f"from {published} (published) to {source_ts}"
            faults.append(f"the source's checkpoint-ts went backwards, {where}: nothing new is applied")
        self._checkpoint_ts = max(source_ts or 0, published)
        # Where the checkpoint cannot be read now, the clock says how long the feed may have stood still.
        shown_ts = self._checkpoint_ts if source_ts is not None else max(self._checkpoint_ts, tso(run.clock()))
        listing, taken, last, since = self._list_due(shown_ts)
        run.require_no_gap()
        files, nameless = list[DataFile](), list[str]()
        for file in listing.data:
            change = None if file.table else self._schemas.by_place.get((file.directory, file.version))
            if change is not None:
                file = replace(file, database=change.database, table=change.table)
            if file.table:
                files.append(file)
            else:
                nameless.append(file.path)
        # Before anything of this run lands: it is compared with what had landed.
        quarantine_expired(run, files, self._schemas, taken, shown_ts, whole=since is None)
        wanted, late = _without_summarized(run, [file for file in files if taken.takes(file.database, file.table)])
        for why, unread, most in (
            ("not read, because a TiCDC sink has no such files", listing.unknown, 5),
            ("waiting for the schema file that names their table", nameless, 1),
            ("not read, because the rows of their date were removed before", late, 1),
        ):
            faults += [f"{why}: {listed(unread, 'file', most)}"] if unread else []
        new = run.land_files(_new_segments(run, wanted, taken), source.max_files, source.max_bytes)
        if new:
            run.log.info("landed %s, up to batch %d", plural(len(new), "segment"), new[-1].batch)
        # What could not be listed, and what index files say. Where directories could not be listed before, this is all.
        unlisted = {each.path: f"the directory cannot be listed: {each.reason}" for each in listing.unreadable}
        rejected = [
            Rejected(path, None, error_class, reason, None, *self._schemas.name_at(path))
            for error_class, faults_by_path in {problems.UNREADABLE_DIRECTORY: unlisted, **last.faults}.items()
            for path, reason in faults_by_path.items()
        ]
        missed = {row.segment for row in run.quarantine.unresolved() if row.error_class == problems.MISSING_FILE}
        found = run.segments.known(missed) | {each.path for each in listing.data}
        seen = {problems.UNREADABLE_INDEX: last.judged, problems.MISSING_FILE: found}

        def is_resolved(row: Quarantined) -> bool:
            return row.error_class == problems.UNREADABLE_DIRECTORY or row.segment in seen.get(row.error_class, ())

        run.quarantine.replace(is_resolved, rejected, run.clock())
        # The state of the listing is last: when a run dies before, the next one lists from an older state, and finds
        # all of this again. Everything that the next run does not list again has landed.
        covered = covered_before(self._checkpoint_ts)
        # Whether their last files exist is known once the checkpoint has passed them.
        kept = frozenset(index.directory for index in listing.indexes if index.modified >= covered)
        # The last DDL by directory, as recorded by earlier runs: the sink was listed after all of it.
        stated = (origin for origin, change in run.history.changes.items() if change.kind == "statement")
        last_ddl = dict(sorted(filter(None, map(paths.schema_file_at, stated))))
        before, settings = run.frontiers.last(), walk.settings_digest(run.feed, taken.earlier)
        unclear = bool(listing.unknown or nameless or listing.unreadable)
        about = source, settings, run.clock(), last_ddl
        frontier = walk.next_frontier(since, listing, *about, kept=kept, unclear=unclear)
        if before is None or frontier.adds_to(before) or (since is None and self._is_old(before)):
            run.frontiers.write(frontier)
        return Landed(new, tuple(faults), source_ts, len(listing.data))

    def _is_old(self, frontier: walk.Frontier) -> bool:
        hours = self._run.feed.storage_sink.full_listing_hours
        return self._run.clock() - frontier.whole_at >= datetime.timedelta(hours=hours)

    def _list_due(self, shown_ts: int) -> tuple[Listing, TakenNames, LastFiles, walk.Frontier | None]:
        """List only new files when the saved listing state allows it, otherwise the whole sink; the checkpoint-ts must
        have been read before, and `shown_ts` is a TSO up to which the source may have gone. Return the listing, the
        names that the feed takes according to its schema files, the results of its index files, and the listing state
        that it began at, None for the whole sink."""
        run, source = self._run, self._run.feed.storage_sink
        missing = {row.segment for row in run.quarantine.unresolved() if row.error_class == problems.MISSING_FILE}
        # Directories in which files are expected that are not new by their number: those that would close a gap,
        # repaired ones that replace unusable ones, and those whose index file names no last file.
        watched, rows = {gap.directory for gap in lake_segments.index_gaps(run.segments.rows)}, run.quarantine.open()
        known = run.segments.known(row.segment for row in rows)
        for row in rows:
            if row.error_class == problems.MISSING_FILE or row.segment in known:
                watched.add(row.segment.rpartition("/")[0])
            elif row.error_class == problems.UNREADABLE_INDEX:
                watched.add(row.segment.rpartition("/meta/")[0])
        since = run.frontiers.last()
        reason = "it is the first time" if since is None else self._reason_for_all(since, len(watched), shown_ts)
        while True:
            if reason is not None:
                run.log.info("listing the whole sink: %s", reason)
                since = None
            listing = self._list() if since is None else walk.list_new(run.store, source, since, watched)
            self._schemas = SchemaFiles(run, listing.schemas)
            taken = TakenNames.of(run.feed.tables, self._schemas.history, run.last_cut.checkpoint_ts)
            last = check_last_files(run, listing, self._checkpoint_ts)
            if since is not None and not last.faults[problems.MISSING_FILE].keys() <= missing:
                reason = "an index file names a data file that is not where it is expected"
            elif since is not None and since.settings != walk.settings_digest(run.feed, taken.earlier):
                reason = "other names of tables are taken, for tables were renamed"
            else:
                return listing, taken, last, since

    def _reason_for_all(self, frontier: walk.Frontier, watched: int, shown_ts: int) -> str | None:
        run = self._run
        if not walk.is_of_settings(frontier, run.feed):
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
        if run.last_cut.checkpoint_ts and walk.may_have_expired(run.feed, read, shown_ts):
            return f"files may have expired since the last cut, of {read:%Y-%m-%d %H:%M} UTC"
        return f"{watched} directories have missing or quarantined files" if watched > _WATCHED_LIMIT else None

    def peek(self) -> None:
        run = self._run
        self._checkpoint_ts = max(read_checkpoint(run.store, run.clock()), run.last_cut.checkpoint_ts)
        _ = self._schemas

    def first_ts(self) -> int | None:
        # A changefeed writes no schema file that is older than its start-ts.
        recorded = filter(None, map(paths.schema_file_at, self._run.history.changes))
        versions = (file.version for file in self._schemas.listed)
        return min((*(version for _, version in recorded), *versions), default=None)

    def join_point(self, position: DumpPosition) -> int:
        return self.tso_of(position, self._run.feed.name)

    def decode(self, segments: Sequence[Segment]) -> tuple[Sequence[Segment], Sequence[Rejected]]:
        run, raw, source = self._run, self._run.raw, self._run.feed.storage_sink
        form, is_local = FILE_FORMATS[source.protocol], raw.store.uri.startswith("file:")
        faults = raw.keep(segments)
        if is_local:  # Elsewhere a check costs a request, and the tasks report it.
            faults |= raw.unreadable([segment for segment in segments if segment.segment not in faults])

        def prepare(readable: Sequence[Segment]) -> tuple[DecodeFiles, Mapping[str, str]]:
            layouts, unknown = dict[str, tuple[str, ...]](), dict[str, str]()
            if source.csv is not None:
                layouts, unknown = find_layouts(run, source.csv, self._schemas, readable)
            # When lines were ever decoded, or one of the first files has it, the other files are bad. Otherwise the
            # sink has none, which is said once instead of quarantining every line.
            if form.lacks_commit_ts is not None and run.appended().snapshot_id is None:
                wanted = (each for each in readable if each.size and each.segment not in unknown)
                looked_at = list(itertools.islice(wanted, _LINES_SOUGHT_IN))
                if looked_at and all(form.lacks_commit_ts(raw.head(each, HEAD)) for each in looked_at):
                    message, first = problems.PROBLEMS[problems.NO_COMMIT_TS], looked_at[0].segment
                    advice = "then start the feed afresh"
                    raise SourceError(message, feed=run.feed.name, segment=first, line=1, advice=advice)

            def decode(ready: Sequence[Segment]) -> DecodedFiles:
                files: list[SegmentFile] = []
                for each in ready:
                    layout, end_ts = layouts.get(each.segment), end_ts_at(each.landed_at)
                    context = FileContext(each.database or "", each.table or "", source.csv, layout, end_ts)
                    # Elsewhere it takes longer to ask for a file twice than to decode it.
                    pieces = -(-each.size // form.piece) if form.piece and is_local else 1
                    files.append(SegmentFile(each, raw.ref(each), context, max(1, pieces)))
                read = functools.partial(read_in_parts, raw.store.uri, run.lake.storage)
                return run.events.decode(files, read, form.decode)

            return decode, unknown

        def find_faults(readable: Sequence[Segment], error: SourceError) -> Mapping[str, str]:
            # A check of each segment does not find all, such as one that is too large.
            named = [each for each in readable if error.segment in (each.segment, raw.ref(each).path)]
            return raw.unreadable(readable) or {each.segment: error.advised for each in named}

        return append_files(run, segments, faults, prepare, find_faults)

    def resolve_redelivered(self) -> None:
        """Reads files that were cut off and the later ones that can have their rows; none when nothing is open."""
        run, by_segment = self._run, defaultdict[str, list[Quarantined]](list)
        for row in run.quarantine.open():
            if row.line is not None and row.error_class != problems.BAD_VALUE:
                by_segment[row.segment].append(row)
        reasons: dict[str, str] = {}
        for segment in run.segments.find(by_segment).values():
            (row, *others) = by_segment[segment.segment]
            if not others and (later := _redelivery(run, segment)):
                have = " and ".join(each.segment for each in later) + (" has" if len(later) == 1 else " have")
                reasons[row.id] = f"{row.message}. The file was cut off: {have} its rows again, and more"
                run.log.info("%s was cut off, and %s its rows again", segment.segment, have)
        run.quarantine.redeliver(reasons, run.clock())

    def replay(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        run, source = self._run, self._run.feed.storage_sink
        unreadable = run.raw.unreadable(segments)
        if unreadable:
            segment, reason = next(iter(unreadable.items()))
            message = f"cannot decode {plural(len(unreadable), 'segment')} again: {reason}"
            advice = "restore them; a file whose content changed is taken by the next run, without being asked"
            raise SourceError(message, feed=run.feed.name, segment=segment, advice=advice)
        return run.land_again(segments, source.max_files, source.max_bytes)

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
        reason = f"the checkpoint-ts {'moved to' if shown > last else 'has not moved from'} {shown}"
        if shown < last:
            reason = f"the source's checkpoint-ts went backwards, to {shown} from {last}"
        return SourceState(str(shown), shown > published, shown > last, reason)

    def new_dates(self) -> list[str]:
        lake, feed = self._run.lake, self._run.feed
        frontier = Frontiers(lake, feed.name).last()
        if frontier is not None and walk.is_of_settings(frontier, feed):
            # Listed from the frontier, so that the cost of a tick depends on what is new.
            files = filter(frontier.is_new, walk.list_new(self._run.store, feed.storage_sink, frontier).data)
        else:
            data = self._list().data
            known = lake_segments.Segments(lake, feed.name).etags(file.path for file in data)
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
        at, feed = commit_time(read), self._run.feed
        if not read or checkpoint_ts is None or not walk.may_have_expired(feed, at, checkpoint_ts):
            return said, None
        return said, f"some may have before they were read: the last cut is of {at:%Y-%m-%d %H:%M} UTC"


def _without_summarized(run: FeedRun, files: Sequence[DataFile]) -> tuple[list[DataFile], list[str]]:
    """Return the files without those of dates whose segments were summarized, and the paths of such files that were
    written since."""
    summaries, passed = run.segments.summarized(), dict[str, Segment]()
    for file in files:
        summary = summaries.get(TableName(file.database, file.table))
        if summary is not None and file.feed_date is not None and file.feed_date <= (summary.feed_date or ""):
            passed[file.path] = summary
    for date in sorted(run.dates):
        if any(date <= (summary.feed_date or "") for summary in summaries.values()):
            message = f"{date} cannot be decoded again: it is no longer known what its segments were"
            advice = "they were removed by maintenance.keep_segments_days; their events are there, untouched"
            raise SourceError(message, feed=run.feed.name, advice=advice)
    late = [f.path for f in files if f.path in passed and f.modified > (passed[f.path].modified_at or f.modified)]
    return [file for file in files if file.path not in passed], late


def _new_segments(run: FeedRun, files: Sequence[DataFile], taken: TakenNames) -> Iterable[Segment]:
    """Yield the segments of new and changed files, and those of the dates to decode again, without their batches.
    Raises `SourceError` when a date cannot be decoded again completely: its events are replaced."""
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
            batch=0, state=LANDED, landed_at=run.landed_at,
            **({} if old is None else lake_segments.earlier_state(old, appended())),
        )  # fmt: skip
    for row in expired:
        yield lake_segments.replayed_segment(row, 0, appended(), run.landed_at)


# What is known of files beside their rows: parts that are missing, rows that came again, columns of csv, schemas.

_LINE_ENDS: Final = (b"\n", b"\r")
_LOOKED_AT: Final = 8
"""The most later files at which the rows of one that was cut off are looked for."""
_FILES: Final = 8
"""The most later files over which these rows may be spread."""

# Files that were cut off, such as by a crash: the last line is incomplete, and holds its table like any other bad line.
# It is resolved once later files of the table, of one dispatcher and in its order, contain all of the file's records
# again, in sequence, and the incomplete record in full: the changefeed has restarted before them, so everything after
# them is sent again too. The contents must prove this; otherwise the table stays held.


def _redelivery(run: FeedRun, cut: Segment) -> Sequence[Segment]:
    """Return the later segments that together contain the rows of one that was cut off, and more; none when there are
    none."""
    if cut.kind != FILE or cut.state != DECODED or not cut.events or cut.quarantined != 1:
        return ()

    def place(segment: Segment) -> tuple[int, str, int]:
        return segment.table_version or 0, segment.feed_date or "", segment.file_index or 0

    def is_later(segment: Segment) -> bool:
        if place(segment)[:2] == place(cut)[:2] and segment.dispatcher != cut.dispatcher:
            # Each dispatcher numbers its own files.
            before, after = cut.modified_at, segment.modified_at
            return before is not None and after is not None and after > before
        return place(segment) > place(cut)

    same_table = (pc.field("database") == cut.database) & (pc.field("table") == cut.table)
    decoded = (pc.field("kind") == FILE) & (pc.field("state") == DECODED) & (pc.field("events") > 0)
    found = run.segments.select(decoded & same_table)
    later = [each for each in found if each.physical_partition == cut.physical_partition and is_later(each)]
    # Those of each dispatcher in the order in which it wrote them.
    later.sort(key=lambda segment: (segment.dispatcher or "", place(segment)))
    firsts = [n for n, each in enumerate(later) if (each.min_commit_ts or 0) <= (cut.min_commit_ts or 0)]
    content = _content(run.raw, cut) if firsts else None
    if content is None or content.endswith(_LINE_ENDS):
        return ()
    source = run.feed.storage_sink

    def is_cut_off_there(row: Quarantined, content: bytes) -> bool:
        raw = row.raw or b""  # All lines before it are valid.
        return 0 < len(raw) < problems.RAW_LIMIT and content.endswith(raw) and not raw.endswith(_LINE_ENDS)

    for first in firsts[:_LOOKED_AT]:
        contents = list[bytes]()
        for each in later[first : first + _FILES]:
            redelivered = _content(run.raw, each) if each.dispatcher == later[first].dispatcher else None
            rows = run.quarantine.rows if each.quarantined else ()
            bad = [row for row in rows if row.segment == each.segment and row.state != "replayed"]
            if redelivered is None or not all(is_cut_off_there(row, redelivered) for row in bad):
                break
            contents.append(redelivered)
            if FILE_FORMATS[source.protocol].redelivers(content, contents, source.csv):
                return later[first : first + len(contents)]
            is_beyond = (each.min_commit_ts or 0) > (cut.max_commit_ts or 0)
            if bad or is_beyond or sum(map(len, contents)) > SEGMENT_LIMIT:
                break
    return ()


def _content(raw: SourceFiles, segment: Segment) -> bytes | None:
    """Read a segment; return None when it cannot be read or has changed."""
    ref = raw.ref(segment)
    read = attempt(lambda: raw.store.read(ref.path, limit=SEGMENT_LIMIT, etag=ref.etag))
    return None if isinstance(read, SourceError) else read


class SchemaFiles:
    """The schema files of a listing, and those that are already recorded. Each is read once in a run; recorded ones are
    not read."""

    def __init__(self, run: FeedRun, listed: Sequence[paths.SchemaFilePath]) -> None:
        self._feed, self._recorded, self.listed = run.feed, run.history, listed
        self._read_file = functools.cache(functools.partial(paths.read_schema_file, run.store))
        self.absent_from_rows: dict[tuple[str, int], frozenset[str]] = {}
        """By directory and version: the columns that rows were seen to lack."""

    def changes(self, upto: int | None) -> tuple[list[SchemaChange], list[Rejected]]:
        """Return the changes up to a commit-ts that are not recorded, or are recorded differently, and the unusable
        files."""
        known = self._recorded.changes
        changes = [marked for change in known.values() if (marked := self._marked(change)) != change]
        rejected: list[Rejected] = []
        for file in sorted(self.listed, key=lambda file: (file.version, file.path)):
            if file.path in known or (upto is not None and file.version > upto):
                continue
            try:
                changes.append(self._marked(self._read_file(file)))
            except (SchemaFileError, SourceError) as error:
                database, table = self.name_at(file.directory)
                what = file.path, None, problems.BAD_SCHEMA_FILE, error.advised, None
                rejected.append(Rejected(*what, database, table))
        return changes, rejected

    def name_at(self, path: str) -> tuple[str | None, str | None]:
        """Return the database and table of a path, as far as they are known; a table whose directory is named by its id
        may have had other names at other times."""
        for place in (path, *paths.above(path)):
            if (known := self._names.get(place)) is not None:
                return known.database, known.table or None
        database, table, *_ = (*path.split("/"), "", "")
        return database, table or None

    @functools.cached_property
    def history(self) -> History:
        """The history including all files, even those above the checkpoint."""
        changes = {**self._recorded.changes, **{change.origin: change for change in self.by_place.values()}}
        if len(changes) == len(self._recorded.changes):
            return self._recorded.history
        history = History()
        history.apply(changes.values())
        return history

    @functools.cached_property
    def by_place(self) -> Mapping[tuple[str, int], SchemaChange]:
        """The schema of a table's directory at a version, where a usable file has it."""
        places = {paths.schema_file_at(origin): change for origin, change in self._recorded.changes.items()}
        found = {place: change for place, change in places.items() if place is not None}
        for file in self.listed:
            if file.path not in self._recorded.changes:
                with contextlib.suppress(SchemaFileError, SourceError):  # `changes` reports it.
                    found[file.directory, file.version] = self._read_file(file)
        return found

    @functools.cached_property
    def _names(self) -> Mapping[str, TableName]:
        return {directory: TableName(c.database, c.table) for (directory, _), c in sorted(self.by_place.items())}

    def _marked(self, change: SchemaChange) -> SchemaChange:
        """Return the change with what is known of its columns from elsewhere: which of them are virtual."""
        names = self._feed.settings_of(change.database, change.table).virtual_columns
        configured = {name.lower() for name in names or ()}
        place = paths.schema_file_at(change.origin)
        seen = self.absent_from_rows.get(place, frozenset()) if place else frozenset()

        def virtual(column: SourceColumn) -> Literal["configured", "seen"] | None:
            if column.name.lower() in configured:
                return "configured"
            return "seen" if column.name in seen or column.virtual == "seen" else None

        columns = tuple(replace(column, virtual=virtual(column)) for column in change.columns)
        return change if columns == change.columns else replace(change, columns=columns)


# Parts that a listing could not see: directories that cannot be read, last files that are missing, index files that do
# not name the last file, and files that expired before they were read. Each is a quarantine row until a later listing
# sees it, so that its table is held by the same rule as for a bad line.

# The possible difference between the clocks of the database and of the store.
_CLOCKS: Final = datetime.timedelta(minutes=5)
_WEST: Final = datetime.timedelta(hours=12)
"""How far the date of a sink may be behind the date in UTC."""


class LastFiles(NamedTuple):
    """What index files say about last data files. `faults` are sentences by path: of data files that should exist and
    do not, and of index files that name none. `judged` are all index files for which that is known, including those
    that no longer exist."""

    faults: Mapping[str, Mapping[str, str]]
    judged: Set[str]


def covered_before(checkpoint_ts: int) -> datetime.datetime:
    """Return the time such that all events in files written before it, by the store's clock, are at or below the
    checkpoint-ts."""
    return commit_time(checkpoint_ts) - _CLOCKS


def check_last_files(run: FeedRun, listing: Listing, checkpoint_ts: int) -> LastFiles:
    """See which last data files should be there and are not: a hole in the numbers does not show them.

    Some versions of TiCDC write the index file before the data file that it names, so a missing file may still be
    written, unless the checkpoint is later than the index file: it guarantees all events of that time. Each index file
    is read once, when the checkpoint passes it; one that names no file is read until it does or is gone."""
    passed, covered = covered_before(run.last_cut.checkpoint_ts), covered_before(checkpoint_ts)
    rows = [row for row in run.quarantine.unresolved() if row.error_class == problems.UNREADABLE_INDEX]
    before = {row.segment for row in rows}
    passing = [each for each in listing.indexes if each.modified < covered]
    indexes = [each for each in passing if passed <= each.modified or each.path in before]
    with ThreadPoolExecutor(walk.AT_ONCE) as pool:
        names = list(pool.map(lambda index: attempt(lambda: paths.read_index(run.store, index)), indexes))
    last, unreadable = dict[str, paths.IndexFile](), dict[str, str]()
    for index, name in zip(indexes, names, strict=True):
        if isinstance(name, str):
            last[name] = index
        elif not isinstance(name, ObjectMissingError):  # One that is gone since it was listed is no fault.
            run.log.warning("%s", name)
            unreadable[index.path] = f"whether the last data file is there is not known: {name.advised}"
    seen = {*run.segments.known(last), *(file.path for file in listing.data)}
    message = "the data file is missing: {} names it as the last, and the checkpoint-ts covers it"
    missing = {path: message.format(index.path) for path, index in last.items() if path not in seen}
    judged, listed_now = {index.path for index in indexes}, {index.path for index in listing.indexes}
    for path in {row.segment for row in rows if row.state == "open"} - listed_now:
        # The directories of the open ones are listed completely, unless that failed.
        try:
            run.store.head(path, 1)
        except ObjectMissingError:
            judged.add(path)
        except SourceError:
            continue  # The next run looks again.
    return LastFiles({problems.MISSING_FILE: missing, problems.UNREADABLE_INDEX: unreadable}, judged)


def quarantine_expired(
    run: FeedRun, files: Sequence[DataFile], schemas: SchemaFiles, taken: TakenNames, checkpoint_ts: int, *, whole: bool
) -> None:
    """Quarantine the tables of which files may have expired before they were read, and resolve those that are complete
    again. Only a listing of the whole sink shows which, against what had landed before it: this is committed before
    new segments land."""
    ends = (life.upto(checkpoint_ts) for life in schemas.history.incarnations().values())
    lives = [life for life in ends if life is not None and life.dropped_ts is None]

    def is_complete(row: Quarantined) -> bool:
        since, until = map(datetime.datetime.fromisoformat, row.segment.rpartition("/")[2].split(".."))
        of_table = [life for life in lives if TableName(row.database or "", row.table or "") in life.names]
        names = {name for life in of_table if _began(life) < until for name in life.names}
        # Files expire in the order of their dates: with one that old all later ones are there.
        return not names or any(
            _written(file.feed_date, file.modified) <= since and TableName(file.database, file.table) in names
            for file in files
        )

    found = list(_expired(run, files, lives, taken, checkpoint_ts)) if whole else []
    expired = problems.EXPIRED_FILES
    run.quarantine.replace(lambda row: row.error_class == expired and is_complete(row), found, run.clock())


def _expired(
    run: FeedRun, files: Sequence[DataFile], lives: Sequence[Incarnation], taken: TakenNames, checkpoint_ts: int
) -> Iterator[Rejected]:
    # When the first and the last of the files that have landed were written, by the table that paths name.
    rows = run.segments.rows.filter(pc.field("kind").isin([FILE, SUMMARY]) & pc.field("table").is_valid())
    ends = [(column, end) for column in ("feed_date", "modified_at") for end in ("min", "max")]
    landed = {
        TableName(row["database"], row["table"]): [
            _written(row[f"feed_date_{end}"], row[f"modified_at_{end}"]) for end in ("min", "max")
        ]
        for row in rows.group_by(["database", "table"]).aggregate(ends).to_pylist()
    }
    cut = run.last_cut
    # No file of the sink that was written before the date of the last one that landed, or the time of the last cut, is
    # unread: a file that was not there when its checkpoint-ts was read is younger.
    known = [commit_time(cut.checkpoint_ts) - _WEST] if cut.checkpoint_ts != BEGINNING else []
    read = max([*known, *(newest for _, newest in landed.values())], default=None)
    if read is None:
        return  # The feed has read nothing.
    # A sink that was copied elsewhere has new times, and the paths that have landed.
    kept = run.segments.rows.filter(pc.field("segment").isin(pa.array([file.path for file in files], pa.string())))
    times = [(file.feed_date, file.modified) for file in files]
    times += [tuple(pc.min(kept[name]).as_py() for name in ("feed_date", "modified_at"))] if len(kept) else []
    until = min((_written(*time) for time in times), default=commit_time(checkpoint_ts))
    if not (run.feed.storage_sink.file_expiration_days or any(oldest < until for oldest, _ in landed.values())):
        return  # Nothing shows that files expire.
    frontier = run.frontiers.last()
    same = frontier is not None and frontier.settings == walk.settings_digest(run.feed, taken.earlier)
    in_cut = {TableName(row.database, row.table) for row in run.last_cut_rows}
    for life in lives:
        # A table that was left out was read up to its own last file.
        is_new = life.versions[0].commit_ts > cut.checkpoint_ts
        was_read = same or is_new or life.id in cut.held_incarnations or not in_cut.isdisjoint(life.names)
        own = [landed[name][1] for name in life.names if name in landed]
        since = max([_began(life), *([read] if was_read else own)])
        is_late = until > since and walk.may_have_expired(run.feed, since + _WEST, checkpoint_ts)
        if is_late and is_taken(taken.tables, life):
            database, table = life.last.name.database, life.last.name.table
            reason = (
                f"data files that were written from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC may have been "
                "removed from the sink before they were read; whether the table changed in that time is not known"
            )
            place = f"{database}/{table}/{since.isoformat()}..{until.isoformat()}"
            yield Rejected(place, None, problems.EXPIRED_FILES, reason, None, database, table)


def _written(feed_date: str | None, modified: datetime.datetime | None) -> datetime.datetime:
    """Return a time in the order in which files were written, which is that in which they expire: the beginning of
    their date, or where they have none the store's time."""
    try:
        return datetime.datetime.fromisoformat(feed_date or "").replace(tzinfo=datetime.UTC)
    except ValueError:
        return modified or commit_time(BEGINNING)


def _began(life: Incarnation) -> datetime.datetime:
    """Return the time of a table's CREATE, load or last TRUNCATE: files that were written before do not matter."""
    return commit_time(max(life.versions[0].commit_ts, life.emptied_ts)) - _WEST


# The columns that the values of csv rows belong to. Values are identified by position only, and TiCDC omits virtual
# generated columns and the hidden columns of expression indexes, which its schema files list like all others. The
# columns are determined, in this order, by the file's header, when it has as many names as the rows have values; by the
# number of values, when it is that of all columns; by the configuration; by the DDL statements of the log. When none of
# these decides, nothing is guessed: the files wait, and their table with them.

HEAD: Final = 1024 * 1024
"""Bytes of a file in which its first row is searched, before the whole file is."""
_WHOLE: Final = 1024 * 1024 * 1024
_FILES_READ: Final = 5
"""Files of a table's version whose first row is read, until one fits: a single broken row proves nothing."""
_SMALLEST_TSO: Final = 1 << 40


class _Columns(NamedTuple):
    """The columns of a table version's rows, or the reason why there are none. `mistake` is a reason that an option of
    the configuration causes; `by_header` says that a header gives them."""

    layout: tuple[str, ...] | None
    reason: str = ""
    mistake: str | None = None
    by_header: bool = False


def find_layouts(
    run: FeedRun, options: CsvOptions, files: SchemaFiles, segments: Sequence[Segment]
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the columns of CSV segments' rows, and the reasons why others have none. Raises `SourceError` when no row
    of a new feed fits the configured options."""
    groups: dict[tuple[str, int], list[Segment]] = defaultdict(list)
    for segment in segments:
        assert segment.table_version is not None, segment.segment
        groups[paths.table_directory(segment.segment, segment.table_version), segment.table_version].append(segment)
    layouts, reasons, mistakes = dict[str, tuple[str, ...]](), dict[str, str](), dict[str, str]()
    changes, described = files.by_place, files.history.described()  # Before there are threads.

    def columns_of(place: tuple[str, int]) -> _Columns:
        if (change := changes.get(place)) is None:
            reason = f"the schema file of version {place[1]} is missing or cannot be used, so its rows cannot be read"
            return _Columns(None, reason)
        possible = _candidates(run.feed, change, described.get((change.name, change.commit_ts)))
        return _columns(run.raw, options, change, groups[place], list(possible))

    with ThreadPoolExecutor(walk.AT_ONCE) as pool:  # In a store, each read is a request.
        found = list(pool.map(columns_of, groups))
    for (place, group), columns in zip(groups.items(), found, strict=True):
        names = [segment.segment for segment in group]
        if columns.mistake is not None:
            mistakes[names[0]] = columns.mistake
        if columns.layout is None:
            reasons |= dict.fromkeys(names, columns.reason)
            continue
        layouts |= dict.fromkeys(names, columns.layout)
        if columns.by_header:
            missing = {column.name for column in changes[place].columns} - set(columns.layout)
            files.absent_from_rows[place] = frozenset(missing)
    is_new_feed = DECODED not in run.segments.rows["state"].unique().to_pylist()
    if is_new_feed and len(mistakes) == len(groups) > 0:
        segment, mistake = min(mistakes.items())
        advice = "correct source.csv in the configuration to what the changefeed has"
        raise SourceError(mistake, feed=run.feed.name, segment=segment, advice=advice)
    return layouts, reasons


def _candidates(feed: FeedConfig, change: SchemaChange, version: TableVersion | None) -> Iterator[tuple[str, ...]]:
    """Yield the columns that rows may have, the most certain first."""
    yield (names := tuple(column.name for column in change.columns))
    visible = tuple(name for name in names if not name.lower().startswith("_v$_"))
    configured = feed.settings_of(change.database, change.table).virtual_columns
    if configured is not None:
        virtual = {name.lower() for name in configured}
        yield tuple(name for name in visible if name.lower() not in virtual)
    if version is not None:
        carried = {column.name for column in version.carried}
        yield tuple(name for name in names if name in carried)
    yield visible


def _columns(
    raw: SourceFiles, options: CsvOptions, change: SchemaChange, group: Sequence[Segment],
    possible: Sequence[tuple[str, ...]],
) -> _Columns:  # fmt: skip
    """Find the columns that a first row of the files fits. Without a row, none matter."""
    known, leading = len(change.columns), 4 + options.output_old_value + options.output_handle_key
    found = _Columns(possible[0])
    for segment in [segment for segment in group if segment.size][:_FILES_READ]:
        for size in (HEAD, _WHOLE):
            head = raw.head(segment, size)
            fields = first_row(head, options, whole=len(head) < size)
            if fields is not None or len(head) < size:
                break
        if fields is None:
            # Its records are reported one by one, unless it is the same with all files.
            found = found._replace(mistake="no record is csv by the options delimiter and quote")
            continue
        values = len(fields) - leading
        if (mistake := _mistake(options, fields, values - known)) is not None:
            found = _Columns(None, mistake, mistake)
            continue
        header = header_names(head, options)
        if header is not None and len(header) - leading == values:
            return _Columns(tuple(header[leading:]), by_header=True)
        if (fitting := next((names for names in possible if len(names) == values), None)) is not None:
            return _Columns(fitting)
        schema = f"the schema file of version {change.commit_ts} {plural(known, 'column')}"
        reason = f"the rows have {plural(values, 'value')}, {schema}"
        if values < known:
            reason += (
                ", and nothing in the log says which are virtual generated columns, which TiCDC does not write: name "
                f'them in tables.settings."{change.database}.{change.table}".virtual_columns'
            )
        found = _Columns(None, reason)
    return found


def _mistake(options: CsvOptions, fields: Sequence[str | None], extra: int) -> str | None:
    """Return the contradiction between a first row and an option, None when there is none. `extra` is how many values
    it has more than the table has columns."""
    if fields[0] not in ("I", "U", "D") or len(fields) < 4:
        begin = str(fields[0])[:20]
        return f"a row begins with {begin!r}, which is no operation by the options delimiter and quote"
    ts, beyond = fields[3] or "", fields[4] if len(fields) > 4 else None
    if not (ts.isdecimal() and int(ts) >= _SMALLEST_TSO):
        return (
            "the rows have no commit-ts: set include-commit-ts = true under [sink.csv] in the changefeed, and start it "
            "afresh"
        )
    if options.output_old_value and beyond not in ("true", "false"):
        return "the rows do not say is-update: the changefeed has not set output-old-value, source.csv has"
    if not options.output_old_value and beyond in ("true", "false") and extra == 1:
        return "the rows say is-update: the changefeed has set output-old-value, source.csv has not"
    if not options.output_handle_key and extra == 1:
        return "the rows have one value too many: see whether the changefeed has set output-handle-key"
    return None
