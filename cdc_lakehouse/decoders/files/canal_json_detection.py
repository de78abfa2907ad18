"""Detection of how files of TiCDC's Canal-JSON were written, from their content."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_lakehouse.decoders.files.file_format import DetectedFiles, Sample
from cdc_lakehouse.decoders.time_zone_detection import detect_offset


def detect_canal_json(samples: Sequence[Sample]) -> DetectedFiles:
    """Detect the time zone; the protocol has no other options."""
    return DetectedFiles(offset=detect_offset(line for sample in samples for line in sample.head.splitlines()))
