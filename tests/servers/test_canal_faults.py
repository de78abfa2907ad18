"""A real Canal, and ends of connections, servers and readers at any point: every change arrives."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.events import Ddl, Message, MessagePart, Origin, RowChange, TransactionEnd
from cdc_lakehouse.sources.canal.client import Batch, CanalClient
from cdc_lakehouse.sources.canal.connection import CanalRedeliveryError, Timeouts
from tests import LONG
from tests.canal_fold import Fold
from tests.kit.waiting import until
from tests.servers.canal import PASSWORD, USER, CanalServer, StartCanal, canal_source
from tests.servers.canal_reader import Reader, Writer, check
from tests.servers.tcp_proxy import Side, tcp_proxy

pytestmark = pytest.mark.server

QUICK = Timeouts(connect=5, reply=10)


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


@pytest.mark.parametrize("seed", range(3 if LONG else 1))
def test_connections_that_end_at_any_byte(writer: Writer, start_canal: StartCanal, seed: int) -> None:
    chance = random.Random(seed)
    server, reader = start_canal(), Reader()
    with CanalClient(server.source()) as client:
        begin(writer, client, reader)
    change(writer, chance, 60)
    rows = ", ".join(f"({id}, 'row', 0)" for id in range(1000, 3000))
    writer.run(f"INSERT INTO t VALUES {rows}", "UPDATE t SET n = n + 1", "DELETE FROM t WHERE id % 3 = 0")
    mark = writer.mark()
    cuts: list[tuple[Side, int]] = [
        *(("server", chance.choice([0, 5, 25, 35, chance.randint(36, 60_000)])) for _ in range(8)),
        *(("client", chance.randint(0, 400)) for _ in range(4)),
    ]
    chance.shuffle(cuts)
    with tcp_proxy(server.port, cuts) as proxy:
        with CanalClient(canal_source(proxy.address), timeouts=QUICK) as client:
            reader.read(client, mark, size=20)
        assert proxy.connections > len(cuts)
    assert reader.redeliveries and reader.again
    check(Fold(reader.messages()), writer)


def test_a_canal_that_is_killed(writer: Writer, start_canal: StartCanal) -> None:
    """It knows from its own files what was acknowledged, and gives the rest again."""
    chance = random.Random(1)
    server, reader = start_canal(), Reader()
    with CanalClient(server.source(), timeouts=QUICK) as client:
        begin(writer, client, reader)
        for _ in range(3):
            change(writer, chance, 15)
            batch = client.get(batch_size=5, wait_seconds=2)
            assert batch is not None
            reader.keep(batch.entries)
            server.process.kill()
            server.process.wait()
            change(writer, chance, 5)
            with pytest.raises(CanalRedeliveryError):
                acknowledge(client, batch)
            server = start_canal(port=server.port)
            reader.read(client, writer.mark(), size=20)
    assert reader.again
    check(Fold(reader.messages()), writer)


def acknowledge(client: CanalClient, batch: Batch) -> None:
    """That the server is gone may show at the next request alone."""
    client.ack(batch)
    client.get(wait_seconds=0)


def test_what_is_not_acknowledged_comes_again_under_another_number(writer: Writer, start_canal: StartCanal) -> None:
    server, reader = start_canal(), Reader()
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
        second = wait_for(client)
        assert not set(second.entries) & set(first.entries)
    with CanalClient(server.source()) as client:
        assert wait_for(client).entries[: len(second.entries)] == second.entries
        client.rollback()
        reader.read(client, writer.mark())
    assert not reader.again
    check(Fold(reader.messages()), writer)


def wait_for(client: CanalClient) -> Batch:
    for _ in range(50):
        batch = client.get(wait_seconds=0.2)
        if batch is not None:
            return batch
    raise AssertionError("nothing came")


def test_a_second_reader_takes_the_batches_and_nothing_is_lost(writer: Writer, start_canal: StartCanal) -> None:
    """The first one's acknowledgement fails on the server: its error is not taken for an answer."""
    server, reader, other = start_canal(), Reader(), Reader()
    with CanalClient(server.source()) as client:
        begin(writer, client, reader)
        writer.run("INSERT INTO t VALUES (1, 'a', 1)")
        taken = wait_for(client)
        with CanalClient(server.source()) as second:
            other.read(second, writer.mark())
        client.ack(taken)
        with pytest.raises(CanalRedeliveryError, match="refuses"):
            client.get(wait_seconds=0)
        writer.run("INSERT INTO t VALUES (2, 'b', 2)")
        reader.read(client, writer.mark())
    reader.entries |= other.entries
    check(Fold(reader.messages()), writer)


def test_another_server_takes_over(writer: Writer, start_canal: StartCanal) -> None:
    """It knows of no acknowledgement to the first one, and gives all again."""
    chance, reader = random.Random(2), Reader()
    servers = [start_canal("one"), start_canal("two")]
    source = canal_source(*(server.address for server in servers))
    with CanalClient(source, timeouts=QUICK) as client:
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


def test_unsubscribing_forgets_nothing(writer: Writer, start_canal: StartCanal) -> None:
    server, reader = start_canal(), Reader()
    with CanalClient(server.source()) as client:
        begin(writer, client, reader)
        client.unsubscribe()
        writer.run("INSERT INTO t VALUES (1, 'a', 1)")
        reader.read(client, writer.mark())
    assert not reader.again
    check(Fold(reader.messages()), writer)


def test_a_reader_that_is_killed(writer: Writer, start_canal: StartCanal, tmp_path: Path) -> None:
    """`canal tail --ack`, ended without a warning in the midst of it; what it printed last may be printed again."""
    chance, server, reader = random.Random(3), start_canal(), Reader()
    with CanalClient(server.source()) as client:
        begin(writer, client, reader)
    printed: dict[tuple[str, int], Message] = {}
    for number in range(6):
        last = number == 5
        file = tmp_path / f"{number}.jsonl"
        change(writer, chance, 25)
        process = tail(server, file, *(("--seconds", "4") if last else ()))
        if last:
            assert process.wait(60) == 0
        else:
            wait_for_lines(file, chance.randint(1, 40))
            process.kill()
            assert process.wait() == -signal.SIGKILL
        for message in messages_of(file):
            place = (str(message.origin.log_file), message.origin.log_offset or 0)
            assert printed.setdefault(place, message) == message
    fold = Fold(reader.messages())
    for message in printed.values():
        fold.add(message)
    check(fold, writer)


def tail(server: CanalServer, file: Path, *options: str) -> subprocess.Popen[bytes]:
    program = "from cdc_lakehouse.cli import main; main()"
    host, _, port = server.address.rpartition(":")
    where = ["--host", host, "--port", port, "--user", USER, "--batch-size", "10", "--ack"]
    environment = {**os.environ, "CDC_LAKEHOUSE_CANAL_PASSWORD": PASSWORD}
    with file.open("wb") as out:
        command = [sys.executable, "-c", program, "canal", "tail", *where, *options]
        return subprocess.Popen(command, stdout=out, env=environment)


def wait_for_lines(file: Path, count: int) -> None:
    until(lambda: file.read_bytes().count(b"\n") >= count, 60)


def messages_of(file: Path) -> list[Message]:
    # The last line may not be whole.
    return [_message(json.loads(line)) for line in file.read_bytes().split(b"\n")[:-1]]


def _message(line: dict[str, Any]) -> Message:
    origin = Origin(line["time_ms"], line["log_file"], line["log_offset"], line["gtid"])
    return Message(origin, tuple(_part(dict(part)) for part in line["parts"]))


def _part(told: dict[str, Any]) -> MessagePart:
    match told.pop("kind"):
        case "row":
            return RowChange(**{**told, "key": tuple(told["key"])})
        case "ddl":
            return Ddl(**told)
        case _:
            return TransactionEnd()
