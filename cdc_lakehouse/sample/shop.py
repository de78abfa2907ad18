"""A small shop: its tables, transactions and DDL, and its current rows. Everything is determined by a seed. A shop can
be saved as JSON between two transactions and continue in another process.

The tables have at least one column of every kind of type; their texts are ones that a pipeline must preserve (unicode,
quotes, line ends). DDL text is as TiCDC prints it: names in backquotes, key words in upper case, texts with their
character set.

    write_history(directory, start=…, end=…, transactions=2_000)
    for checkpoint_ts in follow(directory, pause_seconds=5):
        …

Every date of a history has data files, from the first flush, at most five hours after the start. The generator's own
state is next to the sink, in `{directory}.state.json`: a sink holds only what TiCDC writes."""

from __future__ import annotations

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
from cdc_lakehouse.changelog.positions import tso, utc_now
from cdc_lakehouse.changelog.schema import Column, SchemaChange, SourceColumn, TableName, TableVersion
from cdc_lakehouse.errors import ConfigurationError, SourceError
from cdc_lakehouse.sample.sink_writer import Row, SampleRowChange, SinkWriter, Table, write_atomically
from cdc_lakehouse.sources.sink.paths import METADATA

_ORDER: Final = {"DELETE": 0, "UPDATE": 1, "INSERT": 2}
_DATABASE: Final = "shop"
CUSTOMERS, ORDERS, PAYMENTS, CARTS = "customers", "orders", "payments", "carts"
BASKETS: Final = "baskets"
"""The new name of CARTS after its rename."""

# A feed that runs for weeks must not grow without limit: its state is kept in one file.
_ROWS_KEPT: Final = 500
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
_PARENTS: Final = {
    ORDERS: ("customer_id", CUSTOMERS), PAYMENTS: ("order_id", ORDERS), CARTS: ("customer_id", CUSTOMERS),
    BASKETS: ("customer_id", CUSTOMERS),
}  # fmt: skip
"""The column of a table that has the `id` of a row of another table."""


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
    last_ids: dict[str, int] = field(default_factory=dict)
    definitions: dict[str, Table] = field(default_factory=dict)
    content: dict[str, dict[str, Row]] = field(default_factory=dict)
    """By table, the rows by their keys. A row that changes is another object."""

    def open(self, moment: datetime.datetime) -> list[SchemaChange]:
        query = f"CREATE DATABASE `{_DATABASE}`"
        changes = [SchemaChange(self.resolve(moment), _DATABASE, "", versions.CREATE_DATABASE, query, (), "")]
        for number, (table, parts) in enumerate(TABLES.items(), start=1):
            name = TableName(_DATABASE, table)
            query = f"CREATE TABLE {name.quoted} ({','.join(parts)})"
            (made,) = parse(query)
            assert isinstance(made, ddl.CreateTable)
            self.definitions[table], self.content[table] = Table(name, 0, apply.altered(None, made.clauses).columns), {}
            changes.append(self._changed(table, moment + number * _BETWEEN_STATEMENTS, versions.CREATE_TABLE, query))
        return changes

    def trade(self, moment: datetime.datetime) -> list[SampleRowChange]:
        """Run one transaction, which changes at least one row; return its net effect in TiDB's order (DELETE, UPDATE,
        INSERT, then by key): a row under a new key is a DELETE and an INSERT."""
        self.trades += 1
        # Every transaction has its own generator, so that no generator's state need be saved.
        rng = random.Random(f"{self.seed}/trade/{self.trades}")
        before, changed = {name: dict(rows) for name, rows in self.content.items()}, dict[tuple[str, str], Row | None]()
        while not changed:
            for _ in range(rng.randint(1, 3)):
                self._change(rng, moment)
            for name, rows in self.content.items():
                for key in {**before[name], **rows}:
                    old, new = before[name].get(key), rows.get(key)
                    if old is not new and old != new:
                        changed[name, key] = old
        commit_ts, changes = self.resolve(moment), list[SampleRowChange]()
        for (name, key), old in changed.items():
            table, new = self.definitions[name], self.content[name].get(key)
            if new is not None:
                changes.append(SampleRowChange("INSERT" if old is None else "UPDATE", table, commit_ts, new, old))
            elif old is not None:
                changes.append(SampleRowChange("DELETE", table, commit_ts, old))

        def order(change: SampleRowChange) -> tuple[int, list[tuple[int, str]]]:
            # In a key, numbers that are written as text sort as numbers.
            return _ORDER[change.kind], [(len(value), value) for value in change.table.key_of(change.row)]

        return sorted(changes, key=order)

    def change_schema(self, moment: datetime.datetime) -> SchemaChange:
        """Run the next DDL: first those of `SCHEMA_CHANGES`, then columns of campaigns without end."""
        self.schema_changes += 1
        if self.schema_changes <= len(SCHEMA_CHANGES):
            return self._run(moment, *SCHEMA_CHANGES[self.schema_changes - 1])
        columns, alter = self.definitions[CUSTOMERS].columns, "ALTER TABLE `shop`.`customers`"
        running = [column.name for column in columns if column.name.startswith(_CAMPAIGN)]
        if len(running) == _CAMPAIGNS_KEPT:
            return self._run(moment, 6, CUSTOMERS, f"{alter} DROP COLUMN `{running[0]}`")
        column = f"`{_CAMPAIGN}{self.schema_changes - 1}` VARCHAR(20) DEFAULT _UTF8MB4'none'"
        return self._run(moment, 5, CUSTOMERS, f"{alter} ADD COLUMN {column}")

    def _run(self, moment: datetime.datetime, action: int, name: str, query: str) -> SchemaChange:
        """Carry out a statement. Rows are not sent again: older ones get a new column's default."""
        table, rows, clauses = self.definitions[name], self.content[name], parse(query)
        columns = tuple(Column(n, c.name, c.type, c.nullable, default=c.default) for n, c in enumerate(table.columns))
        key = tuple(n for n, column in enumerate(table.columns) if column.primary_key)
        before = TableVersion(0, table.name, "", "", "none", "", "", columns, primary_key=key)
        match clauses[0]:
            case ddl.TruncateTable():
                rows = {}
            case ddl.RenameTable(old, new):
                name = new.name
                table = replace(self.definitions.pop(old.name), name=TableName(_DATABASE, name))
                del self.content[old.name]
            case _:
                pass
        after = apply.altered(before, clauses).after  # A type becomes wider: the text of every value stays as it is.
        self.definitions[name] = replace(table, columns=tuple(each.column for each in after))
        self.content[name] = {
            key: {each.column.name: row[each.was.name] if each.was else each.column.default for each in after}
            for key, row in rows.items()
        }
        return self._changed(name, moment, action, query)

    def _changed(self, table: str, moment: datetime.datetime, action: int, query: str) -> SchemaChange:
        version = self.resolve(moment)
        self.definitions[table] = definition = replace(self.definitions[table], version=version)
        return SchemaChange(version, _DATABASE, table, action, query, definition.columns, "")

    def resolve(self, moment: datetime.datetime) -> int:
        """Return a resolved-ts between earlier and later commits: the TSO of `moment`, or the last one plus 1."""
        self.last_ts = max(tso(moment), self.last_ts + 1)
        return self.last_ts

    # --- What a transaction changes ---

    def _change(self, rng: random.Random, moment: datetime.datetime) -> None:
        """Insert, update or delete a row of any table, or give a customer another number."""
        name, chance = rng.choice(list(self.definitions)), rng.random()
        rows = list(self.content[name].values())
        if len(rows) > _ROWS_KEPT or (rows and chance < 0.1):
            self._delete(name, rows[0] if len(rows) > _ROWS_KEPT else rng.choice(rows))
        elif not rows or chance < 0.5:
            self._insert(name, rng, moment)
        elif name == CUSTOMERS and chance < 0.55:
            # DELETE and INSERT with one commit-ts, in several tables.
            customer, number = rng.choice(rows), self._next_id(CUSTOMERS)
            for child, row in self._belonging(CUSTOMERS, customer):
                self._replace(child, row, customer_id=number)
            self._replace(CUSTOMERS, customer, id=number)
        else:
            columns = [each for each in self.definitions[name].columns if each.name in _VALUES and not each.primary_key]
            chosen = rng.sample(columns, min(2, len(columns)))
            chosen += (each for each in self.definitions[name].columns if each.name == "updated_at")
            self._replace(name, rng.choice(rows), **{each.name: _value(each, rng, moment) for each in chosen})

    def _insert(self, name: str, rng: random.Random, moment: datetime.datetime) -> None:
        row = {column.name: _value(column, rng, moment) for column in self.definitions[name].columns}
        if name in _PARENTS:
            column, parent = _PARENTS[name]
            if not self.content[parent]:
                return
            row[column] = rng.choice(list(self.content[parent].values()))["id"]
        if "id" in row:
            row["id"] = self._next_id(name)
        self.content[name][self._key(name, row)] = row

    def _delete(self, name: str, row: Row) -> None:
        for child, each in self._belonging(name, row):
            self._delete(child, each)
        del self.content[name][self._key(name, row)]

    def _replace(self, name: str, row: Row, /, **values: str | None) -> None:
        """Change columns of a row. With another key it is deleted and inserted."""
        del self.content[name][self._key(name, row)]
        self.content[name][self._key(name, changed)] = (changed := {**row, **values})

    def _belonging(self, name: str, row: Row) -> list[tuple[str, Row]]:
        return [
            (child, each)
            for child, (column, parent) in _PARENTS.items()
            if parent == name
            for each in self.content.get(child, {}).values()
            if each[column] == row["id"]
        ]

    def _next_id(self, name: str) -> str:
        self.last_ids[name] = self.last_ids.get(name, 0) + 1
        return str(self.last_ids[name])

    def _key(self, name: str, row: Row) -> str:
        return " ".join(self.definitions[name].key_of(row))


def _value(column: SourceColumn, rng: random.Random, moment: datetime.datetime) -> str | None:
    """Return the column's own value, the moment for a type of moments, or the default."""
    if column.name in _VALUES:
        return _VALUES[column.name](rng)
    if column.type.name not in ("datetime", "timestamp"):
        return column.default
    return moment.replace(tzinfo=None).isoformat(" ", "milliseconds" if column.type.fraction else "seconds")


def _name(rng: random.Random) -> str:
    return rng.choice(_WHOLE_NAMES) if rng.random() < 0.2 else f"{rng.choice(_GIVEN_NAMES)} {rng.choice(_FAMILY_NAMES)}"


def _address(rng: random.Random) -> str | None:
    parts: dict[str, object] = {"street": f"{rng.choice(_STREETS)} {rng.randint(1, 120)}", "city": rng.choice(_CITIES)}
    if rng.random() < 0.3:
        parts["geo"] = [rng.randint(-90, 90), rng.randint(-180, 180)]
    # As TiDB prints it: keys in order, a space after each comma and colon.
    return json.dumps(parts, ensure_ascii=False, sort_keys=True) if rng.random() < 0.8 else None


def _remark(rng: random.Random) -> str | None:
    return None if rng.random() < 0.5 else rng.choice(_REMARKS)


def _date(rng: random.Random, first: int, years: int) -> str | None:
    day = datetime.date(first, 1, 1) + datetime.timedelta(rng.randrange(365 * years))
    return None if rng.random() < 0.2 else day.isoformat()


def _amount(rng: random.Random) -> str:
    return f"{rng.randint(1, 500)}.{rng.randrange(100):02d}"


_VALUES: Final[dict[str, Callable[[random.Random], str | None]]] = {
    "email": lambda rng: f"customer{rng.randrange(10**6)}@example.org",
    "name": _name,
    "born": lambda rng: _date(rng, 1940, 70),
    "newsletter": lambda rng: str(rng.randint(0, 1)),
    # Of a SET the sum of the bits of its labels, of an ENUM the number of the label.
    "interests": lambda rng: None if rng.random() < 0.2 else str(rng.randrange(1 << 5)),
    "points": lambda rng: str(10 * rng.randrange(100)),
    "address": _address,
    "notes": _remark,
    "remarks": _remark,
    "token": lambda rng: rng.randbytes(16).decode("latin-1"),
    "status": lambda rng: str(rng.randint(1, 4)),
    "total": _amount,
    "items": lambda rng: str(rng.randint(1, 9)),
    "gift": lambda rng: str(int(rng.random() < 0.1)),
    "message": _remark,
    "shipped_on": lambda rng: _date(rng, 2026, 1),
    "channel": lambda rng: rng.choice(_CHANNELS),
    "method": lambda rng: str(rng.randint(1, 3)),
    "amount": _amount,
    "details": lambda rng: None if rng.random() < 0.3 else f'{{"last4": "{rng.randrange(10**4):04d}"}}',
    "receipt": lambda rng: rng.randbytes(rng.randint(0, 32)).decode("latin-1"),
    "currency": lambda rng: rng.choice(("EUR", "EUR", "USD")),
    "sku": lambda rng: rng.choice(_SKUS),
    "quantity": lambda rng: str(rng.randint(1, 5)),
}
"""By column: those that are not here have the moment of the transaction, or their default."""


_STATE: Final = TypeAdapter(Shop)
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
    Raises `ConfigurationError` when `start` is not before `end`, `SourceError` when the directory is not empty."""
    start, end = start.astimezone(datetime.UTC), end.astimezone(datetime.UTC)
    if start >= end:
        said = f"the sample's start {start.isoformat()} is not before its end {end.isoformat()}"
        raise ConfigurationError(said, advice="give an earlier start or a later end")
    if directory.exists() and any(directory.iterdir()):
        raise SourceError(f"{directory} is not empty", advice=f"remove it and {state_path(directory)}, or name another")
    if state_path(directory).exists():
        raise SourceError(f"{state_path(directory)} is left of an earlier sample", advice="remove it")
    interval = min(_FLUSH_INTERVAL, (end - start) / _FLUSHES_AT_LEAST)
    flushes = [*(start + number * interval for number in range(1, -((start - end) // interval))), end]
    shop, writer = Shop(seed), SinkWriter(directory)
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
    directory: Path, *, pause_seconds: float, batches: int | None = None,
    clock: Callable[[], datetime.datetime] = utc_now, sleep: Callable[[float], object] = time.sleep,
) -> Iterator[int]:  # fmt: skip
    """Continue in the directory, a few transactions at a time. Yield the checkpoint-ts of every batch. Without
    `batches` it never ends. Raises `SourceError` when the directory holds no sample."""
    path = state_path(directory)
    if not path.exists() or not (directory / METADATA).exists():
        raise SourceError(f"{directory} holds no sample changefeed", advice="write its history first")
    try:
        shop = _STATE.validate_json(path.read_bytes())
    except ValidationError:
        shop = Shop()
    if not shop.definitions:
        raise SourceError(f"{path} is of another version", advice="remove it and the directory, and write them again")
    writer = SinkWriter(directory)
    for number in itertools.count() if batches is None else range(batches):
        if number:
            sleep(pause_seconds)
        moment = clock().astimezone(datetime.UTC)
        shop.batches += 1
        trades = random.Random(f"{shop.seed}/batch/{shop.batches}").randint(*_TRANSACTIONS_PER_BATCH)
        statements = int(shop.batches % _BATCHES_PER_DDL == 0)
        checkpoint_ts = _write_batch(shop, writer, moment - _BATCH_SPAN, moment, trades, statements)
        write_atomically(state_path(directory), _STATE.dump_json(shop))
        yield checkpoint_ts


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
