"""Labels of assets: owners and tags, as Dagster accepts them."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator

from cdc_lakehouse.config.section import TextSettings

_E_MAIL: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
_PART: Final = r"[A-Za-z0-9_.\-]{1,63}"
_TAG: Final = re.compile(rf"({_PART}/)?{_PART}")
_TAG_VALUE: Final = re.compile(r"[A-Za-z0-9_.\-]{0,63}")
_GROUP: Final = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*")


def _owner(value: str) -> str:
    if not (value.startswith("team:") and value != "team:") and not _E_MAIL.fullmatch(value):
        raise ValueError("is neither an e-mail address nor a team, such as team:orders")
    return value


def _tags(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if name.startswith("dagster/") or not _TAG.fullmatch(name) or not _TAG_VALUE.fullmatch(text):
            raise ValueError(
                f"{name!r}: {text!r} is not a tag: letters, digits, `_`, `.` and `-`, at most 63 of them, and in a "
                "name one `/`; names that begin with dagster/ are Dagster's own"
            )
    return value


def _group(value: str) -> str:
    if not _GROUP.fullmatch(value):
        raise ValueError("is not a group: letters, digits and `_`, in parts with `/` between")
    return value


Owner = Annotated[str, AfterValidator(_owner)]
"""An e-mail address, or `team:` and a team."""
Tags = Annotated[TextSettings, AfterValidator(_tags)]
"""Values by name."""
Group = Annotated[str, AfterValidator(_group)]
"""A group of assets; parts separated by `/` are nested groups."""
