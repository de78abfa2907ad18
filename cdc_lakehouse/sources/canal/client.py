"""A client of Canal servers: batches of entries, each acknowledged once it is stored.

    >>> with CanalClient(source) as client:  # doctest: +SKIP
    ...     batch = client.get(wait_seconds=1)
    ...     if batch is not None:
    ...         keep(batch.entries)
    ...         client.ack(batch)

Delivery is at least once: a batch whose acknowledgement did not arrive is sent again under another number, and its
entries may be grouped differently. Entries have their position in the binlog. A destination has one consumer: a second
one takes its batches away.

The reading of a Canal server by one run, in rounds: batches are received, stored by the caller, and only then
acknowledged.

A server holds what it has read of the binlog in a ring buffer, and reads no further while nothing in it is
acknowledged. So a round ends where the server sends no more for now; after its acknowledgement the next one shows
whether there is more.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from cdc_lakehouse.config import Address, CanalSource
from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources.canal.connection import (
    CanalProtocolError,
    CanalRedeliveryError,
    CanalRefusedError,
    Connection,
    Timeouts,
)
from cdc_lakehouse.sources.canal.positions import PlacedEntry, placed

_LOG: Final = logging.getLogger("cdc_lakehouse")
_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 5.0
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Batch:
    """The server's response to one GET. `entries` are messages of Canal's entry protocol, as received; there may be
    none. `id` counts upwards during the server's life; `connection` is the connection's number in this client."""

    id: int
    entries: tuple[bytes, ...]
    connection: int


class CanalClient:
    """Connects on first use, and again when necessary, to one of the servers in turn. For one thread.

    Raises `SourceUnreachableError` when no server could be reached for `patience_seconds` after the first attempt had
    failed, and not by a second one; `CanalRefusedError` when the reachable ones refuse the user or the destination,
    `CanalProtocolError` when the other side is not a Canal server.
    """

    def __init__(self, source: CanalSource, *, timeouts: Timeouts | None = None, patience_seconds: float = 60) -> None:
        self._source = source
        self._timeouts = timeouts or Timeouts()
        self._patience = patience_seconds
        self._connection: Connection | None = None
        self._connections = 0
        self._place = 0
        self._open: deque[int] = deque()
        self._acked: list[int] = []
        """Batches for which no later response shows that the server has received the acknowledgement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Entries that are not acknowledged are sent again to the next client, and to one that is
        connected already."""
        if self._connection is not None:
            if self._open and not self._connection.closed:
                with contextlib.suppress(SourceUnreachableError, SourceError):
                    self._connection.rollback()
            self._connection.close()
        self._connection = None
        self._open.clear()
        self._acked.clear()

    def check(self) -> None:
        """Raise an error when no server can be reached or accepts the user. A client that reads the destination is not
        disturbed."""
        self._with_some_server(lambda address: Connection.check(address, self._source, self._timeouts))

    def get(self, *, batch_size: int | None = None, wait_seconds: float = 1.0) -> Batch | None:
        """Return the next batch, or None when nothing has come in the time. Several may be open at once.

        Raises `CanalRedeliveryError` when the connection is lost and entries that were returned are sent again, or may
        be; the next call continues. When nothing can be sent again, it reconnects by itself.
        """
        size = self._source.batch_size if batch_size is None else batch_size
        ends = list[float]()

        def is_over(_: RetryCallState) -> bool:
            # The first attempt, which may have hung for long, does not count.
            ends.append(time.monotonic())
            return len(ends) > 1 and ends[-1] - ends[0] >= self._patience

        patiently = Retrying(
            retry=retry_if_exception(self._may_pass),
            stop=is_over,
            wait=wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
            before_sleep=_log_retry,
            reraise=True,
        )
        return patiently(self._get, size, wait_seconds)

    def ack(self, batch: Batch) -> None:
        """Tell the server that the batch need not be sent again. It must be the oldest open one, else `ValueError` is
        raised.

        Raises `CanalRedeliveryError` when the batch's connection is lost. A refusal by the server only shows at the
        next `get`, with the same error.
        """
        if batch.connection != self._connections or self._connection is None or self._connection.closed:
            raise _comes_again([batch.id])
        if not self._open or batch.id != self._open[0]:
            raise ValueError(f"batch {batch.id} is not the oldest that is open: {list(self._open)}")
        try:
            self._connection.ack(batch.id)
        except CdcError as error:
            self._lose(error)
        self._acked.append(self._open.popleft())

    def _get(self, size: int, wait_seconds: float) -> Batch | None:
        connection = self._connected()
        try:
            got = connection.get(size, wait_seconds)
        except CdcError as error:
            self._lose(error)
            raise
        # Requests are answered in order: everything sent before this one has been received.
        self._acked.clear()
        if got.batch_id <= 0:
            return None
        self._open.append(got.batch_id)
        return Batch(got.batch_id, tuple(got.messages), self._connections)

    def _connected(self) -> Connection:
        if self._connection is not None and self._connection.closed:
            # A request was interrupted.
            self._lose(None)
        if self._connection is None:
            self._connection = self._with_some_server(
                lambda address: Connection.open(address, self._source, self._timeouts)
            )
            self._connections += 1
        return self._connection

    def _with_some_server(self, call: Callable[[Address], _Result]) -> _Result:
        """Return the result of `call` for the first server for which it raises no error."""
        faults: list[CdcError] = []
        addresses = self._source.endpoints
        for _ in addresses:
            try:
                return call(addresses[self._place])
            except (SourceUnreachableError, SourceError) as error:
                faults.append(error)
                self._place = (self._place + 1) % len(addresses)
        raise _none_serves(faults)

    def _lose(self, error: CdcError | None) -> None:
        """Close the connection; raise `CanalRedeliveryError` when returned entries are sent again."""
        unsettled = [*self._acked, *self._open]
        self.close()
        if unsettled:
            raise _comes_again(unsettled, error) from error

    def _may_pass(self, error: BaseException) -> bool:
        """Whether a retry may succeed: a destination that was served before may only be moving to another server."""
        if isinstance(error, CanalRefusedError):
            return self._connections > 0
        return isinstance(error, SourceUnreachableError)


def _log_retry(state: RetryCallState) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    _LOG.warning("%s; trying again in %.1f s", error, state.upcoming_sleep)


def _comes_again(batches: Sequence[int], error: CdcError | None = None) -> CanalRedeliveryError:
    many = "batches" if len(batches) > 1 else "batch"
    reason = "" if error is None else f": {error.message}"
    return CanalRedeliveryError(
        f"the connection that gave {many} {', '.join(map(str, batches))} is gone{reason}",
        advice="their entries come again under other numbers; go on",
    )


def _none_serves(faults: Sequence[CdcError]) -> CdcError:
    """Combine the errors of several servers into one."""
    if len(faults) == 1:
        return faults[0]
    kinds = (SourceUnreachableError, CanalRefusedError, CanalProtocolError)
    kind = next(kind for kind in kinds if any(isinstance(fault, kind) for fault in faults))
    advice = next((fault.advice for fault in faults if isinstance(fault, kind)), None)
    return kind(f"no server of {len(faults)} serves: {'; '.join(fault.message for fault in faults)}", advice=advice)


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
            newest_ms = max((entry.time_ms or 0 for entry in found.entries), default=0)
            if found.drained and newest_ms >= self._began_ms:
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
