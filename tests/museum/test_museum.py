"""The patches fit today's product, and name tests of today."""

import pytest

from tests.museum.__main__ import ROOT, patches

PATCHES = patches()


def exists(test: str, only: str) -> bool:
    """A test, with the scenario in the file that it plays, `[FILE-WAY]`."""
    path, _, name = test.partition("[")[0].partition("::")
    file = ROOT / "tests/scenarios" / f"{test.partition('[')[2].partition('-')[0]}.txt"
    is_played = not only or f"== {only}" in file.read_text(encoding="utf-8").splitlines()
    return is_played and f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PATCHES)
def test_patch_applies_and_names_existing_tests(name: str) -> None:
    patch = PATCHES[name]
    assert patch.fault
    assert patch.red
    assert [red for red in patch.red if not exists(*red)] == []
    assert patch.apply(ROOT, "--check") == ""


def test_patches_are_found() -> None:
    assert len(PATCHES) >= 10
