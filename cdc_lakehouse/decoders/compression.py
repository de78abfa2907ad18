"""Values of messages that TiCDC compresses itself, by its option `large-message-handle-compression`: rows, statements,
watermarks and claim checks alike, each value on its own.

`lz4` writes a frame, which begins with a magic number. `snappy` writes a block, which begins with the size of the text
as a varint: one that began with `{`, as JSON does, would have 123 bytes, and TiCDC's messages have more.

Source of the facts: TiCDC's code, and the descriptions of both formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders.arrow import pc

LIMIT: Final = 256 << 20
"""The most bytes of a message's text. Brokers accept 100 MB of TiCDC at most, compressed."""
_TOGETHER: Final = 32 << 20
AT_ONCE: Final = 64 << 10
LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_SNAPPY_RATIO: Final = 22
"""An element of 3 bytes stands for 64 bytes at most."""
_ADVICE: Final = "see whether the message came whole; the changefeed has large-message-handle-compression"


def uncompressed(value: bytes) -> bytes:
    """Return the text of a value; one that is not compressed is returned unchanged. Raises MessageError where the text
    cannot be read, or is too long."""
    if value.startswith(b"{"):
        return value
    return _lz4(value) if value.startswith(LZ4_MAGIC) else _snappy(value) or value


def uncompressed_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the records of a batch with the texts of their column `value`, some megabytes at a time. Values that cannot
    be read are left as they are, for the decoder to report."""
    values = batch.column("value")
    if pc.all(pc.starts_with(values, "{")).as_py() is not False:
        yield batch
        return
    place, start, size, texts = batch.schema.get_field_index("value"), 0, 0, list[bytes | None]()
    for value in values:
        texts.append(text_or_value(value.as_py()))
        size += len(texts[-1] or b"")
        if size >= _TOGETHER or start + len(texts) == len(values):
            piece = batch.slice(start, len(texts))
            yield piece.set_column(place, batch.schema.field(place), pa.array(texts, values.type))
            start, size, texts = start + len(texts), 0, []


def text_or_value(value: bytes | None) -> bytes | None:
    """Return the text of a value as `uncompressed` does, or the value where that fails."""
    try:
        return None if value is None else uncompressed(value)
    except MessageError:
        return value


def _within_limit(size: int) -> None:
    if size > LIMIT:
        raise MessageError(f"the message has more than the {LIMIT >> 20} MiB that are read, once it is uncompressed")


def _lz4(value: bytes) -> bytes:
    text = bytearray()
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(value), "lz4")
        while part := stream.read(AT_ONCE):
            text += part
            _within_limit(len(text))
    except OSError as error:
        raise MessageError("the message is not a complete frame of LZ4", advice=_ADVICE) from error
    return bytes(text)


def _snappy(value: bytes) -> bytes | None:
    """Return the text of a block; None for what is not a block that holds an object in JSON."""
    size = 0
    for at, byte in enumerate(value[:5]):
        size |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            break
    if size > len(value) * _SNAPPY_RATIO:
        return None
    _within_limit(size)
    try:
        text: bytes = pa.Codec("snappy").decompress(value, decompressed_size=size, asbytes=True)
    except OSError:
        return None
    return text if text.startswith(b"{") else None
