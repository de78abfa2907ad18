"""What statements make of tables is what servers made of them: a real MySQL (`golden/ddl.jsonl`, `golden/types.jsonl`),
and the TiDB that wrote the sinks of data sets, beside what it said of its tables and statements (`expected.json`)."""

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.mysql_types import iceberg_type, type_text
from cdc_lakehouse.changelog.versions import kind_of_action
from cdc_lakehouse.config import DateSeparator
from cdc_lakehouse.sources.object_store import LocalStore
from cdc_lakehouse.sources.sink.paths import list_sink, read_schema_file
from tests.changelog.statements import ProductTables, differences, history
from tests.kit import data_sets as packed
from tests.kit import golden, truth
from tests.kit.hand_sinks import layout_with
from tests.kit.truth import Truth

NAMES = packed.names("canal-json")
# A schema file does not say the width of a number, ZEROFILL or the dimensions of a vector; the server that made the
# data sets leaves backslashes in labels as they are.
UNSAID = re.compile(r"(?<=int)\(\d+\)(?= unsigned zerofill)| zerofill|(?<=float)\(\d+,\d+\)|(?<=vector)\(\d+\)|\\+")


def test_numbers_name_what_statements_do(data_sets: Path) -> None:
    """The kind of TiDB's number is the kind of the statement's only clause."""
    files = [data_sets / "canal-json" / name / "expected.json" for name in NAMES]
    statements = [ddl for file in files for ddl in json.loads(file.read_text(encoding="utf-8"))["ddl"]]
    assert len({ddl["kind"] for ddl in statements}) > 10
    for ddl in statements:
        kinds = {clause.kind for clause in parse(ddl["query"], backslash_escapes=False)}
        told = kind_of_action(ddl["kind"])
        assert len(kinds) > 1 if told == "multi_schema_change" else kinds == {told}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fault_missing_schema"])
def test_logs_of_files_end_in_the_servers_own_tables(data_sets: Path, name: str) -> None:
    source = Truth(data_sets / "canal-json" / name)
    store, layout = (
        LocalStore(source.dataset / "tree"),
        layout_with(cast("DateSeparator", source.expected["sink"]["date"])),
    )
    listing = list_sink(store, layout)
    assert (listing.unknown, listing.unreadable) == ([], [])
    assert listing.schemas and bool(listing.data) == (name != "ddl_only")
    for file in listing.data:
        event = json.loads((source.dataset / "tree" / file.path).read_bytes().partition(b"\r\n")[0])
        assert (file.database, file.table) == (event["database"], event["table"])
    found = history(*(read_schema_file(store, file) for file in listing.schemas))
    lives = [life.last for life in found.incarnations().values() if life.dropped_ts is None]
    live = {(version.name.database, version.name.table): version for version in lives}
    expected = source.tables(-1)
    # A table that is older than the feed and has had no change is in no file.
    assert set(live) == set(expected) - ({("test", "idle")} if name == "existing_before_feed" else set())
    for table, version in live.items():
        server = [(column["name"], column["nullable"]) for column in expected[table]["columns"]]
        assert [(column.name, column.nullable) for column in version.carried] == server
        assert list(version.key_names) == expected[table]["key"]
        for column, own in zip(version.carried, expected[table]["columns"], strict=True):
            kind = column.type
            if kind.elements or kind.name not in ("enum", "set"):
                assert UNSAID.sub("", type_text(kind)) == UNSAID.sub("", own["type"])
            assert iceberg_type(kind) == truth.iceberg_type(own["type"]).replace(", ", ",")
    assert [version.hold for version in found.versions if version.hold] == []


@pytest.mark.parametrize("question", golden.read("ddl"), ids=lambda question: question["about"])
def test_tables_are_those_of_mysql(question: dict[str, Any]) -> None:
    here = ProductTables("d")
    for statement, tables in question["log"].items():
        here.run(statement)
        assert not list(differences(tables, [(each.name.table, each) for each in here.tables])), statement


def test_types_are_those_of_mysql() -> None:
    wrong = dict[str, tuple[str, str]]()
    for question in golden.read("types"):
        here = ProductTables("d")
        here.run(f"CREATE TABLE t (c {question['declared']})")
        shown = type_text(here.tables[0].columns[0].type, widths=True)
        if shown != question["is"]:
            wrong[question["declared"]] = question["is"], shown
    assert not wrong
