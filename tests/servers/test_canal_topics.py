"""Canal's messages of a whole workload, as Canal itself wrote them, through a real broker: tables are the server's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.canal_captures import SOURCES, Capture, capture
from tests.canal_truth import check_tables
from tests.kit.lakes import TestLake, run_all
from tests.servers.kafka import Broker, Sent

pytestmark = [pytest.mark.spark, pytest.mark.server]

FORMS: dict[str, Callable[[Capture], list[bytes]]] = {
    "canal-json": lambda of: of.flat_messages,
    "canal-protobuf": lambda of: of.topic_values,
}


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "source",
    # The feed of a Canal server reads all entries of both (tests/spark/test_canal_feed.py).
    [pytest.param(name, marks=[pytest.mark.long] if name.startswith("mariadb") else []) for name in SOURCES],
)
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
    # In several runs: nothing that one has found may be lost to the next. Once decoded, both forms are the same.
    step = 1 + len(values) // 3 if form == "canal-json" else len(values)
    for first in range(0, len(values), step):
        kafka.send(topic, [Sent(value) for value in values[first : first + step]])
        done = run_all(lake.run())
    check_tables(lake, done, source, of)
