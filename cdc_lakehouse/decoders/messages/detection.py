"""Detection of the format of messages from their content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, cast

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders.messages.compression import LZ4_MAGIC, text_or_value
from cdc_lakehouse.decoders.messages.registry import FORMATS

DEFAULT: Final = "ticdc-canal-json"
"""The format where there is no message to detect it from."""
_BINARY: Final = ("dts-avro", "canal-protobuf")


def detect_format(values: Sequence[bytes]) -> dict[str, Any] | None:
    """Return `format` of `source`, and those of its options that differ from the defaults; None where no format fits.

    A JSON format is recognised by its keys, the others by whether their decoders read all values. Canal's own flat
    messages and others' differ little: the result is the most likely one.
    """
    documents = [document for value in values if (document := _object(value)) is not None]
    if len(documents) * 2 > len(values):
        return _of_json(documents)
    return next(({"format": name} for name in _BINARY if values and all(_reads(name, value) for value in values)), None)


def plain_values(values: Sequence[bytes]) -> tuple[list[bytes], list[str]]:
    """Return the texts of values, as far as they can be read, and the names of their compressions."""
    texts = [text_or_value(value) or b"" for value in values]
    pairs = zip(values, texts, strict=True)
    return texts, sorted(
        {"lz4" if value.startswith(LZ4_MAGIC) else "snappy" for value, text in pairs if text is not value}
    )


def _of_json(documents: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    if any("_tidb" in document for document in documents):
        return {"format": "ticdc-canal-json"}
    if all({"meta", "data"} <= document.keys() for document in documents):
        return {"format": "shareplex-json"}
    flat = [document for document in documents if {"database", "type"} <= document.keys()]
    if not flat:
        return None
    types = [text for document in flat for text in _types(document)]
    lengths = any("char" in text and "(" in text for text in types)
    texts = any("char" in text for text in types)
    if any(document["type"] == "INIT" for document in flat) or (texts and not lengths):
        return {"format": "dts-canal-json"}
    if any("gtid" in document for document in flat):
        return {"format": "canal-json"}
    return {"format": "ticdc-canal-json", "tidb_extension": False}


def _types(document: dict[str, Any]) -> list[str]:
    types = document.get("mysqlType")
    return [str(each) for each in cast("dict[str, Any]", types).values()] if isinstance(types, dict) else []


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


def _reads(name: str, value: bytes) -> bool:
    try:
        FORMATS[name].decoder({})(None, value)
    except MessageError:
        return False
    return True
