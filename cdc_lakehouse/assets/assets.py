"""The assets of one feed: (snapshot →) raw → events → current → checkpoint, and the schemas that current follows.

The bodies call the steps of a run and report the results. The steps of the assets that an asset depends on have run
when it is the asset's turn; in a run of a single asset, its step runs the earlier ones first.

These runs are requested: dates are decoded again, and tables without changes report `unchanged`. The job `<feed>_new`
processes what is new, and logs the same about the assets."""

import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg
import pyarrow as pa

from cdc_lakehouse.assets import checks, keys, metadata, specs
from cdc_lakehouse.assets.passed_dates import log_passed_dates
from cdc_lakehouse.assets.resources import Lakehouse
from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import UnreadableTableError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.segments import DECODED, DUMP, Segment, Segments, Totals, as_rows, totals
from cdc_lakehouse.pipeline.feed_state import held_by_name
from cdc_lakehouse.pipeline.monitors import open_monitor
from cdc_lakehouse.pipeline.source import SourceMonitor
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.pipeline.taken_tables import was_taken

Context = dg.AssetExecutionContext | dg.OpExecutionContext

# The policy and owners are marked as beta, and every load would warn about it.
warnings.filterwarnings("ignore", category=dg.BetaWarning, message=".*(backfill_policy|owners).*")


@dataclass(frozen=True)
class Described:
    """The segments of a feed, `known` with the columns of `segments`, and those that a run brought; `measure` computes
    the metadata of a materialization from the totals of both, and from whether they are of one date."""

    known: pa.Table
    new: Sequence[Segment]
    measure: Callable[[Totals, Totals, bool], metadata.Metadata]

    @property
    def new_dates(self) -> set[str]:
        return {segment.feed_date for segment in self.new if segment.feed_date is not None}

    def numbers(self, date: str | None) -> metadata.Metadata:
        """Return the metadata of one date, so that they plot by date, or of all segments for None."""
        rows = as_rows(self.new)
        if date is None:
            return self.measure(totals(self.known), totals(rows), False)
        of_date = pc.field("feed_date") == date
        return self.measure(totals(self.known.filter(of_date)), totals(rows.filter(of_date)), True)


def build_assets(lake: Lake, feed: FeedConfig, tables: Sequence[TableName]) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Return the assets of a feed whose known tables are `tables`: the log in the source, `raw`, `events`, and one
    definition with all others."""
    source = open_monitor(lake, feed)
    snapshot = [_snapshot(feed, source)] if feed.initial is not None else []
    partitioned = _partitioned_asset(lake, feed)
    return [
        dg.AssetSpec(**specs.source_spec(feed, source)),
        *snapshot,
        _raw(partitioned, feed, source),
        _events(partitioned, feed, tables),
        _tables(feed, tables, _outputs(lake, feed, tables, source)),
    ]


def pool_of(feed: FeedConfig) -> str:
    """Return the feed's pool, which keeps its runs apart: the instance's pools have a limit of one run."""
    return f"cdc_{feed.name}"


def _partitioned_asset(lake: Lake, feed: FeedConfig) -> Any:
    return functools.partial(
        dg.asset,
        partitions_def=keys.partitions_of(feed, Segments(lake, feed.name).dates()),
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=pool_of(feed),
    )


_TABLE_KEYS: Final = (keys.schema_key, keys.current_key)


def _snapshot(feed: FeedConfig, source: SourceMonitor) -> dg.AssetsDefinition:
    asset: Any = functools.partial(dg.asset, pool=pool_of(feed))

    @asset(**specs.snapshot_spec(feed, source))
    def snapshot(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata=describe_snapshot(lakehouse.steps(context, feed.name)))

    return snapshot


def describe_snapshot(steps: Steps) -> metadata.Metadata:
    """Load the rest of the initial dump, and describe the dump."""
    loaded = steps.loaded
    rows = steps.run.segments.rows.filter(pc.field("kind") == DUMP)
    return metadata.snapshot_metadata(rows, totals(as_rows(loaded.segments)))


def _raw(partitioned_asset: Any, feed: FeedConfig, source: SourceMonitor) -> dg.AssetsDefinition:
    @partitioned_asset(**specs.raw_spec(feed, source))
    def raw(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        described = describe_raw(context, lakehouse.steps(context, feed.name))
        return _by_date(context, described)

    return raw


def describe_raw(context: Context, steps: Steps) -> Described:
    """Land what is new, and describe what has landed."""
    landed = steps.landed
    for fault in landed.faults:
        context.log.warning(fault)

    def measure(known: Totals, new: Totals, by_date: bool) -> metadata.Metadata:
        return metadata.landed_metadata(landed, known, new, utc_now())

    return Described(steps.run.segments.rows, landed.new, measure)


def _events(partitioned_asset: Any, feed: FeedConfig, tables: Sequence[TableName]) -> dg.AssetsDefinition:
    @partitioned_asset(**specs.events_spec(feed))
    def events(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        steps = lakehouse.steps(context, feed.name)
        result = _by_date(context, describe_events(steps))
        of_tables = {
            keys.checkpoint_key(feed.name),
            *(key(feed.name, table) for table in tables for key in _TABLE_KEYS),
        }
        if context.job_def.asset_layer.selected_asset_keys.isdisjoint(of_tables):
            # Dagster gives assets without dates a separate run: this run updates the tables itself.
            log_tables(context, steps, feed)
        return result

    return events


def describe_events(steps: Steps) -> Described:
    """Decode what has landed, and describe the events."""
    decoded = steps.decoded.segments
    known = steps.run.segments.rows.filter(pc.field("state") == DECODED)
    rows = totals(known).events

    def measure(known: Totals, new: Totals, by_date: bool) -> metadata.Metadata:
        return metadata.events_metadata(known, new, rows, by_date=by_date)

    return Described(known, decoded, measure)


def _by_date(context: dg.AssetExecutionContext, described: Described) -> dg.MaterializeResult[Any]:
    """Add the numbers of each partition of a run."""
    if not context.has_partition_key and not context.has_partition_key_range:
        return dg.MaterializeResult(metadata=described.numbers(None))
    for date in context.partition_keys:
        context.add_asset_metadata(described.numbers(date), partition_key=date)
    return dg.MaterializeResult()


def _tables(feed: FeedConfig, tables: Sequence[TableName], outputs: dict[str, dg.AssetOut]) -> dg.AssetsDefinition:
    """Define schema, current and checkpoint as one op: most tables have no changes in most runs, and for an asset that
    a run leaves out Dagster would skip the ops that depend on it."""

    @dg.multi_asset(
        name=f"{feed.name}__tables",
        outs=outputs,
        deps=[keys.events_key(feed.name), *([keys.source_key(feed.name)] if tables else [])],
        internal_asset_deps=_dependencies(feed, tables),
        can_subset=True,
        pool=pool_of(feed),
    )
    def tables_of_feed(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> Iterator[Any]:
        steps = lakehouse.steps(context, feed.name)
        selected = context.selected_asset_keys
        checkpoint = keys.checkpoint_key(feed.name)
        if checkpoint not in selected:
            # Only these tables; a cut consists of all tables.
            current = {table: keys.current_key(feed.name, table) for table in tables}
            steps.run.only = frozenset(table for table, key in current.items() if key in selected)
        # Dagster refuses an asset before one that it depends on, so all schemas come first.
        for layer in _layers(context, steps, feed):
            said: set[dg.AssetKey] = set()
            for each in layer.changed:
                said.add(each.asset_key)
                if each.asset_key in selected:
                    yield dg.MaterializeResult(asset_key=each.asset_key, metadata=each.metadata)
                else:
                    # It was unknown when the definitions were loaded, or was not selected.
                    context.log_event(each)
            for table in tables:
                # The run was requested, and a backfill waits for all assets that it has selected.
                if (key := layer.key(feed.name, table)) in selected - said:
                    described = {**layer.unchanged(steps, table), "unchanged": True}
                    yield dg.MaterializeResult(asset_key=key, metadata=described)
        if checkpoint in selected:
            log_passed_dates(context, feed, steps)
            yield dg.MaterializeResult(asset_key=checkpoint, metadata=_cut(steps))
        elif steps.run.only and steps.published.new:
            # All other tables have reached the checkpoint too.
            context.log_event(dg.AssetMaterialization(checkpoint, metadata=_cut(steps)))

    return tables_of_feed


def log_tables(context: Context, steps: Steps, feed: FeedConfig) -> None:
    """Apply DDL and rows, publish the cut, and log the changes with their checks, for a run without these assets."""
    for layer in _layers(context, steps, feed):
        for each in layer.changed:
            context.log_event(each)
    log_passed_dates(context, feed, steps)
    context.log_event(dg.AssetMaterialization(keys.checkpoint_key(feed.name), metadata=_cut(steps)))
    checks.log_feed_checks(context, steps.run.lake, feed, keys.checkpoint_key(feed.name))


def _cut(steps: Steps) -> metadata.Metadata:
    return metadata.checkpoint_metadata(steps.published, steps.applied, _held(steps), utc_now())


def _held(steps: Steps) -> dict[TableName, str]:
    return held_by_name(steps.applied.held.items(), steps.run.history.history.incarnations())


@dataclass(frozen=True)
class _Layer:
    """One kind of assets of tables. `changed` yields the assets that the run changes, while it changes them.
    `unchanged` returns what is true of a table without changes."""

    key: Callable[[str, TableName], dg.AssetKey]
    changed: Iterator[dg.AssetMaterialization]
    unchanged: Callable[[Steps, TableName], metadata.Metadata]


def _layers(context: Context, steps: Steps, feed: FeedConfig) -> tuple[_Layer, _Layer]:
    return (
        _Layer(keys.schema_key, _schemas(steps, feed), _unchanged_schema),
        _Layer(keys.current_key, _current(context, steps, feed), _unchanged_current),
    )


def _outputs(
    lake: Lake, feed: FeedConfig, tables: Sequence[TableName], source: SourceMonitor
) -> dict[str, dg.AssetOut]:
    outputs: dict[str, dg.AssetOut] = {}
    for table in tables:
        schema, current = specs.schema_spec(feed, table, source), specs.current_spec(lake, feed, table)
        outputs[keys.output_name("schema", table)] = dg.AssetOut(**schema, is_required=False)
        outputs[keys.output_name("current", table)] = dg.AssetOut(**current, is_required=False)
    outputs["checkpoint"] = dg.AssetOut(**specs.checkpoint_spec(feed), is_required=False)
    return outputs


def _dependencies(feed: FeedConfig, tables: Sequence[TableName]) -> dict[str, set[dg.AssetKey]]:
    """Return, by output, the assets that it depends on."""
    events = keys.events_key(feed.name)
    dependencies: dict[str, set[dg.AssetKey]] = {}
    for table in tables:
        dependencies[keys.output_name("schema", table)] = {keys.source_key(feed.name)}
        dependencies[keys.output_name("current", table)] = {events, keys.schema_key(feed.name, table)}
    dependencies["checkpoint"] = {keys.current_key(feed.name, table) for table in tables} or {events}
    return dependencies


def _schemas(steps: Steps, feed: FeedConfig) -> Iterator[dg.AssetMaterialization]:
    """Yield materializations of the tables with new statements."""
    evolved = steps.evolved.versions
    lives = steps.run.history.history.incarnations()
    by_table: dict[TableName, list[TableVersion]] = defaultdict(list)
    for version in evolved:
        if version.incarnation and was_taken(feed.tables, lives[version.incarnation]):
            # Statements under an earlier name belong to the asset with the table's current name.
            by_table[lives[version.incarnation].last.name].append(version)
    for table, versions in by_table.items():
        described = metadata.schema_metadata(versions, lives)
        yield dg.AssetMaterialization(keys.schema_key(feed.name, table), metadata=described)


def _unchanged_schema(steps: Steps, table: TableName) -> metadata.Metadata:
    """Return all statements of the table, none of which is new."""
    life = _live(steps, table)
    if life is None:
        return {}
    lives = steps.run.history.history.incarnations()
    return {**metadata.schema_metadata(list(life.versions), lives), "ddl": 0}


def _current(context: Context, steps: Steps, feed: FeedConfig) -> Iterator[dg.AssetMaterialization]:
    """Yield materializations of the tables that the run changed, and log their checks. Nothing is done when no table is
    wanted."""
    if steps.run.only is not None and not steps.run.only:
        return
    applied = steps.applied
    for table, reason in _held(steps).items():
        context.log.warning("table %s is held: %s", table, reason)
    now = utc_now()
    for changed in applied.tables:
        name = changed.life.last.name
        if changed.life.dropped_ts is None:
            table = steps.run.lake.catalog.load_table(changed.state.identifier.parts)
            described = metadata.table_metadata(feed.name, changed, table, applied.checkpoint_ts, now)
            yield dg.AssetMaterialization(keys.current_key(feed.name, name), metadata=described)
            checks.log_table_checks(context, feed, name, table)


def _unchanged_current(steps: Steps, table: TableName) -> metadata.Metadata:
    """Return the current state of the table: at the checkpoint, or held before it."""
    run, life = steps.run, _live(steps, table)
    try:
        state = None if life is None else CurrentTables(run.lake, run.feed).find(life)
    except UnreadableTableError as error:
        return {"held": str(error)}
    held = {} if life is None or life.id not in steps.applied.held else {"held": steps.applied.held[life.id]}
    if life is None or state is None:
        return held
    upto = state.applied_ts if held else steps.applied.checkpoint_ts
    current = run.lake.catalog.load_table(state.identifier.parts)
    return {**metadata.state_metadata(run.feed.name, state, life.last, current, upto, utc_now()), **held}


def _live(steps: Steps, table: TableName) -> Incarnation | None:
    lives = steps.run.history.history.incarnations().values()
    return next((life for life in lives if life.last.name == table and life.dropped_ts is None), None)
