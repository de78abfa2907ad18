"""The lease of a feed, held by runs of this process, of others, and of machines that died."""

import contextlib
import datetime
import subprocess
import sys
from collections.abc import Callable, Iterator
from unittest import mock

from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.tables import lease as module
from cdc_lakehouse.lake.tables.lease import LEASE, MAINTENANCE, Holder, Lease, last_holder, take_when_free
from tests.kit.lakes import TestLake

__all__ = ["LEASE", "MAINTENANCE", "Lease", "take_when_free"]
_PROGRAM = """if True:
    import os, pathlib, sys
    from cdc_lakehouse import config
    from cdc_lakehouse.errors import CdcError
    from cdc_lakehouse.lake.catalog import Lake
    from cdc_lakehouse.lake.tables.lease import Lease
    from cdc_lakehouse.changelog.positions import utc_now
    found = config.load(pathlib.Path(sys.argv[1]))
    try:
        Lease(Lake(found.lake, found.storage), sys.argv[2], sys.argv[3], utc_now).take()
        print("taken", flush=True)
    except CdcError as error:
        print(error, flush=True)
    os._exit(9)
"""


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def later(seconds: float) -> datetime.datetime:
    return now() + datetime.timedelta(seconds=seconds)


def lease_of(lake: TestLake, run: str, clock: Callable[[], datetime.datetime] = now) -> Lease:
    return Lease(lake.lake, lake.name, run, clock)


def holder_of(lake: TestLake) -> Holder | None:
    found = last_holder(lake.lake, lake.name)
    return found if found is not None and found.is_alive(now()) else None


def take_elsewhere(lake: TestLake, run: str) -> str:
    """Take the lease in a process that then ends as one that is killed; gives what it printed."""
    arguments = [sys.executable, "-c", _PROGRAM, str(lake.config_path), lake.name, run]
    return subprocess.run(arguments, stdout=subprocess.PIPE, check=False, text=True).stdout


def take_on_a_lost_machine(lake: TestLake, run: str, clock: Callable[[], datetime.datetime] = now) -> None:
    """Take the lease as a process that cannot be seen from here, and that renews nothing any more."""
    elsewhere = mock.patch.object(module, "this_process", return_value="boot/pid:[1]/1:1")
    with elsewhere, mock.patch.object(Lease, "_renew"):
        lease_of(lake, run, clock).take()


@contextlib.contextmanager
def renewed_soon() -> Iterator[None]:
    """Leases are renewed each half second. They last so long that a busy machine is in time."""
    with mock.patch.object(module, "_RENEWALS", LEASE.total_seconds() * 2):
        yield


def table_of(lake: TestLake) -> module.Table:
    return lake.lake.existing(system_table(lake.name, "lease"))


def loaded_elsewhere(lake: TestLake) -> module.Table:
    return Lake(lake.config.lake).existing(system_table(lake.name, "lease"))
