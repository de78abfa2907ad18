"""`cdc-lakehouse init`: write a `lakehouse.yaml` from what a source shows."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import yaml

from cdc_lakehouse.commands.common import DONE, exits, print_json, say
from cdc_lakehouse.commands.detect import ENGINES, LATEST_FORMAT, add_dump, detect_source, format_version_for
from cdc_lakehouse.commands.plan import source_tables
from cdc_lakehouse.config import anchor_uri
from cdc_lakehouse.config.file import DEFAULT_FILE, json_schema, validate
from cdc_lakehouse.config.reporting import some
from cdc_lakehouse.errors import CdcError, ConfigurationError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.pipeline.feed_tables import key_columns
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.object_store import Location

_SCHEMA_FILE: Final = "lakehouse.schema.json"
_WAREHOUSE: Final = "./lake/warehouse"
_CATALOG: Final = "sqlite:///./lake/catalog.db"
_CATALOG_PASSWORD: Final = "CATALOG_PASSWORD"
_KINDS: Final = {"http": "rest", "https": "rest", "thrift": "hive"}
"""The kinds of catalogs by the schemes of their URIs; others are databases."""
_PLAIN: Final = re.compile(r"[A-Za-z./][\w./:-]*")
_COMMENTS: Final = {
    "source": "Where the change log is read.",
    "time_zone": "How the text of TIMESTAMP values is read.",
    "initial": "The dump that the feed begins with.",
    "tables": "Patterns database.table with *, ? and […]; what exclude matches is left out.",
    "format_version": "Iceberg's format: 2 for engines that do not read deletion vectors, 3 for the others.",
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
@click.option("--warehouse", help=f"Where tables are stored. [default: {_WAREHOUSE}]")
@click.option(
    "--catalog-uri", help=f"The catalog: sqlite:///…, postgresql://…, https://… (REST), thrift://… (Hive), or glue. "
    f"[default: {_CATALOG}]",
)  # fmt: skip
@click.option(
    "--engines", help=f"Engines that read the tables, with commas between: they decide the format version. Known: "
    f"{', '.join(ENGINES)}. [asked for in a terminal]",
)  # fmt: skip
@click.option("--time-zone", help="Time zone of TIMESTAMP text. [default: what the rows show, else UTC]")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path(DEFAULT_FILE), help="The file to write."
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@exits
def command(
    source: str | None, dump: str | None, name: str | None, warehouse: str | None, catalog_uri: str | None,
    engines: str | None, time_zone: str | None, output: Path, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Inspect a change log and write a lakehouse.yaml that reads it.

    The URI is the changefeed's, including its query: a path or s3://bucket/prefix of a storage sink,
    kafka://host:9092/topic, or canal://host:11111/destination. The source is only read. The file refers to
    environment variables instead of containing passwords and keys.

    In a terminal, without --source, it asks for the source, the warehouse, the catalog and the engines, and checks
    each answer before the next question.

    \b
    Examples:
      cdc-lakehouse init --source "s3://bucket/cdc?protocol=canal-json" --engines trino,athena
      cdc-lakehouse init --source "kafka://broker:9092/orders" --name orders
      cdc-lakehouse init --source "canal://user:password@canal:11111/example" --dump "s3://bucket/dump"
      cdc-lakehouse init --source ./cdc --warehouse "s3://lake/tables" --catalog-uri "https://catalog.example.com/"
    """
    if output.exists() and not force:
        raise ConfigurationError(f"{output} already exists", advice="use --force, or another --output")
    here, format_version = Path.cwd(), format_version_for(engines or "")
    if source is not None:
        detected = detect_source(source, here)
    elif not sys.stdin.isatty():
        raise ConfigurationError("it is not known where the change log is", advice="write --source URI")
    else:
        detected = _asked(
            "URI of the change log (s3://…, a path, kafka://host:9092/topic, canal://user:password@host:11111/…)",
            lambda uri: detect_source(uri, here),
        )
        warehouse = warehouse or _asked("Where tables are stored (a path, s3://…)", _checked_warehouse, _WAREHOUSE)
        question = "The catalog (sqlite:///…, postgresql://…, https://…, thrift://…, glue)"
        catalog_uri = catalog_uri or _asked(question, _checked_catalog, _CATALOG)
        if engines is None:
            question = "Engines that read the tables (trino,athena,…; empty: not known yet)"
            format_version = _asked(question, format_version_for, "")
    if dump is not None:
        add_dump(detected, dump, here)
    found, settings, unsure = detected.found, detected.source, detected.unsure
    if time_zone is not None:
        settings["time_zone"] = time_zone
        unsure = [each for each in unsure if not each.startswith("time_zone ")]
    catalog, secrets = _catalog(catalog_uri or _CATALOG)
    secrets |= detected.secrets.keys()
    if catalog["type"] == "rest":
        unsure.append("lake.catalog: write its credential or token, and as warehouse the name that it has for one, if "
                      "it has them")  # fmt: skip
    lake = {"warehouse": warehouse or _WAREHOUSE, "catalog": catalog}
    feed = {
        "name": name or detected.name, "source": settings,
        **({} if format_version == LATEST_FORMAT else {"format_version": format_version}),
        "tables": {"include": ["*.*"], "exclude": []}, "namespace": "{database}",
        "start_date": detected.start_date.isoformat(),
    }  # fmt: skip
    document = {"lake": lake, **({"storage": detected.storage} if detected.storage else {}), "feeds": [feed]}
    if keyless := _without_key(document, detected.secrets, here):
        unsure.append(f"tables without a key are held until settings name one: {some(keyless)}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(_text(document, unsure, keyless)) + "\n", encoding="utf-8")
    schema = output.with_name(_SCHEMA_FILE)
    schema.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json({"wrote": str(output), "found": found, "look_at": unsure, "set_in_environment": sorted(secrets)})
        return DONE
    for sentence in found:
        say(f"found {sentence}")
    for sentence in unsure:
        say(f"check this: {sentence}")
    if secrets:
        say(f"set {', '.join(sorted(secrets))} in the environment: {output} names them")
    elsewhere = "" if output == Path(DEFAULT_FILE) else f"CDC_LAKEHOUSE_CONFIG={output} "
    say(f"wrote {output}. Next: `{elsewhere}cdc-lakehouse doctor`, then `{elsewhere}cdc-lakehouse run`")
    return DONE


_Answer = TypeVar("_Answer")


def _asked(question: str, check: Callable[[str], _Answer], default: str | None = None) -> _Answer:
    """Ask until an answer passes its check, and return what the check returns."""
    while True:
        try:
            return check(click.prompt(question, default=default, show_default=bool(default)))
        except CdcError as error:
            say(f"  {error.coded}", err=True)


def _checked_warehouse(uri: str) -> str:
    Location.of(anchor_uri(uri, Path.cwd()))
    return uri


def _checked_catalog(uri: str) -> str:
    if uri != "glue" and uri.partition("://")[0].partition("+")[0] not in {*_KINDS, "sqlite", "postgresql", "mysql"}:
        advice = "write a URI of a form that the question shows, or glue"
        raise ConfigurationError(f"a catalog at {uri} is not known", advice=advice)
    return uri


def _without_key(document: Mapping[str, Any], secrets: Mapping[str, str], here: Path) -> list[str]:
    """Return the tables that the source's schema or the dump shows without a key, by a lake that is thrown away. What
    cannot be read for it, `doctor` says."""
    with tempfile.TemporaryDirectory() as directory:
        lake = {"warehouse": directory, "catalog": {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}}
        try:
            config = validate({**document, "lake": lake}, here, "the new configuration", {**os.environ, **secrets})
            feed = config.feeds[0]
            tables = source_tables(FeedRun(feed, Lake(config.lake, config.storage)))
            return [str(each.name) for each in tables if not key_columns(feed, each)]
        except Exception:  # noqa: BLE001 - It is a hint: what is wrong with the source, `doctor` says.
            return []


def _catalog(uri: str) -> tuple[dict[str, str], set[str]]:
    """Return the keys of `lake.catalog` for a URI, without its password, and the names of the variables to set."""
    if uri == "glue":
        return {"type": "glue"}, set()
    scheme, _, rest = uri.partition("://")
    kind = _KINDS.get(scheme, "sql")
    login, at, host = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if not (at and colon) or password.startswith("${"):
        return {"type": kind, "uri": uri}, set()
    return {"type": kind, "uri": f"{scheme}://{user}:${{{_CATALOG_PASSWORD}}}@{host}"}, {_CATALOG_PASSWORD}


def _text(document: Mapping[str, Any], unsure: list[str], keyless: list[str]) -> Iterator[str]:
    """Yield lines of YAML, with comments; the settings of tables without a key are one."""
    yield f"# yaml-language-server: $schema={_SCHEMA_FILE}"
    yield "# All keys: docs/configuration.md. Secrets: ${NAME} of the environment, or ${file:PATH}."
    for sentence in unsure:
        yield f"# Check this: {sentence}."
    for line in _mapping(document, ""):
        yield line
        if keyless and line.strip().startswith("exclude:"):
            indent = line[: len(line) - len(line.lstrip())]
            yield f"{indent}# settings:  # Name the columns that identify a row, or exclude the table."
            yield from (f"{indent}#   {_value(name)}: {{primary_key: [COLUMN]}}" for name in keyless)


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
    # JSON is also YAML.
    return json.dumps(value, ensure_ascii=False)
