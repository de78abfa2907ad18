"""Checks: numbers of the lake, judged and shown. None of them starts a JVM.

Those of a table are worked out in the run that changed it; the others can be run by themselves at any time.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import dagster as dg
from pyiceberg.table import Table

from cdc_lakehouse.assets import keys
from cdc_lakehouse.assets.metadata import held_list
from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import LABELS
from cdc_lakehouse.changelog.positions import BEGINNING, lag_seconds
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.check_queries import conservation, duplicate_keys, duplicate_keys_written, event_counts
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints
from cdc_lakehouse.lake.tables.quarantine import Quarantine
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.lake.tables.segments import Segments, index_gaps
from cdc_lakehouse.lake.tables.source_metadata import DOUBTS_ADVICE, Signals
from cdc_lakehouse.pipeline.context import utc_now
from cdc_lakehouse.pipeline.monitors import open_monitor
from cdc_lakehouse.pipeline.sink_schemas import BAD_SCHEMA_FILE

NO_DUPLICATE_KEYS: Final = "no_duplicate_keys"
ROWS_CONSERVED: Final = "rows_conserved"
_TABLE_CHECKS: Final = {
    NO_DUPLICATE_KEYS: "Each key stands in the table once.",
    ROWS_CONSERVED: "Rows before, less those deleted, and those written, are the rows after.",
}
_SHOWN: Final = 20


def table_evaluations(
    feed: FeedConfig, name: TableName, table: Table, *, of_batch: bool = False
) -> list[dg.AssetCheckResult]:
    """Both checks of a current-state table; with `of_batch` duplicates only of keys that the last batch wrote, for
    which not all of a large table need be held, or read."""
    asset = keys.current_key(feed.name, name)
    double = duplicate_keys_written(table) if of_batch else duplicate_keys(table)
    rows = conservation(table)
    return [
        dg.AssetCheckResult(
            passed=double.keys == 0,
            asset_key=asset,
            check_name=NO_DUPLICATE_KEYS,
            metadata={
                "rows": double.rows,
                "duplicate_keys": double.keys,
                "examples": ", ".join(double.examples) or "none",
            },
        ),
        dg.AssetCheckResult(
            passed=rows.holds,
            asset_key=asset,
            check_name=ROWS_CONSERVED,
            metadata={
                "rows_before": rows.before,
                "rows_deleted": rows.deleted,
                "rows_written": rows.written,
                "rows_after": rows.after,
                "keys_touched": "any" if rows.touched is None else rows.touched,
            },
        ),
    ]


def log_table_checks(context: dg.AssetExecutionContext, feed: FeedConfig, name: TableName, table: Table) -> None:
    """What a run found of a table that it has changed."""
    for result in table_evaluations(feed, name, table, of_batch=True):
        evaluation: Any = dg.AssetCheckEvaluation(  # Dagster takes it; its annotation has not caught up.
            asset_key=keys.current_key(feed.name, name),
            check_name=str(result.check_name),
            passed=result.passed,
            metadata=result.metadata,
        )
        context.log_event(evaluation)


def _table_checks(lake: Lake, feed: FeedConfig, tables: Sequence[TableName]) -> dg.AssetChecksDefinition:
    """The checks of tables, to be run by themselves; a run evaluates those of the tables that it changes."""

    specs = {
        f"{keys.output_name('current', table)}__{check}": dg.AssetCheckSpec(
            check, asset=keys.current_key(feed.name, table), description=description
        )
        for table in tables
        for check, description in _TABLE_CHECKS.items()
    }
    inputs = {keys.output_name("current", table): keys.current_key(feed.name, table) for table in tables}

    @dg.op(
        name=f"{feed.name}__table_checks",
        ins={name: dg.In(dg.Nothing) for name in inputs},
        out={name: dg.Out(dg.Nothing, is_required=False) for name in specs},
    )
    def table_checks(context: dg.OpExecutionContext) -> Iterator[dg.AssetCheckResult]:
        wanted = {(key.asset_key, key.name) for key in context.selected_asset_check_keys}
        current = CurrentTables(lake, feed)
        for name in tables:
            table = lake.load(current.identifier(name))
            if table is not None:
                for result in table_evaluations(feed, name, table):
                    if (result.asset_key, result.check_name) in wanted:
                        yield result

    # Not `multi_asset_check`: it would name outputs by the tables, and refuse what is no identifier.
    return dg.AssetChecksDefinition.create(
        node_def=table_checks, keys_by_input_name=inputs, check_specs_by_output_name=specs, can_subset=True
    )


def build_checks(lake: Lake, feed: FeedConfig, tables: Sequence[TableName]) -> list[dg.AssetChecksDefinition]:
    of_tables = [_table_checks(lake, feed, tables)] if tables else []
    of_feed = [_index_gaps(lake, feed), _quarantine(lake, feed), _event_counts(lake, feed), *_of_checkpoint(lake, feed)]
    source = open_monitor(lake, feed)
    of_options = [_options_right(lake, feed)] if source.has_options else []
    of_text = [_text_undamaged(lake, feed)] if source.has_lossy_text else []
    return [*of_feed, *of_options, *of_text, *of_tables]


def _text_undamaged(lake: Lake, feed: FeedConfig) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=keys.events_key(feed.name),
        name="text_undamaged",
        description="No text holds U+FFFD, which Canal puts for bytes that are not UTF-8.",
    )
    def text_undamaged() -> dg.AssetCheckResult:
        damage = Signals(lake, feed.name).damage()
        lines = [
            f"- `{table}`: " + ", ".join(f"`{column}` in {count} changes" for column, count in sorted(columns.items()))
            for table, columns in sorted(damage.items(), key=lambda each: str(each[0]))
        ]
        advice = (
            "Canal reads columns as UTF-8 whatever their character set is: what these changes had is lost. Convert the "
            "columns to utf8mb4 in the source, and load the tables anew."
        )
        return dg.AssetCheckResult(
            passed=not damage,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                "tables": len(damage),
                "changed_values": sum(sum(columns.values()) for columns in damage.values()),
                "where": dg.MetadataValue.md("\n".join(lines[:_SHOWN]) or "nowhere"),
            },
            description=advice if damage else None,
        )

    return text_undamaged


def _index_gaps(lake: Lake, feed: FeedConfig) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=keys.raw_key(feed.name), name="no_index_gaps", description="Data files are numbered without holes."
    )
    def no_index_gaps() -> dg.AssetCheckResult:
        gaps = index_gaps(Segments(lake, feed.name).rows)
        lines = [f"- `{gap}`: {', '.join(map(str, gap.missing[:_SHOWN]))}" for gap in gaps[:_SHOWN]]
        return dg.AssetCheckResult(
            passed=not gaps,
            metadata={
                "missing_files": sum(len(gap.missing) for gap in gaps),
                "where": dg.MetadataValue.md("\n".join(lines) or "nowhere"),
            },
            description="Restore the missing files, then run again." if gaps else None,
        )

    return no_index_gaps


def _quarantine(lake: Lake, feed: FeedConfig) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=keys.events_key(feed.name), name="nothing_quarantined", description="Every line and row could be used."
    )
    def nothing_quarantined() -> dg.AssetCheckResult:
        rows = [row for row in Quarantine(lake, feed.name).open() if row.error_class != BAD_SCHEMA_FILE]
        return _of_rows(rows, "Mend what the rows name; the next run takes it up again.")

    return nothing_quarantined


def _event_counts(lake: Lake, feed: FeedConfig) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=keys.events_key(feed.name),
        name="events_of_segments",
        description="The table holds as many events as its segments gave.",
    )
    def events_of_segments() -> dg.AssetCheckResult:
        counts = event_counts(lake, feed.name)
        return dg.AssetCheckResult(
            passed=counts.of_segments == counts.in_table,
            metadata={"events_of_segments": counts.of_segments, "events_in_table": counts.in_table},
        )

    return events_of_segments


def _of_checkpoint(lake: Lake, feed: FeedConfig) -> list[dg.AssetChecksDefinition]:
    asset = keys.checkpoint_key(feed.name)
    has_labels = open_monitor(lake, feed).has_labels

    @dg.asset_check(asset=asset, name="fresh", description="The published cut is not older than freshness_minutes.")
    def fresh() -> dg.AssetCheckResult:
        cut = Checkpoints(lake, feed.name).last()
        if cut.checkpoint_ts == BEGINNING:
            return dg.AssetCheckResult(passed=False, description="Nothing has been published yet.")
        lag = lag_seconds(cut.checkpoint_ts, utc_now())
        return dg.AssetCheckResult(
            passed=lag <= feed.freshness_minutes * 60,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"lag_seconds": lag, "allowed_seconds": feed.freshness_minutes * 60},
            description="See whether the changefeed's checkpoint moves, and whether runs fail.",
        )

    @dg.asset_check(asset=asset, name="nothing_held", description="No table stays behind at an earlier cut.")
    def nothing_held() -> dg.AssetCheckResult:
        held = dict(Checkpoints(lake, feed.name).last().held)
        return dg.AssetCheckResult(
            passed=not held, metadata={"tables_held": len(held), "held": held_list(held) if held else "none"}
        )

    @dg.asset_check(
        asset=asset, name="schema_files_valid", description="Schema files are whole: JSON, and as their checksum."
    )
    def schema_files_valid() -> dg.AssetCheckResult:
        rows = [row for row in Quarantine(lake, feed.name).open() if row.error_class == BAD_SCHEMA_FILE]
        return _of_rows(rows, "Restore the files as TiCDC wrote them; the next run reads them again.")

    @dg.asset_check(
        asset=asset, name="labels_known", description="ENUM and SET values are labels, not the source's numbers."
    )
    def labels_known() -> dg.AssetCheckResult:
        unknown = [] if has_labels else without_labels(SchemaHistory(lake, feed.name).history)
        advice = (
            "Neither schema files nor statements say the labels of these columns: their values are numbers. An ALTER "
            "TABLE … MODIFY COLUMN in the source that states the type again brings the labels."
        )
        return dg.AssetCheckResult(
            passed=not unknown,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"columns": len(unknown), "first": ", ".join(unknown[:_SHOWN]) or "none"},
            description=advice if unknown else None,
        )

    return [fresh, nothing_held, schema_files_valid, labels_known]


def _options_right(lake: Lake, feed: FeedConfig) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=keys.events_key(feed.name),
        name="options_agree",
        description="No message contradicts an option of its format, such as before_2022_03_20.",
    )
    def options_agree() -> dg.AssetCheckResult:
        doubts = Signals(lake, feed.name).doubts()
        lines = [
            f"- `{doubt.topic}` partition {doubt.partition} from offset {doubt.offset} on, {doubt.count} messages: "
            f"{doubt.reason}"
            for doubt in doubts[:_SHOWN]
        ]
        return dg.AssetCheckResult(
            passed=not doubts,
            metadata={
                "messages": sum(doubt.count for doubt in doubts),
                "where": dg.MetadataValue.md("\n".join(lines) or "nowhere"),
            },
            description=f"{doubts[0].reason}. {DOUBTS_ADVICE}" if doubts else None,
        )

    return options_agree


def without_labels(history: History) -> list[str]:
    """Columns of live tables whose values are numbers of labels that the log does not show."""
    lives = (life for life in history.incarnations().values() if life.dropped_ts is None)
    return sorted(
        f"{life.last.name}.{column.name}"
        for life in lives
        for column in life.last.columns
        if column.type.name in LABELS and not column.type.elements
    )


def _of_rows(rows: list[Any], advice: str) -> dg.AssetCheckResult:
    lines = [f"- `{row.segment}` line {row.line or '-'}: {row.message}" for row in rows[:_SHOWN]]
    return dg.AssetCheckResult(
        passed=not rows,
        metadata={"open": sum(row.count for row in rows), "first": dg.MetadataValue.md("\n".join(lines) or "none")},
        description=advice if rows else None,
    )
