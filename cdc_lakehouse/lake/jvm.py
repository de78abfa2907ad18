"""The start of the JVM. Everyone may read its command line, so no setting stands there."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from py4j.java_gateway import JavaGateway
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"


def start_jvm(settings: Mapping[str, str]) -> JavaGateway | None:
    """A JVM with the Spark settings; None when this process has one, which keeps what it was started with.

    The settings are handed over in a file that only this user may read, and that is gone when the JVM runs. Spark's own
    `spark-defaults.conf` still counts, for what is not among them.
    """
    if SparkContext._gateway is not None:
        return None
    with tempfile.TemporaryDirectory(prefix="cdc-lakehouse-") as directory:
        file = Path(directory, "spark.properties")
        file.touch(mode=0o600)
        file.write_text("".join(f"{_escape(k)}={_escape(v)}\n" for k, v in settings.items()), encoding="ascii")
        before = os.environ.get(_ARGUMENTS)
        own = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults"
        os.environ[_ARGUMENTS] = f"{own} {before or 'pyspark-shell'}"
        try:
            return launch_gateway()
        finally:
            if before is None:
                del os.environ[_ARGUMENTS]
            else:
                os.environ[_ARGUMENTS] = before


def _escape(text: str) -> str:
    """As a word of a Java properties file: in units of UTF-16, those with a meaning there by their number."""
    units = text.encode("utf-16-be")
    numbers = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(chr(unit) if unit < 128 and chr(unit).isalnum() else f"\\u{unit:04x}" for unit in numbers)
