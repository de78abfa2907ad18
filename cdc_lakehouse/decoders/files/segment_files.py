"""What a decoder is given, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from cdc_lakehouse.config import StorageConfig, StorageSinkSource
from cdc_lakehouse.decoders.files.csv_rows import Layout
from cdc_lakehouse.decoders.files.tasks import SegmentRef


@dataclass(frozen=True)
class SegmentFiles:
    """Segments of one source, below `uri`. With csv `layouts` says what the values of each file's rows are."""

    uri: str
    storage: StorageConfig
    source: StorageSinkSource
    segments: tuple[SegmentRef, ...]
    layouts: Mapping[str, Layout] = field(default_factory=dict[str, Layout])


@dataclass(frozen=True)
class Decoded:
    """`events` has the columns of `event_schema.DECODED`; `segments` is the segment of each `file`."""

    events: DataFrame
    segments: Mapping[str, str]
