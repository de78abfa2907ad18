"""DuckDB as a reader has it, in a process of its own: its extensions come from wheels, which are for an older version
than the project's DuckDB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from tests.servers.tools import CACHE, wheel

_EXTENSIONS: Final = ("avro", "aws", "httpfs", "iceberg")
_PROGRAM: Final = """
import json, pathlib, sys, duckdb
settings, *directories = sys.argv[1:]
connection = duckdb.connect(config={"extension_directory": settings})
for directory in directories:
    (file,) = pathlib.Path(directory).rglob("*.duckdb_extension")
    connection.execute(f"INSTALL '{file}'")
for statement in duckdb.extract_statements(sys.stdin.read()):
    answer = connection.execute(statement)
print(json.dumps(answer.fetchall(), default=str))
"""


def rows_in_duckdb(statements: str, environment: Mapping[str, str] | None = None) -> list[tuple[Any, ...]]:
    """What the last of some statements gives. `INSTALL` finds the extensions without a network."""
    pinned = wheel("duckdb")
    extensions = [str(wheel(f"duckdb-extension-{name}")) for name in _EXTENSIONS]
    path = os.pathsep.join([str(pinned), str(wheel("pytz"))])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(CACHE / f"{pinned.name}-extensions"), *extensions],
        input=statements, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, f"{statements}\n{done.stderr[-3000:]}"
    return [tuple(row) for row in json.loads(done.stdout)]
