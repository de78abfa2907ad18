"""The assets of one feed: raw → events → schema → current → checkpoint.

Bodies only call the steps and say what they did; a step that an asset depends on has happened when it is its turn,
and if it is run alone the step makes the earlier ones happen."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lakehouse.assets import checks, keys, metadata
from cdc_lakehouse.assets.partitions import partitions_of
from cdc_lakehouse.assets.resources import INCREMENTAL, TRIGGER_TAG, Lakehouse
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.tables.segments import DECODED, Segment, Totals, as_rows, totals
from cdc_lakehouse.pipeline.context import utc_now
from cdc_lakehouse.pipeline.steps import Steps

# The policy is marked as beta, and every load would say so.
warnings.filterwarnings("ignore", category=dg.BetaWarning, message=".*backfill_policy.*")
_BACKFILL = dg.BackfillPolicy.single_run()
_KINDS = {"storage_sink": "ticdc", "kafka": "kafka", "canal": "canal"}
_RAW = {
    "storage_sink": "What the sink holds: each data file is listed once. Files stay where they are.",
    "kafka": "Messages of the topics, each once, as they were on the brokers.",
    "canal": "Entries of the Canal server, each once, as it gave them.",
}


def build_assets(feed: FeedConfig, tables: Sequence[TableName]) -> list[dg.AssetsDefinition]:
    return [_raw(feed), _events(feed), _tables(feed, tables)]


def pool_of(feed: FeedConfig) -> str:
    """One run of a feed at a time: the instance's pools have a limit of one run."""
    return f"cdc_{feed.name}"


def _raw(feed: FeedConfig) -> dg.AssetsDefinition:
    @dg.asset(
        key=keys.raw_key(feed.name),
        partitions_def=partitions_of(feed),
        backfill_policy=_BACKFILL,
        pool=pool_of(feed),
        group_name=feed.name,
        kinds={_KINDS[feed.source.type]},
        description=_RAW[feed.source.type],
    )
    def raw(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        steps = lakehouse.steps(context, feed.name)
        landed = steps.landed
        for fault in landed.faults:
            context.log.warning(fault)
        known = steps.run.segments.rows
        return _by_date(context, known, landed.new, lambda own, new: metadata.of_landed(landed, own, new, utc_now()))

    return raw


def _events(feed: FeedConfig) -> dg.AssetsDefinition:
    @dg.asset(
        key=keys.events_key(feed.name),
        deps=[keys.raw_key(feed.name)],
        partitions_def=partitions_of(feed),
        backfill_policy=_BACKFILL,
        pool=pool_of(feed),
        group_name=feed.name,
        kinds={"spark", "iceberg"},
        description="Every change of every table, once, with its place in the source. Values are the source's text.",
    )
    def events(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        steps = lakehouse.steps(context, feed.name)
        decoded = steps.decoded.segments
        known = steps.run.segments.rows.filter(pc.field("state") == DECODED)
        return _by_date(context, known, decoded, metadata.of_segments)

    return events


def _by_date(
    context: dg.AssetExecutionContext,
    known: pa.Table,
    new: Sequence[Segment],
    measure: Callable[[Totals, Totals], metadata.Metadata],
) -> dg.MaterializeResult[Any]:
    """Each partition of a run with its own numbers, so that they plot by date: of all that is known of it, and of what
    the run has brought."""
    if not context.has_partition_key and not context.has_partition_key_range:
        return dg.MaterializeResult(metadata=measure(totals(known), totals(as_rows(new))))
    for date in context.partition_keys:
        of_date = pc.field("feed_date") == date
        numbers = (totals(rows.filter(of_date)) for rows in (known, as_rows(new)))
        context.add_asset_metadata(measure(*numbers), partition_key=date)
    return dg.MaterializeResult()


def _tables(feed: FeedConfig, tables: Sequence[TableName]) -> dg.AssetsDefinition:
    """Schema, current and checkpoint are one op: most tables have nothing new in most runs, and an asset that a run
    leaves out would make Dagster leave out the ops behind it."""
    group = feed.name
    outs = {
        keys.output_name("schema", table): dg.AssetOut(
            key=keys.schema_key(feed.name, table),
            is_required=False,
            group_name=group,
            kinds={"mysql"},
            description=f"DDL of {table}: statements, their effect, and the columns.",
        )
        for table in tables
    }
    outs |= {
        keys.output_name("current", table): dg.AssetOut(
            key=keys.current_key(feed.name, table),
            is_required=False,
            group_name=group,
            kinds={"spark", "iceberg"},
            description=f"{table}: one row a key, as of the published checkpoint.",
        )
        for table in tables
    }
    outs["checkpoint"] = dg.AssetOut(
        key=keys.checkpoint_key(feed.name),
        group_name=group,
        kinds={"iceberg"},
        description="The published cut: which snapshot of every table shows the checkpoint-ts.",
    )

    @dg.multi_asset(
        name=f"{feed.name}__tables",
        outs=outs,
        deps=[keys.events_key(feed.name)],
        internal_asset_deps=_lineage(feed, tables),
        pool=pool_of(feed),
    )
    def tables_of_feed(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> Iterator[Any]:
        steps = lakehouse.steps(context, feed.name)
        asked = context.run.tags.get(TRIGGER_TAG) != INCREMENTAL
        # In this order: Dagster refuses an asset that comes before one that it depends on.
        for key_of, results in ((keys.schema_key, _schema_results), (keys.current_key, _current_results)):
            told: set[dg.AssetKey | None] = set()
            for result in results(context, steps, feed, tables):
                told.add(result.asset_key)
                yield result
            if asked:
                yield from _unchanged(
                    key_of(feed.name, table) for table in tables if key_of(feed.name, table) not in told
                )
        described = metadata.of_published(steps.published, steps.applied, utc_now())
        yield dg.MaterializeResult(asset_key=keys.checkpoint_key(feed.name), metadata=described)

    return tables_of_feed


def _unchanged(assets: Iterable[dg.AssetKey]) -> Iterator[dg.MaterializeResult[Any]]:
    """Assets with nothing new, in a run that somebody asked for: a backfill waits for all that it has chosen."""
    for key in assets:
        yield dg.MaterializeResult(asset_key=key, metadata={"unchanged": True})


def _lineage(feed: FeedConfig, tables: Sequence[TableName]) -> dict[str, set[dg.AssetKey]]:
    events = keys.events_key(feed.name)
    currents = {keys.current_key(feed.name, table) for table in tables}
    return {
        **{keys.output_name("schema", table): {events} for table in tables},
        **{keys.output_name("current", table): {events, keys.schema_key(feed.name, table)} for table in tables},
        "checkpoint": currents or {events},
    }


def _schema_results(
    context: dg.AssetExecutionContext, steps: Steps, feed: FeedConfig, tables: Sequence[TableName]
) -> Iterator[Any]:
    by_table: dict[TableName, list[TableVersion]] = defaultdict(list)
    for version in steps.evolved.versions:
        if version.incarnation:
            by_table[version.name].append(version)
    lives = steps.run.history.history.incarnations()
    for table, versions in by_table.items():
        described = metadata.of_versions(versions, lives)
        yield from _result(context, keys.schema_key(feed.name, table), described, table in tables)


def _current_results(
    context: dg.AssetExecutionContext, steps: Steps, feed: FeedConfig, tables: Sequence[TableName]
) -> Iterator[Any]:
    applied = steps.applied
    for table, reason in applied.held.items():
        context.log.warning("table %s is held: %s", table, reason)
    now = utc_now()
    for each in applied.tables:
        table = each.life.last.name
        if each.life.dropped_ts is None:
            described = metadata.of_table(each, applied.checkpoint_ts, now)
            yield from _result(context, keys.current_key(feed.name, table), described, table in tables)
            checks.log_table_checks(
                context, feed, table, steps.run.lake.catalog.load_table(each.state.identifier.parts)
            )


def _result(context: dg.AssetExecutionContext, key: dg.AssetKey, described: Any, known: bool) -> Iterator[Any]:
    """A table that was not known when the definitions were loaded is logged: it is an asset at the next load."""
    if known:
        yield dg.MaterializeResult(asset_key=key, metadata=described)
    else:
        context.log_event(dg.AssetMaterialization(key, metadata=described))
