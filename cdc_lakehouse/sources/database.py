"""The source database, read with SQL, to compare it with the lake and to load it. Nothing is ever written there.

MySQL is read without a lock for a load. Rows of a table are read at different times between two positions, the low and
the high one: the log after the low position has the changes made in between, and corrects the rows. TiDB is read at one
TSO. Ranges use the first columns of the key, as far as MySQL can compare their order with a constant; a table without
such a column is one range. Bounds are texts as in rows."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import pymysql
from pymysql.converters import encoders
from pymysql.cursors import SSCursor

from cdc_lakehouse.changelog.ddl import apply
from cdc_lakehouse.changelog.ddl.clauses import CreateTable
from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.ddl.statements import parse, parse_type
from cdc_lakehouse.changelog.mysql_types import BLOBS, FLOATS, GEOMETRIES, INTEGERS, LABELS, TEXTS, ColumnType, Form
from cdc_lakehouse.changelog.positions import is_commit_ts
from cdc_lakehouse.changelog.schema import TableName, quoted
from cdc_lakehouse.config import DatabaseConnection
from cdc_lakehouse.errors import DdlError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources.dump.contents import DumpPosition

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
_CONNECT_SECONDS: Final = 20
_MOST_BYTES: Final = 1 << 30
"""The maximum size of one value: MySQL's own."""
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
    """A column in the database; `type` is None for one that cannot be parsed. A `virtual` one is not stored."""

    name: str
    type: ColumnType | None
    virtual: bool


Row = tuple[Any, ...]


class TableChangedError(SourceError, advice="run again"):
    """A table does not exist, or has changed."""


class SourceDatabase(contextlib.AbstractContextManager["SourceDatabase"]):
    """One session. Raises `SourceUnreachableError` where the server cannot be reached, and `SourceError` where it
    refuses a request; neither contains a password."""

    def __init__(self, config: DatabaseConnection, *, texts: bool = False) -> None:
        """With `texts`, all values are the server's text, or None."""
        address = config.address
        # The client's own converters determine the types.
        conversions: Any = encoders if texts else None
        self._place = f"{address['host']}:{address['port']}"
        with self._errors():
            self._connection: Any = pymysql.connect(
                **address, charset="utf8mb4", autocommit=True, connect_timeout=_CONNECT_SECONDS,
                max_allowed_packet=_MOST_BYTES, conv=conversions, ssl_ca=config.ca_file,
                ssl_verify_identity=config.ca_file is not None or None,
            )  # fmt: skip
        try:
            ((version,),) = self.all("SELECT VERSION()")
            self.version = str(version)
            self.is_tidb = "tidb" in self.version.lower()
            # TiDB refuses READ ONLY, unless it is set to ignore it; a session with a snapshot cannot write there.
            for statement in _SESSION if self.is_tidb else (*_SESSION, "SET SESSION TRANSACTION READ ONLY"):
                self.all(statement)
        except BaseException:
            self._close()
            raise

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(pymysql.MySQLError):
            self._connection.close()

    def read_at(self, tso: int) -> None:
        """Read as of one moment until the session ends (TiDB)."""
        self.all(f"SET @@tidb_snapshot = '{tso:d}'")

    @contextlib.contextmanager
    def as_of(self, commit_ts: int) -> Generator[None]:
        """Read as of one moment in the block: on TiDB `commit_ts` (a TSO), on MySQL the block's beginning."""
        if self.is_tidb:
            self.read_at(commit_ts)
        else:
            self.all("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self.all("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        try:
            yield
        finally:
            with contextlib.suppress(SourceError, SourceUnreachableError):
                self.all("SET @@tidb_snapshot = ''" if self.is_tidb else "COMMIT")

    def columns(self, name: TableName) -> list[DatabaseColumn]:
        """Return the columns in order; none where the table does not exist, or the user may not read it."""
        names = (name.database, name.table)
        return [
            DatabaseColumn(_as_text(column), _type(_as_text(declared)), "VIRTUAL" in _as_text(extra).upper())
            for column, declared, extra in self.all(_COLUMNS, (*names, *names))
        ]

    def estimated_rows(self, name: TableName) -> int:
        statement = "SELECT MAX(table_rows) FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        return int(self.all(statement, (name.database, name.table))[0][0] or 0)

    def stream(self, statement: str, values: Sequence[Any] | None = None) -> Generator[Row]:
        """Yield the rows of a statement, with bound values as in `all`. They are read on demand: nothing else can be
        queried until all are read, or the iterator is closed."""
        with self._errors(), self._connection.cursor(SSCursor) as cursor:
            cursor.execute(statement, values)
            while found := cursor.fetchmany(1000):
                yield from found

    def variable(self, name: str) -> str | None:
        """Return a global variable of the server; None where it has none of that name."""
        found = self.all("SHOW GLOBAL VARIABLES LIKE %s", (name.replace("_", r"\_"),))
        return _as_text(found[0][1]) if found else None

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


# Tables and their rows, for a load.

Bound = tuple[str, ...]
"""Values of the columns that ranges use."""
Statement = tuple[str, list[Any]]
"""A statement, and the values that are bound in it."""

_IN_ORDER: Final = INTEGERS | TEXTS | BLOBS | {"decimal", "year", "date", "datetime", "timestamp", "time"}
_LEAVE_OUT: Final = "leave the table out (tables.exclude)"
_NUMBER_OF_ROWS: Final = re.compile(r"(?m)^(\).*?) AUTO_INCREMENT=\d+")


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys above `lower` up to and including `upper`; None for no bound."""

    lower: Bound | None = None
    upper: Bound | None = None


@dataclass(frozen=True)
class TableDefinition:
    """A table at one moment. `statement` is its CREATE TABLE, without what changes with its rows; `created` is the
    server's time of its creation, or of what replaced its rows. `estimated_rows` comes from the server's statistics."""

    name: TableName
    statement: str
    created: str
    estimated_rows: int = field(default=0, compare=False)

    @classmethod
    def of(cls, name: TableName, statement: str, created: str, estimated_rows: int = 0) -> TableDefinition:
        return cls(name, _NUMBER_OF_ROWS.sub(r"\1", statement), created, estimated_rows)

    @functools.cached_property
    def parsed(self) -> CreateTable:
        """The parsed statement. Raises `SourceError` for a statement that cannot be parsed."""
        try:
            (clause,) = parse(self.statement)
        except DdlSyntaxError as error:
            raise SourceError(f"the CREATE TABLE: {error.message}", table=str(self.name), advice=_LEAVE_OUT) from None
        if not isinstance(clause, CreateTable) or not clause.columns:
            raise SourceError("the CREATE TABLE lists no columns", table=str(self.name), advice=_LEAVE_OUT)
        return clause

    @functools.cached_property
    def types(self) -> dict[str, ColumnType]:
        """The types of the stored columns, in order. Raises as `parsed` does."""
        kept = {each.name for each in self.parsed.columns if not each.virtual}
        return {each.name: each.type for each in apply.altered(None, self.parsed.clauses).columns if each.name in kept}

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that ranges use: the first ones of the primary key, or of a unique key without NULL."""
        return self._chosen[0]

    @property
    def is_numbered(self) -> bool:
        """Whether the key is one integer: each number has at most one row."""
        columns, whole = self._chosen
        return whole and len(columns) == 1 and self.types[columns[0]].name in INTEGERS

    @functools.cached_property
    def _chosen(self) -> tuple[tuple[str, ...], bool]:
        """The first columns of a key, as far as MySQL compares them with a constant and indexes them as a whole; and
        whether they are the whole key."""
        by_name = {name.lower(): name for name in self.types}
        nullable = {each.name.lower() for each in self.parsed.columns if each.nullable is not False}
        for key in self.parsed.keys:
            if key.kind == "add_index" and (key.has_expression or nullable & {*map(str.lower, key.columns)}):
                continue
            found: list[str] = []
            for part in key.parts:
                name = by_name.get((part.column or "").lower())
                if name is None or part.length is not None or self.types[name].name not in _IN_ORDER:
                    break
                found.append(name)
            if found:
                return tuple(found), len(found) == len(key.parts)
        return (), False

    @property
    def encoded(self) -> frozenset[str]:
        """The columns whose texts are the hexadecimal digits of their bytes."""
        return frozenset(name for name, each in self.types.items() if each.name in _BINARY)

    def rows(self, of: KeyRange) -> Statement:
        condition, values = self._within(of)
        texts = ", ".join(_selected(name, each) for name, each in self.types.items())
        return f"SELECT {_bound(texts)} FROM {_bound(self.name.quoted)}{condition}", values

    def bound(self, after: Bound | None, rows: int) -> Statement:
        """Return the statement for the key of the `rows`th row after a key; it has no result where there are fewer."""
        condition, values = self._within(KeyRange(after))
        texts = ", ".join(_selected(name, self.types[name]) for name in self.key)
        order = ", ".join(map(quoted, self.key))
        return (
            f"SELECT {_bound(texts)} FROM {_bound(self.name.quoted)}{condition} ORDER BY {_bound(order)} "
            f"LIMIT 1 OFFSET {rows - 1:d}",
            values,
        )

    def _within(self, of: KeyRange) -> Statement:
        bounds = ((of.lower, ">", ""), (of.upper, "<", "="))
        found = [self._beside(bound, sign, including) for bound, sign, including in bounds if bound is not None]
        where = f" WHERE {' AND '.join(condition for condition, _ in found)}" if found else ""
        return where, [value for _, values in found for value in values]

    def _beside(self, bound: Bound, sign: str, including: str) -> Statement:
        """Return a condition that indexes support: `a >= 1 AND (a > 1 OR a = 1 AND b > 2)`, not `(a, b) > (1, 2)`."""
        names = [_bound(quoted(name)) for name in self.key]
        constants = [_constant(text, self.types[name]) for name, text in zip(self.key, bound, strict=True)]
        alternatives: list[str] = []
        values: list[Any] = []
        for place, name in enumerate(names):
            last = including if place == len(names) - 1 else ""
            same = "".join(f"{other} = %s AND " for other in names[:place])
            alternatives.append(f"{same}{name} {sign}{last} %s")
            values += constants[: place + 1]
        if len(names) == 1:
            return alternatives[0], values
        return f"({names[0]} {sign}= %s AND ({' OR '.join(alternatives)}))", [constants[0], *values]


_BINARY: Final = BLOBS | GEOMETRIES | {"bit"}


def _selected(name: str, of: ColumnType) -> str:
    value = quoted(name)
    if of.name == "bit":
        # Whole bytes, for any number of bits.
        return f"LPAD(HEX({value} + 0), 16, '0')"
    if of.name in _BINARY:
        return f"HEX({value})"
    # A FLOAT is printed with six digits, which may not be all of them.
    return f"{value} + 0e0" if of.name == "float" else value


def _constant(text: str, of: ColumnType) -> Any:
    if of.name in INTEGERS or of.name == "year":
        return int(text)
    if of.name == "decimal":
        return Decimal(text)
    return bytes.fromhex(text) if of.name in BLOBS else text


def _bound(text: str) -> str:
    """Escape a text for a statement with bound values."""
    return text.replace("%", "%%")


# The reading of a database, as of positions of its log.

_TABLES: Final = (
    "SELECT table_schema, table_name, create_time, table_rows FROM information_schema.tables "
    "WHERE table_type = 'BASE TABLE' AND "
    "LOWER(table_schema) NOT IN ('information_schema', 'performance_schema', 'mysql', 'sys', 'metrics_schema')"
)
_OF_BINARY_LOG: Final = (8, 2)
"""Since this version, SHOW BINARY LOG STATUS replaces SHOW MASTER STATUS."""
_COMMIT_SECONDS: Final = 2
"""A commit is in the binlog some time before it is visible; this is the wait where the server does not list such
commits."""
_MOST_SECONDS: Final = 600
_PAUSE_SECONDS: Final = 0.02
_BATCH_ROWS: Final = 10_000
_BATCH_CHARACTERS: Final = 4 << 20
_MOST_GAPS: Final = 10
"""The maximum ratio of numbers to rows for a key that is split by arithmetic."""


def position_of(database: SourceDatabase) -> DumpPosition:
    """Return the current end of the log, or the current TSO. Raises `SourceError` where the server does not give it."""
    if database.is_tidb:
        database.all("BEGIN")
        ((found,),) = database.all("SELECT @@tidb_current_ts")
        database.all("ROLLBACK")
        tso = int(found)
        if not is_commit_ts(tso):
            said = f"the database says the TSO {tso}, which is none"
            raise SourceError(said, advice="see whether PD of TiDB is sound")
        return DumpPosition(tso=tso)
    number = tuple(map(int, re.findall(r"\d+", database.version)[:2]))
    is_new = number >= _OF_BINARY_LOG and "mariadb" not in database.version.lower()
    found = database.all(
        "SHOW BINARY LOG STATUS" if is_new else "SHOW MASTER STATUS",
        advice="grant the user REPLICATION CLIENT, which lets it see where the binlog ends",
    )
    if not found:
        advice = "read the server whose binlog Canal reads, with log_bin on"
        raise SourceError("the database writes no binlog", advice=advice)
    file, offset = found[0][:2]
    try:
        # The binlog of a replica has what others wrote.
        is_own = not database.all("SHOW REPLICA STATUS" if is_new else "SHOW SLAVE STATUS")
    except SourceError:
        is_own = False  # The user may not read it.
    server_id = database.variable("server_id") if is_own else None
    own = None if server_id is None else int(server_id)
    return DumpPosition(log_file=str(file), log_offset=int(offset), server_id=own)


def wait_for_commits(database: SourceDatabase) -> None:
    """Wait until everything that was in the binlog before is visible: MySQL writes a transaction there before it
    commits it, and with semi-synchronous replication a replica responds in between. Raises `SourceError` where the
    server does not list the transactions that it waits for, and `SourceUnreachableError` where one does not end."""
    if database.variable("gtid_mode") == "ON":
        waiting, end = _committing(database), time.monotonic() + _MOST_SECONDS
        while waiting := waiting & _committing(database):
            if time.monotonic() > end:
                said = f"a transaction has been committing for {_MOST_SECONDS} seconds"
                raise SourceUnreachableError(said, advice="see what holds it up (SHOW PROCESSLIST), then run again")
            time.sleep(_PAUSE_SECONDS)
        return
    if "ON" in (database.variable(f"rpl_semi_sync_{name}_enabled") for name in ("master", "source")):
        raise SourceError(
            "the database waits for its replicas before what is in its binlog can be seen (semi-synchronous "
            "replication), and does not say for how long",
            advice="set gtid_mode to ON there, or load a dump",
        )
    time.sleep(_COMMIT_SECONDS)


def _committing(database: SourceDatabase) -> set[str]:
    """Return the transactions that are committing, each with its thread."""
    owned = database.variable("gtid_owned") or ""
    return {each for each in re.split(r"[,:\s]+", owned) if "#" in each}


def definitions_of(database: SourceDatabase, takes: Callable[[TableName], bool]) -> Mapping[TableName, TableDefinition]:
    found: dict[TableName, TableDefinition] = {}
    for schema, table, created, rows in database.all(_TABLES):
        name = TableName(str(schema), str(table))
        if takes(name):
            try:
                ((_, statement, *_),) = database.all(f"SHOW CREATE TABLE {name.quoted}")
            except TableChangedError:
                continue  # Dropped meanwhile.
            found[name] = TableDefinition.of(name, str(statement), str(created), int(rows or 0))
    return found


def ranges_of(database: SourceDatabase, table: TableDefinition, rows: int) -> list[KeyRange]:
    """Return ranges of about `rows` rows, which together cover the table, whatever it contains by then. They do not
    depend on the server's statistics for a table that has just been filled."""
    if not table.key:
        return [KeyRange()]
    bounds: list[Bound] | None = None
    if table.is_numbered:
        # Where the numbers have few gaps, no keys need to be read.
        key = quoted(table.key[0])
        (found,) = database.all(f"SELECT MIN({key}), MAX({key}) FROM {table.name.quoted}")
        least, greatest = (int(bound or 0) for bound in found)  # They are NULL where there is no row.
        numbers = greatest - least + 1
        if numbers <= rows:
            return [KeyRange()]
        if numbers <= _MOST_GAPS * table.estimated_rows:
            step = max(1, numbers * rows // table.estimated_rows)
            bounds = [(str(bound),) for bound in range(least + step - 1, greatest, step)]
    if bounds is None:
        bounds = []
        while found := database.all(*table.bound(bounds[-1] if bounds else None, rows)):
            bounds.append(tuple(str(value) for value in found[0]))
    return [KeyRange(lower, upper) for lower, upper in zip([None, *bounds], [*bounds, None], strict=True)]


def rows_of(database: SourceDatabase, table: TableDefinition, of: KeyRange) -> Generator[list[Row]]:
    """Yield the rows of a range in batches: texts, and None for NULL. Raises `TableChangedError`."""
    batch: list[Row] = []
    size = 0
    for row in database.stream(*table.rows(of)):
        batch.append(row)
        size += sum(len(value) for value in row if value is not None)
        if size >= _BATCH_CHARACTERS or len(batch) >= _BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
