"""`cdc-lakehouse status`: where each feed stands. Neither Spark nor Dagster is started."""

from __future__ import annotations

import datetime
from typing import Any

import click
import pyarrow.compute as pc

from cdc_lakehouse.changelog.positions import lag_seconds
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.commands.common import (
    DONE,
    UNREACHABLE,
    chosen,
    configured,
    feed_option,
    grid,
    print_json,
    problem_lines,
)
from cdc_lakehouse.config import FeedConfig, LakehouseConfig
from cdc_lakehouse.errors import SourceUnreachableError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.table_health import health_document, table_health
from cdc_lakehouse.lake.tables.checkpoints import CutRow
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.lake.tables.segments import DUMP, LANDED, Segments, totals
from cdc_lakehouse.lake.tables.source_metadata import DOUBTS_ADVICE
from cdc_lakehouse.pipeline.feed_state import read_feed_state
from cdc_lakehouse.pipeline.included_tables import unmatched_patterns
from cdc_lakehouse.pipeline.monitors import open_monitor
from cdc_lakehouse.pipeline.source import SourceStatus


@click.command()
@feed_option
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@configured
def command(config: LakehouseConfig, feed_name: str | None, as_json: bool) -> int:
    """Show the state of each feed: checkpoints, lag, tables, what is held and quarantined."""
    now = datetime.datetime.now(datetime.UTC)
    lake = Lake(config.lake, config.storage)
    sources = [(feed, open_monitor(lake, feed).status()) for feed in chosen(config, feed_name)]
    statuses = [_status(lake, feed, source, now) for feed, source in sources]
    if as_json:
        print_json({"feeds": statuses})
    else:
        click.echo("\n\n".join(_text(status) for status in statuses))
    unreachable = any(isinstance(source.error, SourceUnreachableError) for _, source in sources)
    return UNREACHABLE if unreachable else DONE


def _status(lake: Lake, feed: FeedConfig, source: SourceStatus, now: datetime.datetime) -> dict[str, Any]:
    """The status as the command prints it in JSON. A checkpoint-ts is a TSO, a lag is in seconds; what there is not, or
    a source does not have, is None.

    `pending_records` are offsets of topics that are not landed. `landed_entries` of a Canal server are in the lake, the
    last one at `landed_position` of the binlog. `initial` is what is loaded of the feed's dump: its `position` (a TSO),
    files, bytes and rows. `tables` are those of the published cut; `health` is of the table as it is now, None where it
    is not at its place. `quarantined` counts what could not be used,
    `discarded` what of it a person gave up. `contradictions` name messages that contradict an option of their format.
    `warnings` say what may be a mistake in the configuration."""
    state = read_feed_state(lake, feed, now)
    return {
        "feed": feed.name,
        "source_checkpoint_ts": source.checkpoint_ts,
        "source_lag_seconds": None if source.checkpoint_ts is None else lag_seconds(source.checkpoint_ts, now),
        "pending_records": source.pending_records,
        "landed_entries": source.landed_entries,
        "landed_position": source.landed_position,
        "published_checkpoint_ts": state.checkpoint_ts,
        "published_lag_seconds": state.lag_seconds,
        "initial": _initial(lake, feed),
        "tables": [
            {"database": row.database, "table": row.table, "rows": row.row_count, "health": _health(lake, feed, row)}
            for row in sorted(state.cut, key=lambda row: (row.database, row.table))
        ],
        "held": dict(state.held),
        "quarantined": state.quarantined_rows,
        "discarded": state.discarded,
        "contradictions": [
            f"{conflict.topic}/{conflict.partition} from offset {conflict.offset} on: {conflict.reason}"
            for conflict in source.option_conflicts
        ],
        "warnings": unmatched_patterns(feed, SchemaHistory(lake, feed.name).history),
        "error": None if source.error is None else str(source.error),
    }


def _health(lake: Lake, feed: FeedConfig, row: CutRow) -> dict[str, Any] | None:
    table = lake.load(CurrentTables(lake, feed).identifier(TableName(row.database, row.table)))
    return None if table is None else health_document(table_health(table))


def _initial(lake: Lake, feed: FeedConfig) -> dict[str, Any] | None:
    rows = Segments(lake, feed.name).rows.filter(pc.field("kind") == DUMP) if feed.initial is not None else None
    if rows is None:
        return None
    known, left = totals(rows), rows.filter(pc.field("state") == LANDED)
    return {
        "position": known.max_commit_ts,
        "files": known.segments,
        "files_left": left.num_rows,
        "bytes": known.size,
        "bytes_left": totals(left).size,
        "rows": known.events,
    }


def _text(status: dict[str, Any]) -> str:
    lines = [
        f"feed {status['feed']}",
        f"  source     {_source(status)}",
        f"  published  {_moment(status['published_checkpoint_ts'], status['published_lag_seconds'])}",
    ]
    if (initial := status["initial"]) is not None:
        lines.append(f"  initial    {_loaded(initial)}")
    if status["error"] is not None:
        lines.append(f"  error      {status['error']}")
    lines += [f"  options    {conflict}" for conflict in status["contradictions"]]
    if status["contradictions"]:
        lines.append(f"             {DOUBTS_ADVICE}")
    if status["tables"]:
        header = ["table", "rows", "files", "KiB a file", "deleted", "compacted"]
        lines += ["", *grid(header, [_table_row(table) for table in status["tables"]])]
    problems = problem_lines(status["held"], status["quarantined"], [], status["warnings"], status["discarded"])
    return "\n".join([*lines, *problems])


def _table_row(table: dict[str, Any]) -> list[str]:
    name, health = f"{table['database']}.{table['table']}", table["health"]
    if health is None:
        return [name, str(table["rows"]), "-", "-", "-", "-"]
    compacted = (health["compacted_at"] or "never")[:16]
    size = f"{health['average_bytes'] / 1024:.0f}"
    return [name, str(table["rows"]), str(health["files"]), size, f"{health['delete_ratio']:.1%}", compacted]


def _loaded(initial: dict[str, Any]) -> str:
    if not initial["files"]:
        return "the dump is not loaded yet"
    done = f"{initial['rows']} rows of {initial['files'] - initial['files_left']} files are loaded"
    left = f"; {initial['files_left']} files ({initial['bytes_left']} bytes) are left" if initial["files_left"] else ""
    return done + left


def _source(status: dict[str, Any]) -> str:
    if status["pending_records"] is not None:
        return f"{status['pending_records']} offsets are not landed"
    if status["landed_entries"] is not None:
        reached = "cannot be used" if status["error"] is not None else "reachable"
        last = "" if status["landed_position"] is None else f", the last one at {status['landed_position']}"
        return f"{reached}; {status['landed_entries']} entries are landed{last}"
    return _moment(status["source_checkpoint_ts"], status["source_lag_seconds"])


def _moment(commit_ts: int | None, lag: float | None) -> str:
    return "none" if commit_ts is None or lag is None else f"{commit_ts}  ({lag:,.1f} s behind)"
