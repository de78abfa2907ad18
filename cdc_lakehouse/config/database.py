"""The connection to the source database, a MySQL or TiDB server."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field

from cdc_lakehouse.config.section import CronSchedule, Section

# A password from the environment is used as it is: it can have any character.
_URL: Final = re.compile(
    r"mysql://(?P<user>[^:@/]+)(?::(?P<password>.*))?@(?P<host>\[[0-9A-Fa-f:.]+\]|[^:@/\[\]]+)(?::(?P<port>\d{1,5}))?/?",
    re.DOTALL,
)
_PORT: Final = 3306


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The address of a database, and the user who reads it."""

    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)


def _is_url(value: str) -> str:
    # The invalid value is not shown: it may hold a password.
    match = _URL.fullmatch(value)
    if match is None or not 0 < int(match["port"] or _PORT) < 65536:
        raise ValueError("is not of the form mysql://user:${PASSWORD}@host:port")
    return value


DatabaseUrl = Annotated[str, AfterValidator(_is_url)]
"""`mysql://user:password@host:port`."""


class DatabaseConnection(Section):
    """The connection to a database."""

    url: DatabaseUrl = Field(
        description="mysql://user:${PASSWORD}@host:port of the source, or of a replica of it.", repr=False
    )
    ca_file: str | None = Field(
        None, description="TLS, with the certificate authorities in this file. The host's name is checked."
    )

    @property
    def address(self) -> DatabaseAddress:
        """The parts of the url. The password is used as it is: nothing in it is escaped."""
        match = _URL.fullmatch(self.url)
        assert match is not None  # Validated.
        host, port = match["host"].strip("[]"), int(match["port"] or _PORT)
        return DatabaseAddress(host, port, match["user"], match["password"] or "")

    def anchored(self, base: Path) -> Self:
        """Return a copy in which `ca_file`, which is relative to `base`, is an absolute path."""
        found = None if self.ca_file is None else os.path.normpath(base / self.ca_file)
        return self.model_copy(update={"ca_file": found})


class VerifyConfig(DatabaseConnection):
    """The connection to the source database, with whose tables `verify` and the check `equals_source` compare the
    lake's."""

    schedule: CronSchedule | None = Field(
        None,
        description="When Dagster evaluates the check `equals_source`, as cron has it, such as `0 3 * * 0`; in UTC.",
    )
