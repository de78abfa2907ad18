"""What an error of the client means.

Its text holds addresses and what brokers answer, so none of it is passed on but the error's name."""

from __future__ import annotations

import re
import threading
from typing import Final

from confluent_kafka import KafkaError

from cdc_lakehouse.errors import CdcError, SourceError, SourceUnreachableError

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


class Troubles:
    """What the client told of its brokers since it was made. It calls from threads of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[int, str] = {}
        self.too_large: int | None = None
        """Bytes of an answer that the client refused to take."""

    def note(self, error: KafkaError) -> None:
        with self._lock:
            self._told[error.code()] = error.str()
            if found := _TOO_LARGE.search(error.str()):
                self.too_large = int(found[1])

    def fault(self, brokers: str, error: KafkaError | None = None) -> CdcError:
        """Why a request was not answered."""
        with self._lock:
            told = dict(self._told)
        if _LOGIN & told.keys():
            return SourceError(
                f"the Kafka brokers at {brokers} do not take the credentials",
                advice="correct sasl.mechanism, sasl.username and sasl.password of source.kafka",
            )
        if _NOT_TRUSTED in told.get(KafkaError._SSL, ""):
            return SourceError(
                f"the certificate of the Kafka brokers at {brokers} cannot be verified",
                advice="set ssl.ca.location of source.kafka to the authority that issued it",
            )
        names = sorted(KafkaError(code).name() for code in told if code != KafkaError._ALL_BROKERS_DOWN)
        said = names or ([] if error is None else [error.name()])
        return SourceUnreachableError(
            f"the Kafka brokers at {brokers} cannot be reached for now ({', '.join(said) or 'no answer'})"
        )


def topic_fault(topic: str, error: KafkaError) -> CdcError | None:
    """What is wrong with a topic; None for what may pass."""
    if error.code() in _FORBIDDEN:
        return SourceError(
            f"no permission to read the topic {topic} ({error.name()})",
            advice="allow the user of source.kafka READ and DESCRIBE on it",
        )
    if error.code() in _MISSING:
        return SourceError(f"there is no topic {topic}, or not this partition of it", advice="correct source.topics")
    if error.code() in _CORRUPT or error.fatal():
        return SourceError(
            f"the topic {topic} holds what the client cannot read ({error.name()})",
            advice="look at the broker's disk and logs; with compression zstd or a newer format renew confluent-kafka",
        )
    return None
