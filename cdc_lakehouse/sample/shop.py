"""A small shop's database and what happens in it, the same for the same seed, and the rows that are true at the end.

A shop knows nothing of files. It can be put away as JSON between two transactions and go on in another process.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping
from typing import Any

from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn
from cdc_lakehouse.sample.database import Database
from cdc_lakehouse.sample.row_change import Row, RowChange
from cdc_lakehouse.sample.shop_ddl import opening, schema_change
from cdc_lakehouse.sample.trades import TRADES, tidy
from cdc_lakehouse.sample.transaction import Transaction


class Shop:
    """Moments are in UTC and should not go back; commit-ts rise strictly whatever they do."""

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        self._database = Database()
        self._trades = 0
        self._schema_changes = 0
        self._last_ids: dict[str, int] = {}

    def open(self, moment: datetime.datetime) -> list[SchemaChange]:
        """Create the database and its tables."""
        return opening(self._database, moment)

    def trade(self, moment: datetime.datetime) -> list[RowChange]:
        """One transaction; it changes one row at least."""
        self._trades += 1
        # Of its own for each transaction: there is no generator's state to put away.
        rng = random.Random(f"{self.seed}/trade/{self._trades}")
        deal = Transaction(self._database, rng, moment, self._last_ids)
        tidy(deal)
        changes = self._database.commit(moment)
        while not changes:
            (trade,) = rng.choices(list(TRADES), list(TRADES.values()))
            trade(deal)
            changes = self._database.commit(moment)
        return changes

    def change_schema(self, moment: datetime.datetime) -> SchemaChange:
        """The next DDL: those of `shop_ddl.SCHEMA_CHANGES` first, harmless ones without end after them."""
        self._schema_changes += 1
        return schema_change(self._database, self._schema_changes - 1, moment)

    def resolve(self, moment: datetime.datetime) -> int:
        """A resolved-ts: all that was committed is at or below it, all that will be is above it."""
        return self._database.next_ts(moment)

    def tables(self) -> dict[tuple[str, str], tuple[tuple[SourceColumn, ...], list[Row]]]:
        """The truth: columns and current rows of every table. Values are text in canal-json's notation."""
        return {
            (name.database, name.table): (
                self._database.table(name).columns,
                [dict(row) for row in self._database.rows(name).values()],
            )
            for name in self._database.names
        }

    def state(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "trades": self._trades,
            "schema_changes": self._schema_changes,
            "last_ids": dict(self._last_ids),
            "database": self._database.state(),
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Shop:
        shop = Shop(state["seed"])
        shop._trades = state["trades"]
        shop._schema_changes = state["schema_changes"]
        shop._last_ids = dict(state["last_ids"])
        shop._database = Database.from_state(state["database"])
        return shop
