"""A lake that lives through histories, compared with the model: the tables, each cut that was published, each event."""

import datetime
import functools
import itertools
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Literal
from unittest import mock

from cdc_lakehouse import read
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.lease import LEASE, Lease
from cdc_lakehouse.operate.maintenance import Maintenance
from cdc_lakehouse.pipeline.reading import NotReadableError
from cdc_lakehouse.pipeline.steps import Steps
from cdc_lakehouse.sample.sink_writer import Encode
from tests.chaos.history import NAMES, Database
from tests.kit.changefeed import Changefeed, TopicWriter
from tests.kit.lakes import NewLake, TestLake, check_events, run_all
from tests.kit.log import FIRST_TS, Ddl, fold, same, seen, values
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
_POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {}, {"quarantine": "skip"}, {"index_gap": "skip"}, {"ddl": {"drop": "purge"}}, {"ddl": {"rewrite": "hold"}},
)  # fmt: skip
_OF_FILES: Final = ("late file", "unreadable file", "lease and file lost")
"""Faults that a topic does not have."""
Name = tuple[str, str]
Protocol = Literal["canal-json", "csv", "topic"]
Tally = Counter[str]
"""How often what has happened, over all histories."""


@dataclass(frozen=True)
class Settings:
    """What a run is configured with. `excluded` are the names, as `database.table`, that it does not take, also those
    that no pattern of `include` matches. `keys`: databases of which the configuration names the keys that the tables
    have anyway. `moved`: the tables are in other namespaces than usual."""

    excluded: frozenset[str] = frozenset()
    include: tuple[str, ...] = ("*.*",)
    moved: bool = False
    keys: frozenset[str] = frozenset()
    policy: dict[str, Any] = field(default_factory=dict[str, Any])
    start_date: str = "2026-01-01"


def _settings(
    chance: random.Random, places: random.Random, databases: Sequence[Database], *, whole: bool, last: bool
) -> Settings:
    """`whole`: nothing but names of tables and keys is other than usual, so that no table is held. Of `places`: now and
    then tables are taken by other patterns, or are in other namespaces; the `last` settings take all."""
    moved = places.random() < 0.2
    if last:
        return Settings(moved=moved)
    excluded = {
        f"{each.feed.database}.{each.chance.choice(NAMES)}" for each in databases if each.chance.random() < 0.25
    }
    keys = frozenset(each.feed.database for each in databases if each.chance.random() < 0.2)
    found = Settings(frozenset(excluded), moved=moved, keys=keys)
    if not whole:
        policy, start_date = chance.choice(_POLICIES), chance.choice(("2026-01-01", "2025-06-01"))
        found = replace(found, policy=policy, start_date=start_date)
    if places.random() >= 0.3:
        return found
    left, prefix = places.choice((None, *NAMES)), places.choice(("*", "shop*", "????*"))
    excluded |= {f"{each.feed.database}.{left}" for each in databases if left is not None}
    include = tuple(f"{prefix}.{name}" for name in NAMES if name != left)
    return replace(found, excluded=frozenset(excluded), include=include)


Fault = Callable[["World", int], bool]
"""Lets a run of the world's be hit at its n-th commit; gives whether it was."""


def no_fault(world: "World", _: int) -> bool:
    world.try_run()
    return True


class World:
    """One feed of some databases. Its runs take the lease as those of a process do, by a clock that faults may turn.
    With `only` some of its histories are played, with the same passes and faults."""

    def __init__(
        self, new_lake: NewLake, seed: int, protocol: Protocol, histories: int, tally: Tally,
        broker: Callable[[], Broker] | None, only: Collection[int],
    ) -> None:  # fmt: skip
        self.tally, self._chance, topic = tally, random.Random(f"{seed}/world"), None
        old_values = self._chance.random() < 0.5
        csv = {"include-commit-ts": True, "output-old-value": old_values}
        source: dict[str, Any] = {"protocol": "csv", "csv": csv} if protocol == "csv" else {}
        self._send: Callable[[], object] = lambda: None
        if protocol == "topic":
            assert broker is not None
            source, topic, self._send = _topic(broker(), seed)
        self.lake = new_lake(source=source, maintenance=_MAINTENANCE)
        self.is_topic = topic is not None
        self.databases, self.feeds = list[Database](), dict[str, Changefeed]()
        clock = itertools.count(FIRST_TS, 1 << 18)
        for number in range(histories):
            is_played = not only or number in only
            to = topic if is_played else lambda _: mock.MagicMock()
            feed = Changefeed(self.lake.sink, protocol == "csv", old_values, f"shop{number}", to)
            self.databases.append(Database(feed, seed, number, clock))
            if is_played:
                self.feeds[feed.database] = feed
        self.upto, self.offset = 0, datetime.timedelta()
        self.may_be_wrong = False
        """Whether a cut of now may miss what the source does not have: it is made again at the same checkpoint-ts."""
        self._purged = False
        """Whether tables may be gone with their snapshots."""
        self.tables = functools.cache(self._tables)
        self._cuts: set[tuple[int, Name, int | None]] = set()
        """Of cuts that were read, with the table's snapshot."""
        self._current: dict[int, tuple[Any, Any]] = {}
        """What the live tables were seen to hold, by their snapshots: a cut has the same ones."""

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

    def try_run(self) -> Steps | None:
        try:
            return self.run()
        except Exception as error:  # noqa: BLE001 - A fault may come up as anything; what counts is what it leaves.
            self.tally[f"runs ended by {type(error).__module__}.{type(error).__name__}"] += 1
        return None

    def wait_for_lease(self) -> None:
        self.offset += LEASE + datetime.timedelta(seconds=10)

    # --- What happens to it ---

    def midnight(self) -> None:
        """Files go to the next date's directories."""
        for each in self.databases:
            each.feed.date += 1

    def restart(self) -> None:
        """The changefeed starts again from its checkpoint: what is above it comes once more."""
        for each in self.databases:
            each.feed.restart()

    def checkpoint(self, upto: int) -> None:
        self.upto = max(self.upto, upto)
        for feed in self.feeds.values():
            feed.flush(4)
        # Of all: behind it comes nothing new of any.
        for feed in self.feeds.values():
            feed.checkpoint(self.upto)
        self._send()

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

    def hit(self, name: str, fault: Fault, number: int, settings: Settings) -> None:
        self.configure(settings)
        outcome = f"{name}: {'happened' if fault(self, number) else 'its moment did not come'}"
        _LOG.info("at %d: %s", number, outcome)
        self.tally[outcome] += 1
        if not self.may_be_wrong:
            self.check_cuts()
        self.may_be_wrong = False

    def recover(self, settings: Settings, *, again: bool) -> None:
        """By a run without a fault; `again`: then each date is decoded once more."""
        self.configure(settings)
        self.wait_for_lease()
        self._publish(settings)
        if again:
            dates = {row["feed_date"] for row in self.lake.machinery("records" if self.is_topic else "segments")}
            self._publish(settings, dates=frozenset(dates - {None}))
        self.tally["passes"] += 1

    def _publish(self, settings: Settings, **options: Any) -> None:
        done = self.run(**options)
        # By all of their names: one that waits from before a RENAME on has its earlier name in the lake.
        held = {str(name): why for id, why in done.applied.held.items() for name in done.applied.lives[id].names}
        # A table may wait that exchanges rows with one that is left out.
        waits = {name.partition(".")[0] for name in settings.excluded}
        wrongly = {n: w for n, w in held.items() if "configuration takes" not in w or n.partition(".")[0] not in waits}
        assert not wrongly, f"held: {wrongly}"
        same("checkpoint-ts of the cut", done.published.cut.checkpoint_ts, self.upto)
        self.check_tables({*held, *settings.excluded})
        self.check_cuts()

    def maintain(self) -> None:
        """Retention and the maintenance of `events`, days later; then other dates begin."""
        lake = self.lake
        done = _OfEvents(lake.feed, lake.lake, lake.session, clock=lambda: self.now() + _LATER).maintain()
        failed = [each.deferred for each in done.tables if each.deferred is not None]
        assert not failed, f"maintenance: {failed}"
        self.tally["superseded events removed"] += sum(each.counts["superseded_events"] for each in done.tables)
        self.midnight()

    def finish(self, *, rebuild: bool) -> None:
        check_events(self.lake)
        if rebuild:
            self._publish(Settings(), rebuild=self.lake.names())
        self.tally["cuts"] += self.check_cuts(once_more=True)
        if not rebuild:
            # Events that are superseded are removed by maintenance: what was between two cuts is not known then.
            self.check_reads()
        with self.lake.without_changes():
            self.run()
        self.tally["histories"] += len(self.feeds)
        self.tally["entries"] += sum(len(feed.entries) for feed in self.feeds.values())

    # --- What must be ---

    def _tables(self, upto: int) -> dict[Name, Any]:
        """Up to the checkpoint at most: what is behind it changes no more."""
        folded = {feed.database: fold(feed.entries, upto) for feed in self.feeds.values()}
        return {(database, name): each.typed() for database, tables in folded.items() for name, each in tables.items()}

    def check_tables(self, except_for: Collection[str]) -> None:
        """The live tables are as of the checkpoint, but for some (`database.table`)."""
        expected, found = self.tables(self.upto), self.lake.tables()
        left = {name for name in {*expected, *found} if ".".join(name) in except_for}
        same("tables", sorted(found.keys() - left), sorted(expected.keys() - left))
        for name in sorted(found.keys() - left):
            shown = seen(found[name].schema(), found[name].scan())
            same(f"table {name} at {self.upto}", shown, expected[name])
            snapshot = found[name].current_snapshot()
            if snapshot is not None and snapshot.schema_id == found[name].metadata.current_schema_id:
                self._current[snapshot.snapshot_id] = shown

    def check_cuts(self, *, once_more: bool = False) -> int:
        """Every cut that was ever published is there, and shows by its snapshots what the model has at its
        checkpoint-ts; gives how many cuts. What was read before is read again with `once_more`: a snapshot does not
        change."""
        if once_more:
            self._current.clear()
        cuts: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in self.lake.machinery("checkpoints"):
            cuts[row["checkpoint_ts"]].append(row)
        missing = {upto for upto, _, _ in self._cuts} - cuts.keys()
        assert not missing, f"cuts that were published are gone: {sorted(missing)}"
        catalog, names = self.lake.lake.catalog, self.lake.metadata()
        live = [catalog.load_table(tuple(name.split(".", 1))) for name in names if name[:4] != "cdc_"]
        tables = {snapshot.snapshot_id: table for table in live for snapshot in table.snapshots()}
        tagged = {ref.snapshot_id for each in live for n, ref in each.metadata.refs.items() if n != "main"}
        if unknown := tagged - {row["snapshot_id"] for rows in cuts.values() for row in rows}:
            # Another cut of the same checkpoint-ts can have replaced theirs.
            checkpoints = catalog.load_table((f"cdc_{self.lake.name}", "checkpoints"))
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
                    assert snapshot is None or self._purged, f"{what} is of a snapshot that no table has"
        return len(cuts)

    def check_reads(self) -> None:
        """What `read` gives at some commit-ts up to the last cut is what the model has."""
        last = self.lake.run().last_cut.checkpoint_ts
        times = sorted(
            {each.commit_ts for feed in self.feeds.values() for each in feed.entries if each.commit_ts <= last}
        )
        for upto in self._chance.sample(times, min(len(times), _READ)):
            for name, (columns, rows) in self.tables(upto).items():
                try:
                    found = read(self.lake.config, ".".join(name), as_of=upto)
                except NotReadableError:
                    # Rows that a change of the key moved are gone where the table was emptied later.
                    entries = self.feeds[name[0]].entries
                    ddl = [(each.kind, each.commit_ts) for each in entries if isinstance(each, Ddl)]
                    keyed = any(kind in ("rekey", "retype", "alter") and at <= upto for kind, at in ddl)
                    if not keyed or not any(kind == "truncate" and at > upto for kind, at in ddl):
                        raise
                    continue
                same(f"{name} read at {upto}", (found.column_names, values(found)), ([c for c, _ in columns], rows))


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
    written: list[dict[str, Any]] = []

    def send() -> None:
        records = [Sent(each["value"].encode(), at=each["timestamp"], partition=each["partition"]) for each in written]
        broker.send(name, records)
        written.clear()

    source = {"type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": broker.bootstrap, "topics": [name]}
    return source, lambda encode: TopicWriter(written.extend, partitions, by_key, chance, encode), send


def play(
    seed: int, faults: Mapping[str, Fault], protocols: Sequence[Protocol], histories: int, new_lake: NewLake,
    tally: Tally, broker: Callable[[], Broker] | None = None, *, passes: tuple[int, int] = (3, 5),
    only: Collection[int] = (), maintained: bool | None = None,
    hits: Callable[[str, int], tuple[str, int]] = lambda fault, commit: (fault, commit),
) -> TestLake:  # fmt: skip
    """The histories of a seed. In a pass the checkpoint goes up, the project runs with settings under which a fault
    hits it at its n-th commit, as it is drawn or as `hits` makes of that, and once more, with other settings, without
    one; the last pass takes everything. `maintained`: each pass ends its dates, and maintenance keeps nothing of them
    that it need not keep."""
    chance = random.Random(seed)
    world = World(new_lake, seed, chance.choice(protocols), histories, tally, broker, only)
    names = [name for name in faults if not (world.is_topic and name in _OF_FILES)] or ["none"]
    maintained = random.Random(f"{seed}/maintained").random() < 0.4 if maintained is None else maintained
    databases = world.databases
    for each in databases:
        each.do(each.begin())
    last = chance.randint(*passes) - 1
    for number in range(last + 1):
        turns = [each for each in databases for _ in range(each.chance.randint(3, 11))]
        chance.shuffle(turns)
        for each in turns:
            if chance.random() < 0.015:
                for paused in databases:
                    paused.pause()
                chance.choice((world.midnight, world.restart))()
            each.go_on()
        for each in databases:
            each.pause()
        times = sorted(entry.commit_ts for each in databases for entry in each.feed.entries)
        behind = 0 if number == last else chance.randrange(min(len(times), 5 * histories))
        fault = chance.choice(names)
        fault, commit = hits(fault, chance.randint(1, 12 + 2 * histories if chance.random() < 0.5 else 12))
        # Random numbers of their own, so that a seed keeps its histories.
        places = random.Random(f"{seed}/places/{number}")
        during, after = (
            _settings(chance, places, databases, whole=whole, last=number == last) for whole in (False, True)
        )
        # Dates that nothing is known of any more cannot be decoded again.
        again = chance.random() < (0.2 if number == last else 0.1) and not maintained
        world.checkpoint(times[-1 - behind])
        world.hit(fault, {"none": no_fault, **faults}[fault], commit, during)
        world.recover(after, again=again)
        if maintained:
            world.maintain()
    world.finish(rebuild=maintained)
    return world.lake
