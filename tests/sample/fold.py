"""What a sink's files say the tables hold: read one after the other, with nothing of the generator or the project."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Rows = dict[tuple[str, ...], dict[str, str | None]]
State = dict[tuple[str, str], Rows]


def fold(sink: Path) -> dict[tuple[str, str], list[dict[str, str | None]]]:
    """Current rows by database and table, in the order of their keys."""
    state: State = {}
    # At equal commit-ts rows come before the DDL; rows of one transaction stay in the order of their file.
    events = [(event["_tidb"]["commitTs"], 0, event) for event in messages(sink)]
    events += [(document["TableVersion"], 1, document) for document in schema_documents(sink)]
    for _, is_ddl, event in sorted(events, key=lambda event: event[:2]):
        if is_ddl:
            _apply_ddl(state, event)
        else:
            _apply_row(state, event)
    return {name: [rows[key] for key in sorted(rows)] for name, rows in state.items()}


def messages(sink: Path) -> Iterator[dict[str, Any]]:
    for path in data_files(sink):
        yield from (json.loads(line) for line in path.read_bytes().split(b"\r\n")[:-1])


def data_files(sink: Path) -> list[Path]:
    """In the order in which they were written, within a table."""
    return sorted(sink.glob("*/*/*/*/CDC*.json"), key=lambda path: path.relative_to(sink).parts)


def contents(sink: Path) -> dict[str, bytes]:
    return {path.relative_to(sink).as_posix(): path.read_bytes() for path in sink.rglob("*") if path.is_file()}


def schema_documents(sink: Path) -> list[dict[str, Any]]:
    documents = [json.loads(path.read_bytes()) for path in sink.glob("**/meta/schema_*.json")]
    return sorted(documents, key=lambda document: document["TableVersion"])


def _apply_row(state: State, event: dict[str, Any]) -> None:
    rows, row = state[event["database"], event["table"]], event["data"][0]
    key = tuple(row[name] for name in event["pkNames"])
    if event["type"] == "DELETE":
        rows.pop(key, None)
    else:
        rows[key] = row


def _apply_ddl(state: State, document: dict[str, Any]) -> None:
    name, query = (document["Schema"], document["Table"]), document["Query"]
    match document["Type"]:
        case 3 | 11:
            state[name] = {}
        case 5:
            column = document["TableColumns"][-1]
            for row in state[name].values():
                row[column["ColumnName"]] = column.get("ColumnDefault")
        case 6:
            dropped = _names(query, r"DROP COLUMN `(\w+)`")[0]
            for row in state[name].values():
                del row[dropped]
        case 12 if "RENAME COLUMN" in query:
            old, new = _names(query, r"RENAME COLUMN `(\w+)` TO `(\w+)`")
            for row in state[name].values():
                row[new] = row.pop(old)
        case 14:
            database, table = _names(query, r"RENAME TABLE `(\w+)`\.`(\w+)` TO ")
            state[name] = state.pop((database, table))
        case 1 | 7 | 12:
            pass
        case other:
            raise AssertionError(f"a DDL of type {other} is not expected: {query}")


def _names(query: str, pattern: str) -> tuple[str, ...]:
    found = re.search(pattern, query)
    assert found, query
    return found.groups()
