"""librdkafka's clients for the configuration, the same for a sensor, a run and its tasks; and the classification of the
client's errors.

An error's text contains addresses and responses of brokers, so only the error's name is passed on.

It also reads claim checks, the files in which TiCDC stores messages that are too large for the broker.

    {"key":null,"value":"<the message, base64>"}

With claim-check-raw-value the file is the message itself. Either can be compressed: bytes are returned as they are. A
message in the topic has the URI of its file; only its file name is used here, so that a message can refer to no other
place than the configured one.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from cdc_lakehouse.config import KafkaSource, StorageConfig
from cdc_lakehouse.errors import CdcError, ConfigurationError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources import read_json
from cdc_lakehouse.sources.object_store import read_segment

_DEFAULTS: Final = {
    "client.id": "cdc-lakehouse",
    # Problems are raised as errors; a log of the client would additionally go to stderr.
    "log_level": "0",
    "check.crcs": "true",
    # The end of a range that ends with a transaction's marker is only known when the broker reports that there is no
    # more, and it waits for this long before it does.
    "fetch.wait.max.ms": "100",
    # By its default a partition pauses for a second whenever enough is in the queue.
    "fetch.queue.backoff.ms": "5",
    # Messages that are fetched beyond the end of a range are wasted.
    "queued.min.messages": "20000",
    # Reconnect soon to a broker that went away, and give up one that hangs.
    "reconnect.backoff.max.ms": "2000",
    "socket.timeout.ms": "30000",
    "socket.keepalive.enable": "true",
}
_OWN: Final = {
    # The client requires a group name, although it joins none and commits nothing.
    "group.id": "cdc-lakehouse",
    "enable.auto.commit": "false",
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
}
_SETTING: Final = re.compile(r'configuration property:? "([\w.]+)"')


@dataclass(frozen=True, slots=True)
class KafkaClient:
    """How the brokers are reached. It is handed to tasks, secrets and all, and never shown.

    A request is given up after `timeout_seconds`; a read without progress after `patience_seconds`.
    """

    brokers: str
    settings: Mapping[str, str] = field(repr=False)
    timeout_seconds: float = 15
    patience_seconds: float = 60

    @classmethod
    def of(cls, source: KafkaSource) -> Self:
        """Return the client for the configuration."""
        return cls(",".join(source.bootstrap_servers), dict(source.kafka))

    def consumer(self, errors: ClientErrors) -> Consumer:
        """Return a consumer without a group. Raises `ConfigurationError` when the client does not accept its
        settings."""
        try:
            return Consumer(self._configuration(errors))
        except (KafkaException, TypeError, ValueError) as error:
            raise _refused(error) from None

    def admin(self, errors: ClientErrors) -> AdminClient:
        """Return a client for requests to the cluster. Raises `ConfigurationError` when it does not accept its
        settings."""
        try:
            return AdminClient(self._configuration(errors))
        except (KafkaException, TypeError, ValueError) as error:
            raise _refused(error) from None

    def _configuration(self, errors: ClientErrors) -> dict[str, Any]:
        return {
            **_DEFAULTS,
            **self.settings,
            **_OWN,
            "bootstrap.servers": self.brokers,
            "error_cb": errors.note,
        }


def _refused(error: Exception) -> ConfigurationError:
    # The client's text may contain a value.
    named = _SETTING.search(str(error))
    what = "a setting of source.kafka" if named is None else f"the setting source.kafka.{named[1]}"
    return ConfigurationError(
        f"the Kafka client does not take {what}", advice="names and values are those of librdkafka's CONFIGURATION.md"
    )


_FORBIDDEN: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
_MISSING: Final = frozenset({
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID, KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
})  # fmt: skip
NO_LEADER: Final = frozenset({
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR, KafkaError._NOENT,
})  # fmt: skip
OUT_OF_RANGE: Final = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})
_CORRUPT: Final = frozenset({
    KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD, KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION,
    KafkaError._UNSUPPORTED_FEATURE, KafkaError._NOT_IMPLEMENTED,
})  # fmt: skip
_LOGIN: Final = frozenset({
    KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
})  # fmt: skip
_TOO_LARGE: Final = re.compile(r"Invalid response size (\d+).*receive\.message\.max\.bytes")
_NOT_TRUSTED: Final = "certificate verify failed"


class ClientErrors:
    """Errors that the client has reported about its brokers, by code. It reports them from its own threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_code: dict[int, str] = {}
        self.too_large: int | None = None
        """The bytes of a response that the client refused to accept."""

    def note(self, error: KafkaError) -> None:
        """Record an error. The client calls this."""
        with self._lock:
            self._by_code[error.code()] = error.str()
            if found := _TOO_LARGE.search(error.str()):
                self.too_large = int(found[1])

    def fault(self, brokers: str, error: KafkaError | None = None) -> CdcError:
        """Return the error for a request without a response: `SourceError` for a permanent cause, else
        `SourceUnreachableError`."""
        with self._lock:
            reported = dict(self._by_code)
        if _LOGIN & reported.keys():
            return SourceError(
                f"the Kafka brokers at {brokers} do not take the credentials",
                advice="correct sasl.mechanism, sasl.username and sasl.password of source.kafka",
            )
        if _NOT_TRUSTED in reported.get(KafkaError._SSL, ""):
            return SourceError(
                f"the certificate of the Kafka brokers at {brokers} cannot be verified",
                advice="set ssl.ca.location of source.kafka to the authority that issued it",
            )
        names = sorted(KafkaError(code).name() for code in reported if code != KafkaError._ALL_BROKERS_DOWN)
        said = names or ([] if error is None else [error.name()])
        return SourceUnreachableError(
            f"the Kafka brokers at {brokers} cannot be reached for now ({', '.join(said) or 'no answer'})",
            advice="see whether they run, and bootstrap_servers of the source is right; the next run tries again",
        )


class TopicError(SourceError):
    """A topic cannot be read; others can."""


class TopicMissingError(TopicError):
    """A topic, or a partition of one, is not there."""


def topic_fault(topic: str, error: KafkaError) -> TopicError | None:
    """The error for a topic that cannot be read; None for what may pass."""
    if error.code() in _FORBIDDEN:
        return TopicError(
            f"no permission to read the topic {topic} ({error.name()})",
            advice="allow the user of source.kafka READ and DESCRIBE on it",
        )
    if error.code() in _MISSING:
        return TopicMissingError(
            f"there is no topic {topic}, or not this partition of it", advice="correct source.topics"
        )
    if error.code() in _CORRUPT or error.fatal():
        return TopicError(
            f"the topic {topic} holds what the client cannot read ({error.name()})",
            advice="look at the broker's disk and logs; with compression zstd or a newer format renew confluent-kafka",
        )
    return None


_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,200}\.json")
_LIMIT: Final = 128 << 20
"""The limit of a file in bytes: a message in base64, with a margin."""


def read_claim_check(uri: str, storage: StorageConfig, location: str) -> bytes:
    """Read the complete message of the claim check that a message names by `location`. Its file is below `uri`.

    Raises `SourceError` when the location names no such file or the file is not a claim check, `ObjectMissingError`
    when it does not exist, and as `ObjectStore.read` does.
    """
    name = location.rsplit("/", 1)[-1]
    if not _NAME.fullmatch(name):
        raise SourceError("the message names a claim check whose name is none of TiCDC's", segment=name)
    content = read_segment(uri, storage, name, None, limit=_LIMIT)
    if not content.startswith(b"{"):
        return content
    value = read_json(content, "the claim check", partial(SourceError, segment=name)).get("value")
    if not isinstance(value, str):
        return content
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise SourceError("the value of the claim check is not base64", segment=name) from error
