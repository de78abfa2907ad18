"""The stored form of table versions and schema changes: JSON texts in `schema_history`, documented in docs/tables.md.

A key is the name of its field: a field that is renamed changes what is stored. `format` is the number of the form, to
be raised with each such change. `stored_text` and `stored_fields` apply this to all JSON objects that outlive a run;
others are the property `cdc.superseded` (`lake/tables/checkpoints.py`), `plan.json` and `dump.json`
(`sources/dump/database.py`) and the cursor of the alert sensor (`assets/sensors.py`).
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar, cast

import msgspec

from cdc_lakehouse.changelog.schema import SchemaChange, TableVersion
from cdc_lakehouse.errors import StoredFormError

FORMAT: Final = 3

_T = TypeVar("_T", TableVersion, SchemaChange)


def stored_text(form: int, fields: dict[str, Any]) -> str:
    return json.dumps({"format": form, **fields}, ensure_ascii=False)


def stored_fields(text: str | bytes, form: int, what: str) -> dict[str, Any]:
    """Parse a stored JSON object. `what` names it in error messages.

    Raises `ValueError` where the text is not a JSON object, and `StoredFormError` when other code wrote it.
    """
    stored: Any = json.loads(text)
    if not isinstance(stored, dict):
        raise ValueError("it is no JSON object")
    fields = cast("dict[str, Any]", stored)
    if (found := fields.get("format", 1)) != form:
        other = (
            "run the newer release of cdc_lakehouse that wrote it" if found > form else "load the feed into a new lake"
        )
        raise StoredFormError(f"{what} was written in form {found}, and this release reads form {form}", advice=other)
    return fields


def to_json(value: TableVersion | SchemaChange) -> str:
    """Return the JSON text of a row's `definition` or `change`."""
    return stored_text(FORMAT, msgspec.to_builtins(value))


def from_json(kind: type[_T], text: str) -> _T:
    """Read a version or a change. Raises `StoredFormError` when other code wrote it."""
    return msgspec.convert(stored_fields(text, FORMAT, "the schema history"), kind)
