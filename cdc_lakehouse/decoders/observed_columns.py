"""Which columns a table has, as its rows tell: a row that tells something new is a sight of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cdc_lakehouse.changelog.events import RowChange


@dataclass
class _Told:
    key: tuple[str, ...] | None
    types: dict[str, str] = field(default_factory=dict[str, str])
    orders: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])


class ColumnSights:
    """What rows of a partition have told of each table's columns since its last statement. Types that a row does not
    tell (of NULL, of columns that it leaves out) are no news: else there were as many sights as patterns of NULLs."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], _Told] = {}

    def forget(self, database: str, table: str) -> None:
        """A statement came: rows may look as they did before, and mean other columns."""
        if table:
            self._told.pop((database, table), None)
        else:
            self._told.clear()

    def of(self, row: RowChange, names: Sequence[str], *, in_order: bool) -> tuple[tuple[str, str], ...] | None:
        """The row's columns with their types as far as they have been told, None where the row tells nothing new;
        with `in_order` another order is new."""
        told = self._told.get((row.database, row.table))
        if told is None or told.key != row.key:
            told = self._told[row.database, row.table] = _Told(row.key)
        types, order = row.types, tuple(names) if in_order else ()
        known = all(
            name in told.types and (not (type := types.get(name, "")) or type == told.types[name]) for name in names
        )
        if known and order in told.orders:
            return None
        columns = tuple((name, types.get(name, "") or told.types.get(name, "")) for name in names)
        told.types.update(columns)
        told.orders.add(order)
        return columns
