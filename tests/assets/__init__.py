"""Tests of what Dagster sees."""

from __future__ import annotations

import functools
from typing import Any

import dagster as dg

from cdc_lakehouse.assets.jobs import build_new_job
from cdc_lakehouse.assets.keys import run_partitions
from cdc_lakehouse.assets.sensors import build_sensor
from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.pipeline.monitors import open_monitor
from tests.kit.lakes import TestLake


@functools.cache
def empty_instance() -> dg.DagsterInstance:
    """One without runs, for all that only read it: to make one costs more than most tests do."""
    return dg.DagsterInstance.ephemeral()


@functools.cache
def check_context() -> dg.OpExecutionContext:
    """What a check is called with, where it asks for nothing."""
    return dg.build_op_context(instance=empty_instance())


def tick(lake: TestLake, cursor: str | None = None, instance: dg.DagsterInstance | None = None) -> Any:
    """What the feed's sensor answers."""
    sensor = build_sensor(lake.lake, lake.feed, build_new_job(lake.feed), [])
    with dg.build_sensor_context(instance=instance or empty_instance(), cursor=cursor) as context:
        return sensor(context)


def skipped(result: Any) -> str:
    assert isinstance(result, dg.SkipReason), result
    return str(result.skip_message)


def asked(result: Any) -> dg.RunRequest:
    assert isinstance(result, dg.SensorResult), result
    (request,) = result.run_requests or []
    return request


def dates(lake: TestLake) -> list[str]:
    """The dates with something new, else the one under way."""
    return run_partitions(lake.feed, open_monitor(lake.lake, lake.feed).new_dates(), utc_now())
