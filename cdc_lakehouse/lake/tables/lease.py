"""The lease of a feed, which lets one run at a time work on it.

It is a table without rows. A run takes the lease by a commit on top of what it read, so only one of two runs gets it;
a property of the table says who holds it and until when. The run renews it while it lives. The lease of a run that
died expires; another run on the same machine and in the same container sees at once that the process is gone. The
clocks of machines that run the same feed must agree within some seconds."""

from __future__ import annotations

import datetime
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from cdc_lakehouse.errors import ConcurrentRunError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.faults import engine_errors
from cdc_lakehouse.lake.names import HOLDER
from cdc_lakehouse.lake.tables.small_table import commit, create

LEASE: Final = datetime.timedelta(seconds=120)
"""The duration of a lease that is not renewed."""
MAINTENANCE: Final = "maintenance-"
"""The prefix of the names of maintenance's runs, which hold the feed for one table at a time: runs wait for them."""
_LOG: Final = logging.getLogger("cdc_lakehouse")
_LOOK_SECONDS: Final = 0.5
_RENEWALS: Final = 4
"""The number of attempts to renew within one lease."""
_SCHEMA: Final = pa.schema([("run", pa.string())])


@dataclass(frozen=True)
class Holder:
    """The run that holds a lease, or held it last, as the table's property has it. process: see `this_process`.
    released: whether the run has released it, which was at `expires_at` by the clock of its machine. before: for
    maintenance, the run that held it last."""

    run: str
    host: str
    process: str
    expires_at: datetime.datetime
    released: bool = False
    before: str | None = None

    @property
    def is_maintenance(self) -> bool:
        return self.run.startswith(MAINTENANCE)

    def is_alive(self, now: datetime.datetime) -> bool:
        return not self.released and now < self.expires_at and not _is_gone(self.process)

    def __str__(self) -> str:
        return f"run {self.run} on {self.host}"


def last_holder(lake: Lake, feed: str) -> Holder | None:
    """Return the run that took the feed last; None before the first. Raises the errors of the catalog."""
    return _holder(lake.load(system_table(feed, "lease")))


class Lease:
    """The lease of one feed for one run. `clock` returns the time in UTC."""

    def __init__(self, lake: Lake, feed: str, run: str, clock: Callable[[], datetime.datetime]) -> None:
        self.run, self._lake, self._feed, self._clock = run, lake, feed, clock
        self._released = threading.Event()
        self._table: Table | None = None
        self._holder = Holder(run, socket.gethostname(), this_process(), clock())
        self._lost: str | None = None
        self._renewing = threading.Thread(target=self._renew, name=f"lease of {feed}", daemon=True)

    def take(self) -> None:
        """Take the lease and keep it renewed. Raises `ConcurrentRunError` when another run holds it, and
        `ConfigurationError` or `WarehouseFullError` when the warehouse cannot be written."""
        identifier = system_table(self._feed, "lease")
        table = self._lake.load(identifier)
        now = self._clock()
        other = _holder(table)
        if other is not None and other.run != self.run and other.is_alive(now):
            until = other.expires_at.isoformat(timespec="seconds")
            said = f"{other} is not finished; it has the feed until {until}, or longer if it keeps running"
            raise ConcurrentRunError(said, feed=self._feed, advice="wait, or end it")
        if other is not None and self._holder.is_maintenance:
            self._holder = replace(self._holder, before=other.before if other.is_maintenance else other.run)
        try:
            if table is None:
                # This is a run's first write, which shows problems with the warehouse.
                with engine_errors():
                    table = create(self._lake, identifier, _SCHEMA, {"write.metadata.previous-versions-max": "1"})
            self._table = table
            self._write(now + LEASE)
        except (ConcurrentRunError, CommitFailedException) as error:
            raise ConcurrentRunError("another run has just begun", feed=self._feed, advice="wait") from error
        self._renewing.start()

    def require(self) -> None:
        """Raises `ConcurrentRunError` when the run has lost the lease: what it has read may be outdated."""
        if self._lost is not None or self._clock() >= self._holder.expires_at:
            said = f"the lease of run {self.run} has ended: {self._lost or 'it was not renewed in time'}"
            raise ConcurrentRunError(said, feed=self._feed, advice="run again")

    def release(self) -> None:
        """Release the lease, unless it is lost. One that cannot be released expires: the run has done its work."""
        self._released.set()
        self._renewing.join()
        if self._lost is None:
            try:
                self._write(self._clock(), released=True)
            except CommitFailedException:
                return  # Another run has it.
            except Exception as error:  # noqa: BLE001 - Whatever it is.
                _LOG.warning("the lease of run %s could not be released, and will expire: %s", self.run, error)

    def _renew(self) -> None:
        while not self._released.wait((LEASE / _RENEWALS).total_seconds()):
            try:
                self._write(self._clock() + LEASE)
            except CommitFailedException:
                self._lost = "another run has taken it"
                return
            except Exception as error:  # noqa: BLE001 - Whatever it is: until the lease ends it is tried again.
                if self._clock() >= self._holder.expires_at:
                    self._lost = f"it could not be renewed: {error}"
                    return

    def _write(self, expires_at: datetime.datetime, *, released: bool = False) -> None:
        """Raises `CommitFailedException` when another run has written the lease."""
        assert self._table is not None, "it is taken"
        before, new = _holder(self._table), replace(self._holder, expires_at=expires_at, released=released)

        def stands(now: Table) -> bool:
            # Another writer's maintenance leaves the lease as it is; and the catalog may have an unanswered commit.
            holder = _holder(now)
            return holder == before or (holder is not None and (holder.run, holder.process) == (new.run, new.process))

        with engine_errors():
            properties = {HOLDER: msgspec.json.encode(new).decode()}
            self._table = commit(self._table, properties=properties, keep=1, stands=stands)
        self._holder = new


def take_when_free(
    lake: Lake, feed: str, run: str, clock: Callable[[], datetime.datetime], patience: datetime.timedelta,
    waits_for: Callable[[Holder], bool] = lambda _: True,
) -> Lease:  # fmt: skip
    """Take the lease of a feed as `Lease.take` does, and wait up to `patience` for holders that `waits_for` names."""
    end = time.monotonic() + patience.total_seconds()
    while True:
        lease = Lease(lake, feed, run, clock)
        try:
            lease.take()
            return lease
        except ConcurrentRunError:
            other = last_holder(lake, feed)
            waits = other is None or not other.is_alive(clock()) or waits_for(other)
            if not waits or time.monotonic() > end:
                raise
            time.sleep(_LOOK_SECONDS)


def _holder(table: Table | None) -> Holder | None:
    stored = None if table is None else table.properties.get(HOLDER)
    return None if stored is None else msgspec.json.decode(stored, type=Holder)


# --- Processes ---


def this_process() -> str:
    """Return an id of this process: boot id, container, process id, start time; empty where the system has none."""
    return _process(os.getpid()) or ""


def _is_gone(process: str) -> bool:
    """Whether the process has ended, as far as this process can see."""
    place, _, about = process.rpartition("/")
    here = this_process().rpartition("/")[0]
    return bool(place) and place == here and _process(int(about.partition(":")[0])) != process


def _process(number: int) -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        container = Path("/proc/self/ns/pid").readlink()
        about = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The fields follow the name, which is in parentheses and may hold any character; the 20th is the start time.
    return f"{boot}/{container}/{number}:{about.rpartition(')')[2].split()[19]}"
