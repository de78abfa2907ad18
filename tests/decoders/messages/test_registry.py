"""Formats by name, their options, and that a task can take a decoder along."""

from __future__ import annotations

import pickle

import pytest

from cdc_lakehouse.decoders.messages.registry import FORMATS, format_of
from cdc_lakehouse.errors import ConfigurationError
from tests.decoders.messages.dts_records import sdk_records

VALUES = {
    "dts-avro": sdk_records()[1][0],
    "dts-canal-json": b'{"database":"d","table":"t","type":"DELETE","data":[{"id":"1"}]}',
    "shareplex-json": b'{"meta":{"op":"ins","table":"d.t"},"data":{"id":"1"}}',
}


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_decoder_can_be_pickled(name: str) -> None:
    decode = format_of(name).decoder({})
    message = decode(None, VALUES[name])
    assert message.parts
    assert pickle.loads(pickle.dumps(decode))(None, VALUES[name]) == message
    assert pickle.loads(pickle.dumps(message)) == message


def test_an_unknown_format_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"no format dts of messages.*dts-avro, dts-canal-json"):
        format_of("dts")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_an_unknown_option_is_an_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"format {name} has no option before_2022_03_02"):
        format_of(name).decoder({"before_2022_03_02": True})


@pytest.mark.parametrize("value", ["true", 1, None])
def test_an_option_that_is_not_true_or_false_is_an_error(value: object) -> None:
    with pytest.raises(ConfigurationError, match="before_2022_03_20 of format dts-canal-json"):
        format_of("dts-canal-json").decoder({"before_2022_03_20": value})
