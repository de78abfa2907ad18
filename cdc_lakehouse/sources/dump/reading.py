"""Reading of a dump's files, decompressed on the way: no file is ever completely in memory.

A stream may consist of several, one after the other (gzip's members, zstd's frames). Truncated or damaged content is an
error, as far as the format shows it: zstd has a checksum only where its writer made one, and framed snappy has no end
mark, so that a file cut between two of its chunks looks complete."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, Final

import cramjam
import pyarrow as pa

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import DumpError, SourceError
from cdc_lakehouse.sources.dump.contents import Compression
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, shared_store

# pyright: standard
# Pyarrow's types are incomplete.

PIECE: Final = 4 * 1024 * 1024
"""The bytes that are requested, and returned, at once."""
SMALL_FILE_LIMIT: Final = 64 * 1024 * 1024
"""The limit of a file that is read as a whole, in bytes: metadata, a table's schema. 4,096 columns with long labels
stay far below."""
SUFFIXES: Final[dict[str, Compression]] = {".gz": "gzip", ".snappy": "snappy", ".zst": "zstd"}


def without_suffix(path: str) -> tuple[str, Compression | None]:
    for suffix, compression in SUFFIXES.items():
        if path.endswith(suffix):
            return path.removesuffix(suffix), compression
    return path, None


def open_pieces(
    root: str, storage: StorageConfig, path: str, etag: str | None, compression: Compression | None
) -> Iterator[bytes]:
    """Read a file of the dump at the URI `root`, in pieces of up to `PIECE` bytes, in tasks of other processes. Raises
    as `ObjectStore.pieces` does, and `SourceError` when the compressed file is truncated or damaged."""
    return decompressed(shared_store(root, storage).pieces(path, PIECE, etag=etag), compression, path)


def read_small(store: ObjectStore, file: StoredObject) -> bytes:
    """Read the content of a file, decompressed according to its suffix. Raises as `ObjectStore.read` does, and
    `SourceError` when it is damaged, or larger than `SMALL_FILE_LIMIT` bytes, stored or decompressed."""
    content = store.read(file.path, limit=SMALL_FILE_LIMIT, etag=file.etag)
    compression = without_suffix(file.path)[1]
    if compression is None:
        return content
    pieces, size = list[bytes](), 0
    for piece in decompressed(iter((content,)), compression, file.path):
        size += len(piece)
        if size > SMALL_FILE_LIMIT:
            raise DumpError(f"the file is larger than {SMALL_FILE_LIMIT} bytes, decompressed", segment=file.path)
        pieces.append(piece)
    return b"".join(pieces)


def read_text(store: ObjectStore, file: StoredObject) -> str:
    """Read a file in UTF-8. Raises as `read_small` does, and `SourceError` when it is not UTF-8."""
    content = read_small(store, file)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DumpError(f"the file is not UTF-8 at byte {error.start}", segment=file.path) from None


def decompressed(pieces: Iterator[bytes], compression: Compression | None, path: str) -> Iterator[bytes]:
    """Yield the content of a compressed stream, in pieces of up to `PIECE` bytes, none of them empty. Raises
    `SourceError` with `path` when it is truncated or damaged, and any error that `pieces` raises."""
    if compression is None:
        yield from (piece for piece in pieces if piece)
        return
    stream = io.BufferedReader(_Pieces(pieces), PIECE)
    if not stream.peek(1):
        # Even an empty content has a header when compressed.
        raise _damaged(path, compression, "it is empty")
    if compression == "snappy":
        yield from _unsnapped(stream, path)
        return
    with contextlib.closing(pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), compression)) as file:
        try:
            yield from iter(lambda: file.read(PIECE), b"")
        except (pa.ArrowException, OSError) as error:
            # The project's errors, which the store raises, pass through.
            raise _damaged(path, compression, str(error)) from None


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


_SNAPPY: Final = b"\xff\x06\x00\x00sNaPpY"
"""The beginning of framed snappy (google/snappy, framing_format.txt), which Dumpling writes."""


def _unsnapped(stream: io.BufferedReader[_Pieces], path: str) -> Iterator[bytes]:
    """Decompress each chunk by itself: with the beginning before it, it is a whole stream."""
    if stream.read(len(_SNAPPY)) != _SNAPPY:
        raise _damaged(path, "snappy", "it does not begin as framed snappy does")
    while header := stream.read(4):
        size = int.from_bytes(header[1:], "little")
        body = stream.read(size)
        if len(header) < 4 or len(body) < size:
            raise _damaged(path, "snappy", "it ends within a chunk")
        if 0x80 <= header[0] < 0xFF:
            continue  # Chunks that readers skip can be longer than cramjam takes.
        try:
            content = bytes(cramjam.snappy.decompress(_SNAPPY + header + body))
        except cramjam.DecompressionError as error:
            raise _damaged(path, "snappy", str(error)) from None
        if content:
            yield content


def _damaged(path: str, compression: Compression, reason: str) -> SourceError:
    said = f"the {compression} file cannot be decompressed: {reason}"
    return SourceError(said, segment=path, advice="copy the file again from where it was dumped, or dump again")
