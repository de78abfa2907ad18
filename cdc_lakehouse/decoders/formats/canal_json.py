"""Canal's flat messages, its JSON for topics: one entry per message, with one row or many.

    {"data":[{"id":"1","v":"2"}],"database":"d","es":…,"gtid":"","id":4,"isDdl":false,"mysqlType":{"id":"int(11)",…},
     "old":[{"v":"1"}],"pkNames":["id"],"sql":"","sqlType":{…},"table":"t","ts":…,"type":"UPDATE"}

Values are strings or null. `data` is an INSERT's and an UPDATE's new row, or a DELETE's row; `old` has an UPDATE's
values of the columns that changed, row by row in the order of `data`. `es` is the time of execution at the source, in
milliseconds. A DDL has its text in `sql`; `database` is its table's, not its session's, which a flat message lacks. It
also lacks the end of a transaction, and the position in the binlog.

For an UPDATE with binlog_row_image=MINIMAL it has only what changed: without the key it cannot be applied.

Canal reads columns as UTF-8 whatever their character set is: with latin1, gbk and others, each byte that is not UTF-8
becomes U+FFFD and is lost (`lossy_columns`), even with binlog_row_metadata=FULL.

Source of the facts: messages of Canal 1.1.7 with MySQL 5.7 and 8.0 and MariaDB 10.11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, MessagePart, Origin, RowChange
from cdc_lakehouse.changelog.positions import is_time_ms
from cdc_lakehouse.decoders.format import Format, Row, present
from cdc_lakehouse.decoders.formats.canal_events import DDL, column_name, no_columns, op_of, statement_instead_of_rows
from cdc_lakehouse.decoders.json.columns import FlatColumns
from cdc_lakehouse.decoders.json.object import JsonObject, key_of, parse, types_of, utf8

_ADVICE: Final = "see what writes it: flat messages come from Canal with flatMessage=true"
_COLUMNS: Final = FlatColumns(time="/es", in_order=True, lossy=True)
_REPLACEMENT: Final = "\ufffd"


def decode(key: bytes | None, value: bytes | None) -> Message:
    """Decode a flat message. Raises MessageError when it is not one, or of an unknown type."""
    try:
        value = present(value)
        return message_of(parse(utf8(value), exact=False), value)
    except MessageError as error:
        raise error if error.advice else MessageError(error.message, of=error.of, advice=_ADVICE) from error


def lossy_columns(change: RowChange) -> tuple[str, ...]:
    """Return the names of columns whose text contains U+FFFD, before or after the change, in the order of their first
    occurrence. Text that was stored with that character looks the same, and is included."""
    rows = (row for row in (change.after, change.before) if row is not None)
    found = (name for row in rows for name, text in row.items() if text is not None and _REPLACEMENT in text)
    return tuple(dict.fromkeys(found))


FORMAT: Final = Format(
    name="canal-json",
    make=lambda options: decode,
    column_reader=lambda options: _COLUMNS,
    trailing_zeros_cut=True,
    in_table_order=True,
    lossy_columns=lossy_columns,
)


def message_of(message: JsonObject, value: bytes, commit_ts: int | None = None) -> Message:
    """Decode a message from its parsed JSON. `value` is its text in UTF-8, `commit_ts` TiDB's, if it has one.

    Raises `MessageError` when it is not a message of Canal, or of an unknown type.
    """
    parts = _parts(message)
    return Message(_origin(message, commit_ts), tuple(map(_named, parts)) if b"``" in value else parts)


def _origin(message: JsonObject, commit_ts: int | None) -> Origin:
    time, gtid = message.get("es"), message.get("gtid")
    time_ms = time if isinstance(time, int) and not isinstance(time, bool) else None
    if commit_ts is not None and time_ms is not None and not is_time_ms(time_ms):
        time_ms = None  # Beside a commit-ts it is not the clock.
    return Origin(
        time_ms=time_ms,
        gtid=gtid if isinstance(gtid, str) and gtid else None,
        commit_ts=commit_ts,
    )


def _parts(message: JsonObject) -> tuple[MessagePart, ...]:
    kind = message.get("type")
    if not isinstance(kind, str):
        raise MessageError("type is not a text such as INSERT")
    if message.get("isDdl") is True or kind in DDL:
        return (Ddl(_text(message, "database"), _text(message, "table"), _text(message, "sql")),)
    op = op_of(kind)
    return () if op is None else _changes(message, kind, op)


def _changes(message: JsonObject, kind: str, op: Literal["I", "U", "D"]) -> tuple[RowChange, ...]:
    data = _rows(message, "data")
    if not data and message.get("old"):
        raise MessageError(
            f"the {kind} has its rows in `old` and none in `data`",
            advice="have its writer put the rows into `data`, as Canal does (Flink CDC's sink up to 3.2 does not)",
        )
    if not data:
        raise statement_instead_of_rows(kind)
    if not all(data):
        raise no_columns(kind)
    old = _rows(message, "old") if op == "U" else []
    if old and len(old) != len(data):
        raise MessageError(f"old has not as many rows as data, {len(data)}")
    database, table, types, key = (
        _text(message, "database"), _text(message, "table"), types_of(message), key_of(message),
    )  # fmt: skip
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


def _named(part: MessagePart) -> MessagePart:
    """Replace column names in the part by the columns' own names: see `column_name`."""
    if not isinstance(part, RowChange):
        return part
    before, after, types = (
        None if row is None else {column_name(name): text for name, text in row.items()}
        for row in (part.before, part.after, part.types)
    )
    key = None if part.key is None else tuple(map(column_name, part.key))
    return replace(part, before=before, after=after, types=types, key=key)


def _rows(message: JsonObject, name: str) -> Sequence[Row]:
    """Return the rows in `data` or `old`; an empty list when it is null or absent."""
    found = message.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(
        isinstance(row, dict) and all(text is None or isinstance(text, str) for text in row.values()) for row in found
    ):
        raise MessageError(f"{name} is not a list of rows whose values are texts or null")
    return found


def _text(message: JsonObject, name: str) -> str:
    text = message.get(name)
    if not isinstance(text, str):
        raise MessageError(f"{name} is not a text")
    return text
