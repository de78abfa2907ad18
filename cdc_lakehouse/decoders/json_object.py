"""The strict reading of flat JSON, a file's line or a topic's message, whose values are one level deep or a list of
rows: all text is Unicode, numbers keep their digits, errors are MessageError, and duplicate names too.

>>> parse('{"seq": 1, "value": 1.10}')
{'seq': 1, 'value': JsonNumber(text='1.10')}
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Never, TypeVar

import msgspec
from msgspec import UNSET

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders.format import Row, present, shown
from cdc_lakehouse.sources import read_json

JsonObject = dict[str, Any]  # Values are None, bool, str, int, JsonNumber, lists and further objects.

OPS: Final[dict[str, Literal["I", "U", "D"]]] = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}
"""Names of operations in flat messages."""

_MAX_INTEGER: Final = (1 << 63) - 1
_DIGITS: Final = re.compile("[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class JsonNumber:
    """A number as it is written in the JSON text, where that is not as Python writes an integer."""

    text: str


class NotJsonError(MessageError):
    """A message is not one valid JSON object."""


def read_message(value: bytes | None) -> JsonObject:
    """Parse a line or message. Raises MessageError where there is none, or it is not one JSON object (see `parse`)."""
    return parse(present(value))


_encode: Final = msgspec.json.Encoder().encode
_Read = TypeVar("_Read")


class JsonReader(Generic[_Read]):
    """Reads JSON objects as a type, in a fifth of the time of `parse`.

    `msgspec` takes the last one of equal names, and leaves out what the type does not have. What it has read is never
    longer when it is written again: so where it is as long as the text without spaces, nothing is missing. All others
    are what `parse` makes of them. Text that a type keeps as it was (`Raw`) is not checked."""

    def __init__(self, type: Any) -> None:
        self._type = type
        self._usual = msgspec.json.Decoder(type, float_hook=_refused)

    def usual(self, text: bytes) -> _Read | None:
        """Return the object where it is valid and of the type, with no other names; else None."""
        try:
            read = self._usual.decode(text)
            size = len(_encode(read))
            if size == len(text):
                return read
            if rb"\u00" in text and rb"\\u" not in text:
                for escape, short in _LONG.items():
                    text = text.replace(escape, short)
            return read if size == len(msgspec.json.format(text, indent=-1)) else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def read(self, value: bytes | None) -> _Read:
        """Return the object. Raises MessageError as `parse` does, and where it is not of the type."""
        text = present(value)
        if (read := self.usual(text)) is not None:
            return read
        parsed = parse(text)
        try:
            return msgspec.convert(parsed, self._type)
        except msgspec.ValidationError as error:
            raise MessageError(f"the message is not written as its format says: {error}") from None


def _refused(number: str) -> Never:
    """Refuse NaN and its like; in a `JsonReader` also a number whose digits might be written in another way."""
    raise ValueError(f"{number} is no JSON number")


_LONG: Final = {rb"\u003c": b"<", rb"\u003e": b">", rb"\u0026": b"&", rb"\u0008": rb"\b", rb"\u000c": rb"\f"}
"""What Go escapes for HTML, and what it writes in the long way: all that it need not."""


def parse(text: bytes | str, what: str = "the message") -> JsonObject:
    """Parse a JSON object; `what` names it in errors. Raises MessageError for text that is not UTF-8 or not a JSON
    object, has a name twice in an object, or half of a surrogate pair."""
    try:
        text = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        raise NotJsonError(f"{what} is not UTF-8: see byte {error.start}") from error
    return read_json(
        text, what, NotJsonError, object_pairs_hook=_unique, parse_float=JsonNumber, parse_constant=_refused,
        parse_int=lambda digits: JsonNumber(digits) if digits == "-0" or len(digits) > 20 else int(digits),
    )  # fmt: skip


def part_of(parsed: JsonObject, name: str, kind: type[_Read]) -> _Read | None:
    """Return the text or object of that name, None where there is none. Raises MessageError for anything else."""
    value = parsed.get(name)
    if value is None or isinstance(value, kind):
        return value
    raise MessageError(f"{name} is not {'text' if kind is str else 'an object'}")


def whole_number(value: object, name: str) -> int | None:
    """Return a whole number, 0 to 2^63 - 1, written as a number or as text; None for none. Raises MessageError for
    anything else; `name` is that of the value."""
    if value is None or value is UNSET:
        return None
    number = int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value
    if type(number) is not int or not 0 <= number <= _MAX_INTEGER:
        raise MessageError(f"{name} is not a whole number of at most 63 bits")
    return number


def row_of(columns: JsonObject) -> Row:
    """Return a row's values as text: a number as it is written, true as 1. Raises MessageError for a list or object."""
    row: Row = {}
    for name, value in columns.items():
        match value:
            case None:
                row[name] = None
            case bool():
                row[name] = "1" if value else "0"
            case str() | int():
                row[name] = str(value)
            case JsonNumber():
                row[name] = value.text
            case _:
                raise MessageError(f"the value of column {shown(name)} is a list or an object, not text")
    return row


def _unique(pairs: list[tuple[str, object]]) -> JsonObject:
    """Build the object of these names and values. Raises MessageError for a duplicate name."""
    parsed = dict(pairs)
    if len(parsed) == len(pairs):
        return parsed
    twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    raise NotJsonError(f"an object has the name {shown(twice)} twice: which of its values holds is not known")
