"""Changes as TiCDC writes them in csv, for a `SinkWriter`."""

from __future__ import annotations

import datetime
from typing import Final

from cdc_lakehouse.changelog.mysql_types import INTEGERS
from cdc_lakehouse.sample.sink_writer import LINE_END, Row, SampleRowChange

_BARE: Final = INTEGERS | {"float", "double", "bit", "year"}


def csv(change: SampleRowChange, encoded: datetime.datetime) -> str:
    """A change as a csv row, with include-commit-ts."""
    return _csv_row(change, change.kind[0], change.row)


def csv_with_old_values(change: SampleRowChange, encoded: datetime.datetime) -> str:
    """A change as csv with include-commit-ts and output-old-value: an UPDATE is two rows."""
    if change.old is None:
        return _csv_row(change, change.kind[0], change.row, "false")
    return _csv_row(change, "D", change.old, "true") + LINE_END + _csv_row(change, "I", change.row, "true")


def _csv_row(change: SampleRowChange, op: str, row: Row, *is_update: str) -> str:
    name = change.table.name
    values = (_csv_value(row[column.name], column.type.name) for column in change.table.columns)
    return ",".join((f'"{op}"', f'"{name.table}"', f'"{name.database}"', str(change.commit_ts), *is_update, *values))


def _csv_value(text: str | None, type_name: str) -> str:
    if text is None:
        return r"\N"
    return text if type_name in _BARE else '"' + text.replace('"', '""') + '"'
