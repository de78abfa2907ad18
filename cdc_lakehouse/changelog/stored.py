"""The stored form of table versions and schema changes: JSON texts in `schema_history`, documented in docs/tables.md.

Keys and kinds are literals of this module, each next to its field: what is stored does not change when a class or a
field is renamed. A value that is None, False or empty is left out. `format` is the number of the form:

- 1 (without `format`): every value is written, and parts of a partitioning have their kind in `is`;
- 2: this one.

Every form is read, and the newest is written. Raise the number when the meaning of a key changes; a new key that may be
left out needs no new number, because unknown keys are ignored.

`kind` of a change is such a key. Before it existed, numbers of `action` below 1 had the same meaning. The meaning of
the other keys has not changed. Where `kind` replaced such a number, `action` is left out: code from before `kind` fails
at the change, and misreads none. What that code wrote is still read, recognised by the absence of `kind`.

`stored_text` and `stored_fields` apply this to all JSON objects that outlive a release. The others are next to their
types, which this module cannot import, in functions with `stored` in their names:

- `lake/tables/superseded_events.py`: the property `cdc.superseded`;
- `sources/dump/database.py` and `pipeline/database_load.py`: the files `plan.json` and `dump.json`;
- `pipeline/problems.py` and `assets/alerts.py`: the cursor of the alert sensor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

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
    PartitionExchange,
    SchemaChange,
    SourceColumn,
    TableName,
    TableUniqueKey,
    TableVersion,
)
from cdc_lakehouse.errors import StoredFormError

FORMAT: Final = 2
_WHAT: Final = "the schema history"
_FURTHER_TABLE: Final = re.compile(r"#[1-9][0-9]*$")
_KINDS_OF_NUMBERS: Final[Mapping[Any, ChangeKind]] = {0: "columns", -1: "repeated", -2: "contradiction"}

Json = Mapping[str, Any]
_T = TypeVar("_T")


def stored_text(form: int, fields: Json) -> str:
    return json.dumps({"format": form, **fields}, ensure_ascii=False)


def stored_fields(text: str | bytes, newest: int, what: str) -> dict[str, Any]:
    """Parse a stored JSON object. `what` names it in error messages.

    Raises `ValueError` where the text is not a JSON object, and `StoredFormError` when newer code wrote it.
    """
    stored: Any = json.loads(text)
    if not isinstance(stored, dict):
        raise ValueError("it is no JSON object")
    fields = cast("dict[str, Any]", stored)
    if (form := fields.get("format", 1)) > newest:
        raise StoredFormError(
            f"{what} was written in form {form}, and this release reads those up to {newest}",
            advice="run the newer release of cdc_lakehouse that wrote it",
        )
    return fields


def version_to_json(version: TableVersion) -> str:
    """Return the version as the JSON text of a row's `definition`."""
    return stored_text(FORMAT, _version(version))


def version_from_json(text: str) -> TableVersion:
    """Read a version from a row's `definition`. Raises `StoredFormError` when newer code wrote it."""
    stored = stored_fields(text, FORMAT, _WHAT)
    if "primary_key" not in stored:
        # The key is left out where there is no primary key, and by releases before it existed: then the primary key is
        # the row key that is no unique key.
        key = stored.get("key", [])
        stored["primary_key"] = [] if key in [each["columns"] for each in stored.get("unique_keys", [])] else key
    return _version_of(stored)


def change_to_json(change: SchemaChange) -> str:
    """Return the change as the JSON text of a row's `change`."""
    return stored_text(FORMAT, _change(change))


def change_from_json(text: str) -> SchemaChange:
    """Read a change from a row's `change`. Raises `StoredFormError` when newer code wrote it."""
    stored = stored_fields(text, FORMAT, _WHAT)
    if "kind" not in stored:
        # Releases without `kind` had their own numbers besides TiDB's, and made one change for each table that a
        # statement's text names. The first of these is replaced by the text at the next run; the others add nothing.
        action, further = stored.get("action"), _FURTHER_TABLE.search(stored["origin"])
        stored["kind"] = "repeated" if further else _KINDS_OF_NUMBERS.get(action, "statement")
        stored["action"] = action if action is not None and action >= 0 else None
    return _change_of(stored)


def _shortened(fields: Json) -> dict[str, Any]:
    """Leave out values that are None, False or empty. A number is kept: 0 digits differ from no number of digits."""
    return {key: value for key, value in fields.items() if value is not None and value is not False and value != []}


def _optional(function: Callable[[Any], _T], value: Any) -> _T | None:
    return None if value is None else function(value)


# --- Versions ---


def _version(version: TableVersion) -> Json:
    return _shortened({
        "commit_ts": version.commit_ts, "name": _name(version.name), "incarnation": version.incarnation,
        "kind": version.kind, "effect": version.effect, "query": version.query, "origin": version.origin,
        "columns": [_column(each) for each in version.columns], "key": list(version.key),
        "unique_keys": [_unique_key(each) for each in version.unique_keys], "next_id": version.next_id,
        "partitioning": _optional(_partitioning, version.partitioning), "emptied": list(version.emptied),
        "swap": _optional(_swap, version.swap), "previous_name": _optional(_name, version.previous_name),
        "since": version.since, "note": version.note, "hold": version.hold, "primary_key": list(version.primary_key),
        "charset": version.charset,
    })  # fmt: skip


def _version_of(stored: Json) -> TableVersion:
    return TableVersion(
        commit_ts=stored["commit_ts"], name=_name_of(stored["name"]), incarnation=stored["incarnation"],
        kind=stored["kind"], effect=stored["effect"], query=stored["query"], origin=stored["origin"],
        columns=tuple(map(_column_of, stored.get("columns", ()))), key=tuple(stored.get("key", ())),
        unique_keys=tuple(map(_unique_key_of, stored.get("unique_keys", ()))), next_id=stored["next_id"],
        partitioning=_optional(_partitioning_of, stored.get("partitioning")), emptied=tuple(stored.get("emptied", ())),
        swap=_optional(_swap_of, stored.get("swap")), previous_name=_optional(_name_of, stored.get("previous_name")),
        since=stored["since"], note=stored.get("note"), hold=stored.get("hold"),
        primary_key=tuple(stored.get("primary_key", ())), charset=stored.get("charset"),
    )  # fmt: skip


def _name(name: TableName) -> Json:
    return {"database": name.database, "table": name.table}


def _name_of(stored: Json) -> TableName:
    return TableName(database=stored["database"], table=stored["table"])


def _column(column: Column) -> Json:
    return _shortened({
        "id": column.id, "name": column.name, "type": _type(column.type), "nullable": column.nullable,
        "initial": _initial(column.initial), "source_id": column.source_id, "carried": column.carried,
        "default": column.default, "comment": column.comment,
    })  # fmt: skip


def _column_of(stored: Json) -> Column:
    return Column(
        id=stored["id"], name=stored["name"], type=_type_of(stored["type"]), nullable=stored.get("nullable", False),
        initial=_optional(_initial_of, stored.get("initial")) or InitialDefault(), source_id=stored.get("source_id"),
        carried=stored.get("carried", False), default=stored.get("default"), comment=stored.get("comment"),
    )  # fmt: skip


def _initial(initial: InitialDefault) -> Json | None:
    return None if initial.text is None else {"text": initial.text}


def _initial_of(stored: Json) -> InitialDefault:
    return InitialDefault(text=stored["text"])


def _type(type: ColumnType) -> Json:
    return _shortened({
        "name": type.name, "unsigned": type.unsigned, "length": type.length, "scale": type.scale,
        "elements": list(type.elements), "zerofill": type.zerofill, "charset": type.charset,
    })  # fmt: skip


def _type_of(stored: Json) -> ColumnType:
    return ColumnType(
        name=stored["name"], unsigned=stored.get("unsigned", False), length=stored.get("length"),
        scale=stored.get("scale"), elements=tuple(stored.get("elements", ())), zerofill=stored.get("zerofill", False),
        charset=stored.get("charset"),
    )  # fmt: skip


def _unique_key(key: TableUniqueKey) -> Json:
    return {"name": key.name, "columns": list(key.columns)}


def _unique_key_of(stored: Json) -> TableUniqueKey:
    return TableUniqueKey(name=stored["name"], columns=tuple(stored.get("columns", ())))


def _swap(swap: PartitionExchange) -> Json:
    return {"partitioned": swap.partitioned, "partition": swap.partition, "plain": swap.plain}


def _swap_of(stored: Json) -> PartitionExchange:
    return PartitionExchange(partitioned=stored["partitioned"], partition=stored["partition"], plain=stored["plain"])


# --- Changes ---


def _change(change: SchemaChange) -> Json:
    return _shortened({
        "commit_ts": change.commit_ts, "database": change.database, "table": change.table, "action": change.action,
        "kind": change.kind, "query": change.query, "columns": [_source_column(each) for each in change.columns],
        "origin": change.origin, "backslash_escapes": change.backslash_escapes, "fault": change.fault,
    })  # fmt: skip


def _change_of(stored: Json) -> SchemaChange:
    return SchemaChange(
        commit_ts=stored["commit_ts"], database=stored["database"], table=stored["table"], action=stored.get("action"),
        kind=stored["kind"], query=stored["query"], columns=tuple(map(_source_column_of, stored.get("columns", ()))),
        origin=stored["origin"], backslash_escapes=stored.get("backslash_escapes", False), fault=stored.get("fault"),
    )  # fmt: skip


def _source_column(column: SourceColumn) -> Json:
    return _shortened({
        "name": column.name, "type": _type(column.type), "nullable": column.nullable, "primary_key": column.primary_key,
        "default": column.default, "source_id": column.source_id, "virtual": column.virtual,
    })  # fmt: skip


def _source_column_of(stored: Json) -> SourceColumn:
    return SourceColumn(
        name=stored["name"], type=_type_of(stored["type"]), nullable=stored.get("nullable", False),
        primary_key=stored.get("primary_key", False), default=stored.get("default"), source_id=stored.get("source_id"),
        virtual=stored.get("virtual"),
    )  # fmt: skip


# --- Partitionings ---


def _partitioning(scheme: Partitioning) -> Json:
    return _shortened({
        "method": scheme.method, "expression": scheme.expression, "columns": list(scheme.columns),
        "count": scheme.count, "partitions": [_partition(each) for each in scheme.partitions],
        "subpartitions": scheme.subpartitions, "interval": scheme.interval,
    })  # fmt: skip


def _partitioning_of(stored: Json) -> Partitioning:
    scheme: Json = _from_form_1(stored)
    return Partitioning(
        method=scheme["method"], expression=scheme["expression"], columns=tuple(scheme.get("columns", ())),
        count=scheme.get("count"), partitions=tuple(map(_partition_of, scheme.get("partitions", ()))),
        subpartitions=scheme["subpartitions"], interval=scheme.get("interval"),
    )  # fmt: skip


def _partition(partition: Partition) -> Json:
    bound: dict[str, Any] = {}
    match partition.bound:
        case LessThan(values):
            bound = {"less_than": [_value(each) for each in values]}
        case InValues(rows):
            bound = {"in": [[_value(each) for each in row] for row in rows]}
        case None:
            pass
    return {"name": partition.name, "subpartitions": partition.subpartitions, **bound}


def _partition_of(stored: Json) -> Partition:
    bound: LessThan | InValues | None = None
    if "less_than" in stored:
        bound = LessThan(tuple(map(_value_of, stored["less_than"])))
    elif "in" in stored:
        bound = InValues(tuple(tuple(map(_value_of, row)) for row in stored["in"]))
    return Partition(stored["name"], bound, stored["subpartitions"])


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
"""Converters by kind: each turns a part of a partitioning in form 1 into form 2."""


def _from_form_1(stored: Any) -> Any:
    """Convert a partitioning to form 2; one that is in form 2 already stays unchanged."""
    if isinstance(stored, list):
        return [_from_form_1(item) for item in cast("list[Any]", stored)]
    if not isinstance(stored, dict):
        return stored
    part = cast("dict[str, Any]", stored)
    fields = {key: _from_form_1(value) for key, value in part.items() if key != "is"}
    return _FORM_1[part["is"]](fields) if "is" in part else fields
