"""Compute the columns of a table after a statement, for logs that have only the statement, without columns and types.

    >>> definition = parse("CREATE TABLE t (id SERIAL PRIMARY KEY, name CHAR(3))")[0]
    >>> [column.name for column in created(definition).columns]
    ['id', 'name']

A statement in a log was accepted by its source, whatever its version, modes and limits are. So nothing is validated
here: a statement is applied as far as possible, and what does not fit (an unknown column) is left out with a note.
Applying the same statement twice leaves the same columns. Names of columns are compared without case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.clauses import ColumnDefinition, Position, Value
from cdc_lakehouse.changelog.ddl.definitions import of_bytes
from cdc_lakehouse.changelog.defaults import default_text
from cdc_lakehouse.changelog.mysql_types import INTEGERS, LABELS, MOST_BYTES, TEXTS, ColumnType, charset_of
from cdc_lakehouse.changelog.schema import SourceColumn, TableVersion
from cdc_lakehouse.errors import DdlError

# Display widths of integers, signed and unsigned (information_schema of MySQL 8.0.12).
_WIDTHS: Final = {"tinyint": (4, 3), "smallint": (6, 5), "mediumint": (9, 8), "int": (11, 10), "bigint": (20, 20)}
# The maximum length of values of TEXT and BLOB types, in bytes.
_SIZES: Final = ((0xFF, "tiny"), (0xFFFF, ""), (0xFFFFFF, "medium"), (0xFFFFFFFF, "long"))
_FLOAT_BITS: Final = 24
# The maximum bytes of a character, for character sets where it is not one (information_schema.character_sets).
_WIDE: Final = {
    **dict.fromkeys(("utf16", "utf16le", "utf32", "gb18030", "utf8mb4"), 4),
    **dict.fromkeys(("utf8", "utf8mb3", "ujis", "eucjpms"), 3),
    **dict.fromkeys(("big5", "sjis", "euckr", "gb2312", "gbk", "ucs2", "cp932"), 2),
}
_USUAL_CHARSET: Final = "utf8mb4"
"""The default character set of servers from MySQL 8.0 on, and of TiDB."""


@dataclass(frozen=True, slots=True)
class AppliedColumns:
    """Columns after a statement, as a schema file would list them. `charset` is the table's default character set, None
    where it is unknown; `notes` say what did not fit."""

    columns: tuple[SourceColumn, ...]
    charset: str | None = None
    notes: tuple[str, ...] = ()


def created(definition: ddl.CreateTable) -> AppliedColumns:
    """Return the columns of a CREATE TABLE that lists them."""
    charset = charset_of(definition.charset, definition.collation)
    columns = [_Draft(_column(each, charset)) for each in definition.columns]
    key = () if definition.primary_key is None else definition.primary_key.columns
    return AppliedColumns(_with_primary_key(columns, key), charset)


def created_from_query(clause: ddl.CreateTableAsSelect) -> AppliedColumns:
    """Return the columns of a CREATE TABLE … SELECT.

    Raises DdlError where the query has columns that the statement does not define: only the server knows their types.
    """
    definition = clause.definition
    defined = {column.name.lower(): column for column in definition.columns}
    unknown = [name for name in clause.selected or () if name.lower() not in defined]
    if clause.selected is None or not defined or unknown:
        raise DdlError("the query has columns whose types are not in the statement")
    selected = {name.lower(): name for name in clause.selected}
    # Columns that the query does not fill come first, the others in the query's order and spelling (MySQL, "CREATE
    # TABLE ... SELECT").
    first = [column for column in definition.columns if column.name.lower() not in selected]
    filled = [replace(defined[folded], name=name) for folded, name in selected.items()]
    return created(replace(definition, columns=(*first, *filled)))


def columns_of(table: TableVersion) -> tuple[SourceColumn, ...]:
    """Return the columns of a table version, as a schema file would list them."""
    return tuple(
        SourceColumn(each.name, each.type, each.nullable, each.id in table.primary_key, each.default, each.source_id)
        for each in table.columns
    )


def altered(table: TableVersion, clauses: Sequence[ddl.Clause]) -> AppliedColumns:
    """Return the columns after one ALTER TABLE (or CREATE or DROP INDEX), given all of its clauses.

    Names in CHANGE, MODIFY, RENAME COLUMN and DROP are those before the statement; AFTER and new keys use the names
    after it (MySQL reference manual, "ALTER TABLE Statement").
    """
    plan = _Plan({column.name.lower() for column in table.columns})
    for clause in clauses:
        plan.leave(clause)
    for clause in clauses:
        plan.add(clause)
    charset = plan.charset or table.charset
    columns = _columns_in_place(table, plan, charset)
    for placed in plan.definitions:
        _place(columns, placed, plan, charset)
    before = [column.name for column in table.columns if column.id in table.primary_key]
    kept = [] if plan.drops_primary_key else _kept_key(before, columns)
    return AppliedColumns(_with_primary_key(columns, plan.primary_key or kept), charset, tuple(plan.notes))


# --- What the clauses of an ALTER TABLE say ---


@dataclass(slots=True)
class _Draft:
    """A column while a statement is applied. `was` is its name before, in lower case; None for a new column."""

    column: SourceColumn
    was: str | None = None

    @property
    def name(self) -> str:
        return self.column.name.lower()


@dataclass(slots=True)
class _Placed:
    """A column definition and its position. `was` is the column's name before; None for a new column."""

    definition: ColumnDefinition
    was: str | None
    position: Position | None
    draft: _Draft | None = None


@dataclass(slots=True)
class _Plan:
    """The clauses by their effect. `known` are the column names before the statement, `left` those that it removes."""

    known: set[str]
    left: set[str] = field(default_factory=set[str])
    drops: set[str] = field(default_factory=set[str])
    renames: dict[str, str] = field(default_factory=dict[str, str])
    defaults: dict[str, Value | None] = field(default_factory=dict[str, Value | None])
    definitions: list[_Placed] = field(default_factory=list[_Placed])
    primary_key: list[str] = field(default_factory=list[str])
    drops_primary_key: bool = False
    charset: str | None = None
    converts: bool = False
    notes: list[str] = field(default_factory=list[str])

    def leave(self, clause: ddl.Clause) -> None:
        match clause:
            case ddl.DropColumn(_, name):
                self.left.add(name.lower())
            case ddl.RenameColumn(_, name, new_name):
                self.left |= {name.lower()} - {new_name.lower()}
            case ddl.ChangeColumn(_, name, column):
                self.left |= {name.lower()} - {column.name.lower()}
            case _:
                pass

    def add(self, clause: ddl.Clause) -> None:
        match clause:
            case ddl.AddColumn(_, column, position, lenient):
                name = column.name.lower()
                there = name in self.known and name not in self.left
                if not (there and lenient):
                    self._define(column, name if there else None, position)
            case ddl.ModifyColumn(_, column, position, lenient):
                self._redefine(column, column.name, position, lenient)
            case ddl.ChangeColumn(_, name, column, position, lenient):
                self._redefine(column, name, position, lenient)
            case ddl.DropColumn(_, name, lenient):
                self.drops.add(name.lower())
                self._note_unknown(name, lenient=lenient)
            case ddl.RenameColumn(_, name, new_name, lenient):
                self.renames[name.lower()] = new_name
                self._note_unknown(name, lenient=lenient or new_name.lower() in self.known)
            case ddl.SetColumnDefault(_, name, default):
                self.defaults[name.lower()] = default
            case ddl.DropColumnDefault(_, name):
                self.defaults[name.lower()] = None
            case _:
                self._add_of_table(clause)

    def _add_of_table(self, clause: ddl.Clause) -> None:
        match clause:
            case ddl.SetTableCharset(_, charset, collation, convert):
                self.charset = charset_of(charset, collation) or self.charset
                self.converts = self.converts or convert
            case ddl.AddPrimaryKey(_, key):
                self.primary_key += key.columns
            case ddl.DropPrimaryKey():
                self.drops_primary_key = True
            case ddl.DropIndex() | ddl.DropConstraint() if clause.drops_primary_key:
                self.drops_primary_key = True
            case _:
                pass  # It changes no column and no primary key.

    def _define(self, column: ColumnDefinition, was: str | None, position: Position | None) -> None:
        self.definitions.append(_Placed(column, was, position))
        if column.primary_key:
            self.primary_key.append(column.name)

    def _redefine(self, column: ColumnDefinition, name: str, position: Position | None, lenient: bool) -> None:
        for was in (name.lower(), column.name.lower()):
            if was in self.known:
                self._define(column, was, position)
                return
        self._note_unknown(name, lenient=lenient)
        if not lenient:
            self._define(column, None, position)

    def _note_unknown(self, name: str, *, lenient: bool) -> None:
        if name.lower() not in self.known and not lenient:
            self.notes.append(f"the statement names column {name}, which is not known")


def _columns_in_place(table: TableVersion, plan: _Plan, charset: str | None) -> list[_Draft]:
    """Return the columns that stay, redefined and renamed, in their old order."""
    placed = {each.was: each for each in plan.definitions if each.was is not None}
    forced = plan.charset if plan.converts else None
    columns: list[_Draft] = []
    for column in columns_of(table):
        name = column.name.lower()
        if name in plan.drops:
            continue
        if name in placed:
            draft = placed[name].draft = _Draft(_column(placed[name].definition, charset, forced), name)
        else:
            kept = column if forced is None else replace(column, type=_converted(column.type, forced))
            if name in plan.defaults:
                kept = replace(kept, default=default_text(plan.defaults[name], kept.type))
            draft = _Draft(replace(kept, name=plan.renames.get(name, column.name)), name)
        columns.append(draft)
    return columns


def _place(columns: list[_Draft], placed: _Placed, plan: _Plan, charset: str | None) -> None:
    """Put a defined column at its position. Without one, an old column stays where it is and a new one goes to the
    end."""
    draft = placed.draft
    if draft is None:
        draft = _Draft(_column(placed.definition, charset, plan.charset if plan.converts else None))
        if any(each.name == draft.name for each in columns):
            return  # Two clauses add it.
    elif placed.position is None:
        return
    else:
        columns.remove(draft)
    match placed.position:
        case None:
            place = len(columns)
        case ddl.First():
            place = 0
        case ddl.After(name):
            places = [place for place, each in enumerate(columns, start=1) if each.name == name.lower()]
            place = places[0] if places else len(columns)
            if not places:
                plan.notes.append(f"the statement names column {name}, which is not known")
    columns.insert(place, draft)


def _kept_key(before: Iterable[str], columns: Sequence[_Draft]) -> list[str]:
    """Return the names of a primary key's columns after a statement. A server looks for their names before it: a column
    that is dropped and added again under its name is in the key again."""
    found: list[str] = []
    for name in before:
        name_now = (each.column.name for each in columns if name.lower() == (each.was or each.name))
        found += [first] if (first := next(name_now, None)) is not None else []
    return found


def _with_primary_key(columns: Sequence[_Draft], key: Iterable[str]) -> tuple[SourceColumn, ...]:
    """Mark the columns of the primary key, and make them NOT NULL, which the statement need not say."""
    names = {name.lower() for name in key}
    return tuple(
        replace(each.column, primary_key=each.name in names, nullable=each.column.nullable and each.name not in names)
        for each in columns
    )


# --- Columns and types as a server keeps them ---


def _column(definition: ColumnDefinition, charset: str | None, forced: str | None = None) -> SourceColumn:
    """Return the column as a table with that default character set has it. `forced` overrides the column's own."""
    own = charset_of(definition.type.charset, definition.collation)
    kind = server_type(definition.type, forced or own or charset)
    nullable = definition.nullable is not False and not definition.auto_increment and not definition.primary_key
    return SourceColumn(definition.name, kind, nullable, default=default_text(definition.default, kind))


def server_type(declared: ColumnType, charset: str | None) -> ColumnType:
    """Return the type with the default widths and sizes that a declaration leaves out, and its character set. Text
    types in the character set binary become binary types (MySQL reference manual, "Data Types")."""
    kind = _in_charset(declared, charset)
    name, length = kind.name, kind.length
    if name in INTEGERS:
        return replace(kind, length=length or _WIDTHS[name][kind.unsigned])
    match name:
        case "decimal":
            return replace(kind, length=length or 10)
        case "float" if kind.scale is None and length is not None:
            # FLOAT(p) only selects the type.
            return replace(kind, name="float" if length <= _FLOAT_BITS else "double", length=None)
        case "char" | "binary" | "bit":
            return replace(kind, length=1 if length is None else length)
        case "year":
            return replace(kind, length=4)
        case "text" | "blob" if length:
            # Select the smallest type that holds this many characters or bytes.
            needed = min(length * _character_bytes(kind), _SIZES[-1][0])
            return replace(kind, name=next(f"{size}{name}" for most, size in _SIZES if needed <= most), length=None)
        case "geometrycollection":
            return replace(kind, name="geomcollection")
        case _:
            return replace(kind, length=None) if name in MOST_BYTES else kind


def _in_charset(kind: ColumnType, charset: str | None) -> ColumnType:
    if charset is None or kind.name not in TEXTS | LABELS:
        return kind
    return of_bytes(kind) if charset == "binary" and kind.name in TEXTS else replace(kind, charset=charset)


def _converted(kind: ColumnType, charset: str) -> ColumnType:
    """Return the type after CONVERT TO CHARACTER SET. A text type grows so that it holds as many characters as before;
    binary types stay as they are."""
    changed = _in_charset(kind, charset)
    if kind.charset == "binary" or changed.name not in MOST_BYTES or kind.name not in TEXTS:
        return kind if kind.charset == "binary" else changed
    characters = MOST_BYTES[kind.name] // _character_bytes(kind)
    needed = min(characters * _character_bytes(changed), _SIZES[-1][0])
    fitting = next(size for most, size in _SIZES if needed <= most)
    grows = _character_bytes(changed) > _character_bytes(kind)
    return replace(changed, name=f"{fitting}text") if grows else changed


def _character_bytes(kind: ColumnType) -> int:
    return _WIDE.get(kind.charset or _USUAL_CHARSET, 1) if kind.name in TEXTS else 1
