"""What a change of a column's type means for the values that are there already."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final, Literal

from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, LABELS, TEXTS, ColumnType, iceberg_type

TypeChange = Literal["none", "widen", "convert"]

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
# Iceberg's type promotions that leave every value as it is.
_PROMOTIONS: Final = frozenset({("int", "long"), ("float", "double")})


def promotable(current: str, target: str) -> bool:
    """Whether Iceberg reads the values of one of its types as another, unchanged, without touching data files."""
    if (current, target) in _PROMOTIONS:
        return True
    narrow, wide = _DECIMAL.fullmatch(current), _DECIMAL.fullmatch(target)
    return bool(narrow and wide and narrow[2] == wide[2] and int(narrow[1]) <= int(wide[1]))


def type_change(old: ColumnType, new: ColumnType) -> TypeChange:
    """`none` when values and Iceberg type stay, `widen` when only the type does not, else `convert`."""
    current, target = iceberg_type(old), iceberg_type(new)
    if _changes_values(old, new):
        return "convert"
    if current == target:
        return "none"
    return "widen" if promotable(current, target) else "convert"


def converts(types: Sequence[ColumnType]) -> bool:
    """Whether values change on their way through the types that a column had."""
    return any(type_change(old, new) == "convert" for old, new in itertools.pairwise(types))


def _changes_values(old: ColumnType, new: ColumnType) -> bool:
    if old.name == new.name:
        match old.name:
            case "datetime" | "timestamp":
                return new.fraction < old.fraction
            case "time" | "decimal":
                # Both print as many digits as they have; a DECIMAL in an Iceberg decimal only changes with its scale.
                return new.fraction != old.fraction
            case "binary":
                return (new.length or 0) > (old.length or 0)
            case "set":
                return not _keeps_order(old.elements, new.elements)
            case _:
                # Labels of an ENUM or SET that are in use cannot be taken away, and text only gets longer.
                return False
    for family in (TEXTS, INTEGERS):
        if old.name in family and new.name in family:
            return False
    if old.name in BLOBS and new.name in BLOBS:
        return new.name == "binary"
    if (old.name, new.name) == ("float", "double"):
        return False
    return not (old.name in LABELS and new.name in TEXTS)


def _keeps_order(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether the labels of a SET, which stand in the order of the declaration in its values, stay in that order."""
    kept = [label for label in new if label in old]
    return kept == [label for label in old if label in new]
