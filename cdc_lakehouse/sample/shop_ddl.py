"""The DDL of the shop: how it opens, what changes on the way, and what goes on changing after that."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Final

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.sample.database import Database
from cdc_lakehouse.sample.shop_tables import (
    BASKETS,
    BIGINT,
    CARTS,
    CUSTOMERS,
    DATABASE,
    ORDERS,
    PAYMENTS,
    TABLES,
    required,
    varchar,
)

CAMPAIGN: Final = "campaign_"
_CAMPAIGNS_KEPT: Final = 4
_BETWEEN_STATEMENTS: Final = datetime.timedelta(milliseconds=100)

_CHANNEL: Final = required("channel", varchar(20), "web")
_CURRENCY: Final = required("currency", ColumnType.of("CHAR", length=3), "EUR")
_MORE_POINTS: Final = required("points", BIGINT, "0")

SCHEMA_CHANGES: Final[tuple[Callable[[Database, datetime.datetime], SchemaChange], ...]] = (
    lambda database, moment: database.add_column(ORDERS, _CHANNEL, _CHANNEL.default, moment),
    lambda database, moment: database.add_index(ORDERS, "by_customer", "customer_id", moment),
    lambda database, moment: database.rename_column(CUSTOMERS, "notes", "remarks", moment),
    lambda database, moment: database.modify_column(CUSTOMERS, _MORE_POINTS, moment),
    lambda database, moment: database.truncate_table(CARTS, moment),
    lambda database, moment: database.drop_column(PAYMENTS, "receipt", moment),
    lambda database, moment: database.rename_table(CARTS, BASKETS, moment),
    lambda database, moment: database.add_column(PAYMENTS, _CURRENCY, _CURRENCY.default, moment),
)
"""In this order, each once, in any history."""


def opening(database: Database, moment: datetime.datetime) -> list[SchemaChange]:
    changes = [database.create_database(DATABASE, moment)]
    for number, (name, columns) in enumerate(TABLES.items(), start=1):
        changes.append(database.create_table(name, columns, moment + number * _BETWEEN_STATEMENTS))
    return changes


def schema_change(database: Database, number: int, moment: datetime.datetime) -> SchemaChange:
    """The change with that number, counted from 0. After those of `SCHEMA_CHANGES`, campaigns come and go."""
    if number < len(SCHEMA_CHANGES):
        return SCHEMA_CHANGES[number](database, moment)
    running = campaigns(database)
    if len(running) == _CAMPAIGNS_KEPT:
        return database.drop_column(CUSTOMERS, running[0], moment)
    column = SourceColumn(f"{CAMPAIGN}{number}", varchar(20), default="none")
    return database.add_column(CUSTOMERS, column, column.default, moment)


def campaigns(database: Database) -> list[str]:
    """Columns of the running campaigns, the oldest first."""
    return [column.name for column in database.table(CUSTOMERS).columns if column.name.startswith(CAMPAIGN)]
