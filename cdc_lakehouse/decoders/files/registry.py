"""The decoder of each protocol, by the name that the configuration has for it."""

from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from cdc_lakehouse.decoders.files import canal_json, ticdc_csv
from cdc_lakehouse.decoders.files.segment_files import Decoded, SegmentFiles

DECODERS: Final[dict[str, Callable[[SparkSession, SegmentFiles], Decoded]]] = {
    "canal-json": canal_json.decode,
    "csv": ticdc_csv.decode,
}
