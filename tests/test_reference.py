"""Pages that are made from the code are up to date, and messages that other pages quote are in it."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "reference.py"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_pages_that_are_made_from_the_code_are_up_to_date(reference: ModuleType) -> None:
    assert reference.stale() == [], "run `make reference`"


@pytest.mark.slow
def test_messages_are_read_as_people_see_them(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.py").write_text(
        "_ADVICE = 'do this'\n"
        "def f(path, known):\n"
        "    raise ConfigurationError(f'cannot read {path}', advice=_ADVICE)\n"
        "    raise SourceError('nothing there', advice='wait' if known else 'look')\n"
        "    raise SourceError('says no advice')\n"
        "    raise SourceError(known, advice='of which nothing is known')\n"
    )
    monkeypatch.setattr(reference, "PACKAGE", tmp_path)
    assert reference.messages() == [
        ("ConfigurationError", [["`cannot read …`", "`do this`"]]),
        ("SourceError", [["`nothing there`", "`wait / look`"]]),
    ]


@pytest.mark.slow
def test_messages_of_troubleshooting_are_in_the_code(reference: ModuleType) -> None:
    said = list(texts(reference))
    unknown = []
    for row in re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "troubleshooting.md").read_text("utf-8"), re.MULTILINE):
        for message in (span for span in re.findall(r"`([^`]+)`", row) if " " in span):
            pieces = [piece.strip(" :'") for piece in message.split("…") if len(piece.strip(" :?'")) > 2]
            if not any(all(piece in text for piece in pieces) for text in said):
                unknown.append(message)
    assert unknown == []


def texts(reference: ModuleType) -> Iterator[str]:
    """Every text in the package, with `…` for what is put into it."""
    for path in sorted((ROOT / "cdc_lakehouse").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                yield reference._words(node, {})
