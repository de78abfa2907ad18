"""The columns of a table as its rows show them, where no statement gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cdc_lakehouse.changelog.events import RowChange


@dataclass
class _Known:
    key: tuple[str, ...] | None
    types: dict[str, str] = field(default_factory=dict[str, str])
    orders: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])


class ColumnObserver:
    """The columns of each table that rows of a partition have shown since its last statement. Types that a row does not
    show (for NULL, for columns that it leaves out) are not new: else each pattern of NULLs would be."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], _Known] = {}

    def forget(self, database: str, table: str) -> None:
        """Forget a table after a statement: rows may look as before, and mean other columns. Without a table, forget
        all."""
        if table:
            self._tables.pop((database, table), None)
        else:
            self._tables.clear()

    def new_columns(
        self, row: RowChange, names: Sequence[str], *, in_order: bool
    ) -> tuple[tuple[str, str], ...] | None:
        """Return the row's columns with their types as far as rows have shown them, None where the row shows nothing
        new; with `in_order` another order is new."""
        known = self._tables.get((row.database, row.table))
        if known is None or known.key != row.key:
            known = self._tables[row.database, row.table] = _Known(row.key)
        types, order = row.types, tuple(names) if in_order else ()
        is_known = all(
            name in known.types and (not (type := types.get(name, "")) or type == known.types[name]) for name in names
        )
        if is_known and order in known.orders:
            return None
        columns = tuple((name, types.get(name, "") or known.types.get(name, "")) for name in names)
        known.types.update(columns)
        known.orders.add(order)
        return columns
