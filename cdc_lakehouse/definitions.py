"""What Dagster loads: the feeds of `lakehouse.yaml`, composed. Needs neither a JVM nor a source that answers."""

from __future__ import annotations

import dagster as dg

from cdc_lakehouse import config as configuration
from cdc_lakehouse.assets.assets import build_assets
from cdc_lakehouse.assets.checks import build_checks
from cdc_lakehouse.assets.jobs import build_job
from cdc_lakehouse.assets.keys import known_tables
from cdc_lakehouse.assets.maintenance import build_maintenance
from cdc_lakehouse.assets.resources import Lakehouse, LakeSpark
from cdc_lakehouse.assets.sensors import build_sensor
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.catalog import Lake


def build_definitions(config: LakehouseConfig) -> dg.Definitions:
    lake = Lake(config.lake, config.storage)
    spark = LakeSpark()
    composed = dg.Definitions(resources={"spark": spark, "lakehouse": Lakehouse(spark=spark)})
    for feed in config.feeds:
        tables = known_tables(lake, feed)
        job = build_job(feed, tables)
        composed = dg.Definitions.merge(
            composed,
            build_maintenance(feed),
            dg.Definitions(
                assets=build_assets(lake, feed, tables),
                asset_checks=build_checks(lake, feed, tables),
                jobs=[job],
                sensors=[build_sensor(lake, feed, job)],
                executor=dg.in_process_executor,
            ),
        )
    return composed


@dg.definitions
def defs() -> dg.Definitions:
    try:
        return build_definitions(configuration.load())
    except CdcError as error:
        # Its sentence says what to do. Where in the code it was found, which Dagster shows too, is no help.
        raise error.with_traceback(None) from None
