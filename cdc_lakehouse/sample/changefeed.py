"""The sample changefeed: a shop's history, written at once, and its ongoing changes.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cdc_lakehouse.changelog.positions import commit_time
from cdc_lakehouse.errors import ConfigurationError, SourceError
from cdc_lakehouse.sample.shop import SCHEMA_CHANGES, Shop
from cdc_lakehouse.sample.sink_writer import SinkWriter, write_atomically
from cdc_lakehouse.sources.sink.paths import METADATA

_STATE_FORMAT: Final = 2
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
