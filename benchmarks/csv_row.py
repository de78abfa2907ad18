"""A row change as TiCDC's csv prints it with include-commit-ts and no further option."""

from __future__ import annotations

import datetime
from typing import Final

from cdc_lakehouse.changelog.mysql_types import INTEGERS
from cdc_lakehouse.sample.row_change import RowChange

_BARE: Final = INTEGERS | {"float", "double", "bit", "year"}


def csv_row(change: RowChange, encoded: datetime.datetime) -> str:
    name = change.table.name
    values = (_value(change.row[column.name], column.type.name) for column in change.table.columns)
    return ",".join((f'"{change.kind[0]}"', f'"{name.table}"', f'"{name.database}"', str(change.commit_ts), *values))


def _value(text: str | None, kind: str) -> str:
    if text is None:
        return r"\N"
    return text if kind in _BARE else '"' + text.replace('"', '""') + '"'
