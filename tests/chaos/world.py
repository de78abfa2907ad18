"""A lake that lives through histories."""

from __future__ import annotations

import datetime
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.lease import LEASE, Lease
from cdc_lakehouse.operate.maintenance import Maintenance
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sample.sink_writer import Encode
from tests.chaos.history import Flush
from tests.chaos.scenario import Midnight, Of, Pass, Restart, Scenario, Settings
from tests.chaos.truth import Truth, WrongError
from tests.kit.changefeed import Changefeed
from tests.kit.lakes import TestLake, check_events, run_all
from tests.kit.log import Ddl, fold
from tests.kit.topics import Record, TopicWriter
from tests.servers.kafka import Broker, Sent

_LOG: Final = logging.getLogger("chaos")
_MAINTENANCE: Final = {
    "keep_segments_days": 1,
    "keep_superseded_days": 1,
    "keep_cut_hours": 10_000,
    "orphan_hours": 10_000,
}
"""Cuts are kept: all that were published are read."""
_LATER: Final = datetime.timedelta(days=3)
_RUNS: Final = itertools.count(1)


@dataclass
class Tally:
    """What has happened, over all histories. `faults` are those that did, `missed` those whose moment did not come."""

    histories: int = 0
    entries: int = 0
    passes: int = 0
    cuts: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    missed: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    superseded: int = 0


Fault = Callable[["World", int], bool]
"""Lets a run of the world's be hit at its n-th commit; gives whether it was."""


class World:
    """One feed of some databases. Its runs take the lease as those of a process do, by a clock that faults may turn."""

    def __init__(
        self, new_lake: Callable[..., TestLake], played: Scenario, tally: Tally, broker: Callable[[], Broker] | None
    ) -> None:
        is_csv, topic = played.protocol == "csv", None
        csv = {"include-commit-ts": True, "output-old-value": played.old_values}
        source: dict[str, Any] = {"protocol": "csv", "csv": csv} if is_csv else {}
        self._send: Callable[[], object] = lambda: None
        if played.protocol == "topic":
            assert broker is not None
            source, topic, self._send = _topic(broker(), played.seed)
        self.lake = new_lake(source=source, maintenance=_MAINTENANCE)
        self._dates = "segments" if topic is None else "records"
        self.feeds = {
            name: Changefeed(self.lake.sink, is_csv, played.old_values, name, topic) for name in played.databases
        }
        self.truth = Truth(self.feeds.values())
        self._chance = random.Random(played.seed)
        self.tally = tally
        self.offset = datetime.timedelta()
        self.may_be_wrong = False
        """Whether a cut of now may miss what the source does not have: it is made again at the same checkpoint-ts."""
        self._purged = False

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + self.offset

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """A lease, which stays where the block ends by an error: as that of a process that died."""
        config = self.lake.config
        lease = Lease(Lake(config.lake, config.storage), self.lake.name, f"run {next(_RUNS)}", self.now)
        lease.take()
        try:
            yield lease
            lease.release()
        finally:
            # A process that died renews nothing.
            lease._released.set()

    def run(self, **options: Any) -> Steps:
        """A whole run with the lease."""
        with self.lease() as lease:
            return run_all(self.lake.run(clock=self.now, require_lease=lease.require, **options))

    def try_run(self, **options: Any) -> Steps | None:
        """A run that may fail, as it would be noted by who started it."""
        try:
            return self.run(**options)
        except CdcError as error:
            self.tally.errors[type(error).__name__] += 1
        except Exception as error:  # noqa: BLE001 - A fault may come up as anything; what counts is what it leaves.
            self.tally.errors[f"{type(error).__module__}.{type(error).__name__}"] += 1
        return None

    def wait_for_lease(self) -> None:
        """Whatever lease there is has ended."""
        self.offset += LEASE + datetime.timedelta(seconds=10)

    def configure(self, settings: Settings) -> None:
        self._purged = self._purged or settings.policy.get("ddl", {}).get("drop") == "purge"
        keys = [self._keys(self.feeds[name]) for name in self.feeds if name in settings.keys]
        self.lake.configure(
            tables={
                "include": list(settings.include),
                "exclude": [
                    name for name in sorted(settings.excluded) if any(fnmatchcase(name, p) for p in settings.include)
                ],
                "settings": {name: key for each in keys for name, key in each},
            },
            policy=settings.policy,
            start_date=settings.start_date,
            namespace=self.lake.name + ("_moved__{database}" if settings.moved else "__{database}"),
        )

    def _keys(self, feed: Changefeed) -> list[tuple[str, Any]]:
        """The keys that tables have anyway. They count for all of a table's rows: not where the key was another one."""
        if any(isinstance(each, Ddl) and each.kind in ("rekey", "retype") for each in feed.entries):
            return []
        found = fold(feed.entries, feed.checkpoint_ts)
        return [(f"{feed.database}.{name}", {"primary_key": list(table.key)}) for name, table in found.items()]

    def go_through(self, step: Pass, fault: Fault) -> None:
        for feed in self.feeds.values():
            feed.flush(4)
        # Of all: behind it comes nothing new of any.
        for feed in self.feeds.values():
            feed.checkpoint(step.upto)
        self._send()
        (upto,) = {feed.checkpoint_ts for feed in self.feeds.values()}
        self.configure(step.during)
        happened = fault(self, step.number)
        _LOG.info("%s at %d: %s", step.fault, step.number, "happened" if happened else "its moment did not come")
        (self.tally.faults if happened else self.tally.missed)[step.fault] += 1
        if not self.may_be_wrong:
            self.truth.check_cuts(self.lake, purged=self._purged)
        self.may_be_wrong = False
        self.configure(step.after)
        self.wait_for_lease()
        self._recover(upto, step.after)
        if step.again:
            dates = {row["feed_date"] for row in self.lake.machinery(self._dates)} - {None}
            self._recover(upto, step.after, dates=frozenset(dates))
        self.tally.passes += 1

    def _recover(self, upto: int, settings: Settings, **options: Any) -> None:
        done = self.run(**options)
        # By all of their names: one that waits from before a RENAME on has its earlier name in the lake.
        held = {str(name): why for id, why in done.applied.held.items() for name in done.applied.lives[id].names}
        # A table may wait that exchanges rows with one that is left out.
        waits = {name.partition(".")[0] for name in settings.excluded}
        wrongly = {n: w for n, w in held.items() if "configuration takes" not in w or n.partition(".")[0] not in waits}
        if wrongly:
            raise WrongError(f"held: {wrongly}")
        if done.published.cut.checkpoint_ts != upto:
            raise WrongError(f"the cut is {done.published.cut.checkpoint_ts}, not {upto}")
        self.truth.check_tables(self.lake, upto, {*held, *settings.excluded})
        self.truth.check_cuts(self.lake, purged=self._purged)

    def maintain(self) -> None:
        """Retention and the maintenance of `events`, days later; then other dates begin."""
        done = _OfEvents(
            self.lake.feed, self.lake.lake, self.lake.session, clock=lambda: self.now() + _LATER
        ).maintain()
        failed = [each.deferred for each in done.tables if each.deferred is not None]
        if failed:
            raise WrongError(f"maintenance: {failed}")
        self.tally.superseded += sum(each.counts["superseded_events"] for each in done.tables)
        for feed in self.feeds.values():
            feed.date += 1

    def finish(self, *, rebuild: bool) -> None:
        """What holds at the end of the histories."""
        check_events(self.lake)
        if rebuild:
            self._recover(self.lake.run().last_cut.checkpoint_ts, Settings(), rebuild=self.lake.names())
        self.tally.cuts += self.truth.check_cuts(self.lake, purged=self._purged, once_more=True)
        if not rebuild:
            # Events that are superseded are removed by maintenance: what was between two cuts is not known then.
            self.truth.check_reads(self.lake, self._chance)
        before = self._metadata()
        self.run()
        changed = [name for name, place in self._metadata().items() if before.get(name) != place]
        if changed:
            raise WrongError(f"a run with nothing to do has changed {changed}")
        self.tally.histories += len(self.feeds)
        self.tally.entries += sum(len(feed.entries) for feed in self.feeds.values())

    def _metadata(self) -> dict[str, str]:
        return {name: place for name, place in self.lake.metadata().items() if not name.endswith(".lease")}


class _OfEvents(Maintenance):
    """Of all tables it would take most of the time, and tests of its own kill it between commits."""

    def _find_targets(self) -> list[Any]:
        return [each for each in super()._find_targets() if each.identifier.name == "events"]


def _topic(broker: Broker, seed: int) -> tuple[dict[str, Any], Callable[[Encode], TopicWriter], Callable[[], object]]:
    """A feed's source, what writes to it, and what gives the broker all that was written: at once, since each producer
    is new and costs half a second."""
    chance = random.Random(seed)
    partitions, by_key = chance.randint(1, 3), chance.random() < 0.5
    name = broker.create(partitions=partitions)
    written: list[Record] = []

    def send() -> None:
        broker.send(name, [Sent(each.value, at=each.at_ms, partition=each.partition) for each in written])
        written.clear()

    source = {"type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": broker.bootstrap, "topics": [name]}
    return source, lambda encode: TopicWriter(written.extend, partitions, by_key, chance, encode), send


def play(
    played: Scenario,
    faults: dict[str, Fault],
    new_lake: Callable[..., TestLake],
    tally: Tally,
    broker: Callable[[], Broker] | None = None,
) -> TestLake:
    """Raises where the lake is not as the model is."""
    world = World(new_lake, played, tally, broker)
    for step in played.steps:
        match step:
            case Pass():
                # Dates that nothing is known of any more cannot be decoded again.
                step = replace(step, again=False) if played.maintained else step
                world.go_through(step, faults[step.fault])
                if played.maintained:
                    world.maintain()
            case Midnight():
                for feed in world.feeds.values():
                    feed.date += 1
            case Restart():
                for feed in world.feeds.values():
                    feed.restart()
            case Of(database, Flush(lines)):
                world.feeds[database].flush(lines)
            case Of(database, entry):
                world.feeds[database].send(entry)
    world.finish(rebuild=played.maintained)
    return world.lake
