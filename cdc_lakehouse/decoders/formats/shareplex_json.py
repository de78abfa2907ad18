"""Messages of Alibaba DTS in its Shareplex JSON: one operation per message.

    {"meta":{"op":"upd","table":"owner.table","time":"2024-03-05T09:10:11","scn":"20480004711","seq":3,"size":7,
             "idx":"3/7","trans":"3.1.20","rowid":"AAAQ01AAEAAB7cAAAK","userid":9,"posttime":…},
     "data":{"V":"2"},"key":{"ID":"1","V":"1"}}

- ins: `data` is the row. del: `data` is the row, or its key.
- upd: `data` holds the changed columns, `key` what identifies the row, and what the changed columns were. The new row
  is `data` and the columns of `key` that are not NULL: which of them are the table's key is not said, and a NULL there
  may be a value that was not sent. Columns that are left out keep their value.
- UPDATE BEFORE and UPDATE AFTER are the halves of one update, in two messages; see `UpdatePairing`.
- TRUNCATE empties the table. DROP COLUMN drops the columns that are named in `data`, or in `key` where `data` names
  none; the documentation does not show one.
- `scn` is one for a transaction, `seq` counts its operations from 1. Together they are the order, so `Origin` has
  them as file and offset: `log_file` the scn, with zeros before it so that it compares as text, `log_offset` the seq.
  An scn is no commit-ts of TiDB.
- `size` is how many operations the transaction has in the source. Those of tables that the task leaves out are not
  sent, so it does not tell when a transaction is whole, and no part says so.
- `time` is UTC. The names of operations are short in the documentation's samples and long in its table: both are read,
  in any case. Types and keys are not said.

Source of the facts: Alibaba Cloud, Data Transmission Service, "Data formats of a Kafka cluster".
"""

from __future__ import annotations

import datetime
import re
from typing import Final

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, MessagePart, Origin, RowChange
from cdc_lakehouse.changelog.schema import TableName, quoted
from cdc_lakehouse.decoders.format import Format, Redelivery, Row, present, shown, sized
from cdc_lakehouse.decoders.json_object import JsonObject, part_of, read_message, row_of, whole_number

_LONG_NAMES: Final = {"ins": "insert", "upd": "update", "del": "delete"}
_OPERATIONS: Final = ("insert", "update", "delete", "truncate", "drop column", "update before", "update after")
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z?", re.ASCII)
_INDEX: Final = re.compile(r"(\d{1,18})/\d{1,18}", re.ASCII)


def decode(value: bytes | None) -> Message:
    """Decode an operation. Raises MessageError.

    Half of an update is a change U without its other half: `after` of an UPDATE BEFORE is None, and `before` of an
    UPDATE AFTER. It must not be applied before `UpdatePairing` has joined the two.
    """
    message = read_message(sized(present(value)))
    meta = part_of(message, "meta", dict)
    if meta is None:
        raise MessageError(
            "the message has no meta", advice="see that the DTS task writes Shareplex Json to this topic"
        )
    name = part_of(meta, "table", str) or ""
    database, _, table = name.partition(".")
    if not database or not table:
        raise MessageError(f"the table {shown(name)} is not written as owner.table")
    try:
        return Message(_origin(meta), (_part(message, meta, database, table),))
    except MessageError as error:
        raise error.within(database, table) from error


def _image_after(changed: Row, known: Row) -> Row:
    """Return the row after an update: the changed columns, and those known from before that are not NULL."""
    return {**{name: value for name, value in known.items() if value is not None}, **changed}


FORMAT: Final = Format(
    make=lambda options: decode, redelivery=Redelivery(messages_before=20_000), joined_update=_image_after
)


def _part(message: JsonObject, meta: JsonObject, database: str, table: str) -> MessagePart:
    written = part_of(meta, "op", str) or ""
    name = " ".join(written.lower().split())
    operation = _LONG_NAMES.get(name, name)
    if operation not in _OPERATIONS:
        raise MessageError(f"the op {shown(written)} is none of {', '.join((*_LONG_NAMES, *_OPERATIONS))}")
    data, key = (row_of(part_of(message, name, dict) or {}) for name in ("data", "key"))
    match operation:
        case "insert" if data:
            return RowChange(database, table, "I", None, data)
        case "update" if data and key:
            return RowChange(database, table, "U", key, _image_after(data, key))
        case "delete" if data or key:
            return RowChange(database, table, "D", {**key, **data}, None)
        case "update before" if data or key:
            return RowChange(database, table, "U", {**key, **data}, None)
        case "update after" if data:
            return RowChange(database, table, "U", None, data)
        case "truncate":
            return Ddl(database, table, f"TRUNCATE TABLE {TableName(database, table).quoted}")
        case "drop column" if data or key:
            drops = ", ".join(f"DROP COLUMN {quoted(name)}" for name in data or key)
            return Ddl(database, table, f"ALTER TABLE {TableName(database, table).quoted} {drops}")
        case _:
            raise MessageError(f"the operation {operation} lacks what it needs: data, or for an update data and key")


def _origin(meta: JsonObject) -> Origin:
    scn, seq = whole_number(meta.get("scn"), "scn"), whole_number(meta.get("seq"), "seq")
    index = _INDEX.fullmatch(part_of(meta, "idx", str) or "")
    if seq is None and index is not None:
        seq = int(index[1])
    time_ms, time = None, part_of(meta, "time", str)
    if time:
        found = _TIME.fullmatch(time)
        try:
            if found is None:
                raise ValueError("another form")
            moment = datetime.datetime.fromisoformat(f"{found[1]}+00:00")
        except ValueError as error:
            raise MessageError(f"the time {shown(time)} is not written as 2024-03-05T09:10:11Z") from error
        time_ms = int(moment.timestamp()) * 1000 + int((found[2] or "0").ljust(3, "0")[:3])
    return Origin(
        time_ms=time_ms, log_file=None if scn is None else f"{scn:020d}", log_offset=None if scn is None else seq
    )
