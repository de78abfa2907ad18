"""Metadata of materializations: numbers and tables for people, in types that Dagster plots and shows."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import dagster as dg
import pyarrow as pa
import yaml
from pydantic import BaseModel
from pyiceberg.table import Table

from cdc_lakehouse.assets import keys
from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.changelog.positions import commit_time, lag_seconds, utc_now
from cdc_lakehouse.changelog.schema import TableName, TableVersion, column_diff
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.config.reporting import without_secrets
from cdc_lakehouse.decoders.event_schema import EVENTS, SYNTHETIC
from cdc_lakehouse.lake.current.tables import TableState
from cdc_lakehouse.lake.current.typed_rows import COMMIT_TS
from cdc_lakehouse.lake.names import CATALOG, Identifier
from cdc_lakehouse.lake.tables.segments import Totals
from cdc_lakehouse.operate.state import TableHealth, table_health
from cdc_lakehouse.pipeline.source import Landed

Metadata = Mapping[str, Any]


def landed_metadata(landed: Landed, known: Totals, new: Totals, by_date: bool) -> Metadata:
    """Describe what a run landed: the known segments, and those that were new, of the feed or of one date.

    `bytes` and `new_bytes` are sizes of segments; `source_lag_seconds` is the lag of the source's checkpoint."""
    numbers: dict[str, Any] = {
        "segments": known.segments, "bytes": known.size, "new_segments": new.segments, "new_bytes": new.size,
    }  # fmt: skip
    if landed.files_listed is not None:
        numbers["files_listed"] = landed.files_listed
    if landed.source_ts is not None:
        numbers |= moment("source_checkpoint", landed.source_ts)
        numbers["source_lag_seconds"] = lag_seconds(landed.source_ts, utc_now())
    if landed.faults:
        numbers["faults"] = markdown_list(landed.faults)
    return numbers


def events_metadata(rows: int, decoded: Totals, new: Totals, by_date: bool) -> Metadata:
    """Describe `events`: changes by operation and the range of their commits, and how many of them are of this run.
    `decoded` and `new` are of the feed or, with `by_date`, of one date; `rows` are those of the whole table."""
    numbers: dict[str, Any] = {
        "segments": decoded.segments, "bytes": decoded.size, "dagster/row_count": rows,
        "inserts": decoded.inserts, "updates": decoded.updates, "deletes": decoded.deletes,
        "quarantined": decoded.quarantined,
        "new_segments": new.segments, "new_events": new.events, "read_one_by_one": new.strict,
        **({"tombstones": decoded.tombstones} if decoded.tombstones else {}),
        **({"dagster/partition_row_count": decoded.events} if by_date else {}),
    }  # fmt: skip
    if decoded.min_commit_ts is not None and decoded.max_commit_ts is not None:
        numbers |= moment("first_commit", decoded.min_commit_ts) | moment("last_commit", decoded.max_commit_ts)
    return numbers


_STATEMENTS: Final = 100
"""How many statements the page of a database's DDL shows."""


def ddl_metadata(new: Collection[TableVersion], tables: Iterable[Incarnation]) -> Metadata:
    """Describe the DDL of a database: how many statements a run recorded, in which `tables`, and the last statements of
    all of these, the latest first, with their effect, how they changed the columns, and what is to be known of them."""
    versions = ((version, life) for life in tables for version in life.versions)
    all_of, shown = sorted(versions, key=lambda each: -each[0].commit_ts), list[str]()
    for version, life in all_of[:_STATEMENTS]:
        when, table = f"{commit_time(version.commit_ts):%Y-%m-%d %H:%M:%S}", as_markdown(version.name.table)
        shown += [f"- **{table}** `{version.effect}` {when}", _fenced("sql", version.query or "-- seen")]
        if (before := life.before(version)) is not None and (diff := column_diff(before, version)):
            shown.append(_fenced("diff", "\n".join(diff)))
        if note := version.note or version.hold:
            shown.append(as_markdown(note))
    return {
        "ddl": len(new),
        "tables_changed": ", ".join(dict.fromkeys(str(version.name) for version in new)) or "none",
        "statements": dg.MetadataValue.md("\n".join(shown)),
        "statements_of_all_time": len(all_of),
        **(moment("version", all_of[0][0].commit_ts) if all_of else {}),
    }


def state_metadata(
    feed: FeedConfig, state: TableState, version: TableVersion, table: Table, checkpoint_ts: int, now: datetime.datetime
) -> Metadata:
    """Describe the state of a current-state table, whoever changed it last: its rows, columns, files and lag. `version`
    is that of the source's table at `checkpoint_ts`. The source's type, default and comment of a column are its
    description; columns of the key have the tag `key`."""
    ids, columns = {column.name: column.id for column in state.columns}, list[dg.TableColumn]()
    for each in table.schema().fields:
        description = "TSO of the latest change of the row" if each.name == COMMIT_TS else None
        tags: dict[str, str] = {}
        if (source := version.column(ids[each.name]) if each.name in ids else None) is not None:
            description = f"source: {type_text(source.type)}{'' if source.nullable else ' NOT NULL'}"
            description += "" if source.default is None else f"; default {source.default}"
            description += "" if source.comment is None else f"; comment: {source.comment}"
            tags = {"key": ""} if source.id in version.key else {}
        nullable = dg.TableColumnConstraints(nullable=not each.required)
        columns.append(dg.TableColumn(each.name, str(each.field_type), description, constraints=nullable, tags=tags))
    # Values come from the row images of `events`.
    events = keys.events_key(feed)
    lineage = {COMMIT_TS: [dg.TableColumnDep(events, "commit_ts")]}
    lineage |= {each.name: [dg.TableColumnDep(events, "after")] for each in state.columns}
    numbers: dict[str, Any] = {
        "dagster/table_name": table_name(state.identifier),
        "dagster/row_count": state.row_count,
        "dagster/column_schema": dg.TableSchema(columns),
        "dagster/column_lineage": dg.TableColumnLineage(lineage),
        **moment("applied", checkpoint_ts),
        "lag_seconds": lag_seconds(checkpoint_ts, now),
    }
    if (snapshot := table.current_snapshot()) is not None:
        numbers |= {"snapshot_id": str(snapshot.snapshot_id), **health_metadata(table_health(table))}
    return numbers


def health_metadata(health: TableHealth) -> Metadata:
    """Describe a table's files. `delete_ratio` is the share of deleted rows in them, which a compaction removes."""
    numbers: dict[str, Any] = {
        "files": health.files, "bytes": health.bytes, "average_file_bytes": health.average_bytes,
        "delete_ratio": round(health.delete_ratio, 4),
    }  # fmt: skip
    if health.compacted_at is not None:
        numbers["last_compaction"] = dg.MetadataValue.timestamp(health.compacted_at)
    return numbers


def configuration_metadata(section: BaseModel) -> dg.MetadataValue[Any]:
    """Format a section of the configuration as in the file, without its defaults and its secrets, in Markdown."""
    text = yaml.safe_dump(without_secrets(section), sort_keys=False, allow_unicode=True, width=100)
    return dg.MetadataValue.md(_fenced("yaml", text.rstrip()))


def held_list(held: Mapping[TableName, str]) -> dg.MetadataValue[Any] | None:
    """Format reasons by table as a list in Markdown; None without any."""
    rows = [f"- **{as_markdown(str(table))}**: {as_markdown(why)}" for table, why in sorted(held.items(), key=str)]
    return dg.MetadataValue.md("\n".join(rows)) if rows else None


def markdown_list(items: Sequence[str], none: str = "") -> dg.MetadataValue[Any]:
    """Format plain texts, which are shown literally, as a list in Markdown; `none` is shown for an empty one."""
    return dg.MetadataValue.md("\n".join(f"- {as_markdown(item)}" for item in items) or none)


_OF_MARKDOWN: Final = re.compile(r"([\\`*\[\]<>])")


def as_markdown(text: str) -> str:
    """Escape a text for Markdown: names and statements of the source must not link, load or format anything."""
    return _OF_MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _fenced(language: str, text: str) -> str:
    """Format a block of code that backticks in it cannot end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


_ICEBERG_TYPES: Final = {pa.int64(): "long", pa.bool_(): "boolean", pa.timestamp("us", "UTC"): "timestamptz"}
_EVENT_COLUMNS: Final = {
    "feed_date": "date of the flush, not of the commit",
    "schema_name": "database in the source",
    "table_name": "table in the source",
    "table_version": "TSO of the table's version; 0 where messages are read",
    "physical_partition": "TiDB's id of the partition",
    "op": "I, U or D; R for a row of the initial load",
    "commit_ts": "TSO of the change",
    "commit_time": "its wall-clock time",
    "before": "JSON: the row that a DELETE removed, or an UPDATE's old values",
    "after": "JSON: the new row of an INSERT or UPDATE",
    "segment": "what the event came in: a file, a range of offsets, or what the feed wrote itself",
    "line": "row of the file from 1, or offset of the message",
    SYNTHETIC: "whether it comes after the others of its commit-ts: moved rows, dumps, repairs",
}

EVENTS_SCHEMA: Final = dg.TableSchema([
    dg.TableColumn(each.name, _ICEBERG_TYPES.get(each.type, str(each.type)), _EVENT_COLUMNS[each.name])
    for each in EVENTS
])  # fmt: skip
"""The columns of `events` with their Iceberg types."""


def table_name(identifier: Identifier) -> str:
    """Return a table's name with that of the catalog, as in Spark."""
    return f"{CATALOG}.{identifier}"


def moment(name: str, commit_ts: int) -> dict[str, Any]:
    """Return a commit-ts as text, because a plot cannot show it as a number, and as a time."""
    return {f"{name}_ts": str(commit_ts), f"{name}_time": dg.MetadataValue.timestamp(commit_time(commit_ts))}
