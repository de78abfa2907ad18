"""TiDB's and MySQL's change logs as Iceberg tables. `read` and `read_spark` give rows of a table as of a moment;
`FeedComponent` is a feed as a component of a Dagster project."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

# Type checkers follow the import below into modules that import this one; at run time there is no such circle.
# pyright: reportImportCycles=false
if TYPE_CHECKING:
    from cdc_lakehouse.definitions import FeedComponent
    from cdc_lakehouse.pipeline.reading import read, read_spark

__all__ = ["FeedComponent", "read", "read_spark"]

_MODULES: Final = {"FeedComponent": "definitions", "read": "pipeline.reading", "read_spark": "pipeline.reading"}


def __getattr__(name: str) -> Any:
    """Loaded at the first use: most modules of the package need neither Dagster nor PyIceberg nor Spark."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"cdc_lakehouse.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    # Dagster looks for components here.
    return sorted({*globals(), *__all__})
