"""`lakehouse.yaml`: the one configuration file, validated before anything runs.

The file is found by `CDC_LAKEHOUSE_CONFIG`, else as `lakehouse.yaml` in the working directory. Paths in it are relative
to it. A value `${NAME}` is taken from the environment; secrets may come in no other way.
"""

from __future__ import annotations

import datetime
import os
import re
import string
import zoneinfo
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cdc_lakehouse.errors import ConfigurationError

ENVIRONMENT_VARIABLE: Final = "CDC_LAKEHOUSE_CONFIG"
DEFAULT_FILE: Final = "lakehouse.yaml"

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET: Final = (
    r"(?:password|passwd|secret|token|credential|authorization|(?:access|account|private|api|sas)[-_.]?key)"
)
_SECRET_KEY: Final = re.compile(_SECRET, re.IGNORECASE)
_SECRET_AT_END: Final = re.compile(rf"{_SECRET}s?$", re.IGNORECASE)
_PASSWORD_IN_URI: Final = re.compile(r"://[^/@:\s]*:[^@/\s]+@")
_SECRET_IN_QUERY: Final = re.compile(rf"[?&;][\w.-]*{_SECRET}[\w.-]*=[^&;\s]", re.IGNORECASE)
_PLACEHOLDERS: Final = frozenset({"database", "feed"})
_FEED_NAME: Final = r"^[a-z][a-z0-9_]{0,62}$"

DateSeparator = Literal["none", "year", "month", "day"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SparkConfig(_Section):
    master: str = Field("local[*]", description="Spark master URL.")
    conf: dict[str, str] = Field(
        default_factory=dict, description="Further Spark settings, by Spark's own names.", repr=False
    )

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        # YAML reads `true` and `4` as a boolean and a number; Spark takes text.
        if not isinstance(value, Mapping):
            return value
        settings = cast("Mapping[Any, Any]", value)
        return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in settings.items()}


class CatalogConfig(BaseModel):
    """PyIceberg's own property names; those without a meaning here are handed through."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["sql", "rest", "glue", "hive"]
    uri: str | None = Field(None, description="Where the catalog is (not for glue).")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        # Any of its properties may be a secret.
        yield "type", self.type

    @model_validator(mode="after")
    def _needs_uri(self) -> CatalogConfig:
        if self.uri is None and self.type != "glue":
            raise ValueError(f"a catalog of type {self.type} needs a uri")
        return self

    @property
    def properties(self) -> dict[str, str]:
        extra = {str(k): str(v) for k, v in (self.__pydantic_extra__ or {}).items()}
        return extra if self.uri is None else {"uri": self.uri, **extra}


class LakeConfig(_Section):
    warehouse: str = Field(description="Where tables are stored: a path, or a URI of an object store.")
    catalog: CatalogConfig
    spark: SparkConfig = Field(default_factory=lambda: SparkConfig.model_validate({}))


class StorageSinkSource(_Section):
    type: Literal["storage_sink"]
    uri: str = Field(description="The changefeed's sink URI, without its query.", repr=False)
    protocol: Literal["canal-json"] = Field(description="The sink's protocol.")
    date_separator: DateSeparator = Field("day", description="The sink's date-separator.")
    time_zone: str = Field("UTC", description="How TIMESTAMP text is read: the time zone of the TiCDC server.")

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value not in zoneinfo.available_timezones():
            raise ValueError("not a time zone of the IANA database, such as UTC or Asia/Shanghai")
        return value


class TableSettings(_Section):
    primary_key: tuple[str, ...] | None = Field(None, min_length=1, description="Key of a table that declares none.")
    zero_dates: Literal["null", "string", "error"] | None = Field(None, description="Overrides policy.zero_dates.")


class TablesConfig(_Section):
    include: tuple[str, ...] = Field(("*.*",), description="Patterns of database.table to take.")
    exclude: tuple[str, ...] = Field((), description="Patterns of database.table to leave out.")
    settings: dict[str, TableSettings] = Field(default_factory=dict, description="By database.table.")

    @field_validator("settings")
    @classmethod
    def _names(cls, value: dict[str, TableSettings]) -> dict[str, TableSettings]:
        for name in value:
            if "." not in name:
                raise ValueError(f"{name!r} is not a name of the form database.table, such as shop.orders")
        return value

    @field_validator("include", "exclude")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            if "." not in pattern:
                raise ValueError(f"{pattern!r} is not a pattern of the form database.table, such as shop.* or *.orders")
        return value

    def takes(self, database: str, table: str) -> bool:
        name = f"{database}.{table}"
        return any(fnmatchcase(name, p) for p in self.include) and not any(fnmatchcase(name, p) for p in self.exclude)


class PolicyConfig(_Section):
    zero_dates: Literal["null", "string", "error"] = Field(
        "null", description="Zero and partial dates become NULL, the column becomes text, or the row is quarantined."
    )
    quarantine: Literal["hold", "skip"] = Field(
        "hold", description="A table with quarantined rows stays at its last good cut, or goes on without the rows."
    )
    index_gap: Literal["hold", "skip"] = Field(
        "hold", description="A table with a missing data file stays at its last good cut, or goes on without it."
    )


class FeedConfig(_Section):
    name: str = Field(pattern=_FEED_NAME, description="Lower-case letters, digits and underscores.")
    source: StorageSinkSource
    tables: TablesConfig = Field(default_factory=lambda: TablesConfig.model_validate({}))
    namespace: str = Field("{database}", description="Namespace of the current-state tables.")
    start_date: datetime.date = Field(description="The first Dagster partition.")
    policy: PolicyConfig = Field(default_factory=lambda: PolicyConfig.model_validate({}))
    freshness_minutes: Annotated[int, Field(gt=0)] = Field(
        60, description="The freshness check fails when the published cut is older than this."
    )

    @field_validator("namespace")
    @classmethod
    def _placeholders(cls, value: str) -> str:
        try:
            fields = [parts[1:] for parts in string.Formatter().parse(value) if parts[1] is not None]
        except ValueError:
            fields = [("", "", "")]
        if any(name not in _PLACEHOLDERS or spec or conversion for name, spec, conversion in fields):
            raise ValueError("may hold the placeholders {database} and {feed} and no others")
        if not value:
            raise ValueError("must not be empty")
        return value

    def settings_of(self, database: str, table: str) -> TableSettings:
        return self.tables.settings.get(f"{database}.{table}", TableSettings.model_validate({}))

    def zero_dates_of(self, database: str, table: str) -> Literal["null", "string", "error"]:
        return self.settings_of(database, table).zero_dates or self.policy.zero_dates


class LakehouseConfig(_Section):
    lake: LakeConfig
    feeds: tuple[FeedConfig, ...] = Field(min_length=1)

    @field_validator("feeds")
    @classmethod
    def _distinct(cls, value: tuple[FeedConfig, ...]) -> tuple[FeedConfig, ...]:
        names = [feed.name for feed in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two feeds are called {name!r}: names must differ")
        return value

    def feed(self, name: str) -> FeedConfig:
        for feed in self.feeds:
            if feed.name == name:
                return feed
        known = ", ".join(feed.name for feed in self.feeds)
        raise ConfigurationError(f"no feed is called {name!r}", advice=f"the configuration has {known}")


def config_path(environment: Mapping[str, str] | None = None) -> Path:
    """Where the configuration file is expected."""
    environment = os.environ if environment is None else environment
    return Path(environment.get(ENVIRONMENT_VARIABLE) or DEFAULT_FILE).absolute()


def load(path: Path | None = None, environment: Mapping[str, str] | None = None) -> LakehouseConfig:
    """Read and validate the configuration.

    Raises `ConfigurationError` that names the key's path, what was given and what is allowed.
    """
    environment = os.environ if environment is None else environment
    path = config_path(environment) if path is None else path.absolute()
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}", advice=f"write it, or point {ENVIRONMENT_VARIABLE} at it"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not YAML: {_problem(error)}", advice="mend it there") from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} holds no mapping", advice="it needs the keys lake and feeds")
    raw = cast("dict[str, Any]", document)
    _refuse_plain_secrets(raw, "")
    resolved = _resolve(raw, "", environment)
    try:
        config = LakehouseConfig.model_validate(resolved)
    except ValidationError as error:
        raise ConfigurationError(f"{path} is not valid:\n{_explain(error, raw)}") from None
    return _anchor(config, path.parent)


class _Loader(yaml.SafeLoader):
    """Dates stay text: what is wrong with one is told with its key."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _problem(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """What is wrong and where, without the file's own text, which may be a secret."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "its bytes are not text" if isinstance(error, UnicodeDecodeError) else type(error).__name__
    problem = re.sub(r"'[^']{2,}'", "it", error.problem or "it cannot be read")
    return f"{problem}, at line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"


def _refuse_plain_secrets(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            place = f"{where}.{key}" if where else str(key)
            if _is_plain_secret(str(key), item):
                raise ConfigurationError(
                    f"{place} holds a secret in plain text", advice="write ${NAME} and set NAME in the environment"
                )
            _refuse_plain_secrets(item, place)
    elif isinstance(value, list):
        for position, item in enumerate(cast("list[Any]", value)):
            _refuse_plain_secrets(item, f"{where}[{position}]")
    elif isinstance(value, str) and any(
        pattern.search(_REFERENCE.sub("", value)) for pattern in (_PASSWORD_IN_URI, _SECRET_IN_QUERY)
    ):
        raise ConfigurationError(
            f"{where} holds a password in plain text",
            advice="write ${NAME} in its place and set NAME in the environment",
        )


def _is_plain_secret(key: str, value: Any) -> bool:
    if isinstance(value, str):
        # A switch about secrets is not one.
        return bool(_SECRET_KEY.search(key)) and not _REFERENCE.fullmatch(value) and value not in ("true", "false")
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(_SECRET_AT_END.search(key))


def _resolve(value: Any, where: str, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {k: _resolve(v, f"{where}.{k}" if where else str(k), environment) for k, v in items}
    if isinstance(value, list):
        return [_resolve(v, f"{where}[{i}]", environment) for i, v in enumerate(cast("list[Any]", value))]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ConfigurationError(f"{where} names ${{{match[1]}}}, which the environment does not have")
        return environment[match[1]]

    return _REFERENCE.sub(replace, value)


def _explain(error: ValidationError, raw: dict[str, Any]) -> str:
    """One line a fault: path of the key, what is wrong, what was given (as it stands in the file, so no secret)."""
    lines: list[str] = []
    faults = error.errors(include_url=False)
    inner = {fault["loc"][:1] for fault in faults if len(fault["loc"]) > 1}
    for fault in faults:
        if fault["type"] == "too_short" and fault["loc"] in inner:
            continue  # Only because those that are there are not valid.
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in fault["loc"]).lstrip(".")
        given = _given(raw, fault["loc"])
        reason = {
            "extra_forbidden": "is not a key that is known here",
            "missing": "is missing",
        }.get(fault["type"], fault["msg"].removeprefix("Value error, ").removeprefix("Input "))
        shown = "" if given is None or fault["type"] in ("missing", "extra_forbidden") else f" (given: {given!r})"
        lines.append(f"  {place}: {reason}{shown}")
    return "\n".join(lines)


def _given(raw: Any, location: tuple[int | str, ...]) -> Any:
    for step in location:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw if isinstance(raw, (str, int, float, bool)) else None


def _anchor(config: LakehouseConfig, base: Path) -> LakehouseConfig:
    """Make every relative path of the file absolute, so that nothing depends on the working directory."""
    catalog = config.lake.catalog
    if catalog.type == "sql" and catalog.uri is not None and catalog.uri.startswith("sqlite:///"):
        database = base / catalog.uri.removeprefix("sqlite:///")
        catalog = catalog.model_copy(update={"uri": f"sqlite:///{os.path.normpath(database)}"})
    lake = config.lake.model_copy(update={"warehouse": anchor_uri(config.lake.warehouse, base), "catalog": catalog})
    feeds = tuple(
        feed.model_copy(update={"source": feed.source.model_copy(update={"uri": anchor_uri(feed.source.uri, base)})})
        for feed in config.feeds
    )
    return config.model_copy(update={"lake": lake, "feeds": feeds})


def anchor_uri(uri: str, base: Path) -> str:
    """An absolute URI: a path becomes `file://` and absolute, relative to `base`; other schemes stay as they are."""
    if uri.startswith("file:"):
        uri = uri.removeprefix("file:")
        uri = uri.removeprefix("//")
    elif "://" in uri:
        return uri.rstrip("/")
    return f"file://{os.path.normpath(base / uri)}"
