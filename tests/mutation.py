"""A mutation trial: small faults are put into modules one at a time, and the tests should fail for each.

`python -m tests.mutation cdc_lakehouse.changelog --sample 100` (docs/development.md). Tests are imported and collected
once. Each mutant, one small change of a module's syntax tree, is a fork of that process, with the code of functions
swapped.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
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
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Evaluated once, when the module is imported, or only for people to read.
_LEFT_OUT = {"annotation", "returns", "decorator_list", "args", "type_params", "format_spec", "type_ignores"}


CodeKey = tuple[str, int, str]  # A file, the first line, and the name of a function.


@dataclass(frozen=True)
class Mutant:
    identity: str  # The same whichever lines are added elsewhere in the file.
    module: str
    path: str
    line: int
    what: str
    # The function's first line, for the tests that call it. None: a constant of the module.
    function: int | None
    constant: ast.stmt | None
    change: Callable[[], None]
    restore: Callable[[], None]


def mutants_of(module: str, path: Path) -> tuple[ast.Module, list[Mutant]]:
    """Return the module's syntax tree and the changes that can be made to it, in the order of the file."""
    source = path.read_text()
    lines, tree = source.splitlines(), ast.parse(source)
    numbers, mutants = Counter[str](), []
    for parent, field, index, node, place in _places(tree):
        for what, new in _replacements(node):
            # No line number, and no column: a mutant is known again after a change elsewhere.
            text = f"{module}::{place.name}::{lines[node.lineno - 1].strip()}::{what}"
            numbers[text] += 1
            new = ast.fix_missing_locations(ast.copy_location(new, node))
            change, restore = (_setter(parent, field, index, value) for value in (new, node))
            identity = f"{text} #{numbers[text]}"
            mutants.append(
                Mutant(identity, module, str(path), node.lineno, what, place.line, place.constant, change, restore)
            )
    return tree, mutants


def changed_code(tree: ast.Module, path: str, mutant: Mutant) -> dict[CodeKey, CodeType]:
    """Return the code objects that the mutant changes. Those of lambdas on one line are told by the one around them."""
    before = _code_objects(compile(tree, path, "exec", dont_inherit=True))
    mutant.change()
    try:
        after = _code_objects(compile(tree, path, "exec", dont_inherit=True))
    finally:
        mutant.restore()
    single = [key for key in before if len(before[key]) == len(after.get(key, ())) == 1]
    return {key: after[key][0] for key in single if after[key] != before[key]}


def code_key(code: CodeType) -> CodeKey:
    return code.co_filename, code.co_firstlineno, code.co_qualname


def _code_objects(code: CodeType) -> dict[CodeKey, list[CodeType]]:
    found: dict[CodeKey, list[CodeType]] = {}
    pending = [code]
    while pending:
        inner = [const for const in pending.pop().co_consts if isinstance(const, CodeType)]
        for one in inner:
            found.setdefault(code_key(one), []).append(one)
        pending += inner
    return found


@dataclass(frozen=True)
class _Place:
    name: str
    line: int | None
    constant: ast.stmt | None


_Nodes = Iterator[tuple[ast.AST, str, int | None, Any, _Place]]


def _places(tree: ast.Module) -> _Nodes:
    """Yield each node inside functions and inside assignments to the module's names, with what holds it."""
    for statement in tree.body:
        yield from _definitions(statement, "")
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if all(isinstance(target, ast.Name) and target.id != "__all__" for target in targets):
                yield from _below(statement, _Place(ast.unparse(targets[0]), None, statement))


def _definitions(node: ast.stmt, prefix: str) -> _Nodes:
    if isinstance(node, ast.ClassDef):
        for statement in node.body:
            yield from _definitions(statement, f"{prefix}{node.name}.")
    if not isinstance(node, _FUNCTIONS):
        return
    line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    place = _Place(prefix + node.name, line, None)
    documented = ast.get_docstring(node, clean=False) is not None
    for index, statement in enumerate(node.body):
        if not (documented and index == 0):
            yield from _visit(node, "body", index, statement, place)


def _below(node: ast.AST, place: _Place) -> _Nodes:
    for field, value in ast.iter_fields(node):
        if field in _LEFT_OUT or (field in ("targets", "target") and place.constant is not None):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield from _visit(node, field, index, child, place)


def _visit(parent: ast.AST, field: str, index: int | None, node: ast.AST, place: _Place) -> _Nodes:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield from _definitions(node, f"{place.name}.")
        return
    if isinstance(node, ast.JoinedStr) and _is_message(parent):
        return
    if isinstance(node, ast.Constant) and (isinstance(parent, ast.JoinedStr) or _is_message(parent)):
        return
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        return
    yield parent, field, index, node, place
    yield from _below(node, place)


def _is_message(parent: ast.AST) -> bool:
    """Whether texts below it are for people alone: an error's, or a line of the log."""
    if not isinstance(parent, ast.Call):
        return False
    name = ast.unparse(parent.func)
    return name.endswith(("Error", "Exception")) or name.startswith(("log.", "_log.", "logger."))


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


def _setter(parent: ast.AST, field: str, index: int | None, value: ast.AST) -> Callable[[], None]:
    def put() -> None:
        if index is None:
            setattr(parent, field, value)
        else:
            getattr(parent, field)[index] = value

    return put


Calls = tuple[str, int]  # A file, and the first line of a function in it.
_LEAST_CPU_SECONDS, _TIMES_GREEN, _MEMORY = 10, 5, 3 << 30


class Trial:
    """A plugin of pytest that tries mutants instead of running the tests."""

    def __init__(self, trees: dict[str, Module], mutants: list[Mutant]) -> None:
        self._trees, self._mutants = trees, mutants
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
        every = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
        self._plugins = session.config.pluginmanager
        functions = [function for function in every if function.__code__.co_filename in files]
        gc.freeze()
        green = self._run_green(session.items, files)
        self.red = [item.nodeid for item in session.items if green[item.nodeid][0] is None]
        for mutant in self._mutants:
            called = [item for item in session.items if self._reaches(mutant, green[item.nodeid])]
            called.sort(key=lambda item: green[item.nodeid][0])
            cpu = _LEAST_CPU_SECONDS + _TIMES_GREEN * sum(green[item.nodeid][0] for item in called)
            self.outcomes[mutant.identity] = self._try(mutant, called, functions, cpu) if called else "not executed"
            if self.outcomes[mutant.identity] in ("survived", "not executed"):
                click.echo(
                    f"{os.path.relpath(mutant.path)}:{mutant.line}: {mutant.what}: {self.outcomes[mutant.identity]}"
                )
        shutil.rmtree(self._root, ignore_errors=True)
        gc.unfreeze()
        return True

    def _run_green(self, items: list[pytest.Item], files: set[str]) -> dict[str, tuple[float | None, set[Calls]]]:
        """Return what each test costs without a mutant, and the functions that it calls. None: it fails."""
        told = self._root / "green.json"

        def run() -> int:
            costs: dict[str, tuple[float | None, list[Calls]]] = {}
            for item, following in _pairs(items):
                self._failed, begin = None, time.process_time()
                with _recorded(files) as calls:
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                cost = time.process_time() - begin if self._failed is None else None
                costs[item.nodeid] = (cost, sorted(calls))
            told.write_text(json.dumps(costs))
            return 0

        status = self._fork(run, None)
        if status != 0:
            raise pytest.UsageError(f"The run without mutants ended with {status}")
        read = json.loads(told.read_text())
        return {key: (cost, {(path, line) for path, line in calls}) for key, (cost, calls) in read.items()}

    @staticmethod
    def _reaches(mutant: Mutant, green: tuple[float | None, set[Calls]]) -> bool:
        cost, calls = green
        if cost is None:
            return False
        return mutant.function is None or (mutant.path, mutant.function) in calls

    def _try(self, mutant: Mutant, items: list[pytest.Item], functions: list[FunctionType], cpu: float) -> str:
        told = self._root / "by"
        told.unlink(missing_ok=True)

        def run() -> int:
            try:
                _swap(mutant, self._trees[mutant.module], functions)
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

    def _fork(self, run: Any, cpu: float | None) -> int:
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
        timer = threading.Timer(60 + 10 * cpu, os.killpg, (child, signal.SIGKILL)) if cpu is not None else None
        if timer is not None:
            timer.start()
        _, status = os.waitpid(child, 0)
        if timer is not None:
            timer.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
        return os.waitstatus_to_exitcode(status)


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


def _swap(mutant: Mutant, tree: Module, functions: list[FunctionType]) -> None:
    """Put the mutant into the live module, under each name that it was imported by."""
    namespace = vars(sys.modules[mutant.module])
    if mutant.constant is not None:
        before = dict(namespace)
        mutant.change()
        exec(compile(Module([mutant.constant], []), mutant.path, "exec", dont_inherit=True), namespace)
        for name in [name for name in before if namespace[name] is not before[name]]:
            for module in list(sys.modules.values()):
                if module.__name__.startswith(("cdc_lakehouse", "tests")) and vars(module).get(name) is before[name]:
                    setattr(module, name, namespace[name])
        return
    changed = changed_code(tree, mutant.path, mutant)
    for function in functions:
        new = changed.get(code_key(function.__code__))
        if new is not None:
            with contextlib.suppress(ValueError):  # A closure that needs other variables: new ones have the mutant.
                function.__code__ = new


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
