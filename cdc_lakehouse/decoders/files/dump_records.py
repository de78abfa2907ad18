"""The common parts of the readers of a dump's rows: a file's content comes in parts, and rows are split into
columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.arrow import batch_of
from cdc_lakehouse.decoders.files.dump_values import CellError, DumpColumn

RECORD_LIMIT: Final = 512 * 1024 * 1024
"""In bytes. A longer record is not held in memory to check whether it is valid."""

_REPEATS: Final = 4096

Cells = list[bytes | None]
"""None for NULL."""


def repeated(plain: bytes, other: bytes) -> re.Pattern[bytes]:
    """Return a pattern for `end_of`: a `plain` run of bytes, then one of `other` and a plain run, again and again. The
    number is limited, as each needs memory, save with a possessive quantifier; before 3.11.5 Python matches that
    wrongly for a group."""
    return re.compile(b"%b(?:(?:%b)%b){0,%d}" % (plain, other, plain, _REPEATS), re.DOTALL)


def end_of(pattern: re.Pattern[bytes], content: bytes, at: int) -> int:
    """Return the end of all text from `at` on that a pattern of `repeated` matches, however often it repeats."""
    while found := pattern.match(content, at):
        start, at = found.span()
        if at - start < _REPEATS:
            break
    return at


class MoreNeededError(Exception):
    """The reader needs the following content first."""


class Rows(NamedTuple):
    """Rows with the same columns. `batch` has their texts in columns named `0`, `1`, …, then `problem` and `value` of
    `event_schema.DECODED`; in a row that cannot be used, all others are null."""

    columns: Sequence[DumpColumn]
    batch: pa.RecordBatch
    end: int
    """The position in the content where the next row is expected."""


class Reader(Protocol):
    """Reads the rows of one file, in order. `content` is a part of the file, `final` whether it is the last."""

    def fast(self, content: bytes, start: int, stop: int, final: bool) -> Rows | None:
        """Return the rows from `start` to `stop`, without an incomplete last one. None when not all are valid and in
        the usual form, or there are none."""
        ...

    def strict(self, content: bytes, start: int, stop: int, final: bool) -> Rows:
        """Return the rows that begin from `start` to before `stop`, or the first of them. If they need more content,
        `end` is `start`."""
        ...

    def rest(self) -> Rows | None:
        """Return what remains to be reported at the end of the file."""
        ...


class RowBuilder:
    """A buffer of rows with the same columns."""

    def __init__(self, columns: Sequence[DumpColumn]) -> None:
        self._columns = columns
        self._rows: list[tuple[str | bytes | None, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, cells: Cells, record: bytes) -> None:
        """Add a row. `record` are the bytes that are kept of it if it cannot be used."""
        if len(cells) != len(self._columns):
            self.reject(problems.FIELD_COUNT, record)
            return
        try:
            texts = [
                None if cell is None else column.text(cell) for column, cell in zip(self._columns, cells, strict=True)
            ]
        except CellError as error:
            self.reject(error.problem, record)
        else:
            self._rows.append((*texts, None, None))

    def reject(self, problem: str, record: bytes) -> None:
        self._rows.append((*[None] * len(self._columns), problem, record[: problems.RAW_LIMIT]))

    def rows(self, end: int) -> Rows:
        return Rows(self._columns, batch_of(self._rows, rows_schema(self._columns)), end)


def sound_rows(columns: Sequence[DumpColumn], texts: Sequence[pa.Array], end: int) -> Rows:
    """Return rows that are all valid, of at least one column."""
    count = len(texts[0])
    nothing = [pa.nulls(count, pa.string()), pa.nulls(count, pa.binary())]
    return Rows(columns, pa.RecordBatch.from_arrays([*texts, *nothing], schema=rows_schema(columns)), end)


def rows_schema(columns: Sequence[DumpColumn]) -> pa.Schema:
    texts = [(str(number), pa.string()) for number in range(len(columns))]
    return pa.schema([*texts, ("problem", pa.string()), ("value", pa.binary())])
