"""Numbers and tables that people ask of a materialization, in the types that Dagster plots and shows."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import dagster as dg

from cdc_lakehouse.changelog.column_changes import as_lines, column_changes
from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time, lag_seconds
from cdc_lakehouse.changelog.schema import TableVersion
from cdc_lakehouse.lake.tables.segments import Totals
from cdc_lakehouse.pipeline.apply import Applied, AppliedTable
from cdc_lakehouse.pipeline.publish import Published
from cdc_lakehouse.pipeline.source import Landed

Metadata = Mapping[str, Any]


def of_landed(landed: Landed, known: Totals, new: Totals, now: datetime.datetime) -> Metadata:
    """Of the segments that are known and those that a run found new, all or those of one date."""
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
        numbers["faults"] = dg.MetadataValue.md("\n".join(f"- {fault}" for fault in landed.faults))
    return numbers


def of_segments(decoded: Totals, new: Totals) -> Metadata:
    """Of segments that are decoded: rows out by operation, and the range of their commits; and how many of them are of
    this run."""
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


def of_versions(versions: list[TableVersion], lives: Mapping[str, Incarnation]) -> Metadata:
    """Of the DDL that a run recorded for one table."""
    last = versions[-1]
    statements = [_statement(version, lives[version.incarnation]) for version in versions]
    return {
        "ddl": len(versions),
        "statements": dg.MetadataValue.md("\n".join(statements)),
        "effects": ", ".join(dict.fromkeys(version.effect for version in versions)),
        "notes": dg.MetadataValue.md(
            "\n".join(f"- {v.note or v.hold}" for v in versions if v.note or v.hold) or "none"
        ),
        **_moment("version", last.commit_ts),
        "dagster/column_schema": column_schema(last),
    }


def of_table(table: AppliedTable, checkpoint_ts: int, now: datetime.datetime) -> Metadata:
    """Of one current-state table that a run brought to the checkpoint."""
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


def of_published(published: Published, applied: Applied, now: datetime.datetime) -> Metadata:
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
    return dg.MetadataValue.md("\n".join(f"- **{table}**: {reason}" for table, reason in sorted(held.items())))


def column_schema(version: TableVersion) -> dg.TableSchema:
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
    """The statement, its effect, and what it changed of the columns."""
    when = f"{commit_time(version.commit_ts):%Y-%m-%d %H:%M:%S}"
    lines = [f"- `{version.effect}` {when}", f"```sql\n{version.query or '-- seen'}\n```"]
    before = life.before(version)
    changes = [] if before is None else column_changes(before, version)
    if changes:
        lines += ["```diff", *as_lines(changes), "```"]
    return "\n".join(lines)


def _moment(name: str, commit_ts: int) -> dict[str, Any]:
    """A commit-ts for people: the number is beyond what a plot can show, the time is not."""
    return {f"{name}_ts": str(commit_ts), f"{name}_time": dg.MetadataValue.timestamp(commit_time(commit_ts))}
