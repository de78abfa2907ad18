"""How the client connects to servers of any kind, and takes each batch once, whatever is cut."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from cdc_lakehouse.errors import CdcError, PermanentError, SourceUnreachableError, TransientError
from tests.boundaries.sources import Batch, CanalClient, CanalProtocolError, CanalRedeliveryError, CanalRefusedError
from tests.boundaries.sources import packets_pb2 as wire
from tests.kit.case_files import Case, read_cases, text_of
from tests.kit.memory import memory_below
from tests.sources.canal.servers import (
    DONE,
    HANDSHAKE,
    OPENING,
    Handler,
    HandMadeCanal,
    batch,
    canal_source,
    closed_port,
    conversation,
    converse,
    first_batch,
    frame,
    packet,
    quick_client,
    refusal,
    serving,
)

ENTRIES = [b"entry %d" % number for number in range(30)]
ELSEWHERE = conversation(*OPENING[:4], refusal("destination:example should start first"))
OPENED = len(HANDSHAKE + DONE + DONE)


def taken(client: CanalClient, size: int | None = None) -> Batch:
    got = client.get(batch_size=size, wait_seconds=0)
    assert got is not None
    return got


def error_of(handler: Handler) -> CdcError:
    with serving(handler) as address, quick_client(address) as client, pytest.raises(CdcError) as caught:
        client.get(wait_seconds=0)
    return caught.value


# --- Connections ---


def test_unreachable_server_is_tried_until_patience_ends(caplog: pytest.LogCaptureFixture) -> None:
    address = closed_port()
    with (
        caplog.at_level(logging.WARNING, "cdc_lakehouse"),
        quick_client(address, patience_seconds=0.3) as client,
        pytest.raises(SourceUnreachableError, match=f"{address} cannot be reached: Connection refused") as caught,
    ):
        client.get()
    assert isinstance(caught.value, TransientError)
    assert f"{address} cannot be reached" in caplog.text and "trying again in" in caplog.text


def test_first_server_that_serves_is_used() -> None:
    canal = HandMadeCanal(ENTRIES)
    with serving(ELSEWHERE) as other, serving(canal) as address, quick_client(closed_port(), other, address) as client:
        for _ in range(3):
            taken(client, 1)
    assert canal.connections == 1


@pytest.mark.parametrize(
    ("second", "patience", "error", "said"),
    [
        (conversation(), 0.0, SourceUnreachableError, "does not answer in time"),
        # A permanent error is not retried: with patience of an hour the test would not end.
        (ELSEWHERE, 3600.0, CanalRefusedError, "should start first"),
    ],
    ids=["one refuses, one is silent", "both refuse"],
)
def test_errors_of_all_servers_are_reported(second: Handler, patience: float, error: type[CdcError], said: str) -> None:
    with (
        serving(ELSEWHERE) as first,
        serving(second) as other,
        quick_client(first, other, patience_seconds=patience) as client,
        pytest.raises(error, match="no server of 2 serves: .*should start first.*; .*" + said) as caught,
    ):
        client.get()
    assert isinstance(caught.value, PermanentError) == (second is ELSEWHERE)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_client_continues() -> None:
    def handler(connection: socket.socket) -> None:
        converse(connection, *OPENING, wire.GET)
        # To the thread that waits: another one's signal would not wake it.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        connection.recv(1)

    with serving(handler, HandMadeCanal(ENTRIES)) as address, CanalClient(canal_source(address)) as client:
        with pytest.raises(KeyboardInterrupt):
            client.get(wait_seconds=5)
        assert taken(client, 1) == Batch(2, (ENTRIES[0],), 2)


def test_password_is_not_sent_without_a_seed() -> None:
    def handler(connection: socket.socket) -> None:
        connection.sendall(packet(wire.HANDSHAKE, wire.Handshake()))
        sent.append(connection.recv(100))

    sent: list[bytes] = []
    with (
        serving(handler) as address,
        quick_client(address, user="u", password="hunter2") as client,
        pytest.raises(CanalProtocolError, match="gives no seed") as caught,
    ):
        client.get()
    assert sent == [b""]
    assert "hunter2" not in repr(canal_source("c:1", user="u", password="hunter2")) + repr(vars(caught.value))


# --- Batches ---


def test_failed_acknowledgement_stops_the_next_request() -> None:
    def handler(connection: socket.socket) -> None:
        converse(connection, *OPENING, *first_batch(b"a"), wire.CLIENT_ACK, refusal("no such batch"))
        has_come.set()
        requests.append(connection.recv(1))

    has_come, requests = threading.Event(), list[bytes]()
    with serving(handler) as address, quick_client(address) as client:
        client.ack(taken(client))
        assert has_come.wait(60)
        with pytest.raises(CanalRedeliveryError, match="no such batch"):
            client.get(wait_seconds=0)
    assert requests == [b""], "a request was sent although an error had come"


# --- Conversations ---

NAMES = {
    "OPENING": OPENING, "HANDSHAKE": HANDSHAKE, "DONE": DONE, "ENTRIES": ENTRIES, "OPENED": OPENED, "wire": wire,
    "ELSEWHERE": (*OPENING[:4], refusal("destination:example should start first")), "batch": batch, "frame": frame,
    "first_batch": first_batch,
    "packet": packet, "refusal": refusal, "beat": packet(wire.HEARTBEAT_PACKET, wire.HeartBeat(send_timestamp=1)),
    "LATE": refusal("something goes wrong, batchId:2 is not exist\nat com.alibaba.otter"),
    "raw": lambda **parts: frame(wire.Packet(**parts).SerializeToString()),
}  # fmt: skip


def results_of(case: Case) -> Iterator[str]:
    """A line is what the server says and hears on a connection, the last one on all that follow; `canal(ENTRIES, cuts)`
    is a server with Canal's rules. `client` are the calls of one client, `|` begins the next one's; `look` is another
    client that takes a batch meanwhile."""
    canals = list[HandMadeCanal]()

    def canal(entries: Sequence[bytes] = ENTRIES, cuts: Iterable[int] = ()) -> HandMadeCanal:
        canals.append(canals[0] if canals else HandMadeCanal(list(entries), cuts))
        return canals[-1]

    handlers = list[Handler]()
    for line in case.own:
        turns = eval(f"({line},)", NAMES | {"canal": canal})
        handlers.append(turns[0] if isinstance(turns[0], HandMadeCanal) else conversation(*turns))
    with serving(*handlers) as address:
        for calls in str(case.settings.get("client", "get")).split(" | "):
            patience = case.settings.get("patience", 0)
            with quick_client(address, patience_seconds=patience, batch_size=2) as client:
                batches = list[Batch]()
                for call in calls.split():
                    if call == "look":
                        with quick_client(address, batch_size=2) as other:
                            taken(other)
                        continue
                    for line in _outcome(client, call, batches):
                        yield text_of(line.replace(address, "ADDRESS"))
    if canals:
        yield f"{canals[0].acked} acknowledged, {canals[0].connections} connections"


def _outcome(client: CanalClient, call: str, batches: list[Batch]) -> Iterator[str]:
    name, _, number = call.partition(":")
    try:
        match name:
            case "ack":
                client.ack(batches[int(number) - 1])
            case "get":
                got = client.get(wait_seconds=0)
                batches += [got] if got else []
                said = "nothing" if got is None else f"batch {got.id} of connection {got.connection}: "
                yield f"get: {said}{', '.join(entry.decode() for entry in (got.entries if got else ()))}"
            case _:
                getattr(client, name)()
    except (CdcError, ValueError) as error:
        advice = f": {error.advice}" if isinstance(error, CdcError) and error.advice else ""
        yield f"{call}: {type(error).__name__}: {str(error).removesuffix(advice)}{advice}"


@pytest.mark.parametrize("case", read_cases(Path(__file__).parents[1] / "cases/canal.txt"), ids=str)
def test_client_converses_with_server(case: Case, update: bool) -> None:
    case.compare(list(results_of(case)), update=update)


# --- Servers that are not Canal ---


def test_announced_packet_takes_no_memory_until_it_comes() -> None:
    too_long, long = (2**31 - 1).to_bytes(4, "big"), (200 * 1024 * 1024).to_bytes(4, "big")
    long_batch = conversation(*OPENING, wire.GET, long + b"x" * 1000)

    def then_gone(connection: socket.socket) -> None:
        connection.settimeout(1)
        long_batch(connection)

    with memory_below(2_000_000):
        assert isinstance(error_of(conversation(*OPENING, wire.GET, too_long)), CanalProtocolError)
        assert isinstance(error_of(conversation(long)), CanalProtocolError)
        error = error_of(then_gone)
    assert isinstance(error, SourceUnreachableError) and "has closed the connection" in str(error)


def test_server_that_drips_is_given_up() -> None:
    content = frame(b"x" * 2000)
    dripped: list[int] = []

    def handler(connection: socket.socket) -> None:
        dripped.append(0)
        for byte in content:
            connection.sendall(bytes([byte]))
            dripped[-1] += 1
            time.sleep(0.05)

    assert "does not answer in time" in str(error_of(handler))
    assert len(dripped) == 2 and max(dripped) < len(content), "the client waited for the whole packet"


def test_wait_of_a_get_adds_to_the_time_for_its_answer() -> None:
    def handler(connection: socket.socket) -> None:
        converse(connection, *OPENING, wire.GET)
        time.sleep(1.5)  # Longer than the client waits for an answer to begin.
        converse(connection, *first_batch(b"entry")[1:])

    with serving(handler) as address, quick_client(address) as client:
        assert client.get(wait_seconds=30) is not None
