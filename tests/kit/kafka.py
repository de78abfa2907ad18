"""Clients of Kafka for tests, which wait less."""

from __future__ import annotations

import dataclasses

from cdc_lakehouse.sources.kafka.client import KafkaClient


def with_timeout(client: KafkaClient, seconds: float) -> KafkaClient:
    """The same, that gives up a request and a read after so many seconds."""
    return dataclasses.replace(client, timeout_seconds=seconds, patience_seconds=seconds)
