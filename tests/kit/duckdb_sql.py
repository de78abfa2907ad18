"""Expressions of DuckDB's SQL, worked out in a connection as the tasks have it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from typing import Any, Final

from cdc_lakehouse.duckdb_sql import database, identifier, literal

_OPEN: Final = contextlib.ExitStack()


@functools.cache
def connection() -> Any:
    return _OPEN.enter_context(database())


def rows_of(values: Iterable[Any], iceberg: str, *expressions: str, name: str = "value") -> list[tuple[Any, ...]]:
    """The expressions, a tuple for each of the values. They find the value in the column `name`."""
    listed = ", ".join(f"({number}, {literal(value, iceberg)})" for number, value in enumerate(values))
    table = f"(VALUES {listed}) AS t(number, {identifier(name)})"
    return connection().execute(f"SELECT {', '.join(expressions)} FROM {table} ORDER BY number").fetchall()
