"""The decoder of each format of messages, by the name that the configuration has for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cdc_lakehouse.decoders.messages import (
    canal_entries,
    canal_flat,
    canal_protobuf,
    dts_avro,
    dts_canal_json,
    shareplex_json,
    ticdc_canal_json,
)
from cdc_lakehouse.decoders.messages.options import Decode, Options
from cdc_lakehouse.decoders.messages.ticdc_plain_rows import PlainRow, plain_row
from cdc_lakehouse.errors import ConfigurationError

FORMATS: Final[Mapping[str, Callable[[Options], Decode]]] = {
    ticdc_canal_json.FORMAT: ticdc_canal_json.decoder,
    canal_flat.FORMAT: canal_flat.decoder,
    canal_protobuf.FORMAT: canal_protobuf.decoder,
    canal_entries.FORMAT: canal_entries.decoder,
    dts_avro.FORMAT: dts_avro.decoder,
    dts_canal_json.FORMAT: dts_canal_json.decoder,
    shareplex_json.FORMAT: shareplex_json.decoder,
}

OF_CANAL: Final = frozenset({canal_entries.FORMAT, canal_flat.FORMAT, canal_protobuf.FORMAT})
"""Formats in which Canal has made the values, whatever carries them."""


def decoder(name: str, options: Options) -> Decode:
    """The decoder of a format. It can be pickled, so a task may take it along.

    Raises ConfigurationError for a format that there is not, and for options that it does not have."""
    factory = FORMATS.get(name)
    if factory is None:
        raise ConfigurationError(
            f"there is no format {name} of messages", advice=f"it is one of {', '.join(sorted(FORMATS))}"
        )
    return factory(options)


def plain_reader(name: str, options: Options) -> Callable[[bytes], PlainRow | None] | None:
    """What reads most messages faster than the decoder, which then reads the others; None where there is no such."""
    return plain_row if name == ticdc_canal_json.FORMAT and options.get("tidb_extension") is not False else None
