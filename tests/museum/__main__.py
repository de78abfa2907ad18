"""Real faults, kept as reverse patches: each takes one mending out of the product again, and its tests should fail.

`python -m tests.museum [NAME ...] [--only-unit | --spark]` does that in a copy of the project, one patch at a time
(docs/development.md).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

ROOT = Path(__file__).parents[2]
DIRECTORY = Path(__file__).parent
RED = "red: "
ONLY = " --only "
SLOW = ("tests/spark/", "tests/servers/", "tests/chaos/")
"""Tests that start Spark or a server."""


@dataclass(frozen=True)
class Patch:
    """A mending taken out again, and the tests that turn red then, whatever their parameters where they have none here,
    with the one scenario that it plays, or "" for all."""

    path: Path
    fault: str
    red: list[tuple[str, str]]

    def apply(self, root: Path, *options: str) -> str:
        """Apply the patch to a tree, and return what git says against it."""
        # In a directory below a repository git would leave out what is not below that directory.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
        command = ["git", "apply", *options, str(self.path)]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stderr or "git apply failed"


def patches() -> dict[str, Patch]:
    """All patches, by name."""
    found: dict[str, Patch] = {}
    for path in sorted(DIRECTORY.glob("*.patch")):
        header = path.read_text(encoding="utf-8").partition("diff --git")[0].splitlines()
        tests = [line.removeprefix(RED).strip().partition(ONLY) for line in header if line.startswith(RED)]
        fault = " ".join(line for line in header if line and not line.startswith(RED))
        found[path.stem] = Patch(path, fault, [(test, only) for test, _, only in tests])
    return found


TIMEOUT_SECONDS: Final = 900


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.museum", description=__doc__)
    parser.add_argument("names", nargs="*", help="patches, by default all")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--only-unit", action="store_true", help="only tests that start neither Spark nor a server")
    parts.add_argument("--spark", action="store_true", help="only tests that start Spark or a server")
    options = parser.parse_args()
    known = patches()
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no patch {', '.join(unknown)}")
    jobs = [
        (name, tests)
        for is_slow in [False] * (not options.spark) + [True] * (not options.only_unit)
        for name in options.names or known
        if (tests := [(test, only) for test, only in known[name].red if test.startswith(SLOW) == is_slow])
    ]
    problems: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="museum-") as directory:
        copy = Path(directory) / "copy"
        _copy_project(copy)
        for name, tests in jobs:
            began = time.monotonic()
            if problem := _problem(known[name], tests, copy):
                problems[name] = problem
            click.echo(f"{name}: {problem or 'red'} ({time.monotonic() - began:.0f} s)")
    click.echo(f"{len(jobs)} trials, {len(problems)} of them not red")
    for name, problem in problems.items():
        click.echo(f"  {name}: {problem}")
    return 1 if problems else 0


def _copy_project(copy: Path) -> None:
    """Copy what git knows or would add, so that all that a test starts runs the patched code."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    if (ROOT / ".venv").exists():
        (copy / ".venv").symlink_to((ROOT / ".venv").resolve())


def _problem(patch: Patch, wanted: Sequence[tuple[str, str]], copy: Path) -> str:
    """What is wrong with a patch: it does not apply, or some of its tests stay green, or cannot be run. Empty where all
    are red."""
    if refused := patch.apply(copy):
        return f"does not apply: {refused.strip()}"
    green: list[str] = []
    # Modules change within the second that a compiled file is dated by.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", "--tb=no"]
    how: dict[str, Any] = {"cwd": copy, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        for only in dict.fromkeys(only for _, only in wanted):
            own = [test for test, scenario in wanted if scenario == only]
            done = subprocess.run(
                [*command, *own, *(["--only", only] if only else [])],
                **how,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
            if done.returncode not in (0, 1):
                return f"pytest ended with {done.returncode}: {done.stdout.strip()[-2000:]}"
            # A test without parameters stands for each of its cases.
            of = {test: rf"^(FAILED|ERROR) {re.escape(test)}(\[| |$)" for test in own}
            green += [test for test in own if not re.search(of[test], done.stdout, re.M)]
    except subprocess.TimeoutExpired:
        return f"not over after {TIMEOUT_SECONDS} s"
    finally:
        patch.apply(copy, "--reverse")
    return f"stays green: {', '.join(green)}" if green else ""


if __name__ == "__main__":
    sys.exit(main())
