"""A few examples of each decoder, the same each time; `make fuzz` goes on."""

from __future__ import annotations

import pytest

from cdc_lakehouse.errors import CdcError
from tests.fuzz.running import try_examples
from tests.fuzz.targets import TARGETS

EXAMPLES = {"metadata of dumps": 500, "Canal flat messages": 150, "DTS JSON": 300}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", TARGETS)
def test_spoilt_bytes_are_read_or_an_error_of_the_project_s(name: str) -> None:
    try_examples(name, 1, EXAMPLES.get(name, 40))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", TARGETS)
def test_the_inputs_that_are_spoilt_are_sound(name: str) -> None:
    for number, variant in enumerate(TARGETS[name]()):
        read = 0
        for sample in variant.samples:
            try:
                variant.read(sample)
            except CdcError:
                continue
            read += 1
        assert read, f"variant {number}"
