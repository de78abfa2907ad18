"""Clients of Kafka for tests, which wait less; and a topic that needs no brokers."""

import base64
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.sample.sink_writer import Encode, canal_json
from cdc_lakehouse.sources import kafka
from cdc_lakehouse.sources.kafka import Bounds, Topic
from cdc_lakehouse.sources.record_log import ByteColumn, Messages, OffsetRange
from tests.kit.changefeed import TopicWriter


def wait_at_most(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Clients give up a request and a read after so many seconds."""
    for name in ("REQUEST_SECONDS", "PATIENCE_SECONDS"):
        patch.setattr(kafka, name, seconds)


def hand_on_often(patch: pytest.MonkeyPatch, rows: int, bytes_held: int, messages: int) -> None:
    """A reader hands on so few messages together, and takes as few at a time from the client."""
    patch.setattr(kafka, "_ROWS_TOGETHER", rows)
    patch.setattr(kafka, "_BYTES_HELD", bytes_held)
    patch.setattr(kafka, "_MESSAGES_AT_ONCE", messages)


class MemoryTopic:
    """A topic in memory in place of brokers, read through everything above the client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._messages: dict[int, list[dict[str, Any]]] = {}
        self.unreadable: set[int] = set()
        self.away: set[int] = set()
        monkeypatch.setattr(kafka, "read_topics", self._topics)
        monkeypatch.setattr(kafka, "RangeReader", self._reader)

    def send(self, messages: Iterable[dict[str, Any]]) -> None:
        """Messages with `partition`, `key`, `value` (texts; `b64`: bytes in base64) and `timestamp`."""
        for message in messages:
            self._messages.setdefault(message["partition"], []).append(message)

    def writer(self, encode: Encode = canal_json) -> TopicWriter:
        """What brings changes to two partitions, rows of one table to both."""
        return TopicWriter(self.send, 2, True, random.Random(1), encode)

    def _topics(self, source: KafkaSource, **_: object) -> tuple[Topic, ...]:
        partitions = {
            number: Bounds(0, len(found)) for number, found in self._messages.items() if number not in self.away
        }
        return tuple(Topic(name, name, partitions) for name in source.topics or ())

    def _reader(self, _: object, ranges: Sequence[OffsetRange]) -> SimpleNamespace:
        ends = {part: part.start if part.partition.number in self.unreadable else part.end for part in ranges}
        return SimpleNamespace(ends=ends, faults=[], messages=lambda: self._read(ends))

    def _read(self, ends: Mapping[OffsetRange, int]) -> Iterator[Messages]:
        for part, end in ends.items():
            sent = self._messages.get(part.partition.number, [])[part.start : end]
            times = [number for each in sent for number in (1, each["timestamp"])]
            keys = ByteColumn(_bytes(each["key"]) for each in sent)
            values = ByteColumn(base64.b64decode(m["b64"]) if "b64" in m else _bytes(m["value"]) for m in sent)
            size = len(keys.content) + len(values.content)
            yield Messages(part, [*range(part.start, end)], times, keys, values, [None] * len(sent), size)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
