"""Layouts of sinks, by the options that differ from TiCDC's own."""

from __future__ import annotations

import pytest

from cdc_lakehouse.config import DateSeparator, Protocol
from cdc_lakehouse.decoders.registry import EXTENSIONS
from cdc_lakehouse.sources.sink import listing
from cdc_lakehouse.sources.sink.paths import SinkLayout


def layout_with(
    separator: DateSeparator = "day", protocol: Protocol = "canal-json", *, table_ids: bool = False
) -> SinkLayout:
    return SinkLayout(separator, protocol, table_ids, extensions=EXTENSIONS)


def look_closely(patch: pytest.MonkeyPatch, objects: int) -> None:
    """A listing takes so many objects to save a request: with none no table is small."""
    patch.setattr(listing, "REQUEST", objects)
