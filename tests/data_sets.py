"""The data sets of `tests/data`, packed: one archive for a protocol, `{name}/…` inside."""

from __future__ import annotations

import tarfile
from pathlib import Path

ARCHIVES = Path(__file__).parent / "data"


def names(protocol: str) -> list[str]:
    """Names of the data sets of a protocol; read from a list, so that collecting tests unpacks nothing."""
    return (ARCHIVES / f"ticdc-{protocol}.txt").read_text(encoding="utf-8").split()


def unpack(target: Path) -> Path:
    for archive in sorted(ARCHIVES.glob("ticdc-*.tar.xz")):
        with tarfile.open(archive) as packed:
            packed.extractall(target / archive.name.removeprefix("ticdc-").removesuffix(".tar.xz"), filter="data")
    return target
