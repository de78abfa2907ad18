"""Deletes of rows in both format versions: what is written is read, by the project and by PyIceberg, earlier deletes
are taken over, and damage is seen."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io import pyarrow as pyiceberg_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyroaring import BitMap64

from cdc_lakehouse.errors import StoredFormError
from cdc_lakehouse.lake import files
from cdc_lakehouse.lake.deletes import StoredVector
from cdc_lakehouse.lake.files import (
    StoredDeletes,
    StoredFile,
    StoredPositions,
    delete_rows,
    read_deleted,
    read_positions,
    write_positions,
)

IO = PyArrowFileIO()

_POSITIONS = st.sets(st.integers(0, 300) | st.integers(2**32 - 3, 2**40), min_size=1, max_size=40)
# Columns of a user's table may be called as those of deletes are.
_PROPERTIES = {"write.parquet.compression-codec": "zstd", "write.metadata.metrics.column.pos": "none"}


def stored(text: str) -> StoredDeletes:
    """Deletes as a table's manifest has them."""
    file = json.loads(text)
    if file["file-format"] == "parquet":
        return StoredPositions(file["file-path"], file["record-count"], text)
    place = file["content-offset"], file["content-size-in-bytes"]
    return StoredVector(file["file-path"], *place, file["record-count"], text)


@given(positions=_POSITIONS, name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=90))
def test_positions_are_a_sorted_file_that_others_read(
    tmp_path_factory: pytest.TempPathFactory, positions: set[int], name: str
) -> None:
    path = tmp_path_factory.mktemp("deletes") / "d.parquet"
    with pytest.MonkeyPatch.context() as patched:
        for module in (files, files):
            patched.setattr(module, "BATCH_ROWS", 7)
        text = write_positions(IO, str(path), StoredFile(name, 1, 10**12), BitMap64(positions), _PROPERTIES)
        (deletes,) = [stored(text)]
        assert isinstance(deletes, StoredPositions)
        assert set(read_positions(IO, deletes, name)) == positions
    rows = pq.read_table(path)
    assert rows.to_pylist() == [{"file_path": name, "pos": each} for each in sorted(positions)]
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in pq.read_schema(path)]
    assert ids == [2147483546, 2147483545]

    file = json.loads(text)
    assert (file["content"], file["referenced-data-file"]) == ("position-deletes", name)
    assert (file["record-count"], file["file-size-in-bytes"]) == (len(positions), path.stat().st_size)
    bounds = [
        dict(zip(file[key]["keys"], file[key]["values"], strict=True)) for key in ("lower-bounds", "upper-bounds")
    ]
    assert {each[2147483546] for each in bounds} == {name.encode().hex()}, "of the path whole, however long"

    known = DataFile.from_args(file_path=str(path), file_format=FileFormat.PARQUET)
    read = pyiceberg_io._read_deletes(IO, known)
    assert {name: set(found.to_pylist()) for name, found in read.items()} == {name: positions}


@given(before=st.lists(_POSITIONS, max_size=2), further=_POSITIONS, versions=st.sampled_from([(2, 2), (2, 3), (3, 3)]))
def test_earlier_deletes_are_taken_over(
    tmp_path_factory: pytest.TempPathFactory, before: list[set[int]], further: set[int], versions: tuple[int, int]
) -> None:
    """By a file of the same version, and of version 2 by a vector."""
    location = str(tmp_path_factory.mktemp("table"))
    file, other = StoredFile("a", 1, 10**12), StoredFile("b", 1, 10**12)
    for positions in before:
        added, replaced = delete_rows(IO, location, {}, versions[0], [file, other], {"a": BitMap64(positions)})
        assert replaced == [each.content_file for each in file.deletes]
        file = StoredFile("a", 1, 10**12, deletes=tuple(map(stored, added)))
    wanted = {"a": BitMap64(further), "b": BitMap64()}
    added, replaced = delete_rows(IO, location, {}, versions[1], [file, other], wanted)
    assert replaced == [each.content_file for each in file.deletes]
    (deletes,) = map(stored, added)
    assert isinstance(deletes, StoredVector if versions[1] == 3 else StoredPositions)
    assert set(read_deleted(IO, StoredFile("a", 1, 1, deletes=(deletes,)))) == further.union(*before)


def test_damage_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    positions = stored(write_positions(IO, str(path), StoredFile("a", 1, 9), BitMap64([1, 5]), {}))
    assert isinstance(positions, StoredPositions)
    with pytest.raises(StoredFormError, match="0 rows of b, not 2"):
        read_positions(IO, positions, "b")
    pq.write_table(pa.table({"file_path": ["a", "a"]}), path)
    with pytest.raises(StoredFormError, match=r"d\.parquet"):
        read_positions(IO, positions, "a")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoredFormError, match=r"d\.parquet"):
        read_positions(IO, positions, "a")
