"""Deletion vectors of Iceberg v3: the deleted rows of a data file, as a bitmap of positions in a Puffin file.

A data file has at most one vector. A writer that deletes further rows writes a vector that also holds the earlier rows,
and removes the earlier vector in the same commit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.io import FileIO
from pyiceberg.table.puffin import MAGIC_BYTES
from pyroaring import BitMap64

from cdc_lakehouse.errors import StoredFormError

# A file of a table as JSON for Iceberg's `ContentFileParser`: so it goes from where it was written to the commit.

FIRST_SPEC: Final = 0
"""The partition spec of every table that the project makes; no other spec is ever added."""


def content_file_json(
    path: str,
    file_format: str,
    *,
    file_size: int,
    rows: int,
    deletes_of: str | None = None,
    spec_id: int = FIRST_SPEC,
    partition: Sequence[str | None] = (),
    others: Mapping[str, Any] | None = None,
) -> str:
    """A data file, or a file of positions that are deleted of another one (`deletes_of`). `file_size` is in bytes.
    `others` are further fields, by their names there."""
    deletes = {} if deletes_of is None else {"content": "position-deletes", "referenced-data-file": deletes_of}
    file = {
        "spec-id": spec_id,
        "content": "data",
        "file-path": path,
        "file-format": file_format,
        "partition": list(partition),
        "file-size-in-bytes": file_size,
        "record-count": rows,
    }
    return json.dumps({**file, **deletes, **(others or {})}, ensure_ascii=False)


_BLOB_TYPE: Final = "deletion-vector-v1"
_BLOB_MAGIC: Final = b"\xd1\xd3\x39\x64"
_LENGTH_BYTES: Final = 4
_CRC_BYTES: Final = 4
# Iceberg's reserved field for a row's position in its file.
_POSITION_FIELD_ID: Final = 2147483645
# The file takes the snapshot and the sequence number of the commit that adds it.
_INHERITED: Final = -1
_NO_FLAGS: Final = bytes(4)


@dataclass(frozen=True, slots=True)
class StoredVector:
    """A deletion vector of a table.

    offset, size: position and length of its blob in the Puffin file at `path`, in bytes. cardinality: deleted rows.
    content_file: the delete file as JSON of Iceberg's `ContentFileParser`, enough to remove it from the table.
    """

    path: str
    offset: int
    size: int
    cardinality: int
    content_file: str


def read_vector(io: FileIO, stored: StoredVector) -> BitMap64:
    """Return the positions of the deleted rows, from 0. Only the vector's own bytes are read.

    Raises StoredFormError when they are not a deletion vector, or are damaged.
    """
    with io.new_input(stored.path).open() as file:
        file.seek(stored.offset)
        blob = file.read(stored.size)
    positions = _decode(blob, stored)
    if len(positions) != stored.cardinality:
        raise _damaged(stored, f"it has {len(positions)} rows, not {stored.cardinality}")
    return positions


def write_vectors(
    io: FileIO, path: str, vectors: Mapping[str, BitMap64], partitions: Mapping[str, Sequence[str | None]] | None = None
) -> list[str]:
    """Write one Puffin file with the vectors of one commit. `vectors` maps the path of a data file to its deleted
    positions; `partitions` maps it to its partition's values, for partitioned tables.

    Returns the delete file of each vector as JSON for Iceberg's `ContentFileParser`. A data file without deleted rows
    gets none; when no file has any, nothing is written.
    """
    vectors = {data_file: positions for data_file, positions in vectors.items() if positions}
    if not vectors:
        return []
    content = bytearray(MAGIC_BYTES)
    blobs: list[dict[str, Any]] = []
    for data_file, positions in vectors.items():
        blob = _encode(positions)
        blobs.append(_blob_metadata(data_file, len(positions), offset=len(content), size=len(blob)))
        content += blob
    content += _footer(blobs)
    with io.new_output(path).create(overwrite=True) as file:
        file.write(bytes(content))
    return [
        content_file_json(
            path,
            "puffin",
            file_size=len(content),
            rows=len(positions),
            deletes_of=data_file,
            partition=(partitions or {}).get(data_file, ()),
            others=place_in_file(blob["offset"], blob["length"]),
        )
        for (data_file, positions), blob in zip(vectors.items(), blobs, strict=True)
    ]


def place_in_file(offset: int, size: int) -> dict[str, int]:
    """Return the place of a vector in its file, as fields of its JSON."""
    return {"content-offset": offset, "content-size-in-bytes": size}


def _encode(positions: BitMap64) -> bytes:
    compact = positions.copy()
    compact.run_optimize()
    body = _BLOB_MAGIC + compact.serialize()
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body + zlib.crc32(body).to_bytes(_CRC_BYTES, "big")


def _decode(blob: bytes, stored: StoredVector) -> BitMap64:
    length = int.from_bytes(blob[:_LENGTH_BYTES], "big")
    if len(blob) != stored.size or len(blob) != _LENGTH_BYTES + length + _CRC_BYTES:
        raise _damaged(stored, "its length is another")
    body, crc = blob[_LENGTH_BYTES:-_CRC_BYTES], blob[-_CRC_BYTES:]
    if not body.startswith(_BLOB_MAGIC):
        raise _damaged(stored, "it is no deletion vector")
    if zlib.crc32(body).to_bytes(_CRC_BYTES, "big") != crc:
        raise _damaged(stored, "its checksum is another")
    try:
        return BitMap64.deserialize(body[len(_BLOB_MAGIC) :])
    except ValueError as error:
        raise _damaged(stored, "its bitmap cannot be read") from error


def _damaged(stored: StoredVector, why: str) -> StoredFormError:
    return StoredFormError(
        f"the deletion vector at {stored.path}, offset {stored.offset}, cannot be used: {why}",
        advice="restore the file, or make the table anew with `cdc-lakehouse rebuild`",
    )


def _blob_metadata(data_file: str, cardinality: int, *, offset: int, size: int) -> dict[str, Any]:
    return {
        "type": _BLOB_TYPE,
        "fields": [_POSITION_FIELD_ID],
        "snapshot-id": _INHERITED,
        "sequence-number": _INHERITED,
        "offset": offset,
        "length": size,
        "properties": {"referenced-data-file": data_file, "cardinality": str(cardinality)},
    }


def _footer(blobs: list[dict[str, Any]]) -> bytes:
    payload = json.dumps({"blobs": blobs, "properties": {"created-by": "cdc_lakehouse"}}).encode()
    return MAGIC_BYTES + payload + len(payload).to_bytes(4, "little") + _NO_FLAGS + MAGIC_BYTES
