"""The lake compared with the model: the tables, every cut that is published, and that each event is there once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from tests.kit.lakes import TestLake
from tests.model.changefeed import DATABASE
from tests.model.fold import Entry, fold, seen

Name = tuple[str, str]


class WrongError(AssertionError):
    """The lake is not as the model is."""


def check_tables(lake: TestLake, entries: Sequence[Entry], upto: int, except_for: Collection[str] = ()) -> None:
    """The live tables are as of `upto`, but for some (`database.table`)."""
    expected = typed(entries, upto)
    found = lake.tables()
    left = {name for name in {*expected, *found} if ".".join(name) in except_for}
    if found.keys() - left != expected.keys() - left:
        raise WrongError(f"tables: {sorted(found.keys() - left)}, not {sorted(expected.keys() - left)}")
    for name in found.keys() - left:
        _same(f"table {name} at {upto}", seen(found[name].schema(), found[name].scan()), expected[name])


def check_cuts(lake: TestLake, entries: Sequence[Entry], *, purged: bool = False) -> int:
    """Every cut that is published shows, by its snapshots, what the model has at its checkpoint-ts; gives how many
    cuts. `purged`: a table may be gone with its snapshots."""
    cuts: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in lake.machinery("checkpoints"):
        cuts[row["checkpoint_ts"]].append(row)
    tables = _by_snapshot(lake)
    for upto, rows in cuts.items():
        expected = typed(entries, upto)
        names = [(row["database"], row["table"]) for row in rows]
        if len(set(names)) < len(names) or set(names) - expected.keys():
            raise WrongError(f"the cut at {upto} has {names}, where there are {sorted(expected)}")
        for row, name in zip(rows, names, strict=True):
            snapshot, wanted = row["snapshot_id"], expected[name]
            if row["row_count"] != len(wanted[1]):
                raise WrongError(f"the cut at {upto} has {row['row_count']} rows of {name}, not {len(wanted[1])}")
            if snapshot is None:
                continue
            if snapshot not in tables:
                if not purged:
                    raise WrongError(f"the cut at {upto} names a snapshot of {name} that no table has")
                continue
            scan = tables[snapshot].scan(snapshot_id=snapshot)
            _same(f"{name} in the cut at {upto}", seen(scan.projection(), scan), wanted)
    return len(cuts)


def check_events(lake: TestLake) -> None:
    """Each change of each segment is there once, and as many as the segments say."""
    events = Counter((each["segment"], each["line"], each["op"]) for each in lake.machinery("events"))
    twice = [place for place, count in events.items() if count > 1]
    if twice:
        raise WrongError(f"events that are there twice: {twice}")
    said = {row["segment"]: row["events"] for row in lake.machinery("segments") if row["events"]}
    found = lake.events_by_segment()
    # Rows that an exchange moves are of segments of their own.
    wrong = {name: (count, found.get(name)) for name, count in said.items() if found.get(name) != count}
    if wrong:
        raise WrongError(f"segments with other numbers of events than they say: {wrong}")


def typed(entries: Sequence[Entry], upto: int) -> dict[Name, Any]:
    return {(DATABASE, name): table.typed() for name, table in fold(entries, upto).items()}


def _same(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise WrongError(f"{what}:\n  found    {found}\n  expected {expected}")


def _by_snapshot(lake: TestLake) -> dict[int, Any]:
    """The table of each snapshot, whatever its name is by now."""
    found: dict[int, Any] = {}
    for name in lake.metadata():
        if not name.startswith("cdc_"):
            table = lake.lake.catalog.load_table(tuple(name.split(".", 1)))
            found.update((snapshot.snapshot_id, table) for snapshot in table.snapshots())
    return found
