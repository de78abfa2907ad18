"""The JSON Schema that editors take: what it says of a file is what loading it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cdc_lakehouse.config.json_schema import json_schema
from cdc_lakehouse.config.yaml_file import read_mapping

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
WHOLE: dict[str, Any] = {
    "lake": {
        "warehouse": "./lake",
        "catalog": {"type": "sql", "uri": "sqlite:///lake.db", "echo": True},
        "spark": {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": 8}},
    },
    "feeds": [
        {
            "name": "shop",
            "start_date": "2026-11-01",
            "source": {
                "type": "storage_sink", "uri": "./sink", "protocol": "csv", "csv": {"include-commit-ts": True},
                "max_files": "${FILES:-10}", "date_separator": "${SEPARATOR}",
            },
        },
        {
            "name": "orders",
            "start_date": "2026-11-01",
            "source": {
                "type": "kafka", "format": "dts-avro", "bootstrap_servers": "a:9092,b:9092", "topics": ["t"],
                "kafka": {"fetch.wait.max.ms": 5},
            },
        },
    ],
}  # fmt: skip


def without(*place: str | int) -> dict[str, Any]:
    document = yaml.safe_load(yaml.safe_dump(WHOLE))
    node = document
    for step in place[:-1]:
        node = node[step]
    del node[place[-1]]
    return document


def with_value(value: Any, *place: str | int) -> dict[str, Any]:
    document = yaml.safe_load(yaml.safe_dump(WHOLE))
    node = document
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    return document


def test_the_schema_is_a_valid_one_and_takes_a_configuration_with_references() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert [error.message for error in VALIDATOR.iter_errors(WHOLE)] == []


@pytest.mark.parametrize(
    "document",
    [
        without("lake"),
        without("feeds", 0, "source", "uri"),
        with_value("cvs", "feeds", 0, "source", "protocol"),
        with_value("many", "feeds", 0, "source", "max_files"),
        with_value("day", "feeds", 0, "source", "date_seperator"),
        with_value("Shop", "feeds", 0, "name"),
        with_value([], "feeds"),
    ],
    ids=["no lake", "no uri", "a protocol", "a number", "an unknown key", "a name", "no feeds"],
)
def test_what_loading_refuses_is_marked(document: dict[str, Any]) -> None:
    assert list(VALIDATOR.iter_errors(document))


def test_every_key_has_a_description() -> None:
    missing = [
        f"{name}.{key}"
        for name, section in {**SCHEMA["$defs"], "": SCHEMA}.items()
        for key, value in section.get("properties", {}).items()
        if "description" not in value
    ]
    assert missing == []


def test_whole_configurations_of_the_documentation_are_valid(tmp_path: Path) -> None:
    found: dict[Path, list[str]] = {}
    for page in PAGES:
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            if re.search(r"^lake:", block, re.MULTILINE) and re.search(r"^feeds:", block, re.MULTILINE):
                file = tmp_path / "lakehouse.yaml"
                file.write_text(block, encoding="utf-8")
                errors = [error.message for error in VALIDATOR.iter_errors(read_mapping(file, "write it"))]
                found.setdefault(page, []).extend(errors)
    assert len(found) > 3 and not any(found.values()), found
