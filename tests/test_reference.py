"""The pages of docs/reference that are made from the code are what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "reference.py"


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
