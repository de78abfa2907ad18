"""A real Canal 1.1.7 before a real MySQL 8.0: what it gives (`cases/canal.txt`), and what it does with batches and
refusals. That tables become what the server shows is in test_canal_feed.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin
from cdc_lakehouse.decoders.formats import canal_entries, canal_json
from cdc_lakehouse.decoders.formats.canal_json import lossy_columns
from cdc_lakehouse.sources.canal.client import Batch, CanalClient
from cdc_lakehouse.sources.canal.connection import CanalRedeliveryError, CanalRefusedError
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from tests.kit.case_files import Case, read_cases
from tests.servers.canal import CanalServer, StartCanal, binlog_end, canal_server, executed, flat_messages
from tests.servers.canal_reader import Reader, Writer
from tests.servers.canal_workload import STEPS, every_type
from tests.servers.mysql import MySqlServer

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def canal(binlog: MySqlServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanalServer]:
    with canal_server(tmp_path_factory.mktemp("canal"), binlog, binlog_end(binlog)) as server:
        yield server


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/canal.txt"), ids=str)
def test_rows_are_given_as_written(case: Case, canal: CanalServer, writer: Writer, update: bool) -> None:
    reader = Reader()
    with CanalClient(canal.source()) as client:
        writer.begin()
        writer.run(*case.given)
        reader.read(client, writer.mark())
    try:
        changes = reader.changes("t")
        images = [[each.op, *filter(None, (each.before, each.after))] for each in changes]
        found = [" ".join(each if isinstance(each, str) else json.dumps(each) for each in parts) for parts in images]
        assert all(each.key == ("id",) for each in changes)
    except MessageError as error:
        found = [f"error: {error}"]
    case.compare(found, update=update)


def test_entries_say_what_canals_own_messages_say(canal: CanalServer, writer: Writer) -> None:
    """Those that it makes itself for a topic, as far as they go: of each value of each type, and of DDL among rows."""
    reader = Reader()
    with CanalClient(canal.source()) as client:
        writer.begin()
        every_type(writer)
        for step in STEPS:
            writer.run(*step.split("; "))
            reader.read(client, writer.mark())
    assert {name for each in reader.changes("types") for name in lossy_columns(each)} == {"l", "g"}
    entries = [e for e in reader.entries.values() if wire.Entry.FromString(e).entry_type == wire.ROW_DATA]
    own = [_without_place(canal_entries.decode_entry(entry)) for entry in entries]
    flat = [canal_json.decode(None, value) for value in flat_messages(entries)]
    assert len(flat) == len(own) > 50
    for mine, canals in zip(own, flat, strict=True):
        if not any(isinstance(part, Ddl) for part in mine.parts):
            assert canals == mine


def _without_place(message: Message) -> Message:
    return Message(Origin(time_ms=message.origin.time_ms, gtid=message.origin.gtid), message.parts)


def test_canals_own_options_count(writer: Writer, start_canal: StartCanal) -> None:
    """Its time zone for TIMESTAMP, the whole set of GTIDs that are executed, and a filter."""
    uuid, _, last = executed(writer.mysql).partition(":1-")
    reader = Reader()
    server = start_canal(zone="Asia/Shanghai", gtids=f"{uuid}:1-{last}")
    with CanalClient(server.source(filter=r"d\.t,marks\..*")) as client:
        writer.begin()
        writer.run(
            "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL, dt DATETIME)", "CREATE TABLE left_out (a INT)",
            "INSERT INTO left_out VALUES (1)", "SET time_zone = '-05:00'",
            "INSERT INTO t VALUES (1, '2024-06-30 12:00:00', '2024-06-30 12:00:00')",
        )  # fmt: skip
        reader.read(client, writer.mark())
    (change,) = reader.changes("t")
    assert change.after == {"id": "1", "ts": "2024-07-01 01:00:00", "dt": "2024-06-30 12:00:00"}
    assert not reader.changes("left_out")
    (gtid,) = {message.origin.gtid for message in reader.messages() if change in message.parts}
    assert gtid == f"{uuid}:1-{int(last) + 6}"


def test_refusals_are_reported_without_a_secret(canal: CanalServer) -> None:
    for other, words in (
        ({"password": "wrong-secret"}, r"refuses the user: error 400, auth failed for user:reader"),
        ({"user": None, "password": None}, r"refuses the user: error 400"),
        ({"destination": "nosuch"}, r"refuses the destination nosuch: error 400"),
    ):
        with CanalClient(canal.source(**other)) as client, pytest.raises(CanalRefusedError, match=words) as caught:
            client.get()
        assert "secret" not in str(caught.value)


def test_batches_come_again_until_they_are_acknowledged(canal: CanalServer, writer: Writer) -> None:
    """Under another number, to whoever asks. An acknowledgement that the server refuses is no answer to what is asked
    next."""
    reader, other = Reader(), Reader()
    with CanalClient(canal.source()) as client:
        writer.begin()
        writer.run("CREATE TABLE t (id INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (0, 0)")
        Reader().read(client, writer.mark())
        writer.run("INSERT INTO t VALUES (1, 1)")
        first = _wait_for(client)
    with CanalClient(canal.source()) as client:
        again = _wait_for(client)
        assert again.id > first.id and again.entries[: len(first.entries)] == first.entries
        reader.keep(again.entries)
        client.ack(again)
        writer.run("UPDATE t SET n = 2 WHERE id = 1")
        client.rollback()
        taken = _wait_for(client)
        assert not set(taken.entries) & set(first.entries)
        client.rollback()
        taken = _wait_for(client)
        with CanalClient(canal.source()) as second:
            other.read(second, writer.mark())
        client.ack(taken)
        with pytest.raises(CanalRedeliveryError, match="refuses"):
            client.get(wait_seconds=0)
        writer.run("INSERT INTO t VALUES (2, 2)")
        reader.read(client, writer.mark())
    reader.entries |= other.entries
    assert sorted((each.op, *each.after.values()) for each in reader.changes("t") if each.after) == [
        ("I", "1", "1"), ("I", "2", "2"), ("U", "1", "2"),
    ]  # fmt: skip


def _wait_for(client: CanalClient) -> Batch:
    for _ in range(50):
        batch = client.get(wait_seconds=0.2)
        if batch is not None:
            return batch
    raise AssertionError("nothing came")
