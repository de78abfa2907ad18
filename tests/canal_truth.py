"""The tables that a capture of Canal's ends with, held to what the server showed."""

from __future__ import annotations

import base64
import decimal
import json
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Any, Final

from cdc_lakehouse.pipeline.steps import Steps
from tests.canal_captures import Capture
from tests.kit import truth
from tests.kit.lakes import TestLake

NOT_THE_SAME: Final = {"c_latin", "c_gbk", "c_point"}
"""Canal has made something else of the characters of two; a geometry is its bytes."""
HELD: Final = {"mysql8.0.12": {"t_nopk", "t_renamed"}, "mariadb10.11": {"t_renamed"}}
"""A table without a key (MariaDB's was dropped in the end); and one to which a column with DEFAULT CURRENT_TIMESTAMP is
added, so that the log does not say what older rows have: it is held before it is renamed."""


def check_tables(lake: TestLake, done: Steps, source: str, of: Capture) -> None:
    wrong: dict[str, Any] = {}
    tables = lake.tables()
    for name, expected in of.tables.items():
        table = name.removesuffix("_final")
        if not name.endswith("_final") or table in HELD[source]:
            continue
        found = next((each for (_, own), each in tables.items() if own == table), None)
        if found is None:
            wrong[table] = done.applied.held
            continue
        columns = [(column, kind) for column, kind, _ in expected["columns"]]
        told = differences(found, columns, expected["rows"], left_out=NOT_THE_SAME)
        wrong |= {f"{table}.{column}": how for column, how in told.items()}
    held = {done.applied.lives[id].last.name.table.replace("t_two", "t_renamed") for id in done.applied.held}
    assert held == HELD[source]
    assert not wrong, "\n".join(f"{what}: {how}" for what, how in wrong.items())
    damage = lake.run().signals.damage()
    assert {table.table: set(columns) for table, columns in damage.items()} == {"t_all": {"c_latin", "c_gbk"}}


def differences(
    table: Any, columns: Sequence[tuple[str, str]], rows: Sequence[Any], *, left_out: Collection[str] = ()
) -> dict[str, Any]:
    """By column, what a table of the lake has other than a server that shows these rows: cells of `text` and `hex`."""
    wrong: dict[str, Any] = {}
    arrow = table.scan().to_arrow()
    for place, (column, kind) in enumerate(columns):
        if column in left_out:
            continue
        wanted = sorted(repr(_true(row[place], kind)) for row in rows)
        seen = sorted(repr(_seen(value, kind)) for value in arrow[column].to_pylist())
        if wanted != seen:
            both = list(zip_longest(wanted, seen))
            wrong[f"{column} {kind}"] = [pair for pair in both if pair[0] != pair[1]][:4]
    return wrong


def _seen(value: Any, kind: str) -> Any:
    if kind == "float" and value is not None:
        return f"{value:.5e}"
    return truth.seen_value(value, kind)


def _true(cell: dict[str, Any], kind: str) -> Any:
    text, hexadecimal = cell["text"], cell["hex"]
    if hexadecimal is None:
        return None
    if kind.startswith("bit"):
        return decimal.Decimal(int(hexadecimal, 16)) if "64" in kind else int(hexadecimal, 16)
    if truth.iceberg_type(kind) == "binary":
        return truth.true_value({"b64": base64.b64encode(bytes.fromhex(hexadecimal)).decode()}, kind)
    if kind == "float":
        return f"{float(text):.5e}"  # The server prints six digits.
    if kind == "json":
        return truth.true_value(json.loads(text), kind)
    return truth.true_value(text, kind)
