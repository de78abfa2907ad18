"""The decoder of each protocol, by the name that the configuration has for it."""

from typing import Final

from cdc_lakehouse.decoders.files import canal_json, csv_rows
from cdc_lakehouse.decoders.files.file_format import Decode

DECODERS: Final[dict[str, Decode]] = {"canal-json": canal_json.decode, "csv": csv_rows.decode}
