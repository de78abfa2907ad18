"""The lake compared with the model: the tables, every cut that was published, and that each event is there once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final

from cdc_lakehouse import read
from cdc_lakehouse.pipeline.reading import NotReadableError
from tests.kit.changefeed import Changefeed
from tests.kit.lakes import TestLake
from tests.kit.log import Ddl, fold, seen, values

Name = tuple[str, str]
_READ: Final = 3


class WrongError(AssertionError):
    """The lake is not as the model is."""


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
        if found.keys() - left != expected.keys() - left:
            raise WrongError(f"tables: {sorted(found.keys() - left)}, not {sorted(expected.keys() - left)}")
        for name in sorted(found.keys() - left):
            shown = seen(found[name].schema(), found[name].scan())
            _same(f"table {name} at {upto}", shown, expected[name])
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
        if missing:
            raise WrongError(f"cuts that were published are gone: {sorted(missing)}")
        tables = _by_snapshot(lake)
        tagged = {ref.snapshot_id for each in tables.values() for n, ref in each.metadata.refs.items() if n != "main"}
        unknown = tagged - {row["snapshot_id"] for rows in cuts.values() for row in rows}
        if unknown and (unknown := unknown - _ever_published(lake)):
            raise WrongError(f"snapshots are tagged that no cut has or had: {unknown}")
        for upto, rows in cuts.items():
            expected = self.tables(upto)
            names = [(row["database"], row["table"]) for row in rows]
            if len(set(names)) < len(names) or set(names) - expected.keys():
                raise WrongError(f"the cut at {upto} has {names}, where there are {sorted(expected)}")
            for row, name in zip(rows, names, strict=True):
                place = (upto, name, row["snapshot_id"])
                if once_more or place not in self._cuts:
                    self._check_row(row, expected[name], tables, purged=purged)
                    self._cuts.add(place)
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
                    if not self._may_be_gone(name[0], upto):
                        raise
                    continue
                _same(f"{name} read at {upto}", (found.column_names, values(found)), ([c for c, _ in columns], rows))

    def _may_be_gone(self, database: str, upto: int) -> bool:
        """Rows that a change of the key moved are gone where the table was emptied later."""
        entries = [each for feed in self._feeds if feed.database == database for each in feed.entries]
        ddl = [(each.kind, each.commit_ts) for each in entries if isinstance(each, Ddl)]
        keyed = any(kind in ("rekey", "retype", "alter") and at <= upto for kind, at in ddl)
        return keyed and any(kind == "truncate" and at > upto for kind, at in ddl)

    def _check_row(self, row: dict[str, Any], wanted: Any, tables: dict[int, Any], *, purged: bool) -> None:
        what = f"{row['database']}.{row['table']} in the cut at {row['checkpoint_ts']}"
        if row["row_count"] != len(wanted[1]):
            raise WrongError(f"{what} has {row['row_count']} rows, not {len(wanted[1])}")
        snapshot = row["snapshot_id"]
        if snapshot in tables:
            if snapshot not in self._current:
                scan = tables[snapshot].scan(snapshot_id=snapshot)
                self._current[snapshot] = seen(scan.projection(), scan)
            _same(what, self._current[snapshot], wanted)
        elif snapshot is not None and not purged:
            raise WrongError(f"{what} is of a snapshot that no table has")


def _same(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise WrongError(f"{what}:\n  found    {found}\n  expected {expected}")


def _ever_published(lake: TestLake) -> set[int | None]:
    """The snapshots in all cuts, those that another cut of the same checkpoint-ts has replaced included."""
    checkpoints = lake.lake.catalog.load_table((f"cdc_{lake.name}", "checkpoints"))
    scans = [checkpoints.scan(snapshot_id=each.snapshot_id) for each in checkpoints.snapshots()]
    return {found for scan in scans for found in scan.to_arrow().column("snapshot_id").to_pylist()}


def _by_snapshot(lake: TestLake) -> dict[int, Any]:
    """The table of each snapshot, whatever its name is by now."""
    found: dict[int, Any] = {}
    for name in lake.metadata():
        if not name.startswith("cdc_"):
            table = lake.lake.catalog.load_table(tuple(name.split(".", 1)))
            found.update((snapshot.snapshot_id, table) for snapshot in table.snapshots())
    return found
