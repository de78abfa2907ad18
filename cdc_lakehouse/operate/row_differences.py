"""Find how the rows of one key differ between the source and the lake, from rows of both in the same order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Literal

from cdc_lakehouse.changelog.mysql_types import ColumnType

Kind = Literal["missing", "extra", "different"]
"""A row that only the source has, one that only the lake has, or one with different values."""
Values = Mapping[str, Any]
"""Texts by column; for binaries, their bytes."""
Row = tuple[Any, ...]
"""The MD5 of the key's text, then a text for each column, those of the key first."""

MOST_KEYS: Final = 10_000
"""The number of keys for which the way they differ is kept."""


@dataclass(frozen=True)
class Difference:
    """A key whose rows differ. `columns` are the ones that differ. `source` and `lake` are the rows, None when missing.
    `correct` is the source's row of the key, even when the lake has it and another one."""

    kind: Kind
    key: Values
    columns: tuple[str, ...] = ()
    source: Values | None = None
    lake: Values | None = None
    correct: Values | None = None


@dataclass(frozen=True)
class ComparedColumns:
    """The columns of rows by name, with their types in the source; the first `key_count` are the key's."""

    names: tuple[str, ...]
    types: tuple[ColumnType, ...]
    key_count: int

    def differing(self, source: Row, lake: Row) -> tuple[str, ...]:
        """Return the columns whose values differ."""
        columns = zip(self.names, self.types, source[1:], lake[1:], strict=True)
        return tuple(name for name, type, theirs, ours in columns if not _is_same(type, theirs, ours))


@dataclass
class Differences:
    """The differences: counts of keys by kind; a digest of how they differ, by the MD5 of the key's text, for at most
    `MOST_KEYS` plus one; and the first `limit` of them in full."""

    columns: ComparedColumns
    limit: int
    counts: dict[Kind, int] = field(default_factory=lambda: {"missing": 0, "extra": 0, "different": 0})
    keys: dict[str, bytes] = field(default_factory=dict[str, bytes])
    shown: list[Difference] = field(default_factory=list[Difference])

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def compare(self, source: Iterable[Row], lake: Iterable[Row], among: Collection[str] | None) -> None:
        """Compare the rows of both sides, which are sorted by MD5. `among` limits the keys that are compared."""
        for key, theirs, ours in _merged(source, lake):
            if among is None or key in among:
                self._compare(key, theirs, ours)

    def _compare(self, key: str, source: list[Row], lake: list[Row]) -> None:
        # There is one row on each side, unless something is wrong.
        correct = source[0] if source else None
        for theirs in list(source):
            same = next((ours for ours in lake if not self.columns.differing(theirs, ours)), None)
            if same is not None:
                source.remove(theirs)
                lake.remove(same)
        if not source and not lake:
            return
        self.counts["different" if source and lake else "missing" if source else "extra"] += 1
        if len(self.keys) <= MOST_KEYS:
            self.keys[key] = hashlib.md5(repr((source, lake)).encode(), usedforsecurity=False).digest()
        if len(self.shown) < self.limit:
            self.shown.append(self._difference(source[0] if source else None, lake[0] if lake else None, correct))

    def _difference(self, source: Row | None, lake: Row | None, correct: Row | None) -> Difference:
        rows = [
            None if row is None else dict(zip(self.columns.names, row[1:], strict=True))
            for row in (source, lake, correct)
        ]
        known = rows[0] or rows[1] or {}
        key = {name: known[name] for name in self.columns.names[: self.columns.key_count]}
        if source is None or lake is None:
            return Difference("missing" if lake is None else "extra", key, (), *rows)
        return Difference("different", key, self.columns.differing(source, lake), *rows)


def _is_same(type: ColumnType, source: Any, lake: Any) -> bool:
    return source == lake or (type.name == "json" and None not in (source, lake) and _is_same_json(source, lake))


def _is_same_json(one: str, other: str) -> bool:
    """Whether two JSON texts have the same value; the order of members and the notation of numbers are ignored."""
    try:
        return _comparable(json.loads(one)) == _comparable(json.loads(other))
    except ValueError:
        return False


def _comparable(value: Any) -> Any:
    match value:
        case dict():
            return {name: _comparable(member) for name, member in value.items()}
        case list():
            return [_comparable(member) for member in value]
        case bool():
            return ("boolean", value)  # Python treats it as a number.
        case _:
            return value


def _merged(source: Iterable[Row], lake: Iterable[Row]) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """Yield, for each key of either side, the rows of both."""
    theirs_left, ours_left = _by_key(source), _by_key(lake)
    theirs, ours = next(theirs_left, None), next(ours_left, None)
    while theirs is not None or ours is not None:
        key = min(side[0] for side in (theirs, ours) if side is not None)
        found: list[Row] = []
        own: list[Row] = []
        if theirs is not None and theirs[0] == key:
            found, theirs = theirs[1], next(theirs_left, None)
        if ours is not None and ours[0] == key:
            own, ours = ours[1], next(ours_left, None)
        yield key, found, own


def _by_key(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    return ((key, list(own)) for key, own in groupby(rows, key=lambda row: row[0]))
