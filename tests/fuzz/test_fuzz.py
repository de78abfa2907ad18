"""A few examples of each decoder, the same each time; `make fuzz` goes on."""

from __future__ import annotations

import contextlib

import pytest

from cdc_lakehouse.errors import CdcError
from tests.fuzz.running import try_examples
from tests.fuzz.targets import TARGETS, Variant

EXAMPLES = {"metadata of dumps": 500, "Canal flat messages": 150, "DTS JSON": 300}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", TARGETS)
def test_spoilt_bytes_are_read_or_an_error_of_the_project_s(name: str) -> None:
    try_examples(name, 1, EXAMPLES.get(name, 40))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_are_spoilt_are_sound_ones(name: str) -> None:
    def is_read(variant: Variant, sample: bytes) -> bool:
        with contextlib.suppress(CdcError):
            variant.read(sample)
            return True
        return False

    for number, variant in enumerate(TARGETS[name]()):
        assert any(is_read(variant, sample) for sample in variant.samples), f"variant {number}"
