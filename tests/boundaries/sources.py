"""Sources: a store, a broker or a server becomes listings, ranges and batches."""

from cdc_lakehouse.sources.object_store import LocalStore
from cdc_lakehouse.sources.sink.paths import list_sink, read_checkpoint, read_index
from cdc_lakehouse.sources.sink.schema_file import read_schema_file
