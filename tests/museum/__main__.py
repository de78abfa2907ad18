"""Takes mendings out of a copy of the project, one at a time, and wants the tests that each patch names to fail.

`python -m tests.museum [NAME ...] [--only-unit | --spark]`
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from tests.museum import ROOT, Patch, Red, patches

TIMEOUT_SECONDS: Final = 900


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.museum", description=__doc__)
    parser.add_argument("names", nargs="*", help="patches, by default all")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--only-unit", action="store_true", help="only tests that start neither Spark nor a server")
    parts.add_argument("--spark", action="store_true", help="only tests that start Spark or a server")
    options = parser.parse_args()
    known = {patch.name: patch for patch in patches()}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no patch {', '.join(unknown)}")
    chosen = [known[name] for name in options.names] or list(known.values())
    units = [] if options.spark else _jobs(chosen, is_slow=False)
    slow = [] if options.only_unit else _jobs(chosen, is_slow=True)
    problems: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="museum-") as directory:
        copy = Path(directory) / "copy"
        _copy_project(copy)
        for patch, tests in [*units, *slow]:
            began = time.monotonic()
            problem = _problem(patch, tests, copy)
            if problem:
                problems[patch.name] = problem
            click.echo(f"{patch.name}: {problem or 'red'} ({time.monotonic() - began:.0f} s)")
    click.echo(f"{len(units) + len(slow)} trials, {len(problems)} of them not red")
    for name, problem in problems.items():
        click.echo(f"  {name}: {problem}")
    return 1 if problems else 0


def _jobs(chosen: Sequence[Patch], *, is_slow: bool) -> list[tuple[Patch, list[Red]]]:
    found = [(patch, [red for red in patch.red if red.is_slow == is_slow]) for patch in chosen]
    return [(patch, wanted) for patch, wanted in found if wanted]


def _copy_project(copy: Path) -> None:
    """Copy what git knows or would add, so that all that a test starts runs the patched code."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    if (ROOT / ".venv").exists():
        (copy / ".venv").symlink_to((ROOT / ".venv").resolve())


def _problem(patch: Patch, wanted: Sequence[Red], copy: Path) -> str:
    """What is wrong with a patch: it does not apply, or some of its tests stay green. Empty where all are red."""
    if refused := patch.apply(copy):
        return f"does not apply: {refused.strip()}"
    green: list[str] = []
    try:
        for only in dict.fromkeys(red.only for red in wanted):
            own = [red.test for red in wanted if red.only == only]
            cases = _run([*own, *(["--only", only] if only else [])], copy)
            if isinstance(cases, str):
                return cases
            green += [test for test in own if not any(red and _is_case_of(case, test) for case, red in cases)]
    finally:
        patch.apply(copy, "--reverse")
    return f"stays green: {', '.join(green)}" if green else ""


def _run(arguments: Sequence[str], copy: Path) -> list[tuple[str, bool]] | str:
    """Run tests, and return each case with whether it failed, or why they could not be run."""
    report = copy.parent / "report.xml"
    report.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments],
            cwd=copy,
            # Modules change within the second that a compiled file is dated by.
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not over after {TIMEOUT_SECONDS} s"
    if done.returncode not in (0, 1) or not report.exists():
        return f"pytest ended with {done.returncode}: {done.stdout.strip()[-2000:]}"
    return [
        (f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}", bool(_faults(case)))
        for case in ET.parse(report).getroot().iter("testcase")
    ]


def _faults(case: ET.Element) -> list[ET.Element]:
    return [*case.findall("failure"), *case.findall("error")]


def _is_case_of(case: str, test: str) -> bool:
    return case == test or case.startswith(f"{test}[")


if __name__ == "__main__":
    sys.exit(main())
