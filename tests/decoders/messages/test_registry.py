"""Formats by name, their options, and that a task can take a decoder along."""

from __future__ import annotations

import pickle

import pytest

from cdc_lakehouse.decoders.registry import FORMATS, format_of
from cdc_lakehouse.errors import ConfigurationError
from tests.decoders.messages.dts_records import sdk_records
from tests.kit.cases import shown

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


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("dts", {}, r"no format dts of messages.*dts-avro, dts-canal-json"),
        *((name, {"before_2022_03_02": True}, f"format {name} has no option before_2022_03_02") for name in FORMATS),
        *(
            ("dts-canal-json", {"before_2022_03_20": value}, "before_2022_03_20 of format dts-canal-json")
            for value in ("true", 1, None)
        ),
    ],
    ids=shown,
)
def test_what_is_configured_wrongly(name: str, options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        format_of(name).decoder(options)
