"""What only a few modules may know, where an import does not show it: which kind of source a feed has, and which format
its messages and files are. Each rule has the modules that it leaves out, with the reason. Imports are contracts in
pyproject.toml."""

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from cdc_lakehouse import config
from cdc_lakehouse.config import CanalSource, KafkaSource, Protocol, StorageSinkSource
from cdc_lakehouse.config.sources import DumpType, InitialLoad
from cdc_lakehouse.decoders.registry import FORMATS
from tests.kit.case_files import Case, read_cases

CASES = read_cases(Path(__file__).parent / "boundaries/rules.txt")
"""Modules, or folders, by their path in the package, and why a rule leaves them out."""

# In one worker, which parses the project once.
pytestmark = pytest.mark.xdist_group("boundaries")

PACKAGE = Path(config.__file__).parent.parent
_IMPLEMENTATIONS = {"Sink", "RecordSource", "Topics", "CanalServer", "DumpSource"}
KINDS = {each.__name__ for each in (CanalSource, KafkaSource, StorageSinkSource, InitialLoad)} | _IMPLEMENTATIONS
_IDENTITY = (ast.Is, ast.IsNot)
SECTIONS = {"kafka", "canal", "storage_sink"}
"""Properties of a feed: the section of its source, for who knows the kind."""
TYPES = {*SECTIONS, *get_args(DumpType)}


@functools.cache
def modules() -> dict[str, ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@functools.cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Those that rules look at."""
    kinds = ast.MatchClass | ast.Call | ast.Compare | ast.MatchValue | ast.Attribute | ast.Constant | ast.ClassDef
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds))


def names(node: ast.AST) -> set[str]:
    return {each.id if isinstance(each, ast.Name) else each.attr for each in ast.walk(node)
            if isinstance(each, ast.Name | ast.Attribute)}  # fmt: skip


def texts(node: ast.AST) -> set[str]:
    within = nodes(node) if isinstance(node, ast.Module) else ast.walk(node)
    return {each.value for each in within if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def kinds_asked_for(tree: ast.Module) -> set[str]:
    """Kinds of source in an `isinstance` or in the pattern of a `match`, and their types in a comparison."""
    found: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.MatchClass):
            found |= names(node.cls) & KINDS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found |= names(node.args[1]) & KINDS
        elif isinstance(node, ast.Compare | ast.MatchValue):
            found |= texts(node) & TYPES
    return found


def formats_named(tree: ast.Module) -> set[str]:
    """Formats of messages, and protocols in a comparison: "csv" is a word too."""
    asking = (node for node in nodes(tree) if isinstance(node, ast.Compare | ast.MatchValue))
    compared = {text for node in asking for text in texts(node)}
    return (texts(tree) & FORMATS.keys()) | (compared & {*get_args(Protocol)})


def protocols_compared(tree: ast.Module) -> set[str]:
    """Comparisons with a protocol or a format, but for `is None`."""
    found = (node for node in nodes(tree) if isinstance(node, ast.Compare) and not isinstance(node.ops[0], _IDENTITY))
    sides = (side for node in found for side in (node.left, *node.comparators))
    return {side.attr for side in sides if isinstance(side, ast.Attribute)} & {"protocol", "message_format"}


def sections_read(tree: ast.Module) -> set[str]:
    return {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute)} & SECTIONS


def schemes_used(tree: ast.Module) -> set[str]:
    return texts(tree) & {f"{section}://" for section in SECTIONS}


RULES: dict[str, Callable[[ast.Module], set[str]]] = {
    "asks for a kind of source": kinds_asked_for,
    "names a format": formats_named,
    "compares protocols": protocols_compared,
    "reads the section of a kind of source": sections_read,
    "knows a kind by its scheme": schemes_used,
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kinds_and_formats_are_known_where_allowed(case: Case) -> None:
    (rule,), may = case.own, tuple(line.partition(": ")[0] for line in case.results)
    found = {name: said for name, tree in modules().items() if (said := RULES[rule](tree))}
    assert {name: said for name, said in found.items() if not name.startswith(may)} == {}
    # Else it would look for names that are no more, or leave out more than it says.
    assert any(name.startswith(may) for name in found)
    assert all(any(name.startswith(path) for name in modules()) for path in may)


def test_rules_see_what_they_are_for() -> None:
    assert [case.own for case in CASES] == [[rule] for rule in RULES]
    asking = ast.parse(
        "match feed.source:\n case KafkaSource(): pass\n"
        "isinstance(source, config.CanalSource | X)\nif a.type == 'mydumper': pass"
    )
    assert kinds_asked_for(asking) == {"KafkaSource", "CanalSource", "mydumper"}
    assert formats_named(ast.parse("if name in ('dts-avro', 'csv'): pass\noption = 'csv'")) == {"dts-avro", "csv"}
    assert protocols_compared(ast.parse("a.protocol == DEFAULT or b.message_format is None")) == {"protocol"}
    assert sections_read(ast.parse("run.feed.kafka.topics")) == {"kafka"}
    assert schemes_used(ast.parse("uri.startswith('kafka://')")) == {"kafka://"}
