"""What Dagster loads: the feeds of `lakehouse.yaml`, composed. Needs neither a JVM nor a source that answers."""

from __future__ import annotations

from typing import Final

import dagster as dg

from cdc_lakehouse import config as configuration
from cdc_lakehouse.assets import keys
from cdc_lakehouse.assets.alerts import build_alerts
from cdc_lakehouse.assets.checks import build_checks
from cdc_lakehouse.assets.maintenance import build_maintenance, build_retention
from cdc_lakehouse.assets.resources import Lakehouse, LakeSpark, use_configuration
from cdc_lakehouse.assets.sensors import build_sensor
from cdc_lakehouse.assets.steps import build_asset_jobs, build_assets, build_new_job, build_verify
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.pipeline.feed_tables import known_tables

# One object for all that a process loads: Dagster merges definitions only where a resource is the same one.
_LAKEHOUSE: Final = Lakehouse(spark=LakeSpark())


def build_definitions(config: LakehouseConfig) -> dg.Definitions:
    """Assets, checks, jobs, schedules and sensors of the feeds of a configuration, and the resource `lakehouse`, to be
    merged with the definitions of a project. Feeds of one code location have different names, also in different
    configurations."""
    use_configuration(config)
    lake = Lake(config.lake, config.storage)
    composed = dg.Definitions.merge(dg.Definitions(resources={"lakehouse": _LAKEHOUSE}), build_alerts(lake, config))
    for feed in config.feeds:
        keys.use_prefix(feed)
        tables = known_tables(lake, feed)
        assets = build_assets(lake, feed, tables)
        jobs = [build_new_job(feed), *build_asset_jobs(feed, assets)]
        own = dg.Definitions(
            assets=assets,
            asset_checks=build_checks(lake, feed, tables),
            jobs=jobs,
            sensors=[build_sensor(lake, feed, jobs, tables)],
        )
        composed = dg.Definitions.merge(composed, build_maintenance(feed), build_verify(feed), own)
    return composed


@dg.definitions
def defs() -> dg.Definitions:
    try:
        config = configuration.load()
        return dg.Definitions.merge(
            build_definitions(config),
            build_retention((feed.name for feed in config.feeds), config.dagster.keep_runs_days),
            # In one process, runs of assets that are chosen in the UI have one JVM, as the jobs have.
            dg.Definitions(executor=dg.in_process_executor),
        )
    except CdcError as error:
        # Its sentence says what to do. Where in the code it was found, which Dagster shows too, is no help.
        raise error.with_traceback(None) from None
