"""Keys of a table while a statement is applied: names, order, and what a server refuses.

The order matters: without a primary key the first unique key that has no NULL stands for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from cdc_lakehouse.changelog.charsets import most_bytes
from cdc_lakehouse.changelog.column_matching import key_name
from cdc_lakehouse.changelog.ddl.definitions import IndexKey, Key, KeyPart, PrimaryKey, UniqueKey
from cdc_lakehouse.changelog.ddl_apply_columns import Drafted, check_name
from cdc_lakehouse.changelog.ddl_column_types import row_bytes
from cdc_lakehouse.changelog.ddl_schema import (
    PRIMARY,
    KeyKind,
    TableColumn,
    TableKey,
    TableKeyPart,
    is_large,
    is_partial,
    is_spatial,
)
from cdc_lakehouse.changelog.mysql_types import BLOBS, LABELS, TEXTS, ColumnType
from cdc_lakehouse.errors import DdlError

_MOST_BYTES: Final = 3072
_MOST_PARTS: Final = 16
_MOST_KEYS: Final = 64
_BEGINNINGS: Final = TEXTS | BLOBS


def kept_keys(
    keys: Sequence[TableKey], before: Mapping[int, TableColumn], columns: Sequence[Drafted]
) -> list[TableKey]:
    """The keys of a table over what is left of their columns; one that loses all of them is gone.

    The server looks for a part's column by the name that it had: a column that is dropped and added again under the
    same name is in the key again.
    """
    kept: list[TableKey] = []
    for key in keys:
        parts = [
            part if part.column is None else _kept_part(part, before[part.column], each)
            for part in key.parts
            if (each := _of_name(part, before, columns)) is not None or part.column is None
        ]
        if parts:
            kept.append(replace(key, parts=tuple(parts)))
    return kept


def _of_name(part: TableKeyPart, before: Mapping[int, TableColumn], columns: Sequence[Drafted]) -> Drafted | None:
    name = "" if part.column is None else before[part.column].name.lower()
    return next((each for each in columns if name == (each.folded if each.was is None else each.was)), None)


def _kept_part(part: TableKeyPart, old: TableColumn, each: Drafted | None) -> TableKeyPart:
    """A beginning stays one as long as the new type has one of that length."""
    if each is None:
        return part
    before, after = old.type, each.column.type
    if is_spatial(after) and not is_spatial(before):
        raise DdlError(f"column {old.name} of a key cannot become {after.name}")
    if each.column.id != old.id:
        # Not the column that it was: the part is as long as before.
        whole = old.type.length if before.name in _BEGINNINGS and not is_large(before) else row_bytes(before)
        length = part.length or whole
        full = after.name in _BEGINNINGS and not is_large(after) and length == after.length
        return TableKeyPart(each.column.id, None if full else _length(length, each.column))
    if before.name in LABELS and after.name in _BEGINNINGS:
        return replace(part, length=_numbers_length(before, after))
    if part.length is None:
        return part
    small = after.length is not None and not is_large(after) and after.length < part.length
    if before.name not in _BEGINNINGS or after.name not in _BEGINNINGS or small or not is_partial(part, before):
        return replace(part, length=None)
    return part


def _numbers_length(before: ColumnType, after: ColumnType) -> int | None:
    """An ENUM or SET in a key is its number; the server takes that many bytes for the length of a text's beginning."""
    characters = [len(label) for label in before.elements]
    printed = max(characters) if before.name == "enum" else sum(characters) + len(characters) - 1
    width, size = most_bytes(before.charset or "binary"), row_bytes(before)
    if printed * width == size:
        return None
    length = size // width
    small = after.length is not None and not is_large(after) and after.length < length
    return None if small or not length else length


def with_new_keys(keys: Sequence[TableKey], new: Sequence[Key], columns: Sequence[Drafted]) -> list[TableKey]:
    """The keys and the new ones, which get their names here. Raises DdlError."""
    if len(keys) + len(new) > _MOST_KEYS + 1:
        raise DdlError(f"a table has at most {_MOST_KEYS} keys")
    found = list(keys)
    by_name = {each.folded: each.column for each in columns}
    for key in new:
        parts = _parts(key, by_name)
        match key:
            case PrimaryKey():
                kind, name = "primary", PRIMARY
                if any(other.kind == "primary" for other in found):
                    raise DdlError("there is a primary key already")
            case UniqueKey():
                kind, name = "unique", _name(key.name, key.parts, found)
            case IndexKey():
                kind, name = key.kind, _name(key.name, key.parts, found)
            case _:
                assert_never(key)
        if any(other.name.lower() == name.lower() for other in found):
            raise DdlError(f"there is a key {name} already")
        found.append(TableKey(name, kind, parts))
    if len(found) > _MOST_KEYS + any(key.kind == "primary" for key in found):
        raise DdlError(f"a table has at most {_MOST_KEYS} keys")
    return found


def _name(said: str | None, parts: Sequence[KeyPart], others: Sequence[TableKey]) -> str:
    if said is not None:
        check_name(said, "key")
        if said.lower() == PRIMARY.lower():
            raise DdlError(f"a key cannot have the name {said}")
        return said
    first = parts[0].column if parts else None
    taken = [other.name for other in others]
    return key_name(first or "functional_index", [*taken, PRIMARY])


def _parts(key: Key, columns: Mapping[str, TableColumn]) -> tuple[TableKeyPart, ...]:
    if len(key.parts) > _MOST_PARTS:
        raise DdlError(f"a key has at most {_MOST_PARTS} parts")
    parts: list[TableKeyPart] = []
    for part in key.parts:
        if part.column is None:
            parts.append(TableKeyPart(None))
            continue
        column = columns.get(part.column.lower())
        if column is None:
            raise DdlError(f"key column {part.column} does not exist")
        if column.id in {other.column for other in parts}:
            raise DdlError(f"column {part.column} is twice in one key")
        # A full-text index has no lengths.
        whole = isinstance(key, IndexKey) and key.kind == "fulltext"
        parts.append(TableKeyPart(column.id, None if whole else _length(part.length, column)))
    return tuple(parts)


def _length(length: int | None, column: TableColumn) -> int | None:
    """The length of a part that is a beginning."""
    kind = column.type
    bytes_of_number = kind.name not in _BEGINNINGS and not is_large(kind) and length == row_bytes(kind)
    if length is None or bytes_of_number:
        return None  # The whole column, or all bytes of a number or the like.
    small = not is_large(kind) and kind.length is not None and kind.length < length
    if length == 0 or kind.name not in _BEGINNINGS or small:
        raise DdlError(f"a key cannot be over the first {length} of column {column.name}")
    return length


def checked_keys(keys: Sequence[TableKey], columns: Sequence[Drafted]) -> tuple[list[Drafted], tuple[TableKey, ...]]:
    """The columns, those of a primary key NOT NULL, and the keys in the server's order. Raises DdlError."""
    primary = {column for key in keys if key.kind == "primary" for column in key.columns}
    for each in columns:
        if each.column.id in primary and each.said_null:
            raise DdlError(f"column {each.column.name}: a column of the primary key cannot be NULL")
        if each.column.id in primary and each.column.virtual:
            raise DdlError(f"column {each.column.name}: a virtual column cannot be in the primary key")
    found = [each.not_null() if each.column.id in primary else each for each in columns]
    by_id = {each.column.id: each.column for each in found}
    for key in keys:
        _check(key, by_id)
    counted = [column for column in by_id.values() if column.auto_increment]
    first = {key.parts[0].column for key in keys if key.kind in ("primary", "unique", "index")}
    if len(counted) > 1 or any(column.id not in first for column in counted):
        raise DdlError("there can be only one AUTO_INCREMENT column, and it must be the first of a key")
    return found, tuple(sorted(keys, key=lambda key: _order(key, by_id)))


def _order(key: TableKey, columns: Mapping[int, TableColumn]) -> tuple[int, bool, bool, bool, bool]:
    """Of the unique keys those without NULL first, the primary one before the others, then those of whole columns."""
    parts = [(part, columns[part.column]) for part in key.parts if part.column is not None]
    nullable = any(column.nullable for _, column in parts)
    partial = any(is_partial(part, column.type) for part, column in parts)
    virtual = any(column.virtual for _, column in parts)
    match key.kind:
        case "primary" | "unique":
            return 0, nullable, key.kind == "unique", partial, virtual
        case "index" | "spatial":
            return 1, False, False, False, False
        case "fulltext":
            return 2, False, False, False, False
        case _:
            assert_never(key.kind)


def _check(key: TableKey, columns: Mapping[int, TableColumn]) -> None:
    total = 0
    spatial = any(part.column is not None and is_spatial(columns[part.column].type) for part in key.parts)
    if len(key.parts) > 1 and (key.kind == "spatial" or (key.kind == "index" and spatial)):
        raise DdlError(f"key {key.name}: a spatial index has one column")
    for part in key.parts:
        if part.column is not None:
            total += _part_bytes(part, columns[part.column], key.kind)
    if total > _MOST_BYTES:
        raise DdlError(f"key {key.name} is longer than {_MOST_BYTES} bytes")


def _part_bytes(part: TableKeyPart, column: TableColumn, kind: KeyKind) -> int:
    own = column.type
    spatial = is_spatial(own)
    if kind == "fulltext":
        if own.name not in TEXTS:
            raise DdlError(f"column {column.name}: {own.name} cannot be in a full-text index")
        return 0
    if kind == "spatial" or (kind == "index" and spatial):
        if not spatial or column.nullable:
            raise DdlError(f"column {column.name}: a spatial index needs geometries that are NOT NULL")
        return 0
    if own.name == "json":
        raise DdlError(f"column {column.name}: JSON cannot be in a key")
    if is_large(own) and part.length is None:
        raise DdlError(f"column {column.name}: a key over {own.name} needs a length")
    if own.name in _BEGINNINGS:
        return (part.length or own.length or 0) * (most_bytes(own.charset) if own.charset else 1)
    return row_bytes(own)
