"""The columns of events, which are listed only here, and the encoding of row images.

    feed_date           the segment's feed date; null for synthetic events
    schema_name         the database in the source
    table_name          the table in the source
    table_version       commit-ts (TSO) of the version of the table that a file or a synthetic event is of; 0 where
                        messages are read
    physical_partition  TiDB's id of the partition whose file it is, else null
    op                  I, U or D; R where a dump of the table has the row
    commit_ts           TSO of the change
    commit_time         the time in commit_ts, UTC, milliseconds
    before, after       the row's image: a JSON object of its texts by column, as the source has them, or null; null
                        where the event has no such row
    segment             the segment that the event came in
    line                the record's number in a file, from 1; a message's offset in its partition
    synthetic           whether it comes after the others of its commit-ts: rows that a DDL moved, of dumps, of repairs

Decoders of files return the columns of `DECODED`, in tasks: an event, or a record that cannot be used.

    line, op … after    as above; null but for `line` where the record cannot be used
    problem             a key of `problems.PROBLEMS` where the record cannot be used, else null
    value               the record's bytes, or the first of them, where it cannot be used, else null
    strict              whether the record was read by itself, which takes up to twenty times as long

Row images of rows whose values come in columns are joined by Arrow, in half of the time that DuckDB needs to produce
JSON: most texts are valid JSON as they are, and each special character is escaped in a whole column at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders.arrow import Bytes, pc

SYNTHETIC: Final = "synthetic"

EVENTS: Final = pa.schema([
    ("feed_date", pa.string()),
    ("schema_name", pa.string()),
    ("table_name", pa.string()),
    ("table_version", pa.int64()),
    ("physical_partition", pa.int64()),
    ("op", pa.string()),
    ("commit_ts", pa.int64()),
    ("commit_time", pa.timestamp("us", "UTC")),
    ("before", pa.string()),
    ("after", pa.string()),
    ("segment", pa.string()),
    ("line", pa.int64()),
    (SYNTHETIC, pa.bool_()),
])  # fmt: skip
"""The columns of the table `events`."""

NEW_EVENTS: Final = pa.schema([each for each in EVENTS if each.name not in ("commit_time", SYNTHETIC)])
"""The columns of events before they are written: `commit_time` follows from `commit_ts`, and decoded events are not
synthetic."""
SYNTHETIC_EVENTS: Final = NEW_EVENTS.append(EVENTS.field(SYNTHETIC))
"""The columns of events that the feed itself generates, before they are written."""

CHANGE_COLUMNS: Final = (
    "schema_name", "table_name", "op", "commit_ts", "before", "after", "segment", "line", SYNTHETIC,
)  # fmt: skip
"""The columns of the table `events` that say what changed, and where in the order of the feed."""

DECODED: Final = pa.schema([
    *(EVENTS.field(name) for name in ("line", "op", "commit_ts", "before", "after")),
    ("problem", pa.string()),
    ("value", pa.binary()),
    ("strict", pa.bool_()),
])  # fmt: skip
"""The columns that decoders of files return, as described in the module's docstring."""
TEXT_OF: Final = "text of "
"""Before a column's name: the texts of the column as a column of their own, which a decoder may add to `DECODED`."""


def image_of(image: str | bytes | None) -> dict[str, str | None]:
    """Return the texts of an image, by column."""
    return {} if image is None else msgspec.json.decode(image)


def image_text(row: Mapping[str, str | None] | None) -> str | None:
    """Encode a row as the JSON text of an event's image."""
    return None if row is None else msgspec.json.encode(row).decode()


_QUOTE, _BACKSLASH, _SPACE = b'"\\ '
BATCH_ROWS: Final = 64 * 1024  # The maximum number of rows in a batch.
_NAME_BYTES: Final = 32 * 1024 * 1024
"""The maximum bytes of column names in a batch: each row repeats them, and a table may have a thousand columns."""


def most_rows(names: Sequence[str]) -> int:
    """Return the maximum number of rows in a batch with images of these columns."""
    per_row = sum(len(name.encode()) + 4 for name in names)
    return max(1, min(BATCH_ROWS, _NAME_BYTES // max(per_row, 1)))


def row_images(names: Sequence[str], texts: Sequence[pa.Array], count: int) -> pa.Array:
    """Return the images of `count` rows; `texts` has a column of texts, or NULL, for each name."""
    parts: list[Any] = []
    between = "{"
    for name, column in zip(names, texts, strict=True):
        between += f"{json.dumps(name, ensure_ascii=False)}:"
        escaped = _escaped(column)
        if column.null_count:
            values = pc.binary_join_element_wise('"', escaped, '"', "")
            parts += [between, pc.coalesce(values, "null")]
            between = ","
        else:
            parts += [between + '"', escaped]
            between = '",'
    end = between.removesuffix(",") + "}"
    return pc.binary_join_element_wise(*parts, end, "") if parts else pa.repeat(end, count)


def _escaped(texts: pa.Array) -> pa.Array:
    """Escape the texts for use between the quotes of JSON."""
    content: Bytes = np.zeros(0, np.uint8)
    _, places, data = texts.buffers()
    if data is not None and len(texts):
        start, stop = (np.frombuffer(places, np.int32)[texts.offset + row] for row in (0, len(texts)))
        content = np.frombuffer(data, np.uint8)[start:stop]
    control = content < _SPACE
    special = {*np.unique(content[control]).tolist()} if control.any() else set[int]()
    special |= {byte for byte in (_QUOTE, _BACKSLASH) if (content == byte).any()}
    # The backslash first: the other escapes contain it.
    for byte in sorted(special, key=lambda byte: byte != _BACKSLASH):
        character = chr(byte)
        texts = pc.replace_substring(texts, pattern=character, replacement=json.dumps(character)[1:-1])
    return texts
