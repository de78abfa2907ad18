"""Detection of the options that a storage sink was written with, from the paths of its files."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.config import DateSeparator, Protocol
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, UnreadableDirectory
from cdc_lakehouse.sources.sink.paths import METADATA, schema_file_at

LOOKED_AT: Final = 50_000
"""The maximum number of objects that are examined."""
_SAMPLES: Final = 8
DEFAULT_SEPARATOR: Final[DateSeparator] = "day"
"""TiCDC's own default, for a sink without data files."""

_DATA_FILE: Final = re.compile(
    r"(?P<table>.+?)/\d{1,20}/(?:(?P<first>\d{1,20})/)??(?:(?P<date>\d{4}(?:-\d\d){0,2})/)?"
    r"CDC(?:_\d+_)?\d{6,20}\.(?P<extension>\w+)"
)
_SEPARATORS: Final[dict[int, DateSeparator]] = {0: "none", 4: "year", 7: "month", 10: "day"}


@dataclass(frozen=True)
class DetectedSink:
    """The findings about a sink from its files; None where no data file shows it.

    `tables`: `(database, table)`, none where directories are named by table ids. `first_date`: the first date
    directory. `samples`: the largest data files, each with the directory of its table. `whole`: whether the whole store
    was examined.
    """

    protocol: Protocol | None
    separator: DateSeparator | None
    table_ids: bool
    tables: frozenset[tuple[str, str]]
    first_date: str | None
    samples: tuple[tuple[StoredObject, str], ...]
    whole: bool


def detect_sink(store: ObjectStore, extensions: Mapping[Protocol, str]) -> DetectedSink:
    """Examine the paths of a store. `extensions` are those of each protocol's data files. Raises as `ObjectStore.list`
    does."""
    objects = list(itertools.islice(store.list(), LOOKED_AT + 1))
    files = [found for found in objects if isinstance(found, StoredObject)]
    return _of_paths(files, extensions, len(objects) <= LOOKED_AT)


def roots_below(store: ObjectStore) -> list[str]:
    """Return directories below the store's root that have a file `metadata`, as sinks do: sorted, the shallowest
    first."""
    found: Iterable[StoredObject | UnreadableDirectory] = itertools.islice(store.list(), LOOKED_AT)
    paths = (each.path for each in found if each.path.endswith(f"/{METADATA}"))
    return sorted((path.removesuffix(f"/{METADATA}") for path in paths), key=lambda root: (root.count("/"), root))


def _of_paths(objects: Iterable[StoredObject], extensions: Mapping[Protocol, str], whole: bool) -> DetectedSink:
    known: dict[str, Protocol] = {extension: protocol for protocol, extension in extensions.items()}
    protocols: Counter[Protocol] = Counter()
    separators: Counter[DateSeparator] = Counter()
    directories: set[str] = set()
    dates: set[str] = set()
    data: list[tuple[StoredObject, str]] = []
    for found in objects:
        if (schema := schema_file_at(found.path)) is not None:
            directories.add(schema[0])
            continue
        match = _DATA_FILE.fullmatch(found.path)
        if match is None or match["extension"] not in known:
            continue
        date = match["date"] or ""
        protocols[known[match["extension"]]] += 1
        separators[_SEPARATORS[len(date)]] += 1
        directories.add(match["table"])
        dates |= {date} - {""}
        data.append((found, match["table"]))
    samples = tuple(sorted(data, key=lambda each: (-each[0].size, each[0].path))[:_SAMPLES])
    table_ids = bool(samples) and "/" not in samples[0][1]
    tables = frozenset((database, table) for database, slash, table in (d.partition("/") for d in directories) if slash)
    return DetectedSink(
        protocol=protocols.most_common(1)[0][0] if protocols else None,
        separator=separators.most_common(1)[0][0] if separators else None,
        table_ids=table_ids,
        tables=frozenset() if table_ids else tables,
        first_date=min(dates, default=None),
        samples=samples,
        whole=whole,
    )
