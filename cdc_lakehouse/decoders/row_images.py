"""Row images of rows whose values come in columns.

Arrow joins them in half of the time that DuckDB needs to produce JSON: most texts are valid JSON as they are, and each
special character is escaped in a whole column at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lakehouse.decoders.arrow import Bytes, pc

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_SPACE: Final = ord(" ")
BATCH_ROWS: Final = 64 * 1024
"""The maximum number of rows in a batch."""
_NAME_BYTES: Final = 32 * 1024 * 1024
"""The maximum bytes of column names in a batch: each row repeats them, and a table may have a thousand columns."""


def most_rows(names: Sequence[str]) -> int:
    """Return the maximum number of rows in a batch with images of these columns."""
    per_row = sum(len(name.encode()) + 4 for name in names)
    return max(1, min(BATCH_ROWS, _NAME_BYTES // max(per_row, 1)))


def row_images(names: Sequence[str], texts: Sequence[pa.Array], count: int) -> pa.Array:
    """Return the images of `count` rows, as `event_schema` describes them: `texts` has a column of texts, or NULL, for
    each name."""
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
    content = _content(texts)
    control = content < _SPACE
    special = {*np.unique(content[control]).tolist()} if control.any() else set[int]()
    special |= {byte for byte in (_QUOTE, _BACKSLASH) if (content == byte).any()}
    # The backslash first: the other escapes contain it.
    for byte in sorted(special, key=lambda byte: byte != _BACKSLASH):
        character = chr(byte)
        texts = pc.replace_substring(texts, pattern=character, replacement=json.dumps(character)[1:-1])
    return texts


def _content(texts: pa.Array) -> Bytes:
    """Return the bytes of all texts."""
    _, places, content = texts.buffers()
    if content is None or not len(texts):
        return np.zeros(0, np.uint8)
    start, stop = (np.frombuffer(places, np.int32)[texts.offset + row] for row in (0, len(texts)))
    return np.frombuffer(content, np.uint8)[start:stop]
