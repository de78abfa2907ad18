"""The assets of one feed: (snapshot →) raw → events → current → checkpoint, and the schemas that current follows.

The bodies call the steps of a run and report the results. The steps of the assets that an asset depends on have run
when it is the asset's turn; in a run of a single asset, its step runs the earlier ones first.

These runs are requested: dates are decoded again, and tables without changes report `unchanged`. The job `<feed>_new`
processes what is new, and logs the same about the assets.

Arguments of asset definitions that are known before any run: group, kinds, owners, tags, names of tables, freshness.

A feed's own assets are in its group, by default `<feed>`, the current-state tables of a database in
`<group>/<database>`, and their schemas in `<group>/<database>/schema`: so a database of 500 tables is one box in the
graph, which can be opened. The page of a group names all neighbours of its assets. Schemas depend on the log, which is
in `<group>/source`: otherwise the feed's page would name each table twice, for its schema and for itself.

The jobs of one feed, each in one process and so with one JVM.

`<feed>_new` processes what is new, for the sensor's runs and for a person's. It has no assets of its own, because those
with dates would require one; it logs its results as materializations and checks of the assets. `<feed>_dates` decodes
dates again. `<feed>_tables` holds, resumes and recomputes tables.
"""

import datetime
import functools
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import dagster as dg
import pyarrow as pa
from pydantic import Field

from cdc_lakehouse.assets import checks, keys, metadata
from cdc_lakehouse.assets.checks import Context
from cdc_lakehouse.assets.metadata import as_markdown, configuration_metadata, events_schema, table_name
from cdc_lakehouse.assets.resources import Lakehouse
from cdc_lakehouse.assets.runs import FAILURE_TAG, FEED_TAG
from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time, utc_now
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.config.section import zone_of
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import UnreadableTableError, failure_kind
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.tables.segments import DECODED, DUMP, Segment, Segments, Totals, as_rows, totals
from cdc_lakehouse.operate.decisions import hold_table, resume_table, tables_named
from cdc_lakehouse.operate.state import held_by_name
from cdc_lakehouse.pipeline.feed_tables import was_taken
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import Landed, LogSource
from cdc_lakehouse.pipeline.steps import Steps

Spec = dict[str, Any]
"""Arguments that `dg.asset`, `dg.AssetOut` and `dg.AssetSpec` have in common."""


def upkeep_spec(feed: FeedConfig, key: dg.AssetKey, description: str) -> Spec:
    return Spec(key=key, description=description, kinds={"spark", "iceberg"}, **_of_feed(feed))


def _of_feed(feed: FeedConfig, part: str = "") -> Spec:
    return {"group_name": _group(feed.asset_group, part), "owners": feed.owners, "tags": feed.tags}


def _of_table(feed: FeedConfig, table: TableName, layer: str = "") -> Spec:
    database, name = table.database, table.table
    # Without characters that a group's name cannot hold; so two databases can share a group.
    readable = re.sub(r"\W", "_", database, flags=re.ASCII)
    group = feed.settings_of(database, name).group or f"{feed.asset_group}/{readable}"
    return {
        "group_name": _group(group, layer),
        "owners": feed.owners_of(database, name),
        "tags": feed.tags_of(database, name),
    }


def _group(name: str, part: str) -> str:
    return f"{name}/{part}" if part else name


def _within(minutes: int) -> dg.FreshnessPolicy:
    return dg.FreshnessPolicy.time_window(datetime.timedelta(minutes=minutes))


def _stored(identifier: Identifier) -> Mapping[str, Any]:
    return {"dagster/table_name": table_name(identifier), "dagster/storage_kind": "iceberg"}


# Mark dates that the checkpoint has passed and that no run has materialized as done: most of them have no files.


def log_passed_dates(context: Context, feed: FeedConfig, steps: Steps) -> None:
    """Materialize the partitions of `raw` and `events` that are over at the checkpoint, by the source's wall clock, and
    that this Dagster instance does not know yet, with the lake's numbers for them. A file has the date on which it was
    flushed, and everything committed before was flushed: no more files with these dates follow."""
    dates, checkpoint_ts = steps.run.segments.dates(), steps.published.cut.checkpoint_ts
    definition = keys.partitions_of(feed, dates)
    if definition is None or not dates or checkpoint_ts == BEGINNING:
        return
    reached = commit_time(checkpoint_ts)
    under_way = reached.astimezone(zone_of(feed.source.time_zone)).strftime(definition.fmt)
    passed = {date for date in definition.get_partition_keys(reached) if date < under_way}
    landed = steps.run.segments.rows
    decoded = landed.filter(pc.field("state") == DECODED)
    none, rows = totals(as_rows([])), totals(decoded).events
    for key, segments in ((keys.raw_key(feed.name), landed), (keys.events_key(feed.name), decoded)):
        for date in sorted(passed - context.instance.get_materialized_partitions(key)):
            of_date = totals(segments.filter(pc.field("feed_date") == date))
            if segments is landed:
                numbers = metadata.landed_metadata(Landed(), of_date, none, utc_now())
            else:
                numbers = metadata.events_metadata(of_date, none, rows, by_date=True)
            context.log_event(dg.AssetMaterialization(key, metadata=numbers, partition=date))


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
    source = FeedRun(feed, lake).source
    snapshot = [_snapshot(feed, source)] if feed.initial is not None else []
    partitioned = _partitioned_asset(lake, feed)
    return [
        # Where the lineage begins, and which nothing here makes. It is one asset, not one for each table.
        dg.AssetSpec(
            keys.source_key(feed.name),
            description="The change log, as it leaves the source. It is only read.",
            kinds={source.shown.name, source.database},
            metadata={
                "place": feed.source.place,
                "type": feed.source.type,
                "configuration": configuration_metadata(feed),
            },
            **_of_feed(feed, "source"),
        ),
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


def _snapshot(feed: FeedConfig, source: LogSource) -> dg.AssetsDefinition:
    asset: Any = functools.partial(dg.asset, pool=pool_of(feed))

    @asset(
        key=keys.snapshot_key(feed.name),
        description="The rows that the tables held before the change log, from a dump, at one point of it.",
        kinds={source.database},
        **_of_feed(feed),
    )
    def snapshot(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata=describe_snapshot(lakehouse.steps(context, feed.name)))

    return snapshot


def describe_snapshot(steps: Steps) -> metadata.Metadata:
    """Load the rest of the initial dump, and describe the dump."""
    loaded = steps.loaded
    rows = steps.run.segments.rows.filter(pc.field("kind") == DUMP)
    return metadata.snapshot_metadata(rows, totals(as_rows(loaded.segments)))


def _raw(partitioned_asset: Any, feed: FeedConfig, source: LogSource) -> dg.AssetsDefinition:
    first = [keys.snapshot_key(feed.name)] if feed.initial is not None else []

    @partitioned_asset(
        key=keys.raw_key(feed.name),
        deps=[keys.source_key(feed.name), *first],
        description=source.shown.description,
        kinds={source.shown.name},
        **_of_feed(feed),
    )
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
    @partitioned_asset(
        key=keys.events_key(feed.name),
        deps=[keys.raw_key(feed.name)],
        description="Every change of every table, once, with its place in the source. Values are the source's text.",
        kinds={"spark", "iceberg"},
        metadata={**_stored(system_table(feed.name, "events")), "dagster/column_schema": events_schema()},
        **_of_feed(feed),
    )
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


def _outputs(lake: Lake, feed: FeedConfig, tables: Sequence[TableName], source: LogSource) -> dict[str, dg.AssetOut]:
    outputs: dict[str, dg.AssetOut] = {}
    for table in tables:
        name, minutes = as_markdown(str(table)), feed.settings_of(table.database, table.table).freshness_minutes
        outputs[keys.output_name("schema", table)] = dg.AssetOut(
            key=keys.schema_key(feed.name, table),
            description=f"DDL of {name}: statements, their effect, and the columns.",
            kinds={source.database},
            is_required=False,
            **_of_table(feed, table, "schema"),
        )
        outputs[keys.output_name("current", table)] = dg.AssetOut(
            key=keys.current_key(feed.name, table),
            description=f"{name}: one row a key, as of the published checkpoint.",
            kinds={"spark", "iceberg"},
            metadata=_stored(CurrentTables(lake, feed).identifier(table)),
            freshness_policy=None if minutes is None else _within(minutes),
            is_required=False,
            **_of_table(feed, table),
        )
    outputs["checkpoint"] = dg.AssetOut(
        key=keys.checkpoint_key(feed.name),
        description="The published cut: which snapshot of every table shows the checkpoint-ts.",
        kinds={"iceberg"},
        metadata=_stored(system_table(feed.name, "checkpoints")),
        # Every run materializes it: it fails when runs fail, and when there are none.
        freshness_policy=_within(feed.freshness_minutes),
        is_required=False,
        **_of_feed(feed),
    )
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
    held = _held(steps)
    for table, reason in held.items():
        context.log.warning("table %s is held: %s", table, reason)
    before = held_by_name(steps.run.last_cut.held, steps.run.history.history.incarnations())
    checks.log_holds(context, feed, held, before.keys() - held.keys())
    now = utc_now()
    for changed in applied.tables:
        name = changed.life.last.name
        if changed.life.dropped_ts is None:
            described = metadata.table_metadata(feed.name, changed, applied.checkpoint_ts, now)
            yield dg.AssetMaterialization(keys.current_key(feed.name, name), metadata=described)
            checks.log_table_checks(context, feed, name, changed.state.table)


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
    return {**metadata.state_metadata(run.feed.name, state, life.last, upto, utc_now()), **held}


def _live(steps: Steps, table: TableName) -> Incarnation | None:
    lives = steps.run.history.history.incarnations().values()
    return next((life for life in lives if life.last.name == table and life.dropped_ts is None), None)


PRIORITY_TAG: Final = "dagster/priority"
SENSOR_PRIORITY: Final = "-1"
"""The priority of runs that nobody waits for: those of people and backfills have 0."""


@dg.failure_hook
def _tag_failure(context: dg.HookContext) -> None:
    """Tag the run with whether a retry may succeed; the sensor then retries it."""
    error = context.op_exception
    kind = "transient" if error is None else failure_kind(error)
    context.instance.add_run_tags(context.run_id, {FAILURE_TAG: kind})


def job_name(feed: str, job: Literal["new", "dates", "tables"]) -> str:
    """Return the name of a job: `new` processes what is new, `dates` decodes dates again, `tables` holds, resumes and
    recomputes tables."""
    return f"{feed}_{job}"


def decide_op_name(feed: str) -> str:
    """Return the name of the op whose configuration holds the decisions about tables."""
    return f"{job_name(feed, 'tables')}__decide"


def build_new_job(feed: FeedConfig, kind: Literal["new", "dates"] = "new") -> dg.JobDefinition:
    """Define the job that processes what is new, or as what a command's run of dates is recorded."""
    name = job_name(feed.name, kind)
    land, decode, apply = _ops(feed, name)

    @_job(feed, name, f"Take what is new in {feed.name}: land, decode, evolve, apply, publish.")
    def take_what_is_new() -> None:
        apply(decode(land()))

    return take_what_is_new


class TableDecisions(dg.Config):
    """Tables are named as database.table."""

    rebuild: list[str] = Field(default_factory=list[str], description="Tables to recompute from all of their events.")
    hold: dict[str, str] = Field(
        default_factory=dict[str, str], description="Tables to hold at their last cut, each with the reason."
    )
    resume: list[str] = Field(
        default_factory=list[str], description="Tables that may go on: held ones, and those whose rewrite waits."
    )
    decided_by: str = Field("a user of Dagster", description="Who decides: it is shown with a hold.")


def build_tables_job(feed: FeedConfig) -> dg.JobDefinition:
    """Define the job that carries out a person's decisions about tables, and processes what is new."""
    name = job_name(feed.name, "tables")
    land, decode, apply = _ops(feed, name)

    @dg.op(
        name=decide_op_name(feed.name),
        pool=pool_of(feed),
        ins={"before": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
    )
    def decide(context: dg.OpExecutionContext, config: TableDecisions, lakehouse: Lakehouse) -> None:
        run = lakehouse.steps(context, feed.name).run
        run.rebuild = tables_named(run, config.rebuild)
        for table, reason in config.hold.items():
            hold_table(run, table, reason, config.decided_by, utc_now())
        for table in config.resume:
            if not resume_table(run, table, utc_now()):
                context.log.warning("nobody holds %s, and no rewrite of it waits", table)

    @_job(feed, name, f"Rebuild, hold or resume tables of {feed.name}, which the run's configuration names.")
    def act_on_tables() -> None:
        apply(decide(decode(land())))

    return act_on_tables


def build_dates_job(feed: FeedConfig) -> Any:
    """Define the job that decodes dates again, all of a backfill in one run; None for a feed without dates."""
    if keys.partitions_of(feed) is None:
        return None
    return dg.define_asset_job(
        job_name(feed.name, "dates"),
        selection=dg.AssetSelection.assets(keys.raw_key(feed.name), keys.events_key(feed.name)),
        executor_def=dg.in_process_executor,
        hooks={_tag_failure},
        tags={FEED_TAG: feed.name},
        description=f"Decode dates of {feed.name} again, and bring the tables to the checkpoint.",
    )


def build_verify(feed: FeedConfig) -> tuple[list[Any], list[dg.ScheduleDefinition]]:
    """Define the job that compares the tables with the source database, and its schedule, if they are configured."""
    if feed.verify is None:
        return [], []
    job = dg.define_asset_job(
        f"{feed.name}_verify",
        selection=dg.AssetSelection.checks(dg.AssetCheckKey(keys.checkpoint_key(feed.name), checks.EQUALS_SOURCE)),
        executor_def=dg.in_process_executor,
        description=f"Compares the published tables of the feed {feed.name} with the source database.",
    )
    if feed.verify.schedule is None:
        return [job], []
    schedule = dg.ScheduleDefinition(
        name=f"{feed.name}_verify",
        job=job,
        cron_schedule=feed.verify.schedule,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    return [job], [schedule]


def _job(feed: FeedConfig, name: str, description: str) -> Any:
    return dg.job(
        name=name,
        description=description,
        executor_def=dg.in_process_executor,
        hooks={_tag_failure},
        tags={FEED_TAG: feed.name},
    )


def _ops(feed: FeedConfig, job: str) -> list[Any]:
    """Define the ops of a run that processes what is new. Each logs its results."""
    first, *_ = RUN_STEPS

    def op_of(name: str, log_results: Callable[[Context, Steps, FeedConfig], None]) -> Any:
        before = {} if name == first else {"before": dg.In(dg.Nothing)}

        @dg.op(name=f"{job}__{name}", pool=pool_of(feed), ins=before, out=dg.Out(dg.Nothing))
        def step(context: dg.OpExecutionContext, lakehouse: Lakehouse) -> None:
            log_results(context, lakehouse.steps(context, feed.name), feed)

        return step

    return [op_of(name, log_results) for name, log_results in RUN_STEPS.items()]


def _log_landed(context: Context, steps: Steps, feed: FeedConfig) -> None:
    if feed.initial is not None:
        described = describe_snapshot(steps)
        context.log_event(dg.AssetMaterialization(keys.snapshot_key(feed.name), metadata=described))
    _log_dates(context, steps, keys.raw_key(feed.name), describe_raw(context, steps))
    checks.log_feed_checks(context, steps.run.lake, feed, keys.raw_key(feed.name))


def _log_decoded(context: Context, steps: Steps, feed: FeedConfig) -> None:
    _log_dates(context, steps, keys.events_key(feed.name), describe_events(steps))
    checks.log_feed_checks(context, steps.run.lake, feed, keys.events_key(feed.name))


RUN_STEPS: Final = {"land": _log_landed, "decode": _log_decoded, "apply": log_tables}
"""The ops of a run that processes what is new, in order. Each takes steps, unless they are taken, and logs results."""


def _log_dates(context: Context, steps: Steps, asset: dg.AssetKey, described: Described) -> None:
    """Log a materialization of each date that is asked for or has something new; if there is none, of the current
    date."""
    feed, dates = steps.run.feed, described.new_dates | steps.run.dates
    partitions: Sequence[str | None] = keys.run_partitions(feed, dates, utc_now()) or [None]
    for date in partitions:
        context.log_event(dg.AssetMaterialization(asset, partition=date, metadata=described.numbers(date)))


def partition_tags(partitions: Collection[str]) -> dict[str, str]:
    """Return the tags of a run of these partitions and those between them."""
    range_of = "dagster/asset_partition_range_"
    return {f"{range_of}start": min(partitions), f"{range_of}end": max(partitions)}
