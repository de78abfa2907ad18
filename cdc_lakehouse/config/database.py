"""How a MySQL or a TiDB is reached: the source database itself."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from pydantic import Field, field_validator

from cdc_lakehouse.config.section import Section

# A password comes from the environment as it is: it can have any character.
_URL: Final = re.compile(
    r"mysql://(?P<user>[^:@/]+)(?::(?P<password>.*))?@(?P<host>\[[0-9A-Fa-f:.]+\]|[^:@/\[\]]+)(?::(?P<port>\d{1,5}))?/?",
    re.DOTALL,
)
_PORT: Final = 3306


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """Where a database is, and as whom it is read."""

    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)


def require_url(value: str) -> str:
    """The value. Raises `ValueError` for what is no URL of a database; it does not show it."""
    match = _URL.fullmatch(value)
    if match is None or not 0 < int(match["port"] or _PORT) < 65536:
        raise ValueError("is not of the form mysql://user:${PASSWORD}@host:port")
    return value


class DatabaseConnection(Section):
    """How a database is reached."""

    url: str = Field(description="mysql://user:${PASSWORD}@host:port of the source, or of a replica of it.", repr=False)
    ca_file: str | None = Field(
        None, description="TLS, with the certificate authorities in this file. The host's name is checked."
    )

    @field_validator("url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        return require_url(value)

    @property
    def address(self) -> DatabaseAddress:
        """The url in parts. The password is taken as it is: nothing in it is escaped."""
        match = _URL.fullmatch(self.url)
        assert match is not None  # Validated.
        host, port = match["host"].strip("[]"), int(match["port"] or _PORT)
        return DatabaseAddress(host, port, match["user"], match["password"] or "")

    def anchored(self, base: Path) -> Self:
        """With an absolute path of the file of authorities, which is relative to `base`."""
        found = None if self.ca_file is None else os.path.normpath(base / self.ca_file)
        return self.model_copy(update={"ca_file": found})


_CRON: Final = re.compile(r"@(hourly|daily|weekly|monthly|yearly|annually)|[\d*/,-]+( [\w*/,#-]+){4}", re.ASCII)


class VerifyConfig(DatabaseConnection):
    """How the source database is reached: with it, `verify` compares its tables with the lake's, and so does the
    check `equals_source`."""

    schedule: str | None = Field(
        None,
        description="When Dagster evaluates the check `equals_source`, as cron has it, such as `0 3 * * 0`; in UTC.",
    )

    @field_validator("schedule")
    @classmethod
    def _is_cron(cls, value: str | None) -> str | None:
        if value is not None and _CRON.fullmatch(value) is None:
            raise ValueError("is no schedule of cron: minute, hour, day, month and weekday, as in `0 3 * * 0`")
        return value
