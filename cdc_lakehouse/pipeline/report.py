"""What a report says of a feed, from the lake's own tables and the source. No JVM is started, nothing is written."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.table_health import TableHealth
from cdc_lakehouse.lake.tables.checkpoints import CutRow
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED, SUMMARY, Totals, totals
from cdc_lakehouse.pipeline.context import no_spark
from cdc_lakehouse.pipeline.feed_state import read_health
from cdc_lakehouse.pipeline.held_tables import held_by_name
from cdc_lakehouse.pipeline.included_tables import unmatched_patterns
from cdc_lakehouse.pipeline.monitors import open_monitor
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import SourceStatus

pc: Any = pyarrow.compute  # Its functions are made at run time, which type checkers do not see.


@dataclass(frozen=True)
class ReportedTable:
    """A table of the last cut, or a held one. row: of the last cut that has the table. health: as the table is now.
    changes: inserts, updates and deletes in its own segments; None where the source's segments are of many tables."""

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
    """One feed at a moment. by_date: what was decoded, by feed date, the oldest first; None for segments without one.
    ddl: versions that a statement made, the newest first. cuts: the newest first."""

    feed: str
    at: datetime.datetime
    source: SourceStatus
    tables: Sequence[ReportedTable]
    decoded: Totals
    by_date: Sequence[tuple[str | None, Totals]]
    ddl: Sequence[TableVersion]
    cuts: Sequence[ReportedCut]
    quarantine: Sequence[Quarantined]
    contradictions: Sequence[str]
    warnings: Sequence[str]


def report(feed: FeedConfig, lake: Lake, now: datetime.datetime) -> FeedReport:
    """Where the feed stands. A source that cannot be reached is said in its status."""
    run = FeedRun(feed, lake, no_spark, clock=lambda: now)
    source = open_monitor(lake, feed).status()
    decoded = run.segments.rows.filter(pc.field("state") == DECODED)
    dated = decoded.filter(pc.field("kind") != SUMMARY)
    dates = sorted(pc.unique(dated["feed_date"]).to_pylist(), key=lambda date: date or "")
    history = run.history.history
    return FeedReport(
        feed.name,
        now,
        source,
        _tables(run),
        totals(decoded),
        [(date, totals(dated.filter(_is(date)))) for date in dates],
        [v for v in reversed(history.versions) if v.query and v.kind != "seen"],
        _cuts(run),
        run.quarantine.open(),
        [
            f"{conflict.topic}/{conflict.partition} from offset {conflict.offset} on: {conflict.reason}"
            for conflict in source.option_conflicts
        ],
        unmatched_patterns(feed, history),
    )


def _is(date: str | None) -> Any:
    return pc.field("feed_date").is_null() if date is None else pc.field("feed_date") == date


def _tables(run: FeedRun) -> list[ReportedTable]:
    held = held_by_name(run.last_cut.held, run.history.history.incarnations())
    rows: dict[TableName, CutRow | None] = {}
    for name in held:
        own = run.checkpoints.rows_of(name)
        rows[name] = own[-1] if own else None
    if run.last_cut.checkpoint_ts != BEGINNING:
        rows |= {TableName(row.database, row.table): row for row in run.last_cut_rows}
    changes = _changes(run)
    return [
        ReportedTable(name, row, held.get(name), read_health(run.lake, run.feed, name), changes.get(name))
        for name, row in sorted(rows.items(), key=lambda each: str(each[0]))
    ]


def _changes(run: FeedRun) -> Mapping[TableName, tuple[int, int, int]]:
    counted = ("inserts", "updates", "deletes")
    rows = run.segments.rows.filter(pc.field("table").is_valid() & pc.field("events").is_valid())
    grouped = rows.group_by(["database", "table"]).aggregate([(column, "sum") for column in counted])
    return {
        TableName(row["database"], row["table"]): (
            row["inserts_sum"] or 0,
            row["updates_sum"] or 0,
            row["deletes_sum"] or 0,
        )
        for row in grouped.to_pylist()
    }


def _cuts(run: FeedRun) -> list[ReportedCut]:
    tables: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    published: dict[int, datetime.datetime] = {}
    for row in run.checkpoints.all_rows():
        tables[row.checkpoint_ts] += 1
        rows[row.checkpoint_ts] += row.row_count
        published[row.checkpoint_ts] = row.published_at
    return [ReportedCut(ts, published[ts], tables[ts], rows[ts]) for ts in sorted(published, reverse=True)]
