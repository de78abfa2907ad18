"""The base of all sections of the configuration, and types that they share."""

from __future__ import annotations

import datetime
import os
import re
import zoneinfo
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema


class Section(BaseModel):
    """A frozen part of the file. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def key(default: Any, description: str, **options: Any) -> Any:
    """Return a key of a section: a required one for a default of `...`; a class or function makes its default."""
    by = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**by, description=description, **options)


_OFFSET: Final = re.compile(r"([+-])(0\d|1[0-4]):([0-5]\d)")


def zone_of(name: str) -> datetime.tzinfo:
    """Return the zone of an IANA name, or of an offset as in MySQL's `time_zone` (`+08:00`). Raises `KeyError`."""
    if (found := _OFFSET.fullmatch(name)) is None:
        return zoneinfo.ZoneInfo(name)
    offset = datetime.timedelta(hours=int(found[2]), minutes=int(found[3]))
    return datetime.timezone(-offset if found[1] == "-" else offset)


def _known_zone(value: str) -> str:
    is_plain = value == "UTC" or _OFFSET.fullmatch(value) is not None
    if not is_plain and value not in zoneinfo.available_timezones() - {"Factory", "localtime"}:  # Each machine's own.
        raise ValueError("not a time zone of the IANA database, such as UTC or Asia/Shanghai, or an offset like +08:00")
    return value


def matching(pattern: re.Pattern[str], otherwise: str) -> AfterValidator:
    """Return a validator that accepts texts which match as a whole; `otherwise` says what is wrong with others."""

    def check(value: str) -> str:
        if pattern.fullmatch(value) is None:
            raise ValueError(otherwise)
        return value

    return AfterValidator(check)


_CRON: Final = re.compile(r"@(hourly|daily|weekly|monthly|yearly|annually)|[\d*/,-]+( +[\w*/,#-]+){4}", re.ASCII)


def _as_texts(value: Any) -> Any:
    """Return settings as text: YAML reads `true` and `4` as a boolean and a number."""
    if not isinstance(value, Mapping):
        return value
    settings = cast("Mapping[Any, Any]", value)
    return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in settings.items()}


TimeZone = Annotated[str, AfterValidator(_known_zone)]  # A name of the IANA database, or an offset such as `+08:00`.
CronSchedule = Annotated[
    str, matching(_CRON, "is not a cron schedule: minute, hour, day, month and weekday, as in `0 3 * * 0`")
]
"""Five fields, or a name such as `@daily`."""
TextSettings = Annotated[
    dict[str, str],
    BeforeValidator(_as_texts),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}),
]
"""Settings of a client, by the client's own names."""


def anchor_uri(uri: str, base: Path) -> str:
    """Return an absolute URI: a path, relative to `base`, becomes one of `file://`; other schemes stay as they are."""
    if uri.startswith("file:"):
        uri = uri.removeprefix("file:").removeprefix("//")
    elif "://" in uri:
        return uri.rstrip("/")
    return f"file://{os.path.normpath(base / uri)}"


# The configuration is validated with the directory of its file as the context: then relative paths become absolute, so
# that nothing depends on the working directory. Without a context they stay as they are.


def _absolute_path(value: str, info: ValidationInfo) -> str:
    return value if info.context is None else os.path.normpath(info.context / value)


def _absolute_uri(value: str, info: ValidationInfo) -> str:
    return value if info.context is None else anchor_uri(value, info.context)


FilePath = Annotated[str, AfterValidator(_absolute_path)]
Uri = Annotated[str, AfterValidator(_absolute_uri)]  # A path, or a URI of an object store.

# Labels of assets: owners and tags, as Dagster accepts them.

_OWNER: Final = re.compile(r"team:(?s:.+)|[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
_PART: Final = r"[A-Za-z0-9_.\-]{1,63}"
_TAG: Final = re.compile(rf"({_PART}/)?{_PART}")
_TAG_VALUE: Final = re.compile(r"[A-Za-z0-9_.\-]{0,63}")
_GROUP: Final = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*")


def _tags(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if name.startswith("dagster/") or not _TAG.fullmatch(name) or not _TAG_VALUE.fullmatch(text):
            raise ValueError(
                f"{name!r}: {text!r} is not a tag: letters, digits, `_`, `.` and `-`, at most 63 of them, and in a "
                "name one `/`; names that begin with dagster/ are Dagster's own"
            )
    return value


Owner = Annotated[str, matching(_OWNER, "is neither an e-mail address nor a team, such as team:orders")]
"""An e-mail address, or `team:` and a team."""
Tags = Annotated[TextSettings, AfterValidator(_tags)]
Group = Annotated[str, matching(_GROUP, "is not a group: letters, digits and `_`, in parts with `/` between")]
"""A group of assets; parts separated by `/` are nested groups."""
