"""The project's definitions with sensors that wait for seconds where those of users wait for minutes."""

from __future__ import annotations

import dagster as dg
import pytest

from cdc_lakehouse import definitions
from cdc_lakehouse.assets import alerts, runs, sensors

patch = pytest.MonkeyPatch()
patch.setattr(sensors, "_INTERVAL_SECONDS", 1)
patch.setattr(alerts, "_INTERVAL_SECONDS", 1)
patch.setattr(runs, "_FIRST_WAIT_SECONDS", 2)


@dg.definitions
def defs() -> dg.Definitions:
    return definitions.build_definitions(definitions.configuration.load())
