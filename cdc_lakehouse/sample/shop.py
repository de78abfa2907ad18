"""A small shop: its tables, transactions and DDL, and its current rows. Everything is determined by a seed.

A shop knows nothing of files. It can be saved as JSON between two transactions and continue in another process.

The tables have at least one column of every kind of type; their texts are ones that a pipeline must preserve (unicode,
quotes, line ends).
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.sample.database import Database
from cdc_lakehouse.sample.sink_writer import Row, SampleRowChange

_DATABASE: Final = "shop"
CUSTOMERS: Final = TableName(_DATABASE, "customers")
ORDERS: Final = TableName(_DATABASE, "orders")
PAYMENTS: Final = TableName(_DATABASE, "payments")
CARTS: Final = TableName(_DATABASE, "carts")
BASKETS: Final = TableName(_DATABASE, "baskets")
"""The new name of CARTS after its rename."""

_STATUSES: Final = ("new", "paid", "shipped", "delivered")
_NEW, _PAID, _SHIPPED, _DELIVERED = "1", "2", "3", "4"
_METHODS: Final = ("card", "transfer", "voucher")
_INTERESTS: Final = ("books", "games", "garden", "music", "sport")

# A feed that runs for weeks must not grow without limit: its state is kept in one file.
_CUSTOMERS_KEPT: Final = 500
_ORDERS_KEPT: Final = 1_000
_ARCHIVED_AT_ONCE: Final = 20
_CAMPAIGNS_KEPT: Final = 4
_CAMPAIGN: Final = "campaign_"
_BETWEEN_STATEMENTS: Final = datetime.timedelta(milliseconds=100)

_SKUS: Final = tuple(f"SKU-{number:04d}" for number in range(1, 25))
_CHANNELS: Final = ("web", "app", "телефон")
_GIVEN_NAMES: Final = (
    "Zoë", "Łukasz", "Søren", "José", "Анна", "Mehmet", "Nguyễn", "Ada", "Jürgen", "Chloé", "Δημήτρης", "Ines",
)  # fmt: skip
_FAMILY_NAMES: Final = (
    "Müller", "O'Brien", "Nowak", "Ibáñez", "Иванова", "Öztürk", "Văn An", "Smith-Jones", "Åkesson", "Rossi",
)  # fmt: skip
_WHOLE_NAMES: Final = ("李小龍", "山田 太郎", "김민준", "محمد علي", "Björk", "नेहा शर्मा")
_STREETS: Final = ("Hauptstraße", "Rue de l'Église", "Calle Mayor", "Nowy Świat", "Long Acre", "中山路")
_CITIES: Final = ("Köln", "Lyon", "Málaga", "Kraków", "Bristol", "臺北", "İzmir")
_REMARKS: Final = (
    "rings twice", 'says "leave it at the door"', "first line\r\nsecond line", "tab\there, comma, semicolon; done",
    "café & crème <3", "🚲 deliveries only", "back\\slash", "NULL", "",
)  # fmt: skip

# Lengths are the display lengths that TiCDC writes.
_BIGINT: Final = ColumnType.of("BIGINT", length=20)
_INT: Final = ColumnType.of("INT", length=11)
_BOOL: Final = ColumnType.of("TINYINT", length=1)
_MONEY: Final = ColumnType.of("DECIMAL", length=12, scale=2)
_MILLISECONDS: Final = ColumnType.of("DATETIME", scale=3)
_TEXT: Final = ColumnType.of("TEXT", length=65535)
_JSON, _DATE, _TIMESTAMP = ColumnType.of("JSON"), ColumnType.of("DATE"), ColumnType.of("TIMESTAMP")


def _varchar(length: int) -> ColumnType:
    return ColumnType.of("VARCHAR", length=length)


def _key(name: str, type: ColumnType = _BIGINT) -> SourceColumn:
    return SourceColumn(name, type, nullable=False, primary_key=True)


def _required(name: str, type: ColumnType, default: str | None = None) -> SourceColumn:
    return SourceColumn(name, type, nullable=False, default=default)


TABLES: Final[dict[TableName, tuple[SourceColumn, ...]]] = {
    CUSTOMERS: (
        _key("id"), _required("email", _varchar(120)), _required("name", _varchar(80)), SourceColumn("born", _DATE),
        _required("newsletter", _BOOL, "0"), SourceColumn("interests", ColumnType.of("SET", elements=_INTERESTS)),
        _required("points", _INT, "0"), SourceColumn("address", _JSON), SourceColumn("notes", _TEXT),
        _required("token", ColumnType.of("BINARY", length=16)),
        _required("created_at", _TIMESTAMP, "CURRENT_TIMESTAMP"), SourceColumn("updated_at", _MILLISECONDS),
    ),
    ORDERS: (
        _key("id"), _required("customer_id", _BIGINT),
        _required("status", ColumnType.of("ENUM", elements=_STATUSES), "new"), _required("total", _MONEY, "0.00"),
        _required("items", _INT), _required("gift", _BOOL, "0"),
        SourceColumn("message", _varchar(200)), _required("ordered_at", _MILLISECONDS),
        SourceColumn("shipped_on", _DATE), _required("updated_at", _TIMESTAMP, "CURRENT_TIMESTAMP"),
    ),
    PAYMENTS: (
        _key("id"), _required("order_id", _BIGINT), _required("method", ColumnType.of("ENUM", elements=_METHODS)),
        _required("amount", _MONEY), SourceColumn("details", _JSON),
        SourceColumn("receipt", ColumnType.of("VARBINARY", length=32)), _required("paid_at", _MILLISECONDS),
    ),
    CARTS: (
        _key("customer_id"), _key("sku", _varchar(20)), _required("quantity", _INT, "1"),
        SourceColumn("added_at", _MILLISECONDS),
    ),
}  # fmt: skip
_CHANNEL: Final = _required("channel", _varchar(20), "web")
_CURRENCY: Final = _required("currency", ColumnType.of("CHAR", length=3), "EUR")

SCHEMA_CHANGES: Final[tuple[Callable[[Database, datetime.datetime], SchemaChange], ...]] = (
    lambda database, moment: database.add_column(ORDERS, _CHANNEL, moment),
    lambda database, moment: database.add_index(ORDERS, "by_customer", "customer_id", moment),
    lambda database, moment: database.rename_column(CUSTOMERS, "notes", "remarks", moment),
    lambda database, moment: database.modify_column(CUSTOMERS, _required("points", _BIGINT, "0"), moment),
    lambda database, moment: database.truncate_table(CARTS, moment),
    lambda database, moment: database.drop_column(PAYMENTS, "receipt", moment),
    lambda database, moment: database.rename_table(CARTS, BASKETS, moment),
    lambda database, moment: database.add_column(PAYMENTS, _CURRENCY, moment),
)
"""Every history has all of them once, in this order. After them, columns of campaigns are added and dropped."""


class Shop:
    """A shop and its database. Moments are in UTC and should not go back; commit-ts rise strictly in any case."""

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        self._database = Database()
        self._trades = 0
        self._schema_changes = 0

    @property
    def last_ts(self) -> int:
        """The last commit-ts or resolved-ts."""
        return self._database.last_ts

    def open(self, moment: datetime.datetime) -> list[SchemaChange]:
        """Create the database and its tables."""
        changes = [self._database.create_database(_DATABASE, moment)]
        for number, (name, columns) in enumerate(TABLES.items(), start=1):
            changes.append(self._database.create_table(name, columns, moment + number * _BETWEEN_STATEMENTS))
        return changes

    def trade(self, moment: datetime.datetime) -> list[SampleRowChange]:
        """Run one transaction, which changes at least one row; return its changes."""
        self._trades += 1
        # Every transaction has its own generator, so that no generator's state need be saved.
        rng = random.Random(f"{self.seed}/trade/{self._trades}")
        _tidy(self._database, rng)
        changes = self._database.commit(moment)
        while not changes:
            (trade,) = rng.choices(list(_TRADES), list(_TRADES.values()))
            trade(self._database, rng, moment)
            changes = self._database.commit(moment)
        return changes

    def change_schema(self, moment: datetime.datetime) -> SchemaChange:
        """Run the next DDL: first those of `SCHEMA_CHANGES`, then columns of campaigns without end."""
        self._schema_changes += 1
        if self._schema_changes <= len(SCHEMA_CHANGES):
            return SCHEMA_CHANGES[self._schema_changes - 1](self._database, moment)
        running = _campaigns(self._database)
        if len(running) == _CAMPAIGNS_KEPT:
            return self._database.drop_column(CUSTOMERS, running[0], moment)
        column = SourceColumn(f"{_CAMPAIGN}{self._schema_changes - 1}", _varchar(20), default="none")
        return self._database.add_column(CUSTOMERS, column, moment)

    def resolve(self, moment: datetime.datetime) -> int:
        """Return a resolved-ts: all earlier commits are below it, all later ones above it."""
        return self._database.next_ts(moment)

    def tables(self) -> dict[tuple[str, str], tuple[tuple[SourceColumn, ...], list[Row]]]:
        """Return the columns and current rows of every table, by database and table. Values are text in canal-json's
        notation."""
        database = self._database
        return {
            (name.database, name.table): (database.table(name).columns, [dict(row) for row in database.rows(name)])
            for name in database.names
        }

    def state(self) -> dict[str, Any]:
        """Return everything as JSON-compatible values, between two transactions."""
        counters = {"seed": self.seed, "trades": self._trades, "schema_changes": self._schema_changes}
        return {**counters, "database": self._database.state()}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Shop:
        """Restore the shop from its `state`."""
        shop = Shop(state["seed"])
        shop._trades, shop._schema_changes = state["trades"], state["schema_changes"]
        shop._database = Database.from_state(state["database"])
        return shop


# Trades: one transaction each, which changes nothing where it finds no suitable row. They give values for all columns
# that a table ever has: the database uses those that it has at the moment.


def _register(database: Database, rng: random.Random, now: datetime.datetime) -> None:
    number, name = database.next_id(CUSTOMERS), _person_name(rng)
    notes = _remark(rng)
    database.insert(
        CUSTOMERS, id=number, email=f"customer{number}@example.org", name=name, born=_birthday(rng),
        newsletter=str(rng.randint(0, 1)), interests=_interests(rng), points="0",
        address=_address(rng) if rng.random() < 0.8 else None, notes=notes, remarks=notes,
        token=rng.randbytes(16).decode("latin-1"), created_at=_seconds(now), updated_at=None,
    )  # fmt: skip


def _fill_cart(database: Database, rng: random.Random, now: datetime.datetime) -> None:
    if customer := _any_row(database, rng, CUSTOMERS):
        carts, sku = _carts(database), rng.choice(_SKUS)
        if lines := database.rows(carts, customer_id=customer["id"], sku=sku):
            database.update(carts, lines[0], quantity=_plus(lines[0]["quantity"], 1))
        else:
            database.insert(carts, customer_id=customer["id"], sku=sku, quantity="1", added_at=_milliseconds(now))


def _place_order(database: Database, rng: random.Random, now: datetime.datetime) -> None:
    customer = _any_row(database, rng, CUSTOMERS)
    if customer is None:
        return
    lines = database.rows(_carts(database), customer_id=customer["id"])
    for line in lines:
        database.delete(_carts(database), line)
    items = max(1, len(lines))
    cents = rng.randint(100, 50_000) * items
    database.insert(
        ORDERS, id=database.next_id(ORDERS), customer_id=customer["id"], status=_NEW,
        total=f"{cents // 100}.{cents % 100:02d}", items=str(items), gift=str(int(rng.random() < 0.1)),
        message=_remark(rng), ordered_at=_milliseconds(now), shipped_on=None, updated_at=_seconds(now),
        channel=rng.choice(_CHANNELS),
    )  # fmt: skip
    database.update(CUSTOMERS, customer, updated_at=_milliseconds(now))


def _pay(database: Database, rng: random.Random, now: datetime.datetime) -> None:
    order = _any_row(database, rng, ORDERS, status=_NEW)
    if order is None:
        return
    method = rng.randint(1, len(_METHODS))
    database.update(ORDERS, order, status=_PAID, updated_at=_seconds(now))
    database.insert(
        PAYMENTS, id=database.next_id(PAYMENTS), order_id=order["id"], method=str(method), amount=order["total"],
        details=_json_text({"last4": f"{rng.randint(0, 9999):04d}", "3ds": True}) if method == 1 else None,
        receipt=rng.randbytes(rng.randint(0, 32)).decode("latin-1"), paid_at=_milliseconds(now),
        currency=rng.choice(("EUR", "EUR", "USD")),
    )  # fmt: skip
    for customer in database.rows(CUSTOMERS, id=order["customer_id"]):
        database.update(CUSTOMERS, customer, points=_plus(customer["points"], 10))


def _ship(database: Database, rng: random.Random, now: datetime.datetime) -> None:
    if order := _any_row(database, rng, ORDERS, status=_PAID):
        database.update(ORDERS, order, status=_SHIPPED, shipped_on=now.date().isoformat(), updated_at=_seconds(now))


def _deliver(database: Database, rng: random.Random, now: datetime.datetime) -> None:
    if order := _any_row(database, rng, ORDERS, status=_SHIPPED):
        database.update(ORDERS, order, status=_DELIVERED, updated_at=_seconds(now))


def _cancel(database: Database, rng: random.Random, now: datetime.datetime) -> None:
    if order := _any_row(database, rng, ORDERS, status=_NEW):
        database.delete(ORDERS, order)


def _edit_profile(database: Database, rng: random.Random, now: datetime.datetime) -> None:
    if customer := _any_row(database, rng, CUSTOMERS):
        notes = _remark(rng)
        database.update(
            CUSTOMERS, customer, name=_person_name(rng), address=_address(rng), interests=_interests(rng),
            notes=notes, remarks=notes, updated_at=_milliseconds(now),
            **dict.fromkeys(_campaigns(database)[-1:], "joined"),
        )  # fmt: skip


def _leave(database: Database, rng: random.Random, now: datetime.datetime | None = None) -> None:
    """Delete a customer with all their rows."""
    if customer := _any_row(database, rng, CUSTOMERS):
        for line in database.rows(_carts(database), customer_id=customer["id"]):
            database.delete(_carts(database), line)
        for order in database.rows(ORDERS, customer_id=customer["id"]):
            _delete_order(database, order)
        database.delete(CUSTOMERS, customer)


def _renumber(database: Database, rng: random.Random, now: datetime.datetime) -> None:
    """Give a customer another key: DELETE and INSERT with one commit-ts, in two tables."""
    if customer := _any_row(database, rng, CUSTOMERS):
        number = database.next_id(CUSTOMERS)
        for table in (_carts(database), ORDERS):
            for row in database.rows(table, customer_id=customer["id"]):
                database.update(table, row, customer_id=number)
        database.update(CUSTOMERS, customer, id=number)


def _tidy(database: Database, rng: random.Random) -> None:
    """Delete rows in a shop that is full."""
    if len(database.rows(CUSTOMERS)) > _CUSTOMERS_KEPT:
        _leave(database, rng)
    elif len(database.rows(ORDERS)) > _ORDERS_KEPT:
        for order in database.rows(ORDERS, status=_DELIVERED)[:_ARCHIVED_AT_ONCE]:
            _delete_order(database, order)


_TRADES: Final[dict[Callable[[Database, random.Random, datetime.datetime], None], int]] = {
    _register: 10, _fill_cart: 14, _place_order: 18, _pay: 18, _ship: 18, _deliver: 18, _cancel: 3, _edit_profile: 8,
    _leave: 1, _renumber: 2,
}  # fmt: skip
"""The relative frequency of each trade."""


def _any_row(database: Database, rng: random.Random, table: TableName, **equal: str | None) -> Row | None:
    rows = database.rows(table, **equal)
    return rng.choice(rows) if rows else None


def _carts(database: Database) -> TableName:
    return CARTS if CARTS in database.names else BASKETS


def _delete_order(database: Database, order: Row) -> None:
    for payment in database.rows(PAYMENTS, order_id=order["id"]):
        database.delete(PAYMENTS, payment)
    database.delete(ORDERS, order)


def _campaigns(database: Database) -> list[str]:
    """Return the columns of the running campaigns, the oldest first."""
    return [column.name for column in database.table(CUSTOMERS).columns if column.name.startswith(_CAMPAIGN)]


def _person_name(rng: random.Random) -> str:
    return rng.choice(_WHOLE_NAMES) if rng.random() < 0.2 else f"{rng.choice(_GIVEN_NAMES)} {rng.choice(_FAMILY_NAMES)}"


def _address(rng: random.Random) -> str:
    parts: dict[str, object] = {
        "street": f"{rng.choice(_STREETS)} {rng.randint(1, 120)}",
        "city": rng.choice(_CITIES),
        "zip": f"{rng.randint(0, 99999):05d}",
    }
    if rng.random() < 0.3:
        parts["geo"] = [rng.randint(-90, 90), rng.randint(-180, 180)]
    return _json_text(parts)


def _remark(rng: random.Random) -> str | None:
    return None if rng.random() < 0.5 else rng.choice(_REMARKS)


def _birthday(rng: random.Random) -> str | None:
    if rng.random() < 0.2:
        return None
    return (datetime.date(1940, 1, 1) + datetime.timedelta(days=rng.randrange(25_000))).isoformat()


def _interests(rng: random.Random) -> str | None:
    """Return a value of a SET: the sum of its members' bits."""
    return None if rng.random() < 0.2 else str(rng.randrange(1 << len(_INTERESTS)))


def _json_text(value: object) -> str:
    """Format JSON as TiDB prints it: keys in order, a space after each comma and colon."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _plus(number: str | None, more: int) -> str:
    return str(int(number or 0) + more)


def _seconds(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _milliseconds(moment: datetime.datetime) -> str:
    return f"{_seconds(moment)}.{moment.microsecond // 1000:03d}"
