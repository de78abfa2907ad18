"""A server that gives the batches of a captured session, byte for byte, to a client that asks in its own way."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire
from tests.canal_captures import Capture, framed
from tests.sources.canal.servers import DONE, HANDSHAKE, batch, frame, heard, refusal


@dataclass
class CapturedCanal:
    """What was acknowledged in the session, in batches as they were sent. `end` bounds what there is for now, `ring`
    how many batches may be open at once."""

    of: Capture
    end: int = 1 << 30
    ring: int = 1 << 30
    acked: int = 0
    _given: int = 0
    _batches: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])

    def __post_init__(self) -> None:
        acked = {each.batch_id for each in self.of.batches}
        for body in framed(self.of.files["conn1_s2c.bin"]):
            packet = wire.Packet.FromString(body)
            if packet.type == wire.MESSAGES:
                id = wire.Messages.FromString(packet.body).batch_id
                if id in acked:
                    self._batches.append((id, frame(body)))

    @property
    def batches(self) -> int:
        return len(self._batches)

    def __call__(self, connection: socket.socket) -> None:
        connection.sendall(HANDSHAKE)
        while True:
            answer = self._answer(heard(connection))
            if answer:
                connection.sendall(answer)

    def _answer(self, packet: wire.Packet) -> bytes:
        match packet.type:
            case wire.CLIENT_AUTHENTICATION | wire.SUBSCRIPTION:
                return DONE
            case wire.CLIENT_ROLLBACK:
                self._given = self.acked
                return b""
            case wire.GET:
                if self._given >= min(self.end, len(self._batches), self.acked + self.ring):
                    return batch(-1)
                self._given += 1
                return self._batches[self._given - 1][1]
            case wire.CLIENT_ACK:
                id = wire.ClientAck.FromString(packet.body).batch_id
                if self.acked >= self._given or self._batches[self.acked][0] != id:
                    return refusal(f"batchId:{id} is not the firstly")
                self.acked += 1
                return b""
            case other:
                raise AssertionError(f"heard {other}")
