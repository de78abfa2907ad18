"""Test the catalog, its permissions and its store with a table that is created, written, read and removed."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake.catalog import Lake

_ROWS: Final = pa.table({"n": pa.array([1, 2, 3], pa.int64())})


def try_table(lake: Lake) -> None:
    """Create a namespace with a table, commit rows to it, read them, and remove both with their files.

    Raises the errors of the catalog or its store, and `ConfigurationError` when other rows are read than were
    written."""
    namespace = f"cdc_doctor_{uuid.uuid4().hex[:12]}"
    lake.catalog.create_namespace((namespace,))
    try:
        found = _written(lake, (namespace, "rows"))
        if lake.config.catalog.type == "rest":
            _made(lake, (namespace, "newest"))
    finally:
        lake.catalog.drop_namespace((namespace,))
        if lake.config.warehouse.startswith("file:"):
            # The files are deleted, but their directories are left.
            shutil.rmtree(Path(unquote(urlsplit(lake.location(namespace)).path)), ignore_errors=True)
    if found != _ROWS:
        raise ConfigurationError(
            "a table of the catalog has other rows than were written", advice="see what stands before the warehouse"
        )


def _written(lake: Lake, identifier: tuple[str, str]) -> pa.Table:
    """Create a table, write rows to it, remove the table, and return the rows that were read."""
    table = lake.catalog.create_table(identifier, _ROWS.schema, properties={"format-version": "2"})
    try:
        table.append(_ROWS)
        return table.scan().to_arrow()
    finally:
        lake.catalog.purge_table(identifier)


def _made(lake: Lake, identifier: tuple[str, str]) -> None:
    """Create and remove a table of format version 3. A REST catalog can create it; for other catalogs Spark does, which
    is not started here."""
    lake.catalog.create_table(identifier, _ROWS.schema, properties={"format-version": "3"})
    lake.catalog.purge_table(identifier)
