"""Held tables by the names that people know. A run knows a table by its incarnation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdc_lakehouse.changelog.history import Incarnation


def by_name(held: Iterable[tuple[str, str]], lives: Mapping[str, Incarnation]) -> dict[str, str]:
    """The reasons by `database.table`, from pairs of an incarnation, or the name of a table without a history, and its
    reason."""
    found: dict[str, str] = {}
    for id, reason in held:
        name = str(lives[id].last.name) if id in lives else id
        found[name] = reason if name not in found else f"{found[name]}; {reason}"
    return found
