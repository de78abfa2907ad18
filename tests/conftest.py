from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from cdc_lakehouse.lake.spark import build_session
from tests.data_sets import unpack
from tests.lakes import TestLake, lake_config
from tests.pipeline import lake_in


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, and does so in programs that are started: where tests run in the background it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# The same examples each time, so that a change is judged by what it changes. Others: `--hypothesis-profile=default`.
# How long one takes says how busy the machine is, not whether it is right.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


@pytest.fixture(scope="session")
def lake_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def spark(lake_root: Path) -> Iterator[SparkSession]:
    session = build_session(lake_config(lake_root))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data sets of TiCDC, unpacked: `{protocol}/{name}`."""
    return unpack(tmp_path_factory.mktemp("data"))


@pytest.fixture
def lake(tmp_path: Path) -> TestLake:
    """A feed in a lake of its own, for what needs no JVM."""
    return lake_in(tmp_path)


@pytest.fixture
def new_lake(lake_root: Path, tmp_path: Path, spark: SparkSession) -> Callable[..., TestLake]:
    """Makes feeds of their own in the shared lake."""
    numbers = itertools.count(1)

    def make(**feed: object) -> TestLake:
        return TestLake(lake_root, tmp_path / f"feed{next(numbers)}", lambda: spark, **feed)

    return make
