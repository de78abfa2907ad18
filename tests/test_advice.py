"""Every error says what to do, by itself or by its class, but for those whose advice is given elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import cdc_lakehouse

PACKAGE: Final = Path(cdc_lakehouse.__file__).parent
WITHOUT: Final = {
    "MessageError": "a row of the quarantine: the hold names the commands for it",
    "CharsetError": "a row of the quarantine",
    "DdlError": "the reason of a hold: `pipeline.holds` says the ways out of all of them",
}
"""Kinds of errors, with those below them, and who gives their advice."""
PLACES: Final = {
    ("ConfigurationError", "config/file.py"): "each fault of the list says what is allowed",
    ("TableHeldError", "pipeline/table_changes.py"): "the text, which `plan` shows alone, ends with what to do",
    ("SourceError", "sources/kafka/claim_checks.py"): "what is wrong with a message, a row of the quarantine",
}


def kinds(trees: dict[str, ast.Module]) -> dict[str, bool]:
    """The errors of the project, by name, and whether their class gives an advice or is of `WITHOUT`."""
    found = {"CdcError": False}
    definitions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while new := [node for node in definitions if node.name not in found and _bases(node) & found.keys()]:
        for node in new:
            advised = any(
                isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "default_advice" for each in node.body
            )
            inherited = any(found[base] for base in _bases(node) & found.keys())
            found[node.name] = advised or inherited or node.name in WITHOUT
    return found


def _bases(node: ast.ClassDef) -> set[str]:
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
    assert {place: calls for place, calls in silent.items() if place not in PLACES} == {}
    assert silent.keys() == PLACES.keys(), "a place gives advice by now"
