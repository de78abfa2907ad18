"""A real Canal whose batches are taken by several readers, and that ends: every change arrives. What a client does when
connections end at any byte is in tests/sources/canal, what a feed does when Canal is killed in test_canal_feed.py."""

from __future__ import annotations

import random

import pytest

from cdc_lakehouse.sources.canal.client import Batch, CanalClient
from cdc_lakehouse.sources.canal.connection import CanalRedeliveryError, Timeouts
from tests.canal_fold import Fold
from tests.servers.canal import StartCanal, canal_source
from tests.servers.canal_reader import Reader, Writer, check

pytestmark = pytest.mark.server


def begin(writer: Writer, client: CanalClient, reader: Reader) -> None:
    """A table that Canal has seen rows of."""
    writer.begin()
    writer.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100), n INT)", "INSERT INTO t VALUES (0, '', 0)")
    reader.read(client, writer.mark())


def change(writer: Writer, chance: random.Random, transactions: int) -> None:
    for _ in range(transactions):
        writer.run("BEGIN")
        for _ in range(chance.randint(1, 4)):
            id, text = chance.randint(1, 60), "x" * chance.randint(0, 100)
            writer.run(
                chance.choice(
                    [
                        f"REPLACE INTO t VALUES ({id}, '{text}', {chance.randint(0, 9)})",
                        f"UPDATE t SET n = n + 1 WHERE id <= {id}",
                        f"DELETE FROM t WHERE id = {id}",
                        f"UPDATE IGNORE t SET id = id + 7 WHERE id = {id}",
                    ]
                )
            )
        writer.run(chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))


def test_batches_come_again_until_they_are_acknowledged(writer: Writer, start_canal: StartCanal) -> None:
    """Under another number, to whoever asks. An acknowledgement that the server refuses is no answer to what is asked
    next."""
    server, reader, other = start_canal(), Reader(), Reader()
    with CanalClient(server.source()) as client:
        begin(writer, client, reader)
        writer.run("INSERT INTO t VALUES (1, 'a', 1)")
        first = wait_for(client)
    with CanalClient(server.source()) as client:
        again = wait_for(client)
        assert again.id > first.id and again.entries[: len(first.entries)] == first.entries
        reader.keep(again.entries)
        client.ack(again)
        writer.run("UPDATE t SET n = 2 WHERE id = 1")
        client.rollback()
        taken = wait_for(client)
        assert not set(taken.entries) & set(first.entries)
        client.rollback()
        taken = wait_for(client)
        with CanalClient(server.source()) as second:
            other.read(second, writer.mark())
        client.ack(taken)
        with pytest.raises(CanalRedeliveryError, match="refuses"):
            client.get(wait_seconds=0)
        client.unsubscribe()
        writer.run("INSERT INTO t VALUES (2, 'b', 2)")
        reader.read(client, writer.mark())
    reader.entries |= other.entries
    check(Fold(reader.messages()), writer)


def wait_for(client: CanalClient) -> Batch:
    for _ in range(50):
        batch = client.get(wait_seconds=0.2)
        if batch is not None:
            return batch
    raise AssertionError("nothing came")


def test_another_server_takes_over(writer: Writer, start_canal: StartCanal) -> None:
    """It knows of no acknowledgement to the first one, and gives all again."""
    chance, reader = random.Random(2), Reader()
    servers = [start_canal("one"), start_canal("two")]
    source = canal_source(*(server.address for server in servers))
    with CanalClient(source, timeouts=Timeouts(connect=5, reply=10)) as client:
        begin(writer, client, reader)
        change(writer, chance, 10)
        reader.read(client, writer.mark())
        before = len(reader.entries)
        servers[0].process.kill()
        servers[0].process.wait()
        change(writer, chance, 10)
        reader.read(client, writer.mark())
    assert reader.again >= before
    check(Fold(reader.messages()), writer)
