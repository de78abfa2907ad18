"""Processes of this machine, as /proc has them, and commands in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def started(config: Path, home: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`cdc-lakehouse WORDS` in a session of its own, which its JVM is in too, with a configuration and a home of
    Dagster's. What it says is added to `{home}.log`. What is left of the session is killed in the end."""
    environment = {**os.environ, "CDC_LAKEHOUSE_CONFIG": str(config), "DAGSTER_HOME": str(home)}
    command = [str(Path(sys.executable).with_name("cdc-lakehouse")), *words]
    with home.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def in_session(leader: int) -> list[int]:
    """Processes of a session that are not over."""
    return [
        process
        for process in _all()
        if (about := _about(process)) is not None and about[3] == str(leader) and about[0] != "Z"
    ]


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for process in _all():
        children.setdefault(parent_of(process), []).append(process)

    def below(process: int) -> Iterator[int]:
        for child in children.get(process, ()):
            yield child
            yield from below(child)

    return list(below(root))


def parent_of(process: int) -> int:
    """0 where it is gone."""
    about = _about(process)
    return 0 if about is None else int(about[1])


def works(process: int) -> bool:
    """Whether it has the processor, or waits for it."""
    about = _about(process)
    return about is not None and about[0] == "R"


def is_stopped(process: int) -> bool:
    about = _about(process)
    return about is not None and about[0] == "T"


def command_of(process: int) -> str:
    """Its words with blanks between them; empty where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _all() -> list[int]:
    return [int(place.name) for place in Path("/proc").iterdir() if place.name.isdigit()]


def _about(process: int) -> list[str] | None:
    """State, parent, group and session, behind the name, which may hold anything."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
    return None
