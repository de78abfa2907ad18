"""Column types of DTS Avro records: the number of the type and the values, as MySQL type text.

The numbers are MySQL's own (`enum_field_types`), as in its binlog, and are less precise than the declaration:

- Whether an integer is unsigned, how many bits a BIT has and how many digits a fraction is not said. The type given is
  one that holds either: a TINYINT is a `smallint`, a BIGINT a `decimal(20,0)`, a DATETIME a `datetime(6)`.
- A DECIMAL's digits and whether a string is text or bytes are said by its value. For NULL nothing is said, and no type
  is given. All TEXT and BLOB types have one number: the largest is given.
- Lengths and the labels of ENUM and SET are not said.

So a statement that declares the column is more precise. Source of the facts: MySQL's `field_types.h`, and the public
example's converter of the service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from cdc_lakehouse.decoders.messages.dts_record import Image

_BY_NUMBER: Final = {
    1: "smallint", 2: "mediumint", 9: "int", 3: "bigint", 8: "decimal(20,0)", 16: "bit(64)",
    4: "float", 5: "double", 13: "year", 10: "date",
    7: "timestamp(6)", 17: "timestamp(6)", 12: "datetime(6)", 18: "datetime(6)", 11: "time(6)", 19: "time(6)",
    245: "json", 247: "enum", 248: "set", 255: "geometry",
}  # fmt: skip
# The type as text, and as bytes.
_STRINGS: Final = {
    15: ("varchar", "varbinary"), 253: ("varchar", "varbinary"), 254: ("char", "binary"),
    249: ("tinytext", "tinyblob"), 250: ("mediumtext", "mediumblob"), 251: ("longtext", "longblob"),
    252: ("longtext", "longblob"),
}  # fmt: skip
_DECIMALS: Final = frozenset({0, 246})
# MySQL's later DATE, which the public example reads as a DATETIME.
_NEW_DATE: Final = 14
_MOST_DIGITS, _MOST_FRACTION = 65, 30
# The type names of objects, where the number may be a string's.
OBJECT_TYPES: Final = frozenset({"json", "enum", "set"})


def column_type(number: int, images: Iterable[Image]) -> str | None:
    """Return the MySQL type text of a column with these values in one record, None where they do not show it."""
    known = _BY_NUMBER.get(number)
    if known is not None:
        return known
    types = (_type_of_value(number, *image) for image in images if image is not None)
    return next((type for type in types if type is not None), None)


def _type_of_value(number: int, branch: str, value: Any) -> str | None:
    match branch:
        case "Character":
            return _string(number, is_text=value["charset"].lower() != "binary")
        case "TextObject" | "BinaryObject":
            type = value["type"].lower()
            return type if type in OBJECT_TYPES else _string(number, is_text=branch == "TextObject")
        case "Decimal" if number in _DECIMALS:
            precision, scale = value["precision"], value["scale"]
            sound = 0 < precision <= _MOST_DIGITS and 0 <= scale <= min(precision, _MOST_FRACTION)
            return f"decimal({precision},{scale})" if sound else None
        case "DateTime" if number == _NEW_DATE:
            return "date" if value["hour"] is None else "datetime(6)"
        case _:
            return None


def _string(number: int, *, is_text: bool) -> str | None:
    names = _STRINGS.get(number)
    return None if names is None else names[0 if is_text else 1]
