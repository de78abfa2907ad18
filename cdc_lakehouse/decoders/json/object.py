"""The strict reading of flat JSON, a file's line or a topic's message, whose values are one level deep or a list of
rows: all text is Unicode, numbers keep their digits, errors are MessageError, and duplicate names too.

>>> parse('{"seq": 1, "value": 1.10}')
{'seq': '1', 'value': '1.10'}
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final, Never, TypeGuard

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders.format import Row, present, shown
from cdc_lakehouse.sources import read_json

JsonObject = dict[str, Any]
"""Values are None, bool, str, JsonNumber, lists and further objects."""

_MAX_INTEGER: Final = (1 << 63) - 1
_DIGITS: Final = re.compile("[0-9]{1,19}")


class JsonNumber(str):
    """A number, as it is written in the JSON text."""

    __slots__ = ()


def read_message(value: bytes | None) -> JsonObject:
    """Parse a line or message. Raises MessageError where there is none, or it is not one JSON object (see `parse`)."""
    return parse(utf8(present(value)))


def utf8(value: bytes) -> str:
    """Decode a message's bytes. Raises MessageError where they are not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MessageError(f"the message is not UTF-8: see byte {error.start}") from error


def parse(text: str, what: str = "the message") -> JsonObject:
    """Parse a JSON object; `what` names it in errors.

    Raises MessageError for text that is not a JSON object, has a name twice in an object, or half of a surrogate pair.
    """
    numbers = {"parse_int": JsonNumber, "parse_float": JsonNumber, "parse_constant": _no_constant}
    return read_json(text, what, object_pairs_hook=unique, **numbers)


def text_of(parsed: JsonObject, name: str) -> str | None:
    """Return the text of that name, None where there is none. Raises MessageError where it is not text."""
    value = parsed.get(name)
    if value is None or is_text(value):
        return value
    raise MessageError(f"{name} is not text")


def integer_of(parsed: JsonObject, name: str) -> int | None:
    """Return the whole number of that name, 0 to 2^63 - 1, written as a number or as text; None
    where there is none. Raises MessageError for anything else."""
    value = parsed.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not _DIGITS.fullmatch(value) or int(value) > _MAX_INTEGER:
        raise MessageError(f"{name} is not a whole number of at most 63 bits")
    return int(value)


def object_of(parsed: JsonObject, name: str) -> JsonObject | None:
    """Return the object of that name, None where there is none. Raises MessageError for anything else."""
    value = parsed.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise MessageError(f"{name} is not an object")


def is_ddl(parsed: JsonObject) -> bool:
    """Return `isDdl`, False where there is none. Raises MessageError for anything else than true and false."""
    value = parsed.get("isDdl")
    if value is None or isinstance(value, bool):
        return bool(value)
    raise MessageError("isDdl is neither true nor false")


def row_of(columns: JsonObject) -> Row:
    """Return a row's values by column, as text: a number as it is written, true as 1. Raises MessageError for a value
    that is a list or an object."""
    return {name: _value(value, name) for name, value in columns.items()}


def types_of(parsed: JsonObject) -> dict[str, str]:
    """Return `mysqlType`, the columns' types by name, without those that are null or empty. Raises MessageError where
    one is not text."""
    types = object_of(parsed, "mysqlType") or {}
    if not all(type is None or is_text(type) for type in types.values()):
        raise MessageError("mysqlType has a type that is not text")
    return {name: type for name, type in types.items() if type}


def key_of(parsed: JsonObject) -> tuple[str, ...] | None:
    """Return `pkNames`, the columns of the primary key: an empty tuple for null, None where the message has none.
    Raises MessageError where it is not a list of names."""
    if "pkNames" not in parsed:
        return None
    names = parsed["pkNames"]
    if names is None:
        return ()
    if not isinstance(names, list) or not all(map(is_text, names)):
        raise MessageError("pkNames is no list of names")
    return tuple(names)


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value of an object is text, and not the digits of a number."""
    return isinstance(value, str) and not isinstance(value, JsonNumber)


def _value(value: object, name: str) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "1" if value else "0"
        case str():
            return str(value)
        case _:
            raise MessageError(f"the value of column {shown(name)} is a list or an object, not text")


def unique(pairs: list[tuple[str, object]]) -> JsonObject:
    """Build the object of these names and values. Raises MessageError for a duplicate name."""
    parsed = dict(pairs)
    if len(parsed) == len(pairs):
        return parsed
    twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    raise MessageError(f"an object has the name {shown(twice)} twice: which of its values holds is not known")


def _no_constant(word: str) -> Never:
    raise ValueError(f"{word} is no JSON number")
