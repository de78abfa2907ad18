"""Faults that end processes: the command line in a process of its own, and SIGKILL while it makes its n-th commit."""

from __future__ import annotations

import os
import signal
from typing import Final

from tests.chaos.world import Fault, World
from tests.kit.kills import hold_commit
from tests.kit.processes import command_of, descendants, in_session, started
from tests.kit.waiting import until


def _run_killed(world: World, number: int) -> bool:
    """The process itself; its JVM and Python workers end by themselves."""
    return _hit(world, number, "", whole=False)


def _jvm_killed(world: World, number: int) -> bool:
    return _hit(world, number, "java", whole=False)


def _all_killed(world: World, number: int) -> bool:
    """All of its processes at once, as when a container ends."""
    return _hit(world, number, "", whole=True)


def _hit(world: World, number: int, command: str, *, whole: bool) -> bool:
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


PROCESS_FAULTS: Final[dict[str, Fault]] = {
    "SIGKILL of the run": _run_killed,
    "SIGKILL of the JVM": _jvm_killed,
    "SIGKILL of all processes": _all_killed,
}
