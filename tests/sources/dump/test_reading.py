"""Compressed files of dumps: their content in pieces, and the errors of damaged ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import ObjectChangedError, SourceError
from cdc_lakehouse.sources.dump import reading
from cdc_lakehouse.sources.dump.contents import Compression, list_objects
from cdc_lakehouse.sources.dump.reading import decompressed, open_pieces, read_small
from cdc_lakehouse.sources.object_store import LocalStore
from tests.kit import dumps
from tests.kit.dumps import COMPRESSED, SNAPPY_BEGIN, snappy_chunk

RANDOM = random.Random(3).randbytes(150_000)
CONTENT = b"some rows,\\N\r\n" * 20_000 + RANDOM
SUFFIXES: dict[Compression | None, str] = {"gzip": ".gz", "snappy": ".snappy", "zstd": ".zst", None: ""}
KINDS: tuple[Compression, ...] = ("gzip", "snappy", "zstd")


def cut(content: bytes, size: int) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


@pytest.mark.parametrize("size", [1, 4099, 1 << 22])
@pytest.mark.parametrize("kind", SUFFIXES)
def test_content_is_read_in_pieces_of_any_size(kind: Compression | None, size: int) -> None:
    """Of several streams, too, one after the other."""
    content = CONTENT if size > 1 else CONTENT[-3000:]
    compressed = b"".join(map(COMPRESSED[SUFFIXES[kind]], (content, b"", b"two")))
    pieces = list(decompressed(cut(compressed, size), kind, "f"))
    assert b"".join(pieces) == content + b"two"
    assert all(0 < len(piece) <= reading.PIECE for piece in pieces)
    assert list(decompressed(iter([COMPRESSED[SUFFIXES[kind]](b"")]), kind, "f")) == []


WHOLE = {kind: COMPRESSED[SUFFIXES[kind]](RANDOM) for kind in KINDS}


def flipped(kind: Compression, place: int) -> bytes:
    content = bytearray(WHOLE[kind])
    content[place] ^= 0x41
    return bytes(content)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        *((kind, WHOLE[kind][:left]) for kind in KINDS for left in (0, 1, 9, 5000, -1)),
        *((kind, flipped(kind, place)) for kind in ("gzip", "snappy") for place in (0, 20, 5000, -6)),
        *((kind, b"INSERT INTO `t` VALUES\n(1);\n") for kind in KINDS),
        *((kind, WHOLE[kind] + b"more of it") for kind in KINDS),
    ],
    ids=lambda each: each if isinstance(each, str) else f"{len(each)} bytes",
)
def test_damaged_file_is_refused(kind: Compression, content: bytes) -> None:
    with pytest.raises(SourceError, match=rf"the {kind} file cannot be decompressed: .*\[segment d/f\].*copy"):
        list(decompressed(cut(content, 1000), kind, "d/f"))


def test_snappy_chunks_of_all_kinds_are_read() -> None:
    skipped = b"\xfe\x03\x00\x00abc\x80\x00\x00\x00"
    content = SNAPPY_BEGIN + snappy_chunk(b"one") + skipped + snappy_chunk(b"two", 1) + SNAPPY_BEGIN + snappy_chunk(b"")
    assert list(decompressed(cut(content, 3), "snappy", "f")) == [b"one", b"two"]
    longest = SNAPPY_BEGIN + b"\x80\xff\xff\xff" + bytes((1 << 24) - 1) + snappy_chunk(b"one")
    assert list(decompressed(iter([longest]), "snappy", "f")) == [b"one"]


@pytest.mark.parametrize(
    ("chunk", "problem"),
    [
        (b"\x02\x01\x00\x00x", "unsupported chunk type: 2"),
        (b"\xff\x06\x00\x00sNaPpX", "stream header"),
        (b"\x00\x03\x00\x00abc", "chunk length: 3"),
        (b"\x01\x03\x00\x00abc", "chunk length: 3"),
        (snappy_chunk(bytes(65537), 1), "cannot be decompressed"),
        (b"\x00\x0a\x00\x00abcd\xff\xff\xff\xff\xff\x0f", "cannot be decompressed"),
        (b"\x00\x05\x00\x00abcd\x05", "cannot be decompressed"),
        (snappy_chunk(b"abc", 1)[:-1] + b"d", "checksum"),
        (snappy_chunk(b"abc")[:-1], "ends within a chunk"),
        (b"\x00\x05", "ends within a chunk"),
    ],
)
def test_damaged_snappy_chunk_is_refused(chunk: bytes, problem: str) -> None:
    with pytest.raises(SourceError, match=problem):
        list(decompressed(iter([SNAPPY_BEGIN + chunk]), "snappy", "f"))
    with pytest.raises(SourceError, match="does not begin"):
        list(decompressed(iter([chunk]), "snappy", "f"))


@pytest.mark.parametrize("kind", SUFFIXES)
def test_file_is_opened_in_a_task(tmp_path: Path, kind: Compression | None, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps.write(tmp_path, "f", b"a" * 10_000, SUFFIXES[kind])
    store = LocalStore(tmp_path)
    (file,) = list_objects(store)
    pieces = open_pieces(store.uri, StorageConfig.nothing(), file.path, file.etag, kind)
    assert b"".join(pieces) == read_small(store, file) == b"a" * 10_000
    with pytest.raises(ObjectChangedError, match="changed since"):
        list(open_pieces(store.uri, StorageConfig.nothing(), file.path, "other", kind))
    monkeypatch.setattr(reading, "SMALL_FILE_LIMIT", 9_999)
    with pytest.raises(SourceError, match=r"larger than 9999 bytes"):
        read_small(store, file)
