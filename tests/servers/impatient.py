"""The project's definitions with sensors that wait for seconds where those of users wait for minutes."""

import dagster as dg
import pytest

from cdc_lakehouse import definitions
from cdc_lakehouse.assets import runs

patch = pytest.MonkeyPatch()
sensor = dg.sensor
patch.setattr(dg, "sensor", lambda **more: sensor(**{**more, "minimum_interval_seconds": 1}))
patch.setattr(runs, "_FIRST_WAIT_SECONDS", 2)


@dg.definitions
def defs() -> dg.Definitions:
    return definitions.build_definitions(definitions.configuration.load())
