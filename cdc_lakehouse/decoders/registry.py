"""The decoder of each protocol, by the name that the configuration has for it."""

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame

from cdc_lakehouse.decoders import canal_json

DECODERS: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "canal-json": canal_json.decode,
}
