"""Servers on 127.0.0.1 that say what a test wants, to a client that does not know, and made up binlogs as Canal tells
them: their entries have numbers."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message
from hypothesis import strategies as st

from cdc_lakehouse.config import CanalSource
from tests.boundaries.sources import CanalClient, entries_pb2
from tests.boundaries.sources import packets_pb2 as wire
from tests.kit.waiting import until

Handler = Callable[[socket.socket], None]
"""What a server does with one connection; closed afterwards."""

SEED = b"\x01\x02\x03\xff\x05\x06\x07\x08"


@contextlib.contextmanager
def serving(*handlers: Handler) -> Iterator[str]:
    """The address of a server that gives its first connection to the first handler, and so on; to the last one what
    comes after. What a handler raises but for a client that goes is raised at the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    faults: list[BaseException] = []
    threads: list[threading.Thread] = []

    def handle(handler: Handler, connection: socket.socket) -> None:
        try:
            with connection:
                handler(connection)
        except OSError:
            pass
        except BaseException as error:  # noqa: BLE001  Told to the test, which runs in another thread.
            faults.append(error)

    def accept() -> None:
        with contextlib.suppress(OSError):
            for number in range(1_000_000):
                connection, _ = listener.accept()
                connection.settimeout(20)
                handler = handlers[min(number, len(handlers) - 1)]
                threads.append(threading.Thread(target=handle, args=(handler, connection), daemon=True))
                threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # Closing alone does not wake a thread that accepts.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (accepting, *threads):
            thread.join(20)
    if faults:
        raise faults[0]


QUICK = 1.0
"""Seconds for a response to begin, where none comes."""


def client_of(*addresses: str, patience: float = 0, reply: float = 30, **options: Any) -> CanalClient:
    source = {"type": "canal", "addresses": addresses, "destination": "example", **options}
    return CanalClient(CanalSource.model_validate(source), reply_seconds=reply, patience_seconds=patience)


def closed_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


# --- What a server says ---


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def packet(kind: wire.PacketType, body: Message | None = None) -> bytes:
    return frame(wire.Packet(type=kind, body=b"" if body is None else body.SerializeToString()).SerializeToString())


HANDSHAKE = packet(wire.HANDSHAKE, wire.Handshake(seeds=SEED))
DONE = packet(wire.ACK)


def refusal(text: str, code: int = 400) -> bytes:
    return packet(wire.ACK, wire.Ack(error_code=code, error_message=text))


def batch(id: int, *entries: bytes) -> bytes:
    return packet(wire.MESSAGES, wire.Messages(batch_id=id, messages=entries))


def heard(connection: socket.socket) -> wire.Packet:
    """The client's next packet. An OSError when it has gone."""
    return wire.Packet.FromString(_exactly(connection, int.from_bytes(_exactly(connection, 4), "big")))


def _exactly(connection: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        chunk = connection.recv(length - len(content))
        if not chunk:
            raise ConnectionResetError("the client has gone")
        content += chunk
    return content


def converse(connection: socket.socket, *turns: bytes | wire.PacketType | None) -> None:
    """Says the bytes, and hears a packet of each type; for None the client goes without a word."""
    for turn in turns:
        if isinstance(turn, bytes):
            connection.sendall(turn)
        elif turn is None:
            assert connection.recv(1) == b""
        else:
            kind = heard(connection).type
            assert kind == turn, f"heard {kind} instead of {turn}"


def conversation(*turns: bytes | wire.PacketType | None) -> Handler:
    """Then waits until the client goes."""

    def handler(connection: socket.socket) -> None:
        converse(connection, *turns)
        while connection.recv(1000):
            pass

    return handler


OPENING: Sequence[bytes | wire.PacketType] = (
    HANDSHAKE, wire.CLIENT_AUTHENTICATION, DONE, wire.SUBSCRIPTION, DONE, wire.CLIENT_ROLLBACK,
)  # fmt: skip
"""What a client that is let in hears and says first."""


def first_batch(*entries: bytes) -> Sequence[bytes | wire.PacketType]:
    """It has number 2: the first one is taken back, for only then does the next number show that it is the first."""
    return (wire.GET, batch(1, *entries), wire.CLIENT_ROLLBACK, wire.GET, batch(2, *entries))


# --- A server with Canal's rules for batches, made for connections that end at any byte ---


@dataclass
class HandMadeCanal:
    """A destination of `entries`. A batch is what was asked for, or what there is; batches are acknowledged in order;
    a rollback brings back what is not. `cuts` has for each connection after how many bytes it is reset, `others` before
    which requests for a batch (from 1) another client takes one."""

    entries: list[bytes]
    cuts: Iterable[int] = ()
    others: Collection[int] = ()
    ring: int = 1 << 30
    """Entries that may be open at once."""
    connections: int = 0
    heard: Counter[int] = field(default_factory=Counter)
    """Packets by type."""
    _threads: list[threading.Thread] = field(default_factory=list)
    _acked: int = 0
    _given: int = 0
    _open: deque[tuple[int, int]] = field(default_factory=deque)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self._cuts = iter(self.cuts)

    def cut(self, *cuts: int) -> None:
        """The connections that come next are reset so."""
        self._cuts = iter(cuts)

    @property
    def acked(self) -> int:
        """Entries that need not come again, once all clients have gone: they wait for no answer to what they say
        last."""
        until(lambda: not any(each.is_alive() for each in self._threads))
        return self._acked

    @acked.setter
    def acked(self, acked: int) -> None:
        self._acked = acked

    def __call__(self, connection: socket.socket) -> None:
        self._threads.append(threading.current_thread())
        self.connections += 1
        left = next(self._cuts, 1 << 40)

        def say(content: bytes) -> None:
            nonlocal left
            connection.sendall(content[:left])
            left -= len(content)
            if left <= 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise ConnectionResetError

        say(HANDSHAKE)
        while True:
            packet = heard(connection)
            self.heard[packet.type] += 1
            answer = self._answer(packet)
            if answer:
                say(answer)

    def _answer(self, packet: wire.Packet) -> bytes:
        match packet.type:
            case wire.CLIENT_AUTHENTICATION | wire.SUBSCRIPTION | wire.UNSUBSCRIPTION:
                return DONE
            case wire.CLIENT_ROLLBACK:
                self._given = self._acked
                self._open.clear()
                return b""
            case wire.GET:
                if self.heard[wire.GET] in self.others:
                    self._batch(2)
                return self._batch(wire.Get.FromString(packet.body).fetch_size)
            case wire.CLIENT_ACK:
                id = wire.ClientAck.FromString(packet.body).batch_id
                if not self._open or self._open[0][0] != id:
                    return refusal(f"batchId:{id} is not the firstly")
                self._acked = self._open.popleft()[1]
                return b""
            case other:
                raise AssertionError(f"heard {other}")

    def _batch(self, size: int) -> bytes:
        entries = self.entries[self._given : min(self._given + size, self._acked + self.ring)]
        if not entries:
            return batch(-1)
        self._given += len(entries)
        self._open.append((next(self._ids), self._given))
        return batch(self._open[-1][0], *entries)


# --- Binlogs ---

T0_MS = 1_780_000_000_000
_HIGHEST = 10_000_000


@dataclass(frozen=True)
class Binlog:
    """`entries` are in order, `starts` where a transaction begins: there a server begins that is started again.
    `compressed` are the numbers of entries whose transaction is one event."""

    entries: tuple[bytes, ...]
    starts: tuple[int, ...]
    compressed: frozenset[int]

    def told_anew(self, value: bytes) -> bytes:
        """As a server that was started again may tell an entry: by columns that the table has meanwhile. Those of
        one event are told apart by what they say, so they say the same."""
        if number_of(value) in self.compressed:
            return value
        entry = entries_pb2.Entry.FromString(value)
        change = entries_pb2.RowChange.FromString(entry.store_value)
        change.sql += "/anew"
        entry.store_value = change.SerializeToString()
        return entry.SerializeToString()


def number_of(value: bytes) -> int:
    return int(entries_pb2.RowChange.FromString(entries_pb2.Entry.FromString(value).store_value).sql.split("/")[0])


def binlog_of(shape: Sequence[dict[str, Any]]) -> Binlog:
    """Of transactions: `rows` of them, what `kind` of source wrote them, seconds since the one before, a new file
    (whose name MariaDB does not tell at once)."""
    entries: list[bytes] = []
    starts: list[int] = []
    compressed: set[int] = set()
    file, offset, time = 1, _HIGHEST, T0_MS

    def add(kind: entries_pb2.EntryType, event: entries_pb2.EventType | None, table: str = "") -> None:
        header = entries_pb2.Header(
            logfile_name=f"bin.{file:06}", logfile_offset=offset, server_id=1, execute_time=time, schema_name="d",
            table_name=table, event_length=50,
        )  # fmt: skip
        if event is not None:
            header.event_type = event
        content = entries_pb2.RowChange(sql=str(len(entries))).SerializeToString()
        entries.append(entries_pb2.Entry(header=header, entry_type=kind, store_value=content).SerializeToString())

    for number, each in enumerate(shape):
        kind, rows = each["kind"], each["rows"]
        time += 1000 * each["seconds"]
        if each["rotated"]:
            # To where nothing was, whatever the file is called.
            file, offset = file + (kind != "mariadb"), _HIGHEST - 100_000 * (1 + number)
        starts.append(len(entries))
        if kind == "ddl":
            add(entries_pb2.ROW_DATA, entries_pb2.ALTER, "t")
            offset += 100
            continue
        step = 0 if kind == "compressed" else 50
        first = len(entries)
        if kind != "mariadb":
            add(entries_pb2.TRANSACTION_BEGIN, None)
            offset += step
        for row in range(rows):
            add(entries_pb2.ROW_DATA, entries_pb2.UPDATE, "tu"[row % 2])
            offset += step
        add(entries_pb2.TRANSACTION_END, None)
        offset += 60
        if kind == "compressed":
            compressed.update(range(first, len(entries)))
    return Binlog(tuple(entries), tuple(starts), frozenset(compressed))


binlogs = st.lists(
    st.fixed_dictionaries({
        "kind": st.sampled_from(["mysql", "mariadb", "compressed", "ddl"]),
        "rows": st.integers(1, 6),
        "seconds": st.sampled_from([0, 0, 1, 30, 100_000]),
        "rotated": st.booleans(),
    }),
    min_size=1,
    max_size=8,
).map(binlog_of)  # fmt: skip
