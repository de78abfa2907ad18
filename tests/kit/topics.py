"""A changefeed of a scenario's entries into a topic, in TiCDC's canal-json: rows by table or by key to the partitions,
statements to the first one, watermarks to all. What was sent before comes again now and then."""

from __future__ import annotations

import datetime
import json
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc_lakehouse.changelog.positions import physical_ms
from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.sample.sink_writer import Encode, SampleRowChange, canal_json

_TYPES: Final = {3: "CREATE", 4: "ERASE", 11: "TRUNCATE", 14: "RENAME", 25: "QUERY", 42: "QUERY"}
_AGAIN: Final = 0.1


@dataclass(frozen=True)
class Record:
    partition: int
    value: bytes
    at_ms: int


@dataclass
class TopicWriter:
    """As `SinkWriter`, of records that it gives to `send`. `by_key`: rows of one table go to several partitions."""

    send: Callable[[Sequence[Record]], None]
    partitions: int
    by_key: bool
    chance: random.Random
    encode: Encode = canal_json

    def __post_init__(self) -> None:
        self._waiting: list[SampleRowChange] = []
        self._sent: list[Record] = []
        self._flushed = datetime.datetime.now(datetime.UTC)

    def write(self, changes: Iterable[SampleRowChange]) -> None:
        self._waiting += changes

    def flush(self, now: datetime.datetime, _: int | None = None) -> None:
        self._flushed = now
        waiting, self._waiting = self._waiting, []
        records = [Record(self._partition(each), self.encode(each, now).encode(), _ms(now)) for each in waiting]
        self._sent += records
        # A producer that has lost an answer sends a batch once more; an earlier one may come late.
        if self._sent and self.chance.random() < _AGAIN:
            start = self.chance.randrange(len(self._sent))
            records += self._sent[start : start + self.chance.randint(1, 20)]
        self.send(records)

    def write_ddl(self, change: SchemaChange, now: datetime.datetime) -> None:
        self.flush(now)
        if change.action == 0:
            return  # Files alone have the columns of the second table.
        kind = _TYPES.get(change.action, "ALTER")
        message = _message(change.database, change.table, kind, change.commit_ts, now, {"commitTs": change.commit_ts})
        record = Record(0, json.dumps({**message, "isDdl": True, "sql": change.query}).encode(), _ms(now))
        self.send([record] * (2 if self.chance.random() < _AGAIN else 1))

    def checkpoint(self, checkpoint_ts: int) -> None:
        now = self._flushed
        message = _message("", "", "TIDB_WATERMARK", checkpoint_ts, now, {"watermarkTs": checkpoint_ts})
        value = json.dumps(message).encode()
        self.send([Record(partition, value, _ms(now)) for partition in range(self.partitions)])

    def _partition(self, change: SampleRowChange) -> int:
        name = change.table.name
        told = [name.database, name.table, *(change.table.key_of(change.row) if self.by_key else ())]
        return zlib.crc32(json.dumps(told).encode()) % self.partitions


def _message(
    database: str, table: str, kind: str, commit_ts: int, now: datetime.datetime, extension: dict[str, int]
) -> dict[str, Any]:
    nothing = dict.fromkeys(("pkNames", "sqlType", "mysqlType", "old", "data"))
    of = {"id": 0, "database": database, "table": table, "isDdl": False, "type": kind, "sql": ""}
    return {**of, **nothing, "es": physical_ms(commit_ts), "ts": _ms(now), "_tidb": extension}


def _ms(time: datetime.datetime) -> int:
    return round(time.timestamp() * 1000)
