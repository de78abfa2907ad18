"""The source database that a feed's tables are compared with."""

from __future__ import annotations

import re
from typing import Final

from pydantic import Field, field_validator

from cdc_lakehouse.config.database import DatabaseConnection

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
