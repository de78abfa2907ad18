"""Messages of Alibaba DTS in its Canal JSON.

    {"type":"UPDATE","database":"d","table":"t","isDdl":false,"pkNames":["id"],"es":1709629811000,"ts":…,"id":6,
     "mysqlType":{"id":"bigint",…},"sqlType":{…},"sql":"","data":[{"id":"1","v":"2"}],"old":[{"v":"1"}],"gtid":…}

A message has the rows of one statement's event. `es` is the time of execution at the source, in milliseconds.
`mysqlType` has no lengths, digits or labels. A DDL has `isDdl` true, `type` DDL and its statement in `sql`. Rows of the
full load have the type INIT. Null fields may be left out.

Tasks created before 2022-03-20, and not restarted since, have `data` and `old` exchanged: for an UPDATE `data` is the
row before and `old` the row after, by default with all columns; for a DELETE the row is in `old`. An UPDATE does not
show which it is, so the option is needed. The row of an INSERT, INIT or DELETE is in the one that
is present.

Source of the facts: Alibaba Cloud, Data Transmission Service, "Data formats of a Kafka cluster".
"""

from __future__ import annotations

import functools
from typing import Final, Literal

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, MessagePart, RowChange
from cdc_lakehouse.decoders.format import Format, Row, present, shown, sized
from cdc_lakehouse.decoders.formats.canal_json import Flat, FlatRows, origin_of
from cdc_lakehouse.decoders.json_object import OPS, JsonObject, JsonReader, row_of

_Message = Flat[JsonObject | None]
_READER: Final = JsonReader[_Message](_Message)
_OPS: Final[dict[str, Literal["I", "U", "D"]]] = {**OPS, "INIT": "I"}


def _decode(swapped: bool, value: bytes | None) -> Message:
    message = _READER.read(sized(present(value)))
    return Message(origin_of(message), _parts(swapped, message), _option_conflict(message, swapped))


def _option_conflict(message: _Message, swapped: bool) -> str | None:
    """Return why the option cannot be right for this message, None where the message does not show it. Only messages
    with one row image do: a DELETE with its row in the wrong one, an INSERT with its row in `old`. With the wrong
    option every UPDATE is undone and none is refused."""
    op = None if message.is_ddl else _OPS.get(message.type or "")
    data, old = (any(row is not None for row in rows or ()) for rows in (message.data, message.old))
    if op is None or op == "U" or data == old:
        return None
    if old and not swapped:
        return f"a row of {message.type} is in old: the task is of before 2022-03-20, set before_2022_03_20"
    if data and swapped and op == "D":
        return "a row of DELETE is in data: the task is of 2022-03-20 or later, do not set before_2022_03_20"
    return None


def _parts(swapped: bool, message: _Message) -> tuple[MessagePart, ...]:
    database, table, type = message.database or "", message.table or "", message.type or ""
    if message.is_ddl or type == "DDL":
        if not message.sql:
            raise MessageError("a DDL has no statement")
        return (Ddl(database, table, message.sql),)
    for name, text in (("database", database), ("table", table), ("type", type)):
        if not text:
            raise MessageError(f"the message does not say its {name}")
    op = _OPS.get(type)
    if op is None:
        raise MessageError(f"the type {shown(type)} is none of {', '.join(_OPS)} and DDL")
    try:
        images = _images(op, message, swapped)
    except MessageError as error:
        raise error.within(database, table) from error
    types, key = message.types, message.key
    return tuple(RowChange(database, table, op, before, after, types, key) for before, after in images)


def _images(op: Literal["I", "U", "D"], message: _Message, swapped: bool) -> list[tuple[Row | None, Row | None]]:
    """Return each row before and after the change."""
    # None where there is no such list, or no row in it.
    data, old = (
        [row and row_of(row) for row in rows] if rows and any(row is not None for row in rows) else None
        for rows in (message.data, message.old)
    )
    if op != "U":
        if data is not None and old is not None:
            raise MessageError("both data and old have rows: which of them is the row is not known")
        rows = data if data is not None else old
        if not rows or not all(rows):
            raise MessageError("a change has no row, or one without columns")
        return [(row, None) if op == "D" else (None, row) for row in rows]
    after, before = (old, data) if swapped else (data, old)
    if not after or not all(after):
        raise MessageError("an UPDATE has no new row, or one without columns")
    if before is None:
        return [(None, row) for row in after]
    if len(before) != len(after):
        raise MessageError(f"an UPDATE has {len(after)} new rows for {len(before)} old ones")
    # Either may have the changed columns only. A column that the new row leaves out is unchanged.
    return [(old, {**(old or {}), **(new or {})}) for old, new in zip(before, after, strict=True)]


FORMAT: Final = Format(
    make=lambda options: functools.partial(_decode, options.before_2022_03_20),
    row_reader=lambda options: (
        None if options.before_2022_03_20 else FlatRows(functools.partial(_parts, False), merged=True)
    ),
    # The vendor's documents do not say whether values are labels or numbers.
    labels="uncertain",
    can_contradict_options=True,
)
