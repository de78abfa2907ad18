"""The source of a feed: a storage sink of TiCDC, topics of Kafka, or a Canal server."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, cast
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from cdc_lakehouse.config.section import CronSchedule, FilePath, Section, TextSettings, TimeZone, Uri, anchor_uri, key

# The URI of a storage sink as it is given to TiCDC: with a query, whose options are keys in the configuration.

_QUERY: Final = re.compile(r"[\w.-]+=[^&]*(?:&(?:[\w.-]+=[^&]*)?)*")
_SERVICES: Final = {"gs": "gs", "gcs": "gs", "azure": "azure", "azblob": "azure", "abfss": "azure"}
_OF_THE_STORE: Final = {
    "access-key": "storage.s3.access_key_id",
    "secret-access-key": "storage.s3.secret_access_key",
    "session-token": "storage.s3.session_token",
    "role-arn": "storage.s3.profile (a profile can assume a role)",
    "external-id": "storage.s3.profile (a profile can assume a role)",
    "region": "storage.s3.region",
    "force-path-style": "storage.s3.path_style",
    "credentials-file": "storage.gs.service_account_file",
    "account-name": "storage.azure.account",
    "account-key": "storage.azure.account_key",
    "sas-token": "storage.azure.sas_token",
}
"""The configuration keys of the options for access to a bucket."""
_SECRETS: Final = ("access_key_id", "secret_access_key", "session_token", "account_key", "sas_token")


def split_query(uri: str) -> tuple[str, dict[str, str]]:
    """Split a URI into what is before its query, and the query's options. A `?` without options is part of the path."""
    path, _, query = uri.partition("?")
    if not _QUERY.fullmatch(query):
        return uri, {}
    return path, dict(parse_qsl(query, keep_blank_values=True))


def misplaced_options(uri: str) -> str | None:
    """Return a message about the query's options for access to the bucket, without values; None without such."""
    if not (names := _places(uri)):
        return None
    moves = ", ".join(f"{option} as {place}" for option, place in names.items())
    return f"its query says how the bucket is reached: write {moves}, a secret as ${{NAME}}, and cut it from the URI"


def store_options(uri: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the query's options for access to the bucket: keys of `storage`, with `${NAME}`, and secrets by NAME."""
    _, options = split_query(uri)
    keys: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    for option, place in _places(uri).items():
        _, service, key = place.split(".")
        value: str | bool = options[option]
        if key in _SECRETS:
            name = f"{service}_{key}".upper()
            secrets[name], value = options[option], f"${{{name}}}"
        elif key == "path_style":
            value = options[option].lower() == "true"
        keys.setdefault(service, {})[key] = value
    if "endpoint" in keys.get("s3", {}):
        # TiCDC's defaults, also for force-path-style.
        keys["s3"].setdefault("path_style", True)
    return keys, secrets


def _places(uri: str) -> dict[str, str]:
    """Return the options of a URI's query for access to the bucket, each with its configuration key."""
    path, options = split_query(uri)
    service = _SERVICES.get(path.partition("://")[0], "s3")
    places = {**_OF_THE_STORE, "endpoint": f"storage.{service}.endpoint"}
    return {option: places[name] for option in options if (name := option.lower().replace("_", "-")) in places}


def _store_uri(uri: str, info: ValidationInfo) -> str:
    if (misplaced := misplaced_options(uri)) is not None:
        raise ValueError(misplaced)
    return uri if info.context is None else anchor_uri(split_query(uri)[0], info.context)


StoreUri = Annotated[str, AfterValidator(_store_uri)]
"""A URI as the source's tools accept it. Its query has no options for access to the bucket; an absolute one has no
query."""


def _shown(value: str) -> str:
    return value if value.isprintable() and value else repr(value)


# The connection to the source database, a MySQL or TiDB server.

# A password from the environment is used as it is: it can have any character.
_URL: Final = re.compile(
    r"mysql://(?P<user>[^:@/]+)(?::(?P<password>.*))?@(?P<host>\[[0-9A-Fa-f:.]+\]|[^:@/\[\]]+)(?::(?P<port>\d{1,5}))?/?",
    re.DOTALL,
)
_PORT: Final = 3306


def _is_url(value: str) -> str:
    # The invalid value is not shown: it may hold a password.
    if (match := _URL.fullmatch(value)) is None or not 0 < int(match["port"] or _PORT) < 65536:
        raise ValueError("is not of the form mysql://user:${PASSWORD}@host:port")
    return value


DatabaseUrl = Annotated[str, AfterValidator(_is_url)]
"""`mysql://user:password@host:port`."""


class DatabaseConnection(Section):
    """The connection to a database."""

    url: DatabaseUrl = key(..., "mysql://user:${PASSWORD}@host:port of the source, or of a replica of it.", repr=False)
    ca_file: FilePath | None = key(None, "TLS, with certificate authorities of this file. The host's name is checked.")

    @property
    def address(self) -> dict[str, Any]:
        """The host, port, user and password of the url, as the client names them. Nothing in a password is escaped."""
        match = _URL.fullmatch(self.url)
        assert match is not None  # Validated.
        parts = {"host": match["host"].strip("[]"), "port": int(match["port"] or _PORT)}
        return {**parts, "user": match["user"], "password": match["password"] or ""}


class VerifyConfig(DatabaseConnection):
    """The connection to the source database, with whose tables `verify` and the check `equals_source` compare the
    lake's."""

    schedule: CronSchedule | None = key(
        None, "Cron schedule of the check `equals_source`, in UTC, such as `0 3 * * 0`."
    )


# The initial load of a feed: the rows of the tables before their change log, from a dump or from the database
# itself.

DumpType = Literal["dumpling", "mydumper", "mysqlshell"]


class DumpCsv(Section):
    """The csv options with which Dumpling was run: its files do not record them. The defaults are Dumpling's."""

    separator: str = key(",", "Dumpling's --csv-separator.", min_length=1)
    delimiter: str = key('"', "Dumpling's --csv-delimiter, the quote; empty for none.")
    null: str = key("\\N", "Dumpling's --csv-null-value.")
    line_terminator: str = key("\r\n", "Dumpling's --csv-line-terminator.", min_length=1)
    escape_backslash: bool = key(True, "Dumpling's --escape-backslash.")
    header: bool = key(True, "False with Dumpling's --no-header.")
    binary: Literal["raw", "hex", "base64"] = key(
        "raw",
        "How binary values are written: hex with --csv-output-dialect snowflake or redshift, base64 with bigquery.",
    )


class InitialLoad(Section):
    """A dump in one of the stores that sinks use or, with the type `database`, the source database."""

    type: DumpType | Literal["database"] = key(..., "The tool that made the dump, or database to read the tables.")
    uri: StoreUri | None = key(None, "The directory of the dump.", repr=False)
    csv: DumpCsv = key(DumpCsv, "Dumpling's csv options.")
    time_zone: TimeZone = key("UTC", "Time zone of the dump's TIMESTAMP text: that of its session.")
    start_ts: int | None = key(None, "The changefeed's start-ts (a TSO), if its output does not show it.", gt=0)
    log_starts_at_dump: bool = key(
        False, "Canal was started at the dump's position: nothing before its first entry is missing."
    )
    url: DatabaseUrl | None = key(None, "With type database: mysql://user:${PASSWORD}@host:port of it.", repr=False)
    ca_file: FilePath | None = key(None, "With type database: TLS, with the certificate authorities in this file.")
    snapshot_ts: int | None = key(None, "With type database on TiDB: the TSO to read at. Default: now.", gt=0)
    connections: int = key(4, "With type database: number of parallel connections.", gt=0, le=256)
    chunk_rows: int = key(200_000, "With type database: approximate rows per statement.", gt=0)

    @model_validator(mode="after")
    def _keys_of_the_type(self) -> Self:
        of_dumps = {"uri", "csv", "time_zone", "log_starts_at_dump"}
        of_databases = {"url", "ca_file", "snapshot_ts", "connections", "chunk_rows"}
        strange = sorted(self.model_fields_set & (of_dumps if self.type == "database" else of_databases))
        if strange:
            raise ValueError(f"{strange[0]} means nothing with type {self.type}")
        if self.type == "database":
            if self.url is None:
                raise ValueError("needs url with type database, such as mysql://user:${PASSWORD}@host:port")
        elif self.uri is None:
            raise ValueError("needs uri, the directory of the dump")
        if self.type != "dumpling" and "csv" in self.model_fields_set:
            raise ValueError(f"csv options mean nothing with type {self.type}: its dumps say how they are written")
        return self

    @property
    def database(self) -> DatabaseConnection | None:
        """The connection to the database that is read instead of a dump; None for a dump."""
        return None if self.url is None else DatabaseConnection(url=self.url, ca_file=self.ca_file)


def _fitting(initial: InitialLoad, info: ValidationInfo) -> InitialLoad:
    is_of_canal = info.data["type"] == "canal"
    if is_of_canal and initial.start_ts is not None:
        raise ValueError("start_ts is a changefeed's: of Canal, log_starts_at_dump says that it was started there")
    # A topic of another format has no commit-ts: `KafkaSource` says what to do.
    is_of_ticdc = info.data.get("format", "ticdc-canal-json") == "ticdc-canal-json"
    if initial.log_starts_at_dump and is_of_ticdc and not is_of_canal:
        raise ValueError("log_starts_at_dump is of Canal: of a changefeed, start_ts says where it began")
    return initial


_Initial = Annotated[InitialLoad, AfterValidator(_fitting)]
DateSeparator = Literal["none", "year", "month", "day"]
Protocol = Literal["canal-json", "csv"]
EXTENSIONS: Final[dict[Protocol, str]] = {"canal-json": "json", "csv": "csv"}
"""Of the data files of each protocol."""


class CsvOptions(Section):
    """The changefeed's `[sink.csv]` options, under TiCDC's own names and with its defaults; `terminator` is an option
    of `[sink]`."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    delimiter: str = key(",", "Separator of values.", min_length=1, max_length=3)
    quote: str = key('"', "Quote character; empty: values are escaped with backslashes.", max_length=1)
    null: str = key("\\N", "Text that stands for NULL.")
    terminator: Literal["\r\n", "\n", "\r"] = key("\r\n", "Line end; TiCDC's option of [sink].")
    include_commit_ts: bool = key(False, "Must be true: rows without a commit-ts have no order.")
    binary_encoding_method: Literal["base64", "hex"] = key("base64", "How binary values are written.")
    output_old_value: bool = key(False, "An UPDATE is two rows, with the old values and the new ones.")
    output_handle_key: bool = key(False, "Rows have a column for the handle key (classic TiCDC only).")
    output_field_header: bool = key(False, "Files begin with a header.")

    @field_validator("delimiter", "quote", "null")
    @classmethod
    def _no_line_end(cls, value: str) -> str:
        if "\r" in value or "\n" in value:
            raise ValueError("must not hold a line end")
        return value

    @model_validator(mode="after")
    def _unambiguous(self) -> Self:
        faults = {
            "the quote must be an ASCII character, as it is for TiCDC": not self.quote.isascii(),
            "the quote must not be part of the delimiter": self.quote and self.quote in self.delimiter,
            "without a quote the delimiter must hold no backslash, n or r: they are part of escapes":
                not self.quote and set(self.delimiter) & set("\\nr"),
            "null must hold neither the delimiter nor the quote":
                self.delimiter in self.null or (self.quote and self.quote in self.null),
            "include-commit-ts must be true: rows without a commit-ts have no order; set include-commit-ts = true "
            "under [sink.csv] in the changefeed and here, and start the changefeed afresh": not self.include_commit_ts,
        }  # fmt: skip
        for fault, is_there in faults.items():
            if is_there:
                raise ValueError(fault)
        return self


class StorageSinkSource(Section):
    """A storage sink of TiCDC."""

    may_forget_messages: ClassVar[bool] = False

    type: Literal["storage_sink"] = key(..., "The kind of source.")
    uri: StoreUri = key(..., "The changefeed's sink URI. Its query is only compared with the keys here.", repr=False)
    protocol: Protocol = key(..., "The sink's protocol.")
    csv: CsvOptions | None = key(None, "The sink's csv options; with protocol csv.")
    date_separator: DateSeparator = key("day", "The sink's date-separator.")
    use_table_id_as_path: bool = key(False, "The sink's use-table-id-as-path.")
    file_expiration_days: int = key(0, "The sink's file-expiration-days; 0 if not set or not known.", ge=0)
    full_listing_hours: int = key(24, "Hours between listings of the whole sink; 0: every run.", ge=0)
    max_files: int = key(10_000, "Maximum number of data files per batch.", gt=0)
    max_bytes: int = key(4 << 30, "Maximum bytes of data files per batch.", gt=0)
    archive: bool = key(False, "Copy data files to the warehouse, before the sink expires them.")
    time_zone: TimeZone = key("UTC", "Time zone of TIMESTAMP text: that of the TiCDC server.")
    initial: _Initial | None = key(None, "The dump that the feed begins with.")

    @model_validator(mode="wrap")
    @classmethod
    def _as_the_query_says(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        source = handler(given)
        _, options = split_query(cast("dict[str, Any]", given)["uri"] if isinstance(given, dict) else source.uri)
        names = ("protocol", "date_separator", "use_table_id_as_path", "file_expiration_days")
        keys = [(source, name, name) for name in names]
        if (csv := source.csv) is not None:
            keys += [(csv, name, f"csv.{name.replace('_', '-')}") for name in type(csv).model_fields]
        found: list[str] = []
        for section, name, shown in keys:
            option, value = name.replace("_", "-"), getattr(section, name)
            known = str(value).lower() if isinstance(value, bool) else str(value)
            if option in options and options[option].lower() != known.lower():
                is_shown = f"{shown} is {_shown(known)}{'' if name in section.model_fields_set else ' by default'}"
                found.append(f"the query of uri says {option}={_shown(options[option])}, but {is_shown}")
        if found:
            raise ValueError("; ".join([*found, "write here what the changefeed has"]))
        if source.protocol == "canal-json" and options.get("enable-tidb-extension", "true").lower() != "true":
            raise ValueError(
                "the query of uri says that enable-tidb-extension is off: rows without a commit-ts have no order; set "
                "it to true in the changefeed and here, and start the changefeed afresh"
            )
        return source

    @model_validator(mode="after")
    def _csv_options(self) -> Self:
        if self.protocol == "csv" and self.csv is None:
            raise ValueError("protocol csv needs the section csv, with at least include-commit-ts: true")
        if self.protocol != "csv" and self.csv is not None:
            raise ValueError(f"csv options mean nothing with protocol {self.protocol}")
        return self

    @property
    def place(self) -> str:
        """The location for display, without the parts of the URI that may be secret."""
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


KafkaFormat = Literal[
    "ticdc-canal-json", "canal-json", "canal-protobuf", "dts-avro", "dts-canal-json", "shareplex-json"
]
Offsets = dict[str, dict[Annotated[int, Field(ge=0)], Annotated[int, Field(strict=True, ge=0)]]]
"""Offsets by topic and partition."""


def _named(brokers: tuple[str, ...]) -> tuple[str, ...]:
    named = tuple(broker.strip() for broker in brokers)
    if not all(named):
        raise ValueError("a broker's name is empty: write host:port")
    return named


_Brokers = Annotated[
    tuple[str, ...],
    AfterValidator(_named),
    BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]

# The topic names that a broker accepts (`org.apache.kafka.common.internals.Topic`).
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NOT_SETTABLE: Final = {
    **dict.fromkeys(("bootstrap.servers", "metadata.broker.list"), "the brokers belong in bootstrap_servers"),
    "group.id": "no consumer group is used: the offsets that have been read are in the lake",
    "group.instance.id": "no consumer group is used: the offsets that have been read are in the lake",
    "group.protocol": "no consumer group is used: the offsets that have been read are in the lake",
    "enable.auto.commit": "nothing is committed to the brokers: the offsets that have been read are in the lake",
    "enable.auto.offset.store": "nothing is committed to the brokers: the offsets that have been read are in the lake",
    "auto.offset.reset": "start says where a feed begins, and an offset that is gone is an error",
    "isolation.level": "it is always read_committed: what a transaction aborted never happened",
    "enable.partition.eof": "it is always true: the end of a partition ends a read",
    "allow.auto.create.topics": "it is always false: the source is only read",
    "sasl.jaas.config": "it is Java's: write sasl.mechanism, sasl.username and sasl.password",
}
_INSTEAD_OF_INITIAL: Final = {
    "canal-json": "; those of canal-json say the second of a change alone (es): read the Canal server itself (type "
    "canal)",
    "canal-protobuf": "; those of canal-protobuf have no order over partitions: read the Canal server itself (type "
    "canal)",
    **dict.fromkeys(("dts-avro", "dts-canal-json"), "; let the DTS task do its full load into the topic"),
}
_NOT_A_PATH: Final = "probe"
"""A value of `ssl.ca.location` that makes the client look for the system's certificates."""


class KafkaSource(Section):
    """Topics of Kafka."""

    may_forget_messages: ClassVar[bool] = True
    """Whether messages that were landed long ago are only needed to decode them again."""
    archive: ClassVar[bool] = False

    type: Literal["kafka"] = key(..., "The kind of source.")
    format: KafkaFormat = key(..., "The format of the messages.")
    bootstrap_servers: _Brokers = key(..., "host:port of brokers, as a list or separated by commas.", min_length=1)
    topics: tuple[str, ...] | None = key(None, "Names of the topics.", min_length=1)
    topic_pattern: str | None = key(None, "A regular expression that matches whole topic names.")
    time_zone: TimeZone = key("UTC", "Time zone of TIMESTAMP text, and of records' dates.")
    date_separator: DateSeparator = key("day", "Precision of feed dates, which are dates of records.")
    start: Literal["earliest", "latest"] | Offsets = key(
        "earliest", "Where the feed begins; offsets by topic and partition, the others at their earliest."
    )
    max_records: int = key(5_000_000, "Maximum number of records per run.", gt=0)
    max_bytes: int = key(1 << 30, "Maximum bytes of keys and values per run.", gt=0)
    before_2022_03_20: bool = key(False, "With dts-canal-json: an older DTS, with a DELETE's row in `old`.")
    tidb_extension: bool = key(True, "With ticdc-canal-json: its messages have TiDB's extension.")
    claim_check: Uri | None = key(None, "With ticdc-canal-json: directory or URI of the changefeed's claim checks.")
    initial: _Initial | None = key(None, "The dump that the feed begins with.")
    kafka: TextSettings = key(dict, "Settings of the client, by librdkafka's own names.", repr=False)

    @field_validator("topics")
    @classmethod
    def _names(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if not _TOPIC.fullmatch(name) or name in (".", ".."):
                raise ValueError(f"{name!r} is not a topic's name; a regular expression goes into topic_pattern")
        if len(set(value or ())) < len(value or ()):
            raise ValueError("a topic is named twice")
        return value

    @field_validator("topic_pattern")
    @classmethod
    def _expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value

    @field_validator("start", mode="wrap")
    @classmethod
    def _offsets(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError("write earliest, latest, or offsets such as {orders: {0: 1500, 1: 0}}") from None

    @field_validator("kafka")
    @classmethod
    def _settable(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for name in value:
            if name in _NOT_SETTABLE:
                raise ValueError(f"{name} cannot be set: {_NOT_SETTABLE[name]}")
        paths = [name for name in value if name.endswith(".location") and value[name] != _NOT_A_PATH]
        return value if info.context is None else value | {n: os.path.normpath(info.context / value[n]) for n in paths}

    @model_validator(mode="after")
    def _which_topics(self) -> Self:
        if (self.topics is None) == (self.topic_pattern is None):
            raise ValueError("needs either topics or topic_pattern, and not both")
        if isinstance(self.start, dict) and (others := [topic for topic in self.start if not self.takes(topic)]):
            raise ValueError(f"start names the topic {others[0]!r}, which the feed does not read")
        if self.before_2022_03_20 and self.format != "dts-canal-json":
            raise ValueError(f"before_2022_03_20 means nothing with format {self.format}")
        if self.format != "ticdc-canal-json" and (self.claim_check is not None or not self.tidb_extension):
            raise ValueError(f"tidb_extension and claim_check mean nothing with format {self.format}")
        if self.initial is not None and (self.format != "ticdc-canal-json" or not self.tidb_extension):
            needs = "initial needs messages with a commit-ts: format ticdc-canal-json with tidb_extension"
            raise ValueError(f"{needs}{_INSTEAD_OF_INITIAL.get(self.format, '')}")
        return self

    @property
    def place(self) -> str:
        """The topics and brokers for display."""
        return f"{self.topic_pattern or ', '.join(self.topics or ())} at {', '.join(self.bootstrap_servers)}"

    def takes(self, topic: str) -> bool:
        """Whether the feed reads the topic of that name."""
        if self.topics is not None:
            return topic in self.topics
        return re.fullmatch(self.topic_pattern or "", topic) is not None


# A host may be an IPv6 address in brackets.
_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/@\[\]]+):(?P<port>\d{1,5})")


class Address(NamedTuple):
    """The address of a server; `host` is an IPv6 address without brackets, an IPv4 address or a name."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CanalSource(Section):
    """One destination of a Canal server, or of several servers that can replace each other."""

    # Canal may send old entries again: they are recognised by their records, however old.
    may_forget_messages: ClassVar[bool] = False
    archive: ClassVar[bool] = False

    type: Literal["canal"] = key(..., "The kind of source.")
    addresses: tuple[str, ...] = key(..., "host:port of servers; the first with the destination is used.", min_length=1)
    destination: str = key(..., "Name of the instance on the server.", min_length=1)
    user: str | None = key(None, "Canal's own user, where the server asks for one.")
    password: str | None = key(None, "The user's password.", repr=False)
    filter: str | None = key(
        None,
        "Tables as patterns database\\.table with commas between. It replaces the server's own filter of "
        "this destination, for every client.",
        min_length=1,
    )
    batch_size: int = key(1000, "How much a batch holds at most, in KiB of memory.", ge=1, le=1_000_000)
    max_entries: int = key(1_000_000, "Maximum number of entries per run.", gt=0)
    max_bytes: int = key(1 << 28, "Maximum bytes of entries per run.", gt=0)
    max_seconds: float = key(300, "Maximum seconds for which a run takes entries.", gt=0)
    time_zone: TimeZone = key("UTC", "Time zone of TIMESTAMP text: that of the Canal server.")
    date_separator: DateSeparator = key("day", "Precision of feed dates, which are dates of entries.")
    initial: _Initial | None = key(None, "The dump that the feed begins with.")

    @field_validator("addresses")
    @classmethod
    def _valid_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if (match := _ADDRESS.fullmatch(text)) is None or not 0 < int(match["port"]) < 65536:
                raise ValueError(f"{text!r} is not of the form host:port, such as canal-1.example.com:11111")
        return value

    @property
    def place(self) -> str:
        """The destination and servers for display."""
        return f"{self.destination} at {', '.join(self.addresses)}"

    @property
    def endpoints(self) -> tuple[Address, ...]:
        """The addresses in parts, an IPv6 address without its brackets."""
        return tuple(
            Address(host.strip("[]"), int(port)) for host, _, port in (text.rpartition(":") for text in self.addresses)
        )


Source = Annotated[StorageSinkSource | KafkaSource | CanalSource, Field(discriminator="type")]
