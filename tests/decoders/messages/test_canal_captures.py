"""The same entries in three forms of real servers say the same. Their tables: tests/spark/test_canal_feed.py."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from cdc_lakehouse.changelog.events import Message, Origin, RowChange, TransactionEnd
from cdc_lakehouse.decoders.formats import canal_entries, canal_json
from cdc_lakehouse.decoders.formats.canal_json import lossy_columns
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from tests.canal_captures import SOURCES, capture


@cache
def from_server(source: str) -> list[Message]:
    return [canal_entries.decode_entry(entry) for entry in capture(source).entries]


def parts_of(source: str) -> list[Any]:
    return [part for message in from_server(source) for part in message.parts]


def changes_of(source: str) -> list[RowChange]:
    return [part for part in parts_of(source) if isinstance(part, RowChange)]


each_source = pytest.mark.parametrize("source", SOURCES)


# What the three forms say is the same. So the rest is read from one of them.


def as_flat(message: Message) -> Message:
    """What a flat message tells of it: nothing of its place in the binlog."""
    origin = message.origin
    return replace(message, origin=Origin(time_ms=origin.time_ms, gtid=origin.gtid))


@each_source
def test_entries_in_topics_are_those_of_the_server(source: str) -> None:
    of, entries = capture(source), from_server(source)
    topic = [message for value in of.topic_values for message in canal_entries.decode_packet(None, value)]
    assert len(entries) > 100
    # Canal's producer leaves out where transactions begin and end.
    kept = [wire.Entry.FromString(entry).entry_type == wire.ROW_DATA for entry in of.entries]
    assert topic == list(itertools.compress(entries, kept))


@each_source
def test_flat_messages_say_the_same(source: str) -> None:
    flat = [message for value in capture(source).flat_messages if (message := canal_json.decode(None, value)).parts]
    assert len(flat) > 50
    assert flat == [as_flat(m) for m in from_server(source) if m.parts not in ((), (TransactionEnd(),))]


@each_source
def test_transactions_end_as_often_as_the_source_committed(source: str) -> None:
    ends = [message for message in from_server(source) if message.parts == (TransactionEnd(),)]
    assert len(ends) == {"mysql8.0.12": 24, "mariadb10.11": 25}[source]
    # Rows are never outside of a transaction, and a DDL never within one.
    parts = parts_of(source)
    followers = {type(after) for before, after in itertools.pairwise(parts) if isinstance(before, RowChange)}
    assert followers == {RowChange, TransactionEnd} and not isinstance(parts[-1], RowChange)


@each_source
def test_text_that_is_not_utf8_is_told(source: str) -> None:
    """latin1 and gbk; nothing else of the capture is damaged."""
    damaged = {(change.table, name) for change in changes_of(source) for name in lossy_columns(change)}
    assert damaged == {("t_all", "c_latin"), ("t_all", "c_gbk")}
