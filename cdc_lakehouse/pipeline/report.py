"""The contents of a feed's report, from the lake's own tables and the source. No JVM is started, nothing is written."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.check_queries import changes_by_table
from cdc_lakehouse.lake.table_health import TableHealth
from cdc_lakehouse.lake.tables.checkpoints import CutRow
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED, FILE, OFFSETS, SUMMARY, Totals, totals
from cdc_lakehouse.pipeline.feed_state import held_by_name, read_health
from cdc_lakehouse.pipeline.monitors import open_monitor
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import SourceStatus
from cdc_lakehouse.pipeline.taken_tables import unmatched_patterns

_DATES_OF_CHANGES: Final = 7
"""The number of feed dates for which a table's changes are counted: its recent rate, and a limit to what is read."""


@dataclass(frozen=True)
class ReportedTable:
    """A table of the last cut, or a held one. row: of the last cut that has the table. health: of the table now.
    changes: its inserts, updates and deletes on the counted dates; None when it has none."""

    name: TableName
    row: CutRow | None
    held: str | None
    health: TableHealth | None
    changes: tuple[int, int, int] | None


@dataclass(frozen=True)
class ReportedCut:
    """A published cut: when (UTC), and how many tables and rows it shows."""

    checkpoint_ts: int
    published_at: datetime.datetime
    tables: int
    rows: int


@dataclass(frozen=True)
class FeedReport:
    """One feed at a moment. by_date: what was decoded, by feed date, oldest first; None for segments without a date.
    changes_since: the first date for which tables' changes are counted; None for a feed without dates, where all are.
    ddl: versions that a statement made, newest first. cuts: newest first."""

    feed: str
    at: datetime.datetime
    source: SourceStatus
    tables: Sequence[ReportedTable]
    decoded: Totals
    by_date: Sequence[tuple[str | None, Totals]]
    changes_since: str | None
    ddl: Sequence[TableVersion]
    cuts: Sequence[ReportedCut]
    quarantine: Sequence[Quarantined]
    contradictions: Sequence[str]
    warnings: Sequence[str]


def report(feed: FeedConfig, lake: Lake, now: datetime.datetime) -> FeedReport:
    """Report on a feed. An unreachable source is recorded in its status."""
    run = FeedRun(feed, lake, clock=lambda: now)
    source = open_monitor(lake, feed).status()
    decoded = run.segments.rows.filter(pc.field("state") == DECODED)
    dated = decoded.filter(pc.field("kind") != SUMMARY)
    dates = sorted(pc.unique(dated["feed_date"]).to_pylist(), key=lambda date: date or "")
    since = next(iter([date for date in dates if date is not None][-_DATES_OF_CHANGES:]), None)
    history = run.history.history
    return FeedReport(
        feed.name,
        now,
        source,
        _tables(run, since),
        totals(decoded),
        [(date, totals(dated.filter(_is(date)))) for date in dates],
        since,
        [v for v in reversed(history.versions) if v.query and v.kind != "seen"],
        _cuts(run),
        run.quarantine.open(),
        [
            f"{conflict.topic}/{conflict.partition} from offset {conflict.offset} on: {conflict.reason}"
            for conflict in source.option_conflicts
        ],
        unmatched_patterns(feed.tables, history),
    )


def _is(date: str | None) -> Any:
    return pc.field("feed_date").is_null() if date is None else pc.field("feed_date") == date


def _tables(run: FeedRun, since: str | None) -> list[ReportedTable]:
    held = held_by_name(run.last_cut.held, run.history.history.incarnations())
    rows = {name: run.checkpoints.last_of(name) for name in held}
    if run.last_cut.checkpoint_ts != BEGINNING:
        rows |= {TableName(row.database, row.table): row for row in run.last_cut_rows}
    changes = _changes(run, since)
    return [
        ReportedTable(name, row, held.get(name), read_health(run.lake, run.feed, name), changes.get(name))
        for name, row in sorted(rows.items(), key=lambda each: str(each[0]))
    ]


def _changes(run: FeedRun, since: str | None) -> Mapping[TableName, tuple[int, int, int]]:
    """Count the changes of tables, by the counts of files, each of which belongs to one table, otherwise by the
    events."""
    rows = run.segments.rows
    if OFFSETS in rows["kind"].unique().to_pylist():
        counted = changes_by_table(run.lake, run.feed.name, since)
        return {name: (ops["I"], ops["U"], ops["D"]) for name, ops in counted.items()}
    rows = rows.filter((pc.field("kind") == FILE) & (pc.field("state") == DECODED))
    if since is not None:
        rows = rows.filter(pc.field("feed_date") >= since)
    none_is_0 = pc.ScalarAggregateOptions(min_count=0)
    sums = [(column, "sum", none_is_0) for column in ("inserts", "updates", "deletes")]
    columns = rows.group_by(["database", "table"]).aggregate(sums).to_pydict().values()
    return {TableName(database, table): tuple(counts) for database, table, *counts in zip(*columns, strict=True)}


def _cuts(run: FeedRun) -> list[ReportedCut]:
    tables: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    published: dict[int, datetime.datetime] = {}
    for row in run.checkpoints.all_rows():
        tables[row.checkpoint_ts] += 1
        rows[row.checkpoint_ts] += row.row_count
        published[row.checkpoint_ts] = row.published_at
    return [ReportedCut(ts, published[ts], tables[ts], rows[ts]) for ts in sorted(published, reverse=True)]
