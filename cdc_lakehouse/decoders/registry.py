"""The formats of messages and of files, by their names in the configuration, and what is detected from content."""

from __future__ import annotations

import contextlib
import datetime
import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.config import Protocol
from cdc_lakehouse.decoders.format import FileFormat, Format, Options
from cdc_lakehouse.decoders.formats import csv, ticdc_canal_json
from cdc_lakehouse.decoders.formats.canal_json import READER
from cdc_lakehouse.decoders.formats.ticdc_canal_json import LZ4_MAGIC, text_or_value
from cdc_lakehouse.decoders.json_object import read_message

FORMATS: Final = {
    "ticdc-canal-json": "ticdc_canal_json.FORMAT", "canal-json": "canal_json.FORMAT",
    "canal-entries": "canal_entries.FORMAT", "dts-avro": "dts_avro.FORMAT", "dts-canal-json": "dts_canal_json.FORMAT",
    "shareplex-json": "shareplex_json.FORMAT", "canal-protobuf": "canal_entries.PROTOBUF",
}  # fmt: skip
"""Where each format is: it is imported when it is asked for, because some need libraries that others do without."""


def format_of(name: str) -> Format:
    module, attribute = FORMATS[name].split(".")
    return getattr(importlib.import_module(f"cdc_lakehouse.decoders.formats.{module}"), attribute)


# Detection of the format of messages from their content.

DEFAULT: Final = "ticdc-canal-json"  # The format where there is no message to detect it from.


def detect_format(values: Sequence[bytes]) -> dict[str, Any] | None:
    """Return `format` of `source`, and those of its options that differ from the defaults; None where no format fits.

    A JSON format is recognised by its keys, the others by whether their decoders read all values. Canal's own flat
    messages and others' differ little: the result is the most likely one.
    """
    documents = list[dict[str, Any]]()
    for value in values:
        with contextlib.suppress(MessageError):
            documents.append(read_message(value))
    if len(documents) * 2 <= len(values):
        for name in ("dts-avro", "canal-protobuf") if values else ():
            decode = format_of(name).make(Options())
            with contextlib.suppress(MessageError):
                for value in values:
                    decode(value)
                return {"format": name}
        return None
    if any("_tidb" in document for document in documents):
        return {"format": "ticdc-canal-json"}
    if all({"meta", "data"} <= document.keys() for document in documents):
        return {"format": "shareplex-json"}
    flat = [document for document in documents if {"database", "type"} <= document.keys()]
    if not flat:
        return None
    lists = (cast("dict[str, Any]", types) for document in flat if isinstance(types := document.get("mysqlType"), dict))
    types = [text for each in lists for text in map(str, each.values()) if "char" in text]
    has_no_lengths = bool(types) and not any("(" in text for text in types)
    if has_no_lengths or any(document["type"] == "INIT" for document in flat):
        return {"format": "dts-canal-json"}
    if any("gtid" in document for document in flat):
        return {"format": "canal-json"}
    return {"format": "ticdc-canal-json", "tidb_extension": False}


def plain_values(values: Sequence[bytes]) -> tuple[list[bytes], list[str]]:
    """Return the texts of values, as far as they can be read, and the names of their compressions."""
    texts = [text_or_value(value) or b"" for value in values]
    pairs = zip(values, texts, strict=True)
    names = ("lz4" if value.startswith(LZ4_MAGIC) else "snappy" for value, text in pairs if text is not value)
    return texts, sorted({*names})


# Detection of the time zone of TIMESTAMP text: the data does not give it, but most tables have a column that is set
# when the row is written.

_STEP: Final = datetime.timedelta(minutes=15)  # Offsets from UTC are multiples of this.
_SLACK: Final = datetime.timedelta(seconds=90)  # The maximum time between the writing of a row and its commit.
_LARGEST: Final = datetime.timedelta(hours=14)


def detect_offset(values: Iterable[bytes]) -> datetime.timedelta | None:
    """Return the offset from UTC with which most TIMESTAMP values equal the time of their commit; None where too few
    are near one. `values` are lines or messages: those of TiCDC's Canal-JSON have a commit-ts."""
    offsets = Counter(offset for value in values if value.startswith(b"{") for offset in _offsets(value))
    if not offsets:
        return None
    offset, count = offsets.most_common(1)[0]
    return offset if count >= max(3, 0.8 * offsets.total()) else None


def _offsets(value: bytes) -> Iterator[datetime.timedelta]:
    try:
        message = READER.read(value)
        commit_ts = ticdc_canal_json.timestamp_of(ticdc_canal_json.extension_of(message), "commitTs")
    except MessageError:
        return
    columns = [name for name, type in message.types.items() if type.startswith("timestamp")]
    for text in (row.get(name) for row in message.data or () for name in columns):
        with contextlib.suppress(ValueError):
            time = datetime.datetime.fromisoformat(text or "").replace(tzinfo=datetime.UTC)
            difference = time - commit_time(commit_ts)
            offset = _STEP * round(difference / _STEP)
            if abs(offset) <= _LARGEST and abs(difference - offset) <= _SLACK:
                yield offset


# The format of each protocol, by its name in the configuration.


FILE_FORMATS: Final[Mapping[Protocol, FileFormat]] = {
    "canal-json": FileFormat(
        decode=ticdc_canal_json.decode,
        redelivers=ticdc_canal_json.redelivers_canal_json,
        piece=ticdc_canal_json.PIECE,
        lacks_commit_ts=ticdc_canal_json.lacks_commit_ts,
    ),
    "csv": FileFormat(decode=csv.decode, redelivers=csv.redelivers_csv, detect=csv.detect_csv, has_labels=True),
}
DEFAULT_PROTOCOL: Final[Protocol] = "canal-json"
"""TiCDC's own default, for a sink without data files."""
