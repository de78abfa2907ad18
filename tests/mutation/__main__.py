from __future__ import annotations

import argparse
import ast
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path

import click
import pytest

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.trial import Trial

_ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.mutation", description="Which small faults do tests not see?")
    parser.add_argument("modules", nargs="+", help="modules, packages or files: cdc_lakehouse.lake.current")
    parser.add_argument("--tests", nargs="+", help="tests to run; default: the directory of the package's tests")
    parser.add_argument("--sample", type=int, help="this many mutants, chosen by the seed; default: all")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--json", type=Path, help="write each mutant's outcome")
    parser.add_argument(
        "--compare", type=Path, help="such a file: try its mutants again (or --sample), say which are no longer killed"
    )
    options = parser.parse_args()
    trees: dict[str, ast.Module] = {}
    mutants: list[Mutant] = []
    paths = [path for name in options.modules for path in _files(name)]
    for path in dict.fromkeys(paths):
        module = ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
        trees[module], found = mutants_of(module, path)
        mutants += found
    old = json.loads(options.compare.read_text())["mutants"] if options.compare else None
    if old is not None and options.sample is None:
        mutants = [mutant for mutant in mutants if mutant.identity in old]
    if options.sample is not None:  # By a checksum of each: a mutant more or less changes the choice by one.
        digests = {one: hashlib.sha256(f"{options.seed} {one.identity}".encode()).digest() for one in mutants}
        chosen = {*sorted(mutants, key=digests.__getitem__)[: options.sample]}
        mutants = [mutant for mutant in mutants if mutant in chosen]
    tests = options.tests or sorted({str(test) for path in paths for test in _tests_of(path)})
    click.echo(f"{len(mutants)} mutants of {len(trees)} modules, against {' '.join(tests)}")
    trial = Trial(trees, mutants)
    code = pytest.main(
        ["-q", "-p", "no:cacheprovider", "--tb=no", "--disable-warnings", "--no-header", *tests], [trial]
    )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return code
    _report(mutants, trial, options.json)
    if old is None:
        return 0
    alive = [one for one, outcome in trial.outcomes.items() if not outcome.startswith("killed")]
    lost = [one for one in alive if old.get(one, "").startswith("killed")]
    click.echo(f"{len(lost)} that were killed are not any more" + "".join(f"\n  {one}\n    {old[one]}" for one in lost))
    return min(len(lost), 1)


def _files(name: str) -> list[Path]:
    path = _ROOT / (name if "/" in name else name.replace(".", "/"))
    found = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    found = [one for one in found if not one.name.endswith("_pb2.py")]
    if not found or not found[0].exists():
        sys.exit(f"{name} is not a module or package")
    return found


def _tests_of(path: Path) -> list[Path]:
    """The directory of the tests of a module's package, or of the nearest one above."""
    package = path.relative_to(_ROOT / "cdc_lakehouse").parent
    for parent in (package, *package.parents):
        if parent != Path() and (_ROOT / "tests" / parent).is_dir():
            return [Path("tests") / parent]
    return [Path("tests")]


def _report(mutants: list[Mutant], trial: Trial, target: Path | None) -> None:
    for test in trial.red:
        click.echo(f"left out, as it fails without a mutant: {test}")
    click.echo(f"{'killed':>7} {'survived':>9} {'not executed':>13}")
    kinds = [(mutant.module, trial.outcomes[mutant.identity].split(" by ")[0]) for mutant in mutants]
    for module in [*dict.fromkeys(mutant.module for mutant in mutants), "all"]:
        counts = Counter(kind for one, kind in kinds if module in (one, "all"))
        click.echo(f"{counts['killed']:7} {counts['survived']:9} {counts['not executed']:13}  {module}")
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({"mutants": trial.outcomes}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
