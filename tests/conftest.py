"""Fixtures of all tests. Spark, PyIceberg and Dagster are imported by the fixtures that need them: a test of the DDL
parser starts without them."""

from __future__ import annotations

import atexit
import itertools
import os
import random
import shutil
import signal
import tempfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import LONG, SEED, TURN
from tests.near import Recorder

# Before anything of the product is imported.
_RECORDER = Recorder() if os.environ.get("CDC_TESTS_MAP") else None

from tests.kit.data_sets import unpack  # noqa: E402
from tests.kit.hygiene import left_behind, state  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.lakes import NewLake, TestLake

# `same`: the same examples each time, so that a change is judged by what it changes. `new`: those of the seed, with
# `--hypothesis-seed`. `long`: many more where a test does not say how many. How long one takes says how busy the
# machine is, not whether it is right.
_ANY_TIME: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, max_examples=50, **_ANY_TIME)
settings.register_profile("few", settings.get_profile("same"), max_examples=10)
settings.register_profile("new", max_examples=50, print_blob=True, database=None, **_ANY_TIME)
settings.register_profile("long", settings.get_profile("new"), max_examples=1000)
settings.load_profile(os.environ.get("CDC_TESTS") or ("same" if SEED is None else "new"))

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


# Directories of its own for each process, so that what is left there is its own. Not pytest's: their paths are too long
# for sockets.
tempfile.tempdir = tempfile.mkdtemp(prefix="tests-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
Path(tempfile.tempdir).chmod(0o755)
atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    """SIGTERM ends the tests as an interrupt does, so that what they started ends too."""
    if _RECORDER is not None:
        config.pluginmanager.register(_RECORDER)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


# The targets of the Makefile look for tests of Spark and of servers here alone, and for the others elsewhere: to import
# all of them takes each worker seconds.
_NOT_UNITS = ("tests/spark/", "tests/servers/")

_TURNS = 4


def _is_unit(item: pytest.Item) -> bool:
    return not item.nodeid.startswith(_NOT_UNITS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if TURN is not None:
        # One after the other, so that those of one file, which cost alike, come with different seeds.
        in_turn = [item for item in items if item.get_closest_marker("in_turn") is not None]
        _leave_out(config, items, {item for number, item in enumerate(in_turn) if (number + TURN) % _TURNS})
    if SEED is not None and os.environ.get("CDC_TESTS_SHUFFLED"):
        _shuffle(items, SEED)
    # Those that wait for servers first: the others fill the gaps, and no long one is left for the end.
    items.sort(key=_is_unit)
    for item in items:
        marked = any(item.get_closest_marker(name) is not None for name in ("spark", "server"))
        if marked == _is_unit(item):
            raise pytest.UsageError(
                f"{item.nodeid}: tests marked spark or server, and they alone, are in tests/spark and tests/servers"
            )
    if not LONG:
        _leave_out(config, items, {item for item in items if item.get_closest_marker("long") is not None})
    if part := os.environ.get("CDC_TESTS_PART"):
        number, parts = map(int, part.split("/"))
        items[:] = [item for item in items if zlib.crc32(_function(item).encode()) % parts == number]


def _leave_out(config: pytest.Config, items: list[pytest.Item], which: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=list(which))
    items[:] = [item for item in items if item not in which]


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _shuffle(items: list[pytest.Item], seed: int) -> None:
    """By file and by function: the cases of one, and what a file sets up for all of its tests, stay together."""
    chance = random.Random(seed)
    order = {key: chance.random() for item in items for key in (item.path, _function(item))}
    items.sort(key=lambda item: (order[item.path], order[_function(item)]))


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:  # By its name the first, so that it ends last.
    before = state()
    yield
    left = left_behind(before, processes=request.node.get_closest_marker("server") is None)
    assert not left, "the test left behind: " + "; ".join(left)


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
def new_lake(lake_root: Path, tmp_path: Path, spark: SparkSession) -> NewLake:
    """Makes feeds of their own in the shared lake."""
    from tests.kit.lakes import TestLake

    numbers = itertools.count(1)

    def make(**feed: Any) -> TestLake:
        return TestLake(lake_root, tmp_path / f"feed{next(numbers)}", lambda: spark, **feed)

    return make
