"""Decoders: bytes become events or problems."""

from cdc_lakehouse.changelog.ddl.statements import parse_type
from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.decoders.problems import PROBLEMS
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import InsertNotation, TextNotation
