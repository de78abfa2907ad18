"""The assets of one feed: (snapshot →) raw → events → schema → current → checkpoint.

Bodies call the steps of a run and say what they did. A step that an asset depends on was taken when it is the asset's
turn; in a run of a single asset, the step makes the earlier ones happen."""

import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lakehouse.assets import checks, keys, metadata
from cdc_lakehouse.assets.resources import INCREMENTAL, TRIGGER_TAG, Lakehouse
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.segments import DECODED, DUMP, Segment, Totals, as_rows, totals
from cdc_lakehouse.pipeline.context import utc_now
from cdc_lakehouse.pipeline.monitors import open_monitor
from cdc_lakehouse.pipeline.source import SourceKind
from cdc_lakehouse.pipeline.steps import Steps

# The policy is marked as beta, and every load would say so.
warnings.filterwarnings("ignore", category=dg.BetaWarning, message=".*backfill_policy.*")


def build_assets(lake: Lake, feed: FeedConfig, tables: Sequence[TableName]) -> list[dg.AssetsDefinition]:
    """The assets of a feed whose known tables are `tables`: `raw`, `events`, and one definition with all the others."""
    snapshot = [_snapshot(feed)] if feed.initial is not None else []
    return [*snapshot, _raw(feed, open_monitor(lake, feed).kind), _events(feed), _tables(feed, tables)]


def pool_of(feed: FeedConfig) -> str:
    """One run of a feed at a time: the instance's pools have a limit of one run."""
    return f"cdc_{feed.name}"


def _partitioned_asset(feed: FeedConfig) -> Any:
    return functools.partial(
        dg.asset,
        partitions_def=keys.partitions_of(feed),
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=pool_of(feed),
        group_name=feed.name,
    )


def _snapshot(feed: FeedConfig) -> dg.AssetsDefinition:
    @dg.asset(
        key=keys.snapshot_key(feed.name),
        kinds={"mysql"},
        description="The rows that the tables held before the change log, from a dump, at one point of it.",
        pool=pool_of(feed),
        group_name=feed.name,
    )
    def snapshot(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        steps = lakehouse.steps(context, feed.name)
        loaded = steps.loaded
        rows = steps.run.segments.rows.filter(pc.field("kind") == DUMP)
        return dg.MaterializeResult(metadata=metadata.snapshot_metadata(rows, totals(as_rows(loaded.segments))))

    return snapshot


def _raw(feed: FeedConfig, source: SourceKind) -> dg.AssetsDefinition:
    @_partitioned_asset(feed)(
        key=keys.raw_key(feed.name),
        deps=[keys.snapshot_key(feed.name)] if feed.initial is not None else [],
        kinds={source.name},
        description=source.description,
    )
    def raw(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        steps = lakehouse.steps(context, feed.name)
        landed = steps.landed
        for fault in landed.faults:
            context.log.warning(fault)

        def measure(known: Totals, new: Totals) -> metadata.Metadata:
            return metadata.landed_metadata(landed, known, new, utc_now())

        return _by_date(context, steps.run.segments.rows, landed.new, measure)

    return raw


def _events(feed: FeedConfig) -> dg.AssetsDefinition:
    @_partitioned_asset(feed)(
        key=keys.events_key(feed.name),
        deps=[keys.raw_key(feed.name)],
        kinds={"spark", "iceberg"},
        description="Every change of every table, once, with its place in the source. Values are the source's text.",
    )
    def events(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        steps = lakehouse.steps(context, feed.name)
        decoded = steps.decoded.segments
        known = steps.run.segments.rows.filter(pc.field("state") == DECODED)
        return _by_date(context, known, decoded, metadata.events_metadata)

    return events


def _by_date(
    context: dg.AssetExecutionContext,
    known: pa.Table,
    new: Sequence[Segment],
    measure: Callable[[Totals, Totals], metadata.Metadata],
) -> dg.MaterializeResult[Any]:
    """The numbers of each partition of a run, so that they plot by date: of all its segments (`known`, columns of
    `segments`), and of those that the run brought."""
    rows = as_rows(new)
    if not context.has_partition_key and not context.has_partition_key_range:
        return dg.MaterializeResult(metadata=measure(totals(known), totals(rows)))
    for date in context.partition_keys:
        of_date = pc.field("feed_date") == date
        numbers = measure(totals(known.filter(of_date)), totals(rows.filter(of_date)))
        context.add_asset_metadata(numbers, partition_key=date)
    return dg.MaterializeResult()


def _tables(feed: FeedConfig, tables: Sequence[TableName]) -> dg.AssetsDefinition:
    """Schema, current and checkpoint are one op: most tables have nothing new in most runs, and for an asset that a run
    leaves out Dagster would skip the ops behind it."""

    @dg.multi_asset(
        name=f"{feed.name}__tables",
        outs=_outputs(feed, tables),
        deps=[keys.events_key(feed.name)],
        internal_asset_deps=_dependencies(feed, tables),
        pool=pool_of(feed),
    )
    def tables_of_feed(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> Iterator[Any]:
        steps = lakehouse.steps(context, feed.name)
        # Dagster refuses an asset that comes before one that it depends on: all schemas come first.
        for key_of, results in ((keys.schema_key, _schemas), (keys.current_key, _current)):
            unchanged = dict.fromkeys(tables)
            for table, described in results(context, steps, feed):
                if table in tables:
                    unchanged.pop(table, None)
                    yield dg.MaterializeResult(asset_key=key_of(feed.name, table), metadata=described)
                else:
                    # Not known when the definitions were loaded: it is an asset at the next load.
                    context.log_event(dg.AssetMaterialization(key_of(feed.name, table), metadata=described))
            if context.run.tags.get(TRIGGER_TAG) != INCREMENTAL:
                # Somebody asked for the run, and a backfill waits for all assets that it has chosen.
                for table in unchanged:
                    yield dg.MaterializeResult(asset_key=key_of(feed.name, table), metadata={"unchanged": True})
        described = metadata.checkpoint_metadata(steps.published, steps.applied, utc_now())
        yield dg.MaterializeResult(asset_key=keys.checkpoint_key(feed.name), metadata=described)

    return tables_of_feed


def _outputs(feed: FeedConfig, tables: Sequence[TableName]) -> dict[str, dg.AssetOut]:
    group = feed.name
    outputs: dict[str, dg.AssetOut] = {}
    for table in tables:
        outputs[keys.output_name("schema", table)] = dg.AssetOut(
            key=keys.schema_key(feed.name, table),
            is_required=False,
            group_name=group,
            kinds={"mysql"},
            description=f"DDL of {table}: statements, their effect, and the columns.",
        )
        outputs[keys.output_name("current", table)] = dg.AssetOut(
            key=keys.current_key(feed.name, table),
            is_required=False,
            group_name=group,
            kinds={"spark", "iceberg"},
            description=f"{table}: one row a key, as of the published checkpoint.",
        )
    outputs["checkpoint"] = dg.AssetOut(
        key=keys.checkpoint_key(feed.name),
        group_name=group,
        kinds={"iceberg"},
        description="The published cut: which snapshot of every table shows the checkpoint-ts.",
    )
    return outputs


def _dependencies(feed: FeedConfig, tables: Sequence[TableName]) -> dict[str, set[dg.AssetKey]]:
    """By output: the assets that it depends on."""
    events = keys.events_key(feed.name)
    dependencies: dict[str, set[dg.AssetKey]] = {}
    for table in tables:
        dependencies[keys.output_name("schema", table)] = {events}
        dependencies[keys.output_name("current", table)] = {events, keys.schema_key(feed.name, table)}
    dependencies["checkpoint"] = {keys.current_key(feed.name, table) for table in tables} or {events}
    return dependencies


def _schemas(
    context: dg.AssetExecutionContext, steps: Steps, feed: FeedConfig
) -> Iterator[tuple[TableName, metadata.Metadata]]:
    """The tables with new statements."""
    by_table: dict[TableName, list[TableVersion]] = defaultdict(list)
    for version in steps.evolved.versions:
        if version.incarnation:
            by_table[version.name].append(version)
    lives = steps.run.history.history.incarnations()
    for table, versions in by_table.items():
        yield table, metadata.schema_metadata(versions, lives)


def _current(
    context: dg.AssetExecutionContext, steps: Steps, feed: FeedConfig
) -> Iterator[tuple[TableName, metadata.Metadata]]:
    """The tables that the run changed; their checks are logged behind each."""
    applied = steps.applied
    for table, reason in applied.held.items():
        context.log.warning("table %s is held: %s", table, reason)
    now = utc_now()
    for changed in applied.tables:
        name = changed.life.last.name
        if changed.life.dropped_ts is None:
            yield name, metadata.table_metadata(changed, applied.checkpoint_ts, now)
            table = steps.run.lake.catalog.load_table(changed.state.identifier.parts)
            checks.log_table_checks(context, feed, name, table)
