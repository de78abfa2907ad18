"""Canal's flat messages, its JSON for topics: one entry a message, with one row or many.

    {"data":[{"id":"1","v":"2"}],"database":"d","es":…,"gtid":"","id":4,"isDdl":false,"mysqlType":{"id":"int(11)",…},
     "old":[{"v":"1"}],"pkNames":["id"],"sql":"","sqlType":{…},"table":"t","ts":…,"type":"UPDATE"}

Values are strings or null. `data` is an INSERT's and an UPDATE's new row, a DELETE's row; `old` an UPDATE's values of
the columns that changed, row by row beside `data`. `es` is when the source executed it, in milliseconds. A DDL has its
text in `sql`; `database` is its table's, not its session's, which a flat message does not say. Where a transaction
ends, and where in the binlog a change is, it does not say either.

Of an UPDATE with binlog_row_image=MINIMAL it has only what changed: without the key it cannot be applied. Seen of
Canal 1.1.7.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final, TypeGuard

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, Part, RowChange
from cdc_lakehouse.decoders.messages import canal_event_types
from cdc_lakehouse.decoders.messages.canal_event_types import column_name
from cdc_lakehouse.decoders.messages.options import Decode, Options, check_names

_Row = dict[str, str | None]


FORMAT: Final = "canal-json"


def decoder(options: Options) -> Decode:
    check_names(options, (), of=FORMAT)
    return decode_keyed


def decode_keyed(key: bytes | None, value: bytes | None) -> Message:
    """A flat message of a topic. Raises as `decode` does."""
    if value is None:
        raise MessageError("the message has no value", advice=_ADVICE)
    return decode(value)


def decode(value: bytes) -> Message:
    """A flat message. Raises `MessageError` when it is none, or of a type that is not known."""
    return message_of(parsed(value), value)


def parsed(value: bytes) -> dict[str, Any]:
    """The JSON object. Raises `MessageError` when it is none."""
    try:
        message: Any = json.loads(value.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise MessageError(f"not UTF-8, at byte {error.start}", advice=_ADVICE) from None
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON: {str(error)[:200]}", advice=_ADVICE) from None
    if not isinstance(message, dict):
        raise MessageError("not a JSON object", advice=_ADVICE)
    if _half_of_a_pair(value, message):
        raise MessageError("a text with half of a surrogate pair, which is no character", advice=_ADVICE)
    return message


def message_of(message: dict[str, Any], value: bytes) -> Message:
    """What the object says; `value` is its text."""
    parts = _parts(message)
    return Message(_origin(message), tuple(map(_named, parts)) if b"``" in value else parts)


def _half_of_a_pair(value: bytes, message: dict[str, Any]) -> bool:
    """JSON can escape what UTF-8 cannot say."""
    if rb"\ud" not in value.lower():
        return False
    try:
        json.dumps(message, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


_ADVICE = "see what writes it: flat messages come from Canal with flatMessage=true"


def _origin(message: dict[str, Any]) -> Origin:
    time, gtid = message.get("es"), message.get("gtid")
    return Origin(
        time_ms=time if isinstance(time, int) and not isinstance(time, bool) else None,
        gtid=gtid if isinstance(gtid, str) and gtid else None,
    )


def _parts(message: dict[str, Any]) -> tuple[Part, ...]:
    kind = message.get("type")
    if not isinstance(kind, str):
        raise _fault("type", "a text such as INSERT")
    if message.get("isDdl") is True or kind in canal_event_types.DDL:
        return (Ddl(_text(message, "database"), _text(message, "table"), _text(message, "sql")),)
    if kind in canal_event_types.SILENT:
        return ()
    if kind == "XAROLLBACK":
        raise canal_event_types.rolled_back_later()
    if kind not in canal_event_types.OPS:
        raise canal_event_types.unknown_type(kind)
    return _changes(message, kind)


def _changes(message: dict[str, Any], kind: str) -> tuple[RowChange, ...]:
    data = _rows(message, "data")
    if not data:
        raise canal_event_types.statement_instead_of_rows(kind)
    if not all(data):
        raise canal_event_types.no_columns(kind)
    op = canal_event_types.OPS[kind]
    old = _rows(message, "old") if op == "U" else []
    if old and len(old) != len(data):
        raise _fault("old", f"as many rows as data, {len(data)}")
    database, table, types, key = _text(message, "database"), _text(message, "table"), _types(message), _key(message)
    return tuple(
        RowChange(
            database=database,
            table=table,
            op=op,
            before={"I": None, "U": old[n] if old else {}, "D": row}[op],
            after=None if op == "D" else row,
            types=types,
            key=key,
        )
        for n, row in enumerate(data)
    )


def _named(part: Part) -> Part:
    """With the columns' own names: see `column_name`."""
    if not isinstance(part, RowChange):
        return part
    before, after, types = (
        None if row is None else {column_name(name): text for name, text in row.items()}
        for row in (part.before, part.after, part.types)
    )
    key = None if part.key is None else tuple(map(column_name, part.key))
    return replace(part, before=before, after=after, types=types, key=key)


def _rows(message: dict[str, Any], name: str) -> list[_Row]:
    """Empty when it is null or absent."""
    found = message.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(_is_row(row) for row in found):
        raise _fault(name, "a list of rows whose values are texts or null")
    return found


def _is_row(row: object) -> TypeGuard[_Row]:
    return isinstance(row, dict) and all(text is None or isinstance(text, str) for text in row.values())


def _types(message: dict[str, Any]) -> dict[str, str]:
    found = message.get("mysqlType")
    if found is None:
        return {}
    if not isinstance(found, dict) or not _is_row(found):
        raise _fault("mysqlType", "the types of the columns as texts")
    return {name: text for name, text in found.items() if text}


def _key(message: dict[str, Any]) -> tuple[str, ...] | None:
    if "pkNames" not in message:
        return None
    names = message["pkNames"]
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _fault("pkNames", "a list of names")
    return tuple(names)


def _text(message: dict[str, Any], name: str) -> str:
    text = message.get(name)
    if not isinstance(text, str):
        raise _fault(name, "a text")
    return text


def _fault(name: str, expected: str) -> MessageError:
    return MessageError(f"{name} is not {expected}", advice=_ADVICE)
