"""What a run knows of a sink's files beside their rows: parts that are missing, rows that came again, columns of csv,
and schemas."""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

import pyarrow as pa

from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName, TableVersion
from cdc_lakehouse.config import CsvOptions, FeedConfig
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.decoders.format import Layout
from cdc_lakehouse.decoders.formats.csv import first_row, header_names
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.decoders.registry import FILE_FORMATS
from cdc_lakehouse.errors import ObjectMissingError, SchemaFileError, SourceError
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED, FILE, SUMMARY, Segment, SourceFiles
from cdc_lakehouse.pipeline.feed_tables import TakenNames, is_taken
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.object_store import SEGMENT_LIMIT
from cdc_lakehouse.sources.sink import paths
from cdc_lakehouse.sources.sink.listing import AT_ONCE, may_have_expired, settings_digest
from cdc_lakehouse.sources.sink.paths import DataFile, Listing

_Read = TypeVar("_Read", bytes, str)


def _attempt(read: Callable[[], _Read]) -> _Read | SourceError:
    """Read a file, or return why it cannot be read. Raises an error of the whole store."""
    try:
        return read()
    except SourceError as error:
        if error.segment is None:
            raise
        return error


def find_unreadable(raw: SourceFiles, segments: Sequence[Segment]) -> dict[str, str]:
    """Return the segments that cannot be read or have changed, with the reasons; the next listing reports changed
    ones."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        heads = pool.map(lambda segment: _attempt(lambda: raw.head(segment, 1)), segments)
        found = zip(segments, heads, strict=True)
        return {segment.segment: head.advised for segment, head in found if isinstance(head, SourceError)}


_LINE_ENDS: Final = (b"\n", b"\r")
_LOOKED_AT: Final = 8
"""The most later files at which the rows of one that was cut off are looked for."""
_FILES: Final = 8
"""The most later files over which these rows may be spread."""

# Files that were cut off, such as by a crash: the last line is incomplete, and holds its table like any other bad line.
# It is resolved once later files of the table, of one dispatcher and in its order, contain all of the file's records
# again, in sequence, and the incomplete record in full: the changefeed has restarted before them, so everything after
# them is sent again too. The contents must prove this; otherwise the table stays held.


def resolve_redelivered(run: FeedRun) -> None:
    """Resolve the open rows of the quarantine that stand for the end of a file whose rows were sent again. Reads such
    files and the later ones that can have their rows; none when nothing is open. Needs no JVM."""
    by_segment: dict[str, list[Quarantined]] = defaultdict(list)
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
        contents: list[bytes] = []
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
    read = _attempt(lambda: raw.store.read(raw.place(segment), limit=SEGMENT_LIMIT, etag=raw.etag(segment)))
    return None if isinstance(read, SourceError) else read


class SchemaFiles:
    """The schema files of a listing, and those that are already recorded. Each is read once in a run; recorded ones are
    not read."""

    def __init__(self, run: FeedRun, listed: Sequence[paths.SchemaFilePath]) -> None:
        self._feed, self._recorded, self._listed = run.feed, run.history, listed
        self._read_file = functools.cache(functools.partial(paths.read_schema_file, run.store))
        self.absent_from_rows: dict[tuple[str, int], frozenset[str]] = {}
        """By directory and version: the columns that rows were seen to lack."""

    def changes(self, upto: int | None) -> tuple[list[SchemaChange], list[Rejected]]:
        """Return the changes up to a commit-ts that are not recorded, or are recorded differently, and the unusable
        files."""
        known = self._recorded.changes
        changes = [marked for change in known.values() if (marked := self._marked(change)) != change]
        rejected: list[Rejected] = []
        for file in sorted(self._listed, key=lambda file: (file.version, file.path)):
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
        parts = path.split("/")
        for depth in range(len(parts), 0, -1):
            if (known := self._names.get("/".join(parts[:depth]))) is not None:
                return known.database, known.table or None
        database, table, *_ = (*parts, "", "")
        return database, table or None

    def first_ts(self) -> int | None:
        """Return the least version of the schema files: a changefeed writes none that is older than its start-ts. None
        before the first file."""
        recorded = filter(None, map(paths.schema_file_at, self._recorded.changes))
        return min((*(version for _, version in recorded), *(file.version for file in self._listed)), default=None)

    @functools.cached_property
    def history(self) -> History:
        """The history including all files, even those above the checkpoint."""
        changes = {change.origin: change for change in (*self._recorded.changes.values(), *self.by_place.values())}
        if not changes.keys() - self._recorded.changes.keys():
            return self._recorded.history
        history = History()
        history.apply(changes.values())
        return history

    @functools.cached_property
    def versions(self) -> Mapping[tuple[TableName, int], TableVersion]:
        """The version that each file describes, by table and commit-ts."""
        return self.history.described()

    @functools.cached_property
    def by_place(self) -> Mapping[tuple[str, int], SchemaChange]:
        """The schema of a table's directory at a version, where a usable file has it."""
        places = {paths.schema_file_at(origin): change for origin, change in self._recorded.changes.items()}
        found = {place: change for place, change in places.items() if place is not None}
        for file in self._listed:
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


@dataclass(frozen=True)
class LastFiles:
    """What index files say about last data files. `missing` are files that should exist and do not, `unreadable` are
    index files that name none (sentences by path). `judged` are all index files for which that is known, including
    those that no longer exist."""

    missing: Mapping[str, str]
    unreadable: Mapping[str, str]
    judged: Set[str]


def quarantine_missing(run: FeedRun, listing: Listing, last: LastFiles, schemas: SchemaFiles) -> None:
    """Reconcile the quarantine with what could not be listed, and with what index files say. The listing may only cover
    what is new: where directories could not be listed before, it is complete."""
    unlisted = {each.path: f"the directory cannot be listed: {each.reason}" for each in listing.unreadable}
    missed = {row.segment for row in run.quarantine.unresolved() if row.error_class == problems.MISSING_FILE}
    found = run.segments.known(missed) | {file.path for file in listing.data}
    by_class = {
        problems.UNREADABLE_DIRECTORY: unlisted,
        problems.UNREADABLE_INDEX: last.unreadable,
        problems.MISSING_FILE: last.missing,
    }
    rejected = [
        Rejected(path, None, error_class, message, None, *schemas.name_at(path))
        for error_class, faults in by_class.items()
        for path, message in faults.items()
    ]
    seen = {problems.UNREADABLE_INDEX: last.judged, problems.MISSING_FILE: found}
    run.quarantine.replace(
        lambda row: row.error_class == problems.UNREADABLE_DIRECTORY or row.segment in seen.get(row.error_class, ()),
        rejected,
        run.clock(),
    )


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
    indexes = [
        index
        for index in listing.indexes
        if index.modified < covered and (passed <= index.modified or index.path in before)
    ]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        names = pool.map(lambda index: _attempt(lambda: paths.read_index(run.store, index)), indexes)
        named = dict(zip(indexes, names, strict=True))
    last = {path: index for index, path in named.items() if isinstance(path, str)}
    unreadable: dict[str, str] = {}
    for index, error in named.items():
        # One that is gone since it was listed is no fault.
        if isinstance(error, SourceError) and not isinstance(error, ObjectMissingError):
            run.log.warning("%s", error)
            unreadable[index.path] = f"whether the last data file is there is not known: {error.advised}"
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
    return LastFiles(missing, unreadable, judged)


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
    same = frontier is not None and frontier.settings == settings_digest(run.feed, taken.earlier)
    in_cut = {TableName(row.database, row.table) for row in run.last_cut_rows}
    for life in lives:
        # A table that was left out was read up to its own last file.
        is_new = life.versions[0].commit_ts > cut.checkpoint_ts
        was_read = same or is_new or life.id in cut.held_incarnations or not in_cut.isdisjoint(life.names)
        own = [landed[name][1] for name in life.names if name in landed]
        since = max([_began(life), *([read] if was_read else own)])
        if until > since and may_have_expired(run.feed, since + _WEST, checkpoint_ts) and is_taken(taken.tables, life):
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


@dataclass
class _Columns:
    """The layout of a version of a table, or the reason why there is none. `mistake` is a reason that an option of the
    configuration causes; `by_header` says that a header gives the layout."""

    layout: Layout | None = None
    reason: str = ""
    mistake: str | None = None
    by_header: bool = False


def find_layouts(
    run: FeedRun, options: CsvOptions, files: SchemaFiles, segments: Sequence[Segment]
) -> tuple[dict[str, Layout], dict[str, str]]:
    """Return the layouts of CSV segments, and the reasons why others have none. Raises `SourceError` when no row of a
    new feed fits the configured options."""
    groups: dict[tuple[str, int], list[Segment]] = defaultdict(list)
    for segment in segments:
        assert segment.table_version is not None, segment.segment
        groups[paths.table_directory(segment.segment, segment.table_version), segment.table_version].append(segment)
    layouts, reasons, mistakes = dict[str, Layout](), dict[str, str](), dict[str, str]()

    def columns_of(place: tuple[str, int]) -> _Columns:
        if (change := files.by_place.get(place)) is None:
            reason = f"the schema file of version {place[1]} is missing or cannot be used, so its rows cannot be read"
            return _Columns(reason=reason)
        return _columns(run.raw, options, change, groups[place], _candidates(run.feed, files, change))

    _ = files.by_place  # Before there are threads.
    with ThreadPoolExecutor(AT_ONCE) as pool:  # In a store, each read is a request.
        found = dict(zip(groups, pool.map(columns_of, groups), strict=True))
    for place, columns in found.items():
        names = [segment.segment for segment in groups[place]]
        if columns.mistake is not None:
            mistakes[names[0]] = columns.mistake
        if columns.layout is None:
            reasons |= dict.fromkeys(names, columns.reason)
            continue
        layouts |= dict.fromkeys(names, columns.layout)
        if columns.by_header:
            missing = {column.name for column in files.by_place[place].columns} - set(columns.layout.names)
            files.absent_from_rows[place] = frozenset(missing)
    is_new_feed = DECODED not in run.segments.rows["state"].unique().to_pylist()
    if is_new_feed and len(mistakes) == len(groups) > 0:
        segment, mistake = min(mistakes.items())
        advice = "correct source.csv in the configuration to what the changefeed has"
        raise SourceError(mistake, feed=run.feed.name, segment=segment, advice=advice)
    return layouts, reasons


def _candidates(feed: FeedConfig, files: SchemaFiles, change: SchemaChange) -> Iterator[tuple[str, ...]]:
    """Yield the columns that rows may have, the most certain first."""
    names = tuple(column.name for column in change.columns)
    visible = tuple(name for name in names if not name.lower().startswith("_v$_"))
    yield names
    configured = feed.settings_of(change.database, change.table).virtual_columns
    if configured is not None:
        virtual = {name.lower() for name in configured}
        yield tuple(name for name in visible if name.lower() not in virtual)
    version = files.versions.get((change.name, change.commit_ts))
    if version is not None:
        carried = {column.name for column in version.carried}
        yield tuple(name for name in names if name in carried)
    yield visible


def _columns(
    raw: SourceFiles, options: CsvOptions, change: SchemaChange, group: Sequence[Segment],
    candidates: Iterator[tuple[str, ...]],
) -> _Columns:  # fmt: skip
    """Find the columns that a first row of the files fits. Without a row, none matter."""
    known = tuple(column.name for column in change.columns)
    leading = 4 + options.output_old_value + options.output_handle_key
    possible: list[tuple[str, ...]] | None = None
    found = _Columns(Layout(known, options.output_handle_key))
    for segment in [segment for segment in group if segment.size][:_FILES_READ]:
        fields, head = None, b""
        for size in (HEAD, _WHOLE):
            head = raw.head(segment, size)
            fields = first_row(head, options, whole=len(head) < size)
            if fields is not None or len(head) < size:
                break
        if fields is None:
            # Its records are reported one by one, unless it is the same with all files.
            found.mistake = "no record is csv by the options delimiter and quote"
            continue
        values = len(fields) - leading
        found.mistake = _mistake(options, fields, values - len(known))
        if found.mistake is not None:
            found.layout, found.reason = None, found.mistake
            continue
        header = header_names(head, options)
        if header is not None and len(header) - leading == values:
            return _Columns(Layout(tuple(header[leading:]), options.output_handle_key), by_header=True)
        possible = list(candidates) if possible is None else possible
        if fitting := [names for names in possible if len(names) == values]:
            return _Columns(Layout(fitting[0], options.output_handle_key))
        schema = f"the schema file of version {change.commit_ts} {plural(len(known), 'column')}"
        found.layout, found.reason = None, f"the rows have {plural(values, 'value')}, {schema}"
        if values < len(known):
            found.reason += (
                ", and nothing in the log says which are virtual generated columns, which TiCDC does not write: name "
                f'them in tables.settings."{change.database}.{change.table}".virtual_columns'
            )
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
