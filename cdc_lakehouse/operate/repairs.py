"""The plan of a repair: values of compared rows as texts in the form of the feed's events."""

from __future__ import annotations

import datetime
from typing import Final

from cdc_lakehouse.changelog.mysql_types import FLOATS, ColumnType
from cdc_lakehouse.changelog.schema import Column, TableVersion
from cdc_lakehouse.decoders.formats.dump_values import CellError, DumpColumn, DumpContext, SqlNumber
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.operate.row_differences import MOST_KEYS, Difference, Values
from cdc_lakehouse.operate.verify import TableResult
from cdc_lakehouse.pipeline.context import Image, RowRepair, TableRepair
from cdc_lakehouse.pipeline.feed_tables import key_columns
from cdc_lakehouse.pipeline.repairs import NotRepairableError, version_at
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.dump.contents import InsertNotation

_MOMENTS: Final = frozenset({"datetime", "timestamp"})


def plan_repair(run: FeedRun, found: TableResult, requested_by: str) -> TableRepair:
    """Plan the repair of a table that differs, of which all differences must be known. Raises `NotRepairableError`."""
    if found.checkpoint_ts is None or found.incarnation is None:
        raise NotRepairableError("it was not compared", advice="mend what was in the way, then verify again")
    if len(found.differences) < found.differing_keys:
        raise NotRepairableError(f"{found.differing_keys} keys differ, and no more than {MOST_KEYS} are repaired")
    version = version_at(run, found.incarnation, found.checkpoint_ts)
    texts = _EventTexts(run, version)
    rows = tuple(texts.repair(each, whole=not _lacks(version, found)) for each in found.differences)
    return TableRepair(found.name, found.incarnation, found.checkpoint_ts, rows, requested_by)


def _lacks(version: TableVersion, found: TableResult) -> bool:
    """Whether rows of the source were read without columns that those of the lake have."""
    return any(column.carried and column.name in found.left_out for column in version.columns)


class _EventTexts:
    """Converts values of compared rows to texts in the form of the feed's events."""

    def __init__(self, run: FeedRun, version: TableVersion) -> None:
        self._format = run.value_format(version)
        self._types = {column.name: column.type for column in version.columns}
        self._key = key_columns(run.feed, version)
        for column in self._key:
            _require_known_text(column, self._format)
        context = DumpContext(
            version.name.database,
            version.name.table,
            version.commit_ts,
            InsertNotation(tuple(self._types)),
            self._types,
            labels=self._format.labels or self._format.labels_uncertain,
            binary=self._format.binary,
            zone="UTC",
            feed_zone=self._format.zone,
        )
        self._notations = {name: DumpColumn.of(name, type, context) for name, type in self._types.items()}

    def repair(self, difference: Difference, *, whole: bool) -> RowRepair:
        if difference.correct is None:
            return RowRepair("D", self._image(difference.lake or difference.key))
        if difference.kind == "missing" and not whole:
            raise NotRepairableError("the lake lacks rows of which not all columns could be read")
        return RowRepair("I" if difference.kind == "missing" else "U", self._image(difference.correct))

    def _image(self, row: Values) -> Image:
        image = {name: self._text(name, value) for name, value in row.items()}
        if any(image[column.name] is None for column in self._key):
            raise NotRepairableError("a part of a key is no value in the lake (a zero date)")
        return image

    def _text(self, name: str, value: str | bytes | None) -> str | None:
        if value is None:
            return None
        notation = self._notations[name]
        try:
            text = notation.text(_cell(value, self._types[name]))
        except CellError:
            raise NotRepairableError(f"a value of column {name} has no text in the feed's events") from None
        return text if notation.zones is None else _in_zone(text, self._format)


def _require_known_text(column: Column, value_format: ValueFormat) -> None:
    """Raises `NotRepairableError` for a key column whose values may be read with fewer digits than the log has, or of
    which the lake only has the text."""
    name = column.type.name
    if name in FLOATS or (name == "timestamp" and value_format.zero_dates == "string"):
        raise NotRepairableError(f"{column.name} of its key is a {name}: how the log writes it is not known")


def _cell(value: str | bytes, type: ColumnType) -> bytes:
    if isinstance(value, bytes):
        return value
    if type.name in _MOMENTS:
        # Use as many digits as the column has.
        whole, _, fraction = value.partition(".")
        value = ".".join(filter(None, (whole, fraction[: type.fraction])))
    return SqlNumber(value.encode()) if type.name == "bit" else value.encode()


def _in_zone(text: str, value_format: ValueFormat) -> str:
    try:
        moment = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
        local = moment.astimezone(value_format.zone_info)
    except (ValueError, OverflowError):
        return text  # A zero date, or a date at an end of the calendar.
    if local.fold:
        return f"{text}+00:00"  # The form of `duckdb_sql.text_in_zone`.
    return local.replace(tzinfo=None).isoformat(" ", "microseconds")[: len(text)]
