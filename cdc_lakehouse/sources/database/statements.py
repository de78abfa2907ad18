"""The statements that are sent to the source database. Names are quoted in them, values are bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.row_texts import Form
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.sources.database.row_texts import in_row, number_of_digits, row_text

COLUMNS: Final = (
    "SELECT column_name AS name, column_type AS type, extra AS extra FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s "
    "AND (@@lower_case_table_names > 0 OR (BINARY table_schema = BINARY %s AND BINARY table_name = BINARY %s)) "
    "ORDER BY ordinal_position"
)
"""Database and table are bound, twice: the server compares the names without case."""

ESTIMATE: Final = "SELECT MAX(table_rows) FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
"""The estimated number of a table's rows; database and table are bound."""

_SESSION: Final = (
    "SET NAMES utf8mb4",
    "SET SESSION time_zone = '+00:00'",
    # Invalid dates are no errors, and CHAR is without its padding.
    "SET SESSION sql_mode = ''",
    # The lake's side may take a while between two rows.
    "SET SESSION net_write_timeout = 3600",
)
_END: Final = "COMMIT"


def session_statements(*, is_tidb: bool) -> tuple[str, ...]:
    """Return the statements that prepare a session for reading only."""
    # TiDB refuses this statement, unless it is set to ignore it; a session with a snapshot cannot write there.
    return _SESSION if is_tidb else (*_SESSION, "SET SESSION TRANSACTION READ ONLY")


def begin_statements(commit_ts: int, *, is_tidb: bool) -> tuple[str, ...]:
    """Return the statements after which everything is read as of one moment: on TiDB a TSO, on MySQL now."""
    if is_tidb:
        return (f"SET @@tidb_snapshot = '{commit_ts:d}'",)
    return ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT")


def end_statements(*, is_tidb: bool) -> tuple[str, ...]:
    """Return the statements that end reading as of one moment."""
    return ("SET @@tidb_snapshot = ''",) if is_tidb else (_END,)


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column: its name, the expression of its text, and the form of that in a row's text."""

    name: str
    text: str
    form: Form


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table to compare: its compared columns, those of the key first, of which there are `key_count`, and the number
    of `buckets`."""

    name: TableName
    columns: tuple[ComparedColumn, ...]
    key_count: int
    buckets: int

    def checksum_statement(self) -> str:
        """Return the statement for (bucket, rows, checksum) of each bucket with rows."""
        row = row_text([in_row(column.text, column.form) for column in self.columns])
        bucket, row_hash = self._bucket(f"MD5({self._key()})"), number_of_digits(f"MD5({row})", 16)
        hashes = f"SELECT {bucket} AS bucket, {row_hash} AS hash FROM {self.name.quoted}"
        return f"SELECT bucket, COUNT(*), SUM(hash) FROM ({hashes}) AS hashes GROUP BY bucket"

    def row_statement(self, buckets: Sequence[int] | None) -> str:
        """Return the statement for the MD5 of the key's text and the texts of all columns, of some buckets or of all,
        ordered by the MD5. The texts of binaries are their bytes."""
        digest = f"MD5({self._key()})"
        texts = ", ".join([digest, *(column.text for column in self.columns)])
        some = ""
        if buckets is not None:
            some = f" WHERE {self._bucket(digest)} IN ({', '.join(f'{bucket:d}' for bucket in buckets)})"
        return f"SELECT {texts} FROM {self.name.quoted}{some} ORDER BY 1"

    def _key(self) -> str:
        return row_text([in_row(column.text, column.form) for column in self.columns[: self.key_count]])

    def _bucket(self, digest: str) -> str:
        return f"{number_of_digits(digest, 8)} % {self.buckets:d}"
