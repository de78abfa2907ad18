"""Sessions with real servers, played back byte for byte: the client says what Canal's own client said, and hears what
that heard."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from cdc_lakehouse.sources.canal.client import CanalClient
from cdc_lakehouse.sources.canal.connection import CanalRefusedError, Connection, Timeouts, scrambled
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from tests.canal_captures import SOURCES, Capture, capture
from tests.sources.canal.servers import Handler, canal_source, heard, serving

BODIES = {
    wire.CLIENT_AUTHENTICATION: wire.ClientAuth, wire.SUBSCRIPTION: wire.Sub, wire.UNSUBSCRIPTION: wire.Unsub,
    wire.GET: wire.Get, wire.CLIENT_ACK: wire.ClientAck, wire.CLIENT_ROLLBACK: wire.ClientRollback,
}  # fmt: skip
PASSWORD = "canal"
FILTER = r"cdc\..*,other\..*"

each_source = pytest.mark.parametrize("source", SOURCES)


def said(packet: wire.Packet) -> dict[str, Any]:
    """What the packet asks for, whatever the words."""
    body: Any = BODIES[packet.type].FromString(packet.body)
    if isinstance(body, wire.Get) and body.unit == 3:
        body.timeout, body.unit = body.timeout * 1000, 2
    told = {"type": packet.type, **MessageToDict(body)}
    if packet.type == wire.CLIENT_ROLLBACK:
        told.pop("batchId", None)  # Canal's client named the only one that was open.
    return told


def script(of: Capture, number: int) -> Iterator[wire.Packet | bytes]:
    """Packets that the client must say, and bytes that it hears, in order."""
    part = b""
    subscribed = False
    for side, content in of.connection(number):
        if side == "s2c":
            yield content
            continue
        part += content
        while len(part) >= 4 and len(part) >= (end := 4 + int.from_bytes(part[:4], "big")):
            packet, part = wire.Packet.FromString(part[4:end]), part[end:]
            subscribed |= packet.type == wire.SUBSCRIPTION
            # Canal's client rolls back before it subscribes, too.
            if packet.type != wire.CLIENT_ROLLBACK or subscribed:
                yield packet
    assert not part


def replay(of: Capture, number: int, *, leaving_out: str = "") -> Handler:
    """Compares all but one key of what is heard."""

    def handler(connection: socket.socket) -> None:
        for turn in script(of, number):
            if isinstance(turn, bytes):
                connection.sendall(turn)
                continue
            found, expected = said(heard(connection)), said(turn)
            assert found.keys() == expected.keys()
            assert {**found, leaving_out: ""} == {**expected, leaving_out: ""}

    return handler


@each_source
def test_the_password_is_scrambled_as_canals_client_does(source: str) -> None:
    of = capture(source)
    seed = wire.Handshake.FromString(of.packets(1, "s2c")[0].body).seeds
    sent = wire.ClientAuth.FromString(of.packets(1, "c2s")[0].body).password
    assert scrambled(PASSWORD, seed) == sent


@each_source
def test_the_main_session(source: str) -> None:
    of = capture(source)
    sizes = [7] * len(of.batches)
    with serving(replay(of, 1)) as address:
        options = canal_source(address, user="canal", password=PASSWORD, filter=FILTER)
        connection = Connection.open(options.endpoints[0], options, Timeouts())
        assert connection.get(100, 0) == wire.Messages(batch_id=-1)
        first = connection.get(5, 2)
        connection.rollback()
        again = connection.get(5, 2)
        assert (first.batch_id, again.batch_id) == (1, 2)
        assert first.messages == again.messages and len(again.messages) >= 5
        more = connection.get(3, 0)
        connection.rollback()
        found = []
        for size in sizes:
            found.append(connection.get(size, 0.5))
            connection.ack(found[-1].batch_id)
        assert found == of.batches
        assert [*again.messages, *more.messages] == of.entries[: len(again.messages) + len(more.messages)]
        for _ in range(2):
            assert connection.get(7, 0.5) == wire.Messages(batch_id=-1)
        bad = next(p for p in reversed(of.packets(1, "c2s")) if p.type == wire.CLIENT_ACK)
        connection.ack(wire.ClientAck.FromString(bad.body).batch_id)
        with pytest.raises(CanalRefusedError, match=r"error 400, something goes wrong with channel"):
            connection.get(1, 0)
        assert connection.closed


@each_source
def test_the_main_session_with_the_client(source: str) -> None:
    of = capture(source)
    with serving(replay(of, 1)) as address:
        options = canal_source(address, user="canal", password=PASSWORD, filter=FILTER, batch_size=7)
        with CanalClient(options) as client:
            assert client.get(batch_size=100, wait_seconds=0) is None
            assert client.get(batch_size=5, wait_seconds=2) is not None
            client.rollback()
            assert client.get(batch_size=5, wait_seconds=2) is not None
            assert client.get(batch_size=3, wait_seconds=0) is not None
            client.rollback()
            entries: list[bytes] = []
            while (batch := client.get(wait_seconds=0.5)) is not None:
                entries += batch.entries
                client.ack(batch)
    assert entries == of.entries


@each_source
def test_a_wrong_password(source: str) -> None:
    """The server sends a second, empty ACK after its refusal."""
    with serving(replay(capture(source), 2, leaving_out="password")) as address:
        options = canal_source(address, user="canal", password="wrong")
        with CanalClient(options) as client, pytest.raises(CanalRefusedError) as caught:
            client.get()
    assert str(caught.value) == (
        f"the Canal server {address} refuses the user: error 400, auth failed for user:canal: "
        "check user and password: Canal's own, not the database's"
    )


@each_source
def test_a_destination_that_is_not_there(source: str) -> None:
    with serving(replay(capture(source), 3)) as address:
        options = canal_source(address, user="canal", password=PASSWORD, destination="nosuch")
        with CanalClient(options) as client, pytest.raises(CanalRefusedError) as caught:
            client.get()
    text = str(caught.value)
    assert "refuses the destination nosuch" in text and "should start first" in text
    assert "\n" not in text and "CanalServerException" in text
