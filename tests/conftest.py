"""Fixtures of all tests. Spark, PyIceberg and Dagster are imported by the fixtures that need them: a test of the DDL
parser starts without them."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import LONG
from tests.near import Recorder

# Before anything of the product is imported.
_RECORDER = Recorder() if os.environ.get("CDC_TESTS_MAP") else None

from tests.kit.data_sets import unpack  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.lakes import TestLake

# `same`: the same examples each time, so that a change is judged by what it changes. `long`: others each time, and many
# more where a test does not say how many. How long one takes says how busy the machine is, not whether it is
# right.
settings.register_profile("same", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("long", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("long" if LONG else "same")

# A lake in memory: each commit of SQLite waits for the disk.
_MEMORY, _MEMORY_NEEDED = Path("/dev/shm"), 4 << 30
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_NEEDED:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only", metavar="NAME", help="of a file of scenarios this one alone")
    parser.addoption("--update", action="store_true", help="write the results of case files and golden pages anew")


@pytest.fixture(scope="session")
def update(pytestconfig: pytest.Config) -> bool:
    """Whether expected results are written instead of compared."""
    return bool(pytestconfig.getoption("--update"))


def pytest_configure(config: pytest.Config) -> None:
    """SIGTERM ends the tests as an interrupt does, so that what they started ends too."""
    if _RECORDER is not None:
        config.pluginmanager.register(_RECORDER)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


# The targets of the Makefile look for tests of Spark and of servers here alone, and for the others elsewhere: to import
# all of them takes each worker seconds.
_NOT_UNITS = [Path(__file__).with_name(name) for name in ("spark", "servers")]


def _is_unit(item: pytest.Item) -> bool:
    return not any(place in item.path.parents for place in _NOT_UNITS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Those that wait for servers first: the others fill the gaps, and no long one is left for the end.
    items.sort(key=_is_unit)
    for item in items:
        marked = any(item.get_closest_marker(name) is not None for name in ("spark", "server"))
        if marked == _is_unit(item):
            raise pytest.UsageError(
                f"{item.nodeid}: tests marked spark or server, and they alone, are in tests/spark and tests/servers"
            )
    if not LONG:
        left_out = [item for item in items if item.get_closest_marker("long") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, and does so in programs that are started: where tests run in the background it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with no configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CDC_LAKEHOUSE_CONFIG", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def lake_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def spark(lake_root: Path) -> Iterator[SparkSession]:
    from cdc_lakehouse.lake.spark import build_session
    from tests.kit.lakes import lake_config

    session = build_session(lake_config(lake_root))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data sets of the simulator of TiCDC, unpacked: `{protocol}/{name}`."""
    return unpack(tmp_path_factory.mktemp("data"))


@pytest.fixture
def lake(tmp_path: Path) -> TestLake:
    """A feed in a lake of its own, for what needs no JVM."""
    from tests.pipeline import lake_in

    return lake_in(tmp_path)


@pytest.fixture
def new_lake(lake_root: Path, tmp_path: Path, spark: SparkSession) -> Callable[..., TestLake]:
    """Makes feeds of their own in the shared lake."""
    from tests.kit.lakes import TestLake

    numbers = itertools.count(1)

    def make(**feed: object) -> TestLake:
        return TestLake(lake_root, tmp_path / f"feed{next(numbers)}", lambda: spark, **feed)

    return make
