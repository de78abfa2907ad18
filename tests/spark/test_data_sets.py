"""Every canal-json data set equals its true rows after each stage, however it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_lakehouse.pipeline.steps import run_all
from tests import data_sets as packed
from tests.lakes import TestLake
from tests.sinks import apply_stage
from tests.truth import Truth

pytestmark = pytest.mark.spark

NAMES = [name for name in packed.names("canal-json") if not name.startswith("fault_")]


@pytest.fixture
def truth(request: pytest.FixtureRequest, data_sets: Path) -> Truth:
    return Truth(data_sets / "canal-json" / request.param)


@pytest.mark.parametrize("truth", NAMES, indirect=True)
def test_stage_by_stage(truth: Truth, new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(date_separator=truth.date_separator)
    for stage in range(len(truth.stages)):
        apply_stage(truth.dataset, stage, lake.sink)
        done = run_all(lake.run())
        assert done.published.cut.checkpoint_ts == truth.stages[stage]["checkpoint_ts"]
        assert not done.applied.held
        lake.check(truth.tables(stage))
