"""Small tables: the lake's own bookkeeping."""

from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables import segments
from cdc_lakehouse.lake.tables.checkpoints import Checkpoints, Cut, CutRow, removal_of
from cdc_lakehouse.lake.tables.quarantine import SCHEMA as QUARANTINE_SCHEMA
from cdc_lakehouse.lake.tables.quarantine import Quarantine, Quarantined
from cdc_lakehouse.lake.tables.schema_history import Frontiers, SchemaHistory
from cdc_lakehouse.lake.tables.small_table import ALL, SmallTable
from cdc_lakehouse.sources.sink.listing import FileSequence, Frontier, KnownTable
