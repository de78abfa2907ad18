"""The process from which Spark forks its Python workers.

Spark puts a jar of its own on Python's path, and before each task a worker reads the directories of all archives there:
half a second of CPU. Nothing is imported from that jar. What tasks import is imported here, once for all workers."""

from __future__ import annotations

import sys

import pandas  # noqa: F401 - Spark asks for it before it hands over Arrow batches.
from pyspark import daemon

from cdc_lakehouse.lake.current import update_tasks  # noqa: F401


def main() -> None:
    for path in [path for path in sys.path if path.endswith(".jar")]:
        sys.path.remove(path)
    for path in [path for path in sys.path_importer_cache if path.endswith(".jar")]:
        del sys.path_importer_cache[path]
    daemon.manager()


if __name__ == "__main__":
    main()
