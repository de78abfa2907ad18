"""The `schema_history` table: every DDL and every observation of a table's columns, with its effect.

A row is one version of a table; `number` is its place in the history. `columns` and `primary_key` are for people and
queries; `definition` is the version and `change` is the source's change, as JSON, from which the history can be
recomputed. One change of the source can make several versions (DROP DATABASE); the first of them holds it. Changes
that only describe a table again make no version: `repeats` of the version that they describe names them.

The `frontier` table: from where a feed's sink is listed. A row is one directory of a table.

It is written after the segments that were found, so a run that dies in between leaves an older frontier, with which
more is listed. Values of the whole frontier are properties of the table.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.changelog.schema import SchemaChange, TableVersion
from cdc_lakehouse.changelog.stored import from_json, to_json
from cdc_lakehouse.changelog.versions import SEEN
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.names import OLDEST_DATE, SETTINGS, UNCLEAR, WHOLE_AT
from cdc_lakehouse.lake.tables.small_table import ALL, SmallTable, schema_of
from cdc_lakehouse.sources.sink.listing import FileSequence, Frontier, KnownTable

_COLUMN: Final = pa.struct([
    ("id", pa.int32()), ("name", pa.string()), ("type", pa.string()), ("nullable", pa.bool_()), ("key", pa.bool_()),
    ("initial_default", pa.string()),
])  # fmt: skip
_REPEAT: Final = pa.struct([("commit_ts", pa.int64()), ("origin", pa.string()), ("change", pa.string())])

SCHEMA: Final = pa.schema([
    pa.field("number", pa.int64(), nullable=False),
    pa.field("commit_ts", pa.int64(), nullable=False),
    pa.field("database", pa.string(), nullable=False),
    pa.field("table", pa.string(), nullable=False),
    pa.field("incarnation", pa.string(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),
    pa.field("effect", pa.string(), nullable=False),
    pa.field("statement", pa.string(), nullable=False),
    pa.field("previous_database", pa.string()),
    pa.field("previous_table", pa.string()),
    pa.field("columns", pa.list_(_COLUMN)),
    pa.field("primary_key", pa.list_(pa.string())),
    pa.field("note", pa.string()),
    pa.field("hold", pa.string()),
    pa.field("origin", pa.string(), nullable=False),
    pa.field("applied_at", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("definition", pa.string(), nullable=False),
    pa.field("change", pa.string()),
    pa.field("repeats", pa.list_(_REPEAT)),
])  # fmt: skip

_READ: Final = ("number", "origin", "incarnation", "applied_at", "definition", "change", "repeats")
"""The columns that a run needs: the others are for people."""
_AS_THEY_ARE: Final = ("commit_ts", "incarnation", "kind", "effect", "note", "hold", "origin")
"""The columns that are called like their fields of a version."""


class SchemaHistory:
    """The schema history of one feed, read once and updated with what this object writes."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "schema_history", SCHEMA)
        self._changes: dict[str, SchemaChange] = {}
        self._applied: dict[tuple[str, str], datetime.datetime] = {}

    @cached_property
    def history(self) -> History:
        rows = sorted(self._table.read(columns=_READ), key=lambda row: row["number"])
        history = History(from_json(TableVersion, row["definition"]) for row in rows)
        for row in rows:
            self._applied[row["origin"], row["incarnation"]] = row["applied_at"]
            if row["change"] is not None:
                change = from_json(SchemaChange, row["change"])
                self._changes[change.origin] = change
        for row, version in zip(rows, history.versions, strict=True):
            change = self._changes[version.origin]
            for repeat in row["repeats"] or ():
                text = repeat["change"]
                change = _again(change, version, repeat) if text is None else from_json(SchemaChange, text)
                self._changes[change.origin] = change
                history.repeat(change.origin, change.commit_ts, version)
        return history

    @property
    def changes(self) -> Mapping[str, SchemaChange]:
        """The source's changes, by their origin."""
        _ = self.history
        return self._changes

    def held_by_rows(self, kinds: Collection[str], upto: int | None) -> set[str]:
        """Return the origins of changes by rows, of some kinds and up to a commit-ts, that hold their tables."""
        held = {version.origin for version in self.history.versions if version.effect == "hold"}
        of_rows = (self.changes[origin] for origin in held if self.changes[origin].kind in kinds)
        return {change.origin for change in of_rows if upto is None or change.commit_ts <= upto}

    def record(
        self, changes: Sequence[SchemaChange], now: datetime.datetime, without: Set[str] = frozenset()
    ) -> list[TableVersion]:
        """Add changes in one commit, and leave out those of the origins `without`; return the versions that they made.

        When a change belongs before recorded ones or differs from what was recorded, the history is recomputed from the
        source's changes. A row that makes no version, such as one with the same columns as its dump, or one that an
        earlier statement explains by now, is not recorded, and may be passed again.
        """
        if not changes and not without:
            return []
        known, new = self.history, {change.origin for change in changes}
        replaced = bool(without) or not new.isdisjoint(self._changes)
        late = replaced or any(known.is_late(change) for change in changes)
        self._changes |= {change.origin: change for change in changes}
        self._changes = {origin: change for origin, change in self._changes.items() if origin not in without}
        if late:
            history = History()
            everything = history.apply(self._changes.values())
            made = [version for version in everything if version.origin in new]
            if not replaced and everything == known.versions and history.repeats == known.repeats:
                return []
            self.history = history
        else:
            before, repeats = len(known.versions), len(known.repeats)
            made = known.apply(changes)
            if len(known.repeats) == repeats:
                if made:
                    self._table.write(self._rows(made, before, new, now))
                return made
        self._table.write(self._rows(self.history.versions, 0, set(self._changes), now), replacing=ALL)
        return made

    def _rows(
        self, versions: Sequence[TableVersion], before: int, origins: set[str], now: datetime.datetime
    ) -> pa.Table:
        repeats: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        last: dict[tuple[str, str], SchemaChange] = {}
        for origin, (_, version) in self.history.repeats.items():
            change, place = self._changes[origin], (version.origin, version.incarnation)
            stored = {"commit_ts": change.commit_ts, "origin": origin, "change": None}
            if _again(last.get(place, self._changes[version.origin]), version, stored) != change:
                stored["change"] = to_json(change)
            last[place] = change
            repeats[place].append(stored)
        rows: list[dict[str, Any]] = []
        for number, version in enumerate(versions, start=before + 1):
            change = self._changes[version.origin] if version.origin in origins else None
            origins.discard(version.origin)
            previous, place = version.previous_name, (version.origin, version.incarnation)
            rows.append({
                **{name: getattr(version, name) for name in _AS_THEY_ARE},
                "number": number,
                "database": version.name.database,
                "table": version.name.table,
                "statement": version.query,
                "previous_database": None if previous is None else previous.database,
                "previous_table": None if previous is None else previous.table,
                "columns": [
                    {"id": each.id, "name": each.name, "type": type_text(each.type), "nullable": each.nullable,
                     "key": each.id in version.key, "initial_default": each.initial}
                    for each in version.columns
                ],
                "primary_key": list(version.key_names),
                "applied_at": self._applied.setdefault(place, now),
                "definition": to_json(version),
                "change": None if change is None else to_json(change),
                "repeats": repeats[place],
            })  # fmt: skip
        return pa.Table.from_pylist(rows, SCHEMA)


def _again(before: SchemaChange, version: TableVersion, stored: Mapping[str, Any]) -> SchemaChange:
    """Return the change of a repeat that shows the same columns as the change `before` it."""
    name = version.name
    return SchemaChange(
        stored["commit_ts"], name.database, name.table, SEEN, "", before.columns, stored["origin"], kind="columns"
    )


_SEQUENCE: Final = pa.struct([(field.name, field.type) for field in schema_of(FileSequence)])
FRONTIER_SCHEMA: Final = schema_of(
    KnownTable, irregular=pa.bool_(), places=pa.list_(pa.string()), sequences=pa.list_(_SEQUENCE)
)


class Frontiers:
    """The frontier of one feed."""

    def __init__(self, lake: Lake, feed: str) -> None:
        self._table = SmallTable(lake, feed, "frontier", FRONTIER_SCHEMA)

    def last(self) -> Frontier | None:
        """Return the newest frontier; None before the first."""
        properties = self._table.properties()
        if SETTINGS not in properties:
            return None
        tables: list[KnownTable] = []
        for row in sorted(self._table.read(), key=lambda row: row["directory"]):
            sequences = tuple(FileSequence(**each) for each in row["sequences"])
            tables.append(KnownTable(**{**row, "places": tuple(row["places"]), "sequences": sequences}))
        return Frontier(
            tuple(tables),
            properties[OLDEST_DATE] or None,
            properties[SETTINGS],
            datetime.datetime.fromisoformat(properties[WHOLE_AT]),
            properties[UNCLEAR] == "true",
        )

    def write(self, frontier: Frontier) -> None:
        """Replace the previous frontier, in one commit."""
        properties = {
            SETTINGS: frontier.settings,
            WHOLE_AT: frontier.whole_at.isoformat(),
            UNCLEAR: str(frontier.unclear).lower(),
            OLDEST_DATE: frontier.oldest_date or "",
        }
        self._table.write(frontier.tables, replacing=ALL, properties=properties)
