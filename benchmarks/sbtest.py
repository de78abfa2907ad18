"""The workload: sysbench's table, first filled and then changed.

A row's values are a function of the seed, its id and how often it has been changed, so that an UPDATE's old values
need not be remembered.
"""

from __future__ import annotations

import datetime
import hashlib
import random
from collections.abc import Iterator
from typing import Final

from cdc_lakehouse.changelog import versions
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import LOGICAL_BITS, tso
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.sample.sink_writer import Row, SampleRowChange, Table

NAME: Final = TableName("sbtest", "sbtest1")
COLUMNS: Final = (
    SourceColumn("id", ColumnType.of("BIGINT", length=20), nullable=False, primary_key=True),
    SourceColumn("k", ColumnType.of("INT", length=11), nullable=False, default="0"),
    SourceColumn("c", ColumnType.of("CHAR", length=120), nullable=False, default=""),
    SourceColumn("pad", ColumnType.of("CHAR", length=60), nullable=False, default=""),
)
FILL_DAY: Final = datetime.datetime(2026, 1, 15, tzinfo=datetime.UTC)
CHANGE_DAY: Final = datetime.datetime(2026, 1, 16, tzinfo=datetime.UTC)

_UPDATES, _INSERTS = 0.60, 0.25  # The rest are deletes.
_ROWS_PER_BULK_INSERT: Final = 1000
_DIGITS_PER_GROUP: Final = 11
_GROUPS_OF_C, _GROUPS_OF_PAD = 10, 5
_DIGITS_OF_K: Final = 9
_DIGITS: Final = (_GROUPS_OF_C + _GROUPS_OF_PAD) * _DIGITS_PER_GROUP + _DIGITS_OF_K
_BYTES: Final = 73
"""Enough for that many random digits."""


def create_statement(name: TableName) -> str:
    """The CREATE TABLE of a table with `COLUMNS`."""
    texts = "`c` CHAR(120) NOT NULL DEFAULT _UTF8MB4'',`pad` CHAR(60) NOT NULL DEFAULT _UTF8MB4''"
    return f"CREATE TABLE {name.quoted} (`id` BIGINT NOT NULL PRIMARY KEY,`k` INT NOT NULL DEFAULT 0,{texts})"


def create_table() -> SchemaChange:
    query = create_statement(NAME)
    return SchemaChange(tso(FILL_DAY), NAME.database, NAME.table, versions.CREATE_TABLE, query, COLUMNS, "")


class Sbtest:
    """The table as it goes on. The same seed and calls give the same changes."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random(f"{seed}/changes")
        self._table = Table(NAME, tso(FILL_DAY), COLUMNS)
        self._live: list[int] = []
        self._changed: dict[int, int] = {}
        self._last_id = 0
        self.last_ts = tso(FILL_DAY)

    @property
    def rows(self) -> int:
        return len(self._live)

    def fill(self, rows: int) -> Iterator[SampleRowChange]:
        """INSERTs, a thousand rows a transaction."""
        for number in range(rows):
            if number % _ROWS_PER_BULK_INSERT == 0:
                self._next_transaction()
            yield self._insert()

    def mix(self, changes: int) -> Iterator[SampleRowChange]:
        """UPDATEs (with all old values), INSERTs and DELETEs of any row, each a transaction of its own."""
        self.last_ts = max(self.last_ts, tso(CHANGE_DAY))
        for _ in range(changes):
            self._next_transaction()
            chance = self._rng.random()
            if chance >= 1 - _INSERTS or not self._live:
                yield self._insert()
            elif chance < _UPDATES:
                yield self._update()
            else:
                yield self._delete()

    def _next_transaction(self) -> None:
        self.last_ts += 1 << LOGICAL_BITS

    def _insert(self) -> SampleRowChange:
        self._last_id += 1
        self._live.append(self._last_id)
        return SampleRowChange("INSERT", self._table, self.last_ts, self._row(self._last_id))

    def _update(self) -> SampleRowChange:
        id = self._rng.choice(self._live)
        old = self._row(id)
        self._changed[id] = self._changed.get(id, 0) + 1
        return SampleRowChange("UPDATE", self._table, self.last_ts, self._row(id), old)

    def _delete(self) -> SampleRowChange:
        place = self._rng.randrange(len(self._live))
        id, self._live[place] = self._live[place], self._live[-1]
        self._live.pop()
        return SampleRowChange("DELETE", self._table, self.last_ts, self._row(id))

    def _row(self, id: int) -> Row:
        told = f"{self._seed}/{id}/{self._changed.get(id, 0)}"
        number = int.from_bytes(hashlib.shake_128(told.encode()).digest(_BYTES))
        digits = str(number).zfill(_DIGITS)[-_DIGITS:]
        groups = [digits[at : at + _DIGITS_PER_GROUP] for at in range(_DIGITS_OF_K, _DIGITS, _DIGITS_PER_GROUP)]
        return {
            "id": str(id),
            "k": str(int(digits[:_DIGITS_OF_K])),
            "c": "-".join(groups[:_GROUPS_OF_C]),
            "pad": "-".join(groups[_GROUPS_OF_C:]),
        }
