"""The generated code of Canal's protocol."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path("cdc_lakehouse/sources/canal/wire")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["entries", "packets"])
def test_generated_code_is_what_the_proto_file_gives(name: str, tmp_path: Path) -> None:
    options = ["-I", ".", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(PACKAGE / f"{name}.proto")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], cwd=ROOT, check=True)
    for suffix in ("py", "pyi"):
        file = PACKAGE / f"{name}_pb2.{suffix}"
        assert (ROOT / file).read_text() == (tmp_path / file).read_text(), "run `make proto`"


def test_proto_files_are_part_of_the_package() -> None:
    names = {file.name for file in importlib.resources.files("cdc_lakehouse.sources.canal.wire").iterdir()}
    assert {"entries.proto", "packets.proto"} <= names
