"""The update of a table: events and versions become files."""

from cdc_lakehouse import duckdb_sql
from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import row_stage, synthetic_stage
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC, TEXT_OF, image_text
from cdc_lakehouse.decoders.tasks import errors_of_tasks
from cdc_lakehouse.lake.current import keyed_events, typed_rows, update_tasks
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.files import StoredFile, TableFiles, write_file
from cdc_lakehouse.lake.tables.events import EventReader
