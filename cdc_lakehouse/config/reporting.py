"""The faults of a configuration as text: a line for each, with the path of its key."""

from __future__ import annotations

import datetime
import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cdc_lakehouse.config.sources import misplaced_options

Place = tuple[int | str, ...]  # Keys, and positions in lists, from the top of the file to a value.

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


def correct_types(document: Any, raw: Any, sections: Iterable[tuple[Place, Any]]) -> Iterator[Fault]:
    """Yield a fault for each section of a document whose `type` is none of its union's, or missing. It gets the likely
    one, so that the rest of it is validated: the one with the most similar spelling, else the one that has most of the
    section's keys. `sections` are places with unions of models; `raw` is the document as it is in the file."""
    for place, union in sections:
        found = _at(document, place)
        section = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        fields = {str(_kind(each)): each.model_fields for each in _models(union)}
        if section is not found or section.get("type") in list(fields):
            continue
        common = {
            kind: len(section.keys() & {field.alias or name for name, field in known.items()})
            for kind, known in fields.items()
        }
        first, second, *_ = sorted(common, key=lambda kind: -common[kind])
        likely = _nearest(section.get("type"), fields) or (first if common[first] > common[second] else None)
        if "type" in section:
            kinds = ", ".join(map(repr, fields))
            reason = f"should be one of {kinds}{_question(likely)}{_shown(raw, (*place, 'type'))}"
            yield Fault((*place, "type"), reason, tells_value=True)
        else:
            yield Fault((*place, "type"), f"is missing{_question(likely)}")
        section["type"] = likely


def faults_of(model: type[BaseModel], errors: Sequence[ErrorDetails], raw: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults that pydantic found in a document of the model, but for those of `correct_types`. `raw` is the
    document as it is in the file: given values are shown from there, so that values of environment variables are not
    shown."""
    inner = {error["loc"][:1] for error in errors if len(error["loc"]) > 1}
    for error in errors:
        if error["type"].startswith("union_tag") or (error["type"] == "too_short" and error["loc"] in inner):
            continue  # The latter only because those that are there are not valid.
        place, models = Place(), [model]
        for step in error["loc"]:
            of_kind = [each for each in models if _kind(each) == step]
            if of_kind and len(models) > 1:
                models = of_kind  # Pydantic names the kind of a source or receiver, which is no step in the file.
                continue
            place = (*place, step)
            fields = [each for of in models for name, each in of.model_fields.items() if step in (name, each.alias)]
            models = [each for field in fields for each in _models(field.annotation)] or models
        if error["type"] == "extra_forbidden":
            known = [field.alias or name for each in models for name, field in each.model_fields.items()]
            yield Fault(place, f"is not a key that is known here{guess(place[-1], known)}")
        elif error["type"] == "missing":
            yield Fault(place, "is missing")
        else:
            yield Fault(place, f"{_reason(error, _at(raw, place))}{_shown(raw, place)}", tells_value=True)


def _reason(error: ErrorDetails, given: object) -> str:
    said, context = error["msg"].removeprefix("Value error, ").removeprefix("Input "), error.get("ctx", {})
    if error["type"] == "literal_error":
        return said + guess(given, _CHOICE.findall(context["expected"]))
    if error["type"] == "too_short":
        return f"should have at least {context['min_length']} item"
    if error["type"].startswith("date_"):
        what = "there is no such day" if _DATE.fullmatch(str(given)) else "should be a date"
        return f"{what}: write year-month-day, such as 2026-11-30"
    return _EXPECTED.get(error["type"], said)


def reasons(error: ValidationError) -> str:
    """Return what is wrong with a section that is in no file."""
    return "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors(include_url=False))


def _at(document: Any, place: Place) -> Any:
    """Return what is at a place of a document; None where there is nothing."""
    for step in place:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _shown(raw: Any, place: Place) -> str:
    given = _at(raw, place)
    return f" (given: {given!r})" if isinstance(given, (str, int, float, bool)) else ""


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: 1 row, 1,200 rows, 2 entries."""
    return f"{number:,} {noun if number == 1 else noun.replace('entry', 'entrie') + 's'}"


def some(names: Sequence[str], most: int = 12) -> str:
    """Return the first names with commas between, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def listed(names: Sequence[str], noun: str, most: int = 12) -> str:
    """Return the number of names, and the first of them."""
    return f"{plural(len(names), noun)}: {some(names, most)}"


def guess(given: object, known: Iterable[str]) -> str:
    """Return a question that names the known name which `given` was probably meant to be; empty where none is near."""
    return _question(_nearest(given, known))


def _question(meant: str | None) -> str:
    return "" if meant is None else f"; did you mean {meant}?"


def _nearest(given: object, known: Iterable[str]) -> str | None:
    word, *others = (str(each).lower().replace("-", "_") for each in (given, *known))
    for near in difflib.get_close_matches(word, others, 3, _LEAST_LIKENESS):
        # Few people mistype the first letter: where it differs, two words must be more similar.
        if near[:1] == word[:1] or difflib.SequenceMatcher(None, word, near).ratio() >= _LIKE_WITHOUT_FIRST:
            return [*known][others.index(near)]
    return None


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that a type consists of: those of a union, of a list or of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models(each)]


def _kind(model: type[BaseModel]) -> str | None:
    return get_args(model.model_fields["type"].annotation)[0] if "type" in model.model_fields else None


# References in values of the configuration: `${NAME}` and `${NAME:-default}` of the environment, `${file:PATH}`.

REFERENCE: Final = re.compile(
    r"\$\{(?:file:(?P<file>[^}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?)\}"
)
_FILE_LIMIT: Final = 64 * 1024  # Bytes of a file that a reference names. Secrets are shorter.


def resolve(document: Any, environment: Mapping[str, str], base: Path, faults: list[Fault]) -> Any:
    """Replace the references in a document. One that cannot be resolved stays as it is, and is added to the faults,
    which contain no secret. An empty variable has its default, as in a shell. Line ends at the end of a file,
    whose path is relative to `base`, are removed."""

    def resolved(place: Place, reference: re.Match[str]) -> str:
        path, name, default = reference["file"], reference["name"], reference["default"]
        if path is not None:
            try:
                with (base / path).open("rb") as file:
                    content = file.read(_FILE_LIMIT + 1)
                text = content.decode("utf-8")
            except OSError as error:
                reason = f"names the file {path}, which cannot be read: {error.strerror}"
            except ValueError:
                reason = f"names the file {path}, which is not text in UTF-8"
            else:
                if len(content) <= _FILE_LIMIT:
                    return text.rstrip("\r\n")
                reason = f"names the file {path}, which has more than {_FILE_LIMIT} bytes"
        elif default is not None:
            return environment.get(name) or default
        elif name in environment:
            return environment[name]
        else:
            reason = f"names ${{{name}}}, which the environment does not have"
        faults.append(Fault(place, reason))
        return reference[0]

    def value_at(place: Place, value: Any) -> Any:
        return REFERENCE.sub(functools.partial(resolved, place), value) if isinstance(value, str) else value

    return _mapped(document, value_at)


def _mapped(value: Any, of_leaf: Callable[[Place, Any], Any], place: Place = ()) -> Any:
    """Return the document with what a function makes of each value that is not a list or a mapping, and its place."""
    if isinstance(value, dict):
        # A bare `null` is a key of TiCDC's csv options, and YAML's own null.
        items = [("null" if key is None else key, each) for key, each in cast("dict[Any, Any]", value).items()]
        return {key: _mapped(each, of_leaf, (*place, str(key))) for key, each in items}
    if isinstance(value, list):
        return [_mapped(each, of_leaf, (*place, number)) for number, each in enumerate(cast("list[Any]", value))]
    return of_leaf(place, value)


# Detection of secrets in plain text: a file in version control must contain none.

HIDDEN: Final = "(not shown)"
_SECRET: Final = (
    r"(?:password|passwd|secret|token|credential|authorization|(?:access|account|private|api|sas)[-_.]?key|key[-_.]pem)"
)
_SECRET_KEY: Final = re.compile(_SECRET, re.IGNORECASE)
_SECRET_AT_END: Final = re.compile(rf"{_SECRET}s?$", re.IGNORECASE)
_NAMES_A_FILE: Final = re.compile(r"[-_.]file$", re.IGNORECASE)
_PASSWORD_IN_URI: Final = re.compile(r"://[^/@:\s]*:[^@\s]+@")
_SECRET_IN_QUERY: Final = re.compile(rf"[?&;][\w.-]*{_SECRET}[\w.-]*=[^&;\s]", re.IGNORECASE)


def plain_secrets(document: Any) -> list[Fault]:
    """Return a fault for each secret in plain text at any depth of a document. The faults contain no secret."""
    found = dict[Place, str | None]()
    _mapped(document, lambda place, value: found.setdefault(place, _secret(place, value)))
    return [Fault(place, reason) for place, reason in found.items() if reason is not None]


def hidden(document: Any) -> Any:
    """Return the document with `HIDDEN` in the place of what looks like a secret."""
    return _mapped(document, lambda place, value: value if _secret(place, value) is None else HIDDEN)


def _secret(place: Place, value: Any) -> str | None:
    """Return how a value holds a secret in plain text, and what to do; None if it does not."""
    key, what = str(*place[-1:]), "holds a secret in plain text"
    by_name = f"{what}: write ${{NAME}} and set NAME in the environment"
    if not isinstance(value, str):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return by_name if is_number and _SECRET_AT_END.search(key) else None
    reference = REFERENCE.fullmatch(value)
    # A boolean setting about secrets is no secret.
    is_plain = value not in ("true", "false") and (reference is None or bool(reference["default"]))
    if is_plain and _SECRET_KEY.search(key) and not _NAMES_A_FILE.search(key):
        return by_name
    # Without references, but for their defaults.
    plain = REFERENCE.sub(lambda found: found["default"] or "", value)
    in_plain = any(pattern.search(plain) for pattern in (_PASSWORD_IN_URI, _SECRET_IN_QUERY))
    of_receiver = place[:1] == ("alerts",) and place[2:] == ("url",)
    if of_receiver and all(found["default"] for found in REFERENCE.finditer(value)):
        return f"{what}: whoever knows it can post to it. Write ${{NAME}} and set NAME in the environment"
    if place[-2:] in (("source", "uri"), ("initial", "uri")) and (misplaced := misplaced_options(value)):
        return f"{what}, and {misplaced}" if in_plain else misplaced
    advice = "write ${NAME} in its place and set NAME in the environment"
    return f"holds a password in plain text: {advice}" if in_plain else None


def without_secrets(section: BaseModel) -> dict[str, Any]:
    """Return the settings of a section that differ from the defaults, as texts, numbers, lists and mappings for
    display. `HIDDEN` replaces a value whose field is not part of the section's `repr`, or that looks like a secret."""
    return hidden(_plain(section))


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
