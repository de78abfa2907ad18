"""The client with a real Canal 1.1.7 before a real MySQL 8.0: what it gives is what the database has."""

from __future__ import annotations

import pytest

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin
from cdc_lakehouse.decoders.formats import canal_entries, canal_json
from cdc_lakehouse.decoders.formats.canal_json import lossy_columns
from cdc_lakehouse.sources.canal.client import CanalClient
from cdc_lakehouse.sources.canal.connection import CanalRefusedError
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from tests.canal_fold import Fold
from tests.servers.canal import StartCanal, flat_messages
from tests.servers.canal_reader import Reader, Writer, check
from tests.servers.canal_workload import STEPS, every_type

pytestmark = pytest.mark.server


def test_every_type(writer: Writer, start_canal: StartCanal) -> None:
    """Each value of each type, inserted, changed to, and deleted; among them NULL."""
    with CanalClient(start_canal().source()) as client:
        reader = Reader()
        writer.begin()
        every_type(writer)
        reader.read(client, writer.mark())
    fold = Fold(reader.messages())
    check(fold, writer, left_out=("l", "g"))
    damaged = {name for change in reader.changes("types") for name in lossy_columns(change)}
    assert damaged == {"l", "g"}
    agree_with_flat(reader)


def agree_with_flat(reader: Reader) -> None:
    """With what Canal itself makes of the same entries, as far as flat messages go."""
    entries = [e for e in reader.entries.values() if wire.Entry.FromString(e).entry_type == wire.ROW_DATA]
    own = [_without_place(canal_entries.decode_entry(entry)) for entry in entries]
    flat = [canal_json.decode(None, value) for value in flat_messages(entries)]
    assert len(flat) == len(own) > 0
    for mine, canals in zip(own, flat, strict=True):
        if not any(isinstance(part, Ddl) for part in mine.parts):
            assert canals == mine


def _without_place(message: Message) -> Message:
    return Message(Origin(time_ms=message.origin.time_ms, gtid=message.origin.gtid), message.parts)


def test_ddl_among_rows(writer: Writer, start_canal: StartCanal) -> None:
    """Canal asks the database for a table's columns when it first sees rows of it, so it must keep up with the DDL."""
    with CanalClient(start_canal().source()) as client:
        reader = Reader()
        writer.begin()
        for step in STEPS:
            writer.run(*step.split("; "))
            reader.read(client, writer.mark())
    fold = Fold(reader.messages())
    assert not fold.unknown
    check(fold, writer)
    texts = [part.sql for message in reader.messages() for part in message.parts if isinstance(part, Ddl)]
    (dropped,) = [text for text in texts if "gone2" in text and "DROP" in text]
    assert "gone1" in dropped
    agree_with_flat(reader)


def test_images_that_are_not_full(writer: Writer, start_canal: StartCanal) -> None:
    with CanalClient(start_canal().source()) as client:
        reader = Reader()
        writer.begin()
        writer.run("CREATE TABLE t (id INT PRIMARY KEY, v INT DEFAULT 5, w VARCHAR(20), x BLOB)")
        writer.run("CREATE TABLE nokey (v INT, w INT)", "INSERT INTO nokey VALUES (1, 1), (2, 2)")
        for image in ("MINIMAL", "NOBLOB"):
            writer.run(
                f"SET SESSION binlog_row_image = {image}",
                "INSERT INTO t (id) VALUES (1)", "INSERT INTO t VALUES (2, 2, 'a', 'b')", "UPDATE t SET v = 7",
                "UPDATE t SET id = id + 10", "UPDATE t SET w = NULL, x = 'c' WHERE id = 12",
                "DELETE FROM t WHERE id = 11", "UPDATE t SET id = id + 100", "UPDATE nokey SET w = 9 WHERE v = 2",
            )  # fmt: skip
        writer.run("SET SESSION binlog_row_image = FULL")
        reader.read(client, writer.mark())
    check(Fold(reader.messages()), writer)
    first = reader.changes("t")[0]
    assert (first.op, first.after) == ("I", {"id": "1"}), "the default of a column that the image leaves out"
    changed = [change for change in reader.changes("t") if change.op == "U"]
    assert changed and all("id" in (change.after or {}) and change.key == ("id",) for change in changed)


def test_rows_that_change_different_columns(writer: Writer, start_canal: StartCanal) -> None:
    with CanalClient(start_canal().source()) as client:
        reader = Reader()
        writer.begin()
        writer.run("CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO t VALUES (1, 1, 1), (2, 1, 1)")
        writer.run("UPDATE t SET v = IF(id = 1, 2, v), w = IF(id = 2, 2, w)")
        reader.read(client, writer.mark())
    first, second = (change.before for change in reader.changes("t") if change.op == "U")
    assert (first, second) == ({"v": "1"}, {"v": "1", "w": "1"})
    agree_with_flat(reader)


def test_statements_that_come_with_their_rows_or_in_their_place(writer: Writer, start_canal: StartCanal) -> None:
    with CanalClient(start_canal().source()) as client:
        reader = Reader()
        writer.begin()
        writer.run("CREATE TABLE t (id INT PRIMARY KEY)", "SET SESSION binlog_rows_query_log_events = ON")
        writer.run("INSERT INTO t VALUES (1)")
        writer.run("SET SESSION binlog_rows_query_log_events = OFF")
        reader.read(client, writer.mark())
        assert [change.after for change in reader.changes("t")] == [{"id": "1"}]
        agree_with_flat(reader)
        writer.run("SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (2)")
        writer.run("SET SESSION binlog_format = ROW")
        reader.read(client, writer.mark())
    with pytest.raises(MessageError, match="binlog_format=ROW"):
        reader.messages()


def test_a_prepared_transaction_that_is_rolled_back_is_told(writer: Writer, start_canal: StartCanal) -> None:
    """Its rows come when it is prepared, and nothing takes them back."""
    with CanalClient(start_canal().source()) as client:
        reader = Reader()
        writer.begin()
        writer.run("CREATE TABLE t (id INT PRIMARY KEY)")
        for number, end in ((1, "COMMIT"), (2, "ROLLBACK")):
            name = f"'x{number}'"
            writer.run(f"XA START {name}", f"INSERT INTO t VALUES ({number})")
            writer.run(f"XA END {name}", f"XA PREPARE {name}", f"XA {end} {name}")
            if end == "COMMIT":
                reader.read(client, writer.mark())
                assert [change.after for change in reader.changes("t")] == [{"id": "1"}]
        reader.read(client, writer.mark())
    with pytest.raises(MessageError, match="rolled back after XA PREPARE"):
        reader.messages()


def test_a_timestamp_is_in_the_time_zone_of_canal(writer: Writer, start_canal: StartCanal) -> None:
    with CanalClient(start_canal(zone="Asia/Shanghai").source()) as client:
        reader = Reader()
        writer.begin()
        writer.run("CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL, dt DATETIME)", "SET time_zone = '-05:00'")
        writer.run("INSERT INTO t VALUES (1, '2024-06-30 12:00:00', '2024-06-30 12:00:00')")
        reader.read(client, writer.mark())
    (change,) = reader.changes("t")
    assert change.after == {"id": "1", "ts": "2024-07-01 01:00:00", "dt": "2024-06-30 12:00:00"}


def test_gtids(writer: Writer, start_canal: StartCanal) -> None:
    """The whole set of what is executed, as Canal says it."""
    with writer.connection.cursor() as cursor:
        cursor.execute("SELECT @@server_uuid, @@global.gtid_executed")
        uuid, executed = cursor.fetchone()
    with CanalClient(start_canal(gtids=executed).source()) as client:
        reader = Reader()
        writer.begin()
        writer.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        reader.read(client, writer.mark())
    last = int(executed.rpartition("-")[2])
    gtids = list(dict.fromkeys(message.origin.gtid for message in reader.messages()))
    assert gtids[:2] == [f"{uuid}:1-{last + 1}", f"{uuid}:1-{last + 2}"] and len(gtids) >= 4
    agree_with_flat(reader)


def test_a_wrong_password_and_a_destination_that_is_not_there(start_canal: StartCanal) -> None:
    server = start_canal()
    for other, words in (
        ({"password": "wrong-secret"}, r"refuses the user: error 400, auth failed for user:reader"),
        ({"user": None, "password": None}, r"refuses the user: error 400"),
        ({"destination": "nosuch"}, r"refuses the destination nosuch: error 400"),
    ):
        with CanalClient(server.source(**other)) as client, pytest.raises(CanalRefusedError, match=words) as caught:
            client.get()
        assert "secret" not in str(caught.value)


def test_a_filter(writer: Writer, start_canal: StartCanal) -> None:
    with CanalClient(start_canal().source(filter=r"d\.taken,marks\..*")) as client:
        assert client.get(wait_seconds=0) is None
        reader = Reader()
        writer.begin()
        writer.run("CREATE TABLE taken (a INT PRIMARY KEY)", "CREATE TABLE left_out (a INT PRIMARY KEY)")
        writer.run("INSERT INTO left_out VALUES (1)", "INSERT INTO taken VALUES (1)")
        reader.read(client, writer.mark())
    assert len(reader.changes("taken")) == 1 and not reader.changes("left_out")
