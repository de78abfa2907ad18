"""The faults of a configuration as text: a line for each, with the path of its key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic_core import ErrorDetails

Place = tuple[int | str, ...]
"""Keys, and positions in lists, from the top of the file to a value."""

_CHOICE: Final = re.compile(r"'([^']*)'")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_EXPECTED: Final = {
    "tuple_type": "should be a list",
    "dict_type": "should be a mapping",
    "model_type": "should be a mapping",
    "model_attributes_type": "should be a mapping",
}
"""What pydantic names after types of Python, by its kind of error."""
_LEAST_LIKENESS: Final = 0.6
_LIKE_WITHOUT_FIRST: Final = 0.68


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at a place of the file. `reason` says what is wrong and what to do; `tells_value` says whether it can
    contain a value of the file."""

    place: Place
    reason: str
    tells_value: bool = False

    def __str__(self) -> str:
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.place)
        return f"{path.lstrip('.')}: {self.reason}"


def faults_of(model: type[BaseModel], errors: Sequence[ErrorDetails], raw: Mapping[str, Any]) -> list[Fault]:
    """Return the faults that pydantic found in a document of the model. `raw` is the document as it is in the file:
    given values are shown from there, so that values of environment variables are not shown."""
    faults: list[Fault] = []
    inner = {error["loc"][:1] for error in errors if len(error["loc"]) > 1}
    for error in errors:
        if error["type"] == "too_short" and error["loc"] in inner:
            continue  # Only because those that are there are not valid.
        place = _place(error)
        if error["type"] == "extra_forbidden":
            reason = f"is not a key that is known here{_guess(place[-1], _keys_at(model, error['loc'][:-1]))}"
            faults.append(Fault(place, reason))
        elif error["type"] == "missing":
            faults.append(Fault(place, "is missing"))
        elif error["type"] == "union_tag_not_found":
            faults.append(Fault(place, f"is missing{_question(_meant(model, error, raw))}"))
        else:
            given = _given(raw, place)
            shown = "" if given is None else f" (given: {given!r})"
            meant = _meant(model, error, raw) if error["type"] == "union_tag_invalid" else None
            faults.append(Fault(place, f"{_reason(error, given)}{_question(meant)}{shown}", tells_value=True))
    return faults


def likely_type(model: type[BaseModel], place: Place, section: Mapping[str, Any]) -> str | None:
    """Return the `type` that a section with a wrong type, or without one, probably means: the one with the most similar
    spelling, else the one that has most of the section's keys. None where no type stands out."""
    schema = model.model_json_schema()
    kinds: dict[str, str] = _schema_at(schema, place)["discriminator"]["mapping"]
    alike = _nearest(section.get("type"), kinds)
    if alike is not None:
        return alike
    common = {
        kind: len(set(section) & set(_whole(schema, {"$ref": reference})["properties"]))
        for kind, reference in kinds.items()
    }
    first, second, *_ = sorted(common, key=lambda kind: -common[kind])
    return first if common[first] > common[second] else None


def _place(error: ErrorDetails) -> Place:
    """Return the path of a key in the file, without the kind of source or receiver that pydantic puts into it."""
    match error["loc"]:
        case ("alerts", int(number)) if error["type"].startswith("union_tag"):
            return ("alerts", number, "type")
        case ("alerts", int(number), _, *rest):
            return ("alerts", number, *rest)
        case ("feeds", int(number), "source"):
            discriminator = ("type",) if error["type"].startswith("union_tag") else ()
            return ("feeds", number, "source", *discriminator)
        case ("feeds", int(number), "source", _, *rest):
            return ("feeds", number, "source", *rest)
        case location:
            return location


def _reason(error: ErrorDetails, given: object) -> str:
    said, context = error["msg"].removeprefix("Value error, ").removeprefix("Input "), error.get("ctx", {})
    if error["type"] == "union_tag_invalid":
        return f"should be one of {context['expected_tags']}"
    if error["type"] == "literal_error":
        return said + _guess(given, _CHOICE.findall(context["expected"]))
    if error["type"] == "too_short":
        return f"should have at least {context['min_length']} item"
    if error["type"].startswith("date_"):
        what = "there is no such day" if _DATE.fullmatch(str(given)) else "should be a date"
        return f"{what}: write year-month-day, such as 2026-11-30"
    return _EXPECTED.get(error["type"], said)


def _given(raw: Any, place: Place) -> Any:
    for step in place:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw if isinstance(raw, (str, int, float, bool)) else None


def _meant(model: type[BaseModel], error: ErrorDetails, raw: Mapping[str, Any]) -> str | None:
    section: Any = raw
    for step in error["loc"]:
        section = section[step]
    return likely_type(model, error["loc"], section)


def _guess(given: object, known: Iterable[str]) -> str:
    return _question(_nearest(given, known))


def _question(meant: str | None) -> str:
    return "" if meant is None else f"; did you mean {meant}?"


def _nearest(given: object, known: Iterable[str]) -> str | None:
    by_spelling = {_spelling(each): each for each in known}
    word = _spelling(given)
    for near in difflib.get_close_matches(word, by_spelling, 3, _LEAST_LIKENESS):
        # Few people mistype the first letter: where it differs, two words must be more similar.
        if near[:1] == word[:1] or difflib.SequenceMatcher(None, word, near).ratio() >= _LIKE_WITHOUT_FIRST:
            return by_spelling[near]
    return None


def _spelling(word: object) -> str:
    return str(word).lower().replace("-", "_")


def _keys_at(model: type[BaseModel], place: Place) -> Iterable[str]:
    return _schema_at(model.model_json_schema(), place).get("properties", {})


def _schema_at(schema: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return the JSON schema of a place. A place within a source includes the kind of source, as pydantic's places
    do."""
    node = _whole(schema, schema)
    for step in place:
        if "discriminator" in node:
            below: Any = {"$ref": node["discriminator"]["mapping"][step]}
        elif isinstance(step, int):
            below = node.get("items")
        else:
            below = node.get("properties", {}).get(step) or node.get("additionalProperties")
        node = _whole(schema, cast("dict[str, Any]", below) if isinstance(below, dict) else {})
    return node


def _whole(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Resolve a section that is a reference, or a choice between a reference and null, to the schema it refers to."""
    for choice in node.get("anyOf", [node]):
        if "$ref" in choice:
            return schema["$defs"][choice["$ref"].rpartition("/")[2]]
    return node
