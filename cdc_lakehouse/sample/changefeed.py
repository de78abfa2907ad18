"""The sample changefeed: a shop's past written at once, and its present as it goes on.

    write_history(directory, start=…, end=…, transactions=2_000)
    for checkpoint_ts in follow(directory, pause_seconds=5):
        …

What the generator must remember lies beside the sink, in `{directory}.state.json`: a sink holds only what TiCDC writes.
"""

from __future__ import annotations

import datetime
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cdc_lakehouse.errors import ConfigurationError, SourceError
from cdc_lakehouse.sample.shop import Shop
from cdc_lakehouse.sample.shop_ddl import SCHEMA_CHANGES
from cdc_lakehouse.sample.sink_writer import METADATA, SinkWriter, write_atomically

_STATE_FORMAT: Final = 1
# Not a part of a day, so that rows of late evening come to lie in the next day's directory, as with TiCDC.
_FLUSH_INTERVAL: Final = datetime.timedelta(hours=5)
_FLUSHES_AT_LEAST: Final = 4
_BATCHES_PER_DDL: Final = 50
_TRANSACTIONS_PER_BATCH: Final = (2, 5)
_BETWEEN_TRANSACTIONS: Final = datetime.timedelta(milliseconds=10)
_BATCH_SPAN: Final = _TRANSACTIONS_PER_BATCH[1] * _BETWEEN_TRANSACTIONS


def write_history(
    directory: Path, *, start: datetime.datetime, end: datetime.datetime, transactions: int, seed: int = 1
) -> int:
    """Write the days from `start` to `end` (with a zone), with all DDL of the shop; gives the checkpoint-ts.

    The same arguments give the same files. Raises `SourceError` when a sample, or anything else, is there already.
    """
    start, end = start.astimezone(datetime.UTC), end.astimezone(datetime.UTC)
    if start >= end:
        raise ConfigurationError(f"the sample's start {start.isoformat()} is not before its end {end.isoformat()}")
    if directory.exists() and any(directory.iterdir()):
        raise SourceError(f"{directory} is not empty", advice=f"remove it and {state_path(directory)}, or name another")
    if state_path(directory).exists():
        raise SourceError(f"{state_path(directory)} is left of an earlier sample", advice="remove it")
    shop, writer = Shop(seed), SinkWriter(directory)
    interval = min(_FLUSH_INTERVAL, (end - start) / _FLUSHES_AT_LEAST)
    next_flush = start + interval
    for change in shop.open(start):
        writer.write_ddl(change, start)
    for moment, is_ddl in _schedule(start, end, transactions, seed):
        while next_flush <= moment:
            if writer.flush(next_flush):
                writer.checkpoint(shop.resolve(next_flush))
            next_flush += interval
        if is_ddl:
            writer.write_ddl(shop.change_schema(moment), moment)
        else:
            writer.write(shop.trade(moment))
    writer.flush(end)
    checkpoint_ts = shop.resolve(end)
    writer.checkpoint(checkpoint_ts)
    _Feed(directory, shop, writer).save()
    return checkpoint_ts


def follow(
    directory: Path,
    *,
    pause_seconds: float,
    batches: int | None = None,
    clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[int]:
    """Go on from where the directory stands: a few transactions at a time, each batch giving its checkpoint-ts.

    Without `batches` it never ends. Raises `SourceError` when there is no history to go on from.
    """
    feed, pending = _load(directory)
    if pending is not None:
        # Stopped amid a batch: its changes come again, the same ones, as after a restart of TiCDC.
        feed.finish_batch(pending)
    for number in itertools.count() if batches is None else range(batches):
        if number:
            sleep(pause_seconds)
        now = clock().astimezone(datetime.UTC)
        feed.save(pending=now)
        yield feed.finish_batch(now)


def state_path(directory: Path) -> Path:
    """Where the generator's state lies; it may be removed together with the sink."""
    directory = directory.resolve()
    return directory.with_name(f"{directory.name}.state.json")


def current_shop(directory: Path) -> Shop:
    """The shop as it stood when the last batch was complete: what a table should hold at the checkpoint."""
    return _load(directory)[0].shop


def _schedule(
    start: datetime.datetime, end: datetime.datetime, transactions: int, seed: int
) -> list[tuple[datetime.datetime, bool]]:
    """When something happens, in order, and whether it is a DDL."""
    rng = random.Random(f"{seed}/schedule")
    trades = [(rng.random(), False) for _ in range(transactions)]
    changes = [(number / (len(SCHEMA_CHANGES) + 1), True) for number in range(1, len(SCHEMA_CHANGES) + 1)]
    return [(start + (end - start) * part, is_ddl) for part, is_ddl in sorted(trades + changes)]


@dataclass
class _Feed:
    """What goes on from batch to batch."""

    directory: Path
    shop: Shop
    writer: SinkWriter
    batches: int = 0

    def finish_batch(self, now: datetime.datetime) -> int:
        """Carry out the next batch, which is the same for the same state and time; gives its checkpoint-ts."""
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
        """`pending` is the time of a batch that is about to be written; the state is still the one before it."""
        state = {
            "format": _STATE_FORMAT,
            "batches": self.batches,
            "pending": None if pending is None else pending.isoformat(),
            "shop": self.shop.state(),
        }
        write_atomically(state_path(self.directory), json.dumps(state, ensure_ascii=False))


def _load(directory: Path) -> tuple[_Feed, datetime.datetime | None]:
    """The feed as it was put away, and the time of a batch that may not be complete."""
    place = state_path(directory)
    if not place.exists() or not (directory / METADATA).exists():
        raise SourceError(f"{directory} holds no sample changefeed", advice="write its history first")
    state: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    if state["format"] != _STATE_FORMAT:
        raise SourceError(f"{place} is of another version", advice="remove it and the directory, and write them anew")
    feed = _Feed(directory, Shop.from_state(state["shop"]), SinkWriter(directory), state["batches"])
    pending = state["pending"]
    return feed, None if pending is None else datetime.datetime.fromisoformat(pending)
