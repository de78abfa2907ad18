"""The patches fit today's product, and name tests of today."""

import pytest

from tests.museum.__main__ import ROOT, Patch, patches

PATCHES = patches()


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_patch_applies_and_names_existing_tests(patch: Patch) -> None:
    assert patch.fault
    assert patch.red
    assert [str(red) for red in patch.red if not red.exists] == []
    assert patch.apply(ROOT, "--check") == ""


def test_patches_are_found() -> None:
    assert len(PATCHES) >= 10
