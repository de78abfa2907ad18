"""A file of a table as JSON for Iceberg's `ContentFileParser`: so it goes from where it was written to the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

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
