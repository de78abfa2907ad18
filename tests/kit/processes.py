"""Commands and servers in processes of their own, and processes of this machine, as /proc has them."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.kit.waiting import until

# Below the ports that Linux gives to connections (32768 and above): a server may take seconds until it binds its port,
# and in that time no connection may take it. Two test processes draw the same one hardly ever.
_PORTS: Final = range(12000, 32000)
# Dagster's servers import for long on a machine that is busy. One that ends is seen at once.
_START_SECONDS: Final = 600
_given: Final[set[int]] = set()


def free_port() -> int:
    """A port that nobody listens on and that this process was not given before."""
    # Not the module's own generator: tests seed that.
    draw = random.SystemRandom()
    while True:
        port = draw.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def _takes_connections(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int | None, log: Path, environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    """A server, from when it takes connections (where it has a port) until the end of the block. It ends with this
    process too, however that ends."""
    # Linux sends the signal when the parent dies; other systems have no such thing.
    with_parent = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with log.open("wb") as out:
        how: dict[str, Any] = {"stdout": out, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen([*with_parent, *command], env=environment, cwd=directory, **how)
    try:
        if port is not None:

            def said() -> str:
                return f"{' '.join(command)}\n{log.read_text(errors='replace')[-4000:]}"

            until(lambda: process.poll() is not None or _takes_connections(port), _START_SECONDS, shown=said)
            assert process.poll() is None, f"the server ended with code {process.returncode}: {said()}"
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def in_own_session(
    command: Sequence[str], log: Path, environment: Mapping[str, str], **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose children are in its session. What they say is added to `log`. What is left is killed in the
    end."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=out, stderr=out, start_new_session=True, **more
        )
    try:
        yield process
    finally:
        for each in in_session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.wait()


def started(config: Path, home: Path, *words: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """`cdc-lakehouse WORDS`, its JVM in the same session, with a configuration and a home of Dagster's. The log is
    `{home}.log`."""
    command = [str(Path(sys.executable).with_name("cdc-lakehouse")), *words]
    places = {"CDC_LAKEHOUSE_CONFIG": str(config), "DAGSTER_HOME": str(home)}
    return in_own_session(command, home.with_suffix(".log"), places)


def in_session(leader: int) -> list[int]:
    """Processes of a session that are not over."""
    found = {process: _about(process) for process in _all()}
    return [process for process, (state, *_, session) in found.items() if session == str(leader) and state != "Z"]


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
    return int(_about(process)[1])


def state_of(process: int) -> str:
    """`R` where it has the processor, or waits for it; `T` where it is stopped."""
    return _about(process)[0]


def command_of(process: int) -> str:
    """Its words with blanks between them; empty where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _all() -> list[int]:
    return [int(place.name) for place in Path("/proc").iterdir() if place.name.isdigit()]


def _about(process: int) -> list[str]:
    """State, parent, group and session, behind the name, which may hold anything; of none that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
    return ["", "0", "0", "0"]
