"""A server with Canal's rules for batches, made for connections that end at any byte."""

from __future__ import annotations

import itertools
import socket
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tests.boundaries.sources import packets_pb2 as wire
from tests.sources.canal.servers import DONE, HANDSHAKE, batch, heard, refusal, reset


@dataclass
class HandMadeCanal:
    """A destination of `entries`. A batch is what was asked for, or what there is; batches are acknowledged in order;
    a rollback brings back what is not. `cuts` has for each connection after how many bytes it is reset, `others` before
    which requests for a batch (from 1) another client takes one."""

    entries: list[bytes]
    cuts: Iterable[int] = ()
    others: Collection[int] = ()
    acked: int = 0
    """Entries that need not come again."""
    ring: int = 1 << 30
    """Entries that may be open at once."""
    connections: int = 0
    heard: Counter[int] = field(default_factory=Counter[int])
    """Packets by type."""
    _given: int = 0
    _open: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self._cuts = iter(self.cuts)

    def cut(self, *cuts: int) -> None:
        """The connections that come next are reset so."""
        self._cuts = iter(cuts)

    def __call__(self, connection: socket.socket) -> None:
        self.connections += 1
        left = next(self._cuts, 1 << 40)

        def say(content: bytes) -> None:
            nonlocal left
            connection.sendall(content[:left])
            left -= len(content)
            if left <= 0:
                reset(connection)
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
                self._given = self.acked
                self._open.clear()
                return b""
            case wire.GET:
                if self.heard[wire.GET] in self.others:
                    self._batch(2)
                return self._batch(wire.Get.FromString(packet.body).fetch_size)
            case wire.CLIENT_ACK:
                return self._take(wire.ClientAck.FromString(packet.body).batch_id)
            case other:
                raise AssertionError(f"heard {other}")

    def _batch(self, size: int) -> bytes:
        entries = self.entries[self._given : min(self._given + size, self.acked + self.ring)]
        if not entries:
            return batch(-1)
        self._given += len(entries)
        self._open.append((next(self._ids), self._given))
        return batch(self._open[-1][0], *entries)

    def _take(self, id: int) -> bytes:
        if not self._open or self._open[0][0] != id:
            return refusal(f"batchId:{id} is not the firstly")
        self.acked = self._open.popleft()[1]
        return b""
