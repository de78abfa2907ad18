"""One line of Canal-JSON, read strictly: slower than many together, and right on any bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.event_schema import image_text
from cdc_lakehouse.decoders.files.file_format import FileContext

_OPERATIONS: Final = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}
_COMMIT_TS: Final = re.compile("[1-9][0-9]{0,18}")
_MAX_COMMIT_TS: Final = (1 << 63) - 1

Image = dict[str, str | None]


class Event(NamedTuple):
    op: str
    commit_ts: int
    before: str | None
    after: str | None


class _Number(str):
    """The text of a number."""

    __slots__ = ()


def event_of(line: bytes, context: FileContext) -> Event | str:
    """The event of a line, or what is wrong with it: a key of `problems.PROBLEMS`."""
    try:
        message = _parsed(line.decode())
    except UnicodeDecodeError:
        return problems.NOT_UTF8
    except (ValueError, RecursionError):
        return problems.NOT_JSON
    if not isinstance(message, dict):
        return problems.NOT_JSON
    return _judged(message, context)


def _parsed(text: str) -> Any:
    """Raises ValueError for what is not JSON, and for what readers of JSON differ about: a name that an object has
    twice, and half of a surrogate pair."""
    parsed = _DECODER.decode(text)
    if "\\u" in text:
        json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name that is there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant
)


def _judged(message: Mapping[str, Any], context: FileContext) -> Event | str:
    kind, tidb = message.get("type"), message.get("_tidb")
    # A number is a text here, and no operation.
    op = _OPERATIONS.get(kind) if isinstance(kind, str) else None
    if op is None or message.get("isDdl") not in (None, False):
        return problems.NOT_A_ROW_CHANGE
    row, old = _only_row(message.get("data")), None
    if op == "U" and message.get("old") not in (None, []):
        old = _only_row(message["old"])
        if old is None:
            return problems.NO_ROW
    if row is None:
        return problems.NO_ROW
    commit_ts = _commit_ts(tidb.get("commitTs")) if isinstance(tidb, dict) else None
    if commit_ts is None:
        return problems.NO_COMMIT_TS
    if (message.get("database"), message.get("table")) != (context.database, context.table):
        return problems.WRONG_TABLE
    before, after = (row, None) if op == "D" else (old, row)
    return Event(op, commit_ts, image_text(before), image_text(after))


def _only_row(rows: Any) -> Image | None:
    """None when there is not one row, or its values are more than texts."""
    match rows:
        case [dict() as row] if not any(isinstance(value, dict | list) for value in row.values()):
            return {name: _text(value) for name, value in row.items()}
        case _:
            return None


def _text(value: str | bool | None) -> str | None:
    match value:
        case bool():
            return "true" if value else "false"
        case _:
            return None if value is None else str(value)


def _commit_ts(value: Any) -> int | None:
    """None when it is not a positive number of 63 bits."""
    if not isinstance(value, _Number) or not _COMMIT_TS.fullmatch(value):
        return None
    number = int(value)
    return number if number <= _MAX_COMMIT_TS else None
