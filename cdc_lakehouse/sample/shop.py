"""A small shop: its tables, transactions and DDL, and its current rows. Everything is determined by a seed.

A shop knows nothing of files. It can be saved as JSON between two transactions and continue in another process.

The tables have at least one column of every kind of type; their texts are ones that a pipeline must preserve (unicode,
quotes, line ends). DDL text is as TiCDC prints it: names in backquotes, key words in upper case, texts with their
character set.

The sample changefeed has a shop's history, written at once, and its ongoing changes:

    write_history(directory, start=…, end=…, transactions=2_000)
    for checkpoint_ts in follow(directory, pause_seconds=5):
        …

Every date of a history has data files, from the first flush, at most five hours after the start. The generator's own
state is next to the sink, in `{directory}.state.json`: a sink holds only what TiCDC writes.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from cdc_lakehouse.changelog import versions
from cdc_lakehouse.changelog.ddl import apply
from cdc_lakehouse.changelog.ddl import clauses as ddl
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.errors import ConfigurationError, SourceError
from cdc_lakehouse.sample.sink_writer import Row, SampleRowChange, SinkWriter, Table, write_atomically
from cdc_lakehouse.sources.sink.paths import METADATA

_ORDER: Final = {"DELETE": 0, "UPDATE": 1, "INSERT": 2}
_DATABASE: Final = "shop"
CUSTOMERS, ORDERS, PAYMENTS, CARTS = "customers", "orders", "payments", "carts"
BASKETS: Final = "baskets"
"""The new name of CARTS after its rename."""

# The numbers of an ENUM's labels, and how many labels a SET has.
_NEW, _PAID, _SHIPPED, _DELIVERED = "1", "2", "3", "4"
_METHODS: Final = 3
_INTERESTS: Final = 5

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
TABLES: Final = {
    CUSTOMERS: (
        "`id` BIGINT(20) NOT NULL PRIMARY KEY", "`email` VARCHAR(120) NOT NULL", "`name` VARCHAR(80) NOT NULL",
        "`born` DATE", "`newsletter` TINYINT(1) NOT NULL DEFAULT 0",
        "`interests` SET('books','games','garden','music','sport')", "`points` INT(11) NOT NULL DEFAULT 0",
        "`address` JSON", "`notes` TEXT", "`token` BINARY(16) NOT NULL",
        "`created_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP()", "`updated_at` DATETIME(3)",
    ),
    ORDERS: (
        "`id` BIGINT(20) NOT NULL PRIMARY KEY", "`customer_id` BIGINT(20) NOT NULL",
        "`status` ENUM('new','paid','shipped','delivered') NOT NULL DEFAULT _UTF8MB4'new'",
        "`total` DECIMAL(12,2) NOT NULL DEFAULT 0.00", "`items` INT(11) NOT NULL",
        "`gift` TINYINT(1) NOT NULL DEFAULT 0", "`message` VARCHAR(200)", "`ordered_at` DATETIME(3) NOT NULL",
        "`shipped_on` DATE", "`updated_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP()",
    ),
    PAYMENTS: (
        "`id` BIGINT(20) NOT NULL PRIMARY KEY", "`order_id` BIGINT(20) NOT NULL",
        "`method` ENUM('card','transfer','voucher') NOT NULL", "`amount` DECIMAL(12,2) NOT NULL", "`details` JSON",
        "`receipt` VARBINARY(32)", "`paid_at` DATETIME(3) NOT NULL",
    ),
    CARTS: (
        "`customer_id` BIGINT(20) NOT NULL", "`sku` VARCHAR(20) NOT NULL", "`quantity` INT(11) NOT NULL DEFAULT 1",
        "`added_at` DATETIME(3)", "PRIMARY KEY(`customer_id`, `sku`)",
    ),
}  # fmt: skip
SCHEMA_CHANGES: Final = (
    (5, ORDERS, "ALTER TABLE `shop`.`orders` ADD COLUMN `channel` VARCHAR(20) NOT NULL DEFAULT _UTF8MB4'web'"),
    (7, ORDERS, "ALTER TABLE `shop`.`orders` ADD INDEX `by_customer`(`customer_id`)"),
    (12, CUSTOMERS, "ALTER TABLE `shop`.`customers` RENAME COLUMN `notes` TO `remarks`"),
    (12, CUSTOMERS, "ALTER TABLE `shop`.`customers` MODIFY COLUMN `points` BIGINT(20) NOT NULL DEFAULT 0"),
    (versions.TRUNCATE_TABLE, CARTS, "TRUNCATE TABLE `shop`.`carts`"),
    (6, PAYMENTS, "ALTER TABLE `shop`.`payments` DROP COLUMN `receipt`"),
    (versions.RENAME_TABLE, CARTS, "RENAME TABLE `shop`.`carts` TO `shop`.`baskets`"),
    (5, PAYMENTS, "ALTER TABLE `shop`.`payments` ADD COLUMN `currency` CHAR(3) NOT NULL DEFAULT _UTF8MB4'EUR'"),
)
"""TiDB's number of an action, the table, and the statement. Every history has all of them once, in this order. After
them, columns of campaigns are added and dropped."""


@dataclass
class Shop:
    """A shop: the current rows of its tables, and the changes that a changefeed sees. Moments are in UTC and should not
    go back; commit-ts (TSO) rise strictly in any case."""

    seed: int = 1
    last_ts: int = 0
    trades: int = 0
    schema_changes: int = 0
    batches: int = 0
    """How many batches the feed has had since its history."""
    last_ids: dict[str, int] = field(default_factory=dict[str, int])
    definitions: dict[str, Table] = field(default_factory=dict[str, Table])
    content: dict[str, dict[str, Row]] = field(default_factory=dict[str, dict[str, Row]])
    """By table, the rows by their keys. A row that changes is another object."""

    def open(self, moment: datetime.datetime) -> list[SchemaChange]:
        """Create the database and its tables."""
        query = f"CREATE DATABASE `{_DATABASE}`"
        changes = [SchemaChange(self.resolve(moment), _DATABASE, "", versions.CREATE_DATABASE, query, (), "")]
        for number, (table, parts) in enumerate(TABLES.items(), start=1):
            name = TableName(_DATABASE, table)
            query = f"CREATE TABLE {name.quoted} ({','.join(parts)})"
            (clause,) = parse(query)
            assert isinstance(clause, ddl.CreateTable)
            self.definitions[table], self.content[table] = Table(name, 0, apply.created(clause).columns), {}
            changes.append(self._changed(table, moment + number * _BETWEEN_STATEMENTS, versions.CREATE_TABLE, query))
        return changes

    def trade(self, moment: datetime.datetime) -> list[SampleRowChange]:
        """Run one transaction, which changes at least one row; return its net effect in TiDB's order (DELETE, UPDATE,
        INSERT, then by key): a row under a new key is a DELETE and an INSERT."""
        self.trades += 1
        # Every transaction has its own generator, so that no generator's state need be saved.
        rng = random.Random(f"{self.seed}/trade/{self.trades}")
        before = {name: dict(rows) for name, rows in self.content.items()}
        _tidy(self, rng)
        while not (changed := self._net_effect(before)):
            (trade,) = rng.choices(list(_TRADES), list(_TRADES.values()))
            trade(self, rng, moment)
        commit_ts = self.resolve(moment)
        changes = [_change(self.definitions[name], commit_ts, old, new) for name, old, new in changed]
        return sorted(changes, key=lambda change: (_ORDER[change.kind], _sortable(change)))

    def _net_effect(self, before: dict[str, dict[str, Row]]) -> list[tuple[str, Row | None, Row | None]]:
        return [
            (name, old, new)
            for name, rows in self.content.items()
            for key in {**before[name], **rows}
            if (old := before[name].get(key)) is not (new := rows.get(key)) and old != new
        ]

    def change_schema(self, moment: datetime.datetime) -> SchemaChange:
        """Run the next DDL: first those of `SCHEMA_CHANGES`, then columns of campaigns without end."""
        self.schema_changes += 1
        if self.schema_changes <= len(SCHEMA_CHANGES):
            return self._run(moment, *SCHEMA_CHANGES[self.schema_changes - 1])
        running, alter = self.campaigns(), "ALTER TABLE `shop`.`customers`"
        if len(running) == _CAMPAIGNS_KEPT:
            return self._run(moment, 6, CUSTOMERS, f"{alter} DROP COLUMN `{running[0]}`")
        column = f"`{_CAMPAIGN}{self.schema_changes - 1}` VARCHAR(20) DEFAULT _UTF8MB4'none'"
        return self._run(moment, 5, CUSTOMERS, f"{alter} ADD COLUMN {column}")

    def _run(self, moment: datetime.datetime, action: int, name: str, query: str) -> SchemaChange:
        """Carry out a statement. Rows are not sent again: older ones get a new column's default."""
        columns, rows, (clause,) = self.definitions[name].columns, self.content[name], parse(query)
        match clause:
            case ddl.TruncateTable():
                rows = {}
            case ddl.RenameTable(old, new):
                name = new.name
                self.definitions[name] = replace(self.definitions.pop(old.name), name=TableName(_DATABASE, name))
                del self.content[old.name]
            case ddl.AddColumn():
                (column,) = apply.altered(None, [clause]).columns
                columns = (*columns, column)
                rows = {key: {**row, column.name: column.default} for key, row in rows.items()}
            case ddl.DropColumn(_, gone):
                columns = tuple(each for each in columns if each.name != gone)
                rows = {key: {n: value for n, value in row.items() if n != gone} for key, row in rows.items()}
            case ddl.RenameColumn(_, old, new):
                columns = tuple(replace(each, name=new) if each.name == old else each for each in columns)
                rows = {key: {new if n == old else n: v for n, v in row.items()} for key, row in rows.items()}
            case ddl.ModifyColumn(table, old, definition):  # To a wider type: the text of every value stays as it is.
                (column,) = apply.altered(None, [ddl.AddColumn(table, definition)]).columns
                columns = tuple(column if each.name == old else each for each in columns)
            case _:
                pass  # An index.
        self.definitions[name], self.content[name] = replace(self.definitions[name], columns=columns), rows
        return self._changed(name, moment, action, query)

    def _changed(self, table: str, moment: datetime.datetime, action: int, query: str) -> SchemaChange:
        version = self.resolve(moment)
        self.definitions[table] = definition = replace(self.definitions[table], version=version)
        return SchemaChange(version, _DATABASE, table, action, query, definition.columns, "")

    def resolve(self, moment: datetime.datetime) -> int:
        """Return a resolved-ts, the TSO of `moment` or the last one plus 1: all earlier commits are below it, all later
        ones above it."""
        self.last_ts = max(tso(moment), self.last_ts + 1)
        return self.last_ts

    # --- What a transaction reads and changes ---

    def rows(self, name: str, /, **equal: str | None) -> list[Row]:
        """Return the rows whose columns have these values, the oldest first."""
        rows = self.content[name].values()
        return [row for row in rows if all(row[column] == value for column, value in equal.items())]

    def carts(self) -> str:
        return CARTS if CARTS in self.definitions else BASKETS

    def campaigns(self) -> list[str]:
        """Return the columns of the running campaigns, the oldest first."""
        return [column.name for column in self.definitions[CUSTOMERS].columns if column.name.startswith(_CAMPAIGN)]

    def next_id(self, name: str) -> str:
        """Return the next number of a table's AUTO_INCREMENT."""
        self.last_ids[name] = self.last_ids.get(name, 0) + 1
        return str(self.last_ids[name])

    def insert(self, name: str, /, **values: str | None) -> None:
        """Insert a row. Columns that are not given get their default; values for columns that the table does not have
        are ignored."""
        columns = self.definitions[name].columns
        row = {column.name: values.get(column.name, column.default) for column in columns}
        self.content[name][self._key(name, row)] = row

    def update(self, name: str, row: Row, /, **values: str | None) -> None:
        """Change those columns of a row that the table has. With another key the row is deleted and inserted."""
        changed = {column: values.get(column, value) for column, value in row.items()}
        if self._key(name, changed) != self._key(name, row):
            self.delete(name, row)
        self.content[name][self._key(name, changed)] = changed

    def delete(self, name: str, row: Row) -> None:
        """Delete the row with the same key."""
        del self.content[name][self._key(name, row)]

    def _key(self, name: str, row: Row) -> str:
        return " ".join(self.definitions[name].key_of(row))


def _change(table: Table, commit_ts: int, old: Row | None, new: Row | None) -> SampleRowChange:
    if new is None:
        assert old is not None
        return SampleRowChange("DELETE", table, commit_ts, old)
    return SampleRowChange("INSERT" if old is None else "UPDATE", table, commit_ts, new, old)


def _sortable(change: SampleRowChange) -> tuple[tuple[int, str], ...]:
    """Return a sort key of a row's key in which numbers that are written as text sort as numbers."""
    return tuple((len(value), value) for value in change.table.key_of(change.row))


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
    method = rng.randint(1, _METHODS)
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


def _any_row(shop: Shop, rng: random.Random, table: str, **equal: str | None) -> Row | None:
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
    return None if rng.random() < 0.2 else str(rng.randrange(1 << _INTERESTS))


def _json_text(value: object) -> str:
    """Format JSON as TiDB prints it: keys in order, a space after each comma and colon."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _plus(number: str | None, more: int) -> str:
    return str(int(number or 0) + more)


def _seconds(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _milliseconds(moment: datetime.datetime) -> str:
    return f"{_seconds(moment)}.{moment.microsecond // 1000:03d}"


# Not a divisor of a day, so that rows of the late evening are in the next day's directory, as with TiCDC.
_FLUSH_INTERVAL: Final = datetime.timedelta(hours=5)
_FLUSHES_AT_LEAST: Final = 4
_BATCHES_PER_DDL: Final = 50
_TRANSACTIONS_PER_BATCH: Final = (2, 5)
_BATCH_SPAN: Final = datetime.timedelta(milliseconds=50)


def write_history(
    directory: Path, *, start: datetime.datetime, end: datetime.datetime, transactions: int, seed: int = 1
) -> int:
    """Write the shop's changes from `start` to `end` (with a time zone), with all of its DDL; return the checkpoint-ts.

    There are `transactions` of them, or one for each flush when that is more. The same arguments give the same files.
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
    shop, writer, flushes = Shop(seed), SinkWriter(directory), _flushes(start, end)
    for change in shop.open(start):
        writer.write_ddl(change, start)

    def share(number: int, count: int) -> int:
        return (number + 1) * count // len(flushes) - number * count // len(flushes)

    for number, (since, flush) in enumerate(itertools.pairwise([start, *flushes])):
        trades, statements = share(number, transactions), share(number, len(SCHEMA_CHANGES))
        _write_batch(shop, writer, since, flush, max(1, trades), statements)
    write_atomically(state_path(directory), _STATE.dump_json(shop))
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

    Without `batches` it never ends. Raises `SourceError` when the directory holds no sample.
    """
    shop, writer = _load(directory), SinkWriter(directory)

    def batch(moment: datetime.datetime) -> int:
        shop.batches += 1
        trades = random.Random(f"{shop.seed}/batch/{shop.batches}").randint(*_TRANSACTIONS_PER_BATCH)
        statements = int(shop.batches % _BATCHES_PER_DDL == 0)
        checkpoint_ts = _write_batch(shop, writer, moment - _BATCH_SPAN, moment, trades, statements)
        write_atomically(state_path(directory), _STATE.dump_json(shop))
        return checkpoint_ts

    for number in itertools.count() if batches is None else range(batches):
        if number:
            sleep(pause_seconds)
        yield batch(clock().astimezone(datetime.UTC))


def _write_batch(
    shop: Shop, writer: SinkWriter, since: datetime.datetime, until: datetime.datetime, trades: int, statements: int
) -> int:
    """Write transactions and statements, spread over the time between two moments; return the checkpoint-ts."""
    for number in range(trades):
        moment = since + (until - since) * (number + 1) / (trades + 1)
        for _ in range(number * statements // trades, (number + 1) * statements // trades):
            writer.write_ddl(shop.change_schema(moment), moment)
        writer.write(shop.trade(moment))
    writer.flush(until)
    checkpoint_ts = shop.resolve(until)
    writer.checkpoint(checkpoint_ts)
    return checkpoint_ts


def state_path(directory: Path) -> Path:
    """Return the file with the generator's state. It may be removed together with the sink."""
    directory = directory.resolve()
    return directory.with_name(f"{directory.name}.state.json")


def _flushes(start: datetime.datetime, end: datetime.datetime) -> list[datetime.datetime]:
    interval = min(_FLUSH_INTERVAL, (end - start) / _FLUSHES_AT_LEAST)
    return [*(start + number * interval for number in range(1, -((start - end) // interval))), end]


_STATE: Final = TypeAdapter(Shop)


def _load(directory: Path) -> Shop:
    """Load the shop that was saved. Raises `SourceError` without a sample."""
    path = state_path(directory)
    if not path.exists() or not (directory / METADATA).exists():
        raise SourceError(f"{directory} holds no sample changefeed", advice="write its history first")
    with contextlib.suppress(ValidationError):
        shop = _STATE.validate_json(path.read_bytes())
        if shop.definitions:
            return shop
    advice = "remove it and the directory, and write them again"
    raise SourceError(f"{path} is of another version", advice=advice)
