"""`cdc-lakehouse init`: a `lakehouse.yaml` from what a source shows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import yaml

from cdc_lakehouse.commands.common import DONE, exits, print_json
from cdc_lakehouse.config.file import DEFAULT_FILE
from cdc_lakehouse.config.json_schema import json_schema
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.pipeline.detection import Detected, detect_initial, detect_source

_SCHEMA_FILE: Final = "lakehouse.schema.json"
_PLAIN: Final = re.compile(r"[A-Za-z./][\w./:-]*")
_COMMENTS: Final = {
    "source": "Where the change log is read.",
    "time_zone": "How the text of TIMESTAMP values is read.",
    "initial": "The dump that the feed begins with.",
    "tables": "Patterns database.table with *, ? and […]; what exclude matches is left out.",
    "namespace": "Where tables are in the catalog: {database} and {feed} stand for the source's names.",
    "start_date": "The first Dagster partition.",
    "warehouse": "Where tables are stored: a path, or a URI such as s3://bucket/prefix.",
    "catalog": "The Iceberg catalog: sql (SQLite, PostgreSQL), rest, glue or hive.",
    "storage": "How buckets are reached.",
}


@click.command()
@click.option("--source", help="URI of the change log. [asked for in a terminal]")
@click.option("--dump", help="URI of a dump that the feed begins with.")
@click.option("--name", help="Name of the feed. [default: from the URI]")
@click.option("--warehouse", default="./lake/warehouse", show_default=True, help="Where tables are stored.")
@click.option("--catalog-uri", default="sqlite:///./lake/catalog.db", show_default=True, help="An SQL catalog.")
@click.option("--time-zone", help="Time zone of TIMESTAMP text. [default: what the rows show, else UTC]")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path(DEFAULT_FILE), show_default=True,
    help="The file to write.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@exits
def command(
    source: str | None,
    dump: str | None,
    name: str | None,
    warehouse: str,
    catalog_uri: str,
    time_zone: str | None,
    output: Path,
    force: bool,
    as_json: bool,
) -> int:
    """Look at a change log, and write a lakehouse.yaml that reads it.

    The URI is the one that the changefeed has, its query too: a path or s3://bucket/prefix of a storage sink,
    kafka://host:9092/topic, or canal://host:11111/destination. Nothing is written to the source. Keys in the URI's
    query are not written into the file, which names variables in their place.

    \b
    Examples:
      cdc-lakehouse init --source s3://bucket/cdc?protocol=canal-json
      cdc-lakehouse init --source kafka://broker:9092/orders --name orders
      cdc-lakehouse init --source canal://canal:11111/example --dump s3://bucket/dump
    """
    if output.exists() and not force:
        raise ConfigurationError(f"{output} is there already", advice="write --force, or another --output")
    if source is None:
        if not sys.stdin.isatty():
            raise ConfigurationError("it is not known where the change log is", advice="write --source URI")
        source = str(
            click.prompt("URI of the change log (s3://…, a path, kafka://host:9092/topic, canal://host:11111/…)")
        )
    here = Path.cwd()
    detected = detect_source(source, here)
    found, settings = list(detected.found), dict(detected.source)
    if dump is not None:
        settings["initial"], said = detect_initial(dump, here)
        found.append(said)
    unsure = list(detected.unsure)
    if time_zone is not None:
        settings["time_zone"] = time_zone
        unsure = [each for each in unsure if not each.startswith("time_zone ")]
    document = _document(detected, settings, name or detected.name, warehouse, catalog_uri)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(_text(document, unsure)) + "\n", encoding="utf-8")
    schema = output.with_name(_SCHEMA_FILE)
    schema.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
    if as_json:
        secrets = sorted(detected.secrets)
        print_json({"wrote": str(output), "found": found, "look_at": unsure, "set_in_environment": secrets})
    else:
        _say(found, unsure, detected, output)
    return DONE


def _document(
    detected: Detected, source: Mapping[str, Any], name: str, warehouse: str, catalog_uri: str
) -> dict[str, Any]:
    return {
        "lake": {"warehouse": warehouse, "catalog": {"type": "sql", "uri": catalog_uri}},
        **({"storage": detected.storage} if detected.storage else {}),
        "feeds": [
            {
                "name": name,
                "source": source,
                "tables": {"include": ["*.*"], "exclude": []},
                "namespace": "{database}",
                "start_date": detected.start_date.isoformat(),
            }
        ],
    }


def _say(found: list[str], unsure: list[str], detected: Detected, output: Path) -> None:
    for sentence in found:
        click.echo(f"found {sentence}")
    for sentence in unsure:
        click.echo(f"look at this: {sentence}")
    if detected.secrets:
        click.echo(f"set {', '.join(sorted(detected.secrets))} in the environment: {output} names them")
    elsewhere = "" if output == Path(DEFAULT_FILE) else f"CDC_LAKEHOUSE_CONFIG={output} "
    click.echo(f"wrote {output}. Next: `{elsewhere}cdc-lakehouse doctor`, then `{elsewhere}cdc-lakehouse run`")


def _text(document: Mapping[str, Any], unsure: list[str]) -> Iterator[str]:
    """Lines of YAML, with comments."""
    yield f"# yaml-language-server: $schema={_SCHEMA_FILE}"
    yield "# All keys: docs/configuration.md. Secrets: ${NAME} of the environment, or ${file:PATH}."
    for sentence in unsure:
        yield f"# Look at this: {sentence}."
    yield from _mapping(document, "")


def _mapping(section: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in section.items():
        comment = f"  # {_COMMENTS[key]}" if key in _COMMENTS else ""
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:{comment}"
            yield from _mapping(value, f"{indent}  ")
        elif key == "feeds":
            yield f"{indent}{key}:"
            for each in value:
                first, *others = _mapping(each, f"{indent}    ")
                yield f"{indent}  - {first.lstrip()}"
                yield from others
        else:
            yield f"{indent}{key}: {_value(value)}{comment}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(each) for each in value)}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    # JSON is YAML too.
    return json.dumps(value, ensure_ascii=False)
