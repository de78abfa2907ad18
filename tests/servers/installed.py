"""The project as a user has it: its wheel in an environment of its own, far from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.servers.tools import CACHE

ROOT: Final = Path(__file__).parents[2]
_SECONDS: Final = 600


def uv() -> str:
    """The one of scripts/setup, where the machine has none."""
    return shutil.which("uv") or str(CACHE.parent / "uv/bin/uv")


def interpreter(version: str) -> str | None:
    """A Python of this version that is on the machine: one that uv finds, or one of pyenv that is not switched on."""
    found = subprocess.run(
        [uv(), "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False
    )
    if found.returncode == 0:
        return found.stdout.strip()
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return next((str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python"))), None)


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel. Commands run in `directory`."""

    environment: Path
    directory: Path

    def program(self, name: str) -> str:
        return str(self.environment / "bin" / name)

    def variables(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment of its processes: nothing in it leads to the checkout."""
        hidden = ("PYTHON", "VIRTUAL_ENV", "DAGSTER", "CDC_LAKEHOUSE", "SPARK", "PYSPARK")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        kept["PATH"] = os.pathsep.join([str(self.environment / "bin"), os.environ["PATH"]])
        return {**kept, **more}

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """What it printed. A command that fails says why."""
        done = subprocess.run(
            [self.program(command[0]), *command[1:]],
            cwd=self.directory,
            env=self.variables(env or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
        return done.stdout


def build_wheel(directory: Path) -> Path:
    _uv("build", "--quiet", "--wheel", "--out-dir", str(directory), str(ROOT))
    (wheel,) = directory.glob("*.whl")
    return wheel


def install(wheel: Path, directory: Path, python: str = sys.executable, extras: Sequence[str] = ()) -> Installed:
    """The wheel and, in the versions of uv.lock, what it needs."""
    environment, work = directory / "environment", directory / "work"
    work.mkdir(parents=True)
    _uv("venv", "--quiet", "--python", python, str(environment))
    named = [option for extra in extras for option in ("--extra", extra)]
    requirements = directory / "requirements.txt"
    export = ["export", "--quiet", "--frozen", "--no-dev", "--no-emit-project", "--no-header", "--project", str(ROOT)]
    _uv(*export, *named, "--output-file", str(requirements))
    target = ["pip", "install", "--quiet", "--python", str(environment / "bin/python")]
    _uv(*target, "--no-deps", "-r", str(requirements), str(wheel))
    return Installed(environment, work)


def _uv(*arguments: str) -> None:
    done = subprocess.run([uv(), *arguments], capture_output=True, text=True, check=False, timeout=_SECONDS)
    assert done.returncode == 0, f"uv {' '.join(arguments)}: {done.stderr[-4000:]}"
