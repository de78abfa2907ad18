"""A connection to MySQL or TiDB that reads tables as of one moment."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pymysql
from pymysql.converters import encoders
from pymysql.cursors import SSCursor

from cdc_lakehouse.changelog.ddl.statements import parse_type
from cdc_lakehouse.changelog.mysql_types import BLOBS, FLOATS, INTEGERS, LABELS, TEXTS, ColumnType, Form
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import DatabaseConnection
from cdc_lakehouse.errors import DdlError, SourceError, SourceUnreachableError

# The statements that are sent to the source database. Names are quoted in them, values are bound.

_COLUMNS: Final = (
    "SELECT column_name AS name, column_type AS type, extra AS extra FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s "
    "AND (@@lower_case_table_names > 0 OR (BINARY table_schema = BINARY %s AND BINARY table_name = BINARY %s)) "
    "ORDER BY ordinal_position"
)
"""Database and table are bound, twice: the server compares the names without case."""

_SESSION: Final = (
    "SET NAMES utf8mb4",
    "SET SESSION time_zone = '+00:00'",
    # Invalid dates are no errors, and CHAR is without its padding.
    "SET SESSION sql_mode = ''",
    # The lake's side may take a while between two rows.
    "SET SESSION net_write_timeout = 3600",
)


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
    return ("SET @@tidb_snapshot = ''",) if is_tidb else ("COMMIT",)


_CONNECT_SECONDS: Final = 20
_MOST_BYTES: Final = 1 << 30
"""The maximum size of one value: MySQL's own."""
_BATCH_ROWS: Final = 1000
_DENIED: Final = frozenset({1044, 1045, 1142, 1143, 1227, 1370, 1698})
_SELECT: Final = "the user needs SELECT on the tables, and nothing else"
_CHANGED: Final = frozenset({1049, 1051, 1054, 1146, 1412})
"""Errors that say that the database, the table or a column does not exist, or has changed."""
_COLLECTED: Final = frozenset({8055, 9006})
_KEEP: Final = "TiDB has collected that version as garbage: set tidb_gc_life_time longer, and begin again"
_CONNECTION: Final = frozenset({1040, 1042, 1043, 1053, 1129, 1158, 1159, 1160, 1161, 1203})
"""Server errors that may pass; the client's own are numbered from 2000."""


@dataclass(frozen=True, slots=True)
class DatabaseColumn:
    """A column in the database; `type` is None for one that cannot be parsed. `virtual` says that it is a generated
    column that is not stored."""

    name: str
    type: ColumnType | None
    virtual: bool


Row = tuple[Any, ...]


class TableChangedError(SourceError, advice="run again"):
    """A table does not exist, or has changed."""


class SourceDatabase:
    """One session. Raises `SourceUnreachableError` where the server cannot be reached, and `SourceError` where it
    refuses a request; neither contains a password."""

    def __init__(self, config: DatabaseConnection, *, texts: bool = False) -> None:
        """With `texts`, all values are the server's text, or None."""
        address = config.address
        # The client's own converters determine the types.
        conversions: Any = encoders if texts else None
        self._place = f"{address.host}:{address.port}"
        with self._errors():
            self._connection: Any = pymysql.connect(
                host=address.host, port=address.port, user=address.user, password=address.password, charset="utf8mb4",
                autocommit=True, connect_timeout=_CONNECT_SECONDS, max_allowed_packet=_MOST_BYTES, conv=conversions,
                ssl_ca=config.ca_file, ssl_verify_identity=config.ca_file is not None or None,
            )  # fmt: skip
        try:
            self.version = str(self._first("SELECT VERSION()"))
            self.is_tidb = "tidb" in self.version.lower()
            self.run(session_statements(is_tidb=self.is_tidb))
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(pymysql.MySQLError):
            self._connection.close()

    @contextlib.contextmanager
    def as_of(self, commit_ts: int) -> Generator[None]:
        """Read as of one moment in the block: on TiDB `commit_ts` (a TSO), on MySQL the block's beginning."""
        self.run(begin_statements(commit_ts, is_tidb=self.is_tidb))
        try:
            yield
        finally:
            with contextlib.suppress(SourceError, SourceUnreachableError):
                self.run(end_statements(is_tidb=self.is_tidb))

    def columns(self, name: TableName) -> list[DatabaseColumn]:
        """Return the columns in order; none where the table does not exist, or the user may not read it."""
        names = (name.database, name.table)
        return [
            DatabaseColumn(_as_text(column), _type(_as_text(declared)), "VIRTUAL" in _as_text(extra).upper())
            for column, declared, extra in self.all(_COLUMNS, (*names, *names))
        ]

    def estimated_rows(self, name: TableName) -> int:
        statement = "SELECT MAX(table_rows) FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        return int(self._first(statement, (name.database, name.table)) or 0)

    def stream(self, statement: str, values: Sequence[Any] | None = None) -> Generator[Row]:
        """Yield the rows of a statement, with bound values as in `all`. They are read on demand: nothing else can be
        queried until all are read, or the iterator is closed."""
        with self._errors(), self._connection.cursor(SSCursor) as cursor:
            cursor.execute(statement, values)
            while found := cursor.fetchmany(_BATCH_ROWS):
                yield from found

    def variable(self, name: str) -> str | None:
        """Return a global variable of the server; None where it has none of that name."""
        found = self.all("SHOW GLOBAL VARIABLES LIKE %s", (name.replace("_", r"\_"),))
        return _as_text(found[0][1]) if found else None

    def run(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self.all(statement)

    def _first(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self.all(statement, values)[0][0]

    def all(self, statement: str, values: Sequence[Any] | None = None, *, advice: str | None = None) -> Sequence[Row]:
        """Return the rows of a statement. Where `values` are bound, even an empty list, a percent sign in the statement
        must be doubled. `advice` is for a user without the permission."""
        with self._errors(advice), self._connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall()

    @contextlib.contextmanager
    def _errors(self, denied: str | None = None) -> Generator[None]:
        try:
            yield
        except pymysql.MySQLError as error:
            code = error.args[0] if error.args else None
            reason = str(error.args[1]) if len(error.args) > 1 else str(error)
            if isinstance(code, int) and (code in _CONNECTION or 2000 <= code < 3000):
                raise SourceUnreachableError(f"the database {self._place} cannot be reached: {reason}") from error
            said = f"the database {self._place} refuses: {reason}"
            if code in _CHANGED:
                raise TableChangedError(said) from error
            advice = (denied or _SELECT) if code in _DENIED else _KEEP if code in _COLLECTED else None
            raise SourceError(said, advice=advice) from error
        except OSError as error:
            raise SourceUnreachableError(f"the database {self._place} cannot be reached: {error}") from error
        except RuntimeError as error:
            # The client has no RSA of its own, which encrypts the password where there is no TLS.
            raise SourceError(
                f"the database {self._place} cannot be used: {error}",
                advice="set verify.ca_file, so that TLS is used, or pip install 'pymysql[rsa]'",
            ) from error


def _type(declared: str) -> ColumnType | None:
    try:
        return parse_type(declared)
    except DdlError:
        return None


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# Texts of values and rows in MySQL's SQL (see `mysql_types.Form`); TiDB has the same functions. Sessions have the
# time zone UTC and the character set utf8mb4.

_MOMENT: Final = "'%Y-%m-%d %H:%i:%s.%f'"


def value_text(value: str, column: ColumnType, *, zero_dates: str) -> str:
    """Return the expression of a value's text, or of a binary's bytes. `value` is a quoted name. `zero_dates` is the
    policy: with `null` invalid dates are NULL, with `string` they stay as they are."""
    name = column.name
    if name in BLOBS:
        return value
    if name in TEXTS | LABELS:
        return f"CONVERT({value} USING utf8mb4)"
    if name in INTEGERS or name in ("year", "bit"):
        # A number, not its text, which ZEROFILL pads with zeros.
        return _text(f"{value} + 0")
    if name in FLOATS:
        return _float_text(value)
    if name == "decimal" and column.zerofill:
        # It has no sign, so the zeros come first. One stays before the point.
        trimmed = f"TRIM(LEADING '0' FROM {_text(value)})"
        return f"IF(LEFT({trimmed}, 1) IN ('', '.'), CONCAT('0', {trimmed}), {trimmed})"
    if name in ("date", "datetime", "timestamp"):
        exact = zero_dates == "string" or name == "date"
        text = _text(value) if exact else _text(f"DATE_FORMAT({value}, {_MOMENT})")
        # Whether a date exists in the calendar: MySQL can hold 0000-00-00, 2020-01-00 and 2020-02-31.
        leap = f"(YEAR({value}) % 4 = 0 AND (YEAR({value}) % 100 <> 0 OR YEAR({value}) % 400 = 0))"
        days = f"ELT(MONTH({value}), 31, 28 + {leap}, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)"
        exists = f"YEAR({value}) > 0 AND DAYOFMONTH({value}) BETWEEN 1 AND {days}"
        return f"IF({exists}, {text}, NULL)" if zero_dates == "null" else text
    return _text(value)


def in_row(text: str, form: Form) -> str:
    forms = {"plain": text, "counted": f"CONCAT(LENGTH({text}), ':', {text})", "hex": f"HEX({text})"}
    return f"IFNULL({forms.get(form, f'MD5({text})')}, 'N')"


def row_text(values: Sequence[str]) -> str:
    return f"CONCAT_WS(',', {', '.join(values)})"


def number_of_digits(digest: str, count: int) -> str:
    """Return the expression of the number in the first `count` digits of an MD5."""
    return f"CAST(CONV(LEFT({digest}, {count}), 16, 10) AS UNSIGNED)"


def _text(value: str) -> str:
    # A cast to CHAR has the session's collation, and a column its own: the two cannot be combined everywhere.
    return f"CONVERT(CAST({value} AS CHAR) USING utf8mb4)"


def _float_text(value: str) -> str:
    # A FLOAT is printed with six digits, a double with all digits that distinguish it from its neighbours.
    text = _text(f"{value} + 0e0")
    mantissa = f"SUBSTRING_INDEX({text}, 'e', 1)"
    exponent = f"IF(LOCATE('e', {text}) = 0, 0, CAST(SUBSTRING_INDEX({text}, 'e', -1) AS SIGNED))"
    digits = f"REPLACE(REPLACE({mantissa}, '-', ''), '.', '')"
    fraction = f"IF(LOCATE('.', {mantissa}) = 0, 0, LENGTH({mantissa}) - LOCATE('.', {mantissa}))"
    without_end = f"TRIM(TRAILING '0' FROM {digits})"
    significant = f"TRIM(LEADING '0' FROM {without_end})"
    power = f"CAST({exponent} - {fraction} + LENGTH({digits}) - LENGTH({without_end}) AS SIGNED)"
    sign = f"IF({text} LIKE '-%', '-', '')"
    return f"IF({significant} = '', '0', CONCAT({sign}, {significant}, 'e', {power}))"
