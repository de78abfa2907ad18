"""Give each value of a key a single text, by which events are grouped.

Events of one key can write it in several ways: a dump `1.00` and Canal `1.0`, or two versions of a table the same label
of an ENUM as two numbers. Then the text is made from the value, under the event's own version. Keys whose types have
one text for each value keep the events' texts, which costs nothing. Collations are ignored here."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from cdc_lakehouse.changelog.mysql_types import FLOATS, LABELS, TEXTS, ColumnType, type_change
from cdc_lakehouse.changelog.schema import Column, TableVersion
from cdc_lakehouse.duckdb_sql import cast, in_zone, text_literal
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.value_parsing import ValueFormat, moment_text

TEXT: Final = "text"
"""The column over which the expressions of texts are written."""

_SEVERAL: Final = frozenset({"decimal", "float", "double", "bit", "year", "binary"})
_MOMENTS: Final = frozenset({"datetime", "timestamp"})
_LABEL: Final = ColumnType("varchar")
_FORMAT: Final = ValueFormat()


@dataclass(frozen=True, slots=True)
class TableKey:
    """The current columns of a table's key. `several` says for each column whether its values have several texts; it is
    empty when the events' texts are used unchanged."""

    columns: tuple[Column, ...]
    several: tuple[bool, ...] = ()
    value_format: ValueFormat = _FORMAT

    @classmethod
    def of(cls, columns: tuple[Column, ...], versions: Iterable[TableVersion], value_format: ValueFormat) -> Self:
        """Return the key for events of some versions."""
        types = {column.id: {column.type} for column in columns}
        for version in versions:
            for id, found in types.items():
                if (own := version.column(id)) is not None:
                    found.add(own.type)
        several = tuple(_have_several(types[column.id], value_format) for column in columns)
        return cls(columns, several if any(several) else (), value_format)

    @property
    def read_as(self) -> tuple[Column, ...]:
        """The columns as `value_parsing.value` reads the texts: ENUM and SET texts are labels."""
        if not self.several:
            return self.columns
        return tuple(
            replace(column, type=_LABEL) if several and column.type.name in LABELS else column
            for column, several in zip(self.columns, self.several, strict=True)
        )

    def texts(self, version: TableVersion) -> tuple[str | None, ...]:
        """Return, for each key column that a version has, the expression of its text over `TEXT` of an event of the
        version; None where `TEXT` itself is used. Empty when that is so for all columns."""
        if not self.several:
            return ()
        return tuple(
            _text(own.type, column.type, self.value_format) if several else None
            for column, several in zip(self.columns, self.several, strict=True)
            if (own := version.column(column.id)) is not None
        )


def _have_several(types: Collection[ColumnType], value_format: ValueFormat) -> bool:
    if any(each.name in _SEVERAL or each.zerofill for each in types):
        return True
    if value_format.zero_dates != "string" and any(
        # A fraction is written with the version's number of digits, or with any number.
        each.name == "timestamp" or (each.name == "datetime" and each.fraction)
        for each in types
    ):
        return True
    if value_format.labels:
        return False
    labels = {each.elements for each in types if each.name in LABELS and each.elements}
    changed = len(labels) > 1 or any(each.name in TEXTS for each in types)
    return bool(labels) and (value_format.labels_uncertain or changed)


def _text(own: ColumnType, now: ColumnType, value_format: ValueFormat) -> str | None:
    if type_change(own, now) == "convert":
        return None  # Such a change recreates the table: earlier events are not read.
    if own.name in LABELS:
        # When a version does not have its labels, the current ones are used.
        own = own if own.elements else own.with_elements(now.elements)
        return f"coalesce({value_parsing.value(TEXT, own, value_format)}, {TEXT})"
    target = value_format.type_of(now)
    if target == "string" and own.name != "decimal":
        return None
    if own.name == now.name == "binary" and value_format.binary == "characters":
        return f"rtrim({TEXT}, {text_literal(chr(0))})"
    value = cast(value_parsing.value(TEXT, own, value_format), target)
    if own.name in _MOMENTS:
        # A zero date has no value, but can still have a fraction.
        return f"coalesce({_moment(value, own.name)}, regexp_replace({TEXT}, '\\.0+$', ''))"
    if own.name in FLOATS:
        value = f"{value} + 0"  # One of the two zeros has a minus sign.
    return f"coalesce({value_parsing.text(value, now, value_format)}, {TEXT})"


def _moment(value: str, name: str) -> str:
    if name == "datetime":
        return moment_text(value, 6)
    return f"{moment_text(in_zone(value, 'UTC'), 6)} || '+00:00'"
