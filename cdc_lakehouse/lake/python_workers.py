"""The daemon from which Spark forks its Python workers.

Spark puts jars and PySpark as a zip on Python's path, and before each task a worker reads the directories of all these
archives, which takes half a second of CPU. Nothing is imported from jars, and PySpark is installed with the project, so
the archives are removed from the path. This module imports what tasks import, once for all workers."""
# ruff: noqa: E402 - The archives go before anything is imported from them.

from __future__ import annotations

import gc
import sys

_ARCHIVES = (".jar", ".zip")

sys.path[:] = [path for path in sys.path if not path.endswith(_ARCHIVES)]
for archive in [path for path in sys.path_importer_cache if path.endswith(_ARCHIVES)]:
    del sys.path_importer_cache[archive]

import pyarrow as pa
from pyspark import daemon, worker_util

from cdc_lakehouse.lake import without_pandas

with without_pandas():
    from cdc_lakehouse.lake.current import update_tasks  # noqa: F401
    from cdc_lakehouse.lake.tables import events  # noqa: F401

if __name__ == "__main__":
    # Arrow's own allocators return memory to the system after each piece of work, and get it page by page for the next
    # one, which takes a third of a task's CPU.
    pa.set_memory_pool(pa.system_memory_pool())
    # Each task adds the jars again.
    add_path = worker_util.add_path
    worker_util.add_path = lambda path: None if path.endswith(".jar") else add_path(path)
    # A worker collects garbage after each task: with all imported objects that takes as long as a small task does.
    gc.freeze()
    daemon.manager()
