"""Tests are imported and collected once. Each mutant is a fork of that process, with the code of functions swapped."""

from __future__ import annotations

import contextlib
import gc
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
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import click
import pytest
from hypothesis import Phase, settings

from tests.mutation.mutants import Mutant, changed_code, code_key

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
