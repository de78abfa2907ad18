"""Servers as processes of the tests, on ports of 127.0.0.1 that are free."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

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


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int | None, log: Path, environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    """The server, from when it takes connections (where it has a port) until the end of the block. It ends with this
    process too, however that ends."""
    # Linux sends the signal when the parent dies; other systems have no such thing.
    with_parent = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*with_parent, *command],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=directory,
        )
    try:
        if port is not None:
            _wait(process, port, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    how = "did not start in time" if process.poll() is None else f"ended with code {process.returncode}"
    raise RuntimeError(
        f"the server {how}: {' '.join(map(str, process.args))}\n{log.read_text(errors='replace')[-4000:]}"
    )
