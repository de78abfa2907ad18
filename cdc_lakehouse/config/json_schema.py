"""The JSON Schema of `lakehouse.yaml`, for completion and validation in editors."""

from __future__ import annotations

from typing import Any, Final, cast

from cdc_lakehouse.config.file import LakehouseConfig

_REFERENCE: Final = {"type": "string", "pattern": r"\$\{.+\}"}
"""A value of any type can come from the environment or from a file."""
_NOT_TEXT: Final = ("integer", "number", "boolean")
# Keys of a schema whose values are other schemas.
_BY_NAME: Final = frozenset({"properties", "$defs"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "prefixItems"})
_SINGLE: Final = frozenset({"items", "additionalProperties"})


def json_schema() -> dict[str, Any]:
    """Return the schema as a document of JSON Schema 2020-12."""
    schema = cast("dict[str, Any]", _with_references(LakehouseConfig.model_json_schema()))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "lakehouse.yaml"}


def _with_references(schema: Any) -> Any:
    """Return a schema in which `${NAME}` is also valid for a number, a boolean or an enumerated value."""
    if not isinstance(schema, dict):
        return schema
    section = dict(cast("dict[str, Any]", schema))
    for key in _BY_NAME & section.keys():
        section[key] = {name: _with_references(each) for name, each in section[key].items()}
    for key in _LISTS & section.keys():
        section[key] = [_with_references(each) for each in section[key]]
    for key in _SINGLE & section.keys():
        section[key] = _with_references(section[key])
    if section.get("type") not in _NOT_TEXT and "enum" not in section:
        return section
    described = {key: section.pop(key) for key in ("title", "description", "default") if key in section}
    return {**described, "anyOf": [section, _REFERENCE]}
