"""Processes of this machine, as /proc has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def in_session(leader: int) -> list[int]:
    """Processes of a session that are not over."""
    return [
        process
        for process in _all()
        if (about := _about(process)) is not None and about[3] == str(leader) and about[0] != "Z"
    ]


def descendants(root: int) -> list[int]:
    """Children, and theirs."""
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
