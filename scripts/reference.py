"""Writes the pages of docs/reference that say what the code says: commands, configuration, columns, metrics, errors.

    .venv/bin/python scripts/reference.py            # writes them
    .venv/bin/python scripts/reference.py --check    # says which are out of date, and ends with 1

`tests/test_reference.py` compares them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow

ROOT: Final = Path(__file__).parents[1]
# The script is run from a checkout, whatever the working directory is.
sys.path.insert(0, str(ROOT))

from cdc_lakehouse import errors  # noqa: E402
from cdc_lakehouse.assets import checks  # noqa: E402
from cdc_lakehouse.cli import main as command_line  # noqa: E402
from cdc_lakehouse.commands import metrics  # noqa: E402
from cdc_lakehouse.config.file import json_schema  # noqa: E402
from cdc_lakehouse.decoders.event_schema import EVENTS  # noqa: E402
from cdc_lakehouse.decoders.problems import PROBLEMS  # noqa: E402
from cdc_lakehouse.lake.tables import checkpoints, decisions, quarantine, schema_history, segments, source_metadata  # noqa: E402
from cdc_lakehouse.lake.tables import records as record_writer  # noqa: E402
from cdc_lakehouse.lake.tables import schema_history as frontiers  # noqa: E402

PACKAGE: Final = ROOT / "cdc_lakehouse"
FOLDER: Final = ROOT / "docs" / "reference"
_MADE: Final = "<!-- Made by scripts/reference.py from the code. Change the code, then run `make reference`. -->"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table. Pipes and line ends in cells are escaped."""
    escapes = str.maketrans({"|": "\\|", "\n": "\\n", "\r": "\\r"})
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.translate(escapes) for cell in line) + " |" for line in lines]


def page(title: str, *blocks: Sequence[str]) -> str:
    return "\n\n".join([_MADE, f"# {title}", *("\n".join(block) for block in blocks if block)]) + "\n"


# Commands.


def cli_page() -> str:
    blocks = [
        [
            "Every command, with its options, as `--help` prints them. The numbers that commands end with are in",
            "[Exit codes](exit-codes.md). `cdc-lakehouse --version` says which release is installed.",
        ],
        table(
            ["command", "what it does"],
            [[f"[`{name}`](#{name.replace(' ', '-')})", short(command)] for name, command in commands(command_line)],
        ),
    ]
    for name, command in commands(command_line):
        blocks += list(_command(name, command))
    return page("Commands", *blocks)


_HELP: Final = command_line.context_settings["help_option_names"]


def commands(group: click.Group, above: str = "cdc-lakehouse") -> Iterator[tuple[str, click.Command]]:
    """All commands that do something, with their whole names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{above} {name}")
        elif command is not None:
            yield f"{above} {name}", command


def short(command: click.Command) -> str:
    """The first paragraph of its help."""
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())


def _command(name: str, command: click.Command) -> Iterator[list[str]]:
    # A command keeps the option for its help as the first context has it: it is to be that of the program.
    context = click.Context(command, info_name=name, help_option_names=_HELP)
    yield [f"## {name}"]
    yield ["```text", " ".join([name, *command.collect_usage_pieces(context)]), "```"]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        # Click keeps the lines of a paragraph that begins with a backspace: examples, below their heading.
        if paragraph.startswith("\b"):
            heading, *lines = (line.strip() for line in paragraph.lstrip("\b\n").split("\n"))
            yield [heading]
            yield ["```bash", *lines, "```"]
        else:
            yield [paragraph]
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [[f"`{opts}`", text.replace("<", "&lt;")] for opts, text in filter(None, records)]
    yield table(["option", "meaning"], rows)


# Configuration.


def config_page() -> str:
    schema = json_schema()
    sections = list(_sections(schema, schema["$defs"]))
    return page(
        "Keys of lakehouse.yaml",
        [
            "Every key of `lakehouse.yaml`, as `cdc-lakehouse config schema` has them.",
            "[Configuration](../configuration.md) has more on each, with examples.",
            "Any value can be `${NAME}`: it then comes from the environment.",
        ],
        *(block for path, section in sections for block in _section(path, section, schema["$defs"])),
    )


def _sections(schema: Mapping[str, Any], defs: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Sections by path, those above first. One that is used twice is there twice: its keys have another path."""
    yield path, schema
    for key, value in schema.get("properties", {}).items():
        for suffix, name in _references(value):
            yield from _sections(defs[name], defs, f"{path}.{key}".lstrip(".") + suffix)


def _references(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The sections that a value can be, and what comes behind its key in their path."""
    if "$ref" in value:
        yield "", _name(value)
    if isinstance(value.get("items"), dict):
        yield from (("[]" + suffix, name) for suffix, name in _references(value["items"]))
    if isinstance(value.get("additionalProperties"), dict):
        yield from ((".<name>" + suffix, name) for suffix, name in _references(value["additionalProperties"]))
    for tag, reference in value.get("discriminator", {}).get("mapping", {}).items():
        yield f" (type: {tag})", reference.rpartition("/")[2]
    if "discriminator" not in value:
        for each in (*value.get("anyOf", ()), *value.get("oneOf", ())):
            yield from _references(each)


def _name(reference: Mapping[str, str]) -> str:
    return reference["$ref"].rpartition("/")[2]


def _section(path: str, section: Mapping[str, Any], defs: Mapping[str, Any]) -> Iterator[list[str]]:
    yield [f"## {path or 'The file'}"]
    if path and "description" in section:
        yield [" ".join(section["description"].split("\n\n")[0].split())]
    required = section.get("required", ())
    rows = [
        [f"`{key}`", type_text(value, defs), _default(value, key in required), value.get("description", "")]
        for key, value in section.get("properties", {}).items()
    ]
    if rows:
        yield table(["key", "type", "default", "meaning"], rows)
    if section.get("additionalProperties") is True:
        yield ["Further keys are taken as they are."]


def _default(value: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    default = value.get("default")
    return "" if default in (None, [], {}) else f"`{str(default).lower() if isinstance(default, bool) else default}`"


_TYPES: Final = {
    "string": "text", "integer": "whole number", "number": "number", "boolean": "true, false", "null": "",
}  # fmt: skip


def type_text(value: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """A type of JSON Schema in words."""
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if "$ref" in value:
        found = defs[_name(value)]
        return "section" if "properties" in found else type_text(found, defs)
    if "oneOf" in value or "anyOf" in value:
        parts = (
            each for each in value.get("oneOf", value.get("anyOf")) if not str(each.get("pattern")).startswith("\\$")
        )
        return " or ".join(dict.fromkeys(filter(None, (type_text(each, defs) for each in parts))))
    kind = value.get("type")
    if kind == "array":
        return f"list of {type_text(value.get('items', {}), defs) or 'values'}"
    if kind == "object":
        return "map"
    if value.get("format") == "date":
        return "date"
    return " or ".join(filter(None, (_TYPES[each] for each in (kind if isinstance(kind, list) else [kind]) if each)))


# Tables.

TABLES: Final[Mapping[str, pa.Schema]] = {
    "segments": segments.SCHEMA,
    "records": schema_to_pyarrow(record_writer.SCHEMA, include_field_ids=False),
    "events": EVENTS,
    "schema_history": schema_history.SCHEMA,
    "quarantine": quarantine.SCHEMA,
    "checkpoints": checkpoints.SCHEMA,
    "decisions": decisions.SCHEMA,
    "frontier": frontiers.FRONTIER_SCHEMA,
    "signals": source_metadata.SCHEMA,
}
"""The machinery tables that have rows."""

_ICEBERG_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.string(): "string", pa.large_string(): "string", pa.int64(): "long", pa.int32(): "int", pa.bool_(): "boolean",
    pa.binary(): "binary", pa.large_binary(): "binary", pa.timestamp("us", "UTC"): "timestamptz",
}  # fmt: skip


def columns_page() -> str:
    return page(
        "Columns of the machinery tables",
        [
            "The tables of a feed, in the namespace `cdc_<feed>`, with the Iceberg types of their columns.",
            "[Tables](../tables.md) says what each column means.",
        ],
        *(
            block
            for name, schema in TABLES.items()
            for block in ([f"## {name}"], table(["column", "type", "NULL"], [_column_row(each) for each in schema]))
        ),
    )


def _column_row(column: pa.Field) -> list[str]:
    return [f"`{column.name}`", f"`{iceberg_type(column.type)}`", "can be" if column.nullable else "never"]


def iceberg_type(kind: pa.DataType) -> str:
    """An Arrow type as Iceberg writes it."""
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return f"list<{iceberg_type(kind.value_type)}>"
    if isinstance(kind, pa.StructType):
        return f"struct<{', '.join(f'{each.name}: {iceberg_type(each.type)}' for each in kind)}>"
    return _ICEBERG_TYPES[kind]


# Metrics.


def metrics_page() -> str:
    return page(
        "Metrics",
        [
            "What `cdc-lakehouse metrics` gives. All are gauges. What a feed does not have yet has no sample.",
            "[Monitor](../monitoring.md#metrics) says how they are collected, and has rules for Prometheus.",
        ],
        table(
            ["metric", "labels", "meaning"],
            [
                [f"`{metrics.PREFIX}{name}`", ", ".join(f"`{label}`" for label in labels), text]
                for name, (labels, text) in metrics.METRICS.items()
            ],
        ),
    )


# Errors.


def errors_page() -> str:
    return page(
        "Errors, quarantine classes, checks",
        [
            "What the program says when something is wrong, by the words of the message. `…` stands for a name or a",
            "reason. [Troubleshooting](../troubleshooting.md) explains what is met most often.",
        ],
        ["## Kinds of errors"],
        [
            "A permanent error comes again however often it is tried: the run is not repeated until something changes.",
            "A transient error may pass: the run is tried again, with longer and longer waits.",
        ],
        table(["error", "kind", "what it means"], [_class_row(each) for each in classes()]),
        ["## Messages"],
        ["An error ends with what to do. The messages of each kind are in the order of the alphabet."],
        *(block for kind, rows in messages() for block in ([f"### {kind}"], table(["message", "what to do"], rows))),
        ["## Quarantine classes"],
        [
            "What is wrong with a record in the [quarantine](../operations.md#quarantine). That page also has the",
            "classes of whole files and directories, and says when a row ends.",
        ],
        table(["class", "what is wrong"], [[f"`{name}`", f"{text}."] for name, text in sorted(PROBLEMS.items())]),
        ["## Checks"],
        ["What each check looks at. What to do when one fails is in [Operations](../operations.md#checks)."],
        table(["check", "of", "passes when"], sorted(check_rows())),
    )


def classes() -> list[type[errors.CdcError]]:
    found = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, errors.CdcError)]
    roots = (errors.CdcError, errors.PermanentError, errors.TransientError)
    return sorted((each for each in found if each not in roots), key=lambda each: each.__name__)


def _class_row(kind: type[errors.CdcError]) -> list[str]:
    lasting = "permanent" if issubclass(kind, errors.PermanentError) else "transient"
    return [f"`{kind.__name__}`", lasting, " ".join(inspect.getdoc(kind).split())]


def check_rows() -> Iterator[list[str]]:
    for check in checks._FEED_CHECKS:
        yield [f"`{check.name}`", f"`{check.asset('x').path[-1]}`", inspect.getdoc(check.evaluate)]
    yield [f"`{checks.EQUALS_SOURCE}`", "`checkpoint`", inspect.getdoc(checks._equals_source)]
    for name, text in checks._TABLE_CHECKS.items():
        yield [f"`{name}`", "`current`", text]


def messages() -> list[tuple[str, list[list[str]]]]:
    """By the name of the error: the messages that say what to do, with it. They are read from the source text."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = _constants(tree)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            advice = next((each.value for each in call.keywords if each.arg == "advice"), None)
            default = getattr(getattr(errors, name, None), "default_advice", None)
            if name.endswith("Error") and (advice is not None or default is not None):
                said, do = _words(call.args[0], constants), _words(advice or ast.Constant(default), constants)
                if said.strip("… :") and do.strip("… :"):
                    found[name].add((said, do))
    return [(name, [[_code(said), _code(do)] for said, do in sorted(rows)]) for name, rows in sorted(found.items())]


def _code(text: str) -> str:
    # Backticks are a part of some messages.
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module names."""
    found = {}
    for node in tree.body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and isinstance(getattr(node, "value", None), ast.Constant | ast.JoinedStr):
            found[target.id] = _words(node.value, found)
    return found


def _words(node: ast.expr, constants: Mapping[str, str]) -> str:
    """The text of an expression, with `…` for what is known only when it is made."""
    if isinstance(node, ast.Constant):
        return " ".join(str(node.value).split())
    if isinstance(node, ast.JoinedStr):
        parts = (_part(each, constants) for each in node.values)
        return " ".join("".join(parts).split())
    if isinstance(node, ast.IfExp):
        both = (_words(node.body, constants), _words(node.orelse, constants))
        return " / ".join(dict.fromkeys(each for each in both if each.strip("… :")))
    return constants.get(getattr(node, "id", ""), "…")


def _part(node: ast.expr, constants: Mapping[str, str]) -> str:
    if isinstance(node, ast.FormattedValue):
        return constants.get(getattr(node.value, "id", ""), "…")
    return str(node.value) if isinstance(node, ast.Constant) else "…"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "cli.md": cli_page,
    "columns.md": columns_page,
    "config.md": config_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
}


def stale() -> list[str]:
    """The pages that are not what the code says."""
    return [
        name
        for name, made in PAGES.items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != made()
    ]


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; end with 1 when a page is out of date.")
def run(check: bool) -> None:
    """Write the pages of docs/reference that are made from the code."""
    out_of_date = stale()
    for name in out_of_date:
        if not check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(PAGES[name](), encoding="utf-8")
        click.echo(f"docs/reference/{name} {'is out of date: make reference' if check else 'written'}")
    sys.exit(1 if check and out_of_date else 0)


if __name__ == "__main__":
    run()
