"""Layouts of sinks, by the options that differ from TiCDC's own."""

from __future__ import annotations

from cdc_lakehouse.config import DateSeparator, Protocol
from cdc_lakehouse.decoders.files.registry import EXTENSIONS
from cdc_lakehouse.sources.sink.paths import SinkLayout


def layout_with(
    separator: DateSeparator = "day", protocol: Protocol = "canal-json", *, table_ids: bool = False
) -> SinkLayout:
    return SinkLayout(separator, protocol, table_ids, extensions=EXTENSIONS)
