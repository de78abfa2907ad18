"""Sinks, by the options that differ from TiCDC's own."""

from __future__ import annotations

import pytest

from cdc_lakehouse.config import DateSeparator, Protocol, StorageSinkSource
from cdc_lakehouse.sources.sink import listing


def layout_with(
    separator: DateSeparator = "day", protocol: Protocol = "canal-json", *, table_ids: bool = False
) -> StorageSinkSource:
    given = {"uri": "s3://sink", "date_separator": separator, "protocol": protocol, "use_table_id_as_path": table_ids}
    csv = {"csv": {"include-commit-ts": True}} if protocol == "csv" else {}
    return StorageSinkSource.model_validate({"type": "storage_sink", "time_zone": "UTC", **given, **csv})


def look_closely(patch: pytest.MonkeyPatch, objects: int) -> None:
    """A listing takes so many objects to save a request: with none no table is small."""
    patch.setattr(listing, "REQUEST", objects)
