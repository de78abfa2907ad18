"""Held tables by the names that people know. A run identifies a table by its incarnation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.checkpoints import Cut
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory


def held_by_name(held: Iterable[tuple[str, str]], lives: Mapping[str, Incarnation]) -> dict[TableName, str]:
    """Return the reasons by the last names of tables. `held` are pairs of an incarnation (or the identity of the name
    of a table without a history) and its reason."""
    found: dict[TableName, str] = {}
    for id, reason in held:
        name = lives[id].last.name if id in lives else TableName.of_identity(id)
        found[name] = reason if name not in found else f"{found[name]}; {reason}"
    return found


def held_of_cut(lake: Lake, feed: str, cut: Cut) -> dict[TableName, str]:
    """Return the held tables of a cut. The schema history is only read when a table is held."""
    return held_by_name(cut.held, SchemaHistory(lake, feed).history.incarnations() if cut.held else {})
