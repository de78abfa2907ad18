"""Entries of a Canal server: each is one event of the binlog, with one row or many.

An entry is a protobuf message (`sources.canal.wire`). ROW_DATA holds the rows of an event or a DDL statement; an INSERT
has `after` columns, a DELETE `before`, an UPDATE both, where `after` marks what changed. TRANSACTION_END ends a
transaction; a transaction may be split anywhere over batches. MariaDB sends no TRANSACTION_BEGIN.

Values are the texts of Canal's flat messages, and not always as SELECT prints them (docs/canal.md). The header's
database is the table's; the statement's session has another where a DDL names the database. RENAME's header has the new
name; `DROP TABLE a, b` is one entry, for `a`: the text decides. With binlog_row_image=MINIMAL an UPDATE's `after` lacks
unchanged columns, and `before` has the key.

In topics with flatMessage=false (format canal-protobuf) a value is a Packet of type MESSAGES whose body is a Messages:
the number of Canal's batch and its entries, as a server sends them. Canal sends unacknowledged entries again; with
MariaDB an entry's position may name an earlier binlog file.

Source of the facts: a server of Canal 1.1.7, and its messages in topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal

from google.protobuf.message import DecodeError

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, MessagePart, Origin, RowChange, TransactionEnd
from cdc_lakehouse.decoders.format import Format, Redelivery, present
from cdc_lakehouse.decoders.formats import canal_json
from cdc_lakehouse.decoders.formats.canal_json import DDL, column_name, no_columns, op_of
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from cdc_lakehouse.sources.canal.wire import packets_pb2 as packets

_FLAT_NAMES: Final = {
    "CREATE_INDEX": "CINDEX", "DROP_INDEX": "DINDEX", "MASTER_HEARTBEAT": "MHEARTBEAT", "XA_COMMIT": "XACOMMIT",
    "XA_ROLLBACK": "XAROLLBACK",
}  # fmt: skip
_KINDS: Final = {number: _FLAT_NAMES.get(name, name) for name, number in wire.EventType.items() if number}
"""The names of event types in flat messages."""


def decode(value: bytes | None) -> Message:
    """Decode an entry as the server sends it. Raises `MessageError` when it is not an entry, or of an unknown kind."""
    header = None
    try:
        entry = wire.Entry.FromString(value or b"")
        header = entry.header
        origin = Origin(
            time_ms=header.execute_time if header.HasField("execute_time") else None,
            log_file=header.logfile_name or None,
            log_offset=header.logfile_offset if header.HasField("logfile_offset") else None,
            gtid=header.gtid or None,
        )
        return Message(origin, tuple(_parts(entry)))
    except DecodeError as error:
        found = MessageError(f"not an entry of Canal: {error}", advice="see what writes it, and whether it came whole")
    except MessageError as error:
        found = error
    raise found.within(header.schema_name, header.table_name or None) if header and header.schema_name else found


def _parts(entry: wire.Entry) -> Iterator[MessagePart]:
    header = entry.header
    match entry.entry_type:
        case wire.ROW_DATA:
            change = wire.RowChange.FromString(entry.store_value)
            kind = _KINDS.get(change.event_type, str(int(change.event_type)))
            if change.is_ddl or kind in DDL:
                yield Ddl(change.ddl_schema_name or header.schema_name, header.table_name, change.sql)
            elif (op := op_of(kind, has_rows=bool(change.row_datas))) is not None:
                yield from _rows(header, kind, op, change)
        case wire.TRANSACTION_END:
            yield TransactionEnd()
        case wire.TRANSACTION_BEGIN | wire.HEARTBEAT | wire.GTID_LOG:
            pass
        case other:
            raise MessageError(
                f"an entry of type {int(other)}",
                advice="it is no entry of Canal, or of a later version: types known here are 1 to 5",
            )


def _rows(header: wire.Header, kind: str, op: Literal["I", "U", "D"], change: wire.RowChange) -> Iterator[RowChange]:
    # The columns of both images, one for each name, in the table's order.
    images = change.row_datas[0].before_columns, change.row_datas[0].after_columns
    by_name = {column.name: column for columns in images for column in columns}
    columns = sorted(by_name.values(), key=lambda column: column.index)
    types = {column_name(column.name): column.mysql_type for column in columns if column.mysql_type}
    key = tuple(column_name(column.name) for column in columns if column.is_key)
    changed: set[str] = set()
    for row in change.row_datas:
        before, after = (
            {column_name(column.name): None if column.is_null else column.value for column in columns}
            for columns in (row.before_columns, row.after_columns)
        )
        if op == "U":
            # The set grows from row to row, as in flat messages: an extra column has the same value before and after.
            changed.update(column_name(column.name) for column in row.after_columns if column.updated)
            # A column that the image after the change leaves out has not changed.
            before, after = {name: text for name, text in before.items() if name in changed}, {**before, **after}
        if not (before if op == "D" else after):
            raise no_columns(kind)
        images = None if op == "I" else before, None if op == "D" else after
        yield RowChange(header.schema_name, header.table_name, op, *images, types, key)


# Values of topics with several entries.


def decode_packet(value: bytes | None) -> list[Message | MessageError]:
    """Decode the entries of a message, with an error for one that cannot be used. Raises MessageError."""
    try:
        packet = packets.Packet.FromString(present(value))
        if packet.type != packets.MESSAGES:
            raise MessageError(
                f"a packet of type {int(packet.type)} instead of Canal's messages",
                advice="see what writes it: with flatMessage=true the protocol is canal-json",
            )
        if packet.compression not in (0, 1):
            raise MessageError(f"a packet with compression {packet.compression}", advice="none is known to be in use")
        entries = packets.Messages.FromString(packet.body).messages
    except DecodeError as error:
        raise MessageError(
            f"not a packet of Canal: {error}", advice="see what writes it: with flatMessage=true it is JSON"
        ) from None
    found = list[Message | MessageError]()
    for entry in entries:
        try:
            found.append(decode(entry))
        except MessageError as error:
            found.append(error)
    return found


FORMAT: Final[Format] = replace(
    canal_json.FORMAT, make=lambda options: decode, row_reader=lambda options: None, transactions="all"
)
PROTOBUF: Final = replace(
    FORMAT,
    make=lambda options: decode_packet,
    transactions="none",
    # A message has many entries, each with its own position.
    redelivery=Redelivery(messages_before=1000, stale_positions=True),
)
