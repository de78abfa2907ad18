"""Canal's messages of a whole workload, as Canal itself wrote them, through a real broker: tables are the server's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.canal_captures import capture
from tests.canal_truth import check_tables
from tests.kit.lakes import TestLake, run_all
from tests.servers.kafka import Broker, Sent

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.mark.in_turn
@pytest.mark.parametrize("source", [pytest.param("mariadb10.11", marks=pytest.mark.long), "mysql8.0.12"])
def test_tables_of_canals_messages_are_the_servers(
    source: str, kafka: Broker, new_lake: Callable[..., TestLake]
) -> None:
    """In Protobuf: `tests/decoders` shows that those in JSON say the same, and cases of topics in JSON are in
    tests/spark/test_cases.py."""
    of, topic = capture(source), kafka.create()
    told = {"type": "kafka", "format": "canal-protobuf", "bootstrap_servers": kafka.bootstrap, "topics": [topic]}
    lake = new_lake(source=told, start_date="2020-01-01")
    # In two runs: nothing that one has found may be lost to the next.
    half = len(of.topic_values) // 2
    for values in (of.topic_values[:half], of.topic_values[half:]):
        kafka.send(topic, [Sent(value) for value in values])
        done = run_all(lake.run())
    check_tables(lake, done, source, of)
