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

    def changed_code(self) -> dict[tuple[Calls, str], CodeType]:
        """Change the tree; gives the code objects that are others then, by place and name. Those of lambdas on one
        line come with the one around them."""
        before = _code_objects(self.tree, self.path)
        self.change()
        after = _code_objects(self.tree, self.path)
        return {key: code for key, code in after.items() if before.get(key, code) != code}


def mutants_of(module: str, path: Path) -> list[Mutant]:
    """The changes that can be made to a module, in the order of the file."""
    source = path.read_text()
    lines, tree = source.splitlines(), ast.parse(source)
    numbers, mutants = Counter[str](), list[Mutant]()
    for put, node, place in _places(tree, _Place()):
        for what, new in _replacements(node):
            # No line number, and no column: a mutant is known again after a change elsewhere.
            text = f"{module}::{place.name}::{lines[node.lineno - 1].strip()}::{what}"
            numbers[text] += 1
            new = ast.fix_missing_locations(ast.copy_location(new, node))
            identity, change = f"{text} #{numbers[text]}", functools.partial(put, new)
            mutants.append(Mutant(identity, module, str(path), node.lineno, what, place, tree, change))
    return mutants


def _key(code: CodeType) -> tuple[Calls, str]:
    return (code.co_filename, code.co_firstlineno), code.co_qualname


def _code_objects(tree: Module, path: str) -> dict[tuple[Calls, str], CodeType]:
    """All below a module's, but for those that have a place and a name together."""
    found = [compile(tree, path, "exec", dont_inherit=True)]
    for code in found:
        found += [const for const in code.co_consts if isinstance(const, CodeType)]
    numbers = Counter(map(_key, found))
    return {_key(code): code for code in found[1:] if numbers[_key(code)] == 1}


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
        self._mutants = mutants
        self._root = Path(tempfile.mkdtemp(prefix="mutation-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self._failed: str | None = None
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
        self._functions = [
            one for one in gc.get_objects() if isinstance(one, FunctionType) and one.__code__.co_filename in files
        ]
        gc.freeze()
        green = self._run_green(session.items, files)
        items = {item.nodeid: item for item in session.items if item.nodeid in green}
        self.red = [item.nodeid for item in session.items if item.nodeid not in green]
        for mutant in self._mutants:
            where = mutant.path, mutant.place.line
            called = [name for name in items if mutant.place.constant is not None or where in green[name][1]]
            called.sort(key=lambda name: green[name][0])
            cpu = _LEAST_CPU_SECONDS + _TIMES_GREEN * sum(green[name][0] for name in called)
            outcome = self._try(mutant, [items[name] for name in called], cpu) if called else "not executed"
            self.outcomes[mutant.identity] = outcome
            if not outcome.startswith("killed"):
                click.echo(f"{os.path.relpath(mutant.path)}:{mutant.line}: {mutant.what}: {outcome}")
        shutil.rmtree(self._root, ignore_errors=True)
        gc.unfreeze()
        return True

    def _run_green(self, items: list[pytest.Item], files: set[str]) -> dict[str, tuple[float, set[Calls]]]:
        """What each test that is green without a mutant costs, and the functions that it calls."""
        told = self._root / "green.json"

        def run() -> int:
            costs: dict[str, tuple[float, list[Calls]]] = {}
            for item, following in _pairs(items):
                self._failed, begin = None, time.process_time()
                with _recorded(files) as calls:
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._failed is None:
                    costs[item.nodeid] = time.process_time() - begin, sorted(calls)
            told.write_text(json.dumps(costs))
            return 0

        if status := self._fork(run, None):
            raise pytest.UsageError(f"The run without mutants ended with {status}")
        read = json.loads(told.read_text())
        return {key: (cost, {(path, line) for path, line in calls}) for key, (cost, calls) in read.items()}

    def _try(self, mutant: Mutant, items: list[pytest.Item], cpu: float) -> str:
        told = self._root / "by"
        told.unlink(missing_ok=True)

        def run() -> int:
            try:
                self._swap(mutant)
            except Exception as e:  # noqa: BLE001 - whatever the changed constant makes of it
                told.write_text(f"{type(e).__name__} when imported")
                return 1
            self._failed = None
            for item, following in _pairs(items):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._failed is not None:
                    told.write_text(self._failed)
                    return 1
            return 0

        match self._fork(run, cpu):
            case 0:
                return "survived"
            case 1 if told.exists():
                return f"killed by {told.read_text()}"
            case status:
                return f"killed by {'a time limit' if status in (-signal.SIGXCPU, -signal.SIGKILL) else status}"

    def _swap(self, mutant: Mutant) -> None:
        """Put the mutant into the live module, under each name that it was imported by."""
        if mutant.place.constant is None:
            changed = mutant.changed_code()
            for function in self._functions:
                with contextlib.suppress(ValueError):  # A closure that needs other variables: new ones have the mutant.
                    function.__code__ = changed.get(_key(function.__code__), function.__code__)
            return
        namespace = vars(sys.modules[mutant.module])
        before = dict(namespace)
        mutant.change()
        exec(compile(Module([mutant.place.constant], []), mutant.path, "exec", dont_inherit=True), namespace)
        for name in [name for name in before if namespace[name] is not before[name]]:
            for module in list(sys.modules.values()):
                if module.__name__.startswith(("cdc_lakehouse", "tests")) and vars(module).get(name) is before[name]:
                    setattr(module, name, namespace[name])

    def _fork(self, run: Callable[[], int], cpu: float | None) -> int:
        directory = Path(tempfile.mkdtemp(dir=self._root))
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
                status = run()
            finally:
                os._exit(status)
        # What waits for something that never comes needs no CPU. The machine may be busy.
        timer = threading.Timer(threading.TIMEOUT_MAX if cpu is None else 60 + 10 * cpu, _kill, (child,))
        timer.start()
        try:
            _, status = os.waitpid(child, 0)
        finally:
            timer.cancel()
            _kill(child)
        shutil.rmtree(directory, ignore_errors=True)
        return os.waitstatus_to_exitcode(status)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _pairs(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True)


@contextlib.contextmanager
def _recorded(files: set[str]) -> Iterator[set[Calls]]:
    calls: set[Calls] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in files:
            calls.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


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
    modules = {
        path: ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths
    }
    mutants = [mutant for path, module in modules.items() for mutant in mutants_of(module, path)]
    old = json.loads(options.compare.read_text())["mutants"] if options.compare else None
    if options.sample is not None:  # By a checksum of each: a mutant more or less changes the choice by one.
        digests = {one: hashlib.sha256(f"{options.seed} {one.identity}".encode()).digest() for one in mutants}
        chosen = {*sorted(mutants, key=digests.__getitem__)[: options.sample]}
        mutants = [mutant for mutant in mutants if mutant in chosen]
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
