"""The update of a table: events and versions become files."""

from cdc_lakehouse import duckdb_sql
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import row_stage, synthetic_stage
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion
from cdc_lakehouse.decoders.event_schema import CHANGE_COLUMNS, EVENTS, SYNTHETIC, TEXT_OF, image_text
from cdc_lakehouse.decoders.tasks import errors_of_tasks
from cdc_lakehouse.lake.current import keyed_events, update_tasks
from cdc_lakehouse.lake.current.keyed_events import (
    KEYED_EVENTS,
    TASK_ROWS,
    KeyedSpan,
    KeyedSpans,
    TableKey,
    commit_ts_range,
    divided,
    events_of_blocks,
    read_keyed_events,
    work_in_task,
)
from cdc_lakehouse.lake.current.typed_rows import (
    COMMIT_TS,
    PartitionRows,
    Target,
    image_of,
    initial_value,
    lake_name,
    row_images,
)
from cdc_lakehouse.lake.current.update_tasks import (
    FileRewrite,
    PlannedTable,
    RecomputedKeys,
    StoredTable,
    TableUpdate,
    TypingTask,
    UpdatedTable,
    folded_texts,
    parts_apart,
    summarized,
    typed_beforehand,
    update_by_share,
    update_in_job,
    update_tables,
)
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.files import StoredFile, TableFiles, write_file
from cdc_lakehouse.lake.tables.events import EventReader
