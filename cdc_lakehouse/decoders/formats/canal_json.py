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
from cdc_lakehouse.decoders.format import Format, Row
from cdc_lakehouse.decoders.json.columns import OPS, FlatColumns
from cdc_lakehouse.decoders.json.object import (
    JsonNumber,
    JsonObject,
    integer_of,
    is_ddl,
    is_text,
    key_of,
    read_message,
    text_of,
    types_of,
)

# The meaning of Canal's event types, in entries and in flat messages alike.

DDL: Final = frozenset({"CREATE", "ALTER", "ERASE", "TRUNCATE", "RENAME", "CINDEX", "DINDEX"})

_SILENT: Final = frozenset({"QUERY", "GTID", "XACOMMIT", "MHEARTBEAT"})
"""Types that carry no change unless they are DDL. QUERY is then the statement that made the rows, which are sent too:
MariaDB's annotations, or MySQL with binlog_rows_query_log_events."""

_ROLLBACK: Final = "XAROLLBACK"


def op_of(kind: str) -> Literal["I", "U", "D"] | None:
    """Return the op of the rows of an event type that is no DDL; None for a type that carries no change.

    Raises `MessageError` for an unknown type, and for the rollback of an XA transaction: its rows are in the binlog
    from XA PREPARE on, and so came before.
    """
    if kind == _ROLLBACK:
        raise MessageError(
            "an XA transaction was rolled back after XA PREPARE: its rows have come before, as if it had been "
            "committed",
            advice="compare the tables that it changed with the source",
        )
    if kind not in OPS and kind not in _SILENT:
        known = ", ".join(sorted({*OPS, *DDL, *_SILENT, _ROLLBACK}))
        raise MessageError(f"a message of type {kind[:40]!r}", advice=f"types known here are {known}")
    return OPS.get(kind)


def column_name(text: str) -> str:
    """Return a column's own name. Canal takes names from SHOW CREATE TABLE and leaves a backquote doubled, as it is
    there."""
    return text.replace("``", "`")


def statement_instead_of_rows(kind: str) -> MessageError:
    """Return the error for a change without rows."""
    return MessageError(
        f"a change of type {kind} without rows",
        advice="the source must write its binlog with binlog_format=ROW; this change is in its binlog alone",
    )


def no_columns(kind: str) -> MessageError:
    """Return the error for a row without columns."""
    return MessageError(
        f"a change of type {kind} with a row that has no columns",
        advice="the source must write its binlog with binlog_row_image=FULL",
    )


# Flat messages.

_ADVICE: Final = "see what writes it: flat messages come from Canal with flatMessage=true"
_COLUMNS: Final = FlatColumns(time="/es", in_order=True, lossy=True)
_REPLACEMENT: Final = "\ufffd"


def decode(key: bytes | None, value: bytes | None) -> Message:
    """Decode a flat message. Raises MessageError when it is not one, or of an unknown type."""
    try:
        message = read_message(value)
        origin, parts = origin_of(message), parts_of(message)
    except MessageError as error:
        raise error if error.advice else MessageError(error.message, of=error.of, advice=_ADVICE) from error
    return Message(origin, tuple(map(_named, parts)) if b"``" in (value or b"") else parts)


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


def origin_of(message: JsonObject, commit_ts: int | None = None) -> Origin:
    """Return the origin of a flat message; `commit_ts` is TiDB's, if it has one. Raises MessageError."""
    if commit_ts is None:
        return Origin(time_ms=integer_of(message, "es"), gtid=text_of(message, "gtid") or None)
    # Beside a commit-ts the time is not the clock: one that is none is left out.
    time = message.get("es")
    time_ms = int(time) if isinstance(time, JsonNumber) and len(time) < 20 and time.isdigit() else None
    return Origin(time_ms=time_ms if time_ms is not None and is_time_ms(time_ms) else None, commit_ts=commit_ts)


def parts_of(message: JsonObject) -> tuple[MessagePart, ...]:
    """Return the rows or the statement of a flat message. Raises MessageError when it is not one, or of an unknown
    type."""
    kind = message.get("type")
    if not is_text(kind):
        raise MessageError("type is not a text such as INSERT")
    if is_ddl(message) or kind in DDL:
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
            before=row if op == "D" else old[n] if old else None,
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
        isinstance(row, dict) and all(text is None or is_text(text) for text in row.values()) for row in found
    ):
        raise MessageError(f"{name} is not a list of rows whose values are texts or null")
    return found


def _text(message: JsonObject, name: str) -> str:
    text = message.get(name)
    if not is_text(text):
        raise MessageError(f"{name} is not a text")
    return text
