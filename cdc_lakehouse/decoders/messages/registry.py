"""The formats of messages, by their names in the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdc_lakehouse.decoders.messages import (
    canal_entries,
    canal_json,
    canal_protobuf,
    dts_avro,
    dts_canal_json,
    shareplex_json,
    ticdc_canal_json,
)
from cdc_lakehouse.decoders.messages.format import Format
from cdc_lakehouse.errors import ConfigurationError

_MODULES: Final = (
    ticdc_canal_json, canal_json, canal_protobuf, canal_entries, dts_avro, dts_canal_json, shareplex_json,
)  # fmt: skip
FORMATS: Final[Mapping[str, Format]] = {module.FORMAT.name: module.FORMAT for module in _MODULES}


def format_of(name: str) -> Format:
    """Return the format of that name. Raises ConfigurationError where there is none."""
    found = FORMATS.get(name)
    if found is None:
        raise ConfigurationError(
            f"there is no format {name} of messages", advice=f"it is one of {', '.join(sorted(FORMATS))}"
        )
    return found
