"""What the documentation names is there: files, modules, commands, targets, links between its pages. Pages that are
made from the code are up to date; names that other pages list or quote are those of the code."""

import ast
import json
import re
import runpy
import shlex
import subprocess
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import click
import jsonschema
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow

from cdc_lakehouse.assets import checks
from cdc_lakehouse.changelog.events import RowChange
from cdc_lakehouse.changelog.schema import ChangeKind, SchemaChange, TableName, TableVersion
from cdc_lakehouse.changelog.stored import to_json
from cdc_lakehouse.cli import main
from cdc_lakehouse.commands.init import ENGINES
from cdc_lakehouse.commands.metrics import METRICS, PREFIX
from cdc_lakehouse.config import FeedConfig, LakehouseConfig, load
from cdc_lakehouse.decoders.event_schema import EVENTS
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.lake import names as properties
from cdc_lakehouse.lake.tables import checkpoints, lease, quarantine, records, schema_history, segments, source_metadata
from cdc_lakehouse.lake.tables.small_table import schema_of
from tests.boundaries.configuration import json_schema, read_mapping
from tests.kit.dagster_feed import feed_named, keys

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
ENDINGS = "py|md|png|txt|toml|yaml|json|proto|lock"
# A path with a folder in it, or a file of a kind that the project has.
PATH = re.compile(rf"(?<![\w/.<:*-])((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:{ENDINGS}))(?![\w/<*])")
PACKAGES = {path.name for path in (ROOT / "cdc_lakehouse").iterdir() if path.is_dir()}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    """Paths in code spans, whether from the root or from the package."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = [path for span in re.findall(r"`([^`\n]+)`", prose) for path in PATH.findall(span)]
    known = PACKAGES | {"cdc_lakehouse", "tests", "docs", "scripts", "benchmarks"}
    named = [path for path in found if path.split("/")[0] in known or path.endswith(".py")]
    assert [path for path in named if not ((ROOT / path).exists() or (ROOT / "cdc_lakehouse" / path).exists())] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        place = (page.parent / path) if path else page
        headings = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
        broken += [] if place.exists() and (not anchor or anchor in anchors) else [target]
    assert not broken


def commands(group: click.Group, *above: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)
        else:
            yield (*above, name), command


COMMANDS = dict(commands(main))
ALL = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_every_command_that_is_named_is_there_with_its_options() -> None:
    wrong = []
    for span in re.findall(r"cdc-lakehouse ([^`\n]+)", ALL):
        words = span.split()
        command = next((c for n in (2, 1) if (c := COMMANDS.get(tuple(words[:n]))) is not None), None)
        if command is None:
            if re.match(r"[a-z]", span):
                wrong.append(span)
            continue
        options = {option for parameter in command.params for option in parameter.opts}
        wrong += [f"{span}: {option}" for option in re.findall(r"--[a-z-]+", span) if option not in options]
    assert not wrong


# Programs of others, which no test here can ask for their options.
OTHERS = {
    "aws", "cd", "cdc", "dagster", "dg", "docker", "dumpling", "eval", "export", "make", "mydumper", "mysqlsh", "pip",
    "printf", "uv",
}  # fmt: skip


def test_every_command_line_of_a_block_is_understood() -> None:
    """Programs that nobody has, arguments that are missing, values that are not allowed."""
    unknown, parsed = [], 0
    for page in PAGES:
        lines = "\n".join(blocks(page, *SHELL)).replace("\\\n", " ").splitlines()
        for line in filter(None, lines):
            # What another program is piped into is ours.
            program, _, rest = re.sub(r"^mysqldump .* \| ", "", line).removeprefix(".venv/bin/").partition(" ")
            if program == "cdc-lakehouse":
                parse(rest)
                parsed += 1
            elif program not in OTHERS and not line.startswith((".venv/bin/python -m ", "python -m ", "#", "./")):
                unknown.append(f"{name(page)}: {line}")
    assert parsed > 60 and not unknown


def parse(line: str) -> None:
    words = shlex.split(re.split(r" [<>|&]", line)[0], comments=True)
    n = next(n for n in (2, 1) if tuple(words[:n]) in COMMANDS)
    # A command keeps the help option of its first context, also for the tests that come after this one.
    COMMANDS[tuple(words[:n])].make_context(" ".join(words[:n]), words[n:], **main.context_settings)


def test_every_command_has_valid_examples() -> None:
    for names, command in COMMANDS.items():
        assert "-h, --help" in CliRunner().invoke(main, [*names, "-h"]).stdout, names
        examples = re.findall(rf"cdc-lakehouse ({' '.join(names)}(?: .*)?)$", command.help or "", re.MULTILINE)
        assert examples, f"{names} has no example"
        for example in examples:
            parse(example)


def test_every_command_has_json() -> None:
    without = {
        names for names, command in COMMANDS.items() if not any("--json" in each.opts for each in command.params)
    }
    # The schema and entries are JSON anyway, metrics have a form of their own, and a page is for people.
    assert without == {("config", "schema"), ("canal", "tail"), ("metrics",), ("ui",)}


def test_every_target_and_module_that_is_named_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    # With nothing behind it but settings and a comment: messages advise to make room.
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)(?=`|$| +[#A-Z])", ALL, re.MULTILINE))
    assert named and named <= targets
    modules = set(re.findall(r"python -m ((?:benchmarks|tests|cdc_lakehouse)[\w.]*)", ALL))
    places = [ROOT / module.replace(".", "/") for module in modules]
    assert modules
    assert [str(place) for place in places if not place.is_dir() and not place.with_suffix(".py").exists()] == []


LANGUAGES = {"bash", "json", "mermaid", "python", "sql", "text", "toml", "yaml"}


def test_every_block_says_what_it_is_and_stands_where_every_reader_of_markdown_sees_it() -> None:
    """The readers of the site take what stands in a list only where it is indented by four."""
    wrong = []
    for page in PAGES:
        for indent, language in re.findall(r"^( *)```(\w*)[^\n]*\n.*?^ *```$", page.read_text("utf-8"), re.M | re.S):
            if len(indent) % 4 or (language or "bash") not in LANGUAGES or not (language or page == ROOT / "README.md"):
                wrong.append(f"{name(page)}: {indent}```{language}")
    assert not wrong


LAKE = {"warehouse": "./lake", "catalog": {"type": "sql", "uri": "sqlite:///lake.db"}}
SINK = {"type": "storage_sink", "uri": "/d", "protocol": "csv"}
FEED: dict[str, Any] = {"name": "shop", "start_date": "2026-11-01", "source": SINK}
CSV = {"include-commit-ts": True}


def configuration(file: Path) -> dict[str, Any] | None:
    """What a block shows of lakehouse.yaml, with what it leaves out put in; None where it shows something else."""
    try:
        shown = read_mapping(file, "write it")
    except ConfigurationError:  # A list.
        return None
    shown = {"source": {**FEED["source"], **shown}} if "initial" in shown else shown
    shown = {"lake": {**LAKE, **shown}} if "catalog" in shown else shown
    if not shown.keys() <= LakehouseConfig.model_fields.keys() | FeedConfig.model_fields:
        return None
    if not shown.keys() <= LakehouseConfig.model_fields.keys():
        shown = {"feeds": [shown]}
    feeds: list[Any] = [{**FEED, **feed} for feed in shown.get("feeds", [{}])]
    for feed in feeds:
        feed["source"] = {"csv": CSV, **feed["source"]} if feed["source"].get("protocol") == "csv" else feed["source"]
    return {**shown, "lake": {**LAKE, **shown.get("lake", {})}, "feeds": feeds}


def test_every_yaml_block_is_a_configuration_that_loads_or_says_what_it_is(tmp_path: Path) -> None:
    """Fragments, too. The loader finds what a JSON Schema cannot say."""
    loaded, unknown, file = 0, [], tmp_path / "lakehouse.yaml"
    schema = jsonschema.Draft202012Validator(json_schema())
    for page in PAGES:
        for block in blocks(page, "yaml"):
            parsed = yaml.safe_load(block)
            file.write_text(block, encoding="utf-8")
            if (document := configuration(file)) is not None:
                assert [error.message for error in schema.iter_errors(document)] == [], page
                file.write_text(yaml.safe_dump(document), encoding="utf-8")
                load(file, dict.fromkeys(re.findall(r"\$\{(\w+)", block), "https://host.example/value"))
                loaded += 1
            elif not re.match(r"# [\w./-]+\.ya?ml\n|# yaml-language-server:", block):
                (key, *_) = parsed
                unknown += [] if key in FILES else [f"{name(page)}: {key}"]
                if key in FILES:
                    FILES[key](block)
    assert loaded > 20 and not unknown


def check_rules(block: str) -> None:
    """Of Prometheus: they ask for metrics that are there."""
    asked = set(re.findall(rf"\b{PREFIX}(\w+)", block))
    assert asked and asked <= METRICS.keys()


def check_instance(block: str) -> None:
    """Of dagster.yaml: as a deployment has it."""
    instance = yaml.safe_load((ROOT / "deploy/dagster.yaml").read_text("utf-8"))
    assert yaml.safe_load(block).items() <= instance.items()


FILES = {"groups": check_rules, "concurrency": check_instance, "ops": lambda _: None}
"""Files of others, by their first key. What a job is launched with (ops) is in the tests of the job."""

SHELL = ("", "bash")


def blocks(page: Path, *languages: str) -> list[str]:
    """The contents of the fenced blocks of a page in these languages; "" is none."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(each[3]) for each in found if each[2] in languages]


def test_every_package_that_is_declared_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    groups = [project["project"]["dependencies"], *extras, *project["dependency-groups"].values()]
    names = {re.match(r"[\w-]+", line)[0] for group in groups for line in group}  # pyright: ignore[reportOptionalSubscript]
    page = (DOCS / "dependencies.md").read_text(encoding="utf-8")
    assert {each for each in names if f"`{each}" not in page} == set()


def test_the_navigation_of_the_site_has_every_page_once() -> None:
    named = re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_tree_of_packages_is_the_one_that_the_architecture_shows() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = subprocess.run(["git", "ls-files", "cdc_lakehouse"], cwd=ROOT, check=True, capture_output=True, text=True)
    folders = {str(Path(path).parent.relative_to("cdc_lakehouse")) for path in listed.stdout.split()} - {"."}
    assert [folder for folder in sorted(folders) if f"{folder}/" not in text] == []


# --- Pages that are made from the code, and names of the code that pages list or quote ---


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
    "kinds of changes": (lambda: found(r"(?:^|; )`(\w+)`:", meaning(CHANGE, "kind")), lambda: {*get_args(ChangeKind)}),
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
    for column in Catalog._convert_schema_if_needed(SCHEMAS[table]).fields:
        outer, _, inner = str(column.field_type).partition("<")
        own, text = documented[column.name]
        assert re.match(rf"{outer}\b", own), column
        fields = re.findall(r"(\w+): (?:optional|required) ", inner)
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
