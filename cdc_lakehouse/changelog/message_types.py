"""Column types as messages tell them: `int unsigned`, `varchar(20)`, `enum('a','b')`, or only the type's name."""

from __future__ import annotations

import functools
from typing import Final

from cdc_lakehouse.changelog.ddl.parser import parse_type
from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, TEXTS, ColumnType
from cdc_lakehouse.errors import DdlError

# TiCDC tells the name alone: what holds any value of the type, without a loss.
_ANY: Final = {
    "decimal": ColumnType("decimal", length=65, scale=30),
    "decimal unsigned": ColumnType("decimal", unsigned=True, length=65, scale=30),
    "bit": ColumnType("bit", length=64),
    "varchar": ColumnType("varchar", length=255),
    "varbinary": ColumnType("varbinary", length=255),
    "binary": ColumnType("binary"),
    "enum": ColumnType("enum"),
    "set": ColumnType("set"),
    "vector": ColumnType("vector"),
}


@functools.lru_cache(maxsize=4096)
def message_type(text: str) -> ColumnType:
    """A type that is not known, or not told, is kept as text."""
    folded = text.strip().lower()
    if folded in _ANY:
        return _ANY[folded]
    try:
        return parse_type(text)
    except DdlError:
        return ColumnType("longtext")


def same_kind(known: ColumnType, told: ColumnType) -> bool:
    """Whether a message can mean a column of the type. Messages tell integers, texts and bytes loosely."""
    for family in (INTEGERS, TEXTS | {"json", "enum", "set", "time"}, BLOBS):
        if known.name in family and told.name in family:
            return True
    numbers = INTEGERS | {"decimal", "year", "bit"}
    return known.name == told.name or (known.name in numbers and told.name in numbers) or told.name == "longtext"
