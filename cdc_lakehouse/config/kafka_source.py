"""A feed that comes by topics of Apache Kafka."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from pydantic import Field, field_validator, model_validator

from cdc_lakehouse.config.section import Section, known_zone
from cdc_lakehouse.config.source import DateSeparator

KafkaFormat = Literal[
    "ticdc-canal-json", "canal-json", "canal-protobuf", "dts-avro", "dts-canal-json", "shareplex-json"
]
Offsets = dict[str, dict[int, int]]
"""By topic and partition."""

# Of `org.apache.kafka.common.internals.Topic`: what a broker takes for a topic's name.
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OWN: Final = {
    "bootstrap.servers": "the brokers stand in bootstrap_servers",
    "metadata.broker.list": "the brokers stand in bootstrap_servers",
    "group.id": "no consumer group is used: the offsets that have been read are in the lake",
    "group.instance.id": "no consumer group is used: the offsets that have been read are in the lake",
    "group.protocol": "no consumer group is used: the offsets that have been read are in the lake",
    "enable.auto.commit": "nothing is committed to the brokers: the offsets that have been read are in the lake",
    "enable.auto.offset.store": "nothing is committed to the brokers: the offsets that have been read are in the lake",
    "auto.offset.reset": "where a feed begins stands in start, and an offset that is gone is an error",
    "isolation.level": "it is always read_committed: what a transaction aborted never happened",
    "enable.partition.eof": "it is always true: the end of a partition ends a read",
    "allow.auto.create.topics": "it is always false: the source is only read",
    "sasl.jaas.config": "it is Java's: write sasl.mechanism, sasl.username and sasl.password",
}
_NOT_A_PATH: Final = "probe"
"""As `ssl.ca.location` it makes the client look for the system's certificates."""


class KafkaSource(Section):
    type: Literal["kafka"]
    format: KafkaFormat = Field(description="What the messages are.")
    bootstrap_servers: tuple[str, ...] = Field(min_length=1, description="host:port of brokers, a list or with commas.")
    topics: tuple[str, ...] | None = Field(None, min_length=1, description="Names of the topics.")
    topic_pattern: str | None = Field(None, description="A regular expression that whole names of topics match.")
    time_zone: str = Field("UTC", description="How TIMESTAMP text is read, and which date a record's timestamp is.")
    date_separator: DateSeparator = Field("day", description="What a feed date is of a record's date.")
    start: Literal["earliest", "latest"] | Offsets = Field(
        "earliest", description="Where the feed begins; offsets by topic and partition, the others at their earliest."
    )
    max_records: int = Field(5_000_000, gt=0, description="Records that a run lands at most.")
    max_bytes: int = Field(1 << 30, gt=0, description="Bytes of keys and values after which a run lands no more.")
    before_2022_03_20: bool = Field(
        False, description="With dts-canal-json: the DTS instance is older, and a DELETE has its row in `old`."
    )
    tidb_extension: bool = Field(
        True, description="With ticdc-canal-json: the changefeed has enable-tidb-extension=true."
    )
    claim_check: str | None = Field(
        None, description="With ticdc-canal-json: where the changefeed's claim-check files lie, a directory or URI."
    )
    kafka: dict[str, str] = Field(
        default_factory=dict, description="Settings of the client, by librdkafka's own names.", repr=False
    )

    _zone = field_validator("time_zone")(known_zone)

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _brokers(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, Sequence):
            return value
        brokers = [broker.strip() if isinstance(broker, str) else broker for broker in cast("Sequence[Any]", value)]
        if "" in brokers:
            raise ValueError("a broker's name is empty: write host:port")
        return brokers

    @field_validator("topics")
    @classmethod
    def _names(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if not _TOPIC.fullmatch(name) or name in (".", ".."):
                raise ValueError(f"{name!r} is not a topic's name; a regular expression goes into topic_pattern")
        if len(set(value or ())) < len(value or ()):
            raise ValueError("a topic stands there twice")
        return value

    @field_validator("topic_pattern")
    @classmethod
    def _expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value

    @field_validator("start", mode="before")
    @classmethod
    def _offsets(cls, value: Any) -> Any:
        if value in ("earliest", "latest"):
            return value
        try:
            found = {
                topic: {int(partition): offset for partition, offset in partitions.items()}
                for topic, partitions in value.items()
            }
        except (AttributeError, TypeError, ValueError):
            found = {"": {0: -1}}
        if any(
            not isinstance(topic, str)
            or any(type(offset) is not int or min(partition, offset) < 0 for partition, offset in partitions.items())
            for topic, partitions in found.items()
        ):
            raise ValueError("write earliest, latest, or offsets such as {orders: {0: 1500, 1: 0}}")
        return found

    @field_validator("kafka", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        # YAML reads `true` and `4` as a boolean and a number; the client takes text.
        if not isinstance(value, Mapping):
            return value
        settings = cast("Mapping[Any, Any]", value)
        return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in settings.items()}

    @field_validator("kafka")
    @classmethod
    def _not_our_own(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name in _OWN:
                raise ValueError(f"{name} cannot be set: {_OWN[name]}")
        return value

    @model_validator(mode="after")
    def _which_topics(self) -> Self:
        if (self.topics is None) == (self.topic_pattern is None):
            raise ValueError("needs either topics or topic_pattern, and not both")
        if isinstance(self.start, dict) and (others := [topic for topic in self.start if not self.takes(topic)]):
            raise ValueError(f"start names the topic {others[0]!r}, which the feed does not read")
        if self.before_2022_03_20 and self.format != "dts-canal-json":
            raise ValueError(f"before_2022_03_20 means nothing with format {self.format}")
        if self.format != "ticdc-canal-json" and (self.claim_check is not None or not self.tidb_extension):
            raise ValueError(f"tidb_extension and claim_check mean nothing with format {self.format}")
        return self

    @property
    def needs_one_partition(self) -> bool:
        """Whether messages have neither a commit-ts nor an order but that of their partition, though the source spreads
        a table over several."""
        return self.format == "ticdc-canal-json" and not self.tidb_extension

    def takes(self, topic: str) -> bool:
        if self.topics is not None:
            return topic in self.topics
        return re.fullmatch(self.topic_pattern or "", topic) is not None

    def anchored(self, base: Path) -> KafkaSource:
        """With the paths of the client's files absolute, relative to `base`."""
        settings = {
            name: os.path.normpath(base / value) if name.endswith(".location") and value != _NOT_A_PATH else value
            for name, value in self.kafka.items()
        }
        return self.model_copy(update={"kafka": settings})
