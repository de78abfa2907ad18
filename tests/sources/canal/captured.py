"""A server that gives the batches of a captured session, byte for byte, to a client that asks in its own way."""

from __future__ import annotations

from tests.boundaries.sources import packets_pb2 as wire
from tests.canal_captures import Capture, framed
from tests.sources.canal.hand_made import HandMadeCanal
from tests.sources.canal.servers import batch, frame


class CapturedCanal(HandMadeCanal):
    """What was acknowledged in the session, in batches as they were sent: `acked` counts batches. `end` bounds what
    there is for now, `ring` how many batches may be open at once."""

    def __init__(self, of: Capture, end: int = 1 << 30, ring: int = 1 << 30, acked: int = 0) -> None:
        super().__init__([], ring=ring, acked=acked)
        self.end = end
        known = {each.batch_id for each in of.batches}
        sent = ((body, wire.Packet.FromString(body)) for body in framed(of.files["conn1_s2c.bin"]))
        told = ((wire.Messages.FromString(p.body).batch_id, frame(b)) for b, p in sent if p.type == wire.MESSAGES)
        self._batches = [(id, content) for id, content in told if id in known]

    @property
    def batches(self) -> int:
        return len(self._batches)

    def _batch(self, size: int) -> bytes:
        if self._given >= min(self.end, self.batches, self.acked + self.ring):
            return batch(-1)
        id, content = self._batches[self._given]
        self._given += 1
        self._open.append((id, self._given))
        return content
