"""Faults: each lets a run be hit at its n-th commit, and clears up after itself."""

import contextlib
import datetime
import functools
import os
import random
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from unittest import mock

import pytest

from cdc_lakehouse.config.feed import MaintenanceConfig
from cdc_lakehouse.errors import CdcError, ConcurrentRunError
from cdc_lakehouse.lake import catalog as lake_catalog
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.operate.maintenance import Maintenance
from tests.chaos.world import Fault, World, no_fault
from tests.kit.kills import KillAtCommit, before_commit, hold_commit, open_catalog
from tests.kit.lakes import let_spark_do_all, optimize, run_all
from tests.kit.leases import take_on_a_lost_machine
from tests.kit.processes import command_of, descendants, in_session, parent_of, started, state_of
from tests.kit.waiting import until

_DAY: Final = datetime.timedelta(days=1)
_SMALL: Final = 4 << 30
_FEW_BYTES: Final = 700


def _killed(world: World, number: int, times: int = 1) -> bool:
    """The run ends before a commit; its lease stays. `times`: so many runs, each of which gets a little further."""
    happened = False
    for more in range(times):
        with KillAtCommit(number + more)(world.lake) as killed:
            world.run()
        happened = happened or killed.happened
        world.wait_for_lease()
    return happened


def _at_commit(world: World, number: int, do: Callable[[], object]) -> bool:
    done: list[object] = []

    def once() -> None:
        do()
        done.append(None)

    with before_commit(number, once):
        world.try_run()
    return bool(done)


def _compacted_beside(world: World, number: int) -> bool:
    """Worn files of some tables are written anew by somebody who has not asked for the lease, between two commits."""

    def compact() -> None:
        settings = MaintenanceConfig(min_small_files=2, max_delete_ratio=0.01)
        feed = world.lake.feed.model_copy(update={"maintenance": settings})
        maintenance = Maintenance(feed, world.lake.lake, world.lake.session)
        names = [each.name for each in maintenance._chosen(None) if each.state is not None]
        with mock.patch.object(Maintenance, "_lease", return_value=contextlib.nullcontext()):
            # Each takes a third of a second.
            for name in random.Random(number).sample(names, min(len(names), 8)):
                maintenance.compact(name)

    return _at_commit(world, number, compact)


def _other_writer(world: World, number: int) -> bool:
    """Somebody who knows nothing of the project compacts some of the lake's tables, between two commits; of the feed's
    own tables all snapshots but the newest expire, too."""

    def optimize_some() -> None:
        names = [tuple(name.split(".", 1)) for name in world.lake.metadata()]
        for namespace, name in random.Random(number).sample(names, min(len(names), 6)):
            # Cuts are read by their snapshots.
            optimize(world.lake.session(), Identifier(namespace, name), expires=namespace.startswith("cdc_"))

    return _at_commit(world, number, optimize_some)


def _lease_taken(world: World, number: int, *, unreadable: bool = False) -> bool:
    """The run stops for longer than its lease lasts; another one takes the feed, does its work, and dies: at its end,
    or, where a file is `unreadable` to it, at any of its commits."""
    chance = random.Random(number)

    def other() -> None:
        world.wait_for_lease()
        with contextlib.suppress(_DiedError, CdcError), contextlib.ExitStack() as stack:
            if unreadable:
                stack.enter_context(_without_a_file(world, number, unreadable=True))
                if chance.random() < 0.5:
                    stack.enter_context(KillAtCommit(chance.randint(1, 12))(world.lake))
            lease = stack.enter_context(world.lease())
            run_all(world.lake.run(clock=world.now, require_lease=lease.require))
            raise _DiedError

    return _at_commit(world, number, other)


class _DiedError(Exception):
    pass


def _lease_of_another_host(world: World, _: int) -> bool:
    """A run of another host, which died with the lease: nobody else runs until that has ended."""
    take_on_a_lost_machine(world.lake, "another host", world.now)
    with world.lake.without_changes(but=""):
        try:
            world.run()
        except ConcurrentRunError:
            return True
        raise AssertionError("a run has not seen the lease of another host")


def _clock_jumps(world: World, number: int) -> bool:
    """By a day, forward or back, while the run lives."""

    def jump() -> None:
        world.offset += _DAY if number % 2 else -_DAY

    happened = _at_commit(world, number, jump)
    # What died with a lease of tomorrow keeps the feed until then.
    world.offset = max(world.offset, datetime.timedelta()) + _DAY
    return happened


def _warehouse_lost(world: World, number: int, *, whole: bool) -> bool:
    """From a commit on the warehouse cannot be read or written by any process: a link to nowhere, as Iceberg tries for
    a minute to read of each table what stands below a file. Or no file of a table can be made: a file is in the place
    of each directory of data."""
    root, name, lost = world.lake.warehouse, world.lake.name, list[tuple[Path, Path]]()

    def lose() -> None:
        for place in [root] if whole else [*root.glob(f"{name}_*/*/data"), *root.glob(f"cdc_{name}/*/data")]:
            lost.append((place, place.rename(place.with_name(f"{place.name} that is away"))))
            if whole:
                place.symlink_to("nowhere")
            else:
                place.touch()

    try:
        return _at_commit(world, number, lose) and bool(lost)
    finally:
        for place, away in lost:
            place.unlink(missing_ok=True)
            away.rename(place)


def _disk_full(world: World, number: int) -> bool:
    """There is no room from a commit on. On a small file system a file takes all that is free; elsewhere no process of
    Spark may write more than some bytes to a file."""
    balloon = world.lake.warehouse / "balloon"
    free = shutil.disk_usage(world.lake.config_path).free
    if free < _SMALL:
        try:
            return _at_commit(world, number, lambda: fill(balloon))
        finally:
            balloon.unlink(missing_ok=True)
    limited: list[int] = []

    def limit() -> None:
        for process in _of_spark():
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(process, resource.RLIMIT_FSIZE, (_FEW_BYTES, resource.RLIM_INFINITY))
                limited.append(process)

    try:
        return _at_commit(world, number, limit) and bool(limited)
    finally:
        # Workers that were forked meanwhile have the limit of their parent.
        for process in {*limited, *_of_spark()}:
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(process, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def fill(balloon: Path) -> None:
    """Takes all that is free. What a buffer still had would be written when it closes, and fail there."""
    with balloon.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)


def _of_spark() -> list[int]:
    """The JVM and its workers, not the broker."""
    jvms = [each for each in descendants(os.getpid()) if "org.apache.spark" in command_of(each)]
    return [process for jvm in jvms for process in (jvm, *descendants(jvm))]


def _catalog_locked(world: World, number: int) -> bool:
    """Another process keeps the catalog's database for a moment: longer than PyIceberg waits for it, or less."""
    patience = 0.05 if number % 3 else 30
    with open_catalog(world.lake, timeout=30, check_same_thread=False) as other:
        freed: list[threading.Timer] = []

        def lock() -> None:
            other.execute("BEGIN EXCLUSIVE")
            freed.append(threading.Timer(0.4, lambda: other.execute("ROLLBACK")))
            freed[0].start()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lake_catalog, "SQLITE_TIMEOUT_SECONDS", patience)
            happened = _at_commit(world, number, lock)
        for timer in freed:
            timer.join()
        return happened


def _file_away(world: World, number: int, *, unreadable: bool = False) -> bool:
    """A data file is not there yet, or is there and cannot be read."""
    with _without_a_file(world, number, unreadable=unreadable) as happened:
        world.try_run()
    return happened


@contextlib.contextmanager
def _without_a_file(world: World, number: int, *, unreadable: bool) -> Iterator[bool]:
    """Gives whether there is a new file to be without."""
    landed = {row["segment"] for row in world.lake.machinery("segments")}
    sink = world.lake.sink
    new = [path for path in sorted(sink.rglob("CDC*[0-9].*")) if str(path.relative_to(sink)) not in landed]
    if not new:
        yield False
        return
    path = new[number % len(new)]
    away = path.rename(sink.with_name("file that is away"))
    if unreadable:
        path.symlink_to(path)
    try:
        world.may_be_wrong = True
        yield True
    finally:
        path.unlink(missing_ok=True)
        away.rename(path)


def _worker_killed(world: World, number: int) -> bool:
    """SIGKILL of a Python worker of Spark's, while it works. All work is in jobs: small work needs no worker."""
    over, killed = threading.Event(), threading.Event()

    def hunt() -> None:
        seen = 0
        while not over.is_set():
            for process in descendants(os.getpid()):
                # Of Python workers those that run: children of the process that they are forked from.
                forked = all("python_workers" in command_of(each) for each in (process, parent_of(process)))
                seen += forked and state_of(process) == "R"
                if forked and seen > number % 4:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                        killed.set()
                        return
            time.sleep(0.002)

    hunter = threading.Thread(target=hunt, daemon=True)
    hunter.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            let_spark_do_all(patch)
            world.try_run()
    finally:
        over.set()
        hunter.join()
    return killed.is_set()


# --- Those that end processes: the command line in one of its own, and SIGKILL while it makes its n-th commit ---


def _process_killed(world: World, number: int, command: str = "", *, whole: bool = False) -> bool:
    """The process itself, whose JVM and Python workers end by themselves; a child; or all of its processes at once, as
    when a container ends."""
    # Other processes have the machine's clock: to them nobody may have the feed.
    world.wait_for_lease()
    with world.lease():
        pass
    home = world.lake.config_path.parent / "dagster_home"
    run = started(world.lake.config_path, home, "run")
    with hold_commit(world.lake, number) as is_there, run as process:
        until(lambda: is_there() or process.poll() is not None)
        if process.poll() is not None:
            return False
        if whole:
            for each in in_session(process.pid):
                os.kill(each, signal.SIGKILL)
        else:
            victims = [each for each in descendants(process.pid) if command_of(each).split(" ")[0].endswith(command)]
            os.kill(victims[0] if command else process.pid, signal.SIGKILL)
        process.wait(120)
        return process.returncode != 0


FAULTS: Final[dict[str, Fault]] = {
    "none": no_fault,
    "killed at a commit": _killed,
    "killed three times": functools.partial(_killed, times=3),
    # Without the lease, from its beginning to its end.
    "second run beside": lambda world, number: _at_commit(world, number, lambda: run_all(world.lake.run())),
    "compaction beside": _compacted_beside,
    "lease lost": _lease_taken,
    "lease and file lost": functools.partial(_lease_taken, unreadable=True),
    "other writer": _other_writer,
    "lease of another host": _lease_of_another_host,
    "clock jumps": _clock_jumps,
    "warehouse lost": functools.partial(_warehouse_lost, whole=True),
    "warehouse read-only": functools.partial(_warehouse_lost, whole=False),
    "disk full": _disk_full,
    "catalog locked": _catalog_locked,
    "late file": _file_away,
    "unreadable file": functools.partial(_file_away, unreadable=True),
    "worker killed": _worker_killed,
}
PROCESS_FAULTS: Final[dict[str, Fault]] = {
    "SIGKILL of the run": _process_killed,
    "SIGKILL of the JVM": functools.partial(_process_killed, command="java"),
    "SIGKILL of all processes": functools.partial(_process_killed, whole=True),
}
