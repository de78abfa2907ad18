"""Configuration: text becomes values, or messages."""

from cdc_lakehouse.config.json_schema import json_schema
from cdc_lakehouse.config.secrets import HIDDEN, without_secrets
from cdc_lakehouse.config.yaml_file import read_mapping
