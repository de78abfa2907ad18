"""Errors: what their text says, that they survive a process, and that each says what to do."""

import ast
import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import cdc_lakehouse
from cdc_lakehouse import errors
from cdc_lakehouse.changelog.ddl.lexer import DdlSyntaxError
from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.errors import CdcError, PermanentError, SourceError, TransientError

PLACES: dict[str, Any] = {"feed": "shop", "table": "sales.orders", "segment": "sales/orders/7/CDC1.json", "line": 12}


def kinds_of_errors(base: type[CdcError] = CdcError) -> Iterator[type[CdcError]]:
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind
            yield from kinds_of_errors(kind)


KINDS = [CdcError, *kinds_of_errors()]


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ({}, "broken"),
        ({"advice": "mend it"}, "broken: mend it"),
        ({"table": "d.t"}, "broken [table d.t]"),
        ({"segment": "s", "line": 0}, "broken [segment s, line 0]"),
        ({"feed": "f", "table": "d.t", "segment": "s", "line": 3, "advice": "mend it"},
         "broken [feed f, table d.t, segment s, line 3]: mend it"),
    ],
)  # fmt: skip
def test_text_says_what_where_and_what_to_do_and_only_what_is_known(places: dict[str, Any], text: str) -> None:
    assert str(SourceError("broken", **places)) == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clone", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_every_error_survives_a_process_boundary(kind: type[CdcError], clone: Callable[[CdcError], CdcError]) -> None:
    error = kind("broken", **PLACES, advice="mend it")
    arrived = clone(error)
    assert type(arrived) is kind
    assert str(arrived) == str(error)
    assert {place: getattr(arrived, place) for place in PLACES} == PLACES
    assert (arrived.message, arrived.advice) == ("broken", "mend it")


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (DdlSyntaxError.at("expected a name", "ALTER TABLE\n ,", 13), {"place": (2, 2)}),
        (MessageError("bad", of=("d", "t"), advice="mend it"), {"of": ("d", "t"), "table": "d.t"}),
    ],
)  # fmt: skip
def test_a_subclass_with_fields_of_its_own_survives_too(error: CdcError, fields: dict[str, Any]) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert (str(arrived), type(arrived)) == (str(error), type(error))
    assert {name: getattr(arrived, name) for name in fields} == fields


# --- Advice, by the error itself or by its class ---

PACKAGE: Final = Path(cdc_lakehouse.__file__).parent
WITHOUT: Final = {
    "MessageError": "a row of the quarantine: the hold names the commands for it",
    "CharsetError": "a row of the quarantine",
    "DdlError": "the reason of a hold: `pipeline.holds` says the ways out of all of them",
}
"""Kinds of errors, with those below them, and who gives their advice."""
ADVISED_ELSEWHERE: Final = {
    ("ConfigurationError", "config/file.py"): "each fault of the list says what is allowed",
    ("TableHeldError", "pipeline/apply.py"): "the text, which `plan` shows alone, ends with what to do",
    ("SourceError", "sources/kafka.py"): "what is wrong with a message, a row of the quarantine",
}


def kinds(trees: dict[str, ast.Module]) -> dict[str, bool]:
    """The errors of the project, by name, and whether their class gives an advice or is of `WITHOUT`."""
    found = {"CdcError": False}
    definitions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while new := [node for node in definitions if node.name not in found and bases_of(node) & found.keys()]:
        for node in new:
            advised = any(each.arg == "advice" for each in node.keywords)
            inherited = any(found[base] for base in bases_of(node) & found.keys())
            found[node.name] = advised or inherited or node.name in WITHOUT
    return found


def bases_of(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).rpartition(".")[2] for base in node.bases}


def test_every_error_says_what_to_do() -> None:
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    known = kinds(trees)
    assert known.keys() >= WITHOUT.keys()
    silent: dict[tuple[str, str], list[str]] = {}
    for path, tree in trees.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            kind = ast.unparse(call.func).rpartition(".")[2]
            # `**` is how an error of another process is made again.
            if known.get(kind) is False and not {"advice", None} & {each.arg for each in call.keywords}:
                silent.setdefault((kind, path), []).append(f"{path}:{call.lineno}: {ast.unparse(call)}")
    assert {place: calls for place, calls in silent.items() if place not in ADVISED_ELSEWHERE} == {}
    assert silent.keys() == ADVISED_ELSEWHERE.keys(), "a place gives advice by now"


def test_codes_stay_with_their_error_and_are_in_the_reference() -> None:
    codes = {kind.code: kind for kind in KINDS if kind is not CdcError}
    assert len(codes) == len(KINDS) - 1 and codes["CDC-201"] is errors.SourceUnreachableError
    # Tried again or reported, never both.
    assert all(issubclass(kind, PermanentError) != issubclass(kind, TransientError) for kind in codes.values())
    page = (Path(__file__).parents[1] / "docs/reference/errors.md").read_text(encoding="utf-8")
    assert all(f'<a id="{code.lower()}"></a>{code} | `{kind.__name__}`' in page for code, kind in codes.items())
    assert SourceError("broken", table="d.t", advice="mend it").coded == "broken [table d.t]: mend it (CDC-202)"
