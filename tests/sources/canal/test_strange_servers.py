"""Servers that are none of Canal, or not in their right mind: a clear error, in time, for little memory."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.errors import CdcError, SourceUnreachableError
from cdc_lakehouse.sources.canal.client import Batch
from cdc_lakehouse.sources.canal.connection import CanalProtocolError, CanalRefusedError
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from tests.kit.memory import memory_below
from tests.sources.canal.servers import (
    DONE,
    HANDSHAKE,
    OPENING,
    Handler,
    batch,
    canal_source,
    conversation,
    converse,
    frame,
    packet,
    quick_client,
    refusal,
    serving,
)


def error_of(handler: Handler) -> CdcError:
    with serving(handler) as address, quick_client(address) as client, pytest.raises(CdcError) as caught:
        client.get(wait_seconds=0)
    return caught.value


# --- What a server may say ---


@pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32 - 1, 4097])
def test_a_greeting_of_any_length_is_refused_without_memory(length: int) -> None:
    """MySQL's own greeting reads as 1.2 GB."""
    with memory_below(1_000_000):
        error = error_of(conversation(length.to_bytes(4, "big") + b"x" * 100))
    assert isinstance(error, CanalProtocolError) and f"a packet of {length} bytes" in str(error)
    assert "11111" in str(error)


def test_a_packet_is_refused_when_it_is_too_long_and_costs_nothing_until_it_comes() -> None:
    too_long, long = (2**31 - 1).to_bytes(4, "big"), (200 * 1024 * 1024).to_bytes(4, "big")
    long_batch = conversation(*OPENING, wire.GET, long + b"x" * 1000)

    def then_gone(connection: socket.socket) -> None:
        connection.settimeout(1)
        long_batch(connection)

    with memory_below(2_000_000):
        assert isinstance(error_of(conversation(*OPENING, wire.GET, too_long)), CanalProtocolError)
        error = error_of(then_gone)
    assert isinstance(error, SourceUnreachableError) and "has closed the connection" in str(error)


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"J\x00\x00\x00\n8.0.12\x00", "announces a packet of"),  # MySQL
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "announces a packet of"),
        (frame(b"\xff\xff\xff"), "sends what is no packet of Canal"),
        (frame(wire.Packet(magic_number=18, type=wire.HANDSHAKE).SerializeToString()), "of number 18 and version 0"),
        (frame(wire.Packet(version=2, type=wire.HANDSHAKE).SerializeToString()), "of number 0 and version 2"),
        (frame(wire.Packet(type=wire.HANDSHAKE, compression=3).SerializeToString()), "compression 3"),
        (packet(wire.MESSAGES), "type 7 that was not asked for"),
        (DONE, "type 3 that was not asked for"),
        (frame(wire.Packet(type=wire.HANDSHAKE, body=b"\xff").SerializeToString()), "a body that is none of it"),
        (frame(b""), "type 0 that was not asked for"),
    ],
)
def test_a_greeting_that_is_not_canals(greeting: bytes, words: str) -> None:
    error = error_of(conversation(greeting))
    assert isinstance(error, CanalProtocolError) and words in str(error), error
    assert error.advice


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (packet(wire.ACK), "type 3 that was not asked for"),
        (batch(0, b"entry"), "entries in a batch of number 0"),
        (batch(-1, b"entry"), "entries in a batch of number -1"),
        (frame(wire.Packet(type=wire.MESSAGES, body=b"\x12\x7f").SerializeToString()), "a body that is none of it"),
    ],
)
def test_an_answer_that_is_not_canals(answer: bytes, words: str) -> None:
    error = error_of(conversation(*OPENING, wire.GET, answer))
    assert isinstance(error, CanalProtocolError) and words in str(error), error


@given(content=st.binary(max_size=60), framed=st.booleans(), turn=st.sampled_from([0, 2, 4, 6]))
def test_garbage_at_any_turn_is_an_error_in_time(content: bytes, framed: bool, turn: int) -> None:
    """Never another error, never a batch that was not sent, never longer than the time-outs."""
    turns = [*OPENING, wire.GET][: turn + 1] if turn == 6 else list(OPENING[:turn])
    garbage = frame(content) if framed else content

    def handler(connection: socket.socket) -> None:
        converse(connection, *turns)
        connection.sendall(garbage)

    started = time.monotonic()
    with serving(handler) as address, quick_client(address) as client, contextlib.suppress(CdcError):
        got = client.get(wait_seconds=0)
        assert got is None or got.id > 0
    assert time.monotonic() - started < 5


def test_heartbeats_between_answers_mean_nothing() -> None:
    beat = packet(wire.HEARTBEAT_PACKET, wire.HeartBeat(send_timestamp=1))
    handler = conversation(beat + HANDSHAKE, *OPENING[1:], wire.GET, beat + beat + batch(1, b"entry"))
    with serving(handler) as address, quick_client(address) as client:
        assert client.get(wait_seconds=0) == Batch(1, (b"entry",), 1)


# --- Time ---


@pytest.mark.parametrize("turns", [(), OPENING[:2], OPENING[:4], (*OPENING, wire.GET)])
def test_a_server_that_says_nothing(turns: tuple[bytes | wire.PacketType, ...]) -> None:
    started = time.monotonic()
    error = error_of(conversation(*turns))
    assert isinstance(error, SourceUnreachableError) and "does not answer in time" in str(error)
    # Twice: with no patience there is one more attempt.
    assert 0.5 < time.monotonic() - started < 5


def test_a_server_that_drips() -> None:
    def handler(connection: socket.socket) -> None:
        for byte in frame(b"x" * 2000):
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    started = time.monotonic()
    assert "does not answer in time" in str(error_of(handler))
    assert time.monotonic() - started < 5


def test_the_wait_of_a_get_is_beside_the_time_for_its_answer() -> None:
    def handler(connection: socket.socket) -> None:
        converse(connection, *OPENING, wire.GET)
        time.sleep(0.8)
        connection.sendall(batch(1, b"entry"))

    with serving(handler) as address, quick_client(address) as client:
        assert client.get(wait_seconds=1) is not None


def test_the_password_is_nowhere() -> None:
    source = canal_source("127.0.0.1:1", user="canal", password="hunter2")
    assert "hunter2" not in repr(source) + str(source)
    refusing = conversation(*OPENING[:2], refusal("auth failed for user:canal"))
    with (
        serving(refusing) as address,
        quick_client(address, user="canal", password="hunter2") as client,
        pytest.raises(CanalRefusedError) as caught,
    ):
        client.get()
    assert "hunter2" not in str(caught.value) + repr(vars(caught.value))


def test_a_password_is_not_sent_without_a_seed() -> None:
    def handler(connection: socket.socket) -> None:
        connection.sendall(packet(wire.HANDSHAKE, wire.Handshake()))
        sent.append(connection.recv(100))

    sent: list[bytes] = []
    with (
        serving(handler) as address,
        quick_client(address, user="u", password="hunter2") as client,
        pytest.raises(CanalProtocolError, match="gives no seed"),
    ):
        client.get()
    assert sent == [b""]
