"""The jars of Spark's session, and the directory that keeps them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from cdc_lakehouse.config import LakeConfig
from cdc_lakehouse.lake.file_io import packages

# Change the Iceberg version together with Spark's: a runtime is built for one Spark minor version.
PACKAGES: Final = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)


_DRIVERS: Final = {"postgresql": "org.postgresql:postgresql:42.7.8"}
"""JDBC drivers of catalogs, by the scheme of their URI."""


def jar_packages(config: LakeConfig) -> tuple[str, ...]:
    """Return the Maven packages that a session needs: Iceberg's runtime and those for the warehouse, the catalog and
    `lake.spark.conf`."""
    database = (config.catalog.uri or "").partition(":")[0].partition("+")[0]
    driver = _DRIVERS.get(database) if config.catalog.type == "sql" else None
    further = config.spark.conf.get("spark.jars.packages", "")
    return (*PACKAGES, *packages(config.warehouse), *filter(None, [driver]), *filter(None, further.split(",")))


def jar_directory(config: LakeConfig) -> Path:
    """Return the directory that keeps a configuration's jars once they were fetched: below `CDC_LAKEHOUSE_JARS`, by
    default the user's cache. When it exists, no resolver is used, so it can be copied to a machine without a
    network."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cdc-lakehouse", "jars")
    root = Path(os.environ.get("CDC_LAKEHOUSE_JARS") or cache)
    return root / hashlib.sha256(",".join(sorted(jar_packages(config))).encode()).hexdigest()[:16]


def fetch_command(config: LakeConfig) -> str:
    """Return the command that fetches the jars of a configuration into their directory."""
    words = ["python -m cdc_lakehouse.lake.spark --prefetch"]
    scheme, database = (uri.partition(":")[0] for uri in (config.warehouse, config.catalog.uri or ""))
    if packages(config.warehouse) != packages("file:///any"):
        words.append(f"--warehouse {scheme}://any")
    if config.catalog.type == "sql" and database.partition("+")[0] in _DRIVERS:
        words.append(f"--catalog-uri {database.partition('+')[0]}://any")
    if further := config.spark.conf.get("spark.jars.packages"):
        words.append(f"--packages {further}")
    return " ".join(words)
