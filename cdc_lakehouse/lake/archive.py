"""Read the content of segments, from the source or from an archive that keeps copies in the warehouse."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cdc_lakehouse.errors import ObjectMissingError, SourceError, SourceUnreachableError
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.tables.segments import Segment
from cdc_lakehouse.sources.object_store import SEGMENT_LIMIT, ObjectStore, StoredObject, open_store

_COPIES_AT_ONCE: Final = 4
_ANY_STORE_HOLDS: Final = re.compile(r"[A-Za-z0-9._/-]")


class SourceFiles:
    """Reads segments from the source itself. What the source expires is lost."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def place(self, segment: Segment) -> str:
        """Return the path of a segment's content in the store."""
        return segment.segment

    def etag(self, segment: Segment) -> str | None:
        """Return the ETag that a read must match; None for copies, which never change."""
        return segment.etag

    def head(self, segment: Segment, size: int) -> bytes:
        """Return the first bytes of a segment's content. Raises `SourceError` when it cannot be read or has changed."""
        return self.store.head(self.place(segment), size, etag=self.etag(segment))

    def keep(self, segments: Sequence[Segment]) -> dict[str, str]:
        """Make sure that the contents stay readable; return the reasons of failures by segment."""
        return {}


class Archive(SourceFiles):
    """Keeps copies of the segments in the warehouse, below `cdc_{feed}/archive`: one file for each version of a
    content."""

    def __init__(self, lake: Lake, feed: str, source: ObjectStore) -> None:
        super().__init__(open_store(lake.location(system_table(feed, "").namespace, "archive"), lake.storage))
        self._lake = lake
        self._source = source

    def place(self, segment: Segment) -> str:
        assert segment.etag is not None, segment.segment
        content = hashlib.sha256(segment.etag.encode()).hexdigest()[:16]
        return f"{_escaped(segment.segment)}.{content}"

    def etag(self, segment: Segment) -> str | None:
        return None

    def has(self, segment: Segment) -> bool:
        """Whether the archive has a complete copy of the segment."""
        try:
            return len(self.store.head(self.place(segment), segment.size + 1)) == segment.size
        except (ObjectMissingError, SourceError):
            return False

    def copies(self) -> list[StoredObject]:
        """Return all copies that are in the archive."""
        with contextlib.suppress(SourceUnreachableError):  # There is no directory before the first.
            return [each for each in self.store.list() if isinstance(each, StoredObject)]
        return []

    def keep(self, segments: Sequence[Segment]) -> dict[str, str]:
        """Copy the contents that are not in the archive yet, in the version that was listed."""

        def copy(segment: Segment) -> tuple[str, str | None]:
            try:
                if not self.has(segment):
                    content = self._source.read(segment.segment, limit=SEGMENT_LIMIT, etag=segment.etag)
                    self._lake.write(f"{self.store.uri}/{self.place(segment)}", content)
            except SourceError as error:
                if error.segment is None:
                    raise
                return segment.segment, error.advised
            return segment.segment, None

        with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            return {path: reason for path, reason in pool.map(copy, segments) if reason is not None}


def _escaped(path: str) -> str:
    """Escape a path so that every store and every reader takes it unchanged."""
    return "".join(
        char if _ANY_STORE_HOLDS.match(char) else "".join(f"~{byte:02X}" for byte in char.encode()) for char in path
    )
