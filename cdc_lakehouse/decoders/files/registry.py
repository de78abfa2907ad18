"""The format of each protocol, by the name that the configuration has for it."""

from typing import Final

from cdc_lakehouse.decoders.files import canal_json, csv_rows
from cdc_lakehouse.decoders.files.file_format import FileFormat

FORMATS: Final = {
    "canal-json": FileFormat(canal_json.decode, in_parts=True),
    "csv": FileFormat(csv_rows.decode),
}
