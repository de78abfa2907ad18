"""Spark's classes as a JVM has them in memory, in a file: one that is given it starts in half of the time, for it has
nothing to parse and to verify (Java's class data sharing).

A JVM sees by itself whether the file fits it and its classes, and goes on without it where it does not."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

from cdc_lakehouse.lake.jars import PACKAGES

# What it has to say of files that do not fit, and of classes that cannot be archived.
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"


ARCHIVE_COMMAND: Final = "python -m cdc_lakehouse.lake.spark --archive-classes"
"""What makes the archive."""


def class_archive() -> Path:
    """Where the archive is of this environment's Spark and of the `java` that it starts; it need not be there."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    with contextlib.suppress(OSError):
        java = java.resolve(strict=True)
    changed = java.stat().st_mtime_ns if java.is_file() else 0
    about = f"{version('pyspark')} {PACKAGES} {java} {changed}"
    return Path(sys.prefix, "share", "cdc-lakehouse", f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsa")


def archive_options() -> str:
    """The JVM options to start from the archive; none where there is none."""
    archive = class_archive()
    return f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} {_SILENT}" if archive.is_file() else ""


@contextlib.contextmanager
def archiving_options() -> Iterator[str]:
    """The JVM options to make the archive: when it ends, within the block, of the classes that it has loaded. Some JVMs
    make none. Raises `OSError` where the environment cannot be written."""
    archive = class_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
        file = Path(temporary, archive.name)
        yield f"{shlex.quote(f'-XX:ArchiveClassesAtExit={file}')} {_SILENT}"
        if file.is_file():
            file.rename(archive)
