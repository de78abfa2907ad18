"""What all parts of the configuration have in common."""

from __future__ import annotations

import os
import zoneinfo
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen part of the file. A key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def known_zone(value: str) -> str:
    """A validator of time zones."""
    if value not in zoneinfo.available_timezones():
        raise ValueError("not a time zone of the IANA database, such as UTC or Asia/Shanghai")
    return value


def as_texts(value: Any) -> Any:
    """A validator of settings that are text: YAML reads `true` and `4` as a boolean and a number."""
    if not isinstance(value, Mapping):
        return value
    settings = cast("Mapping[Any, Any]", value)
    return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in settings.items()}


def anchor_uri(uri: str, base: Path) -> str:
    """An absolute URI: a path becomes `file://` and absolute, relative to `base`; other schemes stay as they are."""
    if uri.startswith("file:"):
        uri = uri.removeprefix("file:")
        uri = uri.removeprefix("//")
    elif "://" in uri:
        return uri.rstrip("/")
    return f"file://{os.path.normpath(base / uri)}"
