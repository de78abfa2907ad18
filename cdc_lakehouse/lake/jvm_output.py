"""Pass the JVM's stderr on to this process's stderr, without the messages of every start."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Final

_AT_EVERY_START: Final = re.compile(
    r"WARNING: Using incubator modules"
    r"|Using Spark's default log4j profile"
    r"|Setting (?:default|Spark) log level to"
    r"|To adjust logging level use"
    # Written before the session's own log level applies.
    r"|\S+ \S+ WARN (?:Utils: (?:Your hostname|Set SPARK_LOCAL_IP)|NativeCodeLoader:)"
)
_RESOLVER: Final = re.compile(
    r":: (?:loading settings|resolving dependencies|resolution report|retrieving|modules in use)|:: retrieving"
    r"|Ivy Default Cache set to:|The jars for the packages stored in:|\S+#\S+ added as a dependency"
    r"|\s+(?:confs: |found \S+#|:: modules in use|:: resolution report|:: evicted modules|\S+#\S+ from |\S+#\S+ by "
    r"|\[SUCCESSFUL ?\]|-{10,}$|\|[ |]|\d+ artifacts copied)|downloading \S+ \.\.\."
)
_FETCHING: Final = "cdc-lakehouse: the jars of Spark and Iceberg are fetched, which is needed once"
_REASON: Final = re.compile(r"::::|Exception|UNRESOLVED|module not found", re.IGNORECASE)


@contextlib.contextmanager
def filtered_stderr() -> Iterator[int]:
    """Yield a file descriptor for the stderr of a process that is started in the block. A thread passes its output
    on."""
    reader, writer = os.pipe()
    threading.Thread(target=_pass_on, args=(reader,), name="stderr of the JVM", daemon=True).start()
    try:
        yield writer
    finally:
        os.close(writer)


def _pass_on(reader: int) -> None:
    with open(reader, encoding="utf-8", errors="replace") as lines:
        for line in filtered(lines):
            # `sys.stderr` may have been replaced meanwhile, and may be closed when the process ends.
            with contextlib.suppress(ValueError, OSError):
                sys.stderr.write(line)
                sys.stderr.flush()


def filtered(lines: Iterable[str]) -> Iterator[str]:
    """Return the lines without those of every start. One sentence replaces the resolver's lines, which are all shown
    when it has failed."""
    kept: list[str] = []
    fetches = False
    for line in lines:
        if _AT_EVERY_START.match(line):
            continue
        if not _RESOLVER.match(line):
            if kept and _REASON.search(line):
                yield from kept
                kept.clear()
            yield line
            continue
        kept.append(line)
        if not fetches and line.startswith("downloading"):
            fetches = True
            yield f"{_FETCHING}\n"
