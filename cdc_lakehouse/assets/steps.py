"""The assets of a feed, the steps that make them, and its jobs.

The graph is (snapshot →) raw → events → tables → checkpoint, and for each database of the source the DDL that the
tables follow. `RUN_STEPS` has the steps of a run, each with the results that it logs: the ops of the job `<feed>_new`
log them in order; an asset logs those of its own. What an asset depends on has run when it is the asset's turn; in a
run of a single asset, its step runs the earlier ones first.

Runs of assets are requested: dates are decoded again, and tables without changes report `unchanged`. The job
`<feed>_new` processes what is new, and logs the same about the assets. It has no assets of its own, because those with
dates would require one. `<feed>_tables` has all assets without dates, `<feed>_dates` those with dates.

A feed's own assets are in its group, by default `<feed>`, and the tables of a database with its DDL in
`<group>/<database>`: so a database of 500 tables is one box in the graph, which can be opened. The page of a group
names all neighbours of its assets. The log in the source is in `<group>/source`.
"""

import contextlib
import datetime
import functools
import json
import logging
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import dagster as dg
import pyarrow as pa
from dagster import DagsterEventType
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession

from cdc_lakehouse import errors
from cdc_lakehouse.assets import checks, keys, metadata, runs
from cdc_lakehouse.assets.metadata import EVENTS_SCHEMA, as_markdown, configuration_metadata, table_name
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time, lag_seconds, utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig, LakehouseConfig
from cdc_lakehouse.config.section import zone_of
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import ConfigurationError, UnreadableTableError, failure_kind
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.spark import build_session
from cdc_lakehouse.lake.tables.segments import DECODED, DUMP, Segment, Segments, Totals, as_rows, totals
from cdc_lakehouse.operate.state import held_by_name
from cdc_lakehouse.pipeline.feed_tables import was_taken
from cdc_lakehouse.pipeline.holds import hold_table, resume_table, tables_named
from cdc_lakehouse.pipeline.run import FeedRun, take_feed
from cdc_lakehouse.pipeline.source import Landed
from cdc_lakehouse.pipeline.steps import Steps

Context: TypeAlias = "dg.OpExecutionContext | dg.AssetExecutionContext | RunReport"
"""What results are logged to."""
Spec = dict[str, Any]
"""Arguments that `dg.asset`, `dg.AssetOut` and `dg.AssetSpec` have in common."""

# The policy and owners are marked as beta, and every load would warn about it.
warnings.filterwarnings("ignore", category=dg.BetaWarning, message=".*(backfill_policy|owners).*")


def of_feed(feed: FeedConfig, part: str = "") -> Spec:
    """Return what the assets of a feed, or of a part of it, have in common. Characters of a database's name that a
    group's name cannot hold are replaced; so two can share a group."""
    group = "/".join(filter(None, (feed.group or feed.name, re.sub(r"\W", "_", part, flags=re.ASCII))))
    return {"group_name": group, "owners": feed.owners, "tags": feed.tags}


def _within(minutes: int) -> dg.FreshnessPolicy:
    return dg.FreshnessPolicy.time_window(datetime.timedelta(minutes=minutes))


def _stored(identifier: Identifier) -> Mapping[str, Any]:
    return {"dagster/table_name": table_name(identifier), "dagster/storage_kind": "iceberg"}


def pool_of(feed: FeedConfig) -> str:
    """Return the feed's pool, which keeps its runs apart: the instance's pools have a limit of one run."""
    return f"cdc_{feed.name}"


# --- The steps of a run, and what they say about assets ---

Results = Iterator[dg.AssetMaterialization]

_VERSION: Final = "1"
"""The data version of a log without dates: else tables that the last events did not change would seem outdated."""


def made_of_events(feed: FeedConfig) -> dict[str, str]:
    """Return the tags of a table's materialization: the data versions that it was made of."""
    events, code = keys.events_key(feed).to_user_string(), {"dagster/code_version": _VERSION}
    return {**code, f"dagster/input_data_version/{events}": _VERSION, f"dagster/input_event_pointer/{events}": "NULL"}


def _loaded(context: Context, steps: Steps) -> Results:
    """Load the rest of the initial dump, and describe the dump: its tables and files, the point of the change log that
    its rows are of, and how much of it the run loaded."""
    if steps.run.feed.initial is not None:
        new = totals(as_rows(steps.loaded.segments))
        rows = steps.run.segments.rows.filter(pc.field("kind") == DUMP)
        known, tables = totals(rows), rows.group_by(["database", "table"]).aggregate([]).num_rows
        numbers: dict[str, Any] = {
            "tables": tables, "files": known.segments, "bytes": known.size, "dagster/row_count": known.events,
            "quarantined": known.quarantined, "new_files": new.segments, "new_rows": new.events,
            **({} if known.max_commit_ts is None else metadata.moment("position", known.max_commit_ts)),
        }  # fmt: skip
        yield dg.AssetMaterialization(keys.snapshot_key(steps.run.feed), metadata=numbers)


def _landed(context: Context, steps: Steps) -> Results:
    """Land what is new, and describe what has landed."""
    landed = steps.landed
    for fault in landed.faults:
        context.log.warning(fault)
    rows, measure = steps.run.segments.rows, functools.partial(metadata.landed_metadata, landed)
    yield from _by_date(steps, keys.raw_key, rows, landed.new, measure)


def _decoded(context: Context, steps: Steps) -> Results:
    """Decode what has landed, and describe the events."""
    decoded = steps.decoded.segments
    known = steps.run.segments.rows.filter(pc.field("state") == DECODED)
    measure = functools.partial(metadata.events_metadata, totals(known).events)
    yield from _by_date(steps, keys.events_key, known, decoded, measure)


def _by_date(
    steps: Steps, key: Callable[[FeedConfig], dg.AssetKey], known: pa.Table, new: Sequence[Segment],
    measure: Callable[[Totals, Totals, bool], metadata.Metadata], dates: Iterable[str] | None = None,
) -> Results:  # fmt: skip
    """Yield a materialization of each of the `dates`; None: each that is requested or has something new, so that
    numbers plot by date; if there is none, the current one; all segments for a feed without dates. `known` has the
    columns of `segments`; `measure` computes the metadata from the totals of known and new segments, and whether of a
    date."""
    feed, rows = steps.run.feed, as_rows(new)
    if dates is None:
        found = {segment.feed_date for segment in new if segment.feed_date is not None} | steps.run.dates
        dates = keys.run_partitions(feed, found, utc_now())
    for date in dates:
        of_date = pc.field("feed_date") == date
        described = measure(totals(known.filter(of_date)), totals(rows.filter(of_date)), True)
        yield dg.AssetMaterialization(key(feed), partition=date, metadata=described)
    if keys.partitions_of(feed) is None:
        described, tags = measure(totals(known), totals(rows), False), {"dagster/data_version": _VERSION}
        yield dg.AssetMaterialization(key(feed), metadata=described, tags=tags)


def _applied(
    context: Context, steps: Steps, tables: Sequence[TableName] = (), asked: Collection[dg.AssetKey] = ()
) -> Results:
    """Apply DDL and rows, and publish the cut. Yield what has changed, then what is true of the assets among `asked`
    that did not change, of these `tables` and their databases, then the cut, unless a run of single tables has not
    published one. Log the checks of tables that changed, were or are held. Nothing is applied when no table is
    wanted."""
    run, feed, evolved = steps.run, steps.run.feed, steps.evolved
    lives, said, held = run.history.history.incarnations(), set[dg.AssetKey](), dict[TableName, str]()
    # Statements under an earlier name belong to the table's current name.
    databases = {id: life.last.name.database for id, life in lives.items() if was_taken(feed.tables, life)}

    def of_ddl(database: str) -> metadata.Metadata:
        own = {id: lives[id] for id, of in databases.items() if of == database}
        return metadata.ddl_metadata([version for version in evolved if version.incarnation in own], own.values())

    for database in dict.fromkeys(databases[each.incarnation] for each in evolved if each.incarnation in databases):
        said.add(key := keys.ddl_key(feed, database))
        yield dg.AssetMaterialization(key, metadata=of_ddl(database))
    now = functools.cache(utc_now)  # The lags of a run are all of one moment.
    if run.only is None or run.only:
        held = held_by_name(steps.applied.held.items(), lives)
        for table, reason in held.items():
            context.log.warning("table %s is held: %s", table, reason)
        # Those that are released are not held by anything.
        names = sorted({*held_by_name(run.last_cut.held, lives), *held}, key=str)
        checks.log_results(context, (checks.hold_evaluation(feed, table, held.get(table)) for table in names))
        for changed in steps.applied.tables:
            if changed.life.dropped_ts is None:
                name, current = changed.life.last.name, run.lake.existing(changed.state.identifier)
                upto, counts = steps.applied.checkpoint_ts, changed.counts
                described = {
                    **metadata.state_metadata(feed, changed.state, changed.life.last, current, upto, now()),
                    "upserts": counts.rows, "deletes": counts.deletes, "zero_dates_as_null": counts.zero_dates,
                    "keys_of_older_state": counts.older, "rebuilt": changed.rebuilt,
                }  # fmt: skip
                said.add(key := keys.current_key(feed, name))
                yield dg.AssetMaterialization(key, metadata=described, tags=made_of_events(feed))
                checks.log_results(context, checks.table_evaluations(feed, name, current, of_batch=True))

    def of_table(table: TableName) -> metadata.Metadata:
        """Describe the current state of the table: at the checkpoint, or held before it."""
        life = next((life for life in lives.values() if life.last.name == table and life.dropped_ts is None), None)
        try:
            state = None if life is None else CurrentTables(run.lake, feed).find(life)
        except UnreadableTableError as error:
            return {"held": str(error)}
        reason = None if life is None else steps.applied.held.get(life.id)
        why = {} if reason is None else {"held": reason}
        if life is None or state is None:
            return why
        current = run.lake.existing(state.identifier)
        upto = steps.applied.checkpoint_ts if reason is None else state.applied_ts
        return {**metadata.state_metadata(feed, state, life.last, current, upto, now()), **why}

    # The run was requested, and a backfill waits for all assets that it has selected.
    unchanged = {keys.ddl_key(feed, table.database): functools.partial(of_ddl, table.database) for table in tables}
    unchanged |= {keys.current_key(feed, table): functools.partial(of_table, table) for table in tables}
    for key, describe in unchanged.items():
        if key in asked and key not in said:
            yield dg.AssetMaterialization(key, metadata={**describe(), "unchanged": True})
    if run.only is None or (run.only and steps.published.new):
        yield from _passed_dates(context, steps)
        published, at = steps.published, steps.published.cut.checkpoint_ts
        moment = {} if at == BEGINNING else metadata.moment("checkpoint", at) | {"lag_seconds": lag_seconds(at, now())}
        numbers: dict[str, Any] = {
            "tables": len(published.rows), "tables_changed": len(steps.applied.tables),
            "rows": sum(row.row_count for row in published.rows), "tables_held": len(held), "new_cut": published.new,
            **moment, **({"held": metadata.held_list(held)} if held else {}),
        }  # fmt: skip
        yield dg.AssetMaterialization(keys.checkpoint_key(feed), metadata=numbers)


def _passed_dates(context: Context, steps: Steps) -> Results:
    """Yield materializations of the partitions of `raw` and `events` that are over at the checkpoint, by the source's
    wall clock, and that this Dagster instance does not know yet, with the lake's numbers for them: most of them have no
    files. A file has the date of its flush, and all committed before was flushed: no more of these dates follow."""
    feed, dates, checkpoint_ts = steps.run.feed, steps.run.segments.dates(), steps.published.cut.checkpoint_ts
    definition = keys.partitions_of(feed, dates)
    if definition is None or not dates or checkpoint_ts == BEGINNING:
        return
    reached = commit_time(checkpoint_ts)
    under_way = reached.astimezone(zone_of(feed.source.time_zone)).strftime(definition.fmt)
    passed = {date for date in definition.get_partition_keys(reached) if date < under_way}
    landed = steps.run.segments.rows
    decoded = landed.filter(pc.field("state") == DECODED)
    for key, segments, measure in (
        (keys.raw_key, landed, functools.partial(metadata.landed_metadata, Landed())),
        (keys.events_key, decoded, functools.partial(metadata.events_metadata, totals(decoded).events)),
    ):
        unknown = passed - context.instance.get_materialized_partitions(key(feed))
        yield from _by_date(steps, key, segments, (), measure, sorted(unknown))


RUN_STEPS: Final = {
    "land": ((keys.snapshot_key, _loaded), (keys.raw_key, _landed)),
    "decode": ((keys.events_key, _decoded),),
    "apply": ((keys.checkpoint_key, _applied),),
}
"""The steps of a run that processes what is new, in order. Each takes steps of the pipeline, unless they are taken, and
has results: by the asset whose checks are evaluated after them."""


def log_step(context: Context, steps: Steps, name: str, in_run: Collection[dg.AssetKey] = ()) -> None:
    """Take a step, and log its results and their checks, but of assets `in_run`, which log their own."""
    for asset, results in RUN_STEPS[name]:
        if (key := asset(steps.run.feed)) not in in_run:
            for each in results(context, steps):
                context.log_event(each)
            checks.log_results(context, checks.feed_evaluations(steps.run.lake, steps.run.feed, key))


# --- What the assets of a run share ---

LOAD_TAG = "cdc/load"
"""Tables of the initial dump to load again: a list in JSON."""
DATES_TAG = "cdc/dates"
"""The dates to decode again, separated by commas, if they are not all dates of a range."""
CONFIGURATIONS: Final[dict[str, LakehouseConfig]] = {}
"""By feed, those of this process's definitions."""
_STEPS: Final[dict[str, tuple[dict[str, Steps], contextlib.ExitStack]]] = {}
"""By run: the steps of each of its feeds, and what releases their leases."""


class Lakehouse(dg.ConfigurableResource[Any]):
    """Spark, and the steps of the runs of this process. Nothing is configured here: settings can hold secrets, and
    Dagster shows the configuration of resources."""

    _config_of_run: LakehouseConfig | None = PrivateAttr(None)

    def session(self, config: LakehouseConfig) -> SparkSession:
        """Return Spark's session, started if there is none. Raises `ConfigurationError` for a run's second lake."""
        first = self._config_of_run or config
        if (first.lake, first.storage) != (config.lake, config.storage):
            advice = "start a run for the feeds of each"
            raise ConfigurationError("the feeds of this run have different lakes", advice=advice)
        self._config_of_run = first
        # The session of the run before may have ended with its JVM.
        return build_session(first.lake, first.storage)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Forget the steps of a run that has ended, and release its leases."""
        if context.run is not None and context.run.run_id in _STEPS:
            _STEPS.pop(context.run.run_id)[1].close()

    def steps(self, context: dg.AssetExecutionContext | dg.OpExecutionContext, feed: str) -> Steps:
        """Return the steps of a feed in a run, whose ops share a process. Raises `ConcurrentRunError`."""
        run_id = context.run.run_id
        of_run, ends = _STEPS.setdefault(run_id, ({}, contextlib.ExitStack()))
        if feed not in of_run:
            config = CONFIGURATIONS[feed]
            lake = Lake(config.lake, config.storage)
            lease = take_feed(lake, feed, run_id)
            ends.callback(lease.release)
            # A run of assets that was started in the UI has no tag.
            context.instance.add_run_tags(run_id, {runs.FEED_TAG: feed})
            # The partitions that a person requested; a run that processes what is new has none.
            tags, dates = context.run.tags, list[str]()
            if DATES_TAG in tags:
                dates = tags[DATES_TAG].split(",")
            elif "dagster/partition" in tags:
                dates = [tags["dagster/partition"]]
            elif isinstance(context, dg.AssetExecutionContext) and context.has_partition_key_range:
                dates = list(context.partition_keys)
            run = FeedRun(
                config.feed(feed), lake, lambda: self.session(config), dates=frozenset(dates),
                reload_tables=frozenset(json.loads(tags.get(LOAD_TAG, "[]"))), log=context.log,
                require_lease=lease.require,
            )  # fmt: skip
            of_run[feed] = Steps(run)
        return of_run[feed]


# --- Assets ---


def build_assets(lake: Lake, feed: FeedConfig, tables: Sequence[TableName]) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Return a feed's assets: the log in the source, the dump, `raw`, `events`, and one definition with all others."""
    source = FeedRun(feed, lake).source
    dated = {
        "partitions_def": keys.partitions_of(feed, Segments(lake, feed.name).dates()),
        "backfill_policy": dg.BackfillPolicy.single_run(),
    }
    log, raw, dump = (key(feed) for key in (keys.source_key, keys.raw_key, keys.snapshot_key))
    of_tables = _tables(lake, feed, tables, source.database)
    assets = [
        # Where the lineage begins, and which nothing here makes. It is one asset, not one for each table.
        dg.AssetSpec(
            log,
            description="The change log, as it leaves the source. It is only read.",
            kinds={source.shown.name, source.database},
            metadata={
                "place": feed.source.place, "type": feed.source.type, "configuration": configuration_metadata(feed),
            },
            **of_feed(feed, "source"),
        ),
        _asset(
            feed, keys.raw_key, _landed, **dated,
            deps=[log] if feed.initial is None else [log, dump],
            description=source.shown.description,
            kinds={source.shown.name},
        ),
        _asset(
            feed, keys.events_key, _decoded, of_tables.keys, **dated,
            deps=[raw],
            description="Every change of every table, once, at its place in the source. Values are the source's text.",
            kinds={"spark", "iceberg"},
            metadata={**_stored(system_table(feed.name, "events")), "dagster/column_schema": EVENTS_SCHEMA},
        ),
        of_tables,
    ]  # fmt: skip
    if feed.initial is None:
        return assets
    what = "The rows that the tables held before the change log, from a dump, at one point of it."
    return [*assets, _asset(feed, keys.snapshot_key, _loaded, description=what, kinds={source.database})]


def _asset(
    feed: FeedConfig, key: Callable[[FeedConfig], dg.AssetKey], results: Callable[[Context, Steps], Results],
    followed_by: Collection[dg.AssetKey] = (), **arguments: Any,
) -> dg.AssetsDefinition:  # fmt: skip
    asset: Any = dg.asset

    @asset(key=key(feed), pool=pool_of(feed), **arguments, **of_feed(feed))
    def materialize(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> dg.MaterializeResult[Any]:
        steps, numbers = lakehouse.steps(context, feed.name), dict[str, Any]()
        is_dated = context.has_partition_key or context.has_partition_key_range
        dates = context.partition_keys if is_dated else [None]
        for each in results(context, steps):
            if each.partition not in dates:
                context.log_event(each)
            elif each.partition is None:
                numbers.update(each.metadata)
            else:
                context.add_asset_metadata(each.metadata, partition_key=each.partition)
        if followed_by and context.job_def.asset_layer.selected_asset_keys.isdisjoint(followed_by):
            # Dagster gives assets without dates a separate run: this run updates the tables itself.
            log_step(context, steps, "apply")
        return dg.MaterializeResult(metadata=numbers, data_version=None if is_dated else dg.DataVersion(_VERSION))

    return materialize


def _tables(lake: Lake, feed: FeedConfig, tables: Sequence[TableName], server: str) -> dg.AssetsDefinition:
    """Define DDL, tables and checkpoint as one op: most tables have no changes in most runs, and for an asset that a
    run leaves out Dagster would skip the ops that depend on it."""
    outputs: dict[str, dg.AssetOut] = {}
    for database in sorted({table.database for table in tables}):
        outputs[keys.output_name("ddl", TableName(database, ""))] = dg.AssetOut(
            key=keys.ddl_key(feed, database),
            description=f"DDL of {as_markdown(database)} that tables follow: statements and their effect.",
            kinds={server},
            is_required=False,
            **of_feed(feed, database),
        )
    for table in tables:
        settings = feed.settings_of(table.database, table.table)
        outputs[keys.output_name("current", table)] = dg.AssetOut(
            key=keys.current_key(feed, table),
            description=f"{as_markdown(str(table))}: one row a key, as of the published checkpoint.",
            kinds={"iceberg"},
            metadata=_stored(CurrentTables(lake, feed).identifier(table)),
            freshness_policy=None if settings.freshness_minutes is None else _within(settings.freshness_minutes),
            is_required=False,
            group_name=settings.group or of_feed(feed, table.database)["group_name"],
            owners=feed.owners if settings.owners is None else settings.owners,
            tags={**feed.tags, **settings.tags},
        )
    outputs["checkpoint"] = dg.AssetOut(
        key=keys.checkpoint_key(feed),
        description="The published cut: which snapshot of every table shows the checkpoint-ts.",
        kinds={"iceberg"},
        metadata=_stored(system_table(feed.name, "checkpoints")),
        # Every run materializes it: it fails when runs fail, and when there are none.
        freshness_policy=_within(feed.freshness_minutes),
        is_required=False,
        **of_feed(feed),
    )
    source, events = keys.source_key(feed), keys.events_key(feed)
    current = {keys.output_name("current", table): keys.current_key(feed, table) for table in tables}
    # DDL leads to no other asset: each statement would mark all tables of its database as outdated.
    dependencies = {name: {events} if name in current else {source} for name in outputs}
    dependencies["checkpoint"] = {*current.values()} or {events}

    @dg.multi_asset(
        name=f"{feed.name}__tables", outs=outputs, deps=[events, *([source] if tables else [])],
        internal_asset_deps=dependencies, can_subset=True, pool=pool_of(feed),
    )  # fmt: skip
    def tables_of_feed(context: dg.AssetExecutionContext, lakehouse: Lakehouse) -> Iterator[Any]:
        steps = lakehouse.steps(context, feed.name)
        selected = context.selected_asset_keys
        if keys.checkpoint_key(feed) not in selected:
            # Only these tables; a cut consists of all tables.
            steps.run.only = frozenset(table for table in tables if keys.current_key(feed, table) in selected)
        for step in ("land", "decode"):
            log_step(context, steps, step, context.job_def.asset_layer.selected_asset_keys)
        for each in _applied(context, steps, tables, selected):
            if each.asset_key in selected:
                yield dg.MaterializeResult(asset_key=each.asset_key, metadata=each.metadata)
            else:
                # It was unknown when the definitions were loaded, or was not selected.
                context.log_event(each)

    return tables_of_feed


# --- Jobs ---


@dg.failure_hook
def _tag_failure(context: dg.HookContext) -> None:
    """Tag the run with whether a retry may succeed; the sensor then retries it."""
    error = context.op_exception
    kind = "transient" if error is None else failure_kind(error)
    context.instance.add_run_tags(context.run_id, {runs.FAILURE_TAG: kind})


def _of_runs(feed: FeedConfig) -> Spec:
    return {"executor_def": dg.in_process_executor, "hooks": {_tag_failure}, "tags": {runs.FEED_TAG: feed.name}}


def decisions_config(feed: str, **decisions: Any) -> dict[str, Any]:
    """Return the configuration of a run of the job `<feed>_new` with decisions (see `TableDecisions`)."""
    return {"ops": {f"{feed}_new__apply": {"config": decisions}}} if decisions else {}


class TableDecisions(dg.Config):
    """Tables are named as database.table."""

    rebuild: list[str] = Field(default_factory=list[str], description="Tables to recompute from all of their events.")
    hold: dict[str, str] = Field(
        default_factory=dict[str, str], description="Tables to hold at their last cut, each with the reason."
    )
    resume: list[str] = Field(
        default_factory=list[str], description="Tables that may continue: held ones, and those whose rewrite waits."
    )
    decided_by: str = Field("a user of Dagster", description="Who decides: it is shown with a hold.")

    def carry_out(self, context: Context, steps: Steps) -> None:
        """Decide about the tables that are known once all changes are decoded."""
        run = steps.run
        steps.decoded  # noqa: B018 - It is taken.
        run.rebuild = tables_named(run, self.rebuild)
        for table, reason in self.hold.items():
            hold_table(run, table, reason, self.decided_by, utc_now())
        for table in self.resume:
            if not any(resume_table(run, table, utc_now())):
                context.log.warning("nobody holds %s, and no rewrite of it waits", table)


def build_new_job(feed: FeedConfig, kind: Literal["new", "dates"] = "new") -> dg.JobDefinition:
    """Define the job that processes what is new, or as what a command's run of dates is recorded."""
    name = f"{feed.name}_{kind}"

    def op_of(step: str, **arguments: Any) -> Any:
        return dg.op(name=f"{name}__{step}", pool=pool_of(feed), out=dg.Out(dg.Nothing), **arguments)

    def take(context: dg.OpExecutionContext, lakehouse: Lakehouse) -> None:
        log_step(context, lakehouse.steps(context, feed.name), context.op_def.name.rpartition("__")[2])

    def apply(context: dg.OpExecutionContext, config: TableDecisions, lakehouse: Lakehouse) -> None:
        steps = lakehouse.steps(context, feed.name)
        config.carry_out(context, steps)
        log_step(context, steps, "apply")

    after = {"before": dg.In(dg.Nothing)}
    land, decode = op_of("land")(take), op_of("decode", ins=after)(take)
    apply_op = op_of("apply", ins=after)(apply)

    what = f"Take what is new in {feed.name}: land, decode, evolve, apply, publish. The configuration of `apply` names "
    what += "tables to rebuild, hold or resume."

    @dg.job(name=name, description=what, **_of_runs(feed))
    def take_what_is_new() -> None:
        apply_op(decode(land()))

    return take_what_is_new


def build_asset_jobs(feed: FeedConfig, assets: Iterable[dg.AssetsDefinition | dg.AssetSpec]) -> list[Any]:
    """Define `tables`, of the assets without dates, so that there is nothing to choose; and `dates`, of those with
    dates, if there are some, which decodes dates again, all of a backfill in one run. A run checks the tables that it
    changes itself, and does not compare with the source."""
    own = [each for each in assets if isinstance(each, dg.AssetsDefinition)]
    checked = {key(feed) for rows in RUN_STEPS.values() for key, _ in rows}
    of_tables = f"The tables of {feed.name} as assets: process what is new, and report the state of each table."
    of_dates = f"Decode dates of {feed.name} again, and bring the tables to the checkpoint."
    jobs: list[Any] = []
    for job, is_dated, description in (("tables", False, of_tables), ("dates", True, of_dates)):
        chosen = {key for each in own if (each.partitions_def is not None) == is_dated for key in each.keys}
        evaluated = dg.AssetSelection.checks_for_assets(*chosen & checked)
        if feed.verify is not None:
            evaluated -= _equals_source(feed)
        selection = dg.AssetSelection.assets(*chosen).without_checks() | evaluated
        if chosen:
            name = f"{feed.name}_{job}"
            jobs.append(dg.define_asset_job(name, selection, description=description, **_of_runs(feed)))
    return jobs


def build_verify(feed: FeedConfig) -> dg.Definitions:
    """Define the job that compares the tables with the source database, and its schedule, if they are configured."""
    if feed.verify is None:
        return dg.Definitions()
    what = f"Compares the published tables of the feed {feed.name} with the source database."
    return scheduled_job(f"{feed.name}_verify", _equals_source(feed), what, feed.verify.schedule)


def _equals_source(feed: FeedConfig) -> dg.AssetSelection:
    return dg.AssetSelection.checks(dg.AssetCheckKey(keys.checkpoint_key(feed), checks.EQUALS_SOURCE))


def scheduled_job(name: str, selection: dg.AssetSelection, description: str, cron: str | None) -> dg.Definitions:
    job = dg.define_asset_job(name, selection, description=description, executor_def=dg.in_process_executor)
    when: dict[str, Any] = {"cron_schedule": cron, "default_status": dg.DefaultScheduleStatus.RUNNING}
    schedules = [] if cron is None else [dg.ScheduleDefinition(f"{name}_schedule", job=job, **when)]
    return dg.Definitions(jobs=[job], schedules=schedules)


# --- The record of a command's run in the Dagster instance ---

_STORED_AT_ONCE: Final = 100
"""Events in one transaction, which keeps other writers of SQLite's storage waiting."""


class RunReport:
    """The report of one run, with the tags and the configuration with which Dagster can execute it again; the context
    of functions that log results. `messages` are what the run has logged and the report does not have yet.

    The run is not Dagster's: it is recorded when it begins to work, and its events, those of the job's ops, in one go
    when it has ended. One that is killed in between stays unfinished until it is found (`runs.find_unfinished`)."""

    def __init__(
        self, instance: dg.DagsterInstance, run: FeedRun, run_id: str, attempt: int, rebuild_tables: Sequence[str],
        messages: list[logging.LogRecord], began: float,
    ) -> None:  # fmt: skip
        self.instance, self.log = instance, run.log
        self._run_id, self._messages, self._began, self._is_recorded = run_id, messages, began, False
        self._job, self._tags = build_new_job(run.feed), runs.run_tags(run.feed, attempt)
        self._step, self._of_step = "", list[dg.EventLogEntry]()
        if run.dates:
            self._job = build_new_job(run.feed, "dates")
            # Dagster knows a range: these partitions, and those between them.
            ends = {f"dagster/asset_partition_range_{end}": of(run.dates) for end, of in (("start", min), ("end", max))}
            self._tags |= {DATES_TAG: ",".join(sorted(run.dates)), **ends}
        if run.reload_tables:
            self._tags[LOAD_TAG] = json.dumps(sorted(run.reload_tables))
        rebuilt = {"rebuild": list(rebuild_tables)} if rebuild_tables else {}
        self._settings = decisions_config(run.feed.name, **rebuilt)

    def begin(self) -> None:
        """Record the run, as one that is going on since it began. Raises `RunNotRecordedError`."""
        if self._is_recorded:
            return
        of_run = {"run_id": self._run_id, "run_config": self._settings, "tags": self._tags}
        try:
            self.instance.create_run_for_job(self._job, **of_run)
            self._is_recorded = True
            runs.make_log_file(self.instance, self._run_id)
            self._report(DagsterEventType.RUN_START, at=self._began)
        except Exception as error:  # Whatever its storage raises.
            said = f"the run cannot be recorded in Dagster: {errors.in_one_line(error)}"
            raise errors.RunNotRecordedError(said) from error

    def end(self, steps: Steps) -> None:
        """Record the results of the run, which has begun and ended. Raises what it has failed with."""
        end, may_fail = DagsterEventType.RUN_FAILURE, (Exception,)
        try:
            for node in self._job.graph.nodes_in_topological_order:
                self._step, began = node.name, time.time()
                self._report(DagsterEventType.STEP_START)
                log_step(self, steps, self._step.rpartition("__")[2])
                self._report_messages()
                self._report(DagsterEventType.STEP_SUCCESS, data=runs.payload_of_success(time.time() - began))
                self._store_step()
            end, may_fail = DagsterEventType.RUN_SUCCESS, ()
        except Exception as error:
            # Dagster's storage does not replace the run's own error, and what failed in one place may go in another.
            with contextlib.suppress(Exception):
                self.instance.add_run_tags(self._run_id, {runs.FAILURE_TAG: failure_kind(error)})
            with contextlib.suppress(Exception):
                self._report_messages()
                self._report(DagsterEventType.STEP_FAILURE, data=runs.payload_of_failure(error))
                self._store_step()
            raise
        finally:
            self._step = ""
            with contextlib.suppress(*may_fail):
                self._report(end)

    def log_event(self, event: Any) -> None:
        self._report(*runs.payload_of_event(event))

    def _report(self, kind: dg.DagsterEventType, what: str = "", data: Any = None, at: float | None = None) -> None:
        step, job = self._step or None, self._job.name
        message = what or f"{kind.value} of {step or job}, which a command runs."
        event = dg.DagsterEvent(kind.value, job, step_key=step, event_specific_data=data, message=message)
        entry = dg.EventLogEntry(None, logging.INFO, "", self._run_id, at or time.time(), step, job, event)
        if step is None:
            self.instance.handle_new_event(entry)
        else:
            self._of_step.append(entry)

    def _report_messages(self) -> None:
        for each in self._messages:
            text, at, job = logging.Formatter().format(each), each.created, self._job.name
            self._of_step.append(dg.EventLogEntry(None, each.levelno, text, self._run_id, at, self._step, job, None))
        self._messages.clear()

    def _store_step(self) -> None:
        entries, self._of_step, faults = self._of_step, [], list[Exception]()
        for start in range(0, len(entries), _STORED_AT_ONCE):
            some = entries[start : start + _STORED_AT_ONCE]
            try:
                with runs.stored_at_once(self.instance):
                    for each in some:
                        self.instance.handle_new_event(each)
                    some = []
            except Exception:  # noqa: BLE001 - Those before the fault, and those of other slices, can be stored.
                try:
                    if not some:
                        raise  # A commit failed: of two databases one may have them.
                    for each in some:
                        self.instance.handle_new_event(each)
                except Exception as error:  # noqa: BLE001
                    faults.append(error)
        if faults:
            raise faults[0]
