"""Metadata of materializations: the numbers and tables that people look for, in types that Dagster plots and shows."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time, lag_seconds
from cdc_lakehouse.changelog.schema import TableVersion, as_lines, column_changes
from cdc_lakehouse.lake.tables.segments import Totals, totals
from cdc_lakehouse.pipeline.apply import Applied, AppliedTable
from cdc_lakehouse.pipeline.publish import Published
from cdc_lakehouse.pipeline.source import Landed

Metadata = Mapping[str, Any]


def landed_metadata(landed: Landed, known: Totals, new: Totals, now: datetime.datetime) -> Metadata:
    """What a run landed: the segments that are known, and those that were new, of the feed or of one date.

    `bytes` and `new_bytes` are sizes of segments; `source_lag_seconds` is how far the source's checkpoint is behind
    `now`."""
    numbers: dict[str, Any] = {
        "segments": known.segments,
        "bytes": known.size,
        "new_segments": new.segments,
        "new_bytes": new.size,
    }
    if landed.files_listed is not None:
        numbers["files_listed"] = landed.files_listed
    if landed.source_ts is not None:
        numbers |= _moment("source_checkpoint", landed.source_ts)
        numbers["source_lag_seconds"] = lag_seconds(landed.source_ts, now)
    if landed.faults:
        numbers["faults"] = markdown_list(landed.faults)
    return numbers


def snapshot_metadata(rows: pa.Table, new: Totals) -> Metadata:
    """What the initial dump holds, of `rows` of `segments`: its tables and files, and the point of the change log that
    its rows are of; and how much of it a run loaded."""
    known = totals(rows)
    tables = rows.group_by(["database", "table"]).aggregate([]).num_rows
    numbers: dict[str, Any] = {
        "tables": tables,
        "files": known.segments,
        "bytes": known.size,
        "dagster/row_count": known.events,
        "quarantined": known.quarantined,
        "new_files": new.segments,
        "new_rows": new.events,
    }
    return numbers if known.max_commit_ts is None else numbers | _moment("position", known.max_commit_ts)


def events_metadata(decoded: Totals, new: Totals) -> Metadata:
    """What is in `events`: changes by operation and the range of their commits, and how much of it is of this run."""
    numbers: dict[str, Any] = {
        "segments": decoded.segments,
        "bytes": decoded.size,
        "dagster/row_count": decoded.events,
        **{name: getattr(decoded, name) for name in ("events", "inserts", "updates", "deletes", "quarantined")},
        "new_segments": new.segments,
        "new_events": new.events,
    }
    if decoded.min_commit_ts is not None and decoded.max_commit_ts is not None:
        numbers |= _moment("first_commit", decoded.min_commit_ts) | _moment("last_commit", decoded.max_commit_ts)
    return numbers


def schema_metadata(versions: list[TableVersion], lives: Mapping[str, Incarnation]) -> Metadata:
    """The DDL that a run recorded for one table, and the columns that resulted."""
    last = versions[-1]
    statements = [_statement(version, lives[version.incarnation]) for version in versions]
    return {
        "ddl": len(versions),
        "statements": dg.MetadataValue.md("\n".join(statements)),
        "effects": ", ".join(dict.fromkeys(version.effect for version in versions)),
        "notes": markdown_list([note for version in versions if (note := version.note or version.hold)], "none"),
        **_moment("version", last.commit_ts),
        "dagster/column_schema": column_schema(last),
    }


def table_metadata(table: AppliedTable, checkpoint_ts: int, now: datetime.datetime) -> Metadata:
    """A current-state table that a run brought to the checkpoint."""
    numbers: dict[str, Any] = {
        "dagster/row_count": table.state.row_count,
        "rows": table.state.row_count,
        "upserts": table.upserts,
        "deletes": table.deletes,
        "zero_dates_as_null": table.zero_dates,
        "rebuilt": table.rebuilt,
        **_moment("applied", checkpoint_ts),
        "lag_seconds": lag_seconds(checkpoint_ts, now),
        "dagster/column_schema": column_schema(table.life.last),
        "iceberg_table": str(table.state.identifier),
    }
    if table.state.snapshot_id is not None:
        numbers["snapshot_id"] = str(table.state.snapshot_id)
    return numbers


def checkpoint_metadata(published: Published, applied: Applied, now: datetime.datetime) -> Metadata:
    """The published cut."""
    cut = published.cut
    numbers: dict[str, Any] = {
        "tables": len(published.rows),
        "tables_changed": len(applied.tables),
        "rows": sum(row.row_count for row in published.rows),
        "tables_held": len(applied.held),
        "new_cut": published.new,
    }
    if cut.checkpoint_ts != BEGINNING:
        numbers |= _moment("checkpoint", cut.checkpoint_ts)
        numbers["lag_seconds"] = lag_seconds(cut.checkpoint_ts, now)
    if applied.held:
        numbers["held"] = held_list(applied.held)
    return numbers


def held_list(held: Mapping[str, str]) -> dg.MetadataValue[Any]:
    """Reasons by table, as a list in Markdown."""
    return markdown_list([f"**{table}**: {reason}" for table, reason in sorted(held.items())])


def markdown_list(items: Sequence[str], none: str = "") -> dg.MetadataValue[Any]:
    """A list in Markdown; `none` stands for an empty one."""
    return dg.MetadataValue.md("\n".join(f"- {item}" for item in items) or none)


def column_schema(version: TableVersion) -> dg.TableSchema:
    """The columns that row events have, with MySQL type text; those of the key have the tag `key`."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                column.name,
                type_text(column.type),
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
                tags={"key": ""} if column.id in version.key else {},
            )
            for column in version.carried
        ]
    )


def _statement(version: TableVersion, life: Incarnation) -> str:
    """A statement, its effect, and how it changed the columns."""
    when = f"{commit_time(version.commit_ts):%Y-%m-%d %H:%M:%S}"
    lines = [f"- `{version.effect}` {when}", f"```sql\n{version.query or '-- seen'}\n```"]
    before = life.before(version)
    changes = [] if before is None else column_changes(before, version)
    if changes:
        lines += ["```diff", *as_lines(changes), "```"]
    return "\n".join(lines)


def _moment(name: str, commit_ts: int) -> dict[str, Any]:
    """A commit-ts as text, which no plot can show as a number, and as a time."""
    return {f"{name}_ts": str(commit_ts), f"{name}_time": dg.MetadataValue.timestamp(commit_time(commit_ts))}
