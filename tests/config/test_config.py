"""The configuration file as a person writes it: `cases/*.txt` say what it means, and what is said of each mistake."""

import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from cdc_lakehouse.config import LakehouseConfig, config_path, load
from cdc_lakehouse.errors import ConfigurationError
from tests.boundaries.configuration import json_schema, without_secrets
from tests.kit.case_files import Case, read_cases

ROOT = Path(__file__).parents[2]
SECRET = "hunter2"
SHOP: dict[str, Any] = {
    "lake": {"warehouse": "warehouse", "catalog": {"type": "sql", "uri": "sqlite:///catalog.db"}},
    "feeds": [
        {
            "name": "shop",
            "source": {"type": "storage_sink", "uri": "sink", "protocol": "canal-json"},
            "start_date": "2026-01-01",
        }
    ],
}
CASES = read_cases(*sorted(Path(__file__).parent.glob("cases/*.txt")))


def steps(path: str) -> list[str | int]:
    """The steps of a path such as `feeds[0].source.kafka."group.id"`, as messages write it."""
    found = re.findall(r'\[(\d+)\]|"([^"]+)"|([^.\[\]"(]+(?:\([^)]*\))?)', path)
    return [int(number) if number else quoted or name for number, quoted, name in found]


def write(directory: Path, *lines: str) -> tuple[Path, dict[str, str]]:
    """A file with the edits of these lines, and its environment.

    `path = value` (in YAML) sets a key, `path -` removes one, `$NAME = text` sets a variable; `text` and `bytes` are
    the whole file.
    """
    written, environment, path = json.loads(json.dumps(SHOP)), dict[str, str](), directory / "lakehouse.yaml"
    content: bytes | None = None
    for line in lines:
        key, _, value = line.partition(" = ")
        if key.startswith("$"):
            environment[key[1:]] = value
        elif key in ("text", "bytes"):
            content = json.loads(value).encode("utf-8" if key == "text" else "latin-1")
        else:
            *parents, last = steps(key.removesuffix(" -"))
            place: Any = written
            for step in parents:
                place = place[step] if isinstance(step, int) else place.setdefault(step, {})
            if key.endswith(" -"):
                del place[last]
            else:
                place[last] = yaml.safe_load(value)
    path.write_bytes(yaml.safe_dump(written, allow_unicode=True).encode() if content is None else content)
    return path, environment


def read(directory: Path, *lines: str) -> LakehouseConfig:
    return load(*write(directory, *lines))


def shown(config: LakehouseConfig, path: str) -> str:
    """The value at a path, in JSON, or the error. `of(x, y)` calls the method with texts, `shown` is what is shown of a
    section."""
    value: Any = config
    try:
        for step in steps(path):
            if call := re.fullmatch(r"(\w+)\((.*)\)", str(step)):
                value = getattr(value, call[1])(*call[2].split(", "))
            elif step == "shown":
                value = without_secrets(value)
            else:
                value = value[step] if isinstance(step, int) else getattr(value, step)
    except ConfigurationError as error:
        return str(error)
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: Any) -> Any:
    """A value for JSON, without what is not set."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        values = {fields[name].alias or name: plain(getattr(value, name)) for name in fields if name != "buckets"}
        return {name: each for name, each in values.items() if each is not None and each is not False}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def results(case: Case, directory: Path) -> Iterator[str]:
    def shortened(line: str) -> str:
        return line.replace(str(directory), "<dir>").replace(str(directory.parent), "<dir>/..")

    try:
        config = read(directory, *case.given)
    except ConfigurationError as error:
        first, *others = str(error).splitlines()
        lines = [line.strip() for line in others] if first.endswith(" is not valid:") else [first, *others]
        yield from map(shortened, lines)
    else:
        assert SECRET not in repr(config) + str(config)
        for line in case.results:
            path = line.removeprefix("-> ").partition(" =")[0]
            yield f"-> {path} = {shortened(shown(config, path))}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_config_file_gives_values_or_messages(case: Case, tmp_path: Path, update: bool) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_text("x" * 70_000, encoding="utf-8")
    found = list(results(case, tmp_path))
    assert found, "a case without a result"
    refused = not found[0].startswith("-> ")
    assert not (refused and any("er2" in line for line in found)), "a message shows a secret"
    case.compare(found, update=update)


def test_unreadable_file_is_reported_with_the_variable(tmp_path: Path) -> None:
    missing = rf"{tmp_path / 'none.yaml'}(?s:.*)CDC_LAKEHOUSE_CONFIG"
    for path, words in ((tmp_path / "none.yaml", missing), (tmp_path, "cannot read")):
        with pytest.raises(ConfigurationError, match=words):
            load(path, {})


def test_file_is_the_environments_or_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for environment in ({}, {"CDC_LAKEHOUSE_CONFIG": ""}):
        assert config_path(environment) == tmp_path / "lakehouse.yaml"
    path, _ = write(tmp_path)
    other = path.rename(tmp_path / "other.yaml")
    assert load(environment={"CDC_LAKEHOUSE_CONFIG": str(other)}) == load(Path("other.yaml"), {})


def test_keep_days_are_limited_by_default_except_events(tmp_path: Path) -> None:
    kept = read(tmp_path).feeds[0].maintenance.model_dump()
    days = {key: value for key, value in kept.items() if key.startswith("keep_") and key.endswith("_days")}
    assert len(days) > 3 and {key for key, value in days.items() if value is None} == {"keep_superseded_days"}


@given(st.text(max_size=70))
def test_feed_names_are_plain_identifiers(name: str) -> None:
    written = json.loads(json.dumps(SHOP))
    written["feeds"][0]["name"] = name
    is_plain = bool(re.match(r"[a-z][a-z0-9_]*\Z", name, re.ASCII)) and len(name) <= 63
    try:
        LakehouseConfig.model_validate(written)
    except ValueError:
        assert not is_plain
    else:
        assert is_plain


# --- The JSON Schema that editors take ---

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_schema_agrees_with_loading(tmp_path: Path) -> None:
    """It marks what loading refuses, but for what a schema cannot say, and takes what is loaded."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    marked = 0
    for case in CASES:
        if any(line.startswith(("text", "bytes")) for line in case.given):
            continue
        path, _ = write(tmp_path, *case.given)
        errors = list(VALIDATOR.iter_errors(yaml.safe_load(path.read_text(encoding="utf-8"))))
        loads = case.results[0].startswith("-> ")
        assert not (loads and errors), (case.given, [error.message for error in errors])
        marked += bool(errors)
        must = any(re.search(": (is missing|is not a known key|is not a key)", line) for line in case.results)
        assert errors or not must, case.given
    assert marked > 80


def test_every_section_is_described_and_closed() -> None:
    """The catalog alone takes other keys: PyIceberg's properties."""
    sections = {"": SCHEMA, **SCHEMA["$defs"]}
    keys = [(name, key, value) for name, each in sections.items() for key, value in each.get("properties", {}).items()]
    assert len(keys) > 80 and [(name, key) for name, key, value in keys if not value.get("description")] == []
    models = LakehouseConfig.model_json_schema()["$defs"]
    assert [name for name, each in models.items() if each.get("additionalProperties") is not False] == ["CatalogConfig"]
