"""Keys, indexes and constraints in DDL text, as elements of CREATE TABLE and after ADD of ALTER TABLE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.definitions import IndexKey, IndexKind, KeyPart, PrimaryKey, TableName, UniqueKey


@dataclass(frozen=True, slots=True)
class ForeignKey:
    name: str | None


@dataclass(frozen=True, slots=True)
class Check:
    name: str | None


KeyElement = PrimaryKey | UniqueKey | IndexKey | ForeignKey | Check

_INDEX_WORDS: Final = ("INDEX", "KEY")
# Words that say what kind of index it is. INDEX or KEY must follow, except on the reserved ones.
_RESERVED_KINDS: Final = frozenset({"FULLTEXT", "SPATIAL"})
_INDEX_KINDS: Final = _RESERVED_KINDS | {"VECTOR", "COLUMNAR"}
_CREATED_KINDS: Final = _INDEX_KINDS | {"UNIQUE"}
_KINDS: Final[dict[str, IndexKind]] = {"FULLTEXT": "fulltext", "SPATIAL": "spatial"}


def read_key_element(cursor: Cursor) -> KeyElement | None:
    """A key, an index or a constraint; None, with nothing consumed, where there is none at the cursor."""
    if cursor.accept("CONSTRAINT"):
        cursor.if_not_exists()
        symbol = None if cursor.token.word in _CONSTRAINTS else cursor.name("a constraint")
        word = cursor.expect_any(_CONSTRAINTS, "PRIMARY KEY, UNIQUE, FOREIGN KEY or CHECK")
        return _CONSTRAINTS[word](cursor, symbol)
    if word := cursor.accept_any(_CONSTRAINTS):
        return _CONSTRAINTS[word](cursor, None)
    if _at_index(cursor):
        kind = _KINDS.get(cursor.accept_any(_INDEX_KINDS) or "", "index")
        cursor.accept_any(_INDEX_WORDS)
        return _index(cursor, kind)
    return None


def _at_index(cursor: Cursor) -> bool:
    word = cursor.token.word
    if word in _INDEX_WORDS or word in _RESERVED_KINDS:
        return True
    return word in _INDEX_KINDS and cursor.next_token.word in _INDEX_WORDS


def read_create_index(cursor: Cursor) -> tuple[TableName, UniqueKey | IndexKey] | None:
    """What follows CREATE: [kind] INDEX [IF NOT EXISTS] name [USING type] ON table (parts).

    None, with nothing consumed, where that is no index.
    """
    start = cursor.position
    kind = cursor.accept_any(_CREATED_KINDS)
    if not cursor.accept("INDEX"):
        cursor.position = start
        return None
    cursor.if_not_exists()
    name = cursor.name("an index")
    _skip_index_type(cursor)
    cursor.expect("ON")
    table = cursor.table_name()
    parts = _read_key_parts(cursor)
    skip_index_options(cursor)
    if kind == "UNIQUE":
        return table, UniqueKey(name, parts)
    return table, IndexKey(name, parts, _KINDS.get(kind or "", "index"))


def _index(cursor: Cursor, kind: IndexKind) -> IndexKey:
    name = _key_name(cursor)
    parts = _read_key_parts(cursor)
    skip_index_options(cursor)
    return IndexKey(name, parts, kind)


def _primary(cursor: Cursor, _: str | None) -> PrimaryKey:
    cursor.expect("KEY")
    _key_name(cursor)
    parts = _read_key_parts(cursor)
    skip_index_options(cursor)
    return PrimaryKey(parts)


def _unique(cursor: Cursor, symbol: str | None) -> UniqueKey:
    cursor.accept_any(_INDEX_WORDS)
    name = _key_name(cursor)
    parts = _read_key_parts(cursor)
    skip_index_options(cursor)
    return UniqueKey(symbol if name is None else name, parts)


def _foreign(cursor: Cursor, symbol: str | None) -> ForeignKey:
    cursor.expect("KEY")
    name = _key_name(cursor)
    _read_key_parts(cursor)
    cursor.expect("REFERENCES")
    skip_references(cursor)
    return ForeignKey(name if symbol is None else symbol)


def _check(cursor: Cursor, symbol: str | None) -> Check:
    skip_check(cursor)
    return Check(symbol)


_CONSTRAINTS: Final[dict[str, Callable[[Cursor, str | None], KeyElement]]] = {
    "PRIMARY": _primary,
    "UNIQUE": _unique,
    "FOREIGN": _foreign,
    "CHECK": _check,
}


def _key_name(cursor: Cursor) -> str | None:
    """[IF NOT EXISTS] [name] [USING type]."""
    cursor.if_not_exists()
    unnamed = cursor.at("(") or cursor.at("USING") or (cursor.at("TYPE") and cursor.next_token.kind == "word")
    name = None if unnamed else cursor.name("an index")
    _skip_index_type(cursor)
    return name


def _skip_index_type(cursor: Cursor) -> None:
    if cursor.accept_any(("USING", "TYPE")):
        cursor.name("an index type")


def _read_key_parts(cursor: Cursor) -> tuple[KeyPart, ...]:
    """Columns, beginnings of columns, or expressions, in parentheses."""
    return cursor.enclosed(lambda: _key_part(cursor))


def _key_part(cursor: Cursor) -> KeyPart:
    if cursor.at("("):
        part = KeyPart(None, expression=cursor.parenthesized())
    else:
        name = cursor.column_name()
        length = None
        if cursor.accept("("):
            length = cursor.integer()
            cursor.expect(")")
        part = KeyPart(name, length)
    cursor.accept_any(("ASC", "DESC"))
    return part


# --- What follows a key and says nothing about its columns ---


def skip_index_options(cursor: Cursor) -> None:
    while word := cursor.accept_any(_INDEX_OPTIONS):
        _INDEX_OPTIONS[word](cursor)


def _value(cursor: Cursor) -> None:
    cursor.accept("=")
    cursor.word_or_string("a value")


def _parser(cursor: Cursor) -> None:
    cursor.expect("PARSER")
    cursor.name("a parser")


def _not_ignored(cursor: Cursor) -> None:
    cursor.expect("IGNORED")


def _nothing(_: Cursor) -> None:
    pass


def _pre_split(cursor: Cursor) -> None:
    cursor.accept("=")
    if cursor.at("("):
        cursor.parenthesized()
    else:
        cursor.integer()


def _condition(cursor: Cursor) -> None:
    if not cursor.skip_until((",", ")")):
        raise cursor.expected("a condition")


_INDEX_OPTIONS: Final[dict[str, Callable[[Cursor], None]]] = {
    "KEY_BLOCK_SIZE": _value, "USING": _value, "TYPE": _value, "COMMENT": _value, "WITH": _parser,
    "ENGINE_ATTRIBUTE": _value, "SECONDARY_ENGINE_ATTRIBUTE": _value, "ALGORITHM": _value, "LOCK": _value,
    "VISIBLE": _nothing, "INVISIBLE": _nothing, "IGNORED": _nothing, "NOT": _not_ignored,
    # TiDB
    "CLUSTERED": _nothing, "NONCLUSTERED": _nothing, "GLOBAL": _nothing, "LOCAL": _nothing,
    "PRE_SPLIT_REGIONS": _pre_split, "WHERE": _condition, "ADD_COLUMNAR_REPLICA_ON_DEMAND": _nothing,
}  # fmt: skip

_REFERENCE_ACTIONS: Final = (
    ("RESTRICT",), ("CASCADE",), ("SET", "NULL"), ("SET", "DEFAULT"), ("NO", "ACTION"),
)  # fmt: skip


def skip_references(cursor: Cursor) -> None:
    """The rest of a foreign key, after REFERENCES."""
    cursor.table_name()
    if cursor.at("("):
        _read_key_parts(cursor)
    if cursor.accept("MATCH"):
        cursor.expect_any(("FULL", "PARTIAL", "SIMPLE"), "FULL, PARTIAL or SIMPLE")
    while cursor.accept("ON"):
        cursor.expect_any(("DELETE", "UPDATE"), "DELETE or UPDATE")
        if not any(cursor.accept(*action) for action in _REFERENCE_ACTIONS):
            raise cursor.expected("RESTRICT, CASCADE, SET NULL, SET DEFAULT or NO ACTION")


def skip_check(cursor: Cursor) -> None:
    """The rest of a check, after CHECK."""
    cursor.parenthesized()
    if cursor.at("NOT", "ENFORCED"):
        cursor.expect("NOT", "ENFORCED")
    else:
        cursor.accept("ENFORCED")
