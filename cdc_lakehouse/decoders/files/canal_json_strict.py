"""Strict reading of one line of Canal-JSON: slower than many together, and correct for any bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.event_schema import image_text
from cdc_lakehouse.decoders.files.canal_json_form import Event
from cdc_lakehouse.decoders.files.file_format import FileContext, commit_ts_of
from cdc_lakehouse.decoders.messages.json_object import JsonNumber, parse

_OPERATIONS: Final = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}

Image = dict[str, str | None]


def event_of(line: bytes, context: FileContext) -> Event | str:
    """Decode a line into its event, or return the problem with it: a key of `problems.PROBLEMS`."""
    try:
        message = parse(line.decode())
    except UnicodeDecodeError:
        return problems.NOT_UTF8
    except MessageError:
        return problems.NOT_JSON
    return _judged(message, context)


def lacks_commit_ts(head: bytes) -> bool:
    """Whether the first line is a message without a commit-ts. `head` is the beginning of a file that is not empty;
    False for a bad line, or one that is longer."""
    try:
        message: Any = json.loads(head.splitlines()[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and "type" in message and "_tidb" not in message


def _judged(message: Mapping[str, Any], context: FileContext) -> Event | str:
    kind, tidb = message.get("type"), message.get("_tidb")
    # The parser returns numbers as text, and no number is an operation.
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
    # A string with a number is no commit-ts.
    number = tidb.get("commitTs") if isinstance(tidb, dict) else None
    commit_ts = commit_ts_of(number, context.end_ts) if isinstance(number, JsonNumber) else None
    if commit_ts is None:
        return problems.NO_COMMIT_TS
    if (message.get("database"), message.get("table")) != (context.database, context.table):
        return problems.WRONG_TABLE
    before, after = (row, None) if op == "D" else (old, row)
    return Event(op, commit_ts, image_text(before), image_text(after))


def _only_row(rows: Any) -> Image | None:
    """Return the only row; None when there is not exactly one, or it has nested values."""
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
