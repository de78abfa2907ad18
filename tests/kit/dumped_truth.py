"""The true rows of a data set's stage as a dump has them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from cdc_lakehouse.config.sources import DumpType
from tests.kit.dumps import DumpTable, Value, dumpling, dumpling_status, mydumper, mysqlshell
from tests.kit.truth import Truth

NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "year")


def dump_of(
    truth: Truth,
    stage: int,
    root: Path,
    names: Sequence[tuple[str, str]] | None = None,
    tool: DumpType = "dumpling",
    **form: Any,
) -> Path:
    """A dump of the tables (of some of them) at the stage's checkpoint-ts, which TiDB calls a position of its log."""
    tables = [_table(each) for name, each in sorted(truth.tables(stage).items()) if names is None or name in names]
    log, position = "tidb-binlog", truth.stages[stage]["checkpoint_ts"]
    match tool:
        case "dumpling":
            return dumpling(root, tables, status=dumpling_status(log, position), **form)
        case "mydumper":
            source = f'[source]\n# SOURCE_LOG_FILE = "{log}"\n# SOURCE_LOG_POS = {position}\n'
            return mydumper(root, tables, source=source, **form)
        case "mysqlshell":
            return mysqlshell(root, tables, start={"binlogFile": log, "binlogPosition": position}, **form)


def _table(true: dict[str, Any]) -> DumpTable:
    columns = {
        column["name"]: f"{column['type']} {'' if column['nullable'] else 'NOT '}NULL" for column in true["columns"]
    }
    key = ",".join(f"`{name.replace('`', '``')}`" for name in true["key"])
    end = ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    types = [column["type"] for column in true["columns"]]
    rows = [[_value(cell, kind) for cell, kind in zip(row, types, strict=True)] for row in true["rows"]]
    return DumpTable(true["schema"], true["table"], columns, rows, f",PRIMARY KEY ({key})\n{end}" if key else end)


def _value(cell: Any, kind: str) -> Value:
    base = re.match(r"\w+", kind)[0]  # pyright: ignore[reportOptionalSubscript]
    if cell is None:
        return None
    if base == "json":
        return json.dumps(None if cell == {"json": None} else cell, ensure_ascii=False)
    if isinstance(cell, dict):
        return base64.b64decode(cell["b64"])
    if base == "bit":
        bits = int(kind.partition("(")[2].partition(")")[0] or 1)
        return int(cell).to_bytes((bits + 7) // 8, "big")
    if base == "vector":
        return json.dumps([float(each) for each in cell])
    return Decimal(cell) if base in NUMBERS else cell
