"""A small shop: its tables, transactions and DDL, and its current rows. Everything is determined by a seed.

A shop knows nothing of files. It can be saved as JSON between two transactions and continue in another process.

The tables have at least one column of every kind of type; their texts are ones that a pipeline must preserve (unicode,
quotes, line ends). DDL text is as TiCDC prints it: names in backquotes, key words in upper case, texts with their
character set.

The sample changefeed has a shop's history, written at once, and its ongoing changes:

    write_history(directory, start=…, end=…, transactions=2_000)
    for checkpoint_ts in follow(directory, pause_seconds=5):
        …

Every date from the first flush, at most five hours after the start, to the last checkpoint has data files. The
generator's own state is next to the sink, in `{directory}.state.json`: a sink holds only what TiCDC writes.
"""

from __future__ import annotations

import datetime
import itertools
import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from cdc_lakehouse.changelog import versions
from cdc_lakehouse.changelog.mysql_types import INTEGERS, ColumnType, type_text
from cdc_lakehouse.changelog.positions import commit_time, tso
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName, quoted
from cdc_lakehouse.errors import ConfigurationError, SourceError
from cdc_lakehouse.sample.sink_writer import Key, Row, SampleRowChange, SinkWriter, Table, write_atomically
from cdc_lakehouse.sources.sink.paths import METADATA

_ADD_COLUMN, _DROP_COLUMN, _ADD_INDEX, _MODIFY_COLUMN = 5, 6, 7, 12
_ORDER: Final = {"DELETE": 0, "UPDATE": 1, "INSERT": 2}
_BARE_DEFAULTS: Final = INTEGERS | {"decimal", "float", "double", "year", "bit"}
_NOW: Final = "CURRENT_TIMESTAMP"
_COLUMNS: Final = TypeAdapter(tuple[SourceColumn, ...])


def create_statement(name: TableName, columns: Sequence[SourceColumn]) -> str:
    """Return the CREATE TABLE of a table."""
    key = [column for column in columns if column.primary_key]
    parts = [column_definition(column) + " PRIMARY KEY" * (key == [column]) for column in columns]
    if len(key) > 1:
        parts.append(f"PRIMARY KEY({', '.join(quoted(column.name) for column in key)})")
    return f"CREATE TABLE {name.quoted} ({','.join(parts)})"


def column_definition(column: SourceColumn) -> str:
    """Return a column's definition for a statement: name, type, NOT NULL, DEFAULT."""
    # Only the words are in upper case: an ENUM's labels keep their case.
    name, bracket, rest = type_text(column.type).partition("(")
    type_words = name.upper() + bracket + rest
    return f"{quoted(column.name)} {type_words}{' NOT NULL' * (not column.nullable)}{_default(column)}"


def _default(column: SourceColumn) -> str:
    if column.default is None:
        return ""
    if column.default == _NOW:
        return f" DEFAULT {_NOW}({column.type.scale or ''})"
    if column.type.name in _BARE_DEFAULTS:
        return f" DEFAULT {column.default}"
    text = column.default.replace("\\", "\\\\").replace("'", "''")
    return f" DEFAULT _UTF8MB4'{text}'"


def _change(table: Table, commit_ts: int, old: Row | None, new: Row | None) -> SampleRowChange:
    if new is None:
        assert old is not None
        return SampleRowChange("DELETE", table, commit_ts, old)
    return SampleRowChange("INSERT" if old is None else "UPDATE", table, commit_ts, new, old)


def _sortable(key: Key) -> tuple[tuple[int, str], ...]:
    """Return a sort key in which numbers that are written as text sort as numbers."""
    return tuple((len(value), value) for value in key)


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

SCHEMA_CHANGES: Final[tuple[tuple[Any, ...], ...]] = (
    ("add column", ORDERS, _CHANNEL),
    ("add index", ORDERS, "by_customer", "customer_id"),
    ("rename column", CUSTOMERS, "notes", "remarks"),
    ("modify column", CUSTOMERS, _required("points", _BIGINT, "0")),
    ("truncate", CARTS),
    ("drop column", PAYMENTS, "receipt"),
    ("rename", CARTS, BASKETS),
    ("add column", PAYMENTS, _CURRENCY),
)
"""Every history has all of them once, in this order. After them, columns of campaigns are added and dropped."""


class Shop:
    """A shop: the current rows of its tables, and the changes that a changefeed sees. Moments are in UTC and should not
    go back; commit-ts (TSO) rise strictly in any case."""

    def __init__(self, seed: int = 1) -> None:
        self.seed, self.last_ts = seed, 0
        self._trades = self._schema_changes = 0
        self._tables: dict[TableName, Table] = {}
        self._rows: dict[TableName, dict[Key, Row]] = {}
        self._last_ids: dict[str, int] = {}
        self._before: dict[tuple[TableName, Key], Row | None] = {}
        """Rows as they were before the current transaction."""

    def open(self, moment: datetime.datetime) -> list[SchemaChange]:
        """Create the database and its tables."""
        query = f"CREATE DATABASE {quoted(_DATABASE)}"
        changes = [SchemaChange(self.resolve(moment), _DATABASE, "", versions.CREATE_DATABASE, query, (), "")]
        for number, (name, columns) in enumerate(TABLES.items(), start=1):
            self._tables[name], self._rows[name] = Table(name, 0, columns), {}
            when, query = moment + number * _BETWEEN_STATEMENTS, create_statement(name, columns)
            changes.append(self._changed(name, when, versions.CREATE_TABLE, query))
        return changes

    def trade(self, moment: datetime.datetime) -> list[SampleRowChange]:
        """Run one transaction, which changes at least one row; return its net effect in TiDB's order (DELETE, UPDATE,
        INSERT, then by key): a row under a new key is a DELETE and an INSERT."""
        self._trades += 1
        # Every transaction has its own generator, so that no generator's state need be saved.
        rng = random.Random(f"{self.seed}/trade/{self._trades}")
        _tidy(self, rng)
        while not (changed := self._net_effect()):
            (trade,) = rng.choices(list(_TRADES), list(_TRADES.values()))
            trade(self, rng, moment)
        commit_ts = self.resolve(moment)
        changes = [_change(self._tables[name], commit_ts, old, new) for name, old, new in changed]
        return sorted(changes, key=lambda change: (_ORDER[change.kind], _sortable(change.table.key_of(change.row))))

    def _net_effect(self) -> list[tuple[TableName, Row | None, Row | None]]:
        before, self._before = self._before, {}
        changed = [(name, old, self._rows[name].get(key)) for (name, key), old in before.items()]
        return [(name, old, new) for name, old, new in changed if old != new]

    def change_schema(self, moment: datetime.datetime) -> SchemaChange:
        """Run the next DDL: first those of `SCHEMA_CHANGES`, then columns of campaigns without end."""
        self._schema_changes += 1
        if self._schema_changes <= len(SCHEMA_CHANGES):
            return self._run(moment, *SCHEMA_CHANGES[self._schema_changes - 1])
        running = self.campaigns()
        if len(running) == _CAMPAIGNS_KEPT:
            return self._run(moment, "drop column", CUSTOMERS, running[0])
        column = SourceColumn(f"{_CAMPAIGN}{self._schema_changes - 1}", _varchar(20), default="none")
        return self._run(moment, "add column", CUSTOMERS, column)

    def _run(self, moment: datetime.datetime, kind: str, name: TableName, *what: Any) -> SchemaChange:
        """Carry out a statement of `SCHEMA_CHANGES`. Rows are not sent again: older ones get a new column's default."""
        columns, rows, table = self._tables[name].columns, self._rows[name], f"ALTER TABLE {name.quoted}"
        match kind, *what:
            case "truncate", *_:
                self._rows[name] = {}
                return self._changed(name, moment, versions.TRUNCATE_TABLE, f"TRUNCATE TABLE {name.quoted}")
            case "rename", new:
                self._tables[new], self._rows[new] = replace(self._tables.pop(name), name=new), self._rows.pop(name)
                query = f"RENAME TABLE {name.quoted} TO {new.quoted}"
                return self._changed(new, moment, versions.RENAME_TABLE, query)
            case "add index", index, column:
                return self._changed(name, moment, _ADD_INDEX, f"{table} ADD INDEX {quoted(index)}({quoted(column)})")
            case "add column", column:
                action, clause, columns = _ADD_COLUMN, f"ADD COLUMN {column_definition(column)}", (*columns, column)
                rows = {key: {**row, column.name: column.default} for key, row in rows.items()}
            case "drop column", column:
                action, clause = _DROP_COLUMN, f"DROP COLUMN {quoted(column)}"
                columns = tuple(each for each in columns if each.name != column)
                rows = {key: {n: value for n, value in row.items() if n != column} for key, row in rows.items()}
            case "rename column", old, new:
                action, clause = _MODIFY_COLUMN, f"RENAME COLUMN {quoted(old)} TO {quoted(new)}"
                columns = tuple(replace(each, name=new) if each.name == old else each for each in columns)
                rows = {key: {new if n == old else n: v for n, v in row.items()} for key, row in rows.items()}
            case "modify column", column:  # To a wider type: the text of every value stays as it is.
                action, clause = _MODIFY_COLUMN, f"MODIFY COLUMN {column_definition(column)}"
                columns = tuple(column if each.name == column.name else each for each in columns)
            case _:
                raise ValueError(kind)
        self._tables[name], self._rows[name] = replace(self._tables[name], columns=columns), rows
        return self._changed(name, moment, action, f"{table} {clause}")

    def _changed(self, name: TableName, moment: datetime.datetime, action: int, query: str) -> SchemaChange:
        version = self.resolve(moment)
        self._tables[name] = replace(self._tables[name], version=version)
        return SchemaChange(version, name.database, name.table, action, query, self._tables[name].columns, "")

    def resolve(self, moment: datetime.datetime) -> int:
        """Return a resolved-ts, the TSO of `moment` or the last one plus 1: all earlier commits are below it, all later
        ones above it."""
        self.last_ts = max(tso(moment), self.last_ts + 1)
        return self.last_ts

    def tables(self) -> dict[tuple[str, str], tuple[tuple[SourceColumn, ...], list[Row]]]:
        """Return the columns and current rows of every table, by database and table. Values are text in canal-json's
        notation."""
        return {
            (name.database, name.table): (table.columns, [dict(row) for row in self._rows[name].values()])
            for name, table in self._tables.items()
        }

    def state(self) -> dict[str, Any]:
        """Return everything as JSON-compatible values, between two transactions."""
        tables = [
            {
                "name": [name.database, name.table],
                "version": table.version,
                "columns": _COLUMNS.dump_python(table.columns, mode="json"),
                "rows": list(self._rows[name].values()),
            }
            for name, table in self._tables.items()
        ]
        counters = {"seed": self.seed, "trades": self._trades, "schema_changes": self._schema_changes}
        return {**counters, "last_ts": self.last_ts, "last_ids": self._last_ids, "tables": tables}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Shop:
        """Restore the shop from its `state`."""
        shop = Shop(state["seed"])
        shop._trades, shop._schema_changes = state["trades"], state["schema_changes"]
        shop.last_ts, shop._last_ids = state["last_ts"], dict(state["last_ids"])
        for saved in state["tables"]:
            name = TableName(*saved["name"])
            shop._tables[name] = table = Table(name, saved["version"], _COLUMNS.validate_python(saved["columns"]))
            shop._rows[name] = {table.key_of(row): row for row in saved["rows"]}
        return shop

    # --- What a transaction reads and changes ---

    def rows(self, name: TableName, /, **equal: str | None) -> list[Row]:
        """Return the rows whose columns have these values, the oldest first."""
        rows = self._rows[name].values()
        return [row for row in rows if all(row[column] == value for column, value in equal.items())]

    def carts(self) -> TableName:
        return CARTS if CARTS in self._tables else BASKETS

    def campaigns(self) -> list[str]:
        """Return the columns of the running campaigns, the oldest first."""
        return [column.name for column in self._tables[CUSTOMERS].columns if column.name.startswith(_CAMPAIGN)]

    def next_id(self, name: TableName) -> str:
        """Return the next number of a table's AUTO_INCREMENT."""
        self._last_ids[name.table] = self._last_ids.get(name.table, 0) + 1
        return str(self._last_ids[name.table])

    def insert(self, name: TableName, /, **values: str | None) -> None:
        """Insert a row. Columns that are not given get their default; values for columns that the table does not have
        are ignored."""
        columns = self._tables[name].columns
        self._put(name, {column.name: values.get(column.name, column.default) for column in columns})

    def update(self, name: TableName, row: Row, /, **values: str | None) -> None:
        """Change those columns of a row that the table has. With another key the row is deleted and inserted."""
        changed = {column: values.get(column, value) for column, value in row.items()}
        if self._tables[name].key_of(changed) != self._tables[name].key_of(row):
            self.delete(name, row)
        self._put(name, changed)

    def delete(self, name: TableName, row: Row) -> None:
        """Delete the row with the same key."""
        del self._rows[name][self._remember(name, row)]

    def _put(self, name: TableName, row: Row) -> None:
        self._rows[name][self._remember(name, row)] = row

    def _remember(self, name: TableName, row: Row) -> Key:
        key = self._tables[name].key_of(row)
        self._before.setdefault((name, key), self._rows[name].get(key))
        return key


# Trades: one transaction each, which changes nothing where it finds no suitable row. They give values for all columns
# that a table ever has: the shop uses those that it has at the moment.


def _register(shop: Shop, rng: random.Random, now: datetime.datetime) -> None:
    number, name = shop.next_id(CUSTOMERS), _person_name(rng)
    notes = _remark(rng)
    shop.insert(
        CUSTOMERS, id=number, email=f"customer{number}@example.org", name=name, born=_birthday(rng),
        newsletter=str(rng.randint(0, 1)), interests=_interests(rng), points="0",
        address=_address(rng) if rng.random() < 0.8 else None, notes=notes, remarks=notes,
        token=rng.randbytes(16).decode("latin-1"), created_at=_seconds(now), updated_at=None,
    )  # fmt: skip


def _fill_cart(shop: Shop, rng: random.Random, now: datetime.datetime) -> None:
    if customer := _any_row(shop, rng, CUSTOMERS):
        carts, sku = shop.carts(), rng.choice(_SKUS)
        if lines := shop.rows(carts, customer_id=customer["id"], sku=sku):
            shop.update(carts, lines[0], quantity=_plus(lines[0]["quantity"], 1))
        else:
            shop.insert(carts, customer_id=customer["id"], sku=sku, quantity="1", added_at=_milliseconds(now))


def _place_order(shop: Shop, rng: random.Random, now: datetime.datetime) -> None:
    customer = _any_row(shop, rng, CUSTOMERS)
    if customer is None:
        return
    lines = shop.rows(shop.carts(), customer_id=customer["id"])
    for line in lines:
        shop.delete(shop.carts(), line)
    items = max(1, len(lines))
    cents = rng.randint(100, 50_000) * items
    shop.insert(
        ORDERS, id=shop.next_id(ORDERS), customer_id=customer["id"], status=_NEW,
        total=f"{cents // 100}.{cents % 100:02d}", items=str(items), gift=str(int(rng.random() < 0.1)),
        message=_remark(rng), ordered_at=_milliseconds(now), shipped_on=None, updated_at=_seconds(now),
        channel=rng.choice(_CHANNELS),
    )  # fmt: skip
    shop.update(CUSTOMERS, customer, updated_at=_milliseconds(now))


def _pay(shop: Shop, rng: random.Random, now: datetime.datetime) -> None:
    order = _any_row(shop, rng, ORDERS, status=_NEW)
    if order is None:
        return
    method = rng.randint(1, len(_METHODS))
    shop.update(ORDERS, order, status=_PAID, updated_at=_seconds(now))
    shop.insert(
        PAYMENTS, id=shop.next_id(PAYMENTS), order_id=order["id"], method=str(method), amount=order["total"],
        details=_json_text({"last4": f"{rng.randint(0, 9999):04d}", "3ds": True}) if method == 1 else None,
        receipt=rng.randbytes(rng.randint(0, 32)).decode("latin-1"), paid_at=_milliseconds(now),
        currency=rng.choice(("EUR", "EUR", "USD")),
    )  # fmt: skip
    for customer in shop.rows(CUSTOMERS, id=order["customer_id"]):
        shop.update(CUSTOMERS, customer, points=_plus(customer["points"], 10))


def _ship(shop: Shop, rng: random.Random, now: datetime.datetime) -> None:
    if order := _any_row(shop, rng, ORDERS, status=_PAID):
        shop.update(ORDERS, order, status=_SHIPPED, shipped_on=now.date().isoformat(), updated_at=_seconds(now))


def _deliver(shop: Shop, rng: random.Random, now: datetime.datetime) -> None:
    if order := _any_row(shop, rng, ORDERS, status=_SHIPPED):
        shop.update(ORDERS, order, status=_DELIVERED, updated_at=_seconds(now))


def _cancel(shop: Shop, rng: random.Random, now: datetime.datetime) -> None:
    if order := _any_row(shop, rng, ORDERS, status=_NEW):
        shop.delete(ORDERS, order)


def _edit_profile(shop: Shop, rng: random.Random, now: datetime.datetime) -> None:
    if customer := _any_row(shop, rng, CUSTOMERS):
        notes = _remark(rng)
        shop.update(
            CUSTOMERS, customer, name=_person_name(rng), address=_address(rng), interests=_interests(rng),
            notes=notes, remarks=notes, updated_at=_milliseconds(now),
            **dict.fromkeys(shop.campaigns()[-1:], "joined"),
        )  # fmt: skip


def _leave(shop: Shop, rng: random.Random, now: datetime.datetime | None = None) -> None:
    """Delete a customer with all their rows."""
    if customer := _any_row(shop, rng, CUSTOMERS):
        for line in shop.rows(shop.carts(), customer_id=customer["id"]):
            shop.delete(shop.carts(), line)
        for order in shop.rows(ORDERS, customer_id=customer["id"]):
            _delete_order(shop, order)
        shop.delete(CUSTOMERS, customer)


def _renumber(shop: Shop, rng: random.Random, now: datetime.datetime) -> None:
    """Give a customer another key: DELETE and INSERT with one commit-ts, in two tables."""
    if customer := _any_row(shop, rng, CUSTOMERS):
        number = shop.next_id(CUSTOMERS)
        for table in (shop.carts(), ORDERS):
            for row in shop.rows(table, customer_id=customer["id"]):
                shop.update(table, row, customer_id=number)
        shop.update(CUSTOMERS, customer, id=number)


def _tidy(shop: Shop, rng: random.Random) -> None:
    """Delete rows in a shop that is full."""
    if len(shop.rows(CUSTOMERS)) > _CUSTOMERS_KEPT:
        _leave(shop, rng)
    elif len(shop.rows(ORDERS)) > _ORDERS_KEPT:
        for order in shop.rows(ORDERS, status=_DELIVERED)[:_ARCHIVED_AT_ONCE]:
            _delete_order(shop, order)


_TRADES: Final[dict[Callable[[Shop, random.Random, datetime.datetime], None], int]] = {
    _register: 10, _fill_cart: 14, _place_order: 18, _pay: 18, _ship: 18, _deliver: 18, _cancel: 3, _edit_profile: 8,
    _leave: 1, _renumber: 2,
}  # fmt: skip
"""The relative frequency of each trade."""


def _any_row(shop: Shop, rng: random.Random, table: TableName, **equal: str | None) -> Row | None:
    rows = shop.rows(table, **equal)
    return rng.choice(rows) if rows else None


def _delete_order(shop: Shop, order: Row) -> None:
    for payment in shop.rows(PAYMENTS, order_id=order["id"]):
        shop.delete(PAYMENTS, payment)
    shop.delete(ORDERS, order)


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


_STATE_FORMAT: Final = 3
# Not a divisor of a day, so that rows of the late evening are in the next day's directory, as with TiCDC.
_FLUSH_INTERVAL: Final = datetime.timedelta(hours=5)
_FLUSHES_AT_LEAST: Final = 4
_BATCHES_PER_DDL: Final = 50
_TRANSACTIONS_PER_BATCH: Final = (2, 5)
_BETWEEN_TRANSACTIONS: Final = datetime.timedelta(milliseconds=10)
_BATCH_SPAN: Final = _TRANSACTIONS_PER_BATCH[1] * _BETWEEN_TRANSACTIONS
_DAY: Final = datetime.timedelta(days=1)


def write_history(
    directory: Path, *, start: datetime.datetime, end: datetime.datetime, transactions: int, seed: int = 1
) -> int:
    """Write the shop's changes from `start` to `end` (with a time zone), with all of its DDL; return the checkpoint-ts.

    There are `transactions` of them, or one for each date when that is more. The same arguments give the same files.
    Raises `ConfigurationError` when `start` is not before `end`, and `SourceError` when the directory holds files
    already.
    """
    start, end = start.astimezone(datetime.UTC), end.astimezone(datetime.UTC)
    if start >= end:
        raise ConfigurationError(
            f"the sample's start {start.isoformat()} is not before its end {end.isoformat()}",
            advice="give an earlier start or a later end",
        )
    if directory.exists() and any(directory.iterdir()):
        raise SourceError(f"{directory} is not empty", advice=f"remove it and {state_path(directory)}, or name another")
    if state_path(directory).exists():
        raise SourceError(f"{state_path(directory)} is left of an earlier sample", advice="remove it")
    shop, writer = Shop(seed), SinkWriter(directory)
    flushes = _flushes(start, end)
    actions = deque(_actions(start, end, flushes, transactions, seed))
    for change in shop.open(start):
        writer.write_ddl(change, start)
    for flush in flushes:
        while actions and (actions[0][0] < flush or flush == end):
            moment, is_ddl = actions.popleft()
            if is_ddl:
                writer.write_ddl(shop.change_schema(moment), moment)
            else:
                writer.write(shop.trade(moment))
        writer.flush(flush)
        writer.checkpoint(shop.resolve(flush))
    _Feed(directory, shop, writer).save()
    return shop.last_ts


def follow(
    directory: Path,
    *,
    pause_seconds: float,
    batches: int | None = None,
    clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[int]:
    """Continue in the directory, a few transactions at a time. Yield the checkpoint-ts of every batch.

    Dates that passed since the last batch get one batch each, which is not counted. Without `batches` it never ends.
    Raises `SourceError` when the directory holds no sample.
    """
    feed, pending = _load(directory)
    if pending is not None:
        # Stopped during a batch: write its changes again, the same ones, as after a restart of TiCDC.
        feed.write_batch(pending)
    for number in itertools.count() if batches is None else range(batches):
        if number:
            sleep(pause_seconds)
        now = clock().astimezone(datetime.UTC)
        for moment in _missed_dates(commit_time(feed.shop.last_ts), now):
            feed.write_batch(moment)
        yield feed.write_batch(now)


def state_path(directory: Path) -> Path:
    """Return the file with the generator's state. It may be removed together with the sink."""
    directory = directory.resolve()
    return directory.with_name(f"{directory.name}.state.json")


def _flushes(start: datetime.datetime, end: datetime.datetime) -> list[datetime.datetime]:
    interval = min(_FLUSH_INTERVAL, (end - start) / _FLUSHES_AT_LEAST)
    return [*(start + number * interval for number in range(1, -((start - end) // interval))), end]


def _actions(
    start: datetime.datetime, end: datetime.datetime, flushes: list[datetime.datetime], transactions: int, seed: int
) -> list[tuple[datetime.datetime, bool]]:
    """Return the times of transactions and DDL, in order, and whether each is a DDL. Each date has a transaction before
    its last flush."""
    rng = random.Random(f"{seed}/schedule")
    last_flushes = {flush.date(): flush for flush in flushes}.values()
    trades = [max(start, flush - _BETWEEN_TRANSACTIONS) for flush in last_flushes]
    trades += [start + (end - start) * rng.random() for _ in range(transactions - len(trades))]
    ddl = [start + (end - start) * number / (len(SCHEMA_CHANGES) + 1) for number in range(1, len(SCHEMA_CHANGES) + 1)]
    return sorted([(moment, False) for moment in trades] + [(moment, True) for moment in ddl])


def _missed_dates(last: datetime.datetime, now: datetime.datetime) -> list[datetime.datetime]:
    """Return noon of every date between two moments."""
    noon = datetime.datetime.combine(last.date(), datetime.time(12), datetime.UTC)
    return [noon + number * _DAY for number in range(1, (now.date() - last.date()).days)]


@dataclass
class _Feed:
    """The state that is kept from batch to batch."""

    directory: Path
    shop: Shop
    writer: SinkWriter
    batches: int = 0

    def write_batch(self, now: datetime.datetime) -> int:
        """Write the next batch, which is the same for the same state and time; return its checkpoint-ts."""
        self.save(pending=now)
        self.batches += 1
        if self.batches % _BATCHES_PER_DDL == 0:
            self.writer.write_ddl(self.shop.change_schema(now - _BATCH_SPAN), now)
        count = random.Random(f"{self.shop.seed}/batch/{self.batches}").randint(*_TRANSACTIONS_PER_BATCH)
        for number in reversed(range(count)):
            self.writer.write(self.shop.trade(now - number * _BETWEEN_TRANSACTIONS))
        self.writer.flush(now)
        checkpoint_ts = self.shop.resolve(now)
        self.writer.checkpoint(checkpoint_ts)
        self.save()
        return checkpoint_ts

    def save(self, *, pending: datetime.datetime | None = None) -> None:
        """Save the state. `pending` is the time of a batch that is about to be written; the state is still the one
        before it."""
        state = {
            "format": _STATE_FORMAT,
            "batches": self.batches,
            "pending": None if pending is None else pending.isoformat(),
            "shop": self.shop.state(),
        }
        write_atomically(state_path(self.directory), json.dumps(state, ensure_ascii=False))


def _load(directory: Path) -> tuple[_Feed, datetime.datetime | None]:
    """Load the saved feed, and the time of a batch that may not be complete. Raises `SourceError` without a sample."""
    path = state_path(directory)
    if not path.exists() or not (directory / METADATA).exists():
        raise SourceError(f"{directory} holds no sample changefeed", advice="write its history first")
    state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if state["format"] != _STATE_FORMAT:
        raise SourceError(f"{path} is of another version", advice="remove it and the directory, and write them anew")
    feed = _Feed(directory, Shop.from_state(state["shop"]), SinkWriter(directory), state["batches"])
    pending = state["pending"]
    return feed, None if pending is None else datetime.datetime.fromisoformat(pending)
