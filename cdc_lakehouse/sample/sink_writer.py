"""The files of TiCDC's storage sink (v8.5, new architecture, `file://`), written in its order and in its way.

A data file comes first, then the index file that names it, then `metadata` with the checkpoint-ts; a schema file comes
after the rows that are older than its DDL. Every file is written beside its place and renamed. Options: canal-json with
enable-tidb-extension (or what another encoder makes of a change), date-separator `day`, index numbers of 20 digits,
times in UTC.

A writer can go on where another stopped: it asks the directory for the last index number.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from cdc_lakehouse.changelog.schema import SchemaChange
from cdc_lakehouse.sample import go_json
from cdc_lakehouse.sample.canal_message import canal_message
from cdc_lakehouse.sample.row_change import RowChange
from cdc_lakehouse.sample.schema_document import schema_document, schema_path

LINE_END: Final = "\r\n"
METADATA: Final = "metadata"

_DATA_FILE: Final = re.compile(r"CDC(\d{20})\.\w+")

Encode = Callable[[RowChange, datetime.datetime], str]
"""A change as the lines of a data file, without the last line end; the time is that of the encoding."""


class SinkWriter:
    """Rows wait in memory until `flush`; `now` is the wall clock of the simulated server, with a zone."""

    def __init__(self, directory: Path, encode: Encode = canal_message, extension: str = "json") -> None:
        self._directory = directory
        self._encode = encode
        self._extension = extension
        self._waiting: dict[str, list[RowChange]] = {}
        self._last_index: dict[Path, int] = {}

    def write(self, changes: Iterable[RowChange]) -> None:
        for change in changes:
            name = change.table.name
            self._waiting.setdefault(f"{name.database}/{name.table}/{change.table.version}", []).append(change)

    def write_ddl(self, change: SchemaChange, now: datetime.datetime) -> None:
        self.flush(now)
        write_atomically(self._directory / schema_path(change), schema_document(change))

    def flush(self, now: datetime.datetime) -> int:
        """One data file, dated by `now`, for each table with rows waiting. How many files that were."""
        waiting, self._waiting = self._waiting, {}
        date = now.astimezone(datetime.UTC).date().isoformat()
        for table, changes in waiting.items():
            directory = self._directory / table / date
            index = self._next_index(directory)
            name = f"CDC{index:020d}.{self._extension}"
            lines = (self._encode(change, now) + LINE_END for change in changes)
            write_atomically(directory / name, "".join(lines))
            write_atomically(directory / "meta" / "CDC.index", f"{name}\n")
        return len(waiting)

    def checkpoint(self, checkpoint_ts: int) -> None:
        """Promise that every event at or below `checkpoint_ts` is in the files."""
        write_atomically(self._directory / METADATA, go_json.compact({"checkpoint-ts": checkpoint_ts}))

    def _next_index(self, directory: Path) -> int:
        if directory not in self._last_index:
            found = (_DATA_FILE.fullmatch(path.name) for path in directory.glob("CDC*[0-9].*"))
            self._last_index[directory] = max((int(match[1]) for match in found if match), default=0)
        self._last_index[directory] += 1
        return self._last_index[directory]


def write_atomically(path: Path, text: str) -> None:
    """As TiCDC writes local files: a reader sees the old content or the new one, or a name with `.tmp.` in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.tmp.{uuid.uuid4()}")
    part.write_bytes(text.encode())
    part.replace(path)
