"""Verify that the tables of the last cut equal those of the source database.

Both sides compute a count and a checksum for each bucket of keys. When a bucket's differ, its rows are read from both
sides in the same order and compared value by value: only the rows of one key are in memory at a time.

TiDB is read as of the cut's TSO. MySQL is read now, while changes continue: differing keys are compared again in newer
cuts, and a key that was equal once is equal. A key is reported as changing when it differs in another way each time, or
when `events` has a change of it above the cut."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import VerifyConfig
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.lake.current.changed_keys import keys_changed_above
from cdc_lakehouse.pipeline.compared_table import Sides, sides_of
from cdc_lakehouse.pipeline.feed_state import held_by_name
from cdc_lakehouse.pipeline.progress import Progress
from cdc_lakehouse.pipeline.row_differences import MOST_KEYS, Difference, Differences
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.sources.database.client import SourceDatabase

Result = Literal["equal", "different", "unchecked"]

_BUCKETS_OF_A_STATEMENT: Final = 5000


@dataclass(frozen=True)
class TableResult:
    """The result for one table. `reason` says why it could not be checked, `left_out` which columns are not compared
    and why.

    The differences are of the cut at `checkpoint_ts` and the table's `incarnation`, None when it could not be checked.
    `different_buckets` of the `buckets` differ. The counts of differing keys are complete, `differences` has the first
    of them. `changing` keys differ and are being changed."""

    name: TableName
    result: Result
    reason: str | None = None
    checkpoint_ts: int | None = None
    incarnation: str | None = None
    source_rows: int | None = None
    lake_rows: int | None = None
    buckets: int = 0
    different_buckets: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    changing: int = 0
    differences: tuple[Difference, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def differing_keys(self) -> int:
        return self.missing + self.extra + self.different


@dataclass(frozen=True)
class VerifyResult:
    """The result for one feed. `checkpoint_ts` is the cut's, None when none is published. `server` is the database's
    version. `held` tables are not in the cut. `error` says why nothing could be checked."""

    feed: str
    checkpoint_ts: int | None
    server: str | None
    tables: tuple[TableResult, ...]
    held: Mapping[TableName, str]
    error: str | None = None

    @property
    def result(self) -> Result:
        results = {table.result for table in self.tables}
        if "different" in results:
            return "different"
        return "unchecked" if "unchecked" in results or self.error is not None or self.held else "equal"


@dataclass(frozen=True)
class VerifyOptions:
    """How often differing keys are compared, the seconds in between, and how many are shown of a table."""

    attempts: int = 3
    pause_seconds: float = 10
    shown: int = 10
    sleep: Callable[[float], None] = time.sleep


def verify_feed(
    open_run: Callable[[], FeedRun], config: VerifyConfig, wanted: Collection[str], options: VerifyOptions
) -> VerifyResult:
    """Compare the tables of the last cut with the source's: those that are `wanted` (`database.table`), or all. A run
    sees the cut that was the last when it was opened."""
    run = open_run()
    feed, cut = run.feed, run.last_cut
    found = held_by_name(cut.held, run.history.history.incarnations())
    held = {table: why for table, why in found.items() if not wanted or str(table) in wanted}
    if cut.checkpoint_ts == BEGINNING:
        return VerifyResult(feed.name, None, None, (), held, "no cut is published")
    rows = run.checkpoints.rows(cut.checkpoint_ts)
    taken = [TableName(row.database, row.table) for row in rows if feed.tables.takes(row.database, row.table)]
    names = sorted((name for name in taken if not wanted or str(name) in wanted), key=str)
    try:
        with SourceDatabase(config) as database:
            progress = Progress(run.log, "tables are compared", len(names))
            tables: list[TableResult] = []
            for name in names:
                tables.append(_verified(open_run, database, name, options))
                progress.add()
            return VerifyResult(feed.name, cut.checkpoint_ts, database.version, tuple(tables), held)
    except CdcError as error:
        return VerifyResult(feed.name, cut.checkpoint_ts, None, (), held, str(error))


def _verified(
    open_run: Callable[[], FeedRun], database: SourceDatabase, name: TableName, options: VerifyOptions
) -> TableResult:
    try:
        return _Verification(open_run, database, name, options).result()
    except CdcError as error:
        return TableResult(name, "unchecked", reason=str(error))


class _Verification:
    """The verification of one table."""

    def __init__(
        self, open_run: Callable[[], FeedRun], database: SourceDatabase, name: TableName, options: VerifyOptions
    ) -> None:
        self._open_run = open_run
        self._run = open_run()
        self._database = database
        self._name = name
        self._options = options
        self._buckets: int | None = None

    def result(self) -> TableResult:
        with self._sides() as sides:
            self._buckets, incarnation = sides.buckets, sides.life.id
            lake, source = sides.lake.checksums(), self._database.checksums(sides.source)
            opened = sorted(bucket for bucket in source.keys() | lake.keys() if source.get(bucket) != lake.get(bucket))
            found = self._compare(sides, opened)
        changing = 0
        if found.total and found.total <= MOST_KEYS and not self._database.is_tidb:
            found, changing = self._recheck(opened, found)
        return TableResult(
            self._name,
            "different" if found.total else "equal",
            checkpoint_ts=self._run.last_cut.checkpoint_ts,
            incarnation=incarnation,
            source_rows=sum(rows for rows, _ in source.values()),
            lake_rows=sum(rows for rows, _ in lake.values()),
            buckets=sides.buckets,
            different_buckets=len(opened),
            changing=changing,
            differences=tuple(found.shown),
            left_out=sides.left_out,
            **found.counts,
        )

    @contextlib.contextmanager
    def _sides(self) -> Iterator[Sides]:
        """Yield both sides as of the last cut; the source is read as of it while the block lasts."""
        with self._database.as_of(self._run.last_cut.checkpoint_ts):
            yield sides_of(self._run, self._database, self._name, self._buckets)

    def _compare(self, sides: Sides, buckets: Sequence[int], among: Collection[str] | None = None) -> Differences:
        found = Differences(sides.columns, self._options.shown)
        for some in _parts(buckets, sides.buckets):
            with (
                contextlib.closing(sides.lake.rows(some)) as lake,
                contextlib.closing(self._database.rows(sides.source, some)) as source,
            ):
                found.compare(source, lake, among)
        return found

    def _recheck(self, buckets: Sequence[int], first: Differences) -> tuple[Differences, int]:
        """Compare differing keys again; return those that differ each time in the same way, and how many others differ
        each time."""
        found, changing = first, set[str]()
        for _ in range(self._options.attempts - 1):
            self._options.sleep(self._options.pause_seconds)
            self._run = self._open_run()
            with self._sides() as sides:
                repeated = self._compare(sides, buckets, found.keys.keys())
            changing |= {key for key, how in repeated.keys.items() if how != found.keys[key]}
            changing &= repeated.keys.keys()
            found = repeated
            if not found.keys:
                return found, 0
        steady = found.keys.keys() - changing
        changing |= self._changed_above(steady)
        if not changing:
            return found, 0
        with self._sides() as sides:
            # Once more for what is counted and shown: only the keys that do not change.
            return self._compare(sides, buckets, steady - changing), len(changing)

    def _changed_above(self, keys: Collection[str]) -> set[str]:
        """Return the keys that events above the cut change."""
        if not keys:
            return set()
        with self._sides() as sides:
            names = [(name.database, name.table) for name in sides.life.names]
            value_format = self._run.value_format(sides.life.last)
            above = self._run.last_cut.checkpoint_ts
            changed = keys_changed_above(self._run.lake, self._run.feed.name, names, above, sides.key, value_format)
            return {key for key in changed if key in keys}


def _parts(buckets: Sequence[int], count: int) -> Iterator[Sequence[int] | None]:
    """Split buckets into parts that a statement can name; None for all of them at once."""
    if len(buckets) == count:
        yield None
        return
    for start in range(0, len(buckets), _BUCKETS_OF_A_STATEMENT):
        yield buckets[start : start + _BUCKETS_OF_A_STATEMENT]
