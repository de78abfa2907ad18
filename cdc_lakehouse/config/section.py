"""What all parts of the configuration have in common."""

from __future__ import annotations

import zoneinfo

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def known_zone(value: str) -> str:
    """A validator of time zones."""
    if value not in zoneinfo.available_timezones():
        raise ValueError("not a time zone of the IANA database, such as UTC or Asia/Shanghai")
    return value
