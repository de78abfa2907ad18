"""Checks: numbers of the lake, judged and shown. None of them starts a JVM.

Each run of a feed evaluates the feed's checks, and the run that changes a table evaluates the table's. All checks can
be run by themselves at any time. To add a check of a feed, add a function and a row of `_FEED_CHECKS`.

Checks that detect wrong published rows are blocking: assets that depend on the table or on the cut do not run after
them. The feed's own steps do not wait for a check: a bad table is held, and does not stop others. `equals_source` does
not block: it also fails while the source database cannot be reached, and only its last run counts.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg
from pyiceberg.table import Table

from cdc_lakehouse.assets import keys
from cdc_lakehouse.assets.metadata import held_list, markdown_list
from cdc_lakehouse.changelog.mysql_types import LABELS
from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig, VerifyConfig
from cdc_lakehouse.config.reporting import plural, some
from cdc_lakehouse.decoders.problems import BAD_SCHEMA_FILE
from cdc_lakehouse.errors import UnreadableTableError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.segments import index_gaps
from cdc_lakehouse.lake.tables.source_metadata import OPTION_CONFLICT_ADVICE
from cdc_lakehouse.operate import state as of_lake
from cdc_lakehouse.operate.signals import find_problems
from cdc_lakehouse.operate.state import FeedState
from cdc_lakehouse.pipeline.feed_tables import is_taken
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import LogSource

EQUALS_SOURCE: Final = "equals_source"
NO_DUPLICATE_KEYS: Final = "no_duplicate_keys"
ROWS_CONSERVED: Final = "rows_conserved"
UP_TO_DATE: Final = "up_to_date"
_TABLE_CHECKS: Final = {
    UP_TO_DATE: "The table shows the published cut: nothing holds it.",
    NO_DUPLICATE_KEYS: "Every key is in the table once.",
    ROWS_CONSERVED: "Rows before, less those that the last events took, with those they wrote, are the rows after.",
}
WITH_OWN_ALERTS: Final = frozenset({"fresh", "nothing_held", "nothing_quarantined", "schema_files_valid", UP_TO_DATE})
"""Checks of what alerts of other kinds report: `stale`, `held`, `quarantined`."""
_SHOWN: Final = 20


Found = tuple[bool, dict[str, Any]]
"""Whether a check passed, and its numbers."""


def _result(
    asset: dg.AssetKey, name: str, passed: bool, metadata: dict[str, Any], advice: Any = None, *, warns: bool = False
) -> dg.AssetCheckResult:
    severity = dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR
    return dg.AssetCheckResult(
        passed=passed, asset_key=asset, check_name=name, metadata=metadata, severity=severity,
        description=None if passed else advice,
    )  # fmt: skip


@dataclass(frozen=True)
class _FeedCheck:
    """A check of a feed. `asset` makes the key. `description` says what is so where it passes.
    `advice` is shown when the check failed, as a warning where it only `warns`. `applies` says for which sources the
    check exists. `blocking`: see the module's docstring."""

    name: str
    asset: Callable[[FeedConfig], dg.AssetKey]
    description: str
    evaluate: Callable[[FeedState], Found]
    advice: str | Callable[[FeedState], str] | None = None
    applies: Callable[[LogSource], bool] = lambda source: True
    blocking: bool = False
    warns: bool | Callable[[FeedState], bool] = False

    def result(self, state: FeedState) -> dg.AssetCheckResult:
        passed, metadata = self.evaluate(state)
        advice = self.advice(state) if callable(self.advice) and not passed else self.advice
        warns = self.warns(state) if callable(self.warns) else self.warns
        return _result(self.asset(state.feed), self.name, passed, metadata, advice, warns=warns)


def build_checks(lake: Lake, feed: FeedConfig, tables: Sequence[TableName]) -> list[dg.AssetChecksDefinition]:
    """Return the checks that exist for the feed's source, and those of its known tables."""
    source = FeedRun(feed, lake).source

    def defined(check: _FeedCheck) -> dg.AssetChecksDefinition:
        what = {"name": check.name, "description": check.description, "blocking": check.blocking}
        evaluate: Any = lambda: check.result(FeedState(feed, lake))  # noqa: E731
        return dg.asset_check(asset=check.asset(feed), **what)(evaluate)

    of_feed = [defined(check) for check in _FEED_CHECKS if check.applies(source)]
    if feed.verify is not None:
        of_feed.append(_equals_source(lake, feed, feed.verify))
    return [*of_feed, _table_checks(lake, feed, tables)] if tables else of_feed


def _index_gaps(state: FeedState) -> Found:
    gaps = index_gaps(state.segments.rows)
    where = _where(f"{gap}: {some(list(map(str, gap.missing)), _SHOWN)}" for gap in gaps)
    return not gaps, {"missing_files": sum(len(gap.missing) for gap in gaps), "where": where}


def _event_counts(state: FeedState) -> Found:
    of_segments, in_table, superseded = of_lake.event_counts(state)
    numbers = {"events_of_segments": of_segments, "events_in_table": in_table, "superseded_events_removed": superseded}
    return of_segments == in_table + superseded, numbers


def _quarantined(state: FeedState, *, schema_files: bool) -> Found:
    rows = [row for row in state.quarantine.unresolved() if (row.error_class == BAD_SCHEMA_FILE) == schema_files]
    opened = [row for row in rows if row.state == "open"]
    first = _where((f"{row.segment} line {row.line or '-'}: {row.message}" for row in opened), none="none")
    discarded = sum(row.count for row in rows if row.state == "discarded")
    return not opened, {"open": sum(row.count for row in opened), "discarded": discarded, "first": first}


def _lines(state: FeedState) -> Found:
    wrong = of_lake.uncounted_lines(state)
    return not wrong, {"segments": len(wrong), "where": _where(wrong)}


def _cut_rows(state: FeedState) -> Found:
    tables = of_lake.cut_tables(state)
    wrong = [
        f"{row.database}.{row.table}: {plural(row.row_count, 'row')} in the cut, "
        + ("its snapshot is gone" if there is None else f"{there} in the snapshot")
        for row, there in tables
        if row.row_count != there
    ]
    rows = sum(row.row_count for row, _ in tables)
    return not wrong, {"tables": len(tables), "rows": rows, "where": _where(wrong)}


def _option_conflicts(state: FeedState) -> Found:
    conflicts = state.signals.option_conflicts()
    where = _where(
        f"{each.topic} partition {each.partition}, offset {each.offset}: {plural(each.count, 'message')}: {each.reason}"
        for each in conflicts
    )
    return not conflicts, {"messages": sum(conflict.count for conflict in conflicts), "where": where}


def _lossy_text(state: FeedState) -> Found:
    damage = sorted(state.signals.damage().items(), key=lambda item: str(item[0]))
    where = _where(
        f"{table}: " + ", ".join(f"{column} in {count} changes" for column, count in sorted(columns.items()))
        for table, columns in damage
    )
    changed = sum(sum(columns.values()) for _, columns in damage)
    return not damage, {"tables": len(damage), "changed_values": changed, "where": where}


def _fresh(state: FeedState) -> Found:
    stale = any(not problem.subject for problem in find_problems(state, "stale"))
    numbers = {"lag_seconds": state.lag_seconds, "allowed_seconds": state.feed.freshness_minutes * 60}
    return not stale, {} if state.lag_seconds is None else numbers


def _labels(state: FeedState) -> Found:
    lives = () if state.source.has_labels else state.history.history.incarnations().values()
    unknown = sorted(
        f"{life.last.name}.{column.name}"
        for life in lives
        for column in life.last.columns
        if life.dropped_ts is None and column.type.name in LABELS and not column.type.elements
    )
    return not unknown, {"columns": len(unknown), "first": some(unknown, _SHOWN) or "none"}


def _cascades(state: FeedState) -> Found:
    tables = sorted(
        f"{life.last.name}: {(key.name or '').removeprefix('_')} {key.actions}"
        for life in state.history.history.incarnations().values()
        for key in life.last.foreign_keys
        if key.actions is not None and life.dropped_ts is None and is_taken(state.feed.tables, life)
    )
    return not tables, {"foreign_keys": len(tables), "where": _where(tables, none="none")}


_FEED_CHECKS: Final = (
    _FeedCheck("no_index_gaps", keys.raw_key, "Data files are numbered without gaps.", _index_gaps,
               "Restore the missing files, then run again.", applies=lambda source: source.has_files),
    _FeedCheck("source_moves_on", keys.raw_key, "The source does not send what has landed again and again.",
               lambda state: (state.source.stuck() is None, {}), lambda state: str(state.source.stuck()),
               applies=lambda source: source.can_stick),
    _FeedCheck("nothing_quarantined", keys.events_key, "Every line and row could be used.",
               functools.partial(_quarantined, schema_files=False),
               "Repair what the rows name. The next run reads it again."),
    _FeedCheck("events_of_segments", keys.events_key, "The table holds as many events as its segments gave, but for "
               "those that later ones have superseded.", _event_counts),
    _FeedCheck("lines_accounted", keys.events_key, "Every line of a decoded file and every record is an event, in the "
               "quarantine, or without a row for the feed.", _lines, "Decode the dates of these segments again. If "
               "nobody else writes to the feed's own tables, it is a fault here."),
    _FeedCheck("options_agree", keys.events_key, "No message contradicts an option of its format, such as "
               "before_2022_03_20.", _option_conflicts,
               lambda state: f"{state.signals.option_conflicts()[0].reason}. {OPTION_CONFLICT_ADVICE}",
               applies=lambda source: source.has_options),
    _FeedCheck("text_undamaged", keys.events_key, "No text holds U+FFFD, which Canal writes for bytes that are not "
               "UTF-8.", _lossy_text, "Canal reads columns as UTF-8 whatever their character set is: the text of these "
               "changes is lost. Convert the columns to utf8mb4 in the source, and load the tables anew.",
               applies=lambda source: source.has_lossy_text, warns=True),
    _FeedCheck("fresh", keys.checkpoint_key, "The published cut is not older than freshness_minutes.", _fresh,
               lambda state: "Nothing has been published yet." if state.lag_seconds is None else "See whether the "
               "changefeed's checkpoint moves, and whether runs fail.",
               warns=lambda state: state.lag_seconds is not None),
    _FeedCheck("cut_rows", keys.checkpoint_key, "Every table of the cut has the snapshot that the cut names, with as "
               "many rows as it says.", _cut_rows, "Something else has changed the tables, or has let their snapshots "
               "expire: readers of the cut miss them until the next one is published.", blocking=True),
    _FeedCheck("nothing_held", keys.checkpoint_key, "No table stays behind at an earlier cut.", lambda state:
               (not state.held, {"tables_held": len(state.held), "held": held_list(state.held) or "none"}),
               lambda state: "Each one's check up_to_date has the reason: "
               f"{some(sorted(map(str, state.held)), _SHOWN)}"),
    _FeedCheck("schema_files_valid", keys.checkpoint_key, "Schema files are whole: JSON that fits their checksum.",
               functools.partial(_quarantined, schema_files=True),
               "Restore the files as TiCDC wrote them. The next run reads them again.",
               applies=lambda source: source.has_files),
    _FeedCheck("labels_known", keys.checkpoint_key, "ENUM and SET values are labels, not the source's numbers.",
               _labels, "Neither schema files nor statements have the labels of these columns: their values are "
               "numbers. An ALTER TABLE … MODIFY COLUMN in the source that states the type again brings the labels.",
               warns=True),
    _FeedCheck("cascades_logged", keys.checkpoint_key, "No table has a foreign key whose actions change its rows, "
               "which MySQL before 9.6 and MariaDB do not log.", _cascades, "Rows that these foreign keys delete or "
               "change stay as they were: before MySQL 9.6 the binlog does not have what InnoDB does by itself. Delete "
               "and update child rows by statements in the source; `cdc-lakehouse verify --repair` puts rows right.",
               applies=lambda source: source.database == "mysql", warns=True),
    _FeedCheck("patterns_match", keys.checkpoint_key, "Each pattern of tables.include matches a table that was seen.",
               lambda state: (not state.warnings, {"patterns": len(state.warnings),
                                                   "which": _where(state.warnings, none="none")}),
               "Correct the patterns, in letter case too. One for a table that is still to come can stay.", warns=True),
)  # fmt: skip


def _equals_source(lake: Lake, feed: FeedConfig, config: VerifyConfig) -> dg.AssetChecksDefinition:
    """The tables of the published cut are those of the source database, as `cdc-lakehouse verify` compares them."""

    @dg.asset_check(
        asset=keys.checkpoint_key(feed), name=EQUALS_SOURCE, description=_equals_source.__doc__, blocking=False
    )
    def evaluate() -> dg.AssetCheckResult:
        from cdc_lakehouse.operate.verify import verify_feed  # noqa: PLC0415 - It needs the client of the database.

        found = verify_feed(functools.partial(FeedRun, feed, lake), config)
        unchecked = [f"{table.name}: {table.reason}" for table in found.tables if table.result == "unchecked"]
        unchecked += [f"{table}: held: {reason}" for table, reason in sorted(found.held.items(), key=str)]
        unchecked += [found.error] if found.error is not None else []
        metadata: dict[str, Any] = {
            "checkpoint_ts": found.checkpoint_ts or BEGINNING,
            "tables": len(found.tables),
            "differing_keys": sum(table.differing_keys for table in found.tables),
            "differing": _where(f"{table.name}: {each}" for table in found.tables for each in table.differences),
            "not_compared": _where(unchecked, none="none"),
        }
        advice = "Something could not be compared."
        if found.result == "different":
            advice = "See both rows with `cdc-lakehouse verify`; `cdc-lakehouse verify --repair` puts them right."
        passed, warns = found.result == "equal", found.result == "unchecked"
        return _result(keys.checkpoint_key(feed), EQUALS_SOURCE, passed, metadata, advice, warns=warns)

    return evaluate


def table_evaluations(
    feed: FeedConfig, name: TableName, table: Table, *, of_batch: bool = False
) -> list[dg.AssetCheckResult]:
    """Evaluate the checks of the rows of a current-state table. With `of_batch` only keys that the last batch wrote are
    searched for duplicates, so that a large table is not read completely."""
    asset = keys.current_key(feed, name)
    read, double, examples = of_lake.duplicate_keys(table, of_batch=of_batch)
    rows = of_lake.conservation(table)
    found = {"rows": read, "duplicate_keys": double, "examples": ", ".join(examples) or "none"}
    counted = {
        "rows_before": rows.before,
        "rows_deleted": rows.deleted,
        "rows_written": rows.written,
        "rows_after": rows.after,
        "keys_touched": "any" if rows.changed_keys is None else rows.changed_keys,
        "expected": "unknown" if rows.expected is None else "{} written, {} deleted".format(*rows.expected),
    }
    return [_result(asset, NO_DUPLICATE_KEYS, double == 0, found), _result(asset, ROWS_CONSERVED, rows.holds, counted)]


def hold_evaluation(feed: FeedConfig, name: TableName, reason: str | None) -> dg.AssetCheckResult:
    """Return the check of a table that is held for a reason, or of one that is not held."""
    look = f"cdc-lakehouse status --feed {feed.name} --table '{name}'"
    held = {} if reason is None else {"held": reason, "command": look}
    said = f"Held at its last good cut: {reason}. `{look}` shows where it stands."
    return _result(keys.current_key(feed, name), UP_TO_DATE, reason is None, held, said)


def feed_evaluations(lake: Lake, feed: FeedConfig, asset: dg.AssetKey) -> Iterator[dg.AssetCheckResult]:
    """Evaluate the checks of one of the feed's assets, for a run that does not have the asset itself."""
    state = FeedState(feed, lake)
    for check in _FEED_CHECKS:
        if check.asset(feed) == asset and check.applies(state.source):
            yield check.result(state)


def log_results(context: Any, results: Iterable[dg.AssetCheckResult]) -> None:
    fields = ("asset_key", "check_name", "passed", "metadata", "severity", "description")
    for result in results:
        # Dagster accepts it; its annotation is outdated.
        evaluation: Any = dg.AssetCheckEvaluation(**{name: getattr(result, name) for name in fields})
        context.log_event(evaluation)


def _table_checks(lake: Lake, feed: FeedConfig, tables: Sequence[TableName]) -> dg.AssetChecksDefinition:
    """Define the checks of tables, to be run by themselves."""
    specs = {
        f"{keys.output_name('current', table)}__{check}": dg.AssetCheckSpec(
            check, asset=keys.current_key(feed, table), description=description, blocking=check != UP_TO_DATE
        )
        for table in tables
        for check, description in _TABLE_CHECKS.items()
    }
    inputs = {keys.output_name("current", table): keys.current_key(feed, table) for table in tables}

    @dg.op(
        name=f"{feed.name}__table_checks",
        ins={name: dg.In(dg.Nothing) for name in inputs},
        out={name: dg.Out(dg.Nothing, is_required=False) for name in specs},
    )
    def table_checks(context: dg.OpExecutionContext) -> Iterator[dg.AssetCheckResult]:
        wanted = {(key.asset_key, key.name) for key in context.selected_asset_check_keys}

        def own(results: Iterable[dg.AssetCheckResult]) -> Iterator[dg.AssetCheckResult]:
            return (result for result in results if (result.asset_key, result.check_name) in wanted)

        current, held = CurrentTables(lake, feed), FeedState(feed, lake).held
        for name in tables:
            yield from own([hold_evaluation(feed, name, held.get(name))])
            try:
                if (table := current.load(current.identifier(name))) is not None:
                    yield from own(table_evaluations(feed, name, table))
            except UnreadableTableError as error:
                # Its last evaluation stays: no check can evaluate it.
                context.log.warning("%s", error)

    # Not `multi_asset_check`: it would name outputs by the tables, and refuse names that are not identifiers.
    return dg.AssetChecksDefinition.create(
        node_def=table_checks, keys_by_input_name=inputs, check_specs_by_output_name=specs, can_subset=True
    )


def _where(lines: Iterable[str], none: str = "nowhere") -> dg.MetadataValue[Any]:
    found = list(lines)
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return markdown_list([*found[:_SHOWN], *more], none)
