from __future__ import annotations

from pathlib import Path


def contents(sink: Path) -> dict[str, bytes]:
    return {path.relative_to(sink).as_posix(): path.read_bytes() for path in sink.rglob("*") if path.is_file()}
