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

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType, field
from msgspec.structs import replace

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, MessagePart, Origin, RowChange
from cdc_lakehouse.changelog.positions import is_time_ms, physical_ms
from cdc_lakehouse.decoders.event_schema import image_text
from cdc_lakehouse.decoders.format import MAX_BYTES, Format, Row, RowShape, UsualRow
from cdc_lakehouse.decoders.json_object import OPS, JsonReader, whole_number

# The meaning of Canal's event types, in entries and in flat messages alike.

DDL: Final = frozenset({"CREATE", "ALTER", "ERASE", "TRUNCATE", "RENAME", "CINDEX", "DINDEX"})

_SILENT: Final = frozenset({"QUERY", "GTID", "XACOMMIT", "MHEARTBEAT"})
"""Types that carry no change unless they are DDL. QUERY is then the statement that made the rows, which are sent too:
MariaDB's annotations, or MySQL with binlog_rows_query_log_events."""

_ROLLBACK: Final = "XAROLLBACK"


def op_of(kind: str, *, has_rows: bool) -> Literal["I", "U", "D"] | None:
    """Return the op of the rows of an event type that is no DDL; None for a type that carries no change. Raises
    `MessageError` for an unknown type, for a change without rows, and for the rollback of an XA transaction, whose rows
    came from XA PREPARE on."""
    if kind == _ROLLBACK:
        raise MessageError(
            "an XA transaction was rolled back after XA PREPARE: its rows have come before, as if it had been "
            "committed",
            advice="compare the tables that it changed with the source",
        )
    if kind not in OPS and kind not in _SILENT:
        known = ", ".join(sorted({*OPS, *DDL, *_SILENT, _ROLLBACK}))
        raise MessageError(f"a message of type {kind[:40]!r}", advice=f"types known here are {known}")
    if kind in OPS and not has_rows:
        raise MessageError(
            f"a change of type {kind} without rows",
            advice="the source must write its binlog with binlog_format=ROW; this change is in its binlog alone",
        )
    return OPS.get(kind)


def column_name(text: str) -> str:
    """Return a column's own name: Canal leaves a backquote doubled, as it is in SHOW CREATE TABLE."""
    return text.replace("``", "`")


def no_columns(kind: str) -> MessageError:
    """Return the error for a row without columns."""
    return MessageError(
        f"a change of type {kind} with a row that has no columns",
        advice="the source must write its binlog with binlog_row_image=FULL",
    )


# Flat messages.

_Row = TypeVar("_Row")


class Flat(msgspec.Struct, Generic[_Row], omit_defaults=True):
    """A flat message with rows of some type. UNSET is what it leaves out."""

    type: str | UnsetType | None = UNSET
    is_ddl: bool | UnsetType | None = field(default=UNSET, name="isDdl")
    database: str | UnsetType | None = UNSET
    table: str | UnsetType | None = UNSET
    data: list[_Row] | UnsetType | None = UNSET
    old: list[_Row] | UnsetType | None = UNSET
    mysql_types: dict[str, str | None] | UnsetType | None = field(default=UNSET, name="mysqlType")
    pk_names: list[str] | UnsetType | None = field(default=UNSET, name="pkNames")
    sql: str | UnsetType | None = UNSET
    gtid: str | UnsetType | None = UNSET
    es: Any = UNSET
    extension: Any = field(default=UNSET, name="_tidb")
    id: Any = UNSET
    ts: Any = UNSET
    sql_types: Any = field(default=UNSET, name="sqlType")

    @property
    def types(self) -> Mapping[str, str]:
        """The columns' types by name, without those that are null or empty."""
        return {name: type for name, type in (self.mysql_types or {}).items() if type}

    @property
    def key(self) -> tuple[str, ...] | None:
        """The columns of the primary key: an empty tuple for null, None where the message has none."""
        return None if self.pk_names is UNSET else tuple(self.pk_names or ())


class _AnyOld(Flat[Row], omit_defaults=True):
    """A message whose `old` counts for an update alone: some writers put other rows there, with any values."""

    old: list[dict[str, Any]] | UnsetType | None = UNSET  # pyright: ignore


READER: Final = JsonReader[Flat[Row]](_AnyOld)
_REPLACEMENT: Final = "\ufffd"
_ADVICE: Final = "see what writes it: flat messages come from Canal with flatMessage=true"


def decode(value: bytes | None) -> Message:
    """Decode a flat message. Raises MessageError when it is not one, or of an unknown type."""
    try:
        message = READER.read(value)
        origin, parts = origin_of(message), parts_of(message)
    except MessageError as error:
        raise error if error.advice else MessageError(error.message, of=error.of, advice=_ADVICE) from error
    return Message(origin, tuple(map(_named, parts)) if b"``" in (value or b"") else parts)


def lossy_columns(change: RowChange) -> tuple[str, ...]:
    """Return the columns whose text contains U+FFFD, before or after the change, also where it was stored so."""
    rows = (row for row in (change.after, change.before) if row is not None)
    found = (name for row in rows for name, text in row.items() if text is not None and _REPLACEMENT in text)
    return tuple(dict.fromkeys(found))


def origin_of(message: Flat[Any], commit_ts: int | None = None) -> Origin:
    """Return the origin of a flat message; `commit_ts` is TiDB's, if it has one. Raises MessageError."""
    if commit_ts is None:
        return Origin(time_ms=whole_number(message.es, "es"), gtid=message.gtid or None)
    # Beside a commit-ts the time is not the clock: one that is none is left out.
    return Origin(time_ms=time_of(message), commit_ts=commit_ts)


def time_of(message: Flat[Any]) -> int | None:
    """Return the valid time of execution at the source, in milliseconds, written as a number; else None."""
    return message.es if type(message.es) is int and is_time_ms(message.es) else None


def parts_of(message: Flat[Row]) -> tuple[MessagePart, ...]:
    """Return the rows or the statement of a flat message. Raises MessageError for another, or an unknown type."""
    kind = message.type
    if not isinstance(kind, str):
        raise MessageError("the message does not say its type")
    if message.is_ddl or kind in DDL:
        said = {"database": message.database, "table": message.table, "sql": message.sql}
        for name, text in said.items():
            if not isinstance(text, str):
                raise MessageError(f"{name} is not a text")
        return (Ddl(*map(str, said.values())),)
    data = message.data or []
    if kind in OPS and not data and message.old:
        raise MessageError(
            f"the {kind} has its rows in `old` and none in `data`",
            advice="have its writer put the rows into `data`, as Canal does (Flink CDC's sink up to 3.2 does not)",
        )
    op = op_of(kind, has_rows=bool(data))
    if op is None:
        return ()
    if not all(data):
        raise no_columns(kind)
    nothing: list[Row | None] = [None] * len(data)
    try:
        old = msgspec.convert(message.old, list[Row]) if op == "U" and message.old else nothing
    except msgspec.ValidationError as error:
        # A long integer may have been read as either.
        where = re.sub("`(int|JsonNumber)`", "a number", str(error)).replace("`$", "`$.old")
        raise MessageError(f"the message is not written as its format says: {where}") from None
    if len(old) != len(data):
        raise MessageError(f"old has not as many rows as data, {len(data)}")
    before, after = (data, nothing) if op == "D" else (old, data)
    database, table, types, key = message.database or "", message.table or "", message.types, message.key
    return tuple([RowChange(database, table, op, before[n], after[n], types, key) for n in range(len(data))])


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


# Messages of one row that differ from one before in nothing but values and times.

_SHAPES_KEPT: Final = 10_000
_TYPES_KEPT: Final = 16
_NO_TYPES: Final = dict[str, str | None]()
_OF_TEXTS: Final = JsonReader[Flat[Row]](Flat[Row])
_TYPES: Final = JsonReader[dict[str, str | None]](dict[str, str | None])
_SQL_TYPES: Final = JsonReader[dict[str, int]](dict[str, int])


class _InOrder(Flat[Row], omit_defaults=True):
    """A message whose types, always in the same order, are texts that came before: so they are read once."""

    mysql_types: Raw | UnsetType = field(default=UNSET, name="mysqlType")  # pyright: ignore
    sql_types: Raw | UnsetType = field(default=UNSET, name="sqlType")


_IN_ORDER: Final = JsonReader[_InOrder](_InOrder)


@functools.lru_cache(512)
def _known(types: JsonReader[Any], text: bytes) -> Mapping[str, Any] | None:
    """Return types, None for those that are left to the decoder: also those that are longer than they are when they are
    written again, as what is missing in the message would not show then."""
    known = _NO_TYPES if text == b"null" else types.usual(text)
    return known if known is _NO_TYPES or len(msgspec.json.encode(known)) == len(text) else None


def _in_order(value: bytes) -> Flat[Row] | None:
    message: Any = _IN_ORDER.usual(value)
    if message is None:
        return None
    types, sql_types = message.mysql_types, message.sql_types
    if sql_types is not UNSET and _known(_SQL_TYPES, bytes(sql_types)) is None:
        return None
    message.mysql_types = _NO_TYPES if types is UNSET else _known(_TYPES, bytes(types))
    return None if message.mysql_types is None else message


class FlatRows:
    """The `RowReader` of a format. What a message is, the decoder says of the first one of its shape.

    `parts` are those of the decoder. `commit_ts` returns that of a message, or None for one that is left to the
    decoder; None where messages have only their time of execution. With `lossy` text with U+FFFD is left to the decoder
    too. With `merged` columns that an update's new row leaves out are unchanged."""

    def __init__(
        self,
        parts: Callable[[Any], Sequence[MessagePart]],
        commit_ts: Callable[[Flat[Row]], int | None] | None = None,
        *,
        lossy: bool = False,
        merged: bool = False,
    ) -> None:
        self._parts, self._lossy, self._merged = parts, lossy, merged
        self._in_order = commit_ts is None
        self._time, self._usual = (time_of, _in_order) if commit_ts is None else (commit_ts, _OF_TEXTS.usual)
        self._shapes: dict[tuple[object, ...], list[tuple[Mapping[str, str | None], RowShape | None]]] = {}

    def __call__(self, value: bytes | None) -> UsualRow | None:
        message = None if not value or b"``" in value or len(value) > MAX_BYTES else self._usual(value)
        if message is None or not message.data or len(message.data) > 1 or len(message.old or ()) > 1:
            return None
        row, old = message.data[0], message.old[0] if message.old else None
        types, key, time = message.mysql_types or _NO_TYPES, message.pk_names, self._time(message)
        if time is None:
            return None
        place = (
            message.type, message.is_ddl, message.database, message.table,
            tuple(key) if key else key is UNSET,
            tuple(row), None if old is None else tuple(old) if self._merged else True,
        )  # fmt: skip
        known = self._shapes.setdefault(place, [])
        for own, shape_of_own in known:
            # TiCDC writes types in any order.
            if own is types or (own == types and (not self._in_order or [*own] == [*types])):
                shape = shape_of_own
                break
        else:
            try:
                parts = self._parts(message)
            except MessageError:
                parts = ()
            change = parts[0] if len(parts) == 1 else None
            shape = RowShape.of(change) if isinstance(change, RowChange) else None
            if len(self._shapes) > _SHAPES_KEPT or len(known) > _TYPES_KEPT:
                self._shapes.clear()
            known.append((types, shape))
        if shape is None:  # The decoder does not make one change of it.
            return None
        if shape.op == "D":
            before, after = image_text(row), None
        else:
            before = None if shape.op == "I" else image_text(old)
            after = image_text({**old, **row} if old and self._merged else row)
        if self._lossy and (_REPLACEMENT in (before or "") or _REPLACEMENT in (after or "")):
            return None
        if self._in_order:
            return UsualRow(shape, None, time, before, after)
        return UsualRow(shape, time, physical_ms(time), before, after)


FORMAT: Final = Format(
    make=lambda options: decode,
    trailing_zeros_cut=True,
    in_table_order=True,
    lossy_columns=lossy_columns,
    row_reader=lambda options: FlatRows(parts_of, lossy=True),
)
