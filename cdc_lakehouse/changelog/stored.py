"""The stored form of table versions and schema changes: JSON texts in `schema_history`, documented in docs/tables.md.

Names of keys and kinds are literals of this module: what is stored does not change when a class or a field is renamed.
A value that is None, False or empty is left out. `format` is the number of the form:

- 1 (without `format`): every value is written, and parts of a partitioning say their kind in `is`;
- 2: this one.

Every form is read, the newest is written. Raise the number when the meaning of a key changes; a new key that may be
left out needs no new number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from cdc_lakehouse.changelog.ddl.clauses import (
    BoundValue,
    BytesLiteral,
    DefaultValue,
    Expression,
    InValues,
    LessThan,
    MaxValue,
    NullLiteral,
    NumberLiteral,
    Partition,
    Partitioning,
    TextLiteral,
)
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import (
    ChangeKind,
    Column,
    InitialDefault,
    SchemaChange,
    SourceColumn,
    Swap,
    TableName,
    TableVersion,
    UniqueKey,
)
from cdc_lakehouse.errors import StoredFormError

FORMAT: Final = 2
_FURTHER_TABLE: Final = re.compile(r"#[1-9][0-9]*$")
_KINDS_OF_NUMBERS: Final[Mapping[Any, ChangeKind]] = {0: "columns", -1: "repeated", -2: "contradiction"}

Json = Mapping[str, Any]


def version_to_json(version: TableVersion) -> str:
    """A row's `definition`."""
    swap, previous, partitioning = version.swap, version.previous_name, version.partitioning
    return _text({
        "commit_ts": version.commit_ts,
        "name": _name(version.name),
        "incarnation": version.incarnation,
        "kind": version.kind,
        "effect": version.effect,
        "query": version.query,
        "origin": version.origin,
        "columns": [_column(column) for column in version.columns],
        "key": list(version.key),
        "unique_keys": [{"name": key.name, "columns": list(key.columns)} for key in version.unique_keys],
        "next_id": version.next_id,
        "partitioning": None if partitioning is None else _partitioning(partitioning),
        "emptied": list(version.emptied),
        "swap": None
        if swap is None
        else {"partitioned": swap.partitioned, "partition": swap.partition, "plain": swap.plain},
        "previous_name": None if previous is None else _name(previous),
        "since": version.since,
        "note": version.note,
        "hold": version.hold,
        "primary_key": list(version.primary_key),
        "charset": version.charset,
    })  # fmt: skip


def version_from_json(text: str) -> TableVersion:
    """Raises `StoredFormError` when newer code wrote it."""
    stored = _fields(text)
    swap, previous = stored.get("swap"), stored.get("previous_name")
    key, unique_keys = stored.get("key", []), stored.get("unique_keys", [])
    # Left out where it is none, and by releases that had no such key: then it is what no unique key is.
    primary_key = stored.get("primary_key", [] if key in [unique["columns"] for unique in unique_keys] else key)
    return TableVersion(
        commit_ts=stored["commit_ts"],
        name=_name_of(stored["name"]),
        incarnation=stored.get("incarnation", ""),
        kind=stored.get("kind", ""),
        effect=stored["effect"],
        query=stored.get("query", ""),
        origin=stored.get("origin", ""),
        columns=tuple(_column_of(column) for column in stored.get("columns", ())),
        key=tuple(key),
        unique_keys=tuple(UniqueKey(key["name"], tuple(key["columns"])) for key in unique_keys),
        next_id=stored["next_id"],
        partitioning=_partitioning_of(stored.get("partitioning")),
        emptied=tuple(stored.get("emptied", ())),
        swap=None if swap is None else Swap(swap["partitioned"], swap["partition"], swap["plain"]),
        previous_name=None if previous is None else _name_of(previous),
        since=stored["since"],
        note=stored.get("note"),
        hold=stored.get("hold"),
        primary_key=tuple(primary_key),
        charset=stored.get("charset"),
    )


def change_to_json(change: SchemaChange) -> str:
    """A row's `change`."""
    return _text({
        "commit_ts": change.commit_ts,
        "database": change.database,
        "table": change.table,
        "action": change.action,
        "kind": change.kind,
        "query": change.query,
        "columns": [
            _shortened({
                "name": column.name,
                "type": _type(column.type),
                "nullable": column.nullable,
                "primary_key": column.primary_key,
                "default": column.default,
                "source_id": column.source_id,
                "virtual": column.virtual,
            })
            for column in change.columns
        ],
        "origin": change.origin,
        "backslash_escapes": change.backslash_escapes,
        "fault": change.fault,
    })  # fmt: skip


def change_from_json(text: str) -> SchemaChange:
    """Raises `StoredFormError` when newer code wrote it."""
    stored = _fields(text)
    action = stored.get("action")
    kind: ChangeKind | None = stored.get("kind")
    if kind is None:
        # Of releases that had numbers of their own beside TiDB's, and for a statement's text a change of each table
        # that it names. The first of these is replaced by the text at the next run; the others have nothing to add.
        kind = "repeated" if _FURTHER_TABLE.search(stored["origin"]) else _KINDS_OF_NUMBERS.get(action, "statement")
        action = action if action is not None and action >= 0 else None
    return SchemaChange(
        commit_ts=stored["commit_ts"],
        database=stored.get("database", ""),
        table=stored.get("table", ""),
        action=action,
        query=stored.get("query", ""),
        columns=tuple(
            SourceColumn(
                name=column["name"],
                type=_type_of(column["type"]),
                nullable=column.get("nullable", False),
                primary_key=column.get("primary_key", False),
                default=column.get("default"),
                source_id=column.get("source_id"),
                virtual=column.get("virtual"),
            )
            for column in stored.get("columns", ())
        ),
        origin=stored.get("origin", ""),
        backslash_escapes=stored.get("backslash_escapes", False),
        fault=stored.get("fault"),
        kind=kind,
    )


def _text(fields: Json) -> str:
    return json.dumps({"format": FORMAT, **_shortened(fields)}, ensure_ascii=False)


def _fields(text: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(text)
    if (number := stored.get("format", 1)) > FORMAT:
        raise StoredFormError(
            f"the schema history was written in form {number}, and this release reads those up to {FORMAT}",
            advice="run the newer release of cdc_lakehouse that wrote it",
        )
    return stored


def _shortened(fields: Json) -> dict[str, Any]:
    """Without what is None, False or empty. A number is kept: 0 digits are not the same as none said."""
    return {key: value for key, value in fields.items() if value is not None and value is not False and value != []}


def _name(name: TableName) -> Json:
    return {"database": name.database, "table": name.table}


def _name_of(stored: Json) -> TableName:
    return TableName(stored["database"], stored["table"])


def _column(column: Column) -> Json:
    return _shortened({
        "id": column.id,
        "name": column.name,
        "type": _type(column.type),
        "nullable": column.nullable,
        "initial": None if column.initial.text is None else {"text": column.initial.text},
        "source_id": column.source_id,
        "carried": column.carried,
        "default": column.default,
        "comment": column.comment,
    })  # fmt: skip


def _column_of(stored: Json) -> Column:
    return Column(
        id=stored["id"],
        name=stored["name"],
        type=_type_of(stored["type"]),
        nullable=stored.get("nullable", False),
        initial=InitialDefault(stored.get("initial", {}).get("text")),
        source_id=stored.get("source_id"),
        carried=stored.get("carried", False),
        default=stored.get("default"),
        comment=stored.get("comment"),
    )


def _type(type: ColumnType) -> Json:
    return _shortened({
        "name": type.name,
        "unsigned": type.unsigned,
        "length": type.length,
        "scale": type.scale,
        "elements": list(type.elements),
        "zerofill": type.zerofill,
        "charset": type.charset,
    })  # fmt: skip


def _type_of(stored: Json) -> ColumnType:
    return ColumnType(
        name=stored["name"],
        unsigned=stored.get("unsigned", False),
        length=stored.get("length"),
        scale=stored.get("scale"),
        elements=tuple(stored.get("elements", ())),
        zerofill=stored.get("zerofill", False),
        charset=stored.get("charset"),
    )


# --- Partitionings ---


def _partitioning(scheme: Partitioning) -> Json:
    return _shortened({
        "method": scheme.method,
        "expression": scheme.expression,
        "columns": list(scheme.columns),
        "count": scheme.count,
        "partitions": [_partition(partition) for partition in scheme.partitions],
        "subpartitions": scheme.subpartitions,
        "interval": scheme.interval,
    })  # fmt: skip


def _partition(partition: Partition) -> Json:
    bound: dict[str, Any] = {}
    match partition.bound:
        case LessThan(values):
            bound = {"less_than": [_value(value) for value in values]}
        case InValues(rows):
            bound = {"in": [[_value(value) for value in row] for row in rows]}
        case None:
            pass
    return {"name": partition.name, "subpartitions": partition.subpartitions, **bound}


def _value(value: BoundValue) -> Json:
    match value:
        case TextLiteral(text, charset):
            return _shortened({"text": text, "charset": charset})
        case NumberLiteral(text):
            return {"number": text}
        case BytesLiteral(content, charset):
            return _shortened({"bytes": content.hex(), "charset": charset})
        case NullLiteral():
            return {"null": True}
        case Expression(text):
            return {"expression": text}
        case MaxValue():
            return {"maxvalue": True}
        case DefaultValue():
            return {"default": True}


def _partitioning_of(stored: Json | None) -> Partitioning | None:
    if stored is None:
        return None
    scheme: Json = _from_form_1(stored) if "is" in stored else stored
    return Partitioning(
        method=scheme["method"],
        expression=scheme["expression"],
        columns=tuple(scheme.get("columns", ())),
        count=scheme.get("count"),
        partitions=tuple(_partition_of(partition) for partition in scheme.get("partitions", ())),
        subpartitions=scheme["subpartitions"],
        interval=scheme.get("interval"),
    )


def _partition_of(stored: Json) -> Partition:
    bound: LessThan | InValues | None = None
    if "less_than" in stored:
        bound = LessThan(_values_of(stored["less_than"]))
    elif "in" in stored:
        bound = InValues(tuple(_values_of(row) for row in stored["in"]))
    return Partition(stored["name"], bound, stored["subpartitions"])


def _values_of(stored: Iterable[Json]) -> tuple[BoundValue, ...]:
    return tuple(_value_of(value) for value in stored)


def _value_of(stored: Json) -> BoundValue:
    match stored:
        case {"text": text}:
            return TextLiteral(text, stored.get("charset"))
        case {"number": text}:
            return NumberLiteral(text)
        case {"bytes": digits}:
            return BytesLiteral(bytes.fromhex(digits), stored.get("charset"))
        case {"null": True}:
            return NullLiteral()
        case {"expression": text}:
            return Expression(text)
        case {"maxvalue": True}:
            return MaxValue()
        case {"default": True}:
            return DefaultValue()
        case _:
            raise StoredFormError(f"a partition's bound is not one that this release knows: {dict(stored)}")


_FORM_1: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "Partitioning": lambda scheme: scheme,
    "Partition": lambda part: {
        "name": part["name"],
        "subpartitions": part["subpartitions"],
        **(part["bound"] or {}),
    },
    "LessThan": lambda bound: {"less_than": bound["values"]},
    "InValues": lambda bound: {"in": bound["rows"]},
    "TextLiteral": lambda value: {"text": value["value"], "charset": value["charset"]},
    "NumberLiteral": lambda value: {"number": value["text"]},
    "BytesLiteral": lambda value: {"bytes": value["value"]["bytes"], "charset": value["charset"]},
    "NullLiteral": lambda _: {"null": True},
    "Expression": lambda value: {"expression": value["text"]},
    "MaxValue": lambda _: {"maxvalue": True},
    "DefaultValue": lambda _: {"default": True},
}
"""By kind, a part of a partitioning in form 1 as the same in form 2."""


def _from_form_1(stored: Any) -> Any:
    if isinstance(stored, list):
        return [_from_form_1(item) for item in cast("list[Any]", stored)]
    if not isinstance(stored, dict):
        return stored
    part = cast("dict[str, Any]", stored)
    fields = {key: _from_form_1(value) for key, value in part.items() if key != "is"}
    return _FORM_1[part["is"]](fields) if "is" in part else fields
