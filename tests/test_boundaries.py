"""What only a few modules may know: which kind of source a feed has, and which format its messages are."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_lakehouse import config
from cdc_lakehouse.config import CanalSource, KafkaSource, StorageSinkSource
from cdc_lakehouse.decoders.messages.registry import FORMATS

PACKAGE = Path(config.__file__).parent.parent
KINDS = {kind.__name__ for kind in (CanalSource, KafkaSource, StorageSinkSource)}

# The configuration, and the two places that open a source.
MAY_ASK_FOR_A_KIND = ("config/", "pipeline/run.py", "pipeline/monitors.py")
# A format's own row; the protocols of sinks, which have names of formats; and the sample, which writes a sink.
MAY_NAME_A_FORMAT = (
    "config/", "decoders/messages/", "decoders/files/", "sources/sink/", "pipeline/sink_decoding.py", "sample/",
    "commands/sample.py",
)  # fmt: skip


@functools.cache
def modules() -> dict[str, ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def names(node: ast.AST) -> set[str]:
    return {each.id if isinstance(each, ast.Name) else each.attr for each in ast.walk(node)
            if isinstance(each, ast.Name | ast.Attribute)}  # fmt: skip


def kinds_asked_for(tree: ast.Module) -> set[str]:
    """Kinds of source in an `isinstance` or in the pattern of a `match`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.MatchClass):
            found |= names(node.cls) & KINDS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found |= names(node.args[1]) & KINDS
    return found


def formats_named(tree: ast.Module) -> set[str]:
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts & FORMATS.keys()


@pytest.mark.parametrize(
    ("asked", "may_ask"), [(kinds_asked_for, MAY_ASK_FOR_A_KIND), (formats_named, MAY_NAME_A_FORMAT)]
)
def test_nobody_asks_for_a_kind_of_source_or_a_format_but_who_may(
    asked: Callable[[ast.Module], set[str]], may_ask: tuple[str, ...]
) -> None:
    found = {name: asked(tree) for name, tree in modules().items() if not name.startswith(may_ask)}
    assert {name: said for name, said in found.items() if said} == {}


def test_questions_are_seen() -> None:
    asking = ast.parse("match feed.source:\n case KafkaSource(): pass\nisinstance(source, config.CanalSource | X)")
    assert kinds_asked_for(asking) == {"KafkaSource", "CanalSource"}
    assert formats_named(ast.parse("if name in ('dts-avro', 'other'): pass")) == {"dts-avro"}
    # The places that may ask do: else these tests would look for names that are no more.
    opening = {name: kinds_asked_for(tree) for name, tree in modules().items() if name in MAY_ASK_FOR_A_KIND}
    assert all(opening.values()) and len(opening) == 2
