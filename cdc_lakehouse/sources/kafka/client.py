"""librdkafka's clients as the configuration says: the same settings for a sensor, a run and its tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from cdc_lakehouse.config import KafkaSource
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.sources.kafka.errors import Troubles

_DEFAULTS: Final = {
    "client.id": "cdc-lakehouse",
    # What goes wrong is told by errors; a log of the client would go to stderr, beside them.
    "log_level": "0",
    "check.crcs": "true",
    # A range that ends with the marker of a transaction is known to be read only when the broker says that there is
    # no more, and it waits for so long before it does.
    "fetch.wait.max.ms": "100",
    # By its default a partition is left alone for a second whenever enough is in the queue.
    "fetch.queue.backoff.ms": "5",
    # What is fetched beyond the end of a range is fetched for nothing.
    "queued.min.messages": "20000",
    # A broker that went away is asked again soon, and one that hangs is given up.
    "reconnect.backoff.max.ms": "2000",
    "socket.timeout.ms": "30000",
    "socket.keepalive.enable": "true",
}
_OWN: Final = {
    # The client asks for a name of a group, though it joins none and commits nothing.
    "group.id": "cdc-lakehouse",
    "enable.auto.commit": "false",
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
}
_SETTING: Final = re.compile(r'configuration property:? "([\w.]+)"')


@dataclass(frozen=True, slots=True)
class Client:
    """How the brokers are reached. It is handed to tasks, secrets and all, and never shown.

    A request is given up after `timeout_seconds`; a read without progress after `patience_seconds`."""

    brokers: str
    settings: Mapping[str, str] = field(repr=False)
    timeout_seconds: float = 15
    patience_seconds: float = 60

    @classmethod
    def of(cls, source: KafkaSource) -> Self:
        return cls(",".join(source.bootstrap_servers), dict(source.kafka))

    def impatient(self, seconds: float) -> Client:
        """The same, that gives up sooner."""
        return replace(self, timeout_seconds=seconds, patience_seconds=seconds)

    def consumer(self, troubles: Troubles) -> Consumer:
        try:
            return Consumer(self._configuration(troubles))
        except (KafkaException, TypeError, ValueError) as error:
            raise _refused(error) from None

    def admin(self, troubles: Troubles) -> AdminClient:
        """For what is asked of the cluster."""
        try:
            return AdminClient(self._configuration(troubles))
        except (KafkaException, TypeError, ValueError) as error:
            raise _refused(error) from None

    def _configuration(self, troubles: Troubles) -> dict[str, Any]:
        return {
            **_DEFAULTS,
            **self.settings,
            **_OWN,
            "bootstrap.servers": self.brokers,
            "error_cb": troubles.note,
        }


def _refused(error: Exception) -> ConfigurationError:
    # The client's text may quote a value.
    named = _SETTING.search(str(error))
    what = "a setting of source.kafka" if named is None else f"the setting source.kafka.{named[1]}"
    return ConfigurationError(
        f"the Kafka client does not take {what}", advice="names and values are those of librdkafka's CONFIGURATION.md"
    )
