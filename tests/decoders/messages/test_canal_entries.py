"""Entries made by hand, of what the captures lack."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange, TransactionEnd
from cdc_lakehouse.decoders.formats import canal_entries, canal_protobuf
from cdc_lakehouse.decoders.formats.canal_json import lossy_columns
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from cdc_lakehouse.sources.canal.wire import packets_pb2 as packets
from tests.decoders.messages.canal_records import column, entry, packet


def changes(content: bytes) -> list[RowChange]:
    return [part for part in canal_entries.decode_entry(content).parts if isinstance(part, RowChange)]


def test_the_first_byte_of_a_binlog_is_a_place() -> None:
    content = entry(wire.RowChange(event_type=wire.CREATE, sql="CREATE TABLE t (a INT)", is_ddl=True))
    assert canal_entries.decode_entry(content).origin == Origin(time_ms=5000, log_file="bin.1", log_offset=0)


KEY = column("id", "1", key=True)
NEW_KEY = column("id", "2", key=True, updated=True)
NEW_VALUE = column("v", None, updated=True, index=2)


@pytest.mark.parametrize(
    ("kind", "old", "new", "op", "before", "after"),
    [
        (wire.UPDATE, KEY, NEW_VALUE, "U", {}, {"id": "1", "v": None}),
        (wire.UPDATE, KEY, NEW_KEY, "U", {"id": "1"}, {"id": "2"}),
        (wire.DELETE, KEY, None, "D", {"id": "1"}, None),
    ],
)
def test_a_minimal_image_keeps_its_key(kind: Any, old: Any, new: Any, op: Any, before: Any, after: Any) -> None:
    """binlog_row_image=MINIMAL: before has the key, after what changed; what is left out is not NULL."""
    row = wire.RowData(before_columns=[old], after_columns=[new] if new else [])
    types = {each.name: "int(11)" for each in (old, new) if each}
    expected = RowChange("d", "t", op, before, after, types, ("id",))
    assert changes(entry(wire.RowChange(event_type=kind, row_datas=[row]))) == [expected]


def test_rows_of_one_entry_that_change_different_columns() -> None:
    """As flat messages have it: a column that an earlier row changed is in before of the later ones."""

    def row(id: str, changed: str) -> wire.RowData:
        old = {"id": id, "a": "1", "b": "1"}
        new = {**old, changed: "2"}
        return wire.RowData(
            before_columns=[column(name, text, key=name == "id") for name, text in old.items()],
            after_columns=[column(n, text, key=n == "id", updated=n == changed) for n, text in new.items()],
        )

    first, second = changes(entry(wire.RowChange(event_type=wire.UPDATE, row_datas=[row("1", "a"), row("2", "b")])))
    assert (first.before, first.after) == ({"a": "1"}, {"id": "1", "a": "2", "b": "1"})
    assert (second.before, second.after) == ({"a": "1", "b": "1"}, {"id": "2", "a": "1", "b": "2"})


def test_empty_text_is_not_null() -> None:
    row = wire.RowData(after_columns=[column("a", ""), column("b", None), wire.Column(name="c")])
    (change,) = changes(entry(wire.RowChange(event_type=wire.INSERT, row_datas=[row])))
    assert change.after == {"a": "", "b": None, "c": ""}


def test_a_ddl_has_the_database_of_its_session() -> None:
    text = "rename table a to other.b"
    change = wire.RowChange(event_type=wire.RENAME, is_ddl=True, sql=text, ddl_schema_name="mine")
    content = entry(change, schema_name="other", table_name="b")
    assert canal_entries.decode_entry(content).parts == (Ddl("mine", "b", text),)


def test_a_ddl_without_a_session_has_that_of_its_table() -> None:
    change = wire.RowChange(event_type=wire.ALTER, sql="alter table t add a int")
    assert canal_entries.decode_entry(entry(change)).parts == (Ddl("d", "t", "alter table t add a int"),)


@pytest.mark.parametrize("kind", [wire.TRANSACTION_BEGIN, wire.HEARTBEAT, wire.GTID_LOG])
def test_entries_that_carry_nothing(kind: wire.EntryType) -> None:
    assert canal_entries.decode_entry(wire.Entry(entry_type=kind).SerializeToString()) == Message(Origin())


def test_the_end_of_a_transaction() -> None:
    content = wire.Entry(header=wire.Header(gtid="u:1-3"), entry_type=wire.TRANSACTION_END).SerializeToString()
    assert canal_entries.decode_entry(content) == Message(Origin(gtid="u:1-3"), (TransactionEnd(),))


@pytest.mark.parametrize("kind", [wire.QUERY, wire.GTID, wire.XA_COMMIT, wire.MASTER_HEARTBEAT])
def test_statements_that_change_nothing_by_themselves(kind: wire.EventType) -> None:
    change = wire.RowChange(event_type=kind, sql="update t set a = 1")
    assert canal_entries.decode_entry(entry(change)).parts == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "entry of type 0"),
        (b"\xff\xff", "not an entry of Canal"),
        (b'{"data":null}', "not an entry of Canal"),
        (wire.Entry(entry_type=9).SerializeToString(), "entry of type 9"),  # pyright: ignore[reportArgumentType]
        (entry(wire.RowChange(event_type=99)), "type '99'"),  # pyright: ignore[reportArgumentType]
        (entry(wire.RowChange(event_type=wire.XA_ROLLBACK, sql="XA ROLLBACK 'x'")), "rolled back after XA PREPARE"),
        (entry(wire.RowChange(event_type=wire.UPDATE, sql="update t set a = 1")), "binlog_format=ROW"),
        (entry(wire.RowChange(event_type=wire.INSERT, row_datas=[wire.RowData()])), "binlog_row_image=FULL"),
        (wire.Entry(entry_type=wire.ROW_DATA, store_value=b"\xff").SerializeToString(), "not an entry of Canal"),
    ],
)
def test_an_entry_that_cannot_be_used(content: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        canal_entries.decode_entry(content)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "packet of type 0"),
        (b'{"data":null}', "not a packet of Canal"),
        (packet(type=packets.ACK), "packet of type 3"),
        (packet(compression=2), "compression 2"),
        (packet(body=b"\x12\xff"), "not a packet of Canal"),
        (packet(b"\xff"), "not an entry of Canal"),
    ],
)
def test_a_value_of_a_topic_that_cannot_be_used(value: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        _whole(canal_protobuf.decode(None, value))


def _whole(found: list[Message | MessageError]) -> None:
    """Raises the first error that stands in the place of an entry."""
    for each in found:
        if isinstance(each, MessageError):
            raise each


def test_a_value_of_a_topic_without_entries() -> None:
    assert canal_protobuf.decode(None, packet()) == []


def test_lossy_text_is_found_by_column() -> None:
    change = RowChange("d", "t", "U", {"a": "\ufffd", "b": None}, {"a": "x", "b": "y\ufffd", "c": "z"})
    assert lossy_columns(change) == ("b", "a")
    assert lossy_columns(RowChange("d", "t", "D", {"a": None}, None)) == ()
    assert lossy_columns(RowChange("d", "t", "I", None, {"a": "é"})) == ()


def test_an_entry_that_cannot_be_used_names_its_table() -> None:
    header = wire.Header(schema_name="d", table_name="t")
    value = wire.Entry(header=header, entry_type=wire.ROW_DATA, store_value=b"\xff").SerializeToString()
    with pytest.raises(MessageError) as caught:
        canal_entries.decode(None, value)
    assert caught.value.of == ("d", "t")
    with pytest.raises(MessageError) as caught:
        canal_entries.decode(None, b"\xff")
    assert caught.value.of is None
