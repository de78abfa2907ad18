"""The patches of this directory: what was wrong, and which tests turn red."""

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
SLOW = ("tests/spark/", "tests/servers/", "tests/chaos/")


@dataclass(frozen=True)
class Patch:
    """A mending taken out again."""

    path: Path
    fault: str
    red: tuple[str, ...]

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


def is_slow(test: str) -> bool:
    """Whether a test starts Spark or a server."""
    return test.startswith(SLOW)


def exists(test: str) -> bool:
    """Whether there is a test of this id, whatever its parameters."""
    path, _, name = test.partition("[")[0].partition("::")
    return bool(name) and name in _functions(ROOT / path)


def _read(path: Path) -> Patch:
    header = path.read_text(encoding="utf-8").partition("diff --git")[0].splitlines()
    return Patch(
        path=path,
        fault=" ".join(line for line in header if line and not line.startswith(RED)),
        red=tuple(line.removeprefix(RED).strip() for line in header if line.startswith(RED)),
    )


@cache
def _functions(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
