"""How a MySQL or a TiDB is reached: the source database itself."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field

from cdc_lakehouse.config.section import CronSchedule, Section

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


def _is_url(value: str) -> str:
    # What is wrong is not shown: it may hold a password.
    match = _URL.fullmatch(value)
    if match is None or not 0 < int(match["port"] or _PORT) < 65536:
        raise ValueError("is not of the form mysql://user:${PASSWORD}@host:port")
    return value


DatabaseUrl = Annotated[str, AfterValidator(_is_url)]
"""`mysql://user:password@host:port`."""


class DatabaseConnection(Section):
    """How a database is reached."""

    url: DatabaseUrl = Field(
        description="mysql://user:${PASSWORD}@host:port of the source, or of a replica of it.", repr=False
    )
    ca_file: str | None = Field(
        None, description="TLS, with the certificate authorities in this file. The host's name is checked."
    )

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


class VerifyConfig(DatabaseConnection):
    """How the source database is reached: with it, `verify` compares its tables with the lake's, and so does the
    check `equals_source`."""

    schedule: CronSchedule | None = Field(
        None,
        description="When Dagster evaluates the check `equals_source`, as cron has it, such as `0 3 * * 0`; in UTC.",
    )
