"""`lakehouse.yaml`: the one configuration file, validated before anything runs.

The file is found by `CDC_LAKEHOUSE_CONFIG`, else as `lakehouse.yaml` in the working directory. Paths in it are relative
to it. A value `${NAME}` is taken from the environment; secrets may come in no other way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import yaml
from pydantic import Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from cdc_lakehouse.config.feed import FeedConfig
from cdc_lakehouse.config.section import Section, anchor_uri
from cdc_lakehouse.config.storage import LakeConfig, StorageConfig
from cdc_lakehouse.errors import ConfigurationError

ENVIRONMENT_VARIABLE: Final = "CDC_LAKEHOUSE_CONFIG"
DEFAULT_FILE: Final = "lakehouse.yaml"
REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET: Final = (
    r"(?:password|passwd|secret|token|credential|authorization|(?:access|account|private|api|sas)[-_.]?key|key[-_.]pem)"
)
_SECRET_KEY: Final = re.compile(_SECRET, re.IGNORECASE)
_SECRET_AT_END: Final = re.compile(rf"{_SECRET}s?$", re.IGNORECASE)
_NAMES_A_FILE: Final = re.compile(r"[-_.]file$", re.IGNORECASE)
_PASSWORD_IN_URI: Final = re.compile(r"://[^/@:\s]*:[^@/\s]+@")
_SECRET_IN_QUERY: Final = re.compile(rf"[?&;][\w.-]*{_SECRET}[\w.-]*=[^&;\s]", re.IGNORECASE)


class LakehouseConfig(Section):
    """The whole file."""

    lake: LakeConfig = Field(description="Where the tables are, and what writes them.")
    storage: StorageConfig = Field(
        default_factory=StorageConfig.nothing, description="How buckets are reached, for sources and for the warehouse."
    )
    feeds: tuple[FeedConfig, ...] = Field(min_length=1, description="The change logs.")

    @field_validator("feeds")
    @classmethod
    def _distinct(cls, value: tuple[FeedConfig, ...]) -> tuple[FeedConfig, ...]:
        names = [feed.name for feed in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two feeds are called {name!r}: names must differ")
        return value

    def feed(self, name: str) -> FeedConfig:
        """The feed of that name. Raises `ConfigurationError` when there is none."""
        for feed in self.feeds:
            if feed.name == name:
                return feed
        known = ", ".join(feed.name for feed in self.feeds)
        raise ConfigurationError(f"no feed is called {name!r}", advice=f"the configuration has {known}")


def config_path(environment: Mapping[str, str] | None = None) -> Path:
    """The absolute path where the configuration file is expected. `environment` stands for that of the process."""
    environment = os.environ if environment is None else environment
    return Path(environment.get(ENVIRONMENT_VARIABLE) or DEFAULT_FILE).absolute()


def load(path: Path | None = None, environment: Mapping[str, str] | None = None) -> LakehouseConfig:
    """The validated configuration, with absolute paths.

    Raises `ConfigurationError` when the file cannot be read or is no YAML, when a variable is not set, when a secret
    stands in it, and for each key that is not valid: with its path, what was given and what is allowed.
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
        raise ConfigurationError(f"{path} is not YAML: {_problem(error)}", advice="correct it there") from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} holds no mapping", advice="it needs the keys lake and feeds")
    raw = cast("dict[str, Any]", document)
    refuse_plain_secrets(raw, "")
    resolved = _resolve(raw, "", environment)
    try:
        config = LakehouseConfig.model_validate(resolved)
    except ValidationError as error:
        raise ConfigurationError(f"{path} is not valid:\n{_explain(error, raw)}") from None
    return _anchor(config, path.parent)


class _Loader(yaml.SafeLoader):
    """Dates stay text, so that an error in one is reported with its key."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _problem(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """What is wrong and where, without the file's own text, which may be a secret."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "its bytes are not text" if isinstance(error, UnicodeDecodeError) else type(error).__name__
    problem = re.sub(
        r"'[^']*'", lambda quoted: quoted[0] if len(quoted[0]) == 3 else "it", error.problem or "unreadable"
    )
    return f"{problem}, at line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"


def _resolve(value: Any, where: str, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        # A bare `null` is a key of TiCDC's csv options, and YAML's own word for nothing.
        items = [("null" if k is None else k, v) for k, v in cast("dict[Any, Any]", value).items()]
        return {k: _resolve(v, f"{where}.{k}" if where else str(k), environment) for k, v in items}
    if isinstance(value, list):
        return [_resolve(v, f"{where}[{i}]", environment) for i, v in enumerate(cast("list[Any]", value))]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ConfigurationError(f"{where} names ${{{match[1]}}}, which the environment does not have")
        return environment[match[1]]

    return REFERENCE.sub(replace, value)


def _explain(error: ValidationError, raw: dict[str, Any]) -> str:
    """One line for each fault: path of the key, what is wrong, what was given (as it is in the file, so no secret)."""
    lines: list[str] = []
    faults = error.errors(include_url=False)
    inner = {fault["loc"][:1] for fault in faults if len(fault["loc"]) > 1}
    for fault in faults:
        if fault["type"] == "too_short" and fault["loc"] in inner:
            continue  # Only because those that are there are not valid.
        location = _location(fault)
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in location).lstrip(".")
        given = _given(raw, location)
        reason = {
            "extra_forbidden": "is not a key that is known here",
            "missing": "is missing",
            "union_tag_not_found": "is missing",
            "union_tag_invalid": f"should be one of {fault.get('ctx', {}).get('expected_tags')}",
        }.get(fault["type"], fault["msg"].removeprefix("Value error, ").removeprefix("Input "))
        shown = "" if given is None or fault["type"] in ("missing", "extra_forbidden") else f" (given: {given!r})"
        lines.append(f"  {place}: {reason}{shown}")
    return "\n".join(lines)


def _location(fault: ErrorDetails) -> tuple[int | str, ...]:
    """The path of a key as it is in the file, without the kind of source that pydantic puts into it."""
    match fault["loc"]:
        case ("feeds", int(number), "source"):
            discriminator = ("type",) if fault["type"].startswith("union_tag") else ()
            return ("feeds", number, "source", *discriminator)
        case ("feeds", int(number), "source", _, *rest):
            return ("feeds", number, "source", *rest)
        case location:
            return location


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
    feeds = tuple(feed.model_copy(update={"source": feed.source.anchored(base)}) for feed in config.feeds)
    return config.model_copy(update={"lake": lake, "feeds": feeds, "storage": config.storage.anchored(base)})


def refuse_plain_secrets(value: Any, where: str) -> None:
    """Raises `ConfigurationError` for a secret in plain text at any depth of a document."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            place = f"{where}.{key}" if where else str(key)
            if _is_plain_secret(str(key), item):
                raise ConfigurationError(
                    f"{place} holds a secret in plain text", advice="write ${NAME} and set NAME in the environment"
                )
            refuse_plain_secrets(item, place)
    elif isinstance(value, list):
        for position, item in enumerate(cast("list[Any]", value)):
            refuse_plain_secrets(item, f"{where}[{position}]")
    elif isinstance(value, str) and any(
        pattern.search(REFERENCE.sub("", value)) for pattern in (_PASSWORD_IN_URI, _SECRET_IN_QUERY)
    ):
        raise ConfigurationError(
            f"{where} holds a password in plain text",
            advice="write ${NAME} in its place and set NAME in the environment",
        )


def _is_plain_secret(key: str, value: Any) -> bool:
    if _NAMES_A_FILE.search(key):
        return False
    if isinstance(value, str):
        # A switch about secrets is not one.
        return bool(_SECRET_KEY.search(key)) and not REFERENCE.fullmatch(value) and value not in ("true", "false")
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(_SECRET_AT_END.search(key))
