"""A sink that a changefeed goes on writing to, as far as its paths and schema files go: data files hold nothing."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cdc_lakehouse.config import DateSeparator
from tests.boundaries.change_log import SchemaChange, tso, utc_now
from tests.boundaries.sample import sink_writer
from tests.boundaries.sources import LocalStore, StoredObject, UnreadableDirectory
from tests.kit.hand_sinks import CREATE, ID, RENAME

FORMS = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y", "none": ""}
FIRST_DAY = datetime.date(2026, 1, 30)
_ADD_INDEX = 7


class CountingStore(LocalStore):
    """Counts requests, and the objects that they gave."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests = 0
        self.objects = 0
        self.listed: list[tuple[str, str | None]] = []

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[StoredObject | UnreadableDirectory]:
        self.requests += 1
        self.listed.append((prefix, after))
        for found in super().list(prefix, after):
            self.objects += 1
            yield found

    def directories(self, prefix: str = "") -> tuple[str, ...]:
        self.requests += 1
        return super().directories(prefix)


@dataclass
class Stream:
    """One dispatcher: its part of a table, and the version that it writes under."""

    version: int
    partition: int | None = None
    dispatcher: str | None = None
    last: Path | None = None


@dataclass
class SinkTable:
    directory: str
    streams: list[Stream] = field(default_factory=list[Stream])


class ChangingSink:
    """What happens, happens to the first table and to its first stream unless it is said to which. Of several sinks in
    one directory each has a clock of its own."""

    def __init__(self, root: Path, separator: DateSeparator = "day", clock: int = 466_000_000_000_000_000) -> None:
        self.root = root
        self.separator = separator
        self.day = FIRST_DAY
        self.tables: list[SinkTable] = []
        self._clock = clock
        root.mkdir(parents=True, exist_ok=True)
        # Later than all files of a test.
        checkpoint = tso(utc_now() + datetime.timedelta(hours=1))
        (root / "metadata").write_text(f'{{"checkpoint-ts": {checkpoint}}}')

    def tick(self) -> int:
        self._clock += 1_000
        return self._clock

    def days(self, number: int) -> None:
        self.day += datetime.timedelta(days=number)

    def create(self, directory: str, *, partitions: int = 0, dispatchers: int = 0) -> SinkTable:
        """A new table, or one that is called by an old name again."""
        version = self.schema(directory, CREATE, "CREATE TABLE `{}` (`id` BIGINT PRIMARY KEY)")
        parts = [100 + number for number in range(partitions)] or [None]
        nodes = [str(10 ** (20 - number)) for number in range(dispatchers)] or [None]
        table = SinkTable(directory, [Stream(version, part, node) for part in parts for node in nodes])
        self.tables = [each for each in self.tables if each.directory != directory] + [table]
        return table

    def schema(self, directory: str, action: int = 0, query: str = "") -> int:
        """A schema file; without a query one that a restart or a move writes. Without a table a database's."""
        version = self.tick()
        database, _, table = directory.partition("/")
        query = query.format(table.replace("`", "``"))
        change = SchemaChange(version, database, table, action, query, (ID,) if table else (), "")
        self.write(*sink_writer.schema_file(change))
        return version

    def alter(self, table: SinkTable | None = None, action: int = _ADD_INDEX, query: str = "") -> None:
        table = table or self.tables[0]
        version = self.schema(table.directory, action, query or "ALTER TABLE `{}` ADD INDEX (`id`)")
        for stream in table.streams:
            stream.version = version

    def move(self, table: SinkTable | None = None, stream: Stream | None = None) -> None:
        """A dispatcher starts again on another node: under a version of its own, while the others go on in theirs."""
        table = table or self.tables[0]
        (stream or table.streams[0]).version = self.schema(table.directory)

    def rename(self, directory: str, table: SinkTable | None = None) -> None:
        table = table or self.tables[0]
        self.tables = [each for each in self.tables if each.directory != directory or each is table]
        old, table.directory = table.directory.partition("/")[2], directory
        self.alter(table, RENAME, f"RENAME TABLE `{old}` TO `{{}}`")

    def flush(
        self, table: SinkTable | None = None, stream: Stream | None = None, *, days: int = 0, files: int = 1
    ) -> list[str]:
        """Data files and then their index file; `days` is by how much the server's clock differs."""
        table = table or self.tables[0]
        stream = stream or table.streams[0]
        directory = self.place(table, stream, days)
        stem = "CDC" if stream.dispatcher is None else f"CDC_{stream.dispatcher}"
        joint = "" if stream.dispatcher is None else "_"
        number = sum(path.name.startswith(f"{stem}{joint}0") for path in (self.root / directory).glob("CDC*.json"))
        paths = [f"{directory}/{stem}{joint}{number + each:020d}.json" for each in range(1, files + 1)]
        for path in paths:
            stream.last = self.write(path)
        self.write(f"{directory}/meta/{stem}.index", f"{paths[-1].rpartition('/')[2]}\n")
        return paths

    def overwrite(self, table: SinkTable | None = None, stream: Stream | None = None) -> None:
        """After a crash between a file and its index, the last number of the day is written again."""
        table = table or self.tables[0]
        stream = stream or table.streams[0]
        if stream.last is not None and stream.last.parent == self.root / self.place(table, stream):
            stream.last.write_text(stream.last.read_text() + "y")

    def place(self, table: SinkTable | None = None, stream: Stream | None = None, days: int = 0) -> str:
        table = table or self.tables[0]
        stream = stream or table.streams[0]
        date = (self.day + datetime.timedelta(days=days)).strftime(FORMS[self.separator])
        partition = None if stream.partition is None else str(stream.partition)
        return "/".join(filter(None, [table.directory, str(stream.version), partition, date]))

    def write(self, path: str, text: str = "x") -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place
