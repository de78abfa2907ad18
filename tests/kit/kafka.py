"""Clients of Kafka for tests, which wait less."""

from __future__ import annotations

import dataclasses

from cdc_lakehouse.sources.kafka.client import Client


def with_timeout(client: Client, seconds: float) -> Client:
    """The same, that gives up a request and a read after so many seconds."""
    return dataclasses.replace(client, timeout_seconds=seconds, patience_seconds=seconds)
