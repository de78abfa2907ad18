"""Every data set equals its true rows after each stage, however it is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_lakehouse.lake.current import staging
from cdc_lakehouse.pipeline.steps import run_all
from tests.kit import data_sets as packed
from tests.kit.data_sets import apply_stage
from tests.kit.kills import CrashPoint, crash_points
from tests.kit.lakes import TestLake
from tests.kit.truth import Truth

pytestmark = pytest.mark.spark

NAMES = [f"{protocol}/{name}" for protocol in ("canal-json", "csv") for name in packed.names(protocol)]
SOUND = [name for name in NAMES if "/fault_" not in name]


@pytest.fixture
def truth(request: pytest.FixtureRequest, data_sets: Path) -> Truth:
    return Truth(data_sets / request.param)


def check(lake: TestLake, truth: Truth, stage: int) -> None:
    """A table without any key is held, by the design."""
    keyless = {name for name, table in truth.tables(stage).items() if not table["key"]}
    lake.check(truth.tables(stage), except_for=keyless)


@pytest.mark.parametrize("truth", SOUND, indirect=True)
def test_stage_by_stage_with_a_kill_in_each(truth: Truth, new_lake: Callable[..., TestLake]) -> None:
    """In each stage a run is killed at another commit, then run again: nothing is lost, nothing is there twice."""
    lake = new_lake(source=truth.source)
    points = crash_points(SOUND.index(f"{truth.protocol}/{truth.dataset.name}"))
    for stage, point in zip(range(len(truth.stages)), points, strict=False):
        apply_stage(truth.dataset, stage, lake.sink)
        with point():
            run_all(lake.run())
        done = run_all(lake.run())
        assert done.published.cut.checkpoint_ts == truth.stages[stage]["checkpoint_ts"]
        check(lake, truth, stage)
        assert lake.events_by_segment() == truth.events_by_segment(stage)


@pytest.mark.parametrize("truth", SOUND, indirect=True)
def test_all_at_once_then_again_then_each_date_again(truth: Truth, new_lake: Callable[..., TestLake]) -> None:
    lake = new_lake(source=truth.source)
    last = len(truth.stages) - 1
    apply_stage(truth.dataset, last, lake.sink)
    run_all(lake.run())
    check(lake, truth, last)

    before = lake.metadata()
    done = run_all(lake.run())
    assert lake.metadata() == before, "a run with nothing to do has changed something"
    assert not done.published.new

    dates = frozenset(row["feed_date"] for row in lake.machinery("segments")) - {None}
    run_all(lake.run(dates=dates))
    check(lake, truth, last)
    assert lake.events_by_segment() == truth.events_by_segment(last)


@pytest.mark.parametrize("truth", ["canal-json/random_1", "canal-json/text_keys", "csv/random_1"], indirect=True)
def test_a_batch_too_large_to_be_sent_to_every_task(
    truth: Truth, new_lake: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_BROADCAST_LIMIT", 0)
    monkeypatch.setattr(staging, "_KEYS_BROADCAST", 0)
    lake = new_lake(source=truth.source)
    for stage in range(len(truth.stages)):
        apply_stage(truth.dataset, stage, lake.sink)
        run_all(lake.run())
        check(lake, truth, stage)


@pytest.mark.parametrize(
    "truth",
    ["canal-json/random_3", "canal-json/rename_swap", "canal-json/drop_recreate", "csv/random_3"],
    indirect=True,
)
def test_a_process_that_dies_at_each_commit(truth: Truth, new_lake: Callable[..., TestLake]) -> None:
    """After the first commit, then after the second of what is left to do, and so on, until a run gets through."""
    lake = new_lake(source=truth.source)
    for stage in range(len(truth.stages)):
        apply_stage(truth.dataset, stage, lake.sink)
        for number in itertools.count(1):
            with CrashPoint(number, after=True)() as happened:
                run_all(lake.run())
            if not happened.is_set():
                break
        check(lake, truth, stage)
        assert lake.events_by_segment() == truth.events_by_segment(stage)
