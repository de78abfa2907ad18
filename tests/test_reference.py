"""Pages that are made from the code are up to date; names that other pages list or quote are those of the code."""

from __future__ import annotations

import ast
import json
import re
import runpy
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow

from cdc_lakehouse.assets import checks
from cdc_lakehouse.changelog.events import RowChange
from cdc_lakehouse.changelog.schema import ChangeKind, SchemaChange, TableName, TableVersion
from cdc_lakehouse.changelog.stored import to_json
from cdc_lakehouse.commands.init import ENGINES
from cdc_lakehouse.decoders.event_schema import EVENTS
from cdc_lakehouse.lake import names as properties
from cdc_lakehouse.lake.tables import checkpoints, lease, quarantine, records, schema_history, segments, source_metadata
from cdc_lakehouse.lake.tables.small_table import schema_of
from tests.kit.dagster_feed import feed_named, keys

ROOT: Final = Path(__file__).parents[1]
TABLES, HELD, DAGSTER, READERS, TROUBLESHOOTING = (
    (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    for name in ("tables", "held-tables", "dagster-instance", "readers", "troubleshooting")
)
CODE: Final = {path: path.read_text("utf-8") for path in (ROOT / "cdc_lakehouse").rglob("*.py")}


def section(page: str, heading: str) -> str:
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of tables, without headings."""
    for line in re.findall(r"^\| (`.*) \|$", text, re.MULTILINE):
        yield re.split(r" \| ", line)


def names(cell: str) -> list[str]:
    """Of a cell that is names alone."""
    return re.findall(r"`([^`]+)`", cell) if re.fullmatch(r"`[^`]+`(, `[^`]+`)*", cell) else []


def first_cells(text: str) -> set[str]:
    return {name for cell, *_ in rows(text) for name in names(cell)}


def meaning(text: str, name: str) -> str:
    """The last cell of the row of a name."""
    (found,) = [cells[-1] for cells in rows(text) if cells[0] == f"`{name}`"]
    return found


def found(pattern: str, text: str, flags: int = 0) -> set[Any]:
    return set(re.findall(pattern, text, flags))


# --- Pages that are made ---


@pytest.mark.slow
def test_made_pages_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "reference.py"), run_name="reference")
    assert made["stale"]() == [], "run `make reference`"


@pytest.mark.slow
def test_messages_of_troubleshooting_are_in_the_code() -> None:
    nodes = (node for text in CODE.values() for node in ast.walk(ast.parse(text)))
    said = {" ".join(words(node).split()) for node in nodes if isinstance(node, ast.JoinedStr | ast.Constant)} - {"…"}
    quoted = [
        message
        for row in re.findall(r"^\| (`.+?) \|", TROUBLESHOOTING, re.MULTILINE)
        for message in re.findall(r"`([^`]+)`", row)
        if " " in message
    ]
    assert len(quoted) > 20
    for message in quoted:
        pieces = [piece.strip(" :'") for piece in message.split("…") if len(piece.strip(" :?'")) > 2]
        assert any(all(piece in text for piece in pieces) for text in said), message


def words(node: ast.AST) -> str:
    """A text of the code, with `…` for what is known only when it is made."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(words, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"


# --- Names that pages list ---

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "segments": segments.SCHEMA,
    "records": schema_to_pyarrow(records.SCHEMA, include_field_ids=False),
    "events": EVENTS,
    "schema_history": schema_history.SCHEMA,
    "quarantine": quarantine.SCHEMA,
    "checkpoints": checkpoints.SCHEMA,
    "decisions": schema_of(quarantine.Decision),
    "frontier": schema_history.FRONTIER_SCHEMA,
    "signals": source_metadata.SCHEMA,
}
"""The machinery tables that have rows."""

ICEBERG_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.string(): "string", pa.large_string(): "string", pa.int64(): "long", pa.int32(): "int", pa.bool_(): "boolean",
    pa.binary(): "binary", pa.large_binary(): "binary", pa.timestamp("us", "UTC"): "timestamptz",
}  # fmt: skip


def iceberg_type(kind: pa.DataType) -> str:
    """An Arrow type as Iceberg writes it."""
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return f"list<{iceberg_type(kind.value_type)}>"
    if isinstance(kind, pa.StructType):
        return f"struct<{', '.join(f'{each.name}: {iceberg_type(each.type)}' for each in kind)}>"
    return ICEBERG_TYPES[kind]


OF_KEY: Final = {"table": TableName("<database>", "<table>"), "database": "<database>"}


def asset_keys() -> set[tuple[str, ...]]:
    return {
        tuple(
            key(feed_named("feed"), *[example for name, example in OF_KEY.items() if name in get_type_hints(key)]).path
        )
        for name, key in vars(keys).items()
        if name.endswith("_key") and not name.startswith("_")
    }


ERROR_CLASS: Final = re.compile(r'^[A-Z\d_]+: Final = "([A-Z][a-z]+[A-Z]\w+)"$', re.MULTILINE)
STORED: Final = section(TABLES, "Stored form")
DEFINITION, _, CHANGE = STORED.partition("\n`change`, in form")
OPS: Final = {*get_args(get_type_hints(RowChange)["op"]), "R"}  # Rows of an initial load have R; no message has.

NAMED: Mapping[str, tuple[Callable[[], Set[Any]], Callable[[], Set[Any]]]] = {
    "machinery tables": (
        lambda: found(r"^## `(\w+)`$", TABLES, re.MULTILINE),
        lambda: found(r'\b(?:SmallTable|system_table)\([^()"]*"(\w+)"', "\n".join(CODE.values())) | {*SCHEMAS, "lease"},
    ),
    "column of the lease": (
        lambda: found(r"`(\w+)` \(string\)", section(TABLES, "`lease`")),
        lambda: {*lease._SCHEMA.names},
    ),
    "kinds of segments": (
        lambda: found(r"(?:^|; )`(\w+)`(?= of|:)", meaning(section(TABLES, "`segments`"), "kind")),
        lambda: {*get_args(segments.Kind)},
    ),
    "kinds of signals": (
        lambda: first_cells(section(TABLES, "`signals`").partition("| kind |")[2]),
        lambda: {*get_args(get_type_hints(source_metadata.Signal)["kind"])},
    ),
    "properties": (
        lambda: found(r"`(cdc\.[a-z-]+\.?)(?:<topic>)?`", TABLES),
        lambda: {each for each in vars(properties).values() if isinstance(each, str) and each.startswith("cdc.")},
    ),
    "kinds of changes": (
        lambda: found(r"(?:^|; )`(\w+)`:", meaning(CHANGE, "kind")),
        lambda: {*get_args(ChangeKind)},
    ),
    "ops of events": (lambda: found(r"`([A-Z])`", meaning(section(TABLES, "`events`"), "op")), lambda: OPS),
    "assets with metadata": (
        lambda: {*first_cells(section(DAGSTER, "What assets show"))},
        lambda: {"/".join(path) for _, *path in asset_keys()},
    ),
    "engines and the format version that each is given": (
        lambda: {(cells[0].strip("`"), int(cells[-1])) for cells in rows(section(READERS, "Engines"))},
        lambda: {*ENGINES.items()},
    ),
    "checks": (
        lambda: {(check.strip("`"), asset.strip("`")) for asset, check, *_ in rows(section(DAGSTER, "Checks"))},
        lambda: (
            {(check.name, check.asset(feed_named("x")).path[-1]) for check in checks._FEED_CHECKS}
            | {(checks.EQUALS_SOURCE, "checkpoint"), *((name, "<database>/<table>") for name in checks._TABLE_CHECKS)}
        ),
    ),
    "classes of the quarantine": (
        lambda: first_cells(section(HELD, "Quarantine")) - {"error_class"},
        lambda: {
            name
            for path, text in CODE.items()
            if path.name == "problems.py" or path.parent.name == "pipeline"
            for name in ERROR_CLASS.findall(text)
        },
    ),
}
"""What a page lists, and what the code has."""


@pytest.mark.parametrize("listed", NAMED)
def test_page_lists_the_names_of_the_code(listed: str) -> None:
    page, code = NAMED[listed]
    assert page() == code() != set()


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_has_its_row_type_and_fields(table: str) -> None:
    documented: dict[str, tuple[str, str]] = {}
    for cell, kind, *others in rows(section(TABLES, f"`{table}`").partition("| kind |")[0]):
        of_cell = names(cell)
        kinds = kind.split(", ") if "<" not in kind and len(of_cell) > 1 else [kind]
        for name, own in zip(of_cell, kinds * (len(of_cell) // len(kinds)), strict=True):
            documented[name] = own, kind + " ".join(others)
    assert documented.keys() == set(SCHEMAS[table].names)
    for column in SCHEMAS[table]:
        outer, _, inner = iceberg_type(column.type).partition("<")
        own, text = documented[column.name]
        assert re.match(rf"{outer}\b", own), column
        fields = re.findall(r"(\w+): ", inner)
        assert [name for name in fields if not re.search(rf"\b{name}\b", text)] == []


def all_keys(stored: object) -> set[str]:
    if isinstance(stored, list):
        return set[str]().union(*map(all_keys, stored))
    return set(stored).union(*map(all_keys, stored.values())) if isinstance(stored, dict) else set()


@given(st.from_type(TableVersion), st.from_type(SchemaChange))
def test_every_key_of_a_stored_form_is_listed(version: TableVersion, change: SchemaChange) -> None:
    listed = found(r'[`"](\w+)[`"]', STORED)
    for text, page in ((to_json(version), DEFINITION), (to_json(change), CHANGE)):
        stored: dict[str, Any] = json.loads(text)
        assert stored.keys() <= first_cells(page) and all_keys(stored) <= listed
