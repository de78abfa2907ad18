"""Deletion vectors: what is written is read, by the project and by PyIceberg, and damage is seen."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from cdc_lakehouse.errors import StoredFormError
from cdc_lakehouse.lake.deletes import StoredVector, read_vector, write_vectors

IO = PyArrowFileIO()

_POSITIONS = st.sets(
    st.integers(0, 200) | st.integers(2**16 - 3, 2**16 + 3) | st.integers(2**32 - 3, 2**32 + 3) | st.integers(0, 2**40),
    max_size=50,
) | st.builds(lambda start, size: set(range(start, start + size)), st.integers(0, 2**33), st.integers(0, 5000))
_PATHS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


def stored(text: str) -> StoredVector:
    """A vector as a table's manifest has it."""
    file = json.loads(text)
    return StoredVector(
        file["file-path"], file["content-offset"], file["content-size-in-bytes"], file["record-count"], text
    )


@given(vectors=st.dictionaries(_PATHS, _POSITIONS, max_size=5))
def test_vectors_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, vectors: dict[str, set[int]]
) -> None:
    path = tmp_path_factory.mktemp("vectors") / "v.puffin"
    written = write_vectors(IO, str(path), {file: BitMap64(positions) for file, positions in vectors.items()})
    expected = {file: positions for file, positions in vectors.items() if positions}
    assert path.exists() == bool(expected)
    seen = {json.loads(text)["referenced-data-file"]: set(read_vector(IO, stored(text))) for text in written}
    assert seen == expected
    for text in written:
        file = json.loads(text)
        assert file["record-count"] == len(expected[file["referenced-data-file"]])
        assert file["file-size-in-bytes"] == path.stat().st_size


@given(vectors=st.dictionaries(_PATHS, st.sets(st.integers(0, 2**18) | st.integers(2**31, 2**32 - 1)), min_size=1))
def test_pyiceberg_reads_them(tmp_path_factory: pytest.TempPathFactory, vectors: dict[str, set[int]]) -> None:
    path = tmp_path_factory.mktemp("vectors") / "v.puffin"
    if not write_vectors(IO, str(path), {file: BitMap64(positions) for file, positions in vectors.items()}):
        return
    read = deletion_vectors_from_puffin_file(PuffinFile(path.read_bytes()))
    assert {vector.referenced_data_file: set(vector.to_vector().to_pylist()) for vector in read} == {
        file: positions for file, positions in vectors.items() if positions
    }


def test_a_long_run_of_deleted_rows_is_small(tmp_path: Path) -> None:
    path = tmp_path / "v.puffin"
    positions = BitMap64()
    positions.add_range(0, 1_000_000)
    write_vectors(IO, str(path), {"a": positions})
    assert path.stat().st_size < 1000


def test_writing_does_not_change_the_bitmaps(tmp_path: Path) -> None:
    positions = BitMap64([1, 2, 3])
    write_vectors(IO, str(tmp_path / "v.puffin"), {"a": positions})
    assert positions == BitMap64([1, 2, 3])


@pytest.fixture
def vector(tmp_path: Path) -> StoredVector:
    first, second = write_vectors(
        IO, str(tmp_path / "v.puffin"), {"a": BitMap64([1, 5, 2**33]), "b": BitMap64(range(100))}
    )
    assert set(read_vector(IO, stored(second))) == set(range(100))
    return stored(first)


@pytest.mark.parametrize("position", range(50))
def test_a_changed_byte_is_seen(vector: StoredVector, position: int) -> None:
    path = Path(vector.path)
    content = bytearray(path.read_bytes())
    content[vector.offset + position] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(StoredFormError, match=r"v\.puffin"):
        read_vector(IO, vector)


def test_a_vector_that_is_cut_or_is_another_is_seen(vector: StoredVector) -> None:
    path = Path(vector.path)
    for wrong in (
        dataclasses.replace(vector, offset=vector.offset + 1),
        dataclasses.replace(vector, size=vector.size - 1),
        dataclasses.replace(vector, size=0),
        dataclasses.replace(vector, cardinality=4),
        dataclasses.replace(vector, offset=path.stat().st_size),
    ):
        with pytest.raises(StoredFormError, match="cannot be used"):
            read_vector(IO, wrong)
    path.write_bytes(path.read_bytes()[: vector.offset + 10])
    with pytest.raises(StoredFormError, match="length"):
        read_vector(IO, vector)
