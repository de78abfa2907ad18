"""Detection of secrets in plain text: a file in version control must contain none."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from pydantic import BaseModel

from cdc_lakehouse.config.faults import Fault, Place
from cdc_lakehouse.config.references import REFERENCE, without_references
from cdc_lakehouse.config.sink_uri import misplaced_options

HIDDEN: Final = "(not shown)"
_SECRET: Final = (
    r"(?:password|passwd|secret|token|credential|authorization|(?:access|account|private|api|sas)[-_.]?key|key[-_.]pem)"
)
_SECRET_KEY: Final = re.compile(_SECRET, re.IGNORECASE)
_SECRET_AT_END: Final = re.compile(rf"{_SECRET}s?$", re.IGNORECASE)
_NAMES_A_FILE: Final = re.compile(r"[-_.]file$", re.IGNORECASE)
_PASSWORD_IN_URI: Final = re.compile(r"://[^/@:\s]*:[^@/\s]+@")
_SECRET_IN_QUERY: Final = re.compile(rf"[?&;][\w.-]*{_SECRET}[\w.-]*=[^&;\s]", re.IGNORECASE)


def plain_secrets(value: Any, place: Place = ()) -> Iterator[Fault]:
    """Yield a fault for each secret in plain text at any depth of a document. The faults contain no secret."""
    if isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            below = (*place, str(key))
            if _is_plain_secret(str(key), item):
                advice = "write ${NAME} and set NAME in the environment"
                yield Fault(below, f"holds a secret in plain text: {advice}")
            else:
                yield from plain_secrets(item, below)
    elif isinstance(value, list):
        for position, item in enumerate(cast("list[Any]", value)):
            yield from plain_secrets(item, (*place, position))
    elif isinstance(value, str):
        yield from _in_text(value, place)


def without_secrets(section: BaseModel) -> dict[str, Any]:
    """Return the settings of a section that differ from the defaults, as texts, numbers, lists and mappings for
    display. `HIDDEN` replaces a value whose field is not part of the section's `repr`, or that looks like a secret."""
    shown = _plain(section)
    for fault in list(plain_secrets(shown)):
        *parents, last = fault.place
        functools.reduce(lambda value, key: value[key], parents, shown)[last] = HIDDEN
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        given = {name: getattr(value, name) for name in fields if name in value.model_fields_set}
        return {
            fields[name].alias or name: _plain(item) if fields[name].repr else HIDDEN
            for name, item in given.items()
            if item != fields[name].default
        }
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _in_text(value: str, place: Place) -> Iterator[Fault]:
    if place[:1] == ("alerts",) and place[2:] == ("url",) and not _has_reference(value):
        advice = "whoever knows it can post to it. Write ${NAME} and set NAME in the environment"
        yield Fault(place, f"holds a secret in plain text: {advice}")
        return
    in_plain = any(pattern.search(without_references(value)) for pattern in (_PASSWORD_IN_URI, _SECRET_IN_QUERY))
    if place[-2:] in (("source", "uri"), ("initial", "uri")) and (misplaced := misplaced_options(value)) is not None:
        yield Fault(place, f"holds a secret in plain text, and {misplaced}" if in_plain else misplaced)
    elif in_plain:
        advice = "write ${NAME} in its place and set NAME in the environment"
        yield Fault(place, f"holds a password in plain text: {advice}")


def _is_plain_secret(key: str, value: Any) -> bool:
    if _NAMES_A_FILE.search(key):
        return False
    if isinstance(value, str):
        # A boolean setting about secrets is no secret.
        return bool(_SECRET_KEY.search(key)) and not _is_reference(value) and value not in ("true", "false")
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(_SECRET_AT_END.search(key))


def _is_reference(value: str) -> bool:
    found = REFERENCE.fullmatch(value)
    return found is not None and not found["default"]


def _has_reference(value: str) -> bool:
    return any(not found["default"] for found in REFERENCE.finditer(value))
