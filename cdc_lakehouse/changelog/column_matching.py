"""Match the columns before and after a schema change, and give them ids, from the source's columns and the statement's
clauses.

The source's columns after the change decide which columns exist; the statement only explains which of them existed
before under another name. Where the source numbers its columns, the numbers decide what the statement does not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.clauses import ColumnDefinition
from cdc_lakehouse.changelog.ddl.lexer import name_value, tokenize
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.defaults import initial_default
from cdc_lakehouse.changelog.mysql_types import LABELS, TEXTS, ColumnType, charset_of, type_change
from cdc_lakehouse.changelog.schema import (
    Column,
    InitialDefault,
    SchemaChange,
    SourceColumn,
    TableForeignKey,
    TableUniqueKey,
)
from cdc_lakehouse.errors import DdlError

_GENERATED: Final = "_ibfk_"
"""Between the table and a number in MySQL's name for a foreign key that has none."""


@dataclass(frozen=True, slots=True)
class MatchedColumns:
    """Columns after a change. `notes` are warnings; `hold` says why the columns cannot be determined."""

    columns: tuple[Column, ...]
    next_id: int
    notes: tuple[str, ...] = ()
    hold: str | None = None


def clauses_of(change: SchemaChange) -> tuple[tuple[ddl.Clause, ...] | None, str | None]:
    """Return the statement's clauses, and the reason where it cannot be parsed. A change without a statement has no
    clauses."""
    return _parsed(change.query, change.backslash_escapes)


@functools.lru_cache(maxsize=4096)
def _parsed(query: str, backslash_escapes: bool) -> tuple[tuple[ddl.Clause, ...] | None, str | None]:
    if not query.strip():
        return (), None
    try:
        return parse(query, backslash_escapes=backslash_escapes), None
    except DdlError as error:
        return None, str(error)


def first_columns(
    shown: Sequence[SourceColumn], clauses: Sequence[ddl.Clause], like: Sequence[Column] = ()
) -> MatchedColumns:
    """Give ids to the columns of a new table, or of one that was unknown until now, as the source lists them. `like`
    are the columns of the table that it was created LIKE."""
    definitions = {column.name.lower(): column for column in _definitions(clauses)}
    models = {column.name.lower(): column for column in like}
    columns = tuple(
        _column(id, column, definitions.get(column.name.lower()), models.get(column.name.lower()), InitialDefault())
        for id, column in enumerate(shown, start=1)
    )
    return MatchedColumns(columns, len(columns) + 1)


def match_columns(
    previous: Sequence[Column], next_id: int, shown: Sequence[SourceColumn], clauses: Sequence[ddl.Clause] | None
) -> MatchedColumns:
    """Match the source's columns after a change (`shown`) to the table's `previous` columns."""
    explained = _explain(previous, clauses or ())
    new_names = {column.name.lower() for column in shown}
    if clauses is None and _ambiguous(previous, shown, new_names):
        return MatchedColumns(
            tuple(previous), next_id, (), "columns went and came, and the statement that would tell a rename from a"
            " drop and an add cannot be understood",
        )  # fmt: skip
    definitions = {column.name.lower(): column for column in _definitions(clauses or (), previous)}
    by_source = {column.source_id: column for column in previous if column.source_id is not None}
    used: set[int] = set()
    notes: list[str] = []
    hold: str | None = None
    columns: list[Column] = []
    for column in shown:
        name = column.name.lower()
        old = explained.names.get(name)
        if name not in explained.added and name not in explained.stated and column.source_id is not None:
            # A name alone is no proof: columns may have exchanged theirs in a statement that is not known.
            old = by_source.get(column.source_id, old)
        if old is not None and old.id in used:
            old = None
        definition = definitions.get(name)
        if old is not None:
            used.add(old.id)
            columns.append(_column(old.id, column, definition, old, old.initial))
            continue
        if name not in explained.added and clauses is not None:
            notes.append(f"column {column.name} appears, though no statement in the log adds it")
        initial, unknown = initial_default(column, definition)
        hold = hold or unknown
        columns.append(_column(next_id, column, definition, None, initial))
        next_id += 1
    lost = [c.name for c in previous if c.id not in used and c.name.lower() not in explained.dropped]
    if lost and clauses is not None:
        notes.append(f"columns {', '.join(lost)} are gone, though no statement in the log drops them")
    return MatchedColumns(tuple(columns), next_id, tuple(notes), hold)


@dataclass(frozen=True, slots=True)
class _Explained:
    names: Mapping[str, Column]
    """New name (lower case) → the column before the change."""
    stated: frozenset[str]
    """New names whose earlier column the statement itself names."""
    added: frozenset[str]
    dropped: frozenset[str]


def _explain(previous: Sequence[Column], clauses: Sequence[ddl.Clause]) -> _Explained:
    """Collect what the clauses do to each column. All old names in a statement are those before the statement
    (MySQL)."""
    renamed: dict[str, str] = {}
    stated: set[str] = set()
    added: set[str] = set()
    dropped: set[str] = set()
    for clause in clauses:
        match clause:
            case ddl.RenameColumn(_, name, new_name):
                renamed[name.lower()] = new_name.lower()
            case ddl.ChangeColumn(_, name, column):
                renamed[name.lower()] = column.name.lower()
            case ddl.ModifyColumn(_, column):
                stated.add(column.name.lower())
            case ddl.AddColumn(_, column):
                added.add(column.name.lower())
            case ddl.DropColumn(_, name):
                dropped.add(name.lower())
            case _:
                pass
    names = {
        renamed.get(column.name.lower(), column.name.lower()): column
        for column in previous
        if column.name.lower() not in dropped
    }
    return _Explained(names, frozenset({*stated, *renamed.values()}), frozenset(added), frozenset(dropped))


def _ambiguous(previous: Sequence[Column], shown: Sequence[SourceColumn], new_names: set[str]) -> bool:
    if all(column.source_id is not None for column in (*previous, *shown)):
        return False
    old_names = {column.name.lower() for column in previous}
    return bool(old_names - new_names) and bool(new_names - old_names)


def _column(
    id: int, column: SourceColumn, definition: ColumnDefinition | None, model: Column | None, initial: InitialDefault
) -> Column:
    """Build the column that the source shows, completed by its definition in the statement, else by the `model`: the
    column before the change, or the one that it was created LIKE."""
    labelled, carried = _completed(column.type, definition, model), _carried(column, definition, model)
    if definition is None:
        computed_as = None if model is None else model.computed_as
    else:
        computed_as = None if definition.stored_as is None else _comparable(definition.stored_as)
    return Column(
        id, column.name, labelled, column.nullable, initial, column.source_id, carried, column.default,
        _comment(definition, model), computed_as,
    )  # fmt: skip


def _comparable(expression: str) -> str:
    """Return an expression in one of its spellings: without comments, quotes of names, letter case and parentheses
    around it."""
    words = [name_value(t).lower() if t.kind in ("word", "name") else t.text for t in tokenize(expression)[1]]
    text = " ".join(words).strip()
    while text.startswith("( ") and text.endswith(" )") and "(" not in text[1:] and ")" not in text[:-1]:
        text = text[2:-2]
    return text


def unlogged(previous: Sequence[Column], columns: Sequence[Column], clauses: Sequence[ddl.Clause]) -> str | None:
    """Return why the rows after the clauses cannot be computed from the rows before them; None where they can.

    The server numbers the rows of a new AUTO_INCREMENT column in an order of its own, and those where an older one is
    NULL. It computes a stored generated column for all rows where the column, its expression, its type, or the type of
    a column that the expression names is new. Rows do not have what was a virtual column."""
    old = {column.id: column for column in previous}
    definitions = {column.name.lower(): column for column in _definitions(clauses, previous)}
    retyped = {
        column.name.lower() for column in columns
        if column.id in old and type_change(old[column.id].type, column.type) != "none"
    }  # fmt: skip
    for column in columns:
        was, name = old.get(column.id), column.name.lower()
        definition = definitions.get(name)
        if definition is not None and definition.auto_increment and (was is None or was.nullable):
            return f"the server numbers its rows in column {column.name}, and the log does not say how"
        words = {name, *(column.computed_as or "").split()}
        is_same = was is not None and was.computed_as == column.computed_as and not words & retyped
        if (column.computed_as is not None and not is_same) or (was is not None and column.carried > was.carried):
            return f"the server computes column {column.name} for all rows, and its values are not in the log"
    return next((clause.reason for clause in clauses if isinstance(clause, ddl.UnloggedRows)), None)


def _comment(definition: ColumnDefinition | None, model: Column | None) -> str | None:
    """Return the column's comment. A definition without a comment removes the earlier comment (MySQL)."""
    if definition is not None:
        return definition.comment or None
    return None if model is None else model.comment


def _carried(column: SourceColumn, definition: ColumnDefinition | None, model: Column | None) -> bool:
    """Whether rows contain the column. Virtual generated columns and the hidden columns of expression indexes are in
    schema files, but never in rows."""
    if column.virtual is not None or column.name.lower().startswith("_v$_"):
        return False
    if definition is not None:
        return definition.generated != "virtual"
    return model is None or model.carried


def _completed(column: ColumnType, definition: ColumnDefinition | None, model: Column | None) -> ColumnType:
    """Add the character set, and the labels of an ENUM or SET, that the source leaves out: from the statement, else
    from the earlier column."""
    if column.charset is None and column.name in TEXTS | LABELS:
        stated = None if definition is None else charset_of(definition.type.charset, definition.collation)
        column = replace(column, charset=stated or (None if model is None else model.type.charset))
    if column.name not in LABELS or column.elements:
        return column
    if definition is not None and definition.type.elements:
        return column.with_elements(definition.type.elements)
    if model is not None and model.type.name == column.name:
        return column.with_elements(model.type.elements)
    return column


def _in_charset(column: ColumnDefinition, charset: str | None) -> ColumnDefinition:
    own = charset_of(column.type.charset, column.collation) or charset
    return replace(column, type=replace(column.type, charset=own))


def _definitions(clauses: Sequence[ddl.Clause], known: Iterable[Column] = ()) -> Iterable[ColumnDefinition]:
    """Yield the definitions that are carried out: not those of `known` columns that are added IF NOT EXISTS."""
    names = {column.name.lower() for column in known}
    for clause in clauses:
        match clause:
            case ddl.CreateTable():
                charset = charset_of(clause.charset, clause.collation)
                yield from (_in_charset(column, charset) for column in clause.columns)
            case ddl.CreateTableAsSelect(definition):
                yield from definition.columns
            case ddl.AddColumn(_, column, _, True) if column.name.lower() in names:
                pass
            case ddl.AddColumn(_, column) | ddl.ModifyColumn(_, column) | ddl.ChangeColumn(_, _, column):
                yield column
            case _:
                pass


def unique_keys_after(
    unique_keys: tuple[TableUniqueKey, ...], columns: Sequence[Column], clauses: Sequence[ddl.Clause]
) -> tuple[TableUniqueKey, ...]:
    """Return the unique keys after the clauses are applied. Keys with prefixes or expressions identify no row and are
    left out. A key loses the columns that are dropped."""
    present = {column.id for column in columns}
    keys = [TableUniqueKey(key.name, tuple(id for id in key.columns if id in present)) for key in unique_keys]
    keys = [key for key in keys if key.columns]
    for clause in clauses:  # A statement drops and renames the keys that were there, wherever that stands in it.
        match clause:
            case ddl.DropIndex(_, name) | ddl.DropConstraint(_, name):
                keys = [key for key in keys if key.name.lower() != name.lower()]
            case ddl.RenameIndex(_, name, new_name):
                keys = [TableUniqueKey(new_name, k.columns) if k.name.lower() == name.lower() else k for k in keys]
            case _:
                pass
    for clause in clauses:
        match clause:
            case ddl.CreateTable():
                for unique in clause.unique_keys:
                    keys += _unique_key(unique, columns, keys)
            case ddl.AddUniqueKey(_, unique):
                keys += _unique_key(unique, columns, keys)
            case ddl.AddColumn(_, column) | ddl.ModifyColumn(_, column) | ddl.ChangeColumn(_, _, column):
                if column.unique:
                    keys += _unique_key(ddl.UniqueKey(None, (ddl.KeyPart(column.name),)), columns, keys)
            case _:
                pass
    return tuple(keys)


def foreign_keys_after(
    keys: Sequence[TableForeignKey], table: str, clauses: Sequence[ddl.Clause]
) -> tuple[TableForeignKey, ...]:
    """Return the foreign keys of a table of that name after the clauses are applied."""
    prefix = f"{table}{_GENERATED}".lower()

    def stored(name: str) -> str:
        folded = name.lower()
        return folded.removeprefix(table.lower()) if folded.startswith(prefix) else folded

    dropped = {stored(each.name) for each in clauses if isinstance(each, ddl.DropForeignKey | ddl.DropConstraint)}
    after = [key for key in keys if key.name not in dropped]
    for clause in clauses:
        match clause:
            case ddl.CreateTable():
                added = clause.foreign_keys
            case ddl.AddForeignKey(_, key):
                added = (key,)
            case ddl.AddColumn(_, column) | ddl.ModifyColumn(_, column) | ddl.ChangeColumn(_, _, column):
                added = () if column.references is None else (column.references,)
            case _:
                added = ()
        for key in added:
            numbers = (each.name.removeprefix(_GENERATED) for each in after if each.name.startswith(_GENERATED))
            last = max((int(number) for number in numbers if number.isdecimal()), default=0)
            name = f"{_GENERATED}{last + 1}" if key.name is None else stored(key.name)
            after.append(TableForeignKey(name, key.actions))
    return tuple(after)


def _unique_key(
    unique: ddl.UniqueKey, columns: Sequence[Column], others: Sequence[TableUniqueKey]
) -> list[TableUniqueKey]:
    """Return a list with the key, named unlike the `others`; an empty list when it does not identify rows or already
    exists."""
    ids = {column.name.lower(): column.id for column in columns}
    if unique.has_expression or any(part.length is not None for part in unique.parts):
        return []
    parts = tuple(ids[name.lower()] for name in unique.columns if name.lower() in ids)
    there = {key.name.lower() for key in others}
    if len(parts) != len(unique.columns) or (unique.name or "").lower() in there:
        return []
    return [TableUniqueKey(unique.name or key_name(unique.columns[0], (key.name for key in others)), parts)]


def key_name(first: str, taken: Iterable[str]) -> str:
    """Return MySQL's name for a key that has none: the name of its first column, then with the suffix _2, _3 …"""
    names = {name.lower() for name in taken}
    own = (first if number == 1 else f"{first}_{number}" for number in itertools.count(1))
    return next(name for name in own if name.lower() not in names)


def handle_key(
    primary: Iterable[int], unique_keys: Sequence[TableUniqueKey], columns: Sequence[Column]
) -> tuple[int, ...]:
    """Return the ids of the columns that identify a row: the primary key, else the shortest unique key without NULL (as
    TiCDC chooses)."""
    key = tuple(primary)
    if key:
        return key
    not_null = {column.id for column in columns if not column.nullable}
    candidates = [unique.columns for unique in unique_keys if not_null.issuperset(unique.columns)]
    return min(candidates, key=len, default=())
