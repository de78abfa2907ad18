"""Statements and what they say, one a line: `statement => clause; clause …`.

types.txt has `declaration => type`, errors.txt `statement => offset reason`. Lines with `#` are comments. `show`
prints a clause as its class with the fields that have no default, then by name those that differ from theirs; names of
tables and types as SQL has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdc_lakehouse.changelog.ddl.clauses import TableRef
from cdc_lakehouse.changelog.mysql_types import ColumnType

_DIRECTORY = Path(__file__).parent


def cases(name: str) -> Iterator[tuple[str, str]]:
    """Each statement of a file, and what stands after its arrow."""
    for line in (_DIRECTORY / f"{name}.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            statement, arrow, expected = line.partition(" =>")
            assert arrow, line
            yield statement, expected.strip()


def show(value: Any) -> str:
    match value:
        case TableRef(None, name):
            return _quoted(name)
        case TableRef(database, name):
            return f"{_quoted(database)}.{_quoted(name)}"
        case ColumnType(name):
            fields = _different(value, set())
            return f"{name}({', '.join(fields)})" if fields else name
        case tuple():
            return f"[{', '.join(show(item) for item in value)}]"
        case _ if dataclasses.is_dataclass(value):
            needed = [field.name for field in dataclasses.fields(value) if field.default is dataclasses.MISSING]
            fields = [show(getattr(value, name)) for name in needed] + _different(value, set(needed))
            return f"{type(value).__name__}({', '.join(fields)})"
        case _:
            return repr(value)


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"


def _different(value: Any, shown: set[str]) -> list[str]:
    """`name=value` of the fields that differ from their defaults."""
    fields = [field for field in dataclasses.fields(value) if field.name not in shown]
    values = [(field.name, getattr(value, field.name), field.default) for field in fields]
    return [
        f"{name}={show(found)}"
        for name, found, default in values
        if default is not dataclasses.MISSING and found != default
    ]
