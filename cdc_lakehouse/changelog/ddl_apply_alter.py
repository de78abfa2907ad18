"""ALTER TABLE: all of its clauses at once, as MySQL does it.

Names in CHANGE, MODIFY, ALTER, RENAME COLUMN and DROP are those before the statement; AFTER and new keys name columns
as they are after it. Each column can be dropped, redefined, or altered, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from cdc_lakehouse.changelog.charsets import charset_named, same_charset
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.definitions import ColumnDefinition, Key, KeyPart, Position, PrimaryKey, UniqueKey
from cdc_lakehouse.changelog.ddl_apply_columns import Drafted, check_name, drafted
from cdc_lakehouse.changelog.ddl_apply_table import assembled
from cdc_lakehouse.changelog.ddl_column_types import converted
from cdc_lakehouse.changelog.ddl_default import default_text, invalid, no_default
from cdc_lakehouse.changelog.ddl_schema import PRIMARY, TableColumn, TableKey, TableSchema, is_large
from cdc_lakehouse.errors import DdlError

Alteration = ddl.SetColumnDefault | ddl.DropColumnDefault | ddl.RenameColumn
_ColumnClause = (
    ddl.AddColumn | ddl.ChangeColumn | ddl.ModifyColumn | ddl.DropColumn | ddl.RenameColumn | ddl.SetColumnDefault
    | ddl.DropColumnDefault
)  # fmt: skip
_KeyClause = (
    ddl.AddPrimaryKey | ddl.AddUniqueKey | ddl.AddIndex | ddl.DropPrimaryKey | ddl.DropIndex | ddl.RenameIndex
    | ddl.DropConstraint
)  # fmt: skip
_FOLDED_PRIMARY: Final = PRIMARY.lower()


@dataclass(slots=True)
class _Placed:
    """A definition; `was` is the column's name before, None for a new one. `column` is what an old one becomes."""

    definition: ColumnDefinition
    was: str | None
    position: Position | None
    column: Drafted | None = None


@dataclass(slots=True)
class _Plan:
    """The clauses by what they do, in their order."""

    drops: list[str] = field(default_factory=list[str])
    definitions: list[_Placed] = field(default_factory=list[_Placed])
    alterations: list[Alteration] = field(default_factory=list[Alteration])
    dropped_keys: list[str] = field(default_factory=list[str])
    renamed_keys: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    new_keys: list[Key] = field(default_factory=list[Key])
    charset: str | None = None
    convert: bool = False

    def define(self, column: ColumnDefinition, was: str | None, position: Position | None) -> None:
        self.definitions.append(_Placed(column, None if was is None else was.lower(), position))
        self.new_keys += _inline_keys(column)

    def set_charset(self, charset: str | None, convert: bool) -> None:
        if self.charset is not None and charset is not None and not same_charset(charset, self.charset):
            raise DdlError(f"the character sets {self.charset} and {charset} in one statement")
        self.charset, self.convert = charset or self.charset, self.convert or convert


def altered(table: TableSchema, clauses: Sequence[ddl.TableClause], database_charset: str) -> TableSchema:
    """The table after the clauses, all of which are of one ALTER TABLE. Raises DdlError."""
    plan = _planned(table, clauses, database_charset)
    charset = plan.charset or table.charset
    forced = plan.charset if plan.convert else None
    columns, next_id = _columns(table, plan, charset, forced)
    before = {column.id: column for column in table.columns}
    left = {each.folded if each.was is None else each.was for each in columns}
    keys = [key for key in table.keys if not key.columns or left & {before[id].name.lower() for id in key.columns}]
    return assembled(columns, _keys(table, plan, keys), before, plan.new_keys, charset, next_id)


def _planned(table: TableSchema, clauses: Sequence[ddl.TableClause], database_charset: str) -> _Plan:
    plan = _Plan()
    for clause in clauses:
        match clause:
            case (
                ddl.AddColumn() | ddl.ChangeColumn() | ddl.ModifyColumn() | ddl.DropColumn() | ddl.RenameColumn()
                | ddl.SetColumnDefault() | ddl.DropColumnDefault()
            ):  # fmt: skip
                _plan_column(plan, table, clause)
            case (
                ddl.AddPrimaryKey() | ddl.AddUniqueKey() | ddl.AddIndex() | ddl.DropPrimaryKey() | ddl.DropIndex()
                | ddl.RenameIndex() | ddl.DropConstraint()
            ):  # fmt: skip
                _plan_key(plan, table, clause)
            case ddl.SetTableCharset(_, named, collation, convert):
                plan.set_charset(charset_named(named, collation) or (database_charset if convert else None), convert)
            case (
                ddl.NoEffect() | ddl.AddPartitions() | ddl.DropPartitions() | ddl.TruncatePartitions()
                | ddl.ExchangePartition() | ddl.ReorganizePartitions() | ddl.CoalescePartitions() | ddl.PartitionBy()
                | ddl.RemovePartitioning()
            ):  # fmt: skip
                pass  # It changes nothing that is kept of a table.
            case _:
                assert_never(clause)
    return plan


def _plan_column(plan: _Plan, table: TableSchema, clause: _ColumnClause) -> None:
    if _is_done(table, clause):
        return
    match clause:
        case ddl.AddColumn(_, column, position):
            plan.define(column, None, position)
        case ddl.ChangeColumn(_, name, column, position):
            plan.define(column, name, position)
        case ddl.ModifyColumn(_, column, position):
            plan.define(column, column.name, position)
        case ddl.DropColumn(_, name):
            plan.drops.append(name.lower())
        case ddl.RenameColumn() | ddl.SetColumnDefault() | ddl.DropColumnDefault():
            plan.alterations.append(clause)
        case _:
            assert_never(clause)


def _is_done(table: TableSchema, clause: _ColumnClause) -> bool:
    """IF EXISTS or IF NOT EXISTS, which MariaDB and TiDB have, leaves nothing to do."""
    match clause:
        case ddl.AddColumn():
            return clause.if_not_exists and table.named(clause.column.name) is not None
        case ddl.ModifyColumn():
            return clause.if_exists and table.named(clause.column.name) is None
        case ddl.ChangeColumn() | ddl.DropColumn() | ddl.RenameColumn():
            return clause.if_exists and table.named(clause.name) is None
        case ddl.SetColumnDefault() | ddl.DropColumnDefault():
            return False
        case _:
            assert_never(clause)


def _plan_key(plan: _Plan, table: TableSchema, clause: _KeyClause) -> None:
    match clause:
        case ddl.AddPrimaryKey(_, key) | ddl.AddUniqueKey(_, key) | ddl.AddIndex(_, key):
            plan.new_keys.append(key)
        case ddl.DropPrimaryKey():
            plan.dropped_keys.append(_FOLDED_PRIMARY)
        case ddl.DropIndex(_, name, lenient):
            plan.dropped_keys += [] if lenient and not table.key(name) else [name.lower()]
        case ddl.DropConstraint(_, name):
            # It may also be a check or a foreign key, neither of which is kept.
            if table.key(name):
                plan.dropped_keys.append(name.lower())
        case ddl.RenameIndex(_, name, new_name):
            plan.renamed_keys.append((name.lower(), new_name))
        case _:
            assert_never(clause)


def _inline_keys(column: ColumnDefinition) -> list[Key]:
    part = (KeyPart(column.name),)
    keys: list[Key] = [PrimaryKey(part)] if column.primary_key else []
    return [*keys, UniqueKey(None, part)] if column.unique else keys


def _unknown(name: str) -> DdlError:
    return DdlError(f"column {name} does not exist")


# --- Columns ---


def _columns(table: TableSchema, plan: _Plan, charset: str, forced: str | None) -> tuple[list[Drafted], int]:
    columns, next_id = _columns_in_place(table, plan, charset, forced), table.next_id
    for placed in plan.definitions:
        column = placed.column
        if column is None:
            if placed.was is not None:
                raise _unknown(placed.was)
            column = drafted(placed.definition, next_id, charset, forced)
            next_id += 1
        elif placed.position is None:
            continue
        else:
            columns.remove(column)
        match placed.position:
            case None:
                columns.append(column)
            case ddl.First():
                columns.insert(0, column)
            case ddl.After(name):
                columns.insert(_place_after(columns, name), column)
    if plan.drops:
        raise DdlError(f"column {plan.drops[0]} does not exist and cannot be dropped")
    if plan.alterations:
        raise _unknown(plan.alterations[0].name)
    return columns, next_id


def _place_after(columns: Sequence[Drafted], name: str) -> int:
    place = next((place for place, each in enumerate(columns, start=1) if each.folded == name.lower()), None)
    if place is None:
        raise _unknown(name)
    return place


def _columns_in_place(table: TableSchema, plan: _Plan, charset: str, forced: str | None) -> list[Drafted]:
    """The old columns that are left, redefined and altered, in their old order; takes from the plan's drops and
    alterations what is done."""
    columns: list[Drafted] = []
    for column in table.columns:
        name = column.name.lower()
        if name in plan.drops:
            plan.drops.remove(name)
            _check_unread(table, column)
            continue
        placed = next((each for each in plan.definitions if each.was == name), None)
        if placed is None:
            kept = column if forced is None else _in_charset(column, forced)
            columns.append(_with_alteration(kept, plan))
            continue
        virtual = placed.definition.generated == "virtual"
        if virtual != column.virtual:
            raise DdlError(f"column {column.name}: a column cannot become virtual, or cease to be")
        placed.column = replace(drafted(placed.definition, column.id, charset, forced), was=name)
        columns.append(placed.column)
    return columns


def _check_unread(table: TableSchema, column: TableColumn) -> None:
    for other in table.columns:
        if other.generation is not None and column.name.lower() in other.generation.reads:
            raise DdlError(f"column {column.name} cannot be dropped: the generated column {other.name} reads it")


def _with_alteration(column: TableColumn, plan: _Plan) -> Drafted:
    """The column after the first alteration that names it; a second one finds no column."""
    alteration = next((each for each in plan.alterations if each.name.lower() == column.name.lower()), None)
    if alteration is None:
        return Drafted(column)
    plan.alterations.remove(alteration)
    match alteration:
        case ddl.RenameColumn(_, _, new_name):
            check_name(new_name, "column")
            return Drafted(replace(column, name=new_name), was=column.name.lower())
        case ddl.DropColumnDefault():
            if is_large(column.type):
                raise no_default(column.type, column.name)
            return Drafted(replace(column, default=None))
        case ddl.SetColumnDefault(_, _, value):
            return Drafted(_with_default(column, value), said_null=isinstance(value, ddl.NullLiteral))


def _with_default(column: TableColumn, value: ddl.Value) -> TableColumn:
    if isinstance(value, ddl.NullLiteral):
        if is_large(column.type):
            raise no_default(column.type, column.name)
        if not column.nullable:
            raise invalid(column.name)
    default = default_text(value, column.type, column.name)
    # The server takes the default of an AUTO_INCREMENT column, and forgets it.
    return column if column.auto_increment else replace(column, default=default)


def _in_charset(column: TableColumn, charset: str) -> TableColumn:
    kind = converted(column.type, charset, column.name)
    became_bytes = column.type.charset not in (None, "binary") and kind.charset in (None, "binary")
    if not became_bytes or column.default is None:
        return replace(column, type=kind)
    return replace(column, type=kind, default=default_text(ddl.TextLiteral(column.default), kind, column.name))


# --- Keys ---


def _keys(table: TableSchema, plan: _Plan, surviving: Sequence[TableKey]) -> list[TableKey]:
    """The old keys that the statement leaves, under their new names; the surviving ones keep a column."""
    keys = list(table.keys)
    for name in plan.dropped_keys:
        left = [key for key in keys if key.name.lower() != name]
        if len(left) == len(keys):
            raise DdlError(f"key {name} does not exist and cannot be dropped")
        keys = left
    # A key that loses all of its columns can be dropped, but not renamed.
    keys = [key for key in keys if key in surviving]
    left_names = {key.name.lower() for key in keys}
    new_names: dict[str, str] = {}
    for name, new_name in plan.renamed_keys:
        check_name(new_name, "key")
        if _FOLDED_PRIMARY in (name, new_name.lower()):
            raise DdlError(f"a key cannot be renamed from {name} to {new_name}")
        if name not in left_names or name in new_names:
            raise DdlError(f"key {name} does not exist")
        new_names[name] = new_name
    renamed = [replace(key, name=new_names.get(key.name.lower(), key.name)) for key in keys]
    if len({key.name.lower() for key in renamed}) < len(renamed):
        raise DdlError("two keys would have one name")
    return renamed
