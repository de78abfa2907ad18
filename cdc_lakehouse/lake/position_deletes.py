"""Position deletes of Iceberg v2: the deleted rows of a data file, as their positions in a Parquet file.

The project writes one such file for each data file, as it does for vectors: a writer that deletes further rows writes a
file that also holds the earlier rows, and removes the earlier file in the same commit. Other writers add files
instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import StoredFormError

DATA_FILE: Final = NestedField(2147483546, "file_path", StringType(), required=True)
POSITION: Final = NestedField(2147483545, "pos", LongType(), required=True)
COLUMNS: Final = Schema(DATA_FILE, POSITION)
"""Iceberg's reserved fields; rows are sorted by both."""

BATCH_ROWS: Final = 1 << 17
"""The number of rows that are read and written at a time: each row holds the whole path of its data file."""


@dataclass(frozen=True, slots=True)
class StoredPositions:
    """A file of a table with the deleted rows of one data file.

    cardinality: deleted rows. content_file: the delete file as JSON of Iceberg's `ContentFileParser`, enough to remove
    it from the table.
    """

    path: str
    cardinality: int
    content_file: str


def read_positions(io: FileIO, stored: StoredPositions, data_file: str) -> BitMap64:
    """Return the positions of the data file's deleted rows, from 0. Raises StoredFormError when they cannot be read."""
    found = BitMap64()
    names = [DATA_FILE.name, POSITION.name]
    try:
        with io.new_input(stored.path).open() as stream, pq.ParquetFile(stream) as parquet:
            for batch in parquet.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                own = batch.filter(pc.field(DATA_FILE.name) == data_file)
                found.update(own.column(POSITION.name).to_pylist())
    except (pa.ArrowInvalid, KeyError) as error:
        raise _damaged(stored, str(error)) from error
    if len(found) != stored.cardinality:
        raise _damaged(stored, f"it has {len(found)} rows of {data_file}, not {stored.cardinality}")
    return found


def _damaged(stored: StoredPositions, why: str) -> StoredFormError:
    return StoredFormError(
        f"the position deletes at {stored.path} cannot be used: {why}",
        advice="restore the file, or make the table anew with `cdc-lakehouse rebuild`",
    )
