"""Compressed files of dumps: their content in pieces, and what is said of damaged ones."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import ObjectChangedError, SourceError
from cdc_lakehouse.sources.dump import reading
from cdc_lakehouse.sources.dump.contents import Compression
from cdc_lakehouse.sources.dump.reading import crc32c, decompressed, open_pieces, read_small
from cdc_lakehouse.sources.object_store import LocalStore, StoredObject
from tests.kit import dumps
from tests.kit.dumps import COMPRESSED, SNAPPY_BEGIN, framed_snappy, snappy_chunk, zstd

CONTENT = b"some rows,\\N\r\n" * 20_000 + random.Random(7).randbytes(150_000)
KINDS: dict[Compression | None, str] = {None: "", "gzip": ".gz", "snappy": ".snappy", "zstd": ".zst"}


def cut(content: bytes, size: int) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


@pytest.mark.parametrize("size", [1, 4099, 1 << 22])
@pytest.mark.parametrize("kind", KINDS)
def test_content_comes_out_whatever_the_pieces(kind: Compression | None, size: int) -> None:
    content = CONTENT if size > 1 else CONTENT[-3000:]
    compressed = COMPRESSED[KINDS[kind]](content)
    pieces = list(decompressed(cut(compressed, size), kind, "f"))
    assert b"".join(pieces) == content
    assert all(0 < len(piece) <= reading.PIECE for piece in pieces)


@pytest.mark.parametrize("kind", ["gzip", "snappy", "zstd"])
def test_several_streams_one_after_the_other(kind: Compression) -> None:
    write = COMPRESSED[KINDS[kind]]
    assert b"".join(decompressed(cut(write(b"one") + write(b"") + write(b"two"), 5), kind, "f")) == b"onetwo"


@pytest.mark.parametrize("kind", ["gzip", "snappy", "zstd"])
def test_a_file_of_nothing(kind: Compression) -> None:
    assert list(decompressed(iter([COMPRESSED[KINDS[kind]](b"")]), kind, "f")) == []
    assert list(decompressed(iter([b""]), None, "f")) == []


def test_little_is_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file decompresses to comes in pieces, however well it was compressed."""
    monkeypatch.setattr(reading, "PIECE", 1 << 16)
    taken = 0

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        for piece in cut(gzip.compress(b"\0" * 50_000_000), 1000):
            taken += 1
            yield piece

    stream = decompressed(pieces(), "gzip", "f")
    assert len(next(stream)) == 1 << 16
    assert taken <= 66  # Arrow takes 64 KiB at once.
    stream.close()  # type: ignore[attr-defined]


RANDOM = random.Random(3).randbytes(100_000)
WHOLE = {"gzip": gzip.compress(RANDOM), "snappy": framed_snappy(RANDOM), "zstd": zstd(RANDOM)}


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("left", [0, 1, 9, 5000, -1])
def test_a_file_that_is_cut_off(kind: Compression, left: int) -> None:
    with pytest.raises(SourceError, match=rf"the {kind} file cannot be decompressed: .*\[segment d/f\].*copy"):
        list(decompressed(cut(WHOLE[kind][:left], 1000), kind, "d/f"))


@pytest.mark.parametrize("place", [0, 20, 5000, -6])
@pytest.mark.parametrize("kind", ["gzip", "snappy"])
def test_a_file_that_is_damaged(kind: Compression, place: int) -> None:
    content = bytearray(WHOLE[kind])
    content[place] ^= 0x41
    with pytest.raises(SourceError, match=rf"the {kind} file cannot be decompressed.*\[segment f\]"):
        list(decompressed(iter([bytes(content)]), kind, "f"))


@pytest.mark.parametrize("kind", WHOLE)
def test_a_file_that_is_not_compressed(kind: Compression) -> None:
    with pytest.raises(SourceError, match="cannot be decompressed"):
        list(decompressed(iter([b"INSERT INTO `t` VALUES\n(1);\n"]), kind, "f"))


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_something_after_the_end(kind: Compression) -> None:
    with pytest.raises(SourceError, match="cannot be decompressed"):
        list(decompressed(iter([WHOLE[kind] + b"more of it"]), kind, "f"))


def test_what_the_store_says_comes_through() -> None:
    def pieces() -> Iterator[bytes]:
        yield WHOLE["zstd"][:5000]
        raise ObjectChangedError("the file changes while it is read", segment="f")

    with pytest.raises(ObjectChangedError, match="while it is read"):
        list(decompressed(pieces(), "zstd", "f"))


# --- Framed snappy ---


def test_chunks_of_all_kinds() -> None:
    skipped = b"\xfe\x03\x00\x00abc\x80\x00\x00\x00"
    content = SNAPPY_BEGIN + snappy_chunk(b"one") + skipped + snappy_chunk(b"two", 1) + SNAPPY_BEGIN + snappy_chunk(b"")
    assert list(decompressed(cut(content, 3), "snappy", "f")) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (snappy_chunk(b"x"), "does not begin"),
        (SNAPPY_BEGIN + b"\x02\x01\x00\x00x", "unknown kind 0x02"),
        (SNAPPY_BEGIN + b"\xff\x06\x00\x00sNaPpX", "a stream in it"),
        (SNAPPY_BEGIN + b"\x00\x03\x00\x00abc", "cannot be decompressed"),
        (SNAPPY_BEGIN + b"\x01\x03\x00\x00abc", "cannot be decompressed"),
        (SNAPPY_BEGIN + snappy_chunk(bytes(65537), 1), "cannot be decompressed"),
        (SNAPPY_BEGIN + b"\x00\x0a\x00\x00abcd\xff\xff\xff\xff\xff\x0f", "cannot be decompressed"),
        (SNAPPY_BEGIN + b"\x00\x05\x00\x00abcd\x05", "cannot be decompressed"),
        (SNAPPY_BEGIN + snappy_chunk(b"abc", 1)[:-1] + b"d", "checksum"),
        (SNAPPY_BEGIN + snappy_chunk(b"abc")[:-1], "ends within a chunk"),
        (SNAPPY_BEGIN + b"\x00\x05", "ends within a chunk"),
    ],
)
def test_damaged_chunks(content: bytes, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        list(decompressed(iter([content]), "snappy", "f"))


def test_checksums() -> None:
    # RFC 3720, B.4, and the catalogue's own check value.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    for size in (0, 1, 3, 4, 5, 63, 64, 65, 128, 129, 4097, 65535, 65536):
        content = RANDOM[:size]
        assert crc32c(content) == dumps.crc32c(content), size


# --- Files ---


def found(store: LocalStore) -> StoredObject:
    (each,) = store.list()
    assert isinstance(each, StoredObject)
    return each


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_a_file_for_a_task(tmp_path: Path, kind: Compression | None) -> None:
    dumps.write(tmp_path, "f", CONTENT, KINDS[kind])
    store = LocalStore(tmp_path)
    file = found(store)
    pieces = open_pieces(store.uri, StorageConfig.nothing(), file.path, file.etag, kind)
    assert b"".join(pieces) == CONTENT
    with pytest.raises(ObjectChangedError, match="changed since"):
        list(open_pieces(store.uri, StorageConfig.nothing(), file.path, "other", kind))


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_small_files_have_a_limit(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps.write(tmp_path, "f", b"a" * 10_000, suffix)
    store = LocalStore(tmp_path)
    assert read_small(store, found(store)) == b"a" * 10_000
    monkeypatch.setattr(reading, "SMALL_FILE_LIMIT", 9_999)
    with pytest.raises(SourceError, match=r"larger than 9999 bytes"):
        read_small(store, found(store))
