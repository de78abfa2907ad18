"""A row change as TiCDC's canal-json prints it in files, with enable-tidb-extension.

    {"id":0,"database":"d","table":"t","pkNames":["id"],"isDdl":false,"type":"INSERT","es":…,"ts":…,"sql":"",
     "sqlType":{…},"mysqlType":{…},"old":null,"data":[{…}],"_tidb":{"commitTs":…}}

Not covered: TiCDC raises the sqlType of an unsigned number above its signed range; the shop has no such values.
"""

from __future__ import annotations

import datetime
from typing import Final

from cdc_lakehouse.changelog.mysql_types import BLOBS, ColumnType
from cdc_lakehouse.changelog.positions import physical_ms
from cdc_lakehouse.sample import go_json
from cdc_lakehouse.sample.row_change import Row, RowChange

# Constants of java.sql.Types, as TiCDC maps them.
_SQL_TYPES: Final = {
    "tinyint": -6, "smallint": 5, "mediumint": 4, "int": 4, "bigint": -5, "float": 7, "double": 8, "decimal": 3,
    "bit": -7, "year": 12, "date": 91, "datetime": 93, "timestamp": 93, "time": 92, "char": 1, "varchar": 12,
    "tinytext": 2005, "text": 2005, "mediumtext": 2005, "longtext": 2005, **dict.fromkeys(BLOBS, 2004),
    "enum": 4, "set": -7, "json": 12, "vector": 12,
}  # fmt: skip


def canal_message(change: RowChange, encoded: datetime.datetime) -> str:
    """One line of a data file, without its end; `encoded` is when TiCDC made it."""
    columns = change.table.columns
    return go_json.compact(
        {
            "id": 0,
            "database": change.table.name.database,
            "table": change.table.name.table,
            "pkNames": list(change.table.key_columns),
            "isDdl": False,
            "type": change.kind,
            "es": physical_ms(change.commit_ts),
            "ts": round(encoded.timestamp() * 1000),
            "sql": "",
            "sqlType": {column.name: _SQL_TYPES[column.type.name] for column in columns},
            "mysqlType": {column.name: _bare_name(column.type) for column in columns},
            "old": None if change.old is None else [_values(change, change.old)],
            "data": [_values(change, change.row)],
            "_tidb": {"commitTs": change.commit_ts},
        }
    )


def _bare_name(column: ColumnType) -> str:
    return column.name + " unsigned" * column.unsigned


def _values(change: RowChange, row: Row) -> Row:
    return {column.name: row[column.name] for column in change.table.columns}
