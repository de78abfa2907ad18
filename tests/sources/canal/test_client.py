"""How the client connects, and what it says of batches."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.errors import CdcError, PermanentError, SourceUnreachableError, TransientError
from cdc_lakehouse.sources.canal.client import Batch, CanalClient
from cdc_lakehouse.sources.canal.connection import CanalRedeliveryError, CanalRefusedError
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from tests.sources.canal.hand_made import HandMadeCanal
from tests.sources.canal.servers import (
    DONE,
    HANDSHAKE,
    OPENING,
    Handler,
    batch,
    canal_source,
    closed_port,
    conversation,
    converse,
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


def test_a_server_that_is_not_there_is_tried_with_patience(caplog: pytest.LogCaptureFixture) -> None:
    address = closed_port()
    started = time.monotonic()
    with (
        caplog.at_level(logging.WARNING, "cdc_lakehouse"),
        quick_client(address, patience_seconds=1) as client,
        pytest.raises(SourceUnreachableError, match=f"{address} cannot be reached: Connection refused") as caught,
    ):
        client.get()
    assert 0.9 < time.monotonic() - started < 8
    assert isinstance(caught.value, TransientError)
    assert f"{address} cannot be reached" in caplog.text and "trying again in" in caplog.text


def test_a_server_that_comes_back() -> None:
    canal = HandMadeCanal(ENTRIES, cuts=[0, 10, 20])
    with serving(canal) as address, quick_client(address, patience_seconds=20) as client:
        assert list(taken(client, 3).entries) == ENTRIES[:3]
        assert canal.connections == 4


# --- Several servers ---


def test_the_first_server_that_serves_is_used() -> None:
    canal = HandMadeCanal(ENTRIES)
    with serving(ELSEWHERE) as other, serving(canal) as address, quick_client(closed_port(), other, address) as client:
        for _ in range(3):
            taken(client, 1)
    assert canal.connections == 1


@pytest.mark.parametrize(
    ("second", "patience", "error", "said"),
    [
        (conversation(), 0.0, SourceUnreachableError, "does not answer in time"),
        # A permanent error is not tried again.
        (ELSEWHERE, 30.0, CanalRefusedError, "should start first"),
    ],
    ids=["one refuses, one is silent", "both refuse"],
)
def test_no_server_serves(second: Handler, patience: float, error: type[CdcError], said: str) -> None:
    started = time.monotonic()
    with (
        serving(ELSEWHERE) as first,
        serving(second) as other,
        quick_client(first, other, patience_seconds=patience) as client,
        pytest.raises(error, match="no server of 2 serves: .*should start first.*; .*" + said) as caught,
    ):
        client.get()
    assert isinstance(caught.value, PermanentError) == (second is ELSEWHERE)
    assert time.monotonic() - started < 5


def test_a_destination_that_moves_is_followed() -> None:
    """Refused in between by both: it was served before, so it is waited for."""
    canal = HandMadeCanal(ENTRIES, cuts=[OPENED + 1])
    with serving(canal, ELSEWHERE, ELSEWHERE, canal) as address, quick_client(address, patience_seconds=20) as client:
        assert list(taken(client).entries) == ENTRIES


# --- Batches ---


def test_batches_are_acknowledged_in_order() -> None:
    canal = HandMadeCanal(ENTRIES)
    with serving(canal) as address, quick_client(address) as client:
        first, second = taken(client, 2), taken(client, 2)
        with pytest.raises(ValueError, match=r"batch 2 is not the oldest that is open: \[1, 2\]"):
            client.ack(second)
        client.ack(first)
        client.ack(second)
        with pytest.raises(ValueError, match="batch 2 is not the oldest"):
            client.ack(second)
        assert list(taken(client, 2).entries) == ENTRIES[4:6]
    assert (canal.acked, canal.connections) == (4, 1)


def test_a_rollback_brings_them_again_under_new_numbers() -> None:
    with serving(HandMadeCanal(ENTRIES)) as address, quick_client(address) as client:
        entries = (*taken(client, 2).entries, *taken(client, 2).entries)
        client.rollback()
        again = taken(client, 4)
        assert again == Batch(3, entries, 1)
        client.ack(again)


def test_nothing_is_none() -> None:
    with serving(HandMadeCanal([])) as address, quick_client(address) as client:
        assert client.get(wait_seconds=0) is None


def test_an_unacknowledged_batch_comes_again_to_the_next_client() -> None:
    with serving(HandMadeCanal(ENTRIES)) as address:
        for number in (1, 2):
            with quick_client(address) as client:
                assert taken(client, 2) == Batch(number, tuple(ENTRIES[:2]), 1)


def test_unsubscribing_ends_the_connection() -> None:
    with serving(conversation(*OPENING, wire.UNSUBSCRIPTION, DONE)) as address, quick_client(address) as client:
        client.unsubscribe()


def test_a_failed_acknowledgement_is_never_taken_for_an_answer() -> None:
    """Its error comes before the answer to the next request: the connection goes, with the answer that is out of
    turn, and the entries come again."""
    late = refusal("something goes wrong, batchId:1 is not exist\nat com.alibaba.otter")
    first = conversation(*OPENING, wire.GET, batch(1, b"a"), wire.CLIENT_ACK, wire.GET, late + batch(2, b"b"))
    with serving(first, HandMadeCanal([b"a", b"b"])) as address, quick_client(address) as client:
        client.ack(taken(client))
        with pytest.raises(CanalRedeliveryError, match=r"gave batch 1 is gone.*batchId:1 is not exist:") as caught:
            client.get(wait_seconds=0)
        assert isinstance(caught.value.__cause__, CanalRefusedError)
        assert client.get(wait_seconds=0) == Batch(1, (b"a", b"b"), 2)


def test_a_failed_acknowledgement_that_comes_before_the_next_request() -> None:
    def handler(connection: socket.socket) -> None:
        converse(connection, *OPENING, wire.GET, batch(1, b"a"), wire.CLIENT_ACK, refusal("no such batch"))
        refused.append(connection.recv(1))

    refused: list[bytes] = []
    with serving(handler) as address, quick_client(address) as client:
        client.ack(taken(client))
        time.sleep(0.2)
        with pytest.raises(CanalRedeliveryError, match="no such batch"):
            client.get(wait_seconds=0)
    assert refused == [b""], "a request was sent although an error had come"


def test_a_failed_rollback_after_the_subscription() -> None:
    first = conversation(*OPENING, refusal("rollback error"))
    with serving(first, HandMadeCanal(ENTRIES)) as address, quick_client(address, patience_seconds=5) as client:
        assert taken(client, 1).connection == 2


def test_a_lost_connection_is_told_when_entries_come_again() -> None:
    canal = HandMadeCanal(ENTRIES, cuts=[OPENED + len(batch(1, *ENTRIES[:2])) + 1])
    with serving(canal) as address, quick_client(address, patience_seconds=5) as client:
        first = taken(client, 2)
        with pytest.raises(CanalRedeliveryError, match="gave batch 1 is gone: the Canal server"):
            client.get(batch_size=2, wait_seconds=0)
        with pytest.raises(CanalRedeliveryError, match="gave batch 1 is gone"):
            client.ack(first)
        again = taken(client, 2)
        assert (again.entries, again.connection) == (first.entries, 2)
        client.ack(again)
        with pytest.raises(CanalRedeliveryError):
            client.ack(first)


@pytest.mark.usefixtures("interruptible")
def test_a_client_that_was_interrupted_goes_on() -> None:
    def handler(connection: socket.socket) -> None:
        converse(connection, *OPENING, wire.GET)
        # To the thread that waits: another one's signal would not wake it.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        connection.recv(1)

    with serving(handler, HandMadeCanal(ENTRIES)) as address, CanalClient(canal_source(address)) as client:
        with pytest.raises(KeyboardInterrupt):
            client.get(wait_seconds=5)
        assert taken(client, 1) == Batch(1, (ENTRIES[0],), 2)


# --- Any byte ---


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 700), max_size=6),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    ahead=st.integers(1, 3),
    restarts=st.sets(st.integers(1, 12), max_size=3),
)
def test_every_entry_arrives_whatever_is_cut(cuts: list[int], sizes: list[int], ahead: int, restarts: set[int]) -> None:
    """Connections that end after any number of bytes, clients that go with batches open: what is kept before it is
    acknowledged is all of it, in order."""
    canal = HandMadeCanal(ENTRIES, cuts=cuts)
    kept: list[int] = []
    with serving(canal) as address:
        for batches in (*sorted(restarts), 1 << 30):
            with quick_client(address, patience_seconds=20) as client:
                consume(client, sizes, ahead, kept, batches)
    assert canal.acked == len(ENTRIES)
    new = [place for n, place in enumerate(kept) if place not in kept[:n]]
    assert new == list(range(len(ENTRIES)))
    # What comes again begins where nothing was missed.
    assert all(later <= max(kept[: n + 1]) + 1 for n, later in enumerate(kept[1:]))


def consume(client: CanalClient, sizes: list[int], ahead: int, kept: list[int], batches: int) -> None:
    """So many batches, then the client goes as if it had been killed."""
    open_batches: list[Batch] = []
    for number in range(batches):
        try:
            got = client.get(batch_size=sizes[number % len(sizes)], wait_seconds=0)
            if got is not None:
                kept += [ENTRIES.index(entry) for entry in got.entries]
                open_batches.append(got)
            while open_batches and (got is None or len(open_batches) >= ahead):
                client.ack(open_batches.pop(0))
            if got is None and client.get(wait_seconds=0) is None:
                return
        except CanalRedeliveryError:
            open_batches.clear()
