"""A mutation trial: small faults are put into modules one at a time, and the tests should fail for each.

`python -m tests.mutation cdc_lakehouse.changelog --sample 100` (docs/development.md). Tests are imported and collected
once. Each mutant, one small change of a module's syntax tree, is a fork of that process, with the code of functions
swapped.
"""

import argparse
import ast
import contextlib
import functools
import gc
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from ast import Module
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import click
import pytest
from hypothesis import Phase, settings

_ROOT = Path(__file__).parents[1]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
# Evaluated once, when the module is imported, or only for people to read.
_LEFT_OUT = {"annotation", "returns", "decorator_list", "args", "type_params", "format_spec", "type_ignores"}
Calls = tuple[str, int]  # A file, and the first line of a function in it.


@dataclass(frozen=True)
class _Place:
    """The function that holds a node, with its first line; or an assignment to a name of the module."""

    name: str = ""
    line: int | None = None
    constant: ast.stmt | None = None


@dataclass(frozen=True)
class Mutant:
    identity: str  # The same whichever lines are added elsewhere in the file.
    module: str
    path: str
    line: int
    what: str
    place: _Place
    tree: Module
    change: Callable[[], None]

    def swap(self, functions: list[FunctionType]) -> None:
        """Put it into the live module: the code of functions, or a value under each name that it was imported by."""
        self.change()
        if self.place.constant is None:
            codes = [compile(self.tree, self.path, "exec", dont_inherit=True)]
            for code in codes:
                codes += [const for const in code.co_consts if isinstance(const, CodeType)]
            numbers = Counter(map(_key, codes))
            # Lambdas on one line have a place and a name together: they come with the function around them.
            new = {_key(code): code for code in codes if numbers[_key(code)] == 1}
            for function in functions:
                with contextlib.suppress(ValueError):  # A closure that needs other variables: new ones have the mutant.
                    function.__code__ = new.get(_key(function.__code__), function.__code__)
            return
        namespace = vars(sys.modules[self.module])
        before = dict(namespace)
        exec(compile(Module([self.place.constant], []), self.path, "exec", dont_inherit=True), namespace)
        for name in [name for name in before if namespace[name] is not before[name]]:
            for module in list(sys.modules.values()):
                if module.__name__.startswith(("cdc_lakehouse", "tests")) and vars(module).get(name) is before[name]:
                    setattr(module, name, namespace[name])


def _key(code: CodeType) -> tuple[Calls, str]:
    return (code.co_filename, code.co_firstlineno), code.co_qualname


def mutants_of(module: str, path: Path) -> Iterator[Mutant]:
    """The changes that can be made to a module, in the order of the file."""
    source, numbers = path.read_text(), Counter[str]()
    lines, tree = source.splitlines(), ast.parse(source)
    for put, node, place in _places(tree, _Place()):
        for what, new in _replacements(node):
            # No line number, and no column: a mutant is known again after a change elsewhere.
            text = f"{module}::{place.name}::{lines[node.lineno - 1].strip()}::{what}"
            numbers[text] += 1
            change = functools.partial(put, ast.fix_missing_locations(ast.copy_location(new, node)))
            yield Mutant(f"{text} #{numbers[text]}", module, str(path), node.lineno, what, place, tree, change)


def _places(parent: ast.AST, place: _Place) -> Iterator[tuple[Callable[[Any], None], Any, _Place]]:
    """Each node inside functions and inside assignments to the module's names, with what puts another in its stead."""
    for field, value in ast.iter_fields(parent):
        if field in _LEFT_OUT or (field in ("targets", "target") and place.constant is not None):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            inner = place
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                    name = f"{place.name}.{node.name}".removeprefix(".")
                    inner = _Place(name, None if isinstance(node, ast.ClassDef) else line)
                case ast.Constant() if isinstance(parent, ast.JoinedStr | ast.Expr):
                    continue  # A part of a text; a docstring.
                case ast.Subscript(ast.Name("Literal")):
                    continue
                case ast.AST() if place.line is not None or place.constant is not None:
                    yield functools.partial(_put, parent, field, index), node, place
                case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)) if isinstance(parent, Module):
                    inner = _Place(name, None, node)
                    if node.value is None or name == "__all__":
                        continue
                case _:
                    continue
            yield from _places(node, inner)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _replacements(node: ast.AST) -> Iterator[tuple[str, Any]]:
    match node:
        case ast.Compare(left, [operator], comparators):
            for other in _COMPARISONS[type(operator)]:
                yield f"{type(operator).__name__} becomes {other.__name__}", ast.Compare(left, [other()], comparators)
        case ast.BoolOp(operator, values):
            other = ast.Or if isinstance(operator, ast.And) else ast.And
            yield f"{type(operator).__name__} becomes {other.__name__}", ast.BoolOp(other(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not is left out", operand
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
            other = _ARITHMETIC[type(operator)]
            yield f"{type(operator).__name__} becomes {other.__name__}", ast.BinOp(left, other(), right)
        case ast.Constant(bool() as value):
            yield f"{value} becomes {not value}", ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            for other in (value + 1, value - 1):
                yield f"{value} becomes {other}", ast.Constant(other)
        case ast.Constant(str() | bytes() as value):
            yield f"{value[:30]!r} is changed", ast.Constant(value + "~" if isinstance(value, str) else value + b"~")
        case ast.If(test) | ast.While(test) if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
            yield "condition is negated", type(node)(negated, node.body, node.orelse)
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            yield "returns None", ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call(func)) if not ast.unparse(func).startswith(("log.", "_log.", "logger.")):
            yield "statement is left out", ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "statement is left out", ast.Pass()
        case ast.Continue() | ast.Break():
            yield "statement is left out", ast.Pass()


_LEAST_CPU_SECONDS, _TIMES_GREEN, _MEMORY = 10, 5, 3 << 30


class Trial:
    """A plugin of pytest that tries mutants instead of running the tests."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self._mutants, self._failed = mutants, ""
        self._root = Path(tempfile.mkdtemp(prefix="mutation-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.outcomes: dict[str, str] = {}
        self.red: list[str] = []

    def pytest_collection(self) -> None:
        # To look for the smallest example that fails takes most of the time of a mutant that is killed.
        settings.register_profile("mutation", settings.default, phases=(Phase.explicit, Phase.generate), database=None)
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for module in {mutant.module for mutant in self._mutants}:
            importlib.import_module(module)
        files = {mutant.path for mutant in self._mutants}
        self._plugins = session.config.pluginmanager
        live = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
        functions = [each for each in live if each.__code__.co_filename in files]
        gc.freeze()
        said = self._fork(lambda: self._run_green(session.items, files))
        if not said.startswith("{"):
            raise pytest.UsageError(f"The run without mutants was {said}")
        found = json.loads(said)
        costs: dict[str, float] = {name: cost for name, (cost, _) in found.items()}
        called = {name: {(path, line) for path, line in calls} for name, (_, calls) in found.items()}
        self.red = [item.nodeid for item in session.items if item.nodeid not in costs]
        green = sorted((item for item in session.items if item.nodeid in costs), key=lambda item: costs[item.nodeid])
        for mutant in self._mutants:
            place = mutant.path, mutant.place.line
            items = [each for each in green if mutant.place.constant is not None or place in called[each.nodeid]]
            cpu = _LEAST_CPU_SECONDS + _TIMES_GREEN * sum(costs[item.nodeid] for item in items)
            run = functools.partial(self._run_mutant, mutant, functions, items)
            outcome = self._fork(run, cpu) if items else "not executed"
            self.outcomes[mutant.identity] = outcome
            if not outcome.startswith("killed"):
                click.echo(f"{os.path.relpath(mutant.path)}:{mutant.line}: {mutant.what}: {outcome}")
        shutil.rmtree(self._root, ignore_errors=True)
        gc.unfreeze()
        return True

    def _tests(self, items: list[pytest.Item]) -> Iterator[tuple[str, str]]:
        """Run tests; gives the name of each, and the one that has failed."""
        for item, following in zip(items, [*items[1:], None], strict=True):
            self._failed = ""
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item.nodeid, self._failed

    def _run_green(self, items: list[pytest.Item], files: set[str]) -> str:
        """What each test that is green without a mutant costs, and the functions that it calls."""
        costs, calls = dict[str, tuple[float, list[Calls]]](), set[Calls]()

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename in files:
                calls.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

        def begin() -> float:
            threading.setprofile(note)  # Before each test: one may end it.
            sys.setprofile(note)
            return time.process_time()

        began = begin()
        for name, failed in self._tests(items):
            if not failed:
                costs[name] = time.process_time() - began, sorted(calls)
            calls.clear()
            began = begin()
        return json.dumps(costs)

    def _run_mutant(self, mutant: Mutant, functions: list[FunctionType], items: list[pytest.Item]) -> str:
        try:
            mutant.swap(functions)
        except Exception as e:  # noqa: BLE001 - whatever the changed constant makes of it
            return f"killed by {type(e).__name__} when imported"
        return next((f"killed by {failed}" for _, failed in self._tests(items) if failed), "survived")

    def _fork(self, run: Callable[[], str], cpu: float | None = None) -> str:
        """What a fork of this process says, or what has killed it."""
        directory = Path(tempfile.mkdtemp(dir=self._root))
        told = directory / "told"
        child = os.fork()
        if child == 0:
            status = 70
            try:
                os.setsid()
                os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(directory)
                self._plugins.unregister(name="terminalreporter")
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, 1)
                os.dup2(nothing, 2)
                if cpu is not None:
                    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu), int(cpu) + 5))
                    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                    resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))
                told.write_text(run())
                status = 0
            finally:
                os._exit(status)
        # What waits for something that never comes needs no CPU. The machine may be busy.
        timer = threading.Timer(threading.TIMEOUT_MAX if cpu is None else 60 + 10 * cpu, _kill, (child,))
        timer.start()
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        finally:
            timer.cancel()
            _kill(child)
        said = told.read_text() if status == 0 and told.exists() else ""
        shutil.rmtree(directory, ignore_errors=True)
        return said or f"killed by {'a time limit' if status in (-signal.SIGXCPU, -signal.SIGKILL) else status}"


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


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
    paths = list(dict.fromkeys(path for name in options.modules for path in _files(name)))
    names = [".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    mutants = [each for name, path in zip(names, paths, strict=True) for each in mutants_of(name, path)]
    old = json.loads(options.compare.read_text())["mutants"] if options.compare else None
    if options.sample is not None:  # By a checksum of each: a mutant more or less changes the choice by one.
        digests = [hashlib.sha256(f"{options.seed} {each.identity}".encode()).digest() for each in mutants]
        chosen = {*sorted(digests)[: options.sample]}
        mutants = [each for each, digest in zip(mutants, digests, strict=True) if digest in chosen]
    elif old is not None:
        mutants = [mutant for mutant in mutants if mutant.identity in old]
    tests = options.tests or sorted({_tests_of(path) for path in paths})
    click.echo(f"{len(mutants)} mutants of {len(paths)} modules, against {' '.join(tests)}")
    trial = Trial(mutants)
    code = pytest.main(
        ["-q", "-p", "no:cacheprovider", "--tb=no", "--disable-warnings", "--no-header", *tests], [trial]
    )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return code
    for test in trial.red:
        click.echo(f"left out, as it fails without a mutant: {test}")
    click.echo(f"{'killed':>7} {'survived':>9} {'not executed':>13}")
    kinds = [(mutant.module, trial.outcomes[mutant.identity].split(" by ")[0]) for mutant in mutants]
    for module in [*dict.fromkeys(mutant.module for mutant in mutants), "all"]:
        counts = Counter(kind for one, kind in kinds if module in (one, "all"))
        click.echo(f"{counts['killed']:7} {counts['survived']:9} {counts['not executed']:13}  {module}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"mutants": trial.outcomes}, indent=1, ensure_ascii=False) + "\n")
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


def _tests_of(path: Path) -> str:
    """The directory of the tests of a module's package, or of the nearest one above."""
    package = Path("tests") / path.relative_to(_ROOT / "cdc_lakehouse").parent
    return str(next(each for each in (package, *package.parents) if (_ROOT / each).is_dir()))


if __name__ == "__main__":
    sys.exit(main())
