"""The format of each protocol, by its name in the configuration."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from cdc_lakehouse.config import CsvOptions, Protocol, StorageSinkSource
from cdc_lakehouse.decoders.files import canal_json, canal_json_strict, csv_rows
from cdc_lakehouse.decoders.files.csv_detection import detect_csv
from cdc_lakehouse.decoders.files.file_format import DetectedFiles, FileFormat, Sample
from cdc_lakehouse.decoders.files.redelivered import redelivers_canal_json, redelivers_csv
from cdc_lakehouse.decoders.time_zone_detection import detect_offset
from cdc_lakehouse.sources.sink.paths import SinkLayout


def _detect_canal_json(samples: Sequence[Sample]) -> DetectedFiles:
    """Detect the time zone; the protocol has no other options."""
    return DetectedFiles(offset=detect_offset(line for sample in samples for line in sample.head.splitlines()))


def _binary(options: CsvOptions | None) -> Literal["base64", "hex"]:
    assert options is not None, "they are known of each sink of csv"
    return options.binary_encoding_method


FORMATS: Final[Mapping[Protocol, FileFormat]] = {
    "canal-json": FileFormat(
        extension="json",
        decode=canal_json.decode,
        in_parts=True,
        redelivers=redelivers_canal_json,
        detect=_detect_canal_json,
        lacks_commit_ts=canal_json_strict.lacks_commit_ts,
    ),
    "csv": FileFormat(
        extension="csv",
        decode=csv_rows.decode,
        redelivers=redelivers_csv,
        detect=detect_csv,
        needs_layout=True,
        has_labels=True,
        binary=_binary,
    ),
}
DEFAULT_PROTOCOL: Final[Protocol] = "canal-json"
"""TiCDC's own default, for a sink without data files."""
EXTENSIONS: Final[Mapping[Protocol, str]] = {protocol: each.extension for protocol, each in FORMATS.items()}


def layout_of(source: StorageSinkSource) -> SinkLayout:
    """Return the layout of a sink's paths, as its configuration says."""
    return SinkLayout.of(source, EXTENSIONS)
