"""The shop's tables as they are created, with one column at least of every kind of type."""

from __future__ import annotations

from typing import Final

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn, TableName

DATABASE: Final = "shop"
CUSTOMERS: Final = TableName(DATABASE, "customers")
ORDERS: Final = TableName(DATABASE, "orders")
PAYMENTS: Final = TableName(DATABASE, "payments")
CARTS: Final = TableName(DATABASE, "carts")
BASKETS: Final = TableName(DATABASE, "baskets")
"""What CARTS is called later."""

STATUSES: Final = ("new", "paid", "shipped", "delivered")
METHODS: Final = ("card", "transfer", "voucher")
INTERESTS: Final = ("books", "games", "garden", "music", "sport")

# Lengths are the display lengths that TiCDC gives.
BIGINT: Final = ColumnType.of("BIGINT", length=20)
INT: Final = ColumnType.of("INT", length=11)
_BOOL: Final = ColumnType.of("TINYINT", length=1)
_MONEY: Final = ColumnType.of("DECIMAL", length=12, scale=2)
_MILLISECONDS: Final = ColumnType.of("DATETIME", scale=3)
_TEXT: Final = ColumnType.of("TEXT", length=65535)
_JSON: Final = ColumnType.of("JSON")
_DATE: Final = ColumnType.of("DATE")
_TIMESTAMP: Final = ColumnType.of("TIMESTAMP")


def varchar(length: int) -> ColumnType:
    return ColumnType.of("VARCHAR", length=length)


def _key(name: str, type: ColumnType = BIGINT) -> SourceColumn:
    return SourceColumn(name, type, nullable=False, primary_key=True)


def required(name: str, type: ColumnType, default: str | None = None) -> SourceColumn:
    return SourceColumn(name, type, nullable=False, default=default)


TABLES: Final[dict[TableName, tuple[SourceColumn, ...]]] = {
    CUSTOMERS: (
        _key("id"),
        required("email", varchar(120)),
        required("name", varchar(80)),
        SourceColumn("born", _DATE),
        required("newsletter", _BOOL, "0"),
        SourceColumn("interests", ColumnType.of("SET", elements=INTERESTS)),
        required("points", INT, "0"),
        SourceColumn("address", _JSON),
        SourceColumn("notes", _TEXT),
        required("token", ColumnType.of("BINARY", length=16)),
        required("created_at", _TIMESTAMP, "CURRENT_TIMESTAMP"),
        SourceColumn("updated_at", _MILLISECONDS),
    ),
    ORDERS: (
        _key("id"),
        required("customer_id", BIGINT),
        required("status", ColumnType.of("ENUM", elements=STATUSES), "new"),
        required("total", _MONEY, "0.00"),
        required("items", INT),
        required("gift", _BOOL, "0"),
        SourceColumn("message", varchar(200)),
        required("ordered_at", _MILLISECONDS),
        SourceColumn("shipped_on", _DATE),
        required("updated_at", _TIMESTAMP, "CURRENT_TIMESTAMP"),
    ),
    PAYMENTS: (
        _key("id"),
        required("order_id", BIGINT),
        required("method", ColumnType.of("ENUM", elements=METHODS)),
        required("amount", _MONEY),
        SourceColumn("details", _JSON),
        SourceColumn("receipt", ColumnType.of("VARBINARY", length=32)),
        required("paid_at", _MILLISECONDS),
    ),
    CARTS: (
        _key("customer_id"),
        _key("sku", varchar(20)),
        required("quantity", INT, "1"),
        SourceColumn("added_at", _MILLISECONDS),
    ),
}
