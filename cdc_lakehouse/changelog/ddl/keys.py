"""Keys, indexes and constraints in DDL text, as elements of CREATE TABLE and after ADD of ALTER TABLE."""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.cursor import Cursor

_CONSTRAINTS: Final = ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK")
_INDEX_WORDS: Final = ("INDEX", "KEY")
# Words that give the kind of an index. INDEX or KEY must follow, except after the reserved ones.
_RESERVED_KINDS: Final = frozenset({"FULLTEXT", "SPATIAL"})
_INDEX_KINDS: Final = _RESERVED_KINDS | {"VECTOR", "COLUMNAR"}
_CREATED_KINDS: Final = _INDEX_KINDS | {"UNIQUE"}


Element = ddl.Key | ddl.ForeignKey | ddl.NoEffectKind
"""A key, or the kind of an index or a constraint that changes no row."""


def read_key_element(cursor: Cursor) -> Element | None:
    """Read a key or a constraint; return None and consume nothing where neither is at the cursor."""
    # MariaDB: a period of the system's time is its row_start and row_end, any other one a check; both change no row.
    if cursor.accept("PERIOD", "FOR") or cursor.accept("PERIOD", "IF", "NOT", "EXISTS", "FOR"):
        cursor.name("a period")
        cursor.parenthesized()
        return "check_constraint"
    symbol = None
    if cursor.accept("CONSTRAINT"):
        cursor.if_not_exists()
        symbol = None if cursor.token.word in _CONSTRAINTS else cursor.name("a constraint")
        if cursor.token.word not in _CONSTRAINTS:
            raise cursor.expected("PRIMARY KEY, UNIQUE, FOREIGN KEY or CHECK")
    match cursor.accept_any(_CONSTRAINTS):
        case "PRIMARY":
            cursor.expect("KEY")
            return ddl.PrimaryKey(_read_index(cursor)[1])
        case "UNIQUE":
            cursor.accept_any(_INDEX_WORDS)
            name, parts = _read_index(cursor)
            return ddl.UniqueKey(symbol if name is None else name, parts)
        case "FOREIGN":
            cursor.expect("KEY")
            name = _read_key_name(cursor)
            _read_key_parts(cursor)
            cursor.expect("REFERENCES")
            return ddl.ForeignKey(symbol or name, read_references(cursor))
        case "CHECK":
            skip_check(cursor)
            return "check_constraint"
        case _:
            pass
    if not _at_index(cursor):
        return None
    cursor.accept_any(_INDEX_KINDS)
    cursor.accept_any(_INDEX_WORDS)
    _read_index(cursor)
    return "add_index"


def _at_index(cursor: Cursor) -> bool:
    word = cursor.token.word
    if word in _INDEX_WORDS or word in _RESERVED_KINDS:
        return True
    return word in _INDEX_KINDS and cursor.next_token.word in _INDEX_WORDS


def added(cursor: Cursor, table: ddl.TableRef, element: Element) -> ddl.Clause:
    """Return the clause that adds the key or constraint just read."""
    match element:
        case ddl.PrimaryKey():
            return ddl.AddPrimaryKey(table, element)
        case ddl.UniqueKey():
            return ddl.AddUniqueKey(table, element)
        case ddl.ForeignKey():
            return ddl.AddForeignKey(table, element)
        case _:
            return cursor.no_effect(table, element)


def read_create_index(cursor: Cursor) -> ddl.Clause | None:
    """Read the rest of a statement after CREATE: [kind] INDEX [IF NOT EXISTS] name [USING type] ON table (parts).

    Returns None and consumes nothing where it is not an index.
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
    parts = _read_key_parts(cursor) + _read_condition(cursor)
    if kind == "UNIQUE":
        return ddl.AddUniqueKey(table, ddl.UniqueKey(name, parts))
    return cursor.no_effect(table, "add_index")


def _read_index(cursor: Cursor) -> tuple[str | None, tuple[ddl.KeyPart, ...]]:
    """Read [IF NOT EXISTS] [name] [USING type] (parts) and options."""
    name = _read_key_name(cursor)
    return name, _read_key_parts(cursor) + _read_condition(cursor)


def _read_key_name(cursor: Cursor) -> str | None:
    cursor.if_not_exists()
    unnamed = cursor.at("(") or cursor.at("USING") or (cursor.at("TYPE") and cursor.next_token.kind == "word")
    name = None if unnamed else cursor.name("an index")
    _skip_index_type(cursor)
    return name


def _skip_index_type(cursor: Cursor) -> None:
    if cursor.accept_any(("USING", "TYPE")):
        cursor.name("an index type")


def _read_key_parts(cursor: Cursor) -> tuple[ddl.KeyPart, ...]:
    """Read columns, column prefixes or expressions, in parentheses."""
    return cursor.enclosed(lambda: _key_part(cursor))


def _key_part(cursor: Cursor) -> ddl.KeyPart:
    if cursor.at("("):
        part = ddl.KeyPart(None, expression=cursor.parenthesized())
    else:
        name = cursor.column_name()
        length = None
        if cursor.accept("("):
            length = cursor.integer()
            cursor.expect(")")
        part = ddl.KeyPart(name, length)
    cursor.accept_any(("ASC", "DESC"))
    return part


def _read_condition(cursor: Cursor) -> tuple[ddl.KeyPart, ...]:
    """Skip the options of a key. TiDB's WHERE becomes a part that is an expression: the key holds only some rows and
    identifies none."""
    cursor.skip_clause("WHERE")
    if not cursor.accept("WHERE"):
        return ()
    condition = cursor.skip_clause()
    if not condition:
        raise cursor.expected("a condition")
    return (ddl.KeyPart(None, expression=condition),)


# --- Constraints, at a column too ---

_CHANGING_ACTIONS: Final = (("CASCADE",), ("SET", "NULL"), ("SET", "DEFAULT"))
_REFERENCE_ACTIONS: Final = (*_CHANGING_ACTIONS, ("RESTRICT",), ("NO", "ACTION"))


def read_references(cursor: Cursor) -> str | None:
    """Read the rest of a foreign key, after REFERENCES; return its actions as `ForeignKey` has them."""
    cursor.table_name()
    if cursor.at("("):
        _read_key_parts(cursor)
    if cursor.accept("MATCH"):
        cursor.expect_any(("FULL", "PARTIAL", "SIMPLE"), "FULL, PARTIAL or SIMPLE")
    actions: list[str] = []
    while cursor.accept("ON"):
        event = cursor.expect_any(("DELETE", "UPDATE"), "DELETE or UPDATE")
        action = next((action for action in _REFERENCE_ACTIONS if cursor.accept(*action)), None)
        if action in _CHANGING_ACTIONS:
            actions.append(" ".join(("ON", event, *action)))
        if action is None:
            raise cursor.expected("RESTRICT, CASCADE, SET NULL, SET DEFAULT or NO ACTION")
    return " ".join(actions) or None


def skip_check(cursor: Cursor) -> None:
    """Skip the rest of a check, after CHECK."""
    cursor.parenthesized()
    if not cursor.accept("NOT", "ENFORCED"):
        cursor.accept("ENFORCED")
