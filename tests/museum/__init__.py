"""Real faults, kept as reverse patches: each takes one mending out of the product again, and its tests should fail.

`python -m tests.museum` (docs/development.md).
"""

from __future__ import annotations

import ast
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIRECTORY = Path(__file__).parent
RED = "red: "
ONLY = " --only "
SLOW = ("tests/spark/", "tests/servers/", "tests/chaos/")


@dataclass(frozen=True)
class Red:
    """A test that turns red, whatever its parameters where it has none here. With `only` it plays one scenario."""

    test: str
    only: str = ""

    @property
    def is_slow(self) -> bool:
        """Whether it starts Spark or a server."""
        return self.test.startswith(SLOW)

    @property
    def exists(self) -> bool:
        path, _, name = self.test.partition("[")[0].partition("::")
        return name in _functions(ROOT / path) and (not self.only or self._is_scenario())

    def _is_scenario(self) -> bool:
        """Whether the file of scenarios that the test plays, `[FILE-WAY]`, has that one."""
        file = ROOT / "tests/scenarios" / f"{self.test.partition('[')[2].partition('-')[0]}.txt"
        return file.is_file() and f"== {self.only}" in file.read_text(encoding="utf-8").splitlines()

    def __str__(self) -> str:
        return f"{self.test}{ONLY}{self.only}" if self.only else self.test


@dataclass(frozen=True)
class Patch:
    """A mending taken out again."""

    path: Path
    fault: str
    red: tuple[Red, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    def apply(self, root: Path, *options: str) -> str:
        """Apply the patch to a tree, and return what git says against it."""
        done = subprocess.run(
            ["git", "apply", *options, str(self.path)],
            cwd=root,
            # In a directory below a repository git would leave out what is not below that directory.
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        return "" if done.returncode == 0 else done.stderr or "git apply failed"


def patches() -> list[Patch]:
    """All patches, by name."""
    return [_read(path) for path in sorted(DIRECTORY.glob("*.patch"))]


def _read(path: Path) -> Patch:
    header = path.read_text(encoding="utf-8").partition("diff --git")[0].splitlines()
    tests = [line.removeprefix(RED).strip().partition(ONLY) for line in header if line.startswith(RED)]
    return Patch(
        path=path,
        fault=" ".join(line for line in header if line and not line.startswith(RED)),
        red=tuple(Red(test, only) for test, _, only in tests),
    )


@cache
def _functions(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
