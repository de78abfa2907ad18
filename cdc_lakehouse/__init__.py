"""TiDB's and MySQL's change logs as Iceberg tables. `read` and `read_spark` give rows of a table as of a moment."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Type checkers follow the import below into modules that import this one; at run time there is no such circle.
# pyright: reportImportCycles=false
if TYPE_CHECKING:
    from cdc_lakehouse.pipeline.reading import read, read_spark

__all__ = ["read", "read_spark"]


def __getattr__(name: str) -> Any:
    """Loaded at the first use: most modules of the package need neither PyIceberg nor Spark."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("cdc_lakehouse.pipeline.reading"), name)
