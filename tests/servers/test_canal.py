"""The client with a real Canal 1.1.7 before a real MySQL 8.0: what it gives is what the database has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin
from cdc_lakehouse.decoders.formats import canal_entries, canal_json
from cdc_lakehouse.decoders.formats.canal_json import lossy_columns
from cdc_lakehouse.sources.canal.client import CanalClient
from cdc_lakehouse.sources.canal.connection import CanalRefusedError
from cdc_lakehouse.sources.canal.wire import entries_pb2 as wire
from tests.canal_fold import Fold
from tests.servers.canal import StartCanal, executed, flat_messages
from tests.servers.canal_reader import Reader, Writer, check
from tests.servers.canal_workload import STEPS, every_type

pytestmark = pytest.mark.server


@pytest.fixture
def reading(writer: Writer, start_canal: StartCanal) -> Callable[..., Reader]:
    """What a Canal, started with options, gives of some statements."""

    def read(*statements: str, taken: str | None = None, **options: Any) -> Reader:
        reader = Reader()
        with CanalClient(start_canal(**options).source(filter=taken)) as client:
            writer.begin()
            writer.run(*statements)
            reader.read(client, writer.mark())
        return reader

    return read


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


def test_images_that_are_not_full(writer: Writer, reading: Callable[..., Reader]) -> None:
    statements = [
        "CREATE TABLE t (id INT PRIMARY KEY, v INT DEFAULT 5, w VARCHAR(20), x BLOB)",
        "CREATE TABLE nokey (v INT, w INT)", "INSERT INTO nokey VALUES (1, 1), (2, 2)",
    ]  # fmt: skip
    for image in ("MINIMAL", "NOBLOB"):
        statements += [
            f"SET SESSION binlog_row_image = {image}",
            "INSERT INTO t (id) VALUES (1)", "INSERT INTO t VALUES (2, 2, 'a', 'b')", "UPDATE t SET v = 7",
            "UPDATE t SET id = id + 10", "UPDATE t SET w = NULL, x = 'c' WHERE id = 12",
            "DELETE FROM t WHERE id = 11", "UPDATE t SET id = id + 100", "UPDATE nokey SET w = 9 WHERE v = 2",
        ]  # fmt: skip
    reader = reading(*statements, "SET SESSION binlog_row_image = FULL")
    check(Fold(reader.messages()), writer)
    first = reader.changes("t")[0]
    assert (first.op, first.after) == ("I", {"id": "1"}), "the default of a column that the image leaves out"
    changed = [change for change in reader.changes("t") if change.op == "U"]
    assert changed and all("id" in (change.after or {}) and change.key == ("id",) for change in changed)


def test_rows_that_change_different_columns(reading: Callable[..., Reader]) -> None:
    reader = reading(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO t VALUES (1, 1, 1), (2, 1, 1)",
        "UPDATE t SET v = IF(id = 1, 2, v), w = IF(id = 2, 2, w)",
    )  # fmt: skip
    first, second = (change.before for change in reader.changes("t") if change.op == "U")
    assert (first, second) == ({"v": "1"}, {"v": "1", "w": "1"})
    agree_with_flat(reader)


def test_statements_that_come_with_their_rows(reading: Callable[..., Reader]) -> None:
    reader = reading(
        "CREATE TABLE t (id INT PRIMARY KEY)", "SET SESSION binlog_rows_query_log_events = ON",
        "INSERT INTO t VALUES (1)", "SET SESSION binlog_rows_query_log_events = OFF",
    )  # fmt: skip
    assert [change.after for change in reader.changes("t")] == [{"id": "1"}]
    agree_with_flat(reader)


TOLD = {
    "binlog_format=ROW": ["SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (2)",
                          "SET SESSION binlog_format = ROW"],
    # Its rows come when it is prepared, and nothing takes them back.
    "rolled back after XA PREPARE": ["XA START 'x'", "INSERT INTO t VALUES (2)", "XA END 'x'", "XA PREPARE 'x'",
                                     "XA ROLLBACK 'x'"],
}  # fmt: skip


@pytest.mark.parametrize("words", TOLD)
def test_rows_that_nobody_can_know_are_told(words: str, reading: Callable[..., Reader]) -> None:
    committed = ["XA START 'y'", "INSERT INTO t VALUES (1)", "XA END 'y'", "XA PREPARE 'y'", "XA COMMIT 'y'"]
    made = ["CREATE TABLE t (id INT PRIMARY KEY)", *committed]
    assert [change.after for change in reading(*made).changes("t")] == [{"id": "1"}]
    with pytest.raises(MessageError, match=words):
        reading(*made, *TOLD[words], name="again").messages()


def test_a_timestamp_is_in_the_time_zone_of_canal(reading: Callable[..., Reader]) -> None:
    reader = reading(
        "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL, dt DATETIME)", "SET time_zone = '-05:00'",
        "INSERT INTO t VALUES (1, '2024-06-30 12:00:00', '2024-06-30 12:00:00')", zone="Asia/Shanghai",
    )  # fmt: skip
    (change,) = reader.changes("t")
    assert change.after == {"id": "1", "ts": "2024-07-01 01:00:00", "dt": "2024-06-30 12:00:00"}


def test_gtids(writer: Writer, reading: Callable[..., Reader]) -> None:
    """The whole set of what is executed, as Canal says it."""
    uuid, _, last = executed(writer.mysql).partition(":1-")
    reader = reading("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", gtids=f"{uuid}:1-{last}")
    gtids = list(dict.fromkeys(message.origin.gtid for message in reader.messages()))
    assert gtids[:2] == [f"{uuid}:1-{int(last) + 1}", f"{uuid}:1-{int(last) + 2}"] and len(gtids) >= 4
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


def test_a_filter(reading: Callable[..., Reader]) -> None:
    reader = reading(
        "CREATE TABLE taken (a INT PRIMARY KEY)", "CREATE TABLE left_out (a INT PRIMARY KEY)",
        "INSERT INTO left_out VALUES (1)", "INSERT INTO taken VALUES (1)", taken=r"d\.taken,marks\..*",
    )  # fmt: skip
    assert len(reader.changes("taken")) == 1 and not reader.changes("left_out")
