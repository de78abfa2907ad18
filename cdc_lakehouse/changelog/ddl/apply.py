"""The columns and keys of a table after a statement: what its clauses do to each column, and which one it was before.

    >>> definition = parse("CREATE TABLE t (id SERIAL PRIMARY KEY, name CHAR(3))")[0]
    >>> [column.name for column in altered(None, definition.clauses).columns]
    ['id', 'name']

`altered` carries out the clauses. Where the log has the text of a statement alone, its columns are those after the
statement. Where the source lists the columns (schema files), these decide which columns exist, and `altered` explains
which of them existed before under another name; where the source numbers its columns, the numbers decide what the
statement does not.

A statement in a log was accepted by its source, whatever its version, modes and limits are. So nothing is validated
here: a statement is applied as far as possible, and what does not fit (an unknown column) is left out with a note.
Applying the same statement twice leaves the same columns. Names of columns are compared without case.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cdc_lakehouse.changelog import mysql_types as mysql
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl import partitions
from cdc_lakehouse.changelog.ddl.lexer import name_value, tokenize
from cdc_lakehouse.changelog.defaults import default_text, initial_default
from cdc_lakehouse.changelog.schema import Column, Effect, SourceColumn, TableUniqueKey, TableVersion

# Display widths of integers, signed and unsigned (information_schema of MySQL 8.0.12).
_WIDTHS: Final = {"tinyint": (4, 3), "smallint": (6, 5), "mediumint": (9, 8), "int": (11, 10), "bigint": (20, 20)}
_FLOAT_BITS: Final = 24
# The maximum bytes of a character, for character sets where it is not one (information_schema.character_sets).
_WIDE: Final = {
    **dict.fromkeys(("utf16", "utf16le", "utf32", "gb18030", "utf8mb4"), 4),
    **dict.fromkeys(("utf8", "utf8mb3", "ujis", "eucjpms"), 3),
    **dict.fromkeys(("big5", "sjis", "euckr", "gb2312", "gbk", "ucs2", "cp932"), 2),
}
_USUAL_CHARSET: Final = "utf8mb4"
"""The default character set of servers from MySQL 8.0 on, and of TiDB."""
_GENERATED: Final = "_ibfk_"
"""Between the table and a number in MySQL's name for a foreign key that has none."""
_UNCLEAR: Final = (
    "columns went and came, and the statement that would tell a rename from a drop and an add cannot be understood"
)


def drops_primary_key(clauses: Iterable[ddl.Clause]) -> bool:
    return any(isinstance(each, ddl.DropKey) and each.drops_primary_key for each in clauses)


@dataclass(eq=False, slots=True)
class AlteredColumn:
    """A column after a statement, as a schema file would list it. `was` is the column before, None for a new one;
    `definition` is its declaration in the statement. `is_added` says that the statement adds it, `is_stated` that it
    names the earlier column."""

    column: SourceColumn
    was: Column | None = None
    definition: ddl.ColumnDefinition | None = None
    is_added: bool = False
    is_stated: bool = False

    @property
    def name(self) -> str:
        return self.column.name.lower()


@dataclass(slots=True)
class Altered:
    """The columns after a statement. `dropped` are the names of those that it drops; `charset` is the table's default
    character set, None where it is unknown; `notes` say what did not fit."""

    after: list[AlteredColumn]
    charset: str | None
    dropped: set[str] = field(default_factory=set[str])
    notes: list[str] = field(default_factory=list[str])

    @property
    def columns(self) -> tuple[SourceColumn, ...]:
        return tuple(each.column for each in self.after)


def altered(table: TableVersion | None, clauses: Sequence[ddl.Clause]) -> Altered:
    """Return the columns after one ALTER TABLE (or CREATE or DROP INDEX), given all of its clauses. A table of None has
    none yet.

    Names in CHANGE, MODIFY, RENAME COLUMN and DROP are those before the statement; AFTER and new keys use the names
    after it (MySQL reference manual, "ALTER TABLE Statement").
    """
    charsets = [clause for clause in clauses if isinstance(clause, ddl.SetTableCharset)]
    charset = next((clause.charset for clause in reversed(charsets) if clause.charset), None)
    forced = charset if any(clause.convert for clause in charsets) else None
    before: dict[str, AlteredColumn] = {}
    for column, was in () if table is None else zip(table.source_columns, table.columns, strict=True):
        kept = column if forced is None else replace(column, type=_converted(column.type, forced))
        before[was.name.lower()] = AlteredColumn(kept, was)
    found = Altered([], charset if charset or table is None else table.charset)
    defined: list[tuple[AlteredColumn, str | None]] = []
    added = [clause for clause in clauses if isinstance(clause, ddl.AddKey)]
    key = [name for each in added if each.kind == "add_primary_key" for name in each.columns]
    # The names before the statement that no column has after it.
    left = {
        clause.name.lower()
        for clause in clauses
        if isinstance(clause, ddl.DropColumn)
        or (isinstance(clause, ddl.RenameColumn) and clause.new_name.lower() != clause.name.lower())
        or (isinstance(clause, ddl.ModifyColumn) and clause.column.name.lower() != clause.name.lower())
    }

    def known(name: str, *, lenient: bool) -> AlteredColumn | None:
        if name.lower() not in before and not lenient:
            found.notes.append(f"the statement names column {name}, which is not known")
        return before.get(name.lower())

    def define(column: AlteredColumn | None, definition: ddl.ColumnDefinition, position: str | None) -> AlteredColumn:
        kind = server_type(definition.type, forced or definition.type.charset or found.charset)
        nullable = definition.nullable is not False and not definition.auto_increment
        source = SourceColumn(definition.name, kind, nullable, default=default_text(definition.default, kind))
        column = column or AlteredColumn(source)
        column.column, column.definition = source, definition
        defined.append((column, position))
        key.extend([definition.name] * definition.primary_key)
        return column

    for clause in clauses:
        match clause:
            case ddl.AddColumn(_, definition, position, lenient):
                name = definition.name.lower()
                column = None if name in left else before.get(name)
                if column is None or not lenient:
                    column = define(column, definition, position)
                column.is_added = True
            case ddl.ModifyColumn(_, name, definition, position, lenient):
                column = before.get(name.lower()) or before.get(definition.name.lower())
                if column is not None or known(name, lenient=lenient) or not lenient:
                    define(column, definition, position).is_stated = True
            case ddl.DropColumn(_, name, lenient):
                found.dropped.add(name.lower())
                known(name, lenient=lenient)
            case ddl.RenameColumn(_, name, new_name, lenient):
                if column := known(name, lenient=lenient or new_name.lower() in before):
                    column.column, column.is_stated = replace(column.column, name=new_name), True
            case ddl.SetColumnDefault(_, name, default):
                if (column := before.get(name.lower())) and column.definition is None:
                    column.column = replace(column.column, default=default_text(default, column.column.type))
            case _:
                pass  # It changes no column.
    found.after = [column for name, column in before.items() if name not in found.dropped]
    for column, position in defined:
        _place(found, column, position)
    if not key and not drops_primary_key(clauses):
        # A server looks for a key's names before the statement: a column that is dropped and added again under its name
        # is in the key again.
        for name in [name for name, each in before.items() if each.was and table and each.was.id in table.primary_key]:
            same = [each for each in found.after if (each.was.name.lower() if each.was else each.name) == name]
            key += [each.name for each in same[:1]]
    names = {name.lower() for name in key}
    for each in found.after:  # The columns of the primary key are NOT NULL, which the statement need not say.
        nullable = each.column.nullable and each.name not in names
        each.column = replace(each.column, primary_key=each.name in names, nullable=nullable)
    return found


def _place(found: Altered, column: AlteredColumn, position: str | None) -> None:
    """Put a defined column at its position. Without one, an old column stays where it is and a new one goes to the
    end."""
    if column in found.after:
        if position is None:
            return
        found.after.remove(column)
    else:
        column.was = None
        if any(each.name == column.name for each in found.after):
            return  # Two clauses add it.
    place = 0 if position == ddl.FIRST else len(found.after)
    if position:
        places = [place for place, each in enumerate(found.after, start=1) if each.name == position.lower()]
        place = places[0] if places else place
        if not places:
            found.notes.append(f"the statement names column {position}, which is not known")
    found.after.insert(place, column)


def server_type(declared: mysql.ColumnType, charset: str | None) -> mysql.ColumnType:
    """Return the type with the default widths and sizes that a declaration leaves out, and its character set. Text
    types in the character set binary become binary types (MySQL reference manual, "Data Types")."""
    kind = _in_charset(declared, charset)
    name, length = kind.name, kind.length
    if name in mysql.INTEGERS:
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
            return _smallest(kind, name, length)
        case "geometrycollection":
            return replace(kind, name="geomcollection")
        case _:
            return replace(kind, length=None) if name in mysql.MOST_BYTES else kind


def _smallest(kind: mysql.ColumnType, family: str, characters: int) -> mysql.ColumnType:
    """Return the smallest TEXT or BLOB type that holds as many characters or bytes."""
    needed = min(characters * _character_bytes(kind), mysql.MOST_BYTES[f"long{family}"])
    fitting = (name for name, most in mysql.MOST_BYTES.items() if name.endswith(family) and needed <= most)
    return replace(kind, name=next(fitting), length=None)


def _in_charset(kind: mysql.ColumnType, charset: str | None) -> mysql.ColumnType:
    if charset is None or kind.name not in mysql.TEXTS | mysql.LABELS:
        return kind
    return mysql.of_bytes(kind) if charset == "binary" and kind.name in mysql.TEXTS else replace(kind, charset=charset)


def _converted(kind: mysql.ColumnType, charset: str) -> mysql.ColumnType:
    """Return the type after CONVERT TO CHARACTER SET. A text type grows so that it holds as many characters as before;
    binary types stay as they are."""
    changed, before = _in_charset(kind, charset), _character_bytes(kind)
    if kind.charset == "binary":
        return kind
    if changed.name not in mysql.MOST_BYTES or kind.name not in mysql.TEXTS or _character_bytes(changed) <= before:
        return changed
    return _smallest(changed, "text", mysql.MOST_BYTES[kind.name] // before)


def _character_bytes(kind: mysql.ColumnType) -> int:
    return _WIDE.get(kind.charset or _USUAL_CHARSET, 1) if kind.name in mysql.TEXTS else 1


def table_after(
    previous: TableVersion, clauses: Sequence[ddl.Clause], shown: Sequence[SourceColumn] | None = None, *,
    is_new: bool = False, is_understood: bool = True, drops_key: bool = False,
) -> TableVersion:  # fmt: skip
    """Return a table after a statement: its columns, keys, partitions and character set, the effect on its rows, a
    `note` with warnings, and in `hold` why its rows or its columns cannot be determined.

    `shown` are the columns as the source lists them, None where the clauses alone say which they are. A new table
    (`is_new`) has no older rows. `drops_key` says that the primary key goes, whatever the clauses are."""
    after = altered(previous, clauses)
    own_notes = after.notes if shown is None else []
    shown = after.columns if shown is None else shown
    names, old_names = ({each.name.lower() for each in columns} for columns in (shown, previous.columns))
    numbered = all(column.source_id is not None for column in (*previous.columns, *shown))
    is_unclear = not (is_new or is_understood or numbered) and old_names - names and names - old_names
    hold = _UNCLEAR if is_unclear else None
    explained = {each.name: each for each in after.after}
    by_source = {column.source_id: column for column in previous.columns if column.source_id is not None}
    columns: list[Column] = []
    next_id, used, notes = previous.next_id, set[int](), list[str]()
    for column in shown:
        known = explained.get(column.name.lower()) or AlteredColumn(column)
        old = known.was
        if column.source_id is not None and not (known.is_added or known.is_stated):
            # A name alone is no proof: columns may have exchanged theirs in a statement that is not known.
            old = by_source.get(column.source_id, old)
        if old is not None and old.id not in used:
            used.add(old.id)
            columns.append(_column(old.id, column, known, old, old.initial))
            continue
        initial = None
        if not is_new:
            if is_understood and not known.is_added:
                notes.append(f"column {column.name} appears, though no statement in the log adds it")
            initial, unknown = initial_default(column, known.definition)
            hold = hold or unknown
        columns.append(_column(next_id, column, known, None, initial))
        next_id += 1
    if hold is not None and not is_understood:
        return replace(previous, effect="hold", note=None, hold=hold)
    lost = [each.name for each in previous.columns if each.id not in used and each.name.lower() not in after.dropped]
    if lost and is_understood and not is_new:
        notes.append(f"columns {', '.join(lost)} are gone, though no statement in the log drops them")
    unique_keys = _unique_keys_after(previous.unique_keys, columns, clauses)
    flagged = {column.name for column in shown if column.primary_key}
    primary_key = tuple(column.id for column in columns if column.name in flagged)
    if not (primary_key or drops_key or drops_primary_key(clauses)):
        # Some schema files leave the primary key out.
        primary_key = tuple(id for id in previous.primary_key if any(column.id == id for column in columns))
    not_null = {column.id for column in columns if not column.nullable}
    candidates = [unique.columns for unique in unique_keys if not_null.issuperset(unique.columns)]
    versioned = (each.versioned for each in clauses if isinstance(each, ddl.OtherClause))
    before = {column.id: column for column in previous.columns}
    stayed = [each for each in columns if each.id in before]
    retyped = {each.id: mysql.type_change(before[each.id].type, each.type) for each in stayed}
    hold = hold or (None if is_new else _unlogged(before, columns, retyped, after, clauses))
    same = [(each.id, each.name) for each in previous.columns] == [(each.id, each.name) for each in columns]
    effect: Effect = "none" if same and "widen" not in retyped.values() else "evolve"
    return replace(
        previous,
        effect="hold" if hold is not None else "rewrite" if "convert" in retyped.values() else effect,
        columns=tuple(columns),
        next_id=next_id,
        primary_key=primary_key,
        # The primary key, else the shortest unique key without NULL, as TiCDC chooses.
        key=primary_key or min(candidates, key=len, default=()),
        unique_keys=unique_keys,
        foreign_keys=_foreign_keys_after(previous.foreign_keys, previous.name.table, clauses),
        partitioning=partitions.after(previous.partitioning, clauses),
        versioned=[previous.versioned, *(each for each in versioned if each is not None)][-1],
        charset=after.charset,
        note="; ".join([*notes, *own_notes]) or None,
        hold=hold,
    )


def _column(id: int, column: SourceColumn, known: AlteredColumn, model: Column | None, initial: str | None) -> Column:
    """Build the column that the source shows, completed by its definition in the statement, else by the `model`: the
    column before the change, or the one that it was created LIKE."""
    definition, kind = known.definition, column.type
    # Virtual generated columns and the hidden columns of expression indexes are in schema files, but never in rows.
    is_carried = column.virtual is None and not column.name.lower().startswith("_v$_")
    comment, computed_as, elements, charset = None, None, (), None
    if definition is not None:
        # A definition without a comment removes the earlier comment (MySQL).
        comment, elements, charset = definition.comment or None, definition.type.elements, known.column.type.charset
        is_carried &= not definition.virtual
        computed_as = None if definition.stored_as is None else _comparable(definition.stored_as)
    elif model is not None:
        comment, computed_as, is_carried = model.comment, model.computed_as, is_carried and model.carried
    if model is not None:
        charset = charset or model.type.charset
        elements = elements or (model.type.elements if model.type.name == kind.name else ())
    if kind.charset is None and kind.name in mysql.TEXTS | mysql.LABELS:
        kind = replace(kind, charset=charset)
    if kind.name in mysql.LABELS and not kind.elements:
        kind = replace(kind, elements=elements)
    return Column(
        id, column.name, kind, column.nullable, initial, column.source_id, is_carried, column.default, comment,
        computed_as,
    )  # fmt: skip


def _comparable(expression: str) -> str:
    """Return an expression in one of its spellings: without comments, quotes of names, letter case and parentheses
    around it."""
    words = [name_value(t).lower() if t.kind in ("word", "name") else t.text for t in tokenize(expression)[1]]
    text = " ".join(words).strip()
    while text.startswith("( ") and text.endswith(" )") and "(" not in text[1:] and ")" not in text[:-1]:
        text = text[2:-2]
    return text


def _unlogged(
    old: Mapping[int, Column], columns: Sequence[Column], retyped: Mapping[int, str], after: Altered,
    clauses: Sequence[ddl.Clause],
) -> str | None:  # fmt: skip
    """Return why the rows after the clauses cannot be computed from the rows before them; None where they can. `old`
    are the earlier columns by their ids, `retyped` says how the types of those that stay change.

    The server numbers the rows of a new AUTO_INCREMENT column in an order of its own, and those where an older one is
    NULL. It computes a stored generated column for all rows where the column, its expression, its type, or the type of
    a column that the expression names is new. Rows do not have what was a virtual column."""
    definitions = {each.name: each.definition for each in after.after}
    other_types = {each.name.lower() for each in columns if retyped.get(each.id, "none") != "none"}
    for column in columns:
        was, name = old.get(column.id), column.name.lower()
        definition = definitions.get(name)
        if definition is not None and definition.auto_increment and (was is None or was.nullable):
            return f"the server numbers its rows in column {column.name}, and the log does not say how"
        words = {name, *(column.computed_as or "").split()}
        is_same = was is not None and was.computed_as == column.computed_as and not words & other_types
        if (column.computed_as is not None and not is_same) or (was is not None and column.carried > was.carried):
            return f"the server computes column {column.name} for all rows, and its values are not in the log"
    others = (clause.unlogged for clause in clauses if isinstance(clause, ddl.OtherClause))
    return next(filter(None, others), None)


def _unique_keys_after(
    unique_keys: tuple[TableUniqueKey, ...], columns: Sequence[Column], clauses: Sequence[ddl.Clause]
) -> tuple[TableUniqueKey, ...]:
    """Return the unique keys after the clauses are applied. Keys with prefixes or expressions identify no row and are
    left out. A key loses the columns that are dropped."""
    present, ids = {column.id for column in columns}, {column.name.lower(): column.id for column in columns}
    keys = [TableUniqueKey(key.name, tuple(id for id in key.columns if id in present)) for key in unique_keys]
    keys = [key for key in keys if key.columns]
    for clause in clauses:  # A statement drops and renames the keys that were there, wherever that stands in it.
        match clause:
            case ddl.DropKey(_, "drop_index" | "check_constraint", name):
                keys = [key for key in keys if key.name.lower() != name.lower()]
            case ddl.RenameIndex(_, name, new_name):
                keys = [TableUniqueKey(new_name, k.columns) if k.name.lower() == name.lower() else k for k in keys]
            case _:
                pass
    for unique in ddl.added_keys(clauses):
        if not isinstance(unique, ddl.AddKey) or unique.kind != "add_index":
            continue
        identifies = not unique.has_expression and all(part.length is None for part in unique.parts)
        parts = tuple(ids[name.lower()] for name in unique.columns if name.lower() in ids)
        there = {key.name.lower() for key in keys}
        if identifies and len(parts) == len(unique.columns) and (unique.name or "").lower() not in there:
            # MySQL names a key that has no name after its first column, then with the suffix _2, _3 …
            own = (f"{unique.columns[0]}{'' if number == 1 else f'_{number}'}" for number in itertools.count(1))
            name = unique.name or next(name for name in own if name.lower() not in there)
            keys.append(TableUniqueKey(name, parts))
    return tuple(keys)


def _foreign_keys_after(
    keys: Sequence[ddl.ForeignKey], table: str, clauses: Sequence[ddl.Clause]
) -> tuple[ddl.ForeignKey, ...]:
    prefix = f"{table}{_GENERATED}".lower()

    def stored(name: str) -> str:
        folded = name.lower()
        return folded.removeprefix(table.lower()) if folded.startswith(prefix) else folded

    dropped = {
        stored(each.name) for each in clauses
        if isinstance(each, ddl.DropKey) and each.kind in ("foreign_key", "check_constraint")
    }  # fmt: skip
    after = [key for key in keys if key.name not in dropped]
    for key in [each.key for each in ddl.added_keys(clauses) if isinstance(each, ddl.AddForeignKey)]:
        generated = [each.name for each in after if each.name is not None and each.name.startswith(_GENERATED)]
        numbers = (name.removeprefix(_GENERATED) for name in generated)
        last = max((int(number) for number in numbers if number.isdecimal()), default=0)
        name = f"{_GENERATED}{last + 1}" if key.name is None else stored(key.name)
        after.append(ddl.ForeignKey(name, key.actions))
    return tuple(after)
