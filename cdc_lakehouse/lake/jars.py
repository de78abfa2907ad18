"""The jars of Spark's session: which, and where they are kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.lake.file_io import packages

# Moved together only: a runtime is built for one Spark minor version.
PACKAGES: Final = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)


_DRIVERS: Final = {"postgresql": "org.postgresql:postgresql:42.7.8"}
"""JDBC drivers of catalogs, by the scheme of their URI."""


def jar_packages(config: LakeConfig) -> tuple[str, ...]:
    """What a session needs from Maven: Iceberg's runtime and what the warehouse, the catalog and `lake.spark.conf` ask
    for."""
    database = (config.catalog.uri or "").partition(":")[0].partition("+")[0]
    driver = _DRIVERS.get(database) if config.catalog.type == "sql" else None
    further = config.spark.conf.get("spark.jars.packages", "")
    return (*PACKAGES, *packages(config.warehouse), *filter(None, [driver]), *filter(None, further.split(",")))


def jar_directory(config: LakeConfig) -> Path:
    """Where the jars of a configuration are kept once they were fetched: below `CDC_LAKEHOUSE_JARS`, by default the
    user's cache. There a resolver is asked no more, so that a machine without a network can be given it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cdc-lakehouse", "jars")
    root = Path(os.environ.get("CDC_LAKEHOUSE_JARS") or cache)
    return root / hashlib.sha256(",".join(sorted(jar_packages(config))).encode()).hexdigest()[:16]


def fetch_command(config: LakeConfig) -> str:
    """The command that fetches the jars of a configuration into their directory."""
    words = ["python -m cdc_lakehouse.lake.spark --prefetch"]
    scheme, database = (uri.partition(":")[0] for uri in (config.warehouse, config.catalog.uri or ""))
    if packages(config.warehouse) != packages("file:///any"):
        words.append(f"--warehouse {scheme}://any")
    if config.catalog.type == "sql" and database.partition("+")[0] in _DRIVERS:
        words.append(f"--catalog-uri {database.partition('+')[0]}://any")
    if further := config.spark.conf.get("spark.jars.packages"):
        words.append(f"--packages {further}")
    return " ".join(words)
