"""Derive the configuration of a source from its paths and its first files or messages. Nothing is written, and no JVM
is started.
"""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from cdc_lakehouse.changelog.positions import commit_time, utc_now
from cdc_lakehouse.config import CanalSource, KafkaSource, StorageConfig, anchor_uri
from cdc_lakehouse.config.reporting import listed, plural, some
from cdc_lakehouse.config.sources import split_query, store_options
from cdc_lakehouse.decoders import registry
from cdc_lakehouse.decoders.format import Sample
from cdc_lakehouse.errors import ConfigurationError, SourceError
from cdc_lakehouse.sources.canal.client import CanalClient
from cdc_lakehouse.sources.dump.directory import detect_dump
from cdc_lakehouse.sources.kafka import read_topics, require_all
from cdc_lakehouse.sources.kafka.reading import first_messages
from cdc_lakehouse.sources.object_store import ObjectStore, open_store
from cdc_lakehouse.sources.sink import paths

_HEAD: Final = 4 << 20
"""Bytes of a file that are read."""
_SHOWN: Final = 12
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
    storage: dict[str, Any] = field(default_factory=dict[str, Any])
    secrets: dict[str, str] = field(default_factory=dict[str, str], repr=False)


def format_version_for(engines: str) -> int:
    """Return the format version that all of these engines read, named with commas between. Raises
    `ConfigurationError` for an unknown one."""
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

    def resolved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: resolved(each) for key, each in value.items()}
        return secrets.get(value[2:-1], value) if isinstance(value, str) and value.startswith("${") else value

    return open_store(root, StorageConfig.model_validate(resolved(storage)))


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
            raise SourceError(f"{root} is no sink", advice=f"name one below it: {', '.join(below[:_SHOWN])}") from error
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
    of_files = registry.FILE_FORMATS[protocol].detect(samples)
    source |= of_files.source
    unsure += of_files.unsure
    _tell_time_zone(of_files.offset, source, found, unsure)
    source |= initial
    first, parts = utc_now().date(), [int(part) for part in (seen.first_date or "").split("-") if part]
    if parts:
        with contextlib.suppress(ValueError):
            first = datetime.date(*[*parts, 1, 1][:3])
    databases = {database for database, _ in seen.tables}
    last, *above = reversed(root.rstrip("/").split("/")[2:])
    name = _feed_name(last, *(databases if len(databases) == 1 else ()), *above[:1])
    return Detected(name, source, first, found, unsure, storage, secrets)


def _tell_time_zone(
    offset: datetime.timedelta | None, source: dict[str, Any], found: list[str], unsure: list[str]
) -> None:
    if offset is None:
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
    known = read_topics(asked)
    require_all(asked, known)
    if not topics:
        names = some(sorted(topic.name for topic in known))
        raise ConfigurationError(
            "the URI names no topic", advice=f"write {uri.rstrip('/')}/TOPIC,…; the brokers have {names or 'none'}"
        )
    values, compressions = registry.plain_values(first_messages(asked, known))
    source: dict[str, Any] = {"type": "kafka", "bootstrap_servers": list(asked.bootstrap_servers), "topics": topics}
    partitions = sum(len(topic.partitions) for topic in known)
    found, unsure = [f"{plural(partitions, 'partition')} of {listed(sorted(topics), 'topic')}"], list[str]()
    detected = registry.detect_format(values)
    if detected is None:
        hidden = f"could not be detected in {plural(len(values), 'message')}: see docs/kafka.md for the formats"
        unsure.append(f"the format {hidden if values else 'is a guess: the topics have no message yet'}")
    else:
        found.append(f"messages of the format {detected['format']}")
    found += [f"values that TiCDC compresses with {name}" for name in compressions]
    source |= detected or {"format": registry.DEFAULT}
    _tell_time_zone(registry.detect_offset(values), source, found, unsure)
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
    secrets = {_CANAL_PASSWORD: password} if user else {}
    return Detected(_feed_name(destination), source, utc_now().date(), found, unsure, secrets=secrets)


def _validated(section: Any, keys: dict[str, Any]) -> Any:
    try:
        return TypeAdapter(section).validate_python(keys)
    except ValidationError as error:
        reasons = "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors(include_url=False))
        raise ConfigurationError(f"the URI names no source: {reasons}", advice=_FORMS) from None


def _feed_name(*candidates: str) -> str:
    """Return the first candidate that says something, as a name for a feed."""
    names = [re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") for text in candidates]
    name = next((each for each in names if each and each not in _GENERIC), names[0])
    return (name if name[:1].isalpha() else f"feed_{name}".rstrip("_"))[:63]
