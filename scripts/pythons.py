"""The tests that depend on the interpreter, on the system's Python and the oldest and newest patches that can be had.

These are the tests of the change log, the decoders, the sources and the configuration: pure Python over regular
expressions, JSON, numbers, times and text. What Spark, DuckDB and Arrow do is the same under each interpreter.

Each interpreter has an environment of its own in the user's cache. One that is neither on the machine nor can be
installed by uv is listed, and is no error. An interpreter that cannot be set up, or fails a test, is one.
With a number as argument (the seed of `make test`) one of them plays a fourth of the tests, others for another number.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdc-lakehouse"
UV = shutil.which("uv") or str(CACHE / "uv/bin/uv")
TESTS = ["tests/changelog", "tests/decoders", "tests/sources", "tests/config"]
SYSTEM = Path("/usr/bin/python3")
PARTS = 4


def version_of(python: Path) -> tuple[int, ...] | None:
    """The version of an interpreter; None when it does not start."""
    try:
        said = subprocess.run([python, "-V"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"Python (\d+)\.(\d+)\.(\d+)$", said.stdout)
    return tuple(map(int, found.groups())) if found else None


def found_here(minors: set[str]) -> dict[tuple[int, ...], Path]:
    """Interpreters by version: of the system, of pyenv, of uv, and on the PATH."""
    managed = subprocess.run([UV, "python", "dir"], capture_output=True, text=True).stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    places = [SYSTEM, *pyenv.glob("*/bin/python3"), *Path(managed or "/nowhere").glob("*/bin/python3")]
    places += [Path(path) for minor in sorted(minors) if (path := shutil.which(f"python{minor}"))]
    versions = ((version_of(place), place) for place in places)
    return {version: place for version, place in reversed(list(versions)) if version is not None}


def run(version: str, python: Path, part: str = "") -> bool:
    """Run the tests, or a part of them ("0/4"); return whether they pass."""
    environment = {
        **os.environ,
        "UV_PROJECT_ENVIRONMENT": str(CACHE / "pythons" / version),
        "PYTHONDONTWRITEBYTECODE": "",
        # Kept for the next run, and nowhere else: bytecode of another patch of the same version is taken for one's own.
        "PYTHONPYCACHEPREFIX": str(CACHE / "pythons" / version / "bytecode"),
        "CDC_TESTS": "few",
        "CDC_TESTS_PART": part,
    }
    sync = [UV, "sync", "--frozen", "--quiet", "--python", str(python)]
    if subprocess.run(sync, cwd=ROOT, env=environment).returncode:
        return False
    own = CACHE / "pythons" / version / "bin/python"
    options = ["-q", "-n", os.environ.get("WORKERS", "2"), "-m", "not slow", "-p", "no:cacheprovider"]
    tests = [own, "-m", "pytest", *options, *TESTS]
    return subprocess.run(tests, cwd=ROOT, env=environment).returncode == 0


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tried: list[str] = project["tool"]["cdc-lakehouse"]["tried-pythons"]
    minors = {".".join(version.split(".")[:2]) for version in tried}
    low = tuple(map(int, re.findall(r"\d+", project["project"]["requires-python"].partition(",")[0])))
    here = found_here(minors)
    for wanted in [*tried, *sorted(minors)]:
        if tuple(map(int, wanted.split("."))) not in here:
            try:
                subprocess.run(
                    [UV, "python", "install", "--quiet", "--no-bin", wanted], capture_output=True, timeout=120
                )
            except subprocess.TimeoutExpired:
                break  # Nobody answers: the others would wait as long.
    here = found_here(minors)
    chosen: dict[str, Path] = {}
    for minor in sorted(minors):
        patches = sorted(v for v in here if f"{v[0]}.{v[1]}" == minor and v >= low)
        click.echo(f"Python {minor}: {', '.join('.'.join(map(str, v)) for v in patches) or 'none here'}")
        system = version_of(SYSTEM)
        chosen |= {".".join(map(str, v)): here[v] for v in patches if v in (patches[0], patches[-1], system)}
    missing = [version for version in tried if tuple(map(int, version.split("."))) not in here]
    click.echo(f"not run, as they cannot be had here: {', '.join(missing) or 'none'}")
    whole = ".".join(map(str, sys.version_info[:3]))
    click.echo(f"not run again, as all tests run on it: {whole}")
    others = [version for version in chosen if version != whole]
    part = ""
    if len(sys.argv) > 1 and others:
        turns, number = divmod(int(sys.argv[1]), len(others))
        part, turn = f"{turns % PARTS}/{PARTS}", others[number]
        click.echo(f"run with other seeds: {', '.join(each for each in others if each != turn) or 'none'}")
        others = [turn]
    failed: list[str] = []
    for version in others:
        click.echo(f"Python {version} ({chosen[version]})")
        if not run(version, chosen[version], part):
            failed.append(version)
    if failed:
        click.echo(f"failed on Python {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
