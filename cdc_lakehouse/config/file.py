"""`lakehouse.yaml`: the one configuration file, validated before anything runs.

`CDC_LAKEHOUSE_CONFIG` is the path of the file; without it, the file is `lakehouse.yaml` in the working directory. Paths
in it are relative to it. A value `${NAME}` is read from the environment, `${file:PATH}` from a file; there is no other
way for secrets.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, cast, get_args

import yaml
from pydantic import Field, ValidationError, ValidationInfo, WithJsonSchema, field_validator, model_validator
from yaml.reader import ReaderError

from cdc_lakehouse.config.feed import DagsterConfig, FeedConfig
from cdc_lakehouse.config.reporting import Fault, correct_types, faults_of, plain_secrets, resolve
from cdc_lakehouse.config.section import Section, key, matching
from cdc_lakehouse.config.sources import Source
from cdc_lakehouse.config.storage import LakeConfig, StorageConfig
from cdc_lakehouse.errors import ConfigurationError

# Parsing of the configuration's text, and messages for text that is not YAML.

_QUOTED: Final = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
_MARKS: Final = {
    "<block end>": "the end of the block (is the indentation right?)",
    "<block mapping start>": "the first key of a block",
    "<block sequence start>": "the first item of a list",
    "<scalar>": "a value",
    "<stream end>": "the end of the file",
}
"""The parser's names for parts of a file, in words."""


class _Loader(yaml.SafeLoader):
    """A loader that keeps dates as text, so that an error in one is reported with its key. As in YAML 1.2, only `true`
    and `false` are booleans: `on` is a key of receivers."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag != "tag:yaml.org,2002:timestamp" and (tag != "tag:yaml.org,2002:bool" or first in "tTfF")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_mapping(path: Path, advice: str) -> dict[str, Any]:
    """Read a file that holds a mapping. Raises `ConfigurationError` when it cannot be read, with the `advice`, is not
    YAML (with line and column), or holds no mapping."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", advice=advice) from error
    try:
        text = content.decode("utf-8-sig")
        document = yaml.load(text, _Loader)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"its bytes are not UTF-8, at line {line}"
    except ReaderError as error:
        text, place = content.decode("utf-8-sig"), error.position
        line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
        problem = f"the character U+{ord(text[place]):04X} is not allowed, at line {line}, column {column}"
    except yaml.MarkedYAMLError as error:
        # What was expected and found, where, and in which construct. The file's own text may be a secret.
        problem = _in_words(error.problem or "it cannot be read")
        if error.problem_mark is not None:
            problem += f", at {_place(error.problem_mark)}"
        if error.context is not None and error.context.startswith("while") and error.context_mark is not None:
            problem += f", {_in_words(error.context)} that begins at {_place(error.context_mark)}"
    else:
        if not isinstance(document, dict):
            raise ConfigurationError(f"{path} holds no mapping", advice="it needs the keys lake and feeds")
        return cast("dict[str, Any]", document)
    raise ConfigurationError(f"{path} is not YAML: {problem}", advice="correct it there")


def _place(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _in_words(said: str) -> str:
    for mark, words in _MARKS.items():
        said = said.replace(f"'{mark}'", words).replace(mark, words)
    return _QUOTED.sub(lambda quoted: quoted[0] if len(ast.literal_eval(quoted[0])) == 1 else "'…'", said)


# Receivers of alerts, and the problems that each receives.

ProblemKind = Literal["failed", "held", "stale", "quarantined", "check", "maintenance"]
KINDS: Final[tuple[ProblemKind, ...]] = get_args(ProblemKind)
_URL: Final = re.compile(r"https?://[^\s/]+(/\S*)?")
_ADDRESS: Final = re.compile(r"[^@\s,<>]+@[^@\s,<>]+")


class _Receiver(Section):
    feeds: tuple[str, ...] | None = key(None, "Only problems of these feeds. Default: all.")
    on: tuple[ProblemKind, ...] = key(KINDS, "Only these kinds of problems.", min_length=1)

    def takes(self, feed: str, kind: ProblemKind) -> bool:
        """Whether the receiver is notified of problems of that kind in that feed."""
        return kind in self.on and (self.feeds is None or feed in self.feeds)


_HttpUrl = Annotated[str, matching(_URL, "must begin with https:// or http://, and name a host")]
_Address = Annotated[str, matching(_ADDRESS, "is not an e-mail address")]


class WebhookReceiver(_Receiver):
    """An HTTP server that accepts JSON."""

    type: Literal["webhook"] = key(..., "The kind of receiver.")
    url: _HttpUrl = key(..., "Where messages are posted. A secret: a ${NAME}.", repr=False)
    headers: dict[str, str] = key(dict, "Headers of the request.", repr=False)


class SlackReceiver(_Receiver):
    """An incoming webhook of Slack, or of a server that accepts its format (Mattermost, Rocket.Chat)."""

    type: Literal["slack"] = key(..., "The kind of receiver.")
    url: _HttpUrl = key(..., "The incoming webhook. A secret: a ${NAME}.", repr=False)


class EmailReceiver(_Receiver):
    """A mail server (SMTP)."""

    type: Literal["email"] = key(..., "The kind of receiver.")
    host: str = key(..., "The mail server.", min_length=1)
    port: Annotated[int, Field(gt=0, lt=65536)] = key(587, "Its port.")
    sender: _Address = key(..., "The sender's address.", alias="from")
    to: Annotated[
        tuple[_Address, ...], WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1})
    ] = key(..., "The recipients' addresses.", min_length=1)
    user: str | None = key(None, "User at the mail server.")
    password: str | None = key(None, "The user's password.", repr=False)
    starttls: bool = key(True, "The connection is encrypted, and the server's certificate is checked.")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together")
        return self


AlertReceiver = Annotated[WebhookReceiver | SlackReceiver | EmailReceiver, Field(discriminator="type")]


ENVIRONMENT_VARIABLE: Final = "CDC_LAKEHOUSE_CONFIG"
DEFAULT_FILE: Final = "lakehouse.yaml"


class LakehouseConfig(Section):
    """The whole file."""

    lake: LakeConfig = key(..., "Where the tables are, and what writes them.")
    storage: StorageConfig = key(StorageConfig, "How buckets are reached, for sources and for the warehouse.")
    dagster: DagsterConfig = key(DagsterConfig, "What is kept in the Dagster instance.")
    feeds: tuple[FeedConfig, ...] = key(..., "The change logs.", min_length=1)
    alerts: tuple[AlertReceiver, ...] = key((), "Receivers of alerts.")

    @field_validator("feeds")
    @classmethod
    def _distinct(cls, value: tuple[FeedConfig, ...]) -> tuple[FeedConfig, ...]:
        names = [feed.name for feed in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two feeds are called {name!r}: names must differ")
        paths = sorted((*feed.key_prefix, feed.name) for feed in value)
        for one, other in itertools.pairwise(paths):
            if other[: len(one)] == one:
                raise ValueError(f"keys of assets of {other[-1]!r} would be below those of {one[-1]!r}: its key_prefix")
        return value

    @field_validator("alerts")
    @classmethod
    def _known_feeds(cls, value: tuple[AlertReceiver, ...], info: ValidationInfo) -> tuple[AlertReceiver, ...]:
        feeds: tuple[FeedConfig, ...] = info.data.get("feeds", ())
        known = [feed.name for feed in feeds]
        for name in (name for receiver in value for name in receiver.feeds or ()):
            if known and name not in known:
                raise ValueError(f"no feed is called {name!r}: the configuration has {', '.join(known)}")
        return value

    def feed(self, name: str) -> FeedConfig:
        """Return the feed of that name. Raises `ConfigurationError` when there is none."""
        by_name = {feed.name: feed for feed in self.feeds}
        if name not in by_name:
            advice = f"the configuration has {', '.join(by_name)}"
            raise ConfigurationError(f"no feed is called {name!r}", advice=advice)
        return by_name[name]


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute path where the configuration file is expected. `environment` replaces that of the process."""
    return Path(environment.get(ENVIRONMENT_VARIABLE) or DEFAULT_FILE).absolute()


def load(path: Path | None = None, environment: Mapping[str, str] = os.environ) -> LakehouseConfig:
    """Read and validate the configuration; its paths are absolute.

    Raises `ConfigurationError` when the file cannot be read or is not YAML, and otherwise once for all faults in it:
    variables that are not set, secrets in plain text, and invalid keys, each with its path, the given value and the
    allowed ones.
    """
    path = config_path(environment) if path is None else path.absolute()
    raw = read_mapping(
        path, advice=f"write one with `cdc-lakehouse init`, or name another with --config or {ENVIRONMENT_VARIABLE}"
    )
    return validate(raw, path.parent, str(path), environment)


def validate(
    raw: dict[str, Any], base: Path, place: str, environment: Mapping[str, str] = os.environ
) -> LakehouseConfig:
    """Validate a configuration, wherever it was read: its paths are relative to `base`, and errors name `place`. Raises
    as `load` does."""
    faults = plain_secrets(raw)
    resolved = resolve(raw, environment, base, faults)
    found: list[Fault] = []
    for first, below, union in (("feeds", ("source",), Source), ("alerts", (), AlertReceiver)):
        listed = resolved.get(first)
        count = len(cast("list[Any]", listed)) if isinstance(listed, list) else 0
        found += correct_types(resolved, raw, (((first, number, *below), union) for number in range(count)))
    try:
        config = LakehouseConfig.model_validate(resolved, context=base)
    except ValidationError as error:
        found += faults_of(LakehouseConfig, error.errors(include_url=False), raw)
    else:
        if not faults and not found:
            return config
    for fault in found:
        # None that can contain a secret in plain text, or that results from a variable that is not set.
        if not fault.tells_value or all(each.place[: len(fault.place)] != fault.place for each in faults):
            faults.append(fault)
    raise ConfigurationError("\n".join([f"{place} is not valid:", *(f"  {fault}" for fault in faults)]))


# The JSON Schema of `lakehouse.yaml`, for completion and validation in editors.

_REFERENCE: Final = {"type": "string", "pattern": r"\$\{.+\}"}
"""A value of any type can come from the environment or from a file."""
_NOT_TEXT: Final = ("integer", "number", "boolean")


def json_schema() -> dict[str, Any]:
    """Return the schema as a document of JSON Schema 2020-12."""
    schema = cast("dict[str, Any]", with_references(LakehouseConfig.model_json_schema()))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "lakehouse.yaml"}


def with_references(schema: Any) -> Any:
    """Return a schema in which `${NAME}` is also valid for a number, a boolean or an enumerated value, and a section of
    one of several types is judged as one of its own."""
    if isinstance(schema, list):
        return [with_references(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    section = {key: with_references(each) for key, each in cast("dict[str, Any]", schema).items()}
    if "discriminator" in section and section.pop("oneOf"):
        kinds: dict[str, str] = section.pop("discriminator")["mapping"]
        section |= {"type": "object", "required": ["type"], "properties": {"type": {"enum": [*kinds]}}}
        of_kind = {kind: {"properties": {"type": {"const": kind}}} for kind in kinds}
        section["allOf"] = [{"if": of_kind[kind], "then": {"$ref": kinds[kind]}} for kind in kinds]
    # A property can be called so too: its value is a schema.
    if section.get("type") not in _NOT_TEXT and not isinstance(section.get("enum"), list):
        return section
    described = {key: section.pop(key) for key in ("title", "description", "default") if key in section}
    return {**described, "anyOf": [section, _REFERENCE]}
