"""Canal's messages of a whole workload, as Canal itself wrote them, through a real broker: tables are the server's."""

from __future__ import annotations

import base64
import decimal
import json
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.pipeline.steps import run_all
from tests import truth
from tests.canal_captures import SOURCES, Capture, capture
from tests.lakes import TestLake
from tests.servers.kafka import Broker, Sent

pytestmark = [pytest.mark.spark, pytest.mark.server]

NOT_THE_SAME = {"c_latin", "c_gbk", "c_point", "d"}
"""Canal has made something else of the characters of two; a geometry is its bytes; and of `d`, added with DEFAULT
CURRENT_TIMESTAMP, the log does not tell what older rows have."""
HELD = {"mysql8.0.12": {"t_nopk"}, "mariadb10.11": {"t_renamed"}}
"""A table without a key (MariaDB's was dropped in the end); and one of which Canal, that was behind with DDL, has named
older values by newer columns: it is held before it is renamed."""
FORMS: dict[str, Callable[[Capture], list[bytes]]] = {
    "canal-json": lambda of: of.flat_messages,
    "canal-protobuf": lambda of: of.topic_values,
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("form", FORMS)
def test_tables_are_as_the_server_shows_them(
    source: str, form: str, kafka: Broker, new_lake: Callable[..., TestLake]
) -> None:
    of = capture(source)
    topic = kafka.create()
    lake = new_lake(
        source={"type": "kafka", "format": form, "bootstrap_servers": kafka.bootstrap, "topics": [topic]},
        start_date="2020-01-01",
    )
    values = FORMS[form](of)
    # In several runs: nothing that one has found may be lost to the next.
    for first in range(0, len(values), 1 + len(values) // 3):
        kafka.send(topic, [Sent(value) for value in values[first : first + 1 + len(values) // 3]])
        done = run_all(lake.run())
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
        arrow = found.scan().to_arrow()
        for place, (column, kind, _) in enumerate(expected["columns"]):
            if column in NOT_THE_SAME:
                continue
            wanted = sorted(repr(_true(row[place], kind)) for row in expected["rows"])
            seen = sorted(repr(_seen(value, kind)) for value in arrow[column].to_pylist())
            if wanted != seen:
                wrong[f"{table}.{column} {kind}"] = (wanted[:6], seen[:6])
    held = {done.applied.lives[id].last.name.table.replace("t_two", "t_renamed") for id in done.applied.held}
    assert held == HELD[source]
    assert not wrong, "\n".join(f"{what}: {how}" for what, how in wrong.items())


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
