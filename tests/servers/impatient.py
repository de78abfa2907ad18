"""The project's definitions with a sensor that waits for seconds where that of users waits for minutes."""

from __future__ import annotations

import dagster as dg
import pytest

from cdc_lakehouse import definitions
from cdc_lakehouse.assets import sensors

patch = pytest.MonkeyPatch()
patch.setattr(sensors, "_INTERVAL_SECONDS", 1)
patch.setattr(sensors, "_FIRST_WAIT_SECONDS", 2)


@dg.definitions
def defs() -> dg.Definitions:
    return definitions.build_definitions(definitions.configuration.load())
