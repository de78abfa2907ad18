"""Find which columns the values of CSV rows belong to.

The values of a CSV row are identified by position only, and TiCDC omits virtual generated columns and the hidden
columns of expression indexes, which its schema files list like all others. The columns are determined, in this order,
by the file's header, when it has as many names as the rows have values; by the number of values, when it is that of all
columns; by the configuration; by the DDL statements of the log. When none of these decides, nothing is guessed: the
files wait, and their table with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders.files.csv_format import Layout
from cdc_lakehouse.decoders.files.csv_rows import first_row, header_names
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.segments import DECODED, Segment
from cdc_lakehouse.pipeline.context import FeedContext
from cdc_lakehouse.pipeline.sink_schemas import SchemaFiles
from cdc_lakehouse.sources.sink.paths import table_directory

_HEAD: Final = 1024 * 1024
"""Bytes of a file in which its first row is searched, before the whole file is."""
_WHOLE: Final = 1024 * 1024 * 1024
_AT_ONCE: Final = 16
_FILES_READ: Final = 5
"""Files of a table's version whose first row is read, until one fits: a single broken row proves nothing."""
_SMALLEST_TSO: Final = 1 << 40


@dataclass
class Layouts:
    """The layouts of segments, or the reasons why they have none."""

    found: dict[str, Layout] = field(default_factory=dict[str, Layout])
    reasons: dict[str, str] = field(default_factory=dict[str, str])


def find_layouts(run: FeedContext, options: CsvOptions, files: SchemaFiles, segments: Sequence[Segment]) -> Layouts:
    """Find the layouts of CSV segments. Raises `SourceError` when no row of a new feed fits the configured options."""
    layouts = Layouts()
    groups = _groups(segments)
    mistakes: dict[str, str] = {}
    changes = {place: files.of(*place) for place in groups}
    inferences = {
        place: _ColumnInference(options, change, _candidates(run, files, change))
        for place, change in changes.items()
        if change is not None
    }
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # In a store, each read is a request.
        tried = pool.map(
            lambda place: inferences[place].layout_of(_first_rows(run, options, groups[place])), inferences
        )
        fitting = dict(zip(inferences, tried, strict=True))
    for (directory, version), group in groups.items():
        change, inference = changes[directory, version], inferences.get((directory, version))
        if change is None or inference is None:
            reason = f"the schema file of version {version} is missing or cannot be used, so its rows cannot be read"
            layouts.reasons |= {segment.segment: reason for segment in group}
            continue
        layout = fitting[directory, version]
        if inference.mistake is not None:
            mistakes[group[0].segment] = inference.mistake
        if layout is None:
            layouts.reasons |= {segment.segment: inference.reason for segment in group}
            continue
        layouts.found |= {segment.segment: layout for segment in group}
        if inference.by_header:
            missing = {column.name for column in change.columns} - set(layout.names)
            files.mark_absent_from_rows(directory, version, missing)
    fresh = DECODED not in run.segments.rows["state"].unique().to_pylist()
    if fresh and len(mistakes) == len(groups) > 0:
        segment, mistake = min(mistakes.items())
        raise SourceError(
            mistake,
            feed=run.feed.name,
            segment=segment,
            advice="correct source.csv in the configuration to what the changefeed has",
        )
    return layouts


def _groups(segments: Sequence[Segment]) -> Mapping[tuple[str, int], list[Segment]]:
    groups: dict[tuple[str, int], list[Segment]] = {}
    for segment in segments:
        assert segment.table_version is not None, segment.segment
        directory = table_directory(segment.segment, segment.table_version)
        groups.setdefault((directory, segment.table_version), []).append(segment)
    return groups


def _candidates(run: FeedContext, files: SchemaFiles, change: SchemaChange) -> Iterator[tuple[str, ...]]:
    """Yield the columns that rows may have, the most certain first."""
    names = tuple(column.name for column in change.columns)
    yield names
    configured = run.feed.settings_of(change.database, change.table).virtual_columns
    if configured is not None:
        virtual = {name.lower() for name in configured}
        yield tuple(name for name in names if name.lower() not in virtual and not _is_hidden(name))
    version = files.versions.get((TableName(change.database, change.table), change.commit_ts))
    if version is not None:
        carried = {column.name for column in version.carried}
        yield tuple(name for name in names if name in carried)
    yield tuple(name for name in names if not _is_hidden(name))


def _is_hidden(name: str) -> bool:
    return name.lower().startswith("_v$_")


@dataclass(frozen=True)
class _FirstRow:
    """The start of a file: the names of its header, and the fields of its first row; None when there is no header or no
    record is a row."""

    names: Sequence[str] | None
    fields: Sequence[str | None] | None


def _first_rows(run: FeedContext, options: CsvOptions, group: Sequence[Segment]) -> Iterator[_FirstRow]:
    for segment in [segment for segment in group if segment.size][:_FILES_READ]:
        for size in (_HEAD, _WHOLE):
            head = run.raw.head(segment, size)
            fields = first_row(head, options, whole=len(head) < size)
            if fields is not None or len(head) < size:
                yield _FirstRow(header_names(head, options), fields)
                break


class _ColumnInference:
    """Finds the layout that a first row fits, or the reason why there is none; `mistake` is a reason that an option of
    the configuration causes."""

    def __init__(self, options: CsvOptions, change: SchemaChange, candidates: Iterator[tuple[str, ...]]) -> None:
        self._options = options
        self._all = tuple(column.name for column in change.columns)
        self._table = f"{change.database}.{change.table}"
        self._version = change.commit_ts
        self._candidates = candidates
        self._leading = 4 + options.output_old_value + options.output_handle_key
        self.reason = ""
        self.mistake: str | None = None
        self.by_header = False

    def layout_of(self, rows: Iterator[_FirstRow]) -> Layout | None:
        candidates: list[tuple[str, ...]] | None = None
        for row in rows:
            if row.fields is None:
                # Its records are reported one by one, unless it is the same with all files.
                self.mistake = "no record is csv by the options delimiter and quote"
                continue
            self.mistake = self._mistake_in(row.fields)
            if self.mistake is not None:
                self.reason = self.mistake
                continue
            values = len(row.fields) - self._leading
            if row.names is not None and len(row.names) - self._leading == values:
                self.by_header = True
                return self._layout(row.names[self._leading :])
            candidates = candidates if candidates is not None else list(self._candidates)
            for names in candidates:
                if len(names) == values:
                    return self._layout(names)
            self.reason = self._nothing_fits(values)
        return None if self.reason else self._layout(self._all)

    def _layout(self, names: Sequence[str]) -> Layout:
        return Layout(tuple(names), self._options.output_handle_key)

    def _mistake_in(self, fields: Sequence[str | None]) -> str | None:
        """Return the contradiction between the first row and an option; None when there is none."""
        if fields[0] not in ("I", "U", "D") or len(fields) < 4:
            begin = str(fields[0])[:20]
            return f"a row begins with {begin!r}, which is no operation by the options delimiter and quote"
        ts, beyond = fields[3] or "", fields[4] if len(fields) > 4 else None
        if not (ts.isdecimal() and int(ts) >= _SMALLEST_TSO):
            return (
                "the rows have no commit-ts: set include-commit-ts = true under [sink.csv] in the changefeed, and "
                "start it afresh"
            )
        if self._options.output_old_value and beyond not in ("true", "false"):
            return "the rows do not say is-update: the changefeed has not set output-old-value, source.csv has"
        extra = len(fields) - self._leading - len(self._all)
        if not self._options.output_old_value and beyond in ("true", "false") and extra == 1:
            return "the rows say is-update: the changefeed has set output-old-value, source.csv has not"
        if not self._options.output_handle_key and extra == 1:
            return "the rows have one value too many: see whether the changefeed has set output-handle-key"
        return None

    def _nothing_fits(self, values: int) -> str:
        total = len(self._all)
        counts = f"the rows have {values} values, the schema file of version {self._version} {total} columns"
        if values >= total:
            return counts
        return (
            f"{counts}, and nothing in the log says which are virtual generated columns, which TiCDC does not write: "
            f'name them in tables.settings."{self._table}".virtual_columns'
        )
