"""The reading of a Canal server by one run, in rounds: batches are received, stored by the caller, and only then
acknowledged.

A server holds what it has read of the binlog in a ring buffer, and reads no further while nothing in it is
acknowledged. So a round ends where the server sends no more for now; after its acknowledgement the next one shows
whether there is more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.config import CanalSource
from cdc_lakehouse.sources.canal.client import Batch, CanalClient
from cdc_lakehouse.sources.canal.connection import CanalRedeliveryError
from cdc_lakehouse.sources.canal.entry_identity import PlacedEntry, placed

_LOG: Final = logging.getLogger("cdc_lakehouse")
_WAIT_SECONDS: Final = 1.0
"""The wait for the first batch of a round: a server that was idle, or had a full ring buffer, must read first."""
_ROUND_BYTES: Final = 64 << 20
_MOST_BATCHES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Round:
    """Entries of one connection (its number in the client), in order. `batches` are open; there are none where the
    connection was lost meanwhile, and the entries are sent again."""

    connection: int
    entries: tuple[PlacedEntry, ...]
    batches: tuple[Batch, ...]
    drained: bool
    """Whether the server had no more entries when the round ended."""

    @property
    def newest_ms(self) -> int:
        """The time of the newest entry's execution at the source, in milliseconds since 1970; 0 where no entry has
        it."""
        return max((entry.time_ms or 0 for entry in self.entries), default=0)


class BatchRounds:
    """The rounds of a run. It ends when everything that existed at its start is read, or a limit of the source is
    reached."""

    def __init__(self, client: CanalClient, source: CanalSource) -> None:
        self._client = client
        self._entries = source.max_entries
        self._bytes = source.max_bytes
        self._deadline = time.monotonic() + source.max_seconds
        self._began_ms = time.time() * 1000
        self._batches_together = _MOST_BATCHES
        """The maximum number of batches in a round. Where connections do not last it is one: an acknowledged batch need
        not be sent again."""

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds in order; acknowledge each one before requesting the next.

        Raises `SourceUnreachableError`, `CanalRefusedError` and `CanalProtocolError`, as `CanalClient.get` does.
        """
        while self._entries > 0 and self._bytes > 0 and time.monotonic() < self._deadline:
            found = self._next()
            if not found.entries and not found.batches:
                if found.drained:
                    return
                continue
            self._entries -= len(found.entries)
            self._bytes -= sum(len(entry.value) for entry in found.entries)
            yield found
            # A source that is always busy is read up to the start of the run.
            if found.drained and found.newest_ms >= self._began_ms:
                return

    def acknowledge(self, taken: Round) -> None:
        """Acknowledge the batches of a round, in order. Entries whose batch cannot be acknowledged come in a later
        round."""
        try:
            for batch in taken.batches:
                self._client.ack(batch)
        except CanalRedeliveryError as error:
            self._note_lost_connection(error)
        else:
            self._batches_together = min(2 * self._batches_together, _MOST_BATCHES)

    def _next(self) -> Round:
        batches: list[Batch] = []
        entries: list[PlacedEntry] = []
        entries_left, bytes_left = self._entries, min(self._bytes, _ROUND_BYTES)
        drained, connected = False, True
        while entries_left > 0 and bytes_left > 0 and len(batches) < self._batches_together:
            if time.monotonic() >= self._deadline:
                break
            try:
                batch = self._client.get(wait_seconds=0 if batches else _WAIT_SECONDS)
            except CanalRedeliveryError as error:
                self._note_lost_connection(error)
                connected = False
                break
            if batch is None:
                drained = True
                break
            batches.append(batch)
            entries += map(placed, batch.entries)
            entries_left -= len(batch.entries)
            bytes_left -= sum(map(len, batch.entries))
        connection = batches[0].connection if batches else 0
        return Round(connection, tuple(entries), tuple(batches) if connected else (), drained)

    def _note_lost_connection(self, error: CanalRedeliveryError) -> None:
        _LOG.warning("%s", error)
        self._batches_together = 1
