"""Decoders: bytes become events or problems."""

from cdc_lakehouse.changelog.ddl.statements import parse_type
from cdc_lakehouse.sources.dump.contents import InsertNotation, TextNotation
