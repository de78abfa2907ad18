"""The change log: statements become versions of tables."""

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import commit_time, physical_ms, tso, utc_now
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
