"""Remove events that a later event of the same row supersedes from the `events` table, and keep count of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from cdc_lakehouse.changelog.positions import BEGINNING
from cdc_lakehouse.changelog.stored import stored_fields, stored_text
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.data_files import live_files
from cdc_lakehouse.lake.properties import SUPERSEDED
from cdc_lakehouse.lake.row_deletes import delete_rows

if TYPE_CHECKING:
    from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi  # Checks use the rest without Spark.

_FORMAT: Final = 1
"""The format of the property. A property without a number has format 1."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The removal of a feed's events so far: how many were removed, how many events were there to examine the last
    time, and the commit-ts from which on the state at any moment is still known."""

    removed: int = 0
    looked_at: int = 0
    known_from_ts: int = BEGINNING

    @property
    def stored(self) -> str:
        fields = {"removed": self.removed, "looked_at": self.looked_at, "known_from_ts": self.known_from_ts}
        return stored_text(_FORMAT, fields)

    @classmethod
    def of_stored(cls, text: str) -> Removal:
        """Parse the property. Raises `StoredFormError` when newer code wrote it."""
        stored = stored_fields(text, _FORMAT, f"the property {SUPERSEDED}")
        return cls(removed=stored["removed"], looked_at=stored["looked_at"], known_from_ts=stored["known_from_ts"])


def removal_of(lake: Lake, feed: str) -> Removal:
    """Return what was removed of a feed's events. Raises `StoredFormError` when newer code wrote it."""
    table = lake.load(system_table(feed, "events"))
    text = None if table is None else table.properties.get(SUPERSEDED)
    return Removal() if text is None else Removal.of_stored(text)


def delete_superseded(
    lake: Lake, feed: str, iceberg: IcebergJavaApi, found: Mapping[str, BitMap64], looked_at: int, known_from_ts: int
) -> int:
    """Delete events by their positions in data files, in one commit; files that no longer exist are skipped. Returns
    the number of deleted events. Raises `TransientError` when another run has changed the table meanwhile."""
    identifier = system_table(feed, "events")
    table = lake.existing(identifier)
    files = [file for file in live_files(table, ()) if file.path in found]
    before = removal_of(lake, feed)
    deletes, replaced = delete_rows(table.io, table.location(), table.properties, table.format_version, files, found)
    count = sum(len(found[file.path]) for file in files)
    after = Removal(before.removed + count, looked_at, known_from_ts if count else before.known_from_ts)
    iceberg.transaction(identifier, table.metadata.current_snapshot_id).commit(
        delete_files=deletes,
        replaced_deletes=replaced,
        properties={SUPERSEDED: after.stored},
    )
    return count
