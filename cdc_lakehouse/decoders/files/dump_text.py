"""The rows of a dump's delimited text.

    1,"lamp",\\N

For the format see `dump_text_strict`, for the values `dump_values`."""

from __future__ import annotations

from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.files import dump_records
from cdc_lakehouse.decoders.files.dump_records import MoreNeededError, RowBuilder, Rows
from cdc_lakehouse.decoders.files.dump_text_fast import TextPieceReader
from cdc_lakehouse.decoders.files.dump_text_strict import TextRecordReader
from cdc_lakehouse.decoders.files.dump_values import DumpContext, columns_of
from cdc_lakehouse.sources.dump.notation import TextNotation


class TextReader:
    """A `dump_records.Reader`. Raises SourceError for a header with other columns than the notation's."""

    def __init__(self, context: DumpContext, notation: TextNotation) -> None:
        self._context = context
        self._notation = notation
        self._columns = columns_of(context.own_names(notation.columns), context)
        self._records = TextRecordReader(notation)
        self._pieces = TextPieceReader(notation, self._columns)
        # A table without dumped columns has no header.
        self._at_header = notation.header and bool(notation.columns)
        self._within_long = False

    def fast(self, content: bytes, start: int, stop: int, final: bool) -> Rows | None:
        if self._at_header or self._within_long:
            return None
        stop = min(stop, start + dump_records.RECORD_LIMIT)
        return self._pieces.read(content, start, stop, whole=final and stop == len(content))

    def strict(self, content: bytes, start: int, stop: int, final: bool) -> Rows:
        rows, at = RowBuilder(self._columns), start
        while at < stop:
            if self._within_long:
                at = self._behind_long(content, at, final)
                if self._within_long:
                    break
                continue
            try:
                record = self._records.record(content, at, final)
            except MoreNeededError:
                if len(content) - at > dump_records.RECORD_LIMIT:
                    rows.reject(problems.NOT_A_DUMP_ROW, content[at : at + problems.RAW_LIMIT])
                    self._within_long, self._at_header = True, False
                    continue
                break
            raw = content[at : min(record.end, at + problems.RAW_LIMIT)]
            at = record.following
            if self._at_header:
                self._at_header = False
                self._check_header(record.cells)
                break  # What is behind it may be usual.
            if record.cells is None:
                rows.reject(problems.NOT_A_DUMP_ROW, raw)
            else:
                # Rows without columns are empty lines.
                rows.add([] if not self._columns and not raw else record.cells, raw)
        return rows.rows(at)

    def rest(self) -> Rows | None:
        return None

    def _behind_long(self, content: bytes, at: int, final: bool) -> int:
        """Return the position after the terminator; where it is not there, the position up to which it is not."""
        terminator = self._notation.terminator
        end = content.find(terminator, at)
        if end >= 0:
            self._within_long = False
            return end + len(terminator)
        return len(content) if final else max(at, len(content) - len(terminator) + 1)

    def _check_header(self, cells: list[bytes | None] | None) -> None:
        names = [(cell or b"").decode(errors="replace") for cell in cells or []]
        expected = self._notation.columns
        if [name.lower() for name in names] != [name.lower() for name in expected]:
            raise self._context.other_columns("a file's header says", names, "the rows of the dump have", expected)
