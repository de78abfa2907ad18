"""The rows of a dump's INSERT statements. For the format see `dump_insert_strict`, for the values `dump_values`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.files import dump_records
from cdc_lakehouse.decoders.files.dump_insert_fast import read_tuples
from cdc_lakehouse.decoders.files.dump_insert_strict import Head, InsertRecordReader, NotSoundError, behind_space
from cdc_lakehouse.decoders.files.dump_records import MoreNeededError, RowBuilder, Rows, sound_rows
from cdc_lakehouse.decoders.files.dump_values import DumpColumn, DumpContext, columns_of
from cdc_lakehouse.sources.dump.notation import InsertNotation

_KEPT: Final = 32
"""The bytes that are kept of a long record: the start of the next statement's line is recognised in fewer."""


class InsertReader:
    """A `dump_records.Reader`. Raises SourceError for a statement with columns that the table does not have."""

    def __init__(self, context: DumpContext, notation: InsertNotation) -> None:
        self._context = context
        self._notation = notation
        self._columns_by_names: dict[tuple[str, ...], list[DumpColumn]] = {}
        self._columns = self._named(notation.columns)
        """The columns of the statement that the next tuple belongs to, or of the last one."""
        self._records = InsertRecordReader(backslash_escapes=notation.backslash_escapes)
        self._within = False
        """Whether a statement is open, so that a tuple must follow."""
        self._head = b""
        """The beginning of that statement, or of the last one."""
        self._foreign = False
        """Whether the statement is for another table."""
        self._within_long = False

    def fast(self, content: bytes, start: int, stop: int, final: bool) -> Rows | None:
        at, head_text, columns = behind_space(content, start), self._head, self._columns
        foreign = self._foreign
        if self._within_long:
            return None
        if not self._within:
            try:
                head = self._records.head(content, at, final)
                if head is None:
                    return None
                columns = self._columns_of(head, content, final)
            except (MoreNeededError, NotSoundError):
                return None
            at, head_text = head.at, head.text
            foreign = self._is_foreign(head)
        stop = min(stop, at + dump_records.RECORD_LIMIT)
        escapes = self._notation.backslash_escapes
        read = None if foreign else read_tuples(content, at, stop, head_text, columns, backslash_escapes=escapes)
        if read is None:
            return None
        self._head, self._columns, self._foreign, self._within = head_text, columns, False, not read.last
        return sound_rows(columns, read.texts, read.end)

    def strict(self, content: bytes, start: int, stop: int, final: bool) -> Rows:
        rows, at = RowBuilder(self._columns), start
        try:
            while at < stop:
                if self._within_long:
                    at = self._behind_long(content, at, final)
                    continue
                at = behind_space(content, at)
                if at == len(content):
                    break
                if self._within:
                    at = self._tuple(content, at, final, rows)
                    continue
                try:
                    head = self._records.head(content, at, final)
                except NotSoundError as error:
                    at = self._rejected(content, error.at, final, rows)
                    continue
                if head is None:
                    at = len(content)
                    break
                columns = self._columns_of(head, content, final)
                if columns is not self._columns:
                    if len(rows):
                        break
                    rows = RowBuilder(columns)
                self._head, self._columns, self._foreign = head.text, columns, self._is_foreign(head)
                self._within = True
                at = head.at
        except MoreNeededError:
            pass
        return rows.rows(at)

    def rest(self) -> Rows | None:
        """Report a statement that is incomplete at the end of the file."""
        if not self._within:
            return None
        rows = RowBuilder(self._columns)
        rows.reject(problems.NOT_A_DUMP_ROW, b"")
        return rows.rows(0)

    def _tuple(self, content: bytes, at: int, final: bool, rows: RowBuilder) -> int:
        """Read the tuple at `at`; return where to continue. Raises MoreNeededError."""
        try:
            found = self._records.row(content, at, final)
        except NotSoundError:
            return self._rejected(content, at, final, rows)
        except MoreNeededError:
            if len(content) - at <= dump_records.RECORD_LIMIT:
                raise
            return self._rejected(content, at, final, rows)
        if found.end - at > dump_records.RECORD_LIMIT:
            return self._rejected(content, at, final, rows)
        raw = content[at : min(found.end, at + problems.RAW_LIMIT)]
        if self._foreign:
            rows.reject(problems.WRONG_TABLE, raw)
        else:
            rows.add(found.cells, raw)
        self._within = not found.last
        return found.following

    def _rejected(self, content: bytes, at: int, final: bool, rows: RowBuilder) -> int:
        """Reject the invalid tuple or statement at `at`; return where to continue. Raises MoreNeededError."""
        try:
            following = self._records.next_begin(content, at, final, tuples=self._within)
        except MoreNeededError:
            if len(content) - at <= dump_records.RECORD_LIMIT:
                raise
            self._within_long = True
            following = len(content)
        rows.reject(problems.NOT_A_DUMP_ROW, content[at : min(following, at + problems.RAW_LIMIT)].rstrip(b"\r\n"))
        return at if self._within_long else self._begun(content, following)

    def _behind_long(self, content: bytes, at: int, final: bool) -> int:
        """Return where to continue after a record that is too long to be held. Raises MoreNeededError."""
        try:
            following = self._records.next_begin(content, at, final, tuples=self._within)
        except MoreNeededError:
            if len(content) - at <= _KEPT:
                raise
            return len(content) - _KEPT
        self._within_long = False
        return self._begun(content, following)

    def _begun(self, content: bytes, at: int) -> int:
        """Return the position of the tuple or statement that a line begins with."""
        comma = content.startswith(b",(", at)
        self._within = self._within and (comma or content.startswith(b"(", at))
        return at + (self._within and comma)

    def _columns_of(self, head: Head, content: bytes, final: bool) -> list[DumpColumn]:
        """Return the columns that a statement lists, else the notation's, or all of the table where its first tuple has
        as many: some tools dump generated columns too. Raises MoreNeededError."""
        names: Sequence[str] = self._notation.columns if head.names is None else head.names
        every = tuple(self._context.columns)
        if head.names is None and len(names) < len(every) and len(content) - head.at <= dump_records.RECORD_LIMIT:
            with contextlib.suppress(NotSoundError):
                names = every if len(self._records.row(content, head.at, final).cells) == len(every) else names
        return self._named(names)

    def _named(self, names: Sequence[str]) -> list[DumpColumn]:
        """Return the columns of the names: the same list for the same names."""
        own = self._context.own_names(names)
        if own not in self._columns_by_names:
            self._columns_by_names[own] = columns_of(own, self._context)
        return self._columns_by_names[own]

    def _is_foreign(self, head: Head) -> bool:
        return head.table != [self._context.database, self._context.table][-len(head.table) :]
