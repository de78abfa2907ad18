"""A server that gives the batches of a captured session to a client that asks in its own way."""

from __future__ import annotations

from tests.canal_captures import Capture
from tests.sources.canal.hand_made import HandMadeCanal
from tests.sources.canal.servers import batch


class CapturedCanal(HandMadeCanal):
    """What was acknowledged in the session, in batches as they were sent: `acked` counts batches. `end` bounds what
    there is for now, `ring` how many batches may be open at once."""

    def __init__(self, of: Capture, end: int = 1 << 30, ring: int = 1 << 30, acked: int = 0) -> None:
        super().__init__([], ring=ring, acked=acked)
        self.end = end
        self._batches = of.batches

    @property
    def batches(self) -> int:
        return len(self._batches)

    def _batch(self, size: int) -> bytes:
        if self._given >= min(self.end, self.batches, self.acked + self.ring):
            return batch(-1)
        self._given += 1
        self._open.append((next(self._ids), self._given))
        return batch(self._open[-1][0], *self._batches[self._given - 1].messages)
