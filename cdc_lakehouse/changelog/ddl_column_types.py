"""The type that a server makes of a declared one: widths and sizes filled in, refused where MySQL refuses it.

MySQL reference manual, "Data Types"; what it leaves open is as MySQL 8.0.12 does it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cdc_lakehouse.changelog.charsets import charset_named, folded, most_bytes
from cdc_lakehouse.changelog.ddl.columns import of_bytes
from cdc_lakehouse.changelog.ddl.definitions import ColumnDefinition
from cdc_lakehouse.changelog.mysql_types import INTEGERS, LABELS, TEMPORALS, TEXTS, ColumnType
from cdc_lakehouse.errors import DdlError

_WIDTHS: Final = {"tinyint": (4, 3), "smallint": (6, 5), "mediumint": (9, 8), "int": (11, 10), "bigint": (20, 20)}
_BYTES: Final = {
    "tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8, "float": 4, "double": 8, "year": 1,
    "date": 3, "time": 3, "datetime": 5, "timestamp": 4, "json": 12,
    "tinytext": 9, "text": 10, "mediumtext": 11, "longtext": 12,
    "tinyblob": 9, "blob": 10, "mediumblob": 11, "longblob": 12,
}  # fmt: skip
_SIZES: Final = ((0xFF, "tiny"), (0xFFFF, ""), (0xFFFFFF, "medium"), (0xFFFFFFFF, "long"))
_LARGE_BYTES: Final = {f"{size}{kind}": most for most, size in _SIZES for kind in ("text", "blob")}
_ROW: Final = 65535
_MOST_LABELS: Final = {"enum": 65535, "set": 64}
_POINTER: Final = 12


def server_type(column: ColumnDefinition, charset: str, forced: str | None = None) -> ColumnType:
    """The type of a column in a table of that character set; `forced` goes before what the column says itself."""
    own = charset_named(column.type.charset, column.collation)
    kind = in_charset(column.type, forced or own or charset)
    name = kind.name
    if name in INTEGERS:
        return _integer(kind, column.name)
    if name in ("decimal", "float", "double"):
        return _number(kind, column.name)
    if name in ("char", "varchar", "binary", "varbinary", "bit", "year"):
        return _sized(kind, column.name)
    if name in TEMPORALS:
        _check((kind.scale or 0) <= 6, column.name, f"the precision {kind.scale} is more than 6")
        return kind
    if name in LABELS:
        return _labelled(kind, column.name)
    if name in ("text", "blob") and kind.length:
        return _by_size(kind, column.name)
    if name == "geometrycollection":
        return replace(kind, name="geomcollection")
    return kind if name == "vector" else replace(kind, length=None)


def in_charset(kind: ColumnType, charset: str) -> ColumnType:
    """The type with its character set, where it has one; binary makes bytes of text."""
    if kind.name in LABELS:
        return replace(kind, charset=charset)
    if kind.name not in TEXTS:
        return kind
    return of_bytes(kind) if charset == "binary" else replace(kind, charset=charset)


def converted(kind: ColumnType, charset: str, name: str) -> ColumnType:
    """The type after CONVERT TO CHARACTER SET: a text type grows so that it holds as many characters as before."""
    if kind.charset in (None, "binary"):
        return kind  # Bytes stay bytes.
    if kind.name in LABELS:
        return _labelled(in_charset(kind, charset), name)
    characters = _LARGE_BYTES.get(kind.name, 0) // most_bytes(kind.charset)
    changed = in_charset(kind, charset)
    if kind.name in _LARGE_BYTES and most_bytes(charset) > most_bytes(kind.charset):
        needed = min(characters * most_bytes(charset), 0xFFFFFFFF)
        return replace(changed, name=next(f"{size}text" for most, size in _SIZES if needed <= most))
    return changed if kind.name in _LARGE_BYTES else _sized(changed, name)


def row_bytes(kind: ColumnType) -> int:
    """What a value takes of a row's 65,535 bytes, and of a key's 3,072."""
    characters = (kind.length or 0) * (most_bytes(kind.charset) if kind.charset else 1)
    match kind.name:
        case "decimal":
            whole, digits = divmod(kind.precision - kind.fraction, 9), divmod(kind.fraction, 9)
            return 4 * (whole[0] + digits[0]) + (whole[1] + 1) // 2 + (digits[1] + 1) // 2
        case "bit":
            return (kind.precision + 7) // 8
        case "char" | "binary":
            return characters
        case "varchar" | "varbinary":
            return characters + (1 if characters < 256 else 2)
        case "enum":
            return 1 if len(kind.elements) < 256 else 2
        case "set":
            size = (len(kind.elements) + 7) // 8
            return size if size <= 4 else 8
        case "time" | "datetime" | "timestamp":
            return _BYTES[kind.name] + (kind.fraction + 1) // 2
        case _:
            return _BYTES.get(kind.name, _POINTER)


def check_row(kinds: list[tuple[ColumnType, bool]]) -> None:
    """Raises DdlError for a row that is too long; the types come with whether they can be NULL."""
    nulls = sum(nullable for _, nullable in kinds)
    if sum(row_bytes(kind) for kind, _ in kinds) + (nulls + 8) // 8 > _ROW:
        raise DdlError(f"a row would be longer than {_ROW} bytes")


def _check(good: bool, column: str, fault: str) -> None:
    if not good:
        raise DdlError(f"column {column}: {fault}")


def _integer(kind: ColumnType, column: str) -> ColumnType:
    _check((kind.length or 0) <= 255, column, f"the display width {kind.length} is more than 255")
    return replace(kind, length=kind.length or _WIDTHS[kind.name][kind.unsigned])


def _number(kind: ColumnType, column: str) -> ColumnType:
    length, scale = kind.length, kind.scale
    if kind.name == "decimal":
        _check((length or 0) <= 65, column, f"the precision {length} is more than 65")
        length = length or 10
    elif scale is None and length is not None:
        # FLOAT(p) only chooses the type.
        _check(kind.name == "float", column, "DOUBLE takes two numbers or none")
        _check(length <= 53, column, f"the precision {length} is more than 53")
        return replace(kind, name="float" if length <= 24 else "double", length=None)
    _check((length or 0) <= 255, column, f"the display width {length} is more than 255")
    _check((scale or 0) <= 30, column, f"the scale {scale} is more than 30")
    _check((scale or 0) <= (length or 0), column, f"the scale {scale} is more than the precision {length}")
    return replace(kind, length=length)


def _sized(kind: ColumnType, column: str) -> ColumnType:
    length = kind.length
    match kind.name:
        case "bit":
            _check(length is None or 1 <= length <= 64, column, f"BIT({length}) is not 1 to 64 bits")
            return replace(kind, length=length or 1)
        case "year":
            _check(length in (None, 4), column, f"YEAR({length}) is not YEAR(4)")
            return replace(kind, length=4)
        case "char" | "binary":
            _check(length is None or length <= 255, column, f"the length {length} is more than 255")
            return replace(kind, length=1 if length is None else length)
        case _:
            _check(length is not None, column, f"{kind.name} needs a length")
            most = _ROW // (most_bytes(kind.charset) if kind.charset else 1)
            _check((length or 0) <= most, column, f"the length {length} is more than {most}")
            return kind


def _by_size(kind: ColumnType, column: str) -> ColumnType:
    """TEXT(n) and BLOB(n): the smallest type that holds so many characters or bytes."""
    length = kind.length or 0
    _check(length <= 0xFFFFFFFF, column, f"the length {length} is more than {0xFFFFFFFF}")
    needed = min(length * (most_bytes(kind.charset) if kind.charset else 1), 0xFFFFFFFF)
    size = next(size for most, size in _SIZES if needed <= most)
    return replace(kind, name=f"{size}{kind.name}", length=None)


def _labelled(kind: ColumnType, column: str) -> ColumnType:
    distinct = {folded(label, kind.charset or "binary") for label in kind.elements}
    _check(len(distinct) == len(kind.elements), column, "a label is there twice")
    _check(len(distinct) <= _MOST_LABELS[kind.name], column, f"more than {_MOST_LABELS[kind.name]} labels")
    if kind.name == "set":
        _check(not any("," in label for label in kind.elements), column, "a label of a SET has a comma")
    return kind
