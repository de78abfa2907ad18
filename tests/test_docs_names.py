"""Pages that list columns, properties, stored keys, kinds, assets, checks or error classes have those of the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow

from cdc_lakehouse.assets import checks, keys
from cdc_lakehouse.changelog.events import RowChange
from cdc_lakehouse.changelog.schema import ChangeKind, SchemaChange, TableName, TableVersion
from cdc_lakehouse.changelog.stored import change_to_json, version_to_json
from cdc_lakehouse.decoders.event_schema import EVENTS
from cdc_lakehouse.lake import properties
from cdc_lakehouse.lake.tables import (
    approvals,
    checkpoints,
    frontiers,
    lease,
    manual_holds,
    quarantine,
    record_writer,
    schema_history,
    segments,
    source_metadata,
)

ROOT = Path(__file__).parents[1]
TABLES = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "events": EVENTS,
    "records": schema_to_pyarrow(record_writer.SCHEMA, include_field_ids=False),
    "segments": segments.SCHEMA,
    "frontier": frontiers.SCHEMA,
    "signals": source_metadata.SCHEMA,
    "approvals": approvals.SCHEMA,
    "holds": manual_holds.SCHEMA,
    "schema_history": schema_history.SCHEMA,
    "quarantine": quarantine.SCHEMA,
    "checkpoints": checkpoints.SCHEMA,
}


def section(page: str, heading: str) -> str:
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of tables, without headings."""
    for line in re.findall(r"^\| (`.*) \|$", text, re.MULTILINE):
        yield re.split(r" \| ", line)


def names(cell: str) -> list[str]:
    """Of a cell that is names alone."""
    return re.findall(r"`([^`]+)`", cell) if re.fullmatch(r"`[^`]+`(, `[^`]+`)*", cell) else []


# --- Machinery tables ---


def test_every_machinery_table_has_a_section() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "cdc_lakehouse").rglob("*.py"))
    made = set(re.findall(r'\b(?:SmallTable|system_table)\([^()"]*"(\w+)"', code))
    assert made == {*SCHEMAS, "lease"}
    assert set(re.findall(r"^## `(\w+)`$", TABLES, re.MULTILINE)) == made


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_of_a_machinery_table_has_its_row_and_type(table: str) -> None:
    documented: dict[str, str] = {}
    nested: dict[str, str] = {}
    for cell, kind, *meaning in rows(section(TABLES, f"`{table}`").partition("| kind |")[0]):
        kinds = kind.split(", ") if "<" not in kind and len(names(cell)) > 1 else [kind]
        documented |= dict(zip(names(cell), kinds * (len(names(cell)) // len(kinds)), strict=True))
        nested |= dict.fromkeys(names(cell), kind + " ".join(meaning))
    assert documented.keys() == set(SCHEMAS[table].names)
    for field in SCHEMAS[table]:
        assert re.match(rf"{type_name(field.type)}\b", documented[field.name]), field
        assert [name for name in nested_names(field.type) if not re.search(rf"\b{name}\b", nested[field.name])] == []


def type_name(kind: pa.DataType) -> str:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "list"
    of_kind = {
        pa.string(): "string", pa.large_string(): "string", pa.binary(): "binary", pa.large_binary(): "binary",
        pa.int64(): "long", pa.int32(): "int", pa.bool_(): "boolean", pa.timestamp("us", "UTC"): "timestamptz",
    }  # fmt: skip
    return of_kind[kind]


def nested_names(kind: pa.DataType) -> list[str]:
    element = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    return [each.name for each in element] if element is not None and pa.types.is_struct(element) else []


def test_the_lease_has_the_column_that_is_told() -> None:
    assert [f"`{name}` (string)" in section(TABLES, "`lease`") for name in lease._SCHEMA.names] == [True]


def test_every_kind_of_a_segment_and_of_a_signal_is_told() -> None:
    told = {cell: meaning for cell, _, meaning in rows(section(TABLES, "`segments`"))}
    assert set(re.findall(r"(?:^|; )`(\w+)`(?= of|:)", told["`kind`"])) == set(get_args(segments.Kind))
    _, _, kinds = section(TABLES, "`signals`").partition("| kind |")
    signals = get_type_hints(source_metadata.Signal)["kind"]
    assert {name for cell, *_ in rows(kinds) for name in names(cell)} == set(get_args(signals))


# --- Properties and stored forms ---


def test_every_property_is_told() -> None:
    stored = {value for value in vars(properties).values() if isinstance(value, str) and value.startswith("cdc.")}
    told = set(re.findall(r"`(cdc\.[a-z-]+\.?)(?:<topic>)?`", TABLES))
    assert stored and told == stored


STORED = section(TABLES, "Stored form")
DEFINITION, _, CHANGE = STORED.partition("\n`change`, in form")
TOLD: Final = set(re.findall(r'[`"](\w+)[`"]', STORED))


def keys_told(text: str) -> set[str]:
    return {name for cell, *_ in rows(text) for name in names(cell)}


def all_keys(stored: object) -> set[str]:
    if isinstance(stored, list):
        return set[str]().union(*map(all_keys, stored))
    return set(stored).union(*map(all_keys, stored.values())) if isinstance(stored, dict) else set()


@given(st.from_type(TableVersion))
def test_every_key_of_a_stored_version_is_told(version: TableVersion) -> None:
    stored: dict[str, Any] = json.loads(version_to_json(version))
    assert stored.keys() <= keys_told(DEFINITION)
    assert all_keys(stored) <= TOLD


@given(st.from_type(SchemaChange))
def test_every_key_of_a_stored_change_is_told(change: SchemaChange) -> None:
    stored: dict[str, Any] = json.loads(change_to_json(change))
    assert stored.keys() <= keys_told(CHANGE)
    assert all_keys(stored) <= TOLD


def test_every_kind_of_a_change_is_told() -> None:
    (meaning,) = [meaning for cell, meaning in rows(CHANGE) if cell == "`kind`"]
    assert set(re.findall(r"(?:^|; )`(\w+)`:", meaning)) == set(get_args(ChangeKind))


# --- Words ---


def word(name: str) -> str:
    """What the architecture says of a word."""
    return re.split(r"\n- |\n\n", ARCHITECTURE.partition(f"**{name}**")[2])[0].partition("**")[0]


def test_the_architecture_has_every_kind_of_a_segment() -> None:
    assert set(re.findall(r"`(\w+)` \(", word("segment"))) == set(get_args(segments.Kind))


def test_the_architecture_has_every_op_of_an_event() -> None:
    changes = set(get_args(get_type_hints(RowChange)["op"]))
    (op,) = [meaning for cell, _, meaning in rows(section(TABLES, "`events`")) if cell == "`op`"]
    # No message has rows of an initial load: `decoders/files/dump_rows.py` gives them their op.
    assert set(re.findall(r"`([A-Z])`", word("event"))) == set(re.findall(r"`([A-Z])`", op)) == {*changes, "R"}


# --- Dagster ---


def asset_keys() -> Iterator[tuple[str, ...]]:
    for name, key in vars(keys).items():
        if name.endswith("_key") and not name.startswith("_"):
            table = [TableName("db", "table")] if "table" in get_type_hints(key) else []
            yield tuple(key("feed", *table).path)


def test_the_architecture_has_every_asset_key() -> None:
    told = {tuple(each.split(", ")) for each in re.findall(r"`\[(feed, [^\]]+)\]`", ARCHITECTURE)}
    assert told == set(asset_keys())


def test_what_every_asset_shows_is_told() -> None:
    told = {name.split("/")[0] for cell, *_ in rows(section(OPERATIONS, "What assets show")) for name in names(cell)}
    assert told == {kind for _, kind, *_ in asset_keys()}


def test_every_check_is_told_at_its_asset() -> None:
    made = {(check.name, check.asset("feed").path[1]) for check in checks._FEED_CHECKS}
    made |= {(name, "current") for name in checks._TABLE_CHECKS} | {(checks.EQUALS_SOURCE, "checkpoint")}
    told = [(check.strip("`"), asset.strip("`")) for asset, check, *_ in rows(section(OPERATIONS, "Checks"))]
    assert sorted(told) == sorted(made)


# --- The quarantine ---


def test_every_error_class_is_told() -> None:
    code = ROOT / "cdc_lakehouse"
    sources = [code / "decoders" / "problems.py", *(code / "pipeline").glob("*.py")]
    found = re.findall(r'^[A-Z\d_]+: Final = "([A-Z][a-z]+[A-Z]\w+)"$', "\n".join(map(Path.read_text, sources)), re.M)
    told = {name for cell, *_ in rows(section(OPERATIONS, "Quarantine")) for name in names(cell)} - {"error_class"}
    assert told and told == set(found)
