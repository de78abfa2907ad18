"""CREATE TABLE: MySQL reference manual, "CREATE TABLE Statement", and its LIKE and SELECT forms."""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.columns import read_column
from cdc_lakehouse.changelog.ddl.cursor import Cursor
from cdc_lakehouse.changelog.ddl.keys import read_key_element
from cdc_lakehouse.changelog.ddl.options import read_option
from cdc_lakehouse.changelog.ddl.partitions import read_partition_by
from cdc_lakehouse.changelog.ddl.tokens import Token, name_value

_QUERY_WORDS: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "("})


def read_create_table(cursor: Cursor, *, temporary: bool) -> ddl.Clause:
    """Read the rest of a statement after CREATE TABLE."""
    if_not_exists = cursor.if_not_exists()
    table = cursor.table_name()
    in_parentheses = cursor.accept("(", "LIKE")
    if in_parentheses or cursor.accept("LIKE"):
        like = ddl.CreateTableLike(table, cursor.table_name(), if_not_exists, temporary)
        if in_parentheses:
            cursor.expect(")")
        return like
    columns: list[ddl.ColumnDefinition] = []
    keys: list[ddl.Key | ddl.ForeignKey] = []
    if cursor.at("(") and cursor.next_token.word not in _QUERY_WORDS:
        cursor.enclosed(lambda: _read_element(cursor, columns, keys))
    partitioning, charset, collation, comment, versioned = _read_options(cursor, table)
    primary = next((key for key in keys if isinstance(key, ddl.PrimaryKey)), None)
    unique = tuple(key for key in keys if isinstance(key, ddl.UniqueKey))
    foreign_keys = tuple(key for key in keys if isinstance(key, ddl.ForeignKey))
    created = ddl.CreateTable(
        table, tuple(columns), primary, unique, partitioning, if_not_exists, temporary, charset, comment,
        collation, foreign_keys, versioned or any(column.versioned for column in columns),
    )  # fmt: skip
    start = cursor.position
    if _skip_query(cursor):
        return ddl.CreateTableAsSelect(created, _selected_names(cursor.tokens_from(start)))
    return created


def _read_element(cursor: Cursor, columns: list[ddl.ColumnDefinition], keys: list[ddl.Key | ddl.ForeignKey]) -> None:
    element = read_key_element(cursor)
    if element is None:
        column = read_column(cursor)
        columns.append(column)
        part = (ddl.KeyPart(column.name),)
        keys += [ddl.PrimaryKey(part)] if column.primary_key else []
        keys += [ddl.UniqueKey(None, part)] if column.unique else []
        keys += [] if column.references is None else [column.references]
    elif not isinstance(element, str):
        keys.append(element)


def _read_options(
    cursor: Cursor, table: ddl.TableRef
) -> tuple[ddl.Partitioning | None, str | None, str | None, str | None, bool]:
    """Read the options after the columns; return partitioning, character set, collation, comment, and whether the table
    has system versioning."""
    partitioning = charset = collation = comment = None
    versioned = False
    while True:
        if cursor.accept("PARTITION", "BY"):
            partitioning = read_partition_by(cursor)
        elif cursor.accept("ON", "COMMIT"):
            cursor.expect_any(("DELETE", "PRESERVE"), "DELETE or PRESERVE")
            cursor.expect("ROWS")
        # MySQL 8.0.21 logs CREATE TABLE ... SELECT with this option, and the rows as separate events.
        elif cursor.accept("START", "TRANSACTION"):
            pass
        else:
            separated = cursor.accept(",")
            if cursor.accept("COMMENT"):
                cursor.accept("=")
                comment = cursor.string()
                continue
            option = read_option(cursor, table)
            if isinstance(option, ddl.SetTableCharset):
                charset, collation = option.charset or charset, option.collation or collation
            versioned |= isinstance(option, ddl.UnloggedRows) and option.versioned is True
            if option is None and separated:
                raise cursor.expected("a table option")
            if option is None:
                return partitioning, charset, collation, comment, versioned


# --- The query of CREATE TABLE ... SELECT ---

_MODIFIERS: Final = frozenset({
    "ALL", "DISTINCT", "DISTINCTROW", "HIGH_PRIORITY", "STRAIGHT_JOIN", "SQL_SMALL_RESULT", "SQL_BIG_RESULT",
    "SQL_BUFFER_RESULT", "SQL_NO_CACHE", "SQL_CACHE", "SQL_CALC_FOUND_ROWS",
})  # fmt: skip
_ENDS: Final = frozenset({"FROM", "INTO", "WHERE", "LIMIT", "ORDER", "UNION", "EXCEPT", "INTERSECT", "FOR", ";", ")"})


def _skip_query(cursor: Cursor) -> bool:
    """Skip [IGNORE|REPLACE] [AS] query; return whether there was one."""
    handles_duplicates = cursor.accept_any(("IGNORE", "REPLACE")) is not None
    announced = cursor.accept("AS") or handles_duplicates
    if cursor.token.word in _QUERY_WORDS:
        cursor.skip_rest()
        return True
    if announced:
        raise cursor.expected("a query")
    return False


def _selected_names(query: list[Token]) -> tuple[str, ...] | None:
    """Return the names of a query's columns; None where a star or an expression without an alias stands for one."""
    begin = next((place for place, token in enumerate(query) if token.word not in ("IGNORE", "REPLACE", "AS", "(")), 0)
    if not query or query[begin].word != "SELECT":
        return None
    begin += 1
    while begin < len(query) and query[begin].word in _MODIFIERS:
        begin += 1
    names: list[str] = []
    for item in _items(query[begin:]):
        name = _name(item)
        if name is None:
            return None
        names.append(name)
    return tuple(names)


def _items(tokens: list[Token]) -> list[list[Token]]:
    items: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if depth == 0 and token.word in _ENDS:
            break
        depth += (token.word == "(") - (token.word == ")")
        if depth == 0 and token.word == ",":
            items.append([])
        else:
            items[-1].append(token)
    return items


def _name(item: list[Token]) -> str | None:
    """Return the name in `a`, `t.a`, `… AS a` or `… a`; a word alone may also be a literal, which names itself."""
    if not item or item[-1].kind not in ("word", "name"):
        return None
    plain = all(token.kind in ("word", "name") or token.word == "." for token in item)
    aliased = len(item) > 1 and item[-2].word != "."
    return name_value(item[-1]) if aliased or plain else None
