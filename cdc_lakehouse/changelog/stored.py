"""The stored form of table versions and schema changes: JSON texts in `schema_history`, documented in docs/tables.md.

A key is the name of its field, but for what `_TAGS` says: a field that is renamed changes what is stored. A value that
is None, False or empty is left out. `format` is the number of the form. Raise it when the meaning of a key changes; a
new key that may be left out needs no new number, because unknown keys are ignored. `stored_text` and `stored_fields`
apply this to all JSON objects that outlive a release; others are the property `cdc.superseded`
(`lake/tables/checkpoints.py`), `plan.json` and `dump.json` (`sources/dump/database.py`) and the cursor of the alert
sensor (`assets/alerts.py`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from cdc_lakehouse.changelog.ddl.clauses import (
    BytesLiteral,
    DefaultValue,
    Expression,
    InValues,
    LessThan,
    MaxValue,
    NullLiteral,
    NumberLiteral,
    TextLiteral,
)
from cdc_lakehouse.changelog.schema import SchemaChange, TableVersion
from cdc_lakehouse.errors import StoredFormError

FORMAT: Final = 2

_TAGS: Final[Mapping[type, str]] = {
    TextLiteral: "text", NumberLiteral: "number", BytesLiteral: "bytes", NullLiteral: "null", Expression: "expression",
    MaxValue: "maxvalue", DefaultValue: "default", LessThan: "less_than", InValues: "in",
}  # fmt: skip
"""The key of a class's first field, or of `true` where it has none: it says of which class an object is."""
_INLINE: Final = "bound"
"""A field whose object is not in one of its own."""

Json = Mapping[str, Any]
_T = TypeVar("_T", TableVersion, SchemaChange)


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


def to_json(value: TableVersion | SchemaChange) -> str:
    """Return the JSON text of a row's `definition` or `change`."""
    return stored_text(FORMAT, _stored(value))


def from_json(kind: type[_T], text: str) -> _T:
    """Read a version or a change. Raises `StoredFormError` when newer code wrote it."""
    return _reader(kind)(stored_fields(text, FORMAT, "the schema history"))


@functools.cache
def _keys(kind: type) -> Mapping[str, str]:
    keys = {field.name: field.name for field in fields(kind)}
    return {name: _TAGS.get(kind, name) if number == 0 else name for number, name in enumerate(keys)}


def _stored(value: Any) -> Any:
    """Return a value as JSON has it, without what is None, False or empty. A number is kept: 0 digits differ from no
    number of digits."""
    if isinstance(value, tuple):
        return [_stored(each) for each in cast("tuple[Any, ...]", value)]
    if not is_dataclass(value):
        return value.hex() if isinstance(value, bytes) else value
    kept: dict[str, Any] = {}
    for name, key in _keys(type(value)).items():
        content = _stored(getattr(value, name))
        if content is not None and content is not False and content not in ([], {}):
            kept |= content if name == _INLINE else {key: content}
    return kept or ({_TAGS[type(value)]: True} if type(value) in _TAGS else {})


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return the function that turns what is stored, None where it was left out, into a value of a type."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    classes: list[Any] = [each for each in kinds if is_dataclass(each)]
    if get_origin(kind) is tuple:
        read = _reader(get_args(kind)[0])
        return lambda stored: tuple(map(read, stored or ()))
    if kind in (bool, bytes):
        return bool if kind is bool else bytes.fromhex
    if not classes:
        return lambda stored: stored
    if classes != [kind]:
        readers = {_TAGS.get(each, ""): _reader(each) for each in classes}

        def of_one(stored: Json | None) -> Any:
            # By its tag; one without a tag is the only class that is possible.
            tag = next((tag for tag in readers if stored is not None and (tag in stored or not tag)), None)
            if tag is None and NoneType not in kinds:
                raise StoredFormError(f"a partition's bound is not one that this release knows: {dict(stored or {})}")
            return None if tag is None else readers[tag](stored)

        return of_one
    types = get_type_hints(kind)
    readers_of_fields = [(name, key, _reader(types[name])) for name, key in _keys(kind).items()]

    def of_fields(stored: Json | None) -> Any:
        found = stored or {}
        return kind(**{
            name: read(found if name == _INLINE else found.get(key)) for name, key, read in readers_of_fields
        })  # fmt: skip

    return of_fields
