"""Read rows of a current-state table as of a moment, for programs: the last cut, an earlier one, or any commit-ts.

A moment that a cut shows is read from that cut's snapshot. Between two cuts, and when a snapshot has expired, the rows
are folded from `events` in this process, by the code that applies events to tables."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, LOGICAL_BITS, commit_time, synthetic_stage, tso
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import LakehouseConfig, load
from cdc_lakehouse.config.reporting import guess
from cdc_lakehouse.errors import ConfigurationError, PermanentError, UnreadableTableError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS, read_keyed_events
from cdc_lakehouse.lake.current.tables import CurrentTables, cut_of_tag, day_of_tag, end_of_day, row_count, tags_of
from cdc_lakehouse.lake.current.update_tasks import TableUpdate, folded_rows
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.tables.checkpoints import removal_of
from cdc_lakehouse.lake.tables.events import event_reader
from cdc_lakehouse.pipeline.feed_tables import feed_table, is_taken, key_changes
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Configuration = LakehouseConfig | str | os.PathLike[str]
"""A configuration, or the path of its file."""

AsOf = datetime.datetime | int | str | None
"""None: the last cut. A datetime with a zone: the newest cut at or below it. An int: exactly this commit-ts. A string:
a tag (`cut_<checkpoint_ts>`, `day_<YYYY-MM-DD>`, or one that another writer made on the table)."""

_LAST_OF_MILLISECOND: Final = (1 << LOGICAL_BITS) - 1


class NotReadableError(PermanentError):
    """The lake does not have the table as of that moment."""


def read(
    config: Configuration, table: str, as_of: AsOf = None, *, feed: str | None = None, last_good: bool = False
) -> pa.Table:
    """Read the rows of a table (`database.table`, by the source's names at that moment), unordered: its columns and
    `_commit_ts`. No JVM is started.

    feed: for a table that several feeds have. last_good: for a held table, read its last good cut where that is older
    than `as_of`; without `as_of` it is read in any case. Raises `ConfigurationError` when no feed has the table,
    `NotReadableError` when it cannot be read as of that moment."""
    return _find(config, table, as_of, feed, last_good).arrow()


def read_spark(
    config: Configuration, table: str, as_of: AsOf = None, *, feed: str | None = None, last_good: bool = False
) -> DataFrame:
    """Read the same rows as `read` as a DataFrame of this process's session, which is started when there is none.
    Spark's tasks read those of a cut; those between cuts are folded in this process."""
    return _find(config, table, as_of, feed, last_good).frame()


@dataclass(frozen=True)
class ReadableTable:
    """A table as of a moment: a snapshot of an Iceberg table (None for no rows), or a commit-ts up to which to fold.
    `refused` says why a held table has no state of that moment."""

    run: FeedRun
    name: TableName
    life: Incarnation
    commit_ts: int
    identifier: Identifier | None = None
    snapshot_id: int | None = None
    refused: str | None = None

    def head(self, limit: int) -> tuple[int, pa.Table]:
        """Return the number of rows, and the first `limit` of them."""
        if self.snapshot_id is None or self.identifier is None:
            rows = self.arrow()
            return rows.num_rows, rows.slice(0, limit)
        table = self.run.lake.existing(self.identifier)
        return row_count(table, table.snapshot_by_id(self.snapshot_id)), self.arrow(limit)

    def arrow(self, limit: int | None = None) -> pa.Table:
        """Return all rows, or `limit` of them."""
        if self.refused is not None:
            advice = "end the hold, or read a table that has a good cut there (last_good)"
            raise NotReadableError(self.refused, feed=self.run.feed.name, table=str(self.name), advice=advice)
        if self.snapshot_id is None or self.identifier is None:
            return fold_upto(self.run, self.life, self.commit_ts).slice(0, limit)
        return self.run.lake.existing(self.identifier).scan(snapshot_id=self.snapshot_id, limit=limit).to_arrow()

    def frame(self) -> DataFrame:
        spark = self.run.spark
        if self.snapshot_id is None or self.identifier is None:
            return spark.createDataFrame(self.arrow())
        reader = spark.read.format("iceberg").option("versionAsOf", str(self.snapshot_id))
        return reader.load(self.identifier.sql)


def readable_tables(
    run: FeedRun, as_of: AsOf, table: str | None = None, *, last_good: bool = False
) -> list[ReadableTable]:
    """Return the feed's tables, or the one of that name, as of a moment, sorted by name. A held table is refused above
    its last good cut, or read at that cut with `last_good` or without a moment. Raises `NotReadableError` for a moment
    that the feed does not have."""
    last = run.last_cut.checkpoint_ts
    if last == BEGINNING:
        return []
    if isinstance(as_of, str) and cut_of_tag(as_of) is None and day_of_tag(as_of) is None:
        # A tag that another writer made on tables.
        tagged: list[ReadableTable] = []
        for each in readable_tables(run, None, table):
            stored = None if each.identifier is None else run.lake.load(each.identifier)
            snapshot = None if stored is None else tags_of(stored).get(as_of)
            tagged += [] if snapshot is None else [replace(each, snapshot_id=snapshot)]
        if not tagged:
            advice = "an Iceberg table lists its tags in `refs`, and `cdc-lakehouse status` shows the last cut"
            raise NotReadableError(f"no table has the tag {as_of}", feed=run.feed.name, advice=advice)
        return tagged
    commit_ts, exactly = _commit_ts(run, as_of)
    if not exactly:
        published, moment = run.checkpoints.published(), commit_ts
        commit_ts = max((at for at in published if at <= moment), default=BEGINNING)
        if commit_ts == BEGINNING:
            advice = f"the oldest one is at {_spoken(published[0])}; to read earlier rows from `events`, give the "
            advice += f"moment as a commit-ts: {moment}"
            raise NotReadableError(f"no cut is as old as {as_of}", feed=run.feed.name, advice=advice)
    rows = {TableName(row.database, row.table): row for row in run.checkpoints.rows(commit_ts)}
    found: list[ReadableTable] = []
    tables, lives = CurrentTables(run.lake, run.feed), run.history.history.incarnations()
    # A table that was held when it was dropped is in no cut, and its events are still not to be trusted.
    held = functools.cache(lambda: find_holds(run, lives, last) | dict(run.last_cut.held))
    for whole in lives.values():
        life = whole.upto(commit_ts)
        if life is None or life.dropped_ts is not None or not is_taken(run.feed.tables, life):
            continue
        if table not in (None, str(life.last.name)):
            continue
        each = ReadableTable(run, life.last.name, life, commit_ts)
        row = rows.get(each.name)
        if row is None and (reason := held().get(whole.id)) is not None:
            # What is in `events` above its last good cut may be a part of its changes.
            good = max(
                (
                    shown
                    for name in whole.names
                    for shown in run.checkpoints.rows_of(name)
                    if (then := whole.upto(shown.checkpoint_ts)) and then.dropped_ts is None and then.last.name == name
                ),
                key=lambda shown: shown.checkpoint_ts,
                default=None,
            )
            if good is None:
                each = replace(each, refused=f"it is held, and no cut has it ({reason})")
            elif commit_ts > good.checkpoint_ts and (last_good or as_of is None):
                each, row = replace(each, commit_ts=good.checkpoint_ts), good
            elif commit_ts > good.checkpoint_ts:
                cut = f"its last good cut is at {_spoken(good.checkpoint_ts)}"
                each = replace(each, refused=f"it is held, and {cut} ({reason})")
        if row is not None and row.snapshot_id is not None:
            with contextlib.suppress(UnreadableTableError):  # Its events still exist.
                state = tables.find(whole)
                stored = None if state is None else run.lake.load(state.identifier)
                if state is not None and stored is not None and stored.snapshot_by_id(row.snapshot_id) is not None:
                    each = replace(each, identifier=state.identifier, snapshot_id=row.snapshot_id)
        found.append(each)
    return sorted(found, key=lambda each: (each.name.database, each.name.table))


def _commit_ts(run: FeedRun, as_of: AsOf) -> tuple[int, bool]:
    """Return the commit-ts, and whether it is meant exactly; otherwise the newest cut at or below it is."""
    last = run.last_cut.checkpoint_ts
    match as_of:
        case None:
            return last, True
        case datetime.datetime():
            if as_of.tzinfo is None:
                raise ConfigurationError(f"{as_of} has no time zone", advice="give it one, such as datetime.UTC")
            commit_ts = tso(as_of) | _LAST_OF_MILLISECOND
        case str():
            cut, day = cut_of_tag(as_of), day_of_tag(as_of)
            commit_ts = cut if day is None else end_of_day(day)
            assert commit_ts is not None, as_of
        case int():
            commit_ts = as_of
    if commit_ts > (last | _LAST_OF_MILLISECOND if isinstance(as_of, datetime.datetime) else last):
        raise NotReadableError(
            f"{as_of} is beyond what is published", feed=run.feed.name, advice=f"the last cut is at {_spoken(last)}"
        )
    return commit_ts, isinstance(as_of, int)


def _spoken(commit_ts: int) -> str:
    return f"{commit_ts} ({commit_time(commit_ts).isoformat(timespec='milliseconds')})"


def fold_upto(run: FeedRun, life: Incarnation, commit_ts: int) -> pa.Table:
    """Return the rows that a table's events up to a commit-ts leave; `life` must end there. This process reads all of
    its events. Raises `NotReadableError` when they cannot be applied."""
    name, source = str(life.last.name), feed_table(run.feed, life)
    hold = next((version.hold for version in life.versions if version.hold is not None), None)
    if hold is not None or not source.key:
        raise NotReadableError(hold or "it has no key", table=name, advice="read it as of a cut")
    emptied_ts = run.history.history.incarnations()[life.id].emptied_ts
    if any(version.commit_ts <= emptied_ts for version in key_changes(run.feed, life)):
        why = "the rows that a change of its key had moved are gone: it was emptied later"
        raise NotReadableError(why, table=name, advice="read it as of a cut")
    known_from_ts = removal_of(run.lake, run.feed.name).known_from_ts
    if commit_ts < known_from_ts:
        why = "events of then were removed, which later ones had superseded (maintenance.keep_superseded_days)"
        advice = f"read it as of a cut that is kept, or as of {_spoken(known_from_ts)} or later"
        raise NotReadableError(why, table=name, advice=advice)
    reader = event_reader(run.lake, run.feed.name)
    if reader is None:
        raise NotReadableError("the feed has no events yet", table=name, advice="run the feed first")
    read = read_keyed_events(reader, source.spans(0, BEGINNING, synthetic_stage(commit_ts)))
    events = pa.concat_tables([KEYED_EVENTS.empty_table(), *read])
    update, schema = TableUpdate(0, source, run.lake.config.warehouse, emptied=source.emptied(BEGINNING)), source.schema
    rows, rejected = folded_rows(update, run.lake.catalog.properties, events)
    skips = run.feed.policy.quarantine == "skip" or run.quarantine.has_discarded(life.names)
    if rejected and not skips:
        why = f"events do not fit the table's columns ({rejected[0].segment} line {rejected[0].line})"
        raise NotReadableError(why, table=name, advice="read it as of a cut, or set policy.quarantine to skip")
    return rows.select(schema.column_names).cast(schema_to_pyarrow(schema, include_field_ids=False))


def _find(config: Configuration, table: str, as_of: AsOf, feed: str | None, last_good: bool) -> ReadableTable:
    loaded = config if isinstance(config, LakehouseConfig) else load(Path(config))
    lake = Lake(loaded.lake, loaded.storage)

    def session() -> SparkSession:
        from cdc_lakehouse.lake.spark import build_session  # noqa: PLC0415 - Reading without it needs no PySpark.

        return build_session(loaded.lake, loaded.storage)

    known, names = list[FeedRun](), set[str]()
    for run in [FeedRun(each, lake, session) for each in (loaded.feeds if feed is None else [loaded.feed(feed)])]:
        # Names that the feed's tables have or had.
        lives, takes = run.history.history.incarnations().values(), run.feed.tables.takes
        own = {str(name) for life in lives for name in life.names if takes(name.database, name.table)}
        names |= own
        known += [run] if table in own else []
    if not known:
        message = f"no table {table} is published{guess(table, names)}"
        raise ConfigurationError(message, advice="name it as the source does: database.table")
    if len(known) > 1:
        several = ", ".join(run.feed.name for run in known)
        raise ConfigurationError(f"several feeds have the table {table}: {several}", advice="say which feed")
    found = readable_tables(known[0], as_of, table, last_good=last_good)
    if not found:
        message = f"there is no such table {'now' if as_of is None else f'as of {as_of}'}"
        advice = f"`cdc-lakehouse schema {table}` shows when it was made and dropped"
        raise NotReadableError(message, feed=known[0].feed.name, table=table, advice=advice)
    return found[-1]
