"""A lake that lives through histories, compared with the model: the tables, each cut that was published, each event."""

import datetime
import itertools
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from cdc_lakehouse import read
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.lease import LEASE, Lease
from cdc_lakehouse.operate.maintenance import Maintenance
from cdc_lakehouse.pipeline.reading import NotReadableError
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sample.sink_writer import Encode
from tests.chaos.history import Of, Pass, Scenario, Settings
from tests.kit.changefeed import Changefeed, Record, TopicWriter
from tests.kit.lakes import TestLake, check_events, run_all
from tests.kit.log import Ddl, fold, same, seen, values
from tests.servers.kafka import Broker, Sent

_LOG: Final = logging.getLogger("chaos")
# Cuts are kept: all that were published are read.
_MAINTENANCE: Final = {
    "keep_segments_days": 1, "keep_superseded_days": 1, "keep_cut_hours": 10_000, "orphan_hours": 10_000,
}  # fmt: skip
_LATER: Final = datetime.timedelta(days=3)
_RUNS: Final = itertools.count(1)
_READ: Final = 3
"""Of how many moments tables are read."""
Name = tuple[str, str]


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


class Truth:
    """What the tables of all databases of a feed are at a commit-ts, and what of the lake was compared with it."""

    def __init__(self, feeds: Collection[Changefeed]) -> None:
        self._feeds = feeds
        self._at: dict[int, dict[Name, Any]] = {}
        self._cuts: set[tuple[int, Name, int | None]] = set()
        """Of cuts that were read, with the table's snapshot."""
        self._current: dict[int, tuple[Any, Any]] = {}
        """What the live tables were seen to hold, by their snapshots: a cut has the same ones."""

    def tables(self, upto: int) -> dict[Name, Any]:
        """Up to the checkpoint at most: what is behind it changes no more."""
        if upto not in self._at:
            self._at[upto] = {
                (feed.database, name): table.typed()
                for feed in self._feeds
                for name, table in fold(feed.entries, upto).items()
            }
        return self._at[upto]

    def check_tables(self, lake: TestLake, upto: int, except_for: Collection[str] = ()) -> None:
        """The live tables are as of `upto`, but for some (`database.table`)."""
        expected = self.tables(upto)
        found = lake.tables()
        left = {name for name in {*expected, *found} if ".".join(name) in except_for}
        same("tables", sorted(found.keys() - left), sorted(expected.keys() - left))
        for name in sorted(found.keys() - left):
            shown = seen(found[name].schema(), found[name].scan())
            same(f"table {name} at {upto}", shown, expected[name])
            snapshot = found[name].current_snapshot()
            if snapshot is not None and snapshot.schema_id == found[name].metadata.current_schema_id:
                self._current[snapshot.snapshot_id] = shown

    def check_cuts(self, lake: TestLake, *, purged: bool = False, once_more: bool = False) -> int:
        """Every cut that was ever published is there, and shows by its snapshots what the model has at its
        checkpoint-ts; gives how many cuts. What was read before is read again with `once_more`: a snapshot does not
        change. `purged`: a table may be gone with its snapshots."""
        if once_more:
            self._current.clear()
        cuts: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in lake.machinery("checkpoints"):
            cuts[row["checkpoint_ts"]].append(row)
        missing = {upto for upto, _, _ in self._cuts} - cuts.keys()
        assert not missing, f"cuts that were published are gone: {sorted(missing)}"
        live = [
            lake.lake.catalog.load_table(tuple(name.split(".", 1))) for name in lake.metadata() if name[:4] != "cdc_"
        ]
        tables = {snapshot.snapshot_id: table for table in live for snapshot in table.snapshots()}
        tagged = {ref.snapshot_id for each in live for n, ref in each.metadata.refs.items() if n != "main"}
        if unknown := tagged - {row["snapshot_id"] for rows in cuts.values() for row in rows}:
            # Another cut of the same checkpoint-ts can have replaced theirs.
            checkpoints = lake.lake.catalog.load_table((f"cdc_{lake.name}", "checkpoints"))
            for scan in (checkpoints.scan(snapshot_id=each.snapshot_id) for each in checkpoints.snapshots()):
                unknown -= set(scan.to_arrow().column("snapshot_id").to_pylist())
        assert not unknown, f"snapshots are tagged that no cut has or had: {unknown}"
        for upto, rows in cuts.items():
            expected = self.tables(upto)
            names = [(row["database"], row["table"]) for row in rows]
            once = len(set(names)) == len(names) and not set(names) - expected.keys()
            assert once, f"the cut at {upto} has {names}, where there are {sorted(expected)}"
            for row, name in zip(rows, names, strict=True):
                snapshot, what = row["snapshot_id"], f"{name} in the cut at {upto}"
                if not once_more and (upto, name, snapshot) in self._cuts:
                    continue
                self._cuts.add((upto, name, snapshot))
                same(f"number of rows of {what}", row["row_count"], len(expected[name][1]))
                if snapshot in tables:
                    if snapshot not in self._current:
                        scan = tables[snapshot].scan(snapshot_id=snapshot)
                        self._current[snapshot] = seen(scan.projection(), scan)
                    same(what, self._current[snapshot], expected[name])
                else:
                    assert snapshot is None or purged, f"{what} is of a snapshot that no table has"
        return len(cuts)

    def check_reads(self, lake: TestLake, chance: random.Random) -> None:
        """What `read` gives at some commit-ts up to the last cut is what the model has."""
        last = lake.run().last_cut.checkpoint_ts
        times = sorted({each.commit_ts for feed in self._feeds for each in feed.entries if each.commit_ts <= last})
        for upto in chance.sample(times, min(len(times), _READ)):
            for name, (columns, rows) in self.tables(upto).items():
                try:
                    found = read(lake.config, ".".join(name), as_of=upto)
                except NotReadableError:
                    # Rows that a change of the key moved are gone where the table was emptied later.
                    entries = [each for feed in self._feeds if feed.database == name[0] for each in feed.entries]
                    ddl = [(each.kind, each.commit_ts) for each in entries if isinstance(each, Ddl)]
                    keyed = any(kind in ("rekey", "retype", "alter") and at <= upto for kind, at in ddl)
                    if not keyed or not any(kind == "truncate" and at > upto for kind, at in ddl):
                        raise
                    continue
                same(f"{name} read at {upto}", (found.column_names, values(found)), ([c for c, _ in columns], rows))


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
        with self.lease() as lease:
            return run_all(self.lake.run(clock=self.now, require_lease=lease.require, **options))

    def try_run(self, **options: Any) -> Steps | None:
        try:
            return self.run(**options)
        except Exception as error:  # noqa: BLE001 - A fault may come up as anything; what counts is what it leaves.
            self.tally.errors[f"{type(error).__module__}.{type(error).__name__}"] += 1
        return None

    def wait_for_lease(self) -> None:
        self.offset += LEASE + datetime.timedelta(seconds=10)

    def configure(self, settings: Settings) -> None:
        self._purged = self._purged or settings.policy.get("ddl", {}).get("drop") == "purge"
        # The keys that tables have anyway. They count for all of a table's rows: not where the key was another one.
        unkeyed = ("rekey", "retype")
        feeds = [feed for name, feed in self.feeds.items() if name in settings.keys]
        keys = {
            f"{feed.database}.{name}": {"primary_key": list(table.key)}
            for feed in feeds
            if not any(isinstance(each, Ddl) and each.kind in unkeyed for each in feed.entries)
            for name, table in fold(feed.entries, feed.checkpoint_ts).items()
        }
        excluded = [name for name in sorted(settings.excluded) if any(fnmatchcase(name, p) for p in settings.include)]
        self.lake.configure(
            tables={"include": list(settings.include), "exclude": excluded, "settings": keys},
            policy=settings.policy,
            start_date=settings.start_date,
            namespace=self.lake.name + ("_moved__{database}" if settings.moved else "__{database}"),
        )

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
        assert not wrongly, f"held: {wrongly}"
        same("checkpoint-ts of the cut", done.published.cut.checkpoint_ts, upto)
        self.truth.check_tables(self.lake, upto, {*held, *settings.excluded})
        self.truth.check_cuts(self.lake, purged=self._purged)

    def maintain(self) -> None:
        """Retention and the maintenance of `events`, days later; then other dates begin."""
        done = _OfEvents(
            self.lake.feed, self.lake.lake, self.lake.session, clock=lambda: self.now() + _LATER
        ).maintain()
        failed = [each.deferred for each in done.tables if each.deferred is not None]
        assert not failed, f"maintenance: {failed}"
        self.tally.superseded += sum(each.counts["superseded_events"] for each in done.tables)
        for feed in self.feeds.values():
            feed.date += 1

    def finish(self, *, rebuild: bool) -> None:
        check_events(self.lake)
        if rebuild:
            self._recover(self.lake.run().last_cut.checkpoint_ts, Settings(), rebuild=self.lake.names())
        self.tally.cuts += self.truth.check_cuts(self.lake, purged=self._purged, once_more=True)
        if not rebuild:
            # Events that are superseded are removed by maintenance: what was between two cuts is not known then.
            self.truth.check_reads(self.lake, self._chance)
        with self.lake.without_changes():
            self.run()
        self.tally.histories += len(self.feeds)
        self.tally.entries += sum(len(feed.entries) for feed in self.feeds.values())


class _OfEvents(Maintenance):
    """Of all tables it would take most of the time, and tests of its own kill it between commits."""

    def _chosen(self, wanted: str | None) -> list[Any]:
        return [each for each in super()._chosen(wanted) if each.identifier.name == "events"]


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
    played: Scenario, faults: dict[str, Fault], new_lake: Callable[..., TestLake], tally: Tally,
    broker: Callable[[], Broker] | None = None,
) -> TestLake:  # fmt: skip
    world = World(new_lake, played, tally, broker)
    for step in played.steps:
        match step:
            case Pass():
                # Dates that nothing is known of any more cannot be decoded again.
                step = replace(step, again=False) if played.maintained else step
                world.go_through(step, faults[step.fault])
                if played.maintained:
                    world.maintain()
            case "midnight":
                for feed in world.feeds.values():
                    feed.date += 1
            case "restart":
                for feed in world.feeds.values():
                    feed.restart()
            case Of(database, int(lines)):
                world.feeds[database].flush(lines)
            case Of(database, entry):
                world.feeds[database].send(entry)
    world.finish(rebuild=played.maintained)
    return world.lake
