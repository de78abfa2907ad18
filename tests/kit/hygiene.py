"""What a test leaves behind in its process for those that follow: `left_behind` says it."""

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

# Results that are kept, what a feed's definitions declare, and the steps of Dagster's runs, each of which else has a
# process of its own. None is asked for what another feed left.
_CACHES: Final = {
    "cdc_lakehouse.assets.steps.CONFIGURATIONS",
    "cdc_lakehouse.assets.steps._STEPS",
    "cdc_lakehouse.duckdb_sql._idle",
}
# Of the session's JVM, which lives as long as the process, of libraries' pools, and of connections that a client keeps.
_LASTING_THREADS: Final = re.compile(r"stderr of the JVM|ThreadPoolExecutor-|.*\(process_request_thread\)")
_LASTING_VARIABLES: Final = ("PYTEST_", "PYSPARK_", "SPARK_", "HYPOTHESIS")
_PATIENCE_SECONDS: Final = 30

_modules = 0
_containers: list[tuple[str, Any]] = []


def state() -> dict[str, object]:
    """Return what a test must not change, by what it is called in a message."""
    found: dict[str, object] = {f"{name} has entries": len(each) for name, each in _product_state()}
    threads = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    found |= {f"thread {name}": True for name in threads if not _LASTING_THREADS.match(name)}
    found |= {f"process {name} ({number})": True for number, name in _children()}
    found |= {f"temporary {each.name}": True for each in Path(tempfile.gettempdir()).glob("cdc-lakehouse-*")}
    found |= {f"variable {k}": v for k, v in os.environ.items() if not k.startswith(_LASTING_VARIABLES)}
    for name in ("", *(name for name in logging.root.manager.loggerDict if name.startswith("cdc_lakehouse"))):
        logger = logging.getLogger(name)
        if logger.level or not logger.propagate or logger.disabled or not name:
            found[f"log {name or 'root'}"] = (logger.level, logger.propagate, logger.disabled)
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        # Spark's, of a session that a test starts anew, does the same.
        is_sparks = getattr(handler, "__module__", "").startswith("pyspark.")
        found[f"signal {number.name}"] = signal.default_int_handler if is_sparks else handler
    found["working directory"] = str(Path.cwd())
    return found


def left_behind(before: dict[str, object], *, processes: bool = True) -> list[str]:
    """Return what is not as before. What is about to end has time for it. `processes`: not of tests that may start a
    server for all that follow."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        after = state()
        differences = [
            f"{name}: {before.get(name)!r} became {after.get(name)!r}"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name) and _counts(name, before, after)
            if processes or not name.startswith("process")
        ]
        if not any(each.startswith(("thread", "process")) for each in differences) or time.monotonic() > deadline:
            return differences
        time.sleep(0.02)


def _counts(name: str, before: dict[str, object], after: dict[str, object]) -> bool:
    if name.startswith("cdc_lakehouse."):
        return name in before  # Else the module was imported by the test.
    return name in after or not name.startswith(("thread", "process", "temporary"))


def _product_state() -> list[tuple[str, Any]]:
    """The lists, sets and dictionaries of the product's modules that can grow."""
    global _modules, _containers
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        _containers = [
            (f"{module}.{name}", value)
            for module, content in list(sys.modules.items())
            if module.startswith("cdc_lakehouse.")
            for name, value in vars(content).items()
            if isinstance(value, dict | list | set) and not name.startswith("__") and f"{module}.{name}" not in _CACHES
        ]
    return _containers


def _children() -> Iterator[tuple[str, str]]:
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # The thread or the process has ended.
            for number in task.read_text().split():
                yield number, Path("/proc", number, "comm").read_text().strip()
