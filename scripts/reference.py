"""Writes the pages of docs/reference that say what the code says: commands, configuration, metrics, errors.

    .venv/bin/python scripts/reference.py            # writes them
    .venv/bin/python scripts/reference.py --check    # says which are out of date, and ends with 1

`tests/test_docs.py` compares them.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

ROOT: Final = Path(__file__).parents[1]
# The script is run from a checkout, whatever the working directory is.
sys.path.insert(0, str(ROOT))

from cdc_lakehouse import errors  # noqa: E402
from cdc_lakehouse.cli import main as command_line  # noqa: E402
from cdc_lakehouse.commands import metrics  # noqa: E402
from cdc_lakehouse.config import LakehouseConfig  # noqa: E402

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
            "Every command with its options, as `--help` prints them. `cdc-lakehouse --version` prints the version.",
            "[Run it](../run.md#exit-codes) lists the exit codes.",
        ],
        table(
            ["command", "what it does"],
            [[f"[`{name}`](#{name.replace(' ', '-')})", short(command)] for name, command in commands(command_line)],
        ),
    ]
    for name, command in commands(command_line):
        blocks += list(_command(name, command))
    return page("Commands", *blocks)


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
    context = click.Context(command, info_name=name, **command_line.context_settings)
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
    schema = LakehouseConfig.model_json_schema()
    sections = {_merged(path): section for path, section in _sections(schema, schema["$defs"])}
    return page(
        "Keys of lakehouse.yaml",
        [
            "Every key of `lakehouse.yaml`, from `cdc-lakehouse config schema`. Any value can be `${NAME}`, from the",
            "environment. [Configuration](../configuration.md) has an example, and what needs more than a line.",
        ],
        *(block for path, section in sections.items() for block in _section(path, section, schema["$defs"])),
    )


def _merged(path: str) -> str:
    """The heading of sections that have the same keys: those of one bucket, and what several kinds of sources have."""
    return re.sub(r" \(type: \w+\)(?=\.)", "", path.removesuffix(".buckets.<name>"))


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
        "Errors",
        [
            "A message says what happened, where, and what to do. After a permanent error a run is not repeated",
            "until something changes. After a transient error it is tried again, with longer and longer waits.",
            "Every message ends with a code, such as `(CDC-201)`, which stays the same when the words change.",
            "[Troubleshooting](../troubleshooting.md) has the messages that people meet most often.",
        ],
        table(["code", "error", "kind", "meaning", "what to do"], [_error_row(each) for each in error_kinds()]),
    )


def error_kinds() -> list[type[errors.CdcError]]:
    found = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, errors.CdcError)]
    return sorted((each for each in found if each is not errors.CdcError), key=lambda each: each.code)


def _error_row(kind: type[errors.CdcError]) -> list[str]:
    lasting = "permanent" if issubclass(kind, errors.PermanentError) else "transient"
    meaning = " ".join((inspect.getdoc(kind) or "").split())
    anchor = f'<a id="{kind.code.lower()}"></a>{kind.code}'
    return [anchor, f"`{kind.__name__}`", lasting, meaning, kind.default_advice or "as the message says"]


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "cli.md": cli_page,
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
