"""Tags on a current-state table, by which the states that earlier cuts showed stay readable for a while.

A commit tags the state that it replaces. By then the cut that shows that state is published, and a tag never names an
unpublished state. A state that no cut has shown gets no tag. So a tag needs no commit of its own, and a table's newest
state needs no tag.

- `cut_<checkpoint_ts>`: the state since this cut. It is valid until the table's next such tag, so a later cut shows the
  newest of these at or below it, or the table's current state if that is older than the cut.
- `day_<YYYY-MM-DD>`: the state at the end of a day, by the checkpoint's time in UTC. A table that has not changed since
  has none: its current state is the same.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from cdc_lakehouse.changelog.positions import commit_time, tso
from cdc_lakehouse.config import CutsConfig
from cdc_lakehouse.lake.properties import APPLIED_TS, CHECKPOINT_TS, summary_of
from cdc_lakehouse.lake.table_operations import TagChanges

_CUT: Final = re.compile(r"cut_(\d+)")
_DAY: Final = re.compile(r"day_(\d{4}-\d\d-\d\d)")
_ONE_DAY: Final = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ShownState:
    """A state of a table that a cut shows: its snapshot, and the checkpoint-ts of the first cut that showed it."""

    snapshot_id: int
    checkpoint_ts: int


def cut_tag(checkpoint_ts: int) -> str:
    return f"cut_{checkpoint_ts}"


def day_tag(day: datetime.date) -> str:
    return f"day_{day.isoformat()}"


def cut_of_tag(name: str) -> int | None:
    """Return the checkpoint-ts in a tag's name; None for other tags."""
    found = _CUT.fullmatch(name)
    return None if found is None else int(found[1])


def day_of_tag(name: str) -> datetime.date | None:
    """Return the day in a tag's name; None for other tags and for invalid dates."""
    found = _DAY.fullmatch(name)
    try:
        return None if found is None else datetime.date.fromisoformat(found[1])
    except ValueError:
        return None


def end_of_day(day: datetime.date) -> int:
    """Return the greatest commit-ts of a day in UTC."""
    following = datetime.datetime.combine(day + _ONE_DAY, datetime.time(), datetime.UTC)
    return tso(following) - 1


def tags_of(table: Table) -> dict[str, int]:
    """Return the snapshots of all tags of the table, whoever made them."""
    refs = table.metadata.refs.items()
    return {name: ref.snapshot_id for name, ref in refs if ref.snapshot_ref_type == SnapshotRefType.TAG}


def shown_state(table: Table, published: Collection[int]) -> ShownState | None:
    """Return the newest published state of the table: `published` are the snapshots that cuts name. None when there is
    none, or when it has expired."""
    unpublished = False
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.snapshot_id in published:
            break
        unpublished = unpublished or _checkpoint_ts(snapshot) is not None
    else:
        return None
    # A compacted table shows the rows of the preceding commit of a run.
    of_runs = map(_checkpoint_ts, ancestors_of(snapshot, table.metadata))
    since = next((found for found in of_runs if found is not None), None)
    if since is None and not unpublished:
        since = int(table.properties[APPLIED_TS])
    return None if since is None else ShownState(snapshot.snapshot_id, since)


def _checkpoint_ts(snapshot: Snapshot) -> int | None:
    summary = summary_of(snapshot)
    return int(summary[CHECKPOINT_TS]) if CHECKPOINT_TS in summary else None


def plan_tags(
    tags: Mapping[str, int], replaced: ShownState | None, checkpoint_ts: int, config: CutsConfig
) -> TagChanges:
    """Plan the tags for a commit at `checkpoint_ts` that replaces a state, including the removal of expired tags."""
    wanted: dict[str, int] = {}
    today = commit_time(checkpoint_ts).date()
    oldest_day = today - config.keep_daily_days * _ONE_DAY
    # At the same checkpoint-ts the new cut replaces the previous one.
    if replaced is not None and replaced.checkpoint_ts < checkpoint_ts:
        if config.keep_all_hours:
            wanted[cut_tag(replaced.checkpoint_ts)] = replaced.snapshot_id
        day = max(commit_time(replaced.checkpoint_ts).date(), oldest_day)
        while day < today:
            wanted[day_tag(day)] = replaced.snapshot_id
            day += _ONE_DAY
    window = tso(commit_time(checkpoint_ts) - datetime.timedelta(hours=config.keep_all_hours))
    cuts = sorted(found for name in {*tags, *wanted} if (found := cut_of_tag(name)) is not None)
    # Each state lasts until the next; this commit ends the last one.
    ends = zip(cuts, [*cuts, checkpoint_ts][1:], strict=True)
    over = {cut_tag(cut) for cut, until in ends if until <= window or not config.keep_all_hours}
    over |= {name for name in tags if (day := day_of_tag(name)) is not None and day < oldest_day}
    return TagChanges(
        {name: id for name, id in wanted.items() if name not in tags and name not in over},
        {name: id for name, id in wanted.items() if name not in over and tags.get(name, id) != id},
        tuple(sorted(over & tags.keys())),
    )
