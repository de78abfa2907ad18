"""Determine which tables are held, and why, and record what people decide about it. Each run derives the holds from
the lake: when the reason is gone, so is the hold."""

from __future__ import annotations

import datetime
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from cdc_lakehouse.changelog.history import History, Incarnation
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.config.reporting import some
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.problems import BAD_VALUE, EXPIRED_FILES
from cdc_lakehouse.errors import CdcError, ConfigurationError, DdlError
from cdc_lakehouse.lake.current.tables import CurrentTables, TableState
from cdc_lakehouse.lake.current.typed_rows import initial_value
from cdc_lakehouse.lake.faults import described, engine_fault
from cdc_lakehouse.lake.files import FIRST_WITH_VECTORS
from cdc_lakehouse.lake.tables.quarantine import Decision, Decisions, Quarantined
from cdc_lakehouse.lake.tables.segments import FILE, Segment, index_gaps, table_versions
from cdc_lakehouse.pipeline.feed_tables import is_taken, key_columns, value_format
from cdc_lakehouse.pipeline.run import FeedRun

_SHOWN: Final = 5
_LONGEST: Final = 400
"""The most characters of a statement that are shown: each cut keeps the reason, and statements can have a million
characters."""
OF_QUARANTINED: Final = (
    "The next run takes what you fix in the source. `cdc-lakehouse quarantine list` shows the rows, "
    "`cdc-lakehouse quarantine replay` decodes them again after you fixed a setting, and `cdc-lakehouse quarantine "
    "discard` gives up what is lost"
)
_OF_EXPIRED: Final = (
    "Load the table again from a later dump (`cdc-lakehouse load --table`), or restore the files and the last one that "
    "was read. Where the table did not change in that time, `cdc-lakehouse quarantine discard` releases it"
)
_OF_SCHEMA_FILE: Final = "Restore the schema file as TiCDC wrote it, and the next run continues"
_OF_GAP: Final = "Restore the files, or set policy.index_gap to skip"
_OF_KEY: Final = "Correct it in the configuration"
_OF_STATEMENT: Final = "Load the table again from a dump that was made after the statement"
_OF_PERSON: Final = "`cdc-lakehouse resume"
_WAYS_OUT: Final = (
    OF_QUARANTINED, _OF_EXPIRED, _OF_SCHEMA_FILE, _OF_GAP, _OF_KEY, _OF_STATEMENT, _OF_PERSON,
    "The next run tries again",
)  # fmt: skip


Holds = dict[str, str]
"""The reasons why tables are held: a sentence by incarnation, or by the identity of the name of a table without a
history. Where two steps found one, `found | holds` keeps the earlier reason."""


def hold_reason(error: Exception, what: str, table: TableName) -> str:
    """Return the reason to hold a table after an error in its own work, such as `be renamed`. Raises faults of the
    engine, the catalog or the warehouse: they say nothing about the table, and may pass."""
    fault = engine_fault(error)
    if fault is not None:
        raise fault from (None if fault is error else error)
    if isinstance(error, DdlError) and error.advice is None:
        return f"{error}. {ddl_advice(table)}"
    return str(error) if isinstance(error, CdcError) else f"the table could not {what}: {described(error)}"


def ddl_advice(table: TableName) -> str:
    """Return what to do about a table whose rows are unknown after a statement."""
    return (
        f"{_OF_STATEMENT} (`cdc-lakehouse load --table {table}`), drop it and create it again in the source, or leave "
        "it out (tables.exclude)"
    )


def reason_and_advice(hold: str) -> tuple[str, str]:
    """Split what is said of a hold. The reason can have sentences of its own: those of statements and of people."""
    places = [place for way_out in _WAYS_OUT if (place := hold.rfind(f". {way_out}")) >= 0]
    end = min(places, default=len(hold))
    return hold[:end], hold[end + 2 :]


def find_holds(run: FeedRun, lives: Mapping[str, Incarnation], checkpoint_ts: int) -> Holds:
    """Find the holds of taken tables at a checkpoint-ts that follow from the history, from open rows of the quarantine,
    from files and messages that are missing, and those that a person decided. `lives` are all tables of the feed,
    because a path may belong to one that is left out."""
    feed, history, segments = run.feed, run.history.history, run.segments
    said: dict[str, dict[str, None]] = defaultdict(dict)  # Each reason and way out once, in order.
    ways_out: dict[str, dict[str, None]] = defaultdict(dict)

    def add(ids: Iterable[str], reason: str, way_out: str | None = None) -> None:
        for id in ids:
            said[id][reason] = None
            ways_out[id] |= {} if way_out is None else {way_out: None}

    directory = _Directory(feed, lives, history)
    for hold in run.decisions.holds():
        reason = f"held by {hold.decided_by} since {hold.decided_at:%Y-%m-%d %H:%M} UTC: {hold.reason}"
        add([hold.incarnation], reason, f"{_OF_PERSON} {hold.database}.{hold.table}` releases it")
    for id, life in directory.taken.items():
        name = life.last.name
        for version in life.versions:
            if version.hold is not None:
                add([id], f"{_statement(version)}: {version.hold}", ddl_advice(name))
        if life.dropped_ts is not None:
            continue
        configured, setting = feed.settings_of(name.database, name.table).primary_key, f'tables.settings."{name}"'
        if unknown := [column for column in configured or () if life.last.named(column) is None]:
            columns = ", ".join(unknown)
            add([id], f"{setting}.primary_key names columns that the table does not have: {columns}", _OF_KEY)
        elif not key_columns(feed, life.last):
            reason = "the table has no primary key and no NOT NULL unique key that the log shows"
            add([id], f"{reason}: set {setting}.primary_key in the configuration")
    policies: dict[str, str] = {
        **dict.fromkeys((problems.BAD_WATERMARK, problems.BAD_STATEMENT), "skip"),
        problems.BAD_TABLE_OF_DUMP: "hold",  # What is missing may be the whole table: only a person can discard that.
        **dict.fromkeys((problems.MISSING_FILE, problems.UNREADABLE_INDEX, EXPIRED_FILES), feed.policy.index_gap),
    }
    # In one order: each cut keeps the reason, and another text would be another cut.
    rows = sorted(run.quarantine.open(), key=lambda row: (row.segment, row.line or 0, row.id))
    known = segments.find(row.segment for row in rows)
    for row in rows:
        if row.error_class != BAD_VALUE and policies.get(row.error_class, feed.policy.quarantine) == "hold":
            words = f"{row.segment}{'' if row.line is None else f' line {row.line}'}: {row.message}"
            way_out = _OF_EXPIRED if row.error_class == EXPIRED_FILES else OF_QUARANTINED
            add(directory.of_quarantined(row, known.get(row.segment)), words, way_out)
    for place, name, version in table_versions(segments.rows):
        if version <= checkpoint_ts and (name, version) not in directory.versions:
            add(directory.named(name), f"the schema file of version {version} is missing ({place})", _OF_SCHEMA_FILE)
    if left_out := run.signals.left_out():  # Rows of what a feed of topics left out, whose messages were removed.
        from cdc_lakehouse.lake.tables.records import landed_state  # noqa: PLC0415 - It loads the client of Kafka.

        gone = landed_state(run.lake, feed.name).first_batch
        for name in [name for name, batch in left_out.items() if batch < gone and directory.takes(name)]:
            reason = "its rows of while it was left out are no longer in `records`: leave it out again"
            add(directory.named(name), reason)
    for gap in index_gaps(segments.rows) if feed.policy.index_gap == "hold" else ():
        name = TableName(gap.database, gap.table)
        owner = directory.versions.get((name, gap.table_version))
        owners, numbers = directory.named(name) if owner is None else [owner], [str(number) for number in gap.missing]
        add(owners, f"data files are missing: {gap} has no file {some(numbers, _SHOWN)}", _OF_GAP)
    holds: Holds = {}
    for id, reasons in said.items():
        if id in directory.taken or id not in lives:
            more = "" if len(reasons) <= _SHOWN else f"; and {len(reasons) - _SHOWN} more"
            holds[id] = ". ".join(["; ".join([*reasons][:_SHOWN]) + more, *ways_out[id]])
    return holds


def unapproved(
    feed: FeedConfig, decisions: Decisions, life: Incarnation, find: Callable[[Incarnation], TableState | None]
) -> Sequence[TableVersion]:
    """Return the versions whose rewrites wait for approval. A table without rows has none to rewrite."""
    name = life.last.name
    if feed.ddl_of(name.database, name.table).rewrite == "apply" or life.dropped_ts is not None:
        return ()
    has_defaults = feed.format_version_of(name.database, name.table) >= FIRST_WITH_VECTORS

    def fills_rows(before: TableVersion, version: TableVersion) -> bool:
        # Without defaults, earlier rows are rewritten to get values of new columns.
        values = value_format(feed, version.name)
        new = (column for column in version.carried if before.column(column.id) is None)
        return not has_defaults and any(initial_value(column, values) is not None for column in new)

    pairs = itertools.pairwise(life.versions)
    rewrites = [version for before, version in pairs if version.effect == "rewrite" or fills_rows(before, version)]
    approved = decisions.approved_upto(life.id) if rewrites else 0
    waiting = [version for version in rewrites if version.commit_ts > max(approved, life.emptied_ts)]
    state = find(life) if waiting else None
    if state is None or not state.row_count:
        return ()
    return [version for version in waiting if version.commit_ts > state.applied_ts]


def waiting_reason(life: Incarnation, waiting: Sequence[TableVersion]) -> str:
    return (
        f"{'; '.join(map(_statement, waiting))}: rewrites the table's rows, and policy.ddl.rewrite is hold: look at it "
        f"with `cdc-lakehouse plan`, then approve it with `cdc-lakehouse resume {life.last.name}`"
    )


# Decisions of people, on which the next run acts.


def hold_table(run: FeedRun, table: str, reason: str, decided_by: str, now: datetime.datetime) -> None:
    """Hold a table (`database.table`) at its last cut. Raises `ConfigurationError` when the feed has no such table."""
    life = _live(run, table)
    name = life.last.name
    run.decisions.add(Decision("hold", life.id, name.database, name.table, now, decided_by, reason))


def resume_table(run: FeedRun, table: str, now: datetime.datetime) -> tuple[Decision | None, list[TableVersion]]:
    """Resume a table that a person holds, or whose rewrite waits; return the hold that was removed, and the versions
    whose rewrite is approved. A hold is found by the table's current name, or by its name when it was held."""
    lives = {id: life for id, life in run.history.history.incarnations().items() if str(life.last.name) == table}
    holds = run.decisions.holds()
    of_table = (each for each in holds if each.incarnation in lives or f"{each.database}.{each.table}" == table)
    if (hold := next(of_table, None)) is not None:
        run.decisions.release(hold.incarnation)
    tables = CurrentTables(run.lake, run.feed)
    approved: list[TableVersion] = []
    for life in lives.values():
        if waiting := unapproved(run.feed, run.decisions, life, tables.find):
            name, upto = life.last.name, waiting[-1].commit_ts
            run.decisions.add(Decision("rewrite", life.id, name.database, name.table, now, commit_ts=upto))
            approved += waiting
    return hold, approved


def tables_named(run: FeedRun, tables: Iterable[str]) -> frozenset[TableName]:
    """Return the live tables of these names (`database.table`). Raises `ConfigurationError` when a name has none."""
    return frozenset(_live(run, table).last.name for table in tables)


def _live(run: FeedRun, table: str) -> Incarnation:
    for life in run.history.history.incarnations().values():
        if str(life.last.name) == table and life.dropped_ts is None and is_taken(run.feed.tables, life):
            return life
    raise ConfigurationError(
        f"the feed has no table {table}", feed=run.feed.name, advice="name one as database.table that `status` lists"
    )


class _Directory:
    """Maps what a path or a row says to incarnations. `versions`: those of schema files, by table and commit-ts."""

    def __init__(self, feed: FeedConfig, lives: Mapping[str, Incarnation], history: History) -> None:
        self._feed, self._lives = feed, lives
        self.taken = {id: life for id, life in lives.items() if is_taken(feed.tables, life)}
        described = history.described().items()
        self.versions = {place: each.incarnation for place, each in described if each.incarnation in lives}
        self._names: dict[TableName, list[str]] = defaultdict(list)
        for life in lives.values():
            for name in life.names:
                self._names[name].append(life.id)

    def takes(self, name: TableName) -> bool:
        return self._feed.tables.takes(name.database, name.table)

    def named(self, name: TableName) -> list[str]:
        """Return the live tables that have or had that name, because it is not known when; otherwise the last one that
        had it, otherwise the identity of the name."""
        ids = self._names.get(name, [])
        live = [id for id in ids if self._lives[id].dropped_ts is None]
        return live or ids[-1:] or ([name.identity] if self.takes(name) else [])

    def of_quarantined(self, row: Quarantined, segment: Segment | None) -> Iterable[str]:
        if segment is not None and segment.kind == FILE:
            name = TableName(segment.database or "", segment.table or "")
            if (found := self.versions.get((name, segment.table_version or 0))) is not None:
                return [found]
        if row.database is None:
            return self.taken
        if row.table is None:
            return [id for id, life in self._lives.items() if row.database in {name.database for name in life.names}]
        return self.named(TableName(row.database, row.table))


def _statement(version: TableVersion) -> str:
    text = version.query or version.kind
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
