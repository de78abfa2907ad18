"""Metadata that is damaged anywhere gives an error of the project's, or is read; nothing else is raised."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_lakehouse.errors import CdcError
from tests.kit import dumps
from tests.sources.dump.tables import KINDS, ODD, read

WRITERS: dict[str, Callable[[Path], Path]] = {
    "dumpling": lambda root: dumps.dumpling(root, [KINDS, ODD]),
    "mydumper": lambda root: dumps.mydumper(root, [KINDS, ODD], output="CSV", hex_blob=True),
    "mysqlshell": lambda root: dumps.mysqlshell(root, [KINDS, ODD], rows_per_file=2, suffix=""),
}
PIECES = [
    b"",
    b"{",
    b"}",
    b"[]",
    b"null",
    b"-1",
    b"'",
    b'"',
    b"`",
    b"\n",
    b"\t",
    b"\\",
    b"\xff",
    b"%",
    b"@",
    b"(",
    b",",
]


@pytest.mark.parametrize("tool", WRITERS)
def test_damaged_metadata(tmp_path: Path, tool: str) -> None:
    WRITERS[tool](tmp_path)
    chance = random.Random(11)
    read_files = [path for path in sorted(tmp_path.iterdir()) if path.suffix in ("", ".sql", ".json")]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(400):
        path = chance.choice(read_files)
        content = path.read_bytes()
        start = chance.randrange(len(content))
        end = chance.choice((start, start + 1, start + chance.randrange(40), len(content)))
        path.write_bytes(content[:start] + chance.choice(PIECES) + content[end:])
        try:
            read(tmp_path, tool)
            outcomes["read"] += 1
        except CdcError:
            outcomes["refused"] += 1
        path.write_bytes(content)
    assert min(outcomes.values()) > 10
