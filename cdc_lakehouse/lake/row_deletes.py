"""Delete rows in the way of a table's format version: deletion vectors, or files of positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.table import TableProperties
from pyiceberg.utils.concurrent import ExecutorFactory
from pyroaring import BitMap64

from cdc_lakehouse.lake.data_files import DataFileWriter, StoredFile, new_path, read_deleted
from cdc_lakehouse.lake.deletion_vectors import write_vectors
from cdc_lakehouse.lake.position_deletes import BATCH_ROWS, COLUMNS, DATA_FILE, POSITION

FIRST_WITH_VECTORS: Final = 3
"""The first format version that has deletion vectors, and initial defaults of columns."""


def delete_rows(
    io: FileIO,
    location: str,
    properties: Mapping[str, str],
    format_version: int,
    files: Sequence[StoredFile],
    deleted: Mapping[str, BitMap64],
) -> tuple[list[str], list[str]]:
    """Write the deletes of data files to new files of the table at this location. `deleted` maps the path of a data
    file to the positions to delete.

    Returns the new delete files, and those that they replace, as JSON for Iceberg's `ContentFileParser`. A data file
    has one delete file: the new one also holds the rows of the old ones, even when those are of version 2 and it is a
    vector."""
    touched = [file for file in files if deleted.get(file.path)]
    pool = ExecutorFactory.get_or_create()
    stored = pool.map(lambda file: read_deleted(io, file), touched)
    positions = {file.path: deleted[file.path] | before for file, before in zip(touched, stored, strict=True)}
    replaced = [each.content_file for file in touched for each in file.deletes]
    if format_version >= FIRST_WITH_VECTORS:
        path = new_path(location, properties, "-deletes.puffin")
        return write_vectors(io, path, positions, {file.path: file.partition for file in touched}), replaced

    def write(file: StoredFile) -> str:
        path = new_path(location, properties, "-deletes.parquet")
        return write_positions(io, path, file, positions[file.path], properties)

    return list(pool.map(write, touched)), replaced


def write_positions(io: FileIO, path: str, file: StoredFile, positions: BitMap64, properties: Mapping[str, str]) -> str:
    """Write one file with the positions of a data file's deleted rows; `properties` are the table's. Returns the delete
    file as JSON for Iceberg's `ContentFileParser`."""
    # Readers match the deletes of a data file by whole paths, so the bounds must not be truncated.
    own = {name: value for name, value in properties.items() if name.startswith("write.parquet.")}
    own[TableProperties.DEFAULT_WRITE_METRICS_MODE] = "full"
    writer = DataFileWriter(io, path, COLUMNS, own, file.partition)
    numbers = np.frombuffer(positions.to_array(), np.uint64).astype(np.int64)
    for start in range(0, len(numbers), BATCH_ROWS):
        part = numbers[start : start + BATCH_ROWS]
        writer.write(pa.table({DATA_FILE.name: pa.repeat(file.path, len(part)), POSITION.name: pa.array(part)}))
    return writer.close(deletes_of=file.path)
