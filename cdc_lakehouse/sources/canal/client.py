"""A client of Canal servers: batches of entries, each acknowledged once it is stored.

Delivery is at least once: a batch whose acknowledgement did not arrive is sent again under another number, and its
entries may be grouped differently. A destination has one consumer: a second one takes its batches away.

A connection from the handshake on:

    server: HANDSHAKE(seed)      client: CLIENT_AUTHENTICATION       server: ACK
    client: SUBSCRIPTION         server: ACK                         client: CLIENT_ROLLBACK
    client: GET                  server: MESSAGES                    client: CLIENT_ACK …

A server responds to an acknowledgement or a rollback only when it fails, with an ACK in the place of the response to
the next request. So a response of an unexpected kind ends the connection, and so does a request that is not completed:
the two sides are never a packet apart. Facts: captured sessions with servers 1.1.7.

A packet is its length in four bytes, the most significant first, and a Packet. A packet takes no memory before its
bytes arrive, whatever length it announces. Every wait ends: a packet must begin within its timeout, and then arrive at
a rate that is slow for any network.

A run reads in rounds: batches are received, stored by the caller, and only then acknowledged. A server holds what it
has read of the binlog in a ring buffer, and reads no further while nothing in it is acknowledged. So a round ends where
the server sends no more for now; after its acknowledgement the next one shows whether there is more."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import socket
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from cdc_lakehouse.config.sources import Address, CanalSource
from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError, TransientError
from cdc_lakehouse.sources.canal.positions import PlacedEntry, placed
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire

_LOG: Final = logging.getLogger("cdc_lakehouse")
_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 5.0


class CanalProtocolError(SourceError):
    """The received data is not Canal's protocol."""


class CanalRefusedError(SourceError):
    """The server answers a request with an error."""


class CanalRedeliveryError(TransientError):
    """The connection is lost: entries that were not acknowledged are sent again, in batches with other numbers. So may
    be those of the batch that was acknowledged last."""


MAX_PACKET: Final = 256 * 1024 * 1024
"""In bytes. Canal's buffer of a destination has 16 MiB unless it is set to more; a larger entry is sent as a whole."""

_LENGTH: Final = 4
_CHUNK: Final = 64 * 1024
_SLOWEST: Final = 64 * 1024  # bytes a second
_MAGIC: Final = (0, 17)
_VERSIONS: Final = (0, 1)
_NOT_COMPRESSED: Final = (0, 1)
_LOGIN: Final = (
    "check source.user and source.password (in init: canal://USER:PASSWORD@host:port/…): Canal's own, not the "
    "database's"
)
_NOT_CANAL: Final = "see whether it is the TCP port of a Canal server of version 1.1, 11111 by default"


def scrambled(password: str, seed: bytes) -> bytes:
    """Return `SHA1(password) XOR SHA1(seed + SHA1(SHA1(password)))` in 40 lower-case hexadecimal digits. Source:
    captured sessions. A real server takes it in tests/servers/test_canal.py."""
    once = hashlib.sha1(password.encode("utf-8")).digest()
    mask = hashlib.sha1(seed + hashlib.sha1(once).digest()).digest()
    return bytes(left ^ right for left, right in zip(once, mask, strict=True)).hex().encode("ascii")


# A destination has one client, and all of Canal's own clients use this id.
_CLIENT: Final = "1001"
_IDLE: Final = 3_600_000  # milliseconds after which the server may drop a silent client
_MILLISECONDS: Final = 2
_AT_ONCE: Final = -1  # 0 would wait for ever
_GREATEST_HANDSHAKE: Final = 4096
_SHOWN: Final = 300

_CONNECT_SECONDS: Final = 10
REPLY_SECONDS: Final = 30.0
"""The time for a response to begin; for a GET in addition to the time that the server may wait."""

_Body = TypeVar("_Body", bound=Message)


class Connection:
    """A client that is logged in, over one TCP connection, and subscribed to the source's destination; without
    `subscribes` no other client is disturbed. Raises `SourceUnreachableError` when the connection fails or nothing
    comes in time, `CanalProtocolError` when something other than a packet comes, and `CanalRefusedError` for an error
    that the server reports; after any of them it is closed."""

    def __init__(self, address: Address, source: CanalSource, reply_seconds: float, *, subscribes: bool) -> None:
        self._address = address
        self._destination = source.destination
        self._reply_seconds = reply_seconds
        self._last_batch: int | None = None
        self.open, self.acked = deque[int](), list[int]()
        """Batches that are not acknowledged; and those for which no later response shows that the server knows it."""
        self.closed = False
        try:
            self._socket = socket.create_connection(address, _CONNECT_SECONDS)
        except OSError as error:
            raise self._lost(error, "cannot be reached: no connection in time", "cannot be reached") from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._closed_unless_done():
            self._authenticate(source)
            if subscribes:
                request = wire.Sub(destination=source.destination, client_id=_CLIENT)
                if source.filter is not None:
                    request.filter = source.filter
                self._send(wire.SUBSCRIPTION, request)
                refusal = f"refuses the destination {source.destination}"
                self._answer(wire.ACK, wire.Ack, refusal, "check its name, and whether it runs on that server")
                # Not before the subscription, as in Canal's own client: its failure would be read as the response to
                # that.
                self.rollback()

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def get(self, batch_size: int, wait_seconds: float) -> wire.Messages:
        """Request a batch of at most `batch_size` KiB. The server waits until it is full or the time is over, then
        sends what it has; with 0 at once. Raises `SourceUnreachableError` when another client has taken a batch
        meanwhile: what follows that one must not be stored before it."""
        with self._closed_unless_done():
            batch = self._batch(batch_size, wait_seconds)
            if batch.batch_id > 0 and self._last_batch is None:
                # Whether another client has taken what is before it since the connection was opened, nothing shows. Of
                # the batch with the next number after a rollback it is known: it begins with what is not acknowledged.
                self._last_batch = batch.batch_id
                self.rollback()
                batch = self._batch(batch_size, 0)
            if batch.batch_id > 0:
                if batch.batch_id - 1 != self._last_batch:
                    said = f"another client of the Canal server {self._address} takes entries of {self._destination}"
                    raise SourceUnreachableError(said, advice="end it: a destination has one consumer")
                self._last_batch = batch.batch_id
                self.open.append(batch.batch_id)
            # Requests are answered in order: everything sent before this one has been received.
            self.acked.clear()
            return batch

    def _batch(self, size: int, wait_seconds: float) -> wire.Messages:
        timeout = _AT_ONCE if wait_seconds <= 0 else max(1, round(wait_seconds * 1000))
        request = wire.Get(
            destination=self._destination, client_id=_CLIENT, fetch_size=size, timeout=timeout, unit=_MILLISECONDS,
            auto_ack=False,
        )  # fmt: skip
        self._send(wire.GET, request)
        batch = self._answer(wire.MESSAGES, wire.Messages, "refuses a request", wait_seconds=wait_seconds)
        if batch.messages and batch.batch_id <= 0:
            raise self._strange(f"sends entries in a batch of number {batch.batch_id}")
        return batch

    def ack(self) -> None:
        """Acknowledge the oldest open batch. The server answers only when it refuses, at the next request."""
        with self._closed_unless_done():
            body = wire.ClientAck(destination=self._destination, client_id=_CLIENT, batch_id=self.open[0])
            self._send(wire.CLIENT_ACK, body)
        self.acked.append(self.open.popleft())

    def rollback(self) -> None:
        with self._closed_unless_done():
            self._send(wire.CLIENT_ROLLBACK, wire.ClientRollback(destination=self._destination, client_id=_CLIENT))

    def _authenticate(self, source: CanalSource) -> None:
        handshake = self._answer(wire.HANDSHAKE, wire.Handshake, "refuses the connection", limit=_GREATEST_HANDSHAKE)
        password = source.password or ""
        if password and not handshake.seeds:
            raise self._strange("gives no seed to scramble the password with, and it is not sent in plain text")
        secret = scrambled(password, handshake.seeds) if password else b""
        request = wire.ClientAuth(
            username=source.user or "", password=secret, net_read_timeout=_IDLE, net_write_timeout=_IDLE
        )
        self._send(wire.CLIENT_AUTHENTICATION, request)
        # After a refusal Canal 1.1.7 sends a second, empty ACK: only the first one matters.
        self._answer(wire.ACK, wire.Ack, "refuses the user", _LOGIN)

    def _send(self, kind: wire.PacketType, body: Message) -> None:
        content = wire.Packet(type=kind, body=body.SerializeToString()).SerializeToString()
        try:
            self._socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                self._socket.recv(1, socket.MSG_PEEK)
                # Without a request this means: an acknowledgement or a rollback failed, or the server has closed the
                # connection.
                self._answer(None, wire.Ack, "refuses what was sent before")
            self._socket.settimeout(self._reply_seconds)
            self._socket.sendall(len(content).to_bytes(_LENGTH, "big") + content)
        except OSError as error:
            raise self._lost(error) from error

    def _answer(
        self, kind: wire.PacketType | None, body: type[_Body], refusal: str, advice: str | None = None, *,
        wait_seconds: float = 0, limit: int = MAX_PACKET,
    ) -> _Body:  # fmt: skip
        """Read the body of the next packet that is no heartbeat, which must be of this kind and announce at most
        `limit` bytes. Raises `CanalRefusedError` where it is an error."""
        deadline = time.monotonic() + self._reply_seconds + max(0.0, wait_seconds)
        while True:
            length = int.from_bytes(self._read(_LENGTH, deadline), "big")
            if length > limit:
                raise self._strange(f"announces a packet of {length} bytes, where {limit} are the most")
            content = self._read(length, deadline + length / _SLOWEST)
            packet = self._parsed(wire.Packet, content, "what is no packet of Canal")
            if packet.magic_number not in _MAGIC or packet.version not in _VERSIONS:
                raise self._strange(f"sends a packet of number {packet.magic_number} and version {packet.version}")
            if packet.compression not in _NOT_COMPRESSED:
                raise self._strange(f"sends a packet with compression {packet.compression}, of which none is known")
            if packet.type != wire.HEARTBEAT_PACKET:
                break
        what = f"a packet of type {packet.type} with a body that is none of it"
        if packet.type == wire.ACK:
            ack = self._parsed(wire.Ack, packet.body, what)
            if ack.error_code:
                # Without the stack trace that follows.
                line = (ack.error_message.splitlines() or [""])[0].strip()[:_SHOWN]
                said = f"error {ack.error_code}, {line}" if line else f"error {ack.error_code}"
                raise CanalRefusedError(f"the Canal server {self._address} {refusal}: {said}", advice=advice)
        if packet.type != kind:
            raise self._strange(f"sends a packet of type {packet.type} that was not asked for")
        return self._parsed(body, packet.body, what)

    def _read(self, length: int, deadline: float) -> bytes:
        content = bytearray()
        while len(content) < length:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise self._lost(TimeoutError())
            try:
                self._socket.settimeout(remaining)
                chunk = self._socket.recv(min(_CHUNK, length - len(content)))
            except OSError as error:
                raise self._lost(error) from error
            if not chunk:
                raise self._unreachable("has closed the connection")
            content += chunk
        return bytes(content)

    def _lost(
        self, error: OSError, late: str = "does not answer in time", gone: str = "is gone"
    ) -> SourceUnreachableError:
        is_late = isinstance(error, TimeoutError)
        return self._unreachable(late if is_late else f"{gone}: {error.strerror or type(error).__name__}")

    def _unreachable(self, what: str) -> SourceUnreachableError:
        said = f"the Canal server {self._address} {what}"
        return SourceUnreachableError(said, advice="see whether it runs there and the network lets it through")

    def _parsed(self, kind: type[_Body], content: bytes, what: str) -> _Body:
        try:
            return kind.FromString(content)
        except DecodeError:
            raise self._strange(f"sends {what}") from None

    def _strange(self, what: str) -> CanalProtocolError:
        return CanalProtocolError(f"{self._address} {what}", advice=_NOT_CANAL)

    @contextlib.contextmanager
    def _closed_unless_done(self) -> Generator[None]:
        """Close the connection when an exchange is not completed: the two sides are out of step then."""
        try:
            yield
        except BaseException:
            self.close()
            raise


class Batch(NamedTuple):
    """The server's response to one GET: entries as received, or none. `id` counts upwards during the server's life;
    `connection` is the connection's number in this client."""

    id: int
    entries: tuple[bytes, ...]
    connection: int


class CanalClient(contextlib.AbstractContextManager["CanalClient"]):
    """Connects on first use, and again when necessary, to one of the servers in turn. For one thread. Raises
    `SourceUnreachableError` when no server could be reached for `patience_seconds` after the first attempt had failed,
    and not by a second one; `CanalRefusedError` when the reachable ones refuse the user or the destination,
    `CanalProtocolError` when the other side is not a Canal server."""

    def __init__(
        self, source: CanalSource, *, reply_seconds: float = REPLY_SECONDS, patience_seconds: float = 60
    ) -> None:
        self._source = source
        self._reply_seconds = reply_seconds
        self._patience = patience_seconds
        self._connection: Connection | None = None
        self._connections = 0
        self._place = 0

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Entries that are not acknowledged are sent again, also to a connected client."""
        if self._connection is not None:
            if self._connection.open and not self._connection.closed:
                with contextlib.suppress(SourceUnreachableError, SourceError):
                    self._connection.rollback()
            self._connection.close()
        self._connection = None

    def check(self) -> None:
        """Raise an error when no server can be reached or accepts the user; disturb no client."""
        self._with_some_server(subscribes=False).close()

    def get(self, *, batch_size: int | None = None, wait_seconds: float = 1.0) -> Batch | None:
        """Return the next batch, or None when nothing has come in the time. Several may be open at once. Raises
        `CanalRedeliveryError` when the connection is lost and entries that were returned are sent again, or may be; the
        next call continues. When nothing can be sent again, it reconnects by itself."""
        since: float | None = None  # The first attempt, which may have hung for long, does not count.
        longest = _FIRST_WAIT
        while True:
            try:
                if self._connection is not None and self._connection.closed:
                    self._lose(None)  # A request was interrupted.
                if self._connection is None:
                    self._connection = self._with_some_server()
                    self._connections += 1
                try:
                    got = self._connection.get(batch_size or self._source.batch_size, wait_seconds)
                except CdcError as error:
                    self._lose(error)
                    raise
                return Batch(got.batch_id, tuple(got.messages), self._connections) if got.batch_id > 0 else None
            except (SourceUnreachableError, CanalRefusedError) as error:
                # A destination that was served before may only be moving to another server.
                may_pass = isinstance(error, SourceUnreachableError) or self._connections > 0
                now = time.monotonic()
                if not may_pass or (since is not None and now - since >= self._patience):
                    raise
                since, pause = since or now, random.uniform(0, longest)
                _LOG.warning("%s; trying again in %.1f s", error, pause)
                time.sleep(pause)
                longest = min(2 * longest, _LONGEST_WAIT)

    def ack(self, batch: Batch) -> None:
        """Tell the server that the oldest open batch need not be sent again. Raises `CanalRedeliveryError` when its
        connection is lost. A refusal by the server only shows at the next `get`, with the same error."""
        connection = self._connection
        if batch.connection != self._connections or connection is None or connection.closed:
            raise _comes_again([batch.id])
        try:
            connection.ack()
        except CdcError as error:
            self._lose(error)

    def _with_some_server(self, *, subscribes: bool = True) -> Connection:
        faults: list[CdcError] = []
        addresses = self._source.endpoints
        for _ in addresses:
            try:
                return Connection(addresses[self._place], self._source, self._reply_seconds, subscribes=subscribes)
            except (SourceUnreachableError, SourceError) as error:
                faults.append(error)
                self._place = (self._place + 1) % len(addresses)
        if len(faults) == 1:
            raise faults[0]
        kinds = (SourceUnreachableError, CanalRefusedError, CanalProtocolError)
        kind = next(kind for kind in kinds if any(isinstance(fault, kind) for fault in faults))
        advice = next((fault.advice for fault in faults if isinstance(fault, kind)), None)
        raise kind(f"no server of {len(faults)} serves: {'; '.join(fault.message for fault in faults)}", advice=advice)

    def _lose(self, error: CdcError | None) -> None:
        """Close the connection; raise `CanalRedeliveryError` when returned entries are sent again."""
        connection = self._connection
        unsettled = [] if connection is None else [*connection.acked, *connection.open]
        self.close()
        if unsettled:
            raise _comes_again(unsettled, error) from error


def _comes_again(batches: Sequence[int], error: CdcError | None = None) -> CanalRedeliveryError:
    many = "batches" if len(batches) > 1 else "batch"
    reason = "" if error is None else f": {error.message}"
    said = f"the connection that gave {many} {', '.join(map(str, batches))} is gone{reason}"
    return CanalRedeliveryError(said, advice="their entries come again under other numbers; go on")


_WAIT_SECONDS: Final = 1.0
"""The wait for the first batch of a round: a server that was idle, or had a full ring buffer, must read first."""
_ROUND_BYTES: Final = 64 << 20
_MOST_BATCHES: Final = 1 << 16


class Round(NamedTuple):
    """Entries of one connection (its number in the client), in order. `batches` are open; there are none where the
    connection was lost meanwhile, and the entries are sent again."""

    connection: int
    entries: list[PlacedEntry]
    batches: list[Batch]


def rounds(client: CanalClient, source: CanalSource) -> Iterator[Round]:
    """Yield the rounds of a run, in order, up to everything that existed at its start or a limit of the source. A round
    is acknowledged when the next one is asked for: store it before. Raises `SourceUnreachableError`,
    `CanalRefusedError` and `CanalProtocolError`, as `CanalClient.get` does."""
    entries_left, bytes_left = source.max_entries, source.max_bytes
    deadline, began_ms = time.monotonic() + source.max_seconds, time.time() * 1000
    # In a round. Where connections do not last it is one: an acknowledged batch need not be sent again.
    most_batches = _MOST_BATCHES
    while entries_left > 0 and bytes_left > 0 and time.monotonic() < deadline:
        batches: list[Batch] = []
        entries: list[PlacedEntry] = []
        bytes_after = max(0, bytes_left - _ROUND_BYTES)
        drained, connection = False, 0
        while entries_left > 0 and bytes_left > bytes_after and len(batches) < most_batches:
            if time.monotonic() >= deadline:
                break
            try:
                batch = client.get(wait_seconds=0 if batches else _WAIT_SECONDS)
            except CanalRedeliveryError as error:
                _LOG.warning("%s", error)
                most_batches = 1
                batches.clear()  # Their entries are sent again.
                break
            if batch is None:
                drained = True
                break
            batches.append(batch)
            connection = batch.connection
            entries += map(placed, batch.entries)
            entries_left -= len(batch.entries)
            bytes_left -= sum(map(len, batch.entries))
        if not entries and not batches:
            if drained:
                return
            continue
        yield Round(connection, entries, batches)
        try:
            for batch in batches:
                client.ack(batch)
        except CanalRedeliveryError as error:
            # Entries whose batch cannot be acknowledged come in a later round.
            _LOG.warning("%s", error)
            most_batches = 1
        else:
            most_batches = min(2 * most_batches, _MOST_BATCHES)
        # A source that is always busy is read up to the start of the run.
        if drained and max((entry.time_ms or 0 for entry in entries), default=0) >= began_ms:
            return
