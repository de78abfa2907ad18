"""Which columns a table has, as its rows tell: a row that tells something new is a sight of the table."""

from __future__ import annotations

from collections.abc import Mapping

from cdc_lakehouse.changelog.messages import RowChange


class ColumnSights:
    """What rows of a partition have told of each table's columns since its last statement. Types that a row does not
    tell (of NULL, of columns that it leaves out) are no news: else there were as many sights as patterns of NULLs."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[tuple[str, ...] | None, dict[str, str]]] = {}

    def forget(self, database: str, table: str) -> None:
        """A statement came: rows may look as they did before, and mean other columns."""
        if table:
            self._told.pop((database, table), None)
        else:
            self._told.clear()

    def of(self, row: RowChange, image: Mapping[str, str | None]) -> tuple[tuple[str, str], ...] | None:
        """The row's columns with their types as far as they have been told, None where the row tells nothing new."""
        known = self._told.get((row.database, row.table))
        types = row.types
        if known is not None and known[0] == row.key:
            told = known[1]
            if all(name in told and (not (type := types.get(name, "")) or type == told[name]) for name in image):
                return None
        else:
            told = {}
            self._told[row.database, row.table] = (row.key, told)
        columns = tuple((name, types.get(name, "") or told.get(name, "")) for name in image)
        told.update(columns)
        return columns
