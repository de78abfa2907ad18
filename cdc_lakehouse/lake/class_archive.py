"""The archive of Spark's classes (Java's class data sharing): a JVM that starts from it takes half of the time, because
it does not parse and verify classes.

A JVM checks that the file fits it and its classes, and starts without it when it does not."""

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

# Silences the JVM's messages about archives that do not fit and classes that cannot be archived.
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"


ARCHIVE_COMMAND: Final = "python -m cdc_lakehouse.lake.spark --archive-classes"
"""The command that makes the archive."""


def class_archive() -> Path:
    """Return the path of the archive for this environment's Spark and the `java` that it starts; the file may not
    exist."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    with contextlib.suppress(OSError):
        java = java.resolve(strict=True)
    changed = java.stat().st_mtime_ns if java.is_file() else 0
    about = f"{version('pyspark')} {PACKAGES} {java} {changed}"
    return Path(sys.prefix, "share", "cdc-lakehouse", f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsa")


def archive_options() -> str:
    """Return the JVM options that start from the archive; empty when there is no archive."""
    archive = class_archive()
    return f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} {_SILENT}" if archive.is_file() else ""


@contextlib.contextmanager
def archiving_options() -> Iterator[str]:
    """Yield the JVM options that make a JVM write the archive of its loaded classes when it ends; it must end within
    the block. Some JVMs write none. Raises `OSError` when the environment cannot be written."""
    archive = class_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
        file = Path(temporary, archive.name)
        yield f"{shlex.quote(f'-XX:ArchiveClassesAtExit={file}')} {_SILENT}"
        if file.is_file():
            file.rename(archive)
