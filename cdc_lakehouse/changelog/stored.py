"""The stored form of table versions and schema changes: JSON texts in `schema_history`, documented in docs/tables.md.

Names of keys and kinds are literals of this module: what is stored does not change when a class or a field is renamed.
A value that is None, False or empty is left out. `format` is the number of the form:

- 1 (without `format`): every value is written, and parts of a partitioning say their kind in `is`;
- 2: this one.

Every form is read, the newest is written. Raise the number when the meaning of a key changes; a new key that may be
left out needs no new number.

`kind` of a change is such a key. Before it, numbers of `action` below 1 said the same. What the others say has not
changed. Where `kind` took the place of such a number, `action` is left out: code of before `kind` fails at the change,
and reads none wrongly. What that code wrote is still read, by the absence of `kind`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

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
    return _text(_write_version(version))


def version_from_json(text: str) -> TableVersion:
    """Raises `StoredFormError` when newer code wrote it."""
    stored = _fields(text)
    if "primary_key" not in stored:
        # Left out where it is none, and by releases that had no such key: then it is what no unique key is.
        key = stored.get("key", [])
        stored["primary_key"] = [] if key in [each["columns"] for each in stored.get("unique_keys", [])] else key
    return _read_version(stored)


def change_to_json(change: SchemaChange) -> str:
    """A row's `change`."""
    return _text(_write_change(change))


def change_from_json(text: str) -> SchemaChange:
    """Raises `StoredFormError` when newer code wrote it."""
    stored = _fields(text)
    if "kind" not in stored:
        # Of releases that had numbers of their own beside TiDB's, and for a statement's text a change of each table
        # that it names. The first of these is replaced by the text at the next run; the others have nothing to add.
        action, further = stored.get("action"), _FURTHER_TABLE.search(stored["origin"])
        stored["kind"] = "repeated" if further else _KINDS_OF_NUMBERS.get(action, "statement")
        stored["action"] = action if action is not None and action >= 0 else None
    return _read_change(stored)


def _text(fields: Json) -> str:
    return json.dumps({"format": FORMAT, **fields}, ensure_ascii=False)


def _fields(text: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(text)
    if (number := stored.get("format", 1)) > FORMAT:
        raise StoredFormError(
            f"the schema history was written in form {number}, and this release reads those up to {FORMAT}"
        )
    return stored


# --- Values and objects ---


_Function = Callable[[Any], Any]


class _Form(NamedTuple):
    """How a value is stored, how it is read, and what it is where its key is left out. Without functions it is stored
    as it is."""

    write: _Function | None = None
    read: _Function | None = None
    absent: Any = None


_VALUE: Final = _Form()
_FLAG: Final = _Form(absent=False)
_VALUES: Final = _Form(list, tuple, ())


def _list(write: _Function, read: _Function) -> _Form:
    def write_all(values: Iterable[Any]) -> list[Any]:
        return [write(each) for each in values]

    def read_all(stored: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(read(each) for each in stored)

    return _Form(write_all, read_all, ())


def _object(kind: type, /, **fields: _Form) -> tuple[_Function, _Function]:
    """How an object with these keys, which are what the kind's fields are called now, is written and read."""
    forms = [(key, *form) for key, form in fields.items()]

    def write(value: Any) -> Json:
        stored: dict[str, Any] = {}
        for key, own, _, _ in forms:
            found = getattr(value, key)
            stored[key] = found if found is None or own is None else own(found)
        return _shortened(stored)

    def read(stored: Json) -> Any:
        values: dict[str, Any] = {}
        for key, _, own, absent in forms:
            found = stored.get(key)
            values[key] = absent if found is None else found if own is None else own(found)
        return kind(**values)

    return write, read


def _shortened(fields: Json) -> dict[str, Any]:
    """Without what is None, False or empty. A number is kept: 0 digits are not the same as none said."""
    return {key: value for key, value in fields.items() if value is not None and value is not False and value != []}


def _initial(initial: InitialDefault) -> Json | None:
    return None if initial.text is None else {"text": initial.text}


def _initial_of(stored: Json) -> InitialDefault:
    return InitialDefault(stored["text"])


# --- Partitionings ---


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
"""By kind, a part of a partitioning in form 1 as the same in form 2."""


def _from_form_1(stored: Any) -> Any:
    """The same in form 2; what is in that form stays."""
    if isinstance(stored, list):
        return [_from_form_1(item) for item in cast("list[Any]", stored)]
    if not isinstance(stored, dict):
        return stored
    part = cast("dict[str, Any]", stored)
    fields = {key: _from_form_1(value) for key, value in part.items() if key != "is"}
    return _FORM_1[part["is"]](fields) if "is" in part else fields


# --- All keys ---

_write_partitioning, _read_partitioning = _object(
    Partitioning, method=_VALUE, expression=_VALUE, columns=_VALUES, count=_VALUE,
    partitions=_list(_partition, _partition_of), subpartitions=_VALUE, interval=_VALUE,
)  # fmt: skip


def _partitioning_of(stored: Json) -> Any:
    return _read_partitioning(_from_form_1(stored))


_TYPE: Final = _Form(*_object(
    ColumnType, name=_VALUE, unsigned=_FLAG, length=_VALUE, scale=_VALUE, elements=_VALUES, zerofill=_FLAG,
    charset=_VALUE,
))  # fmt: skip
_INITIAL: Final = _Form(_initial, _initial_of, InitialDefault())
_COLUMNS: Final = _list(*_object(
    Column, id=_VALUE, name=_VALUE, type=_TYPE, nullable=_FLAG, initial=_INITIAL, source_id=_VALUE, carried=_FLAG,
    default=_VALUE, comment=_VALUE,
))  # fmt: skip
_UNIQUE_KEYS: Final = _list(*_object(UniqueKey, name=_VALUE, columns=_VALUES))
_NAME: Final = _Form(*_object(TableName, database=_VALUE, table=_VALUE))
_SWAP: Final = _Form(*_object(Swap, partitioned=_VALUE, partition=_VALUE, plain=_VALUE))
_write_version, _read_version = _object(
    TableVersion, commit_ts=_VALUE, name=_NAME, incarnation=_VALUE, kind=_VALUE, effect=_VALUE, query=_VALUE,
    origin=_VALUE, columns=_COLUMNS, key=_VALUES, unique_keys=_UNIQUE_KEYS, next_id=_VALUE,
    partitioning=_Form(_write_partitioning, _partitioning_of), emptied=_VALUES,
    swap=_SWAP, previous_name=_NAME, since=_VALUE, note=_VALUE, hold=_VALUE, primary_key=_VALUES, charset=_VALUE,
)  # fmt: skip
_SOURCE_COLUMNS: Final = _list(*_object(
    SourceColumn, name=_VALUE, type=_TYPE, nullable=_FLAG, primary_key=_FLAG, default=_VALUE, source_id=_VALUE,
    virtual=_VALUE,
))  # fmt: skip
_write_change, _read_change = _object(
    SchemaChange, commit_ts=_VALUE, database=_VALUE, table=_VALUE, action=_VALUE, kind=_VALUE, query=_VALUE,
    columns=_SOURCE_COLUMNS, origin=_VALUE, backslash_escapes=_FLAG, fault=_VALUE,
)  # fmt: skip
