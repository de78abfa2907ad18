"""Pieces of DuckDB's SQL: names, literals, bound values, time zones.

An expression is a `str`. The functions here take and return expressions that can be used anywhere without parentheses.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import decimal
import functools
import hashlib
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lakehouse.config.section import zone_of

_compute: Any = pc  # What its functions take is hidden from type checkers.
_DUCKDB_TYPES: Final = {
    "long": "BIGINT", "int": "INTEGER", "float": "FLOAT", "double": "DOUBLE", "boolean": "BOOLEAN", "date": "DATE",
    "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMPTZ", "string": "VARCHAR", "binary": "BLOB",
    "list<float>": "FLOAT[]",
}  # fmt: skip

NULL: Final = "NULL"
_MEMORY: Final = "1GB"
_VECTOR_ROWS: Final = 2048
_VECTOR_BYTES: Final = 16 * 1024 * 1024
_SLICE_BYTES: Final = 256 * 1024 * 1024
_A_DAY: Final = datetime.timedelta(days=1)


def duckdb_type(iceberg: str) -> str:
    """Return the DuckDB type of an Iceberg type: `long` is BIGINT, `decimal(10,2)` is DECIMAL(10,2)."""
    return _DUCKDB_TYPES.get(iceberg) or iceberg.upper()


_idle: dict[int, list[Any]] = {}
"""Unused databases, by the process they belong to: opening one takes longer than a small task in it."""


@contextlib.contextmanager
def database() -> Iterator[Any]:
    """Open a DuckDB: one thread, because Spark has one task for each core; times in UTC; what exceeds its memory goes
    to disk. It is empty, and the user must remove what it creates; after an error, except one of a value, it is not
    used again."""
    import duckdb  # noqa: PLC0415 - A run with nothing new opens none.
    from duckdb.func import FunctionNullHandling, PythonUDFType  # noqa: PLC0415

    idle = _idle.setdefault(os.getpid(), [])
    try:
        connection = idle.pop()
    except IndexError:
        # DuckDB creates the directory when it needs it, and removes it. A join keeps its right side in memory: the
        # optimizer would take a reader for empty, and keep all of its rows.
        config = {"threads": 1, "memory_limit": _MEMORY, "disabled_optimizers": "build_side_probe_side"}
        config["temp_directory"] = str(Path(tempfile.gettempdir()) / f"duckdb-{uuid.uuid4()}")
        connection = duckdb.connect(config=config)
        connection.execute("SET TimeZone = 'UTC'")
        # The progress bar would be in the output of a command.
        connection.execute("SET enable_progress_bar = false")
        by_arrow: Any = {"type": PythonUDFType.ARROW, "null_handling": FunctionNullHandling.SPECIAL}
        encoded, decoded = _by_codec(str.encode, pa.binary()), _by_codec(bytes.decode, pa.string())
        connection.create_function("encode_with", encoded, ["VARCHAR", "VARCHAR"], "BLOB", **by_arrow)
        connection.create_function("decode_with", decoded, ["BLOB", "VARCHAR"], "VARCHAR", **by_arrow)
    try:
        yield connection
    except BaseException as error:
        if isinstance(error, duckdb.InvalidInputException):
            idle.append(connection)
        else:
            connection.close()
        raise
    idle.append(connection)


@atexit.register
def _close_idle() -> None:
    # Python reports connections that are left open with Python functions as leaks when the process ends.
    for connection in _idle.get(os.getpid(), ()):
        connection.close()


def query(statement: str, **relations: Any) -> pa.Table:
    """Return the rows of a statement over relations (Arrow tables or readers), which have these names while it runs."""
    with database() as connection:
        try:
            for name, relation in relations.items():
                connection.register(name, relation)
            return connection.sql(statement).to_arrow_table()
        finally:
            for name in relations:
                connection.unregister(name)


def by_name(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns of a table by name. `Table.column` looks through all names for each."""
    return dict(zip(rows.column_names, rows.columns, strict=True))


def over_columns(columns: Sequence[tuple[str, Any]]) -> list[pa.Table]:
    """Run a statement over each column (statement, array). It reads the column `value` of the relation `stacked` and
    must return a row for each of its rows, in their order.

    Columns with the same statement are stacked and read by one query: DuckDB plans an expression in milliseconds, and
    a table can have thousands of columns of a few types."""
    stacks: dict[tuple[str, pa.DataType], list[int]] = {}
    for place, (statement, array) in enumerate(columns):
        stacks.setdefault((statement, array.type), []).append(place)
    found: dict[int, pa.Table] = {}
    for (statement, kind), places in stacks.items():
        arrays = [columns[place][1] for place in places]
        chunks = [chunk for each in arrays for chunk in (each.chunks if isinstance(each, pa.ChunkedArray) else [each])]
        stacked = pa.table({"value": pa.chunked_array(chunks, kind)})
        if stacked.num_rows < len(chunks) * _VECTOR_ROWS:
            stacked = stacked.combine_chunks()  # DuckDB makes a vector of each chunk, however short.
        rows = query(statement, stacked=stacked)
        ends = np.cumsum([len(each) for each in arrays])
        for place, array, end in zip(places, arrays, ends.tolist(), strict=True):
            found[place] = rows.slice(end - len(array), len(array))
    return [found[place] for place in range(len(columns))]


def slices(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in parts that fit into a query's memory. DuckDB works on vectors of 2048 rows and cannot put the
    texts of one on disk; so rows with long texts come few at a time, down to one. Others stay together up to Arrow's
    limit of an array."""
    if rows.nbytes <= _VECTOR_BYTES:
        yield rows
        return
    ends = np.zeros(rows.num_rows + 1, np.int64)
    for column in rows.columns:
        if column.type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            ends[1:] += _compute.fill_null(_compute.binary_length(column), 0).to_numpy()
    np.cumsum(ends, out=ends)
    first = stop = 0
    while first < rows.num_rows:
        fits = int(np.searchsorted(ends, ends[stop] + _VECTOR_BYTES, "right")) - 1
        narrow = fits == rows.num_rows or fits - stop >= _VECTOR_ROWS
        if narrow and ends[fits] - ends[first] <= _SLICE_BYTES:
            stop = fits
            if stop < rows.num_rows:
                continue
        elif stop == first:
            stop = max(fits, first + 1)
        yield rows.slice(first, stop - first)
        first = stop


# --- Names and literals ---


def identifier(name: str) -> str:
    """Quote a name of a column or a table."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """Return a VARCHAR literal. A backslash is no escape, and U+0000 is allowed."""
    return "'" + text.replace("'", "''") + "'"


def bytes_literal(value: bytes) -> str:
    """Return a BLOB literal."""
    return f"from_hex('{value.hex()}')"


def labels_literal(labels: tuple[str, ...]) -> str:
    """Return a VARCHAR[] literal."""
    return f"CAST([{', '.join(map(text_literal, labels))}] AS VARCHAR[])"


def literal(value: Any, iceberg: str) -> str:
    """Return the literal of a Python value for an Iceberg type: int, float, Decimal, str, bytes, bool, date, a datetime
    with or without a time zone, or None."""
    match value:
        case None:
            text = NULL
        case bytes():
            text = bytes_literal(value)
        case decimal.Decimal():
            # DuckDB does not read every DECIMAL with an exponent.
            text = text_literal(f"{value:f}")
        case datetime.datetime():
            local = value if value.tzinfo is None else value.astimezone(datetime.UTC)
            text = text_literal(local.isoformat(" "))
        case _:
            text = text_literal(str(value))
    return cast(text, iceberg)


# --- Expressions ---


def cast(value: str, iceberg: str) -> str:
    """Cast an expression to an Iceberg type; the query fails for a value that does not fit."""
    return f"CAST({value} AS {duckdb_type(iceberg)})"


def try_cast(value: str, iceberg: str) -> str:
    """Cast an expression to an Iceberg type; NULL for a value that does not fit."""
    return f"TRY_CAST({value} AS {duckdb_type(iceberg)})"


def matches(text: str, pattern: str) -> str:
    """Return the condition that the whole text matches a regular expression (RE2 syntax)."""
    return f"regexp_full_match({text}, {text_literal(pattern)})"


def when(condition: str, value: str, otherwise: str = NULL) -> str:
    return f"CASE WHEN {condition} THEN {value} ELSE {otherwise} END"


def let(value: str, body: Callable[[str], str]) -> str:
    """Bind a value to a name in the body's expression, so that the value is written and computed once. The same value
    gets the same name, so that an expression's text is the same each time."""
    name = "v" + hashlib.blake2s(value.encode(), digest_size=8).hexdigest()
    return f"list_transform([{value}], lambda {name}: {body(name)})[1]"


# --- Python's codecs ---

LATIN1: Final = "latin-1"
"""One byte is one character."""


def encode(text: str, codec: str) -> str:
    """Return the bytes of a VARCHAR in an encoding; NULL where it lacks a character."""
    if codec == LATIN1:
        # DuckDB has no function for it: `encode` gives UTF-8, which is the same for ASCII.
        return when(f"strlen({text}) = length({text})", f"encode({text})", f"encode_with({text}, '{codec}')")
    return f"encode({text})" if codec == "utf-8" else f"encode_with({text}, '{codec}')"


def decode(value: str, codec: str) -> str:
    """Return the text of a BLOB in an encoding; NULL for bytes that are not in it."""
    return f"decode_with({value}, '{codec}')"


def _by_codec(change: Callable[[Any, str], Any], kind: pa.DataType) -> Callable[[Any, Any], pa.Array]:
    """Return a function of values and codecs, which gives NULL for a value that its codec cannot change."""

    def changed(value: Any, codec: str) -> Any:
        try:
            return None if value is None else change(value, codec)
        except UnicodeError:
            return None

    return lambda values, codecs: pa.array(map(changed, values.to_pylist(), codecs.to_pylist()), kind)


# --- Time zones ---


def at_zone(local: str, zone: str) -> str:
    """Return the moment (TIMESTAMPTZ) of a date and time (TIMESTAMP) in a time zone: a name of the IANA database, or an
    offset such as +08:00. A time that the clocks show twice is the first of the two; one that they skip is as far after
    the skip."""
    if (offset := _micros(zone)) is not None:
        return f"make_timestamptz(epoch_us({local}) - ({offset}))"
    name = text_literal(zone)
    if (last := _last_overlap(zone)) is None:
        return f"timezone({name}, {local})"
    # DuckDB takes the second of two. The offset of a day earlier gives the first.
    return let(
        local,
        lambda shown: let(
            f"timezone({name}, {shown})",
            lambda second: when(
                f"{shown} < TIMESTAMP '{last}'",
                let(
                    f"{second} - (timezone({name}, {second} - INTERVAL 1 DAY) + INTERVAL 1 DAY - {shown})",
                    lambda first: when(f"{first} < {second} AND timezone({name}, {first}) = {shown}", first, second),
                ),
                second,
            ),
        ),
    )


def in_zone(moment: str, zone: str) -> str:
    """Return the date and time (TIMESTAMP) that clocks of a time zone show at a moment (TIMESTAMPTZ)."""
    if (offset := _micros(zone)) is not None:
        return f"make_timestamp(epoch_us({moment}) + ({offset}))"
    return f"timezone({text_literal(zone)}, {moment})"


def text_in_zone(moment: str, zone: str, length: str) -> str:
    """Return a moment (TIMESTAMPTZ) as text, cut to `length` characters: the time that clocks of the zone show, which
    `at_zone` converts back to the moment. Where they show it for the second time, the text is in UTC, with `+00:00`."""

    def text(local: str) -> str:
        return f"left(strftime({local}, '%Y-%m-%d %H:%M:%S.%f'), {length})"

    shown = in_zone(moment, zone)
    if _micros(zone) is not None or _last_overlap(zone) is None:
        return text(shown)
    return let(
        moment,
        lambda moment: let(
            in_zone(moment, zone),
            lambda shown: when(
                f"{at_zone(shown, zone)} = {moment}", text(shown), f"{text(in_zone(moment, 'UTC'))} || '+00:00'"
            ),
        ),
    )


def _micros(zone: str) -> int | None:
    """Return the offset in microseconds of UTC and of zones that are only an offset; None for others."""
    offset = zone_of(zone).utcoffset(None)
    return None if offset is None else offset // datetime.timedelta(microseconds=1)


@functools.cache
def _last_overlap(zone: str) -> datetime.datetime | None:
    """Return a time about two days after clocks of the zone were last set back, searched up to the end of MySQL's
    TIMESTAMP; None for never."""
    info = zone_of(zone)
    noon = datetime.datetime(2038, 1, 20, 12, tzinfo=datetime.UTC)
    later: Any = noon.astimezone(info).utcoffset()
    while noon.year >= 1900:
        noon -= _A_DAY
        earlier: Any = noon.astimezone(info).utcoffset()
        if earlier > later:
            return (noon + 3 * _A_DAY).replace(hour=0, tzinfo=None)
        later = earlier
    return None
