"""What rows that are older than a column hold in it, as the lake has it."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest

from cdc_lakehouse.changelog.schema import Column, InitialDefault
from cdc_lakehouse.lake.current.typed_rows import initial_value
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from tests.changelog.statements import declared

SHANGHAI = ValueFormat("+08:00")
TEXTS = ValueFormat("+08:00", "string")
MIDNIGHT = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value_format", "kind", "text", "value"),
    [
        (SHANGHAI, "INT", None, None),
        (SHANGHAI, "INT", "7", 7),
        (SHANGHAI, "BIT(64)", "18446744073709551615", Decimal(2**64 - 1)),
        (SHANGHAI, "DECIMAL(10,2)", "1.50", Decimal("1.50")),
        (SHANGHAI, "DECIMAL(65,2)", "1.50", "1.50"),
        (SHANGHAI, "VARBINARY(4)", "\xff", b"\xff"),
        (SHANGHAI, "DATETIME", "2024-01-01 08:00:00", datetime.datetime(2024, 1, 1, 8)),  # noqa: DTZ001
        # Of a statement, in the zone of the feed's rows; of a schema file, in UTC.
        (SHANGHAI, "TIMESTAMP", "2024-01-01 08:00:00", MIDNIGHT),
        (SHANGHAI, "TIMESTAMP(3)", "2024-01-01 00:00:00.000+00:00", MIDNIGHT),
        (SHANGHAI, "TIMESTAMP", "0000-00-00 00:00:00", None),
        (TEXTS, "TIMESTAMP", "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
        (TEXTS, "TIMESTAMP", "2024-01-01 08:00:00", "2024-01-01 08:00:00"),
        (TEXTS, "TIMESTAMP", "2024-01-01 00:00:00+00:00", "2024-01-01 08:00:00"),
        (TEXTS, "TIMESTAMP(3)", "2024-01-01 00:00:00.120+00:00", "2024-01-01 08:00:00.120"),
    ],
)
def test_what_older_rows_hold(value_format: ValueFormat, kind: str, text: str | None, value: Any) -> None:
    column = Column(2, "c", declared(kind).type, initial=InitialDefault(text))
    assert initial_value(column, value_format) == value
