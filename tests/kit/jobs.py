"""What a run does in the driver because it is little, and how a test lets Spark do it."""

from __future__ import annotations

from typing import Final

import pytest

_IN_DRIVER: Final = {
    "cdc_lakehouse.lake.tables.decoding._DRIVER_SEGMENTS": 0,
    "cdc_lakehouse.lake.current.update_tasks._DRIVER_TASKS": 0,
    "cdc_lakehouse.pipeline.synthetic._DRIVER_EVENTS": -1,
}
"""The limits, and what makes all work go through jobs."""


def let_spark_do_all(patch: pytest.MonkeyPatch) -> None:
    """All work goes through Spark's jobs."""
    for limit, none in _IN_DRIVER.items():
        patch.setattr(limit, none)


def divide_tables(patch: pytest.MonkeyPatch) -> None:
    """A table with two events has several tasks, as a large one has."""
    patch.setattr("cdc_lakehouse.lake.current.update_tasks._SMALL_TASK_EVENTS", 1)
