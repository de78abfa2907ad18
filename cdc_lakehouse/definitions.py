"""What Dagster loads: the feeds of `lakehouse.yaml`, composed. Needs neither a JVM nor a source that answers."""

from __future__ import annotations

from typing import Any

import dagster as dg

from cdc_lakehouse import config as configuration
from cdc_lakehouse.assets.assets import build_assets
from cdc_lakehouse.assets.canal_sensor import build_canal_sensor
from cdc_lakehouse.assets.checks import build_checks
from cdc_lakehouse.assets.jobs import build_job
from cdc_lakehouse.assets.resources import Lakehouse, LakeSpark
from cdc_lakehouse.assets.sensors import build_sensor
from cdc_lakehouse.assets.tables import known_tables
from cdc_lakehouse.assets.topic_sensor import build_topic_sensor
from cdc_lakehouse.config import CanalSource, FeedConfig, KafkaSource, LakehouseConfig
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
            dg.Definitions(
                assets=build_assets(feed, tables),
                asset_checks=build_checks(lake, feed, tables),
                jobs=[job],
                sensors=[_sensor(lake, feed, job)],
                executor=dg.in_process_executor,
            ),
        )
    return composed


def _sensor(lake: Lake, feed: FeedConfig, job: Any) -> dg.SensorDefinition:
    match feed.source:
        case KafkaSource():
            return build_topic_sensor(lake, feed, job)
        case CanalSource():
            return build_canal_sensor(lake, feed, job)
        case _:
            return build_sensor(lake, feed, job)


@dg.definitions
def defs() -> dg.Definitions:
    return build_definitions(configuration.load())
