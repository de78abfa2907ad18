"""Configuration: text becomes values, or messages."""

from cdc_lakehouse.config.file import json_schema, read_mapping
from cdc_lakehouse.config.reporting import without_secrets
