"""Which tables cannot go on, and why. Worked out from the lake on every run: what is mended is no longer held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.decoders.problems import BAD_VALUE
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import FILE, Segment, index_gaps, table_versions
from cdc_lakehouse.pipeline.missing_files import MISSING_FILE
from cdc_lakehouse.pipeline.row_keys import key_columns
from cdc_lakehouse.pipeline.run import FeedRun

_SHOWN: Final = 5


def find_holds(run: FeedRun, lives: Mapping[str, Incarnation], checkpoint_ts: int) -> dict[str, str]:
    """Reason by incarnation, and by the bare name of a table that has no history."""
    reasons: dict[str, list[str]] = defaultdict(list)
    directory = _Directory(lives)
    for id, life in lives.items():
        _of_history(run.feed, life, reasons[id])
    rows = run.quarantine.open()
    segments = run.segments.find(row.segment for row in rows)
    for row in rows:
        policy = run.feed.policy.index_gap if row.error_class == MISSING_FILE else run.feed.policy.quarantine
        if row.error_class != BAD_VALUE and policy == "hold":
            for id in directory.of_quarantined(row, segments):
                reasons[id].append(_words(row))
    _of_segments(run, directory, checkpoint_ts, reasons)
    return {id: _joined(found) for id, found in reasons.items() if found}


def _of_history(feed: FeedConfig, life: Incarnation, reasons: list[str]) -> None:
    for version in life.versions:
        if version.hold is not None:
            reasons += [f"{version.query or version.kind}: {version.hold}"]
    if life.dropped_ts is None and not key_columns(feed, life.last):
        reasons.append(
            f"the table has no primary key and no NOT NULL unique key that the log shows: set tables.settings."
            f'"{life.last.name}".primary_key in the configuration'
        )


def _of_segments(run: FeedRun, directory: _Directory, checkpoint_ts: int, reasons: dict[str, list[str]]) -> None:
    for place, name, version in table_versions(run.segments.rows):
        if version <= checkpoint_ts and directory.of_version(name, version) is None:
            for id in directory.named(name):
                reasons[id].append(f"the schema file of version {version} is missing ({place})")
    if run.feed.policy.index_gap == "hold":
        for gap in index_gaps(run.segments.rows):
            name = TableName(gap.database, gap.table)
            found = directory.of_version(name, gap.table_version)
            numbers = ", ".join(str(number) for number in gap.missing[:_SHOWN])
            for id in directory.named(name) if found is None else [found]:
                reasons[id].append(f"data files are missing: {gap} has no file {numbers}")


class _Directory:
    """From what a path says to the incarnation that is meant."""

    def __init__(self, lives: Mapping[str, Incarnation]) -> None:
        self._lives = lives
        self._versions = {(v.name, v.commit_ts): life.id for life in lives.values() for v in life.versions}
        self._names: dict[TableName, list[str]] = defaultdict(list)
        for life in lives.values():
            for name in life.names:
                self._names[name].append(life.id)

    def of_version(self, name: TableName, commit_ts: int) -> str | None:
        return self._versions.get((name, commit_ts))

    def named(self, name: TableName) -> list[str]:
        """The live tables of that name, else the last ones that had it, else the name itself."""
        ids = self._names.get(name, [])
        live = [id for id in ids if self._lives[id].dropped_ts is None and self._lives[id].last.name == name]
        return live or ids[-1:] or [name.identity]

    def of_quarantined(self, row: Quarantined, segments: Mapping[str, Segment]) -> list[str]:
        segment = segments.get(row.segment)
        if segment is not None and segment.kind == FILE:
            name = TableName(segment.database or "", segment.table or "")
            if (found := self.of_version(name, segment.table_version or 0)) is not None:
                return [found]
        if row.database is None:
            return list(self._lives)
        if row.table is None:
            return [id for id, life in self._lives.items() if life.last.name.database == row.database]
        return self.named(TableName(row.database, row.table))


def _words(row: Quarantined) -> str:
    line = "" if row.line is None else f" line {row.line}"
    return f"{row.segment}{line}: {row.message}"


def _joined(reasons: list[str]) -> str:
    distinct = list(dict.fromkeys(reasons))
    more = len(distinct) - _SHOWN
    return "; ".join(distinct[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
