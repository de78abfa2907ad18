"""`cdc-lakehouse init`: write a `lakehouse.yaml` from what a source's paths and first files or messages show. No JVM is
started."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import yaml
from pydantic import ValidationError

from cdc_lakehouse.changelog.positions import commit_time, utc_now
from cdc_lakehouse.commands.common import DONE, exits, print_json, say
from cdc_lakehouse.commands.plan import source_tables
from cdc_lakehouse.config import CanalSource, KafkaSource, StorageConfig, anchor_uri
from cdc_lakehouse.config.file import DEFAULT_FILE, json_schema, validate
from cdc_lakehouse.config.reporting import listed, plural, reasons, resolve, some
from cdc_lakehouse.config.sources import split_query, store_options
from cdc_lakehouse.decoders import registry
from cdc_lakehouse.decoders.format import Sample
from cdc_lakehouse.errors import CdcError, ConfigurationError, SourceError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.pipeline.feed_tables import key_columns
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources import kafka
from cdc_lakehouse.sources.canal.client import CanalClient
from cdc_lakehouse.sources.dump.directory import detect_dump
from cdc_lakehouse.sources.object_store import Location, ObjectStore, open_store
from cdc_lakehouse.sources.sink import paths

_SCHEMA_FILE: Final = "lakehouse.schema.json"
_WAREHOUSE: Final = "./lake/warehouse"
_CATALOG: Final = "sqlite:///./lake/catalog.db"
_CATALOG_PASSWORD: Final = "CATALOG_PASSWORD"
_KINDS: Final = {"http": "rest", "https": "rest", "thrift": "hive"}
"""The kinds of catalogs by the schemes of their URIs; others are databases."""
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
_HEAD: Final = 4 << 20
"""Bytes of a file that are read."""
_CANAL_PASSWORD: Final = "CANAL_PASSWORD"
_FORMS: Final = (
    "write the sink's URI (a path, s3://bucket/prefix, gs://… or azure://…), kafka://host:9092/topic or "
    "canal://host:11111/destination"
)
_SNAPSHOT, _INCREMENTAL = "snapshot", "incremental"
"""The names of adjacent directories that TiDB's users conventionally give a dump and the sink that follows it."""
_GENERIC: Final = frozenset(
    {_SNAPSHOT, _INCREMENTAL, "binlog", "canal", "cdc", "changefeed", "changelog", "data", "incr", "log", "logs",
     "sink", "storage", "ticdc"}
)  # fmt: skip
"""Names of directories and topics that say nothing about what is in them: a feed keeps its name for good."""
LATEST_FORMAT: Final = 3
ENGINES: Final[Mapping[str, int]] = {
    "athena": 2, "bigquery": 2, "clickhouse": 2, "databricks": 3, "doris": 3, "dremio": 2, "duckdb": 3, "emr": 3,
    "flink": 3, "hive": 2, "impala": 2, "presto": 2, "pyiceberg": 3, "redshift": 3, "snowflake": 3, "spark": 3,
    "starrocks": 2, "trino": 2,
}  # fmt: skip
"""The highest format version of Iceberg that an engine is documented to read with its deletes; 2 where only a preview,
or nothing, is documented. docs/readers.md has the sources."""
_NO_DUMP: Final = "rows from before Canal's first entry are not in it: write source.initial for a dump of them"


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
    output.with_name(_SCHEMA_FILE).write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
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
_Section = TypeVar("_Section", CanalSource, KafkaSource)


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
        raise ConfigurationError(
            f"a catalog at {uri} is not known", advice="write a URI as the question shows, or glue"
        )
    return uri


def _without_key(document: Mapping[str, Any], secrets: Mapping[str, str], here: Path) -> list[str]:
    """Return the tables that the source's schema or the dump shows without a key, by a lake that is thrown away. What
    cannot be read for it, `doctor` says."""
    with tempfile.TemporaryDirectory() as directory:
        lake = {"warehouse": directory, "catalog": {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}}
        try:
            read = validate({**document, "lake": lake}, here, "the new configuration", {**os.environ, **secrets})
            feed = read.feeds[0]
            tables = source_tables(FeedRun(feed, Lake(read.lake, read.storage)))
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


_KEY: Final = re.compile(r" *(?:- )?(\w+):(?: |$)")


class _Dumper(yaml.SafeDumper):
    """Line ends within a text are escaped, so that each key has a line."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_str)


def _text(document: Mapping[str, Any], unsure: list[str], keyless: list[str]) -> Iterator[str]:
    """Yield lines of YAML, with comments; the settings of tables without a key are one."""
    yield f"# yaml-language-server: $schema={_SCHEMA_FILE}"
    yield "# All keys: docs/configuration.md. Secrets: ${NAME} of the environment, or ${file:PATH}."
    for sentence in unsure:
        yield f"# Check this: {sentence}."
    for line in yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf).splitlines():
        found = _KEY.match(line)
        key = "" if found is None else found[1]
        yield f"{line}  # {_COMMENTS[key]}" if key in _COMMENTS else line
        if keyless and key == "exclude":
            indent = line.partition(key)[0]
            yield f"{indent}# settings:  # Name the columns that identify a row, or exclude the table."
            yield from (
                f"{indent}#   {json.dumps(name, ensure_ascii=False)}: {{primary_key: [COLUMN]}}" for name in keyless
            )


# What a source shows.


@dataclass
class Detected:
    """What was detected about a source.

    name: a name for the feed. source: the keys of `source`. storage: the keys of `storage`, with `${NAME}` for secrets.
    secrets: their values by NAME, as in the URI. start_date: the first feed date. found: sentences on what was
    detected. unsure: sentences on what cannot be detected, and must be checked by someone who knows the source."""

    name: str
    source: dict[str, Any]
    start_date: datetime.date
    found: list[str]
    unsure: list[str]
    storage: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


def format_version_for(engines: str) -> int:
    """Return the format version that all engines of a list with commas read. Raises `ConfigurationError`."""
    names = [name.strip().lower() for name in engines.split(",") if name.strip()]
    if unknown := [name for name in names if name not in ENGINES]:
        advice = f"known are {', '.join(ENGINES)}; leave others out"
        raise ConfigurationError(f"{unknown[0]} is not a known engine", advice=advice)
    return min((ENGINES[name] for name in names), default=LATEST_FORMAT)


def detect_source(uri: str, base: Path) -> Detected:
    """Inspect the source at a URI: a sink (a path is relative to `base`), `kafka://brokers/topics` or
    `canal://servers/destination`.

    Raises `ConfigurationError` for a URI that names no source, `SourceUnreachableError` and `SourceError` as opening
    and listing do, and `SourceError` for something that is no change log."""
    if uri.startswith("kafka://"):
        return _detect_topics(uri)
    if uri.startswith("canal://"):
        return _detect_canal(uri)
    if uri.startswith(("mysql://", "mariadb://", "tidb://")):
        raise ConfigurationError(
            "the change log of a database is not read from the database itself",
            advice="for MySQL, run a Canal server, which reads its binlog, and write --source "
            "canal://USER:PASSWORD@host:11111/destination; for TiDB, create a changefeed with a storage sink or Kafka",
        )
    return _detect_sink(uri, base)


def add_dump(detected: Detected, uri: str, base: Path) -> None:
    """Make the dump at a URI the `initial` of a source. A dump whose URI has no keys of its own is opened with those of
    the source. Raises as `detect_source` does."""
    storage, secrets = store_options(uri)
    root = anchor_uri(split_query(uri)[0], base)
    store = _open(root, storage or detected.storage, secrets or detected.secrets)
    detected.source["initial"], said = _initial(root, store)
    detected.found.append(said)
    detected.unsure = [each for each in detected.unsure if each != _NO_DUMP]
    detected.storage, detected.secrets = {**storage, **detected.storage}, {**secrets, **detected.secrets}


def _initial(root: str, store: ObjectStore) -> tuple[dict[str, Any], str]:
    if (tool := detect_dump(store)) is None:
        advice = "name the directory with the file metadata of Dumpling or mydumper, or @.json of MySQL Shell"
        raise SourceError(f"{root} holds no finished dump", advice=advice)
    return {"type": tool, "uri": root}, f"a dump of {tool} at {root}"


def _open(root: str, storage: dict[str, Any], secrets: dict[str, str]) -> ObjectStore:
    """Open the store at an absolute URI, with the names of secrets replaced by the secrets."""
    return open_store(root, StorageConfig.model_validate(resolve(storage, secrets, Path(), [])))


def _detect_sink(uri: str, base: Path) -> Detected:
    storage, secrets = store_options(uri)
    root = anchor_uri(split_query(uri)[0], base)
    store = _open(root, storage, secrets)
    store.check()
    initial, found, unsure = dict[str, Any](), list[str](), list[str]()
    if {_SNAPSHOT, _INCREMENTAL} <= set(store.directories()):
        # It is in the sink's own bucket, which has the same settings.
        snapshot = f"{root}/{_SNAPSHOT}"
        initial["initial"], said = _initial(snapshot, _open(snapshot, storage, secrets))
        found.append(said)
        root = f"{root}/{_INCREMENTAL}"
        store = _open(root, storage, secrets)
    seen = paths.detect_sink(store)
    try:
        checkpoint = paths.read_checkpoint(store, utc_now())
        found.append(f"a sink with the checkpoint-ts {checkpoint} ({commit_time(checkpoint):%Y-%m-%d %H:%M:%S} UTC)")
    except SourceError as error:
        if below := paths.roots_below(store):
            raise SourceError(f"{root} is no sink", advice=f"name one below it: {', '.join(below[:12])}") from error
        if not seen.samples:
            advice = "check the URI; of a new changefeed, wait for its first checkpoint"
            what = f"{root} holds no sink: it has neither metadata nor data files"
            raise SourceError(what, advice=advice) from error
        found.append(f"no checkpoint-ts yet: {error.message}")
    if not seen.whole:
        found.append(f"the first {paths.LOOKED_AT} of its objects were looked at")
    protocol, separator = seen.protocol or registry.DEFAULT_PROTOCOL, seen.separator or paths.DEFAULT_SEPARATOR
    source: dict[str, Any] = {"type": "storage_sink", "uri": root, "protocol": protocol, "date_separator": separator}
    if seen.table_ids:
        source["use_table_id_as_path"] = True
    if seen.protocol is None:
        unsure.append("there is no data file yet: protocol and date_separator are defaults")
    else:
        found.append(f"data files of protocol {seen.protocol} with date-separator {seen.separator}")
    if seen.tables:
        found.append(listed(sorted(f"{database}.{table}" for database, table in seen.tables), "table"))
    samples: list[Sample] = []
    for file, directory in seen.samples:
        database, _, table = ("" if seen.table_ids else directory).partition("/")
        head = store.head(file.path, _HEAD, etag=file.etag)
        samples.append(Sample(file.path, database or None, table or None, head))
    keys, not_shown = registry.FILE_FORMATS[protocol].detect(samples)
    source |= keys
    unsure += not_shown
    _tell_time_zone((line for sample in samples for line in sample.head.splitlines()), source, found, unsure)
    source |= initial
    first, parts = utc_now().date(), [int(part) for part in (seen.first_date or "").split("-") if part]
    if parts:
        with contextlib.suppress(ValueError):
            first = datetime.date(*[*parts, 1, 1][:3])
    databases = {database for database, _ in seen.tables}
    last, *above = reversed(root.rstrip("/").split("/")[2:])
    name = _feed_name(last, *(databases if len(databases) == 1 else ()), *above[:1])
    return Detected(name, source, first, found, unsure, storage, secrets)


def _tell_time_zone(values: Iterable[bytes], source: dict[str, Any], found: list[str], unsure: list[str]) -> None:
    if (offset := registry.detect_offset(values)) is None:
        source["time_zone"] = "UTC"
        unsure.append("time_zone was not detected: set the zone of the server that wrote the log, if it is not UTC")
        return
    minutes = offset // datetime.timedelta(minutes=1)
    zone = "UTC" if not minutes else f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
    source["time_zone"] = zone
    found.append(f"TIMESTAMP values that are near the time of their commit in the time zone {zone}")


def _detect_topics(uri: str) -> Detected:
    brokers, _, names = split_query(uri)[0].removeprefix("kafka://").partition("/")
    topics = [name for name in names.split(",") if name]
    which = {"topics": topics} if topics else {"topic_pattern": ".*"}
    of_brokers = {"type": "kafka", "format": registry.DEFAULT, "bootstrap_servers": brokers}
    asked = _validated(KafkaSource, {**of_brokers, **which})
    known = kafka.read_topics(asked, whole=True)
    if not topics:
        names = some(sorted(topic.name for topic in known))
        raise ConfigurationError(
            "the URI names no topic", advice=f"write {uri.rstrip('/')}/TOPIC,…; the brokers have {names or 'none'}"
        )
    values, compressions = registry.plain_values(kafka.first_messages(asked, known))
    source: dict[str, Any] = {"type": "kafka", "bootstrap_servers": list(asked.bootstrap_servers), "topics": topics}
    partitions = sum(len(topic.partitions) for topic in known)
    found, unsure = [f"{plural(partitions, 'partition')} of {listed(sorted(topics), 'topic')}"], list[str]()
    if (detected := registry.detect_format(values)) is None:
        hidden = f"could not be detected in {plural(len(values), 'message')}: see docs/kafka.md for the formats"
        unsure.append(f"the format {hidden if values else 'is a guess: the topics have no message yet'}")
    else:
        found.append(f"messages of the format {detected['format']}")
    found += [f"values that TiCDC compresses with {name}" for name in compressions]
    source |= detected or {"format": registry.DEFAULT}
    _tell_time_zone(values, source, found, unsure)
    return Detected(_feed_name(topics[0]), source, utc_now().date(), found, unsure)


def _detect_canal(uri: str) -> Detected:
    servers, _, destination = split_query(uri)[0].removeprefix("canal://").partition("/")
    login, _, servers = servers.rpartition("@")
    user, _, password = login.partition(":")
    source: dict[str, Any] = {"type": "canal", "addresses": servers.split(","), "destination": destination}
    if user:
        source |= {"user": user, "password": f"${{{_CANAL_PASSWORD}}}"}
    with CanalClient(_validated(CanalSource, {**source, **({"password": password} if user else {})})) as client:
        client.check()
    source["time_zone"] = "UTC"
    unsure = ["time_zone does not show: write the zone of the Canal server, if it is not UTC", _NO_DUMP]
    found = [f"a Canal server that has the destination {destination}"]
    name, secrets = _feed_name(destination), {_CANAL_PASSWORD: password} if user else {}
    return Detected(name, source, utc_now().date(), found, unsure, secrets=secrets)


def _validated(section: type[_Section], keys: dict[str, Any]) -> _Section:
    try:
        return section.model_validate(keys)
    except ValidationError as error:
        raise ConfigurationError(f"the URI names no source: {reasons(error)}", advice=_FORMS) from None


def _feed_name(*candidates: str) -> str:
    """Return the first candidate that says something, as a name for a feed."""
    names = [re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") for text in candidates]
    name = next((each for each in names if each and each not in _GENERIC), names[0])
    return (name if name[:1].isalpha() else f"feed_{name}".rstrip("_"))[:63]
