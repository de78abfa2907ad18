"""Which tests reach which modules. `python -m tests.near` runs those that are nearest to what was changed.

A run with `CDC_TESTS_MAP=1` records it in `.pytest_cache/testmap.json`: each function of the product and of the tests'
helpers says in one instruction that it is called, which costs far less than tracing. What other processes call is not
seen.
"""

import argparse
import ast
import builtins
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Final

import click
import pytest

ROOT: Final = Path(__file__).parents[1]
MAP: Final = ROOT / ".pytest_cache/testmap.json"
_OTHER_BYTECODE: Final = "testmap"
_SEEN: set[str] = set()


class _Loader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        tree = ast.parse(data, path)
        # Spark's workers record nothing, and take some functions by value.
        call = f"try:\n __reached__({str(Path(path).relative_to(ROOT))!r})\nexcept NameError:\n pass"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                first = int(ast.get_docstring(node, clean=False) is not None)
                node.body.insert(first, ast.parse(call).body[0])
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> CodeType | None:
        before, sys.pycache_prefix = sys.pycache_prefix, str(ROOT / ".pytest_cache" / _OTHER_BYTECODE)
        try:
            return super().get_code(fullname)
        finally:
            sys.pycache_prefix = before


class _Finder(PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package.split(".")[0] not in ("cdc_lakehouse", "tests") or name.startswith(("test_", "conftest")):
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


class Recorder:
    """The plugin that records. With pytest-xdist each worker does, and the process that started them writes."""

    def __init__(self) -> None:
        self._reached: dict[str, set[str]] = {}
        self._seconds: dict[str, float] = {}
        builtins.__reached__ = _SEEN.add  # type: ignore[attr-defined]
        sys.meta_path.insert(0, _Finder)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        _SEEN.clear()
        try:
            return (yield)
        finally:
            self._reached.setdefault(_function(item.nodeid), set()).update(_SEEN)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _function(report.nodeid)
        self._seconds[name] = self._seconds.get(name, 0) + report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for name, modules in getattr(node, "workeroutput", {}).get("reached", {}).items():
            self._reached.setdefault(name, set()).update(modules)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["reached"] = {name: sorted(modules) for name, modules in self._reached.items()}
            return
        tests: dict[str, Any] = dict(read_map())
        tests |= {name: (round(self._seconds.get(name, 0), 2), sorted(each)) for name, each in self._reached.items()}
        MAP.parent.mkdir(exist_ok=True)
        known = {name: tests[name] for name in sorted(tests) if (ROOT / name.partition("::")[0]).exists()}
        MAP.write_text(json.dumps(known))


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0].partition("@")[0]


def read_map() -> dict[str, tuple[float, list[str]]]:
    """Return of each test function its seconds, and the modules that it reaches."""
    return json.loads(MAP.read_text()) if MAP.exists() else {}


def changed_files() -> list[str]:
    """Return the files that differ from where the branch left `main`, and those that Git does not know."""
    base = _git("merge-base", "HEAD", "main") or _git("merge-base", "HEAD", "origin/main") or ["HEAD"]
    return sorted({*_git("diff", "--name-only", base[0]), *_git("ls-files", "--others", "--exclude-standard")})


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.split()


def nearest(changed: Iterable[str], seconds: float) -> tuple[list[str], int]:
    """Return the tests of changed files, and how many more there are than can be run in the time. Those that reach the
    fewest modules come first; those in Spark, which reach nearly all, come last."""
    tests = read_map()
    known = {module for _, reached in tests.values() for module in reached}
    changed = [name for name in changed if (ROOT / name).exists()]
    chosen = list(dict.fromkeys(test for name in changed for test in _beside(name, known)))
    reaching = sorted(
        (len(reached), cost, name)
        for name, (cost, reached) in tests.items()
        if not set(reached).isdisjoint(changed) and name.partition("::")[0] not in chosen
    )
    after = itertools.accumulate(cost for _, cost, _ in reaching)
    fitting = [name for (_, _, name), so_far in zip(reaching, after, strict=True) if so_far <= seconds]
    return [*chosen, *fitting], len(reaching) - len(fitting)


def _beside(name: str, known: set[str]) -> list[str]:
    """Return the tests in a changed file, and those of one that the map does not know: of text with cases, of a module
    without functions."""
    file = Path(name)
    if file.name.startswith("test_") and file.suffix == ".py":
        return [name]
    if name in known or file.parts[0] not in ("cdc_lakehouse", "tests"):
        return []
    directory = Path("tests", *file.parent.parts[1:])
    places = [directory, *directory.parents]
    return next([str(test) for test in tests] for place in places if (tests := sorted(place.glob("test_*.py"))))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.near", description=__doc__)
    parser.add_argument("files", nargs="*", help="changed files; default: as Git says")
    parser.add_argument("--seconds", type=float, default=10, help="how long tests may take, by the recorded times")
    options = parser.parse_args()
    if not MAP.exists():
        sys.exit(f"{MAP.name} is not there: `make test` writes it")
    changed = options.files or changed_files()
    chosen, left = nearest(changed, options.seconds)
    click.echo(f"{len(changed)} changed files: {len(chosen)} tests; {left} more reach them (`make quick`, `make test`)")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    smoke = [str(file) for file in (ROOT / "tests").rglob("test_*.py") if "mark.smoke" in file.read_text("utf-8")]
    # Side by side: one waits for the JVM to start.
    with subprocess.Popen([*command, "-m", "smoke", *smoke], cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        recorded = {**os.environ, "CDC_TESTS_MAP": "1"}
        code = subprocess.run([*command, *chosen], cwd=ROOT, env=recorded).returncode if chosen else 0
        said, _ = other.communicate()
    click.echo(said)
    return code or other.returncode


if __name__ == "__main__":
    sys.exit(main())
