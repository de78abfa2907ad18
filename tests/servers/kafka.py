"""An Apache Kafka broker of the tests' own: one node that is its own controller, empty when it is first started."""

import base64
import contextlib
import functools
import itertools
import ssl
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import confluent_kafka.admin as by_admin
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition

from tests.kit.processes import free_port, running
from tests.kit.waiting import until
from tests.servers.tools import kafka, run_tool

_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True)
class Sent:
    """A message as it is given to the broker; `at` is its timestamp in milliseconds, the broker's clock where None."""

    value: bytes | None
    key: bytes | None = None
    at: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int = 0


class Broker:
    """Stopped and started again it has the same port and the same data. Who comes by `bootstrap` may do anything;
    `secure` asks for TLS and the password of `USER`, who may do nothing that is not allowed to them."""

    USER, PASSWORD = "reader", "reader-secret-b81c"

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._running = contextlib.ExitStack()
        self._plain, self._secure = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{self._plain}"
        self.secure = f"127.0.0.1:{self._secure}"
        self.certificate = directory / "certificate.pem"
        self._settings = directory / "server.properties"
        keys = directory / "keys.p12"
        store = ["-keystore", str(keys), "-storetype", "PKCS12", "-storepass", self.PASSWORD, "-alias", "broker"]
        name = ["-dname", "CN=127.0.0.1", "-ext", "SAN=IP:127.0.0.1", "-validity", "30"]
        run_tool(["keytool", "-genkeypair", "-keyalg", "EC", *name, *store], seconds=180, tries=1)
        ports = {"plain": self._plain, "secure": self._secure, "controller": free_port()}
        secrets = {"user": self.USER, "password": self.PASSWORD}
        settings = Path(__file__).with_name("broker.properties").read_text(encoding="utf-8")
        self._settings.write_text(settings.format(directory=directory, **ports, **secrets))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        storage = [*kafka("kafka.tools.StorageTool"), "format"]
        run_tool([*storage, f"--cluster-id={cluster}", "-c", str(self._settings)], seconds=180, tries=1)

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        command = [*kafka("kafka.Kafka"), str(self._settings)]
        self._running.enter_context(running(command, self._plain, self._directory / "log"))
        # It takes connections a moment before it is its own controller.
        self.admin.describe_cluster(request_timeout=30).result()
        self.certificate.write_text(ssl.get_server_certificate(("127.0.0.1", self._secure)))

    def stop(self) -> None:
        self._running.close()

    @functools.cached_property
    def admin(self) -> by_admin.AdminClient:
        return by_admin.AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create(self, name: str | None = None, partitions: int = 1, **settings: str) -> str:
        """A topic; `settings` are the topic's own, with `_` for each dot."""
        name = name or f"topic-{next(_NUMBERS)}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        _wait(self.admin.create_topics([by_admin.NewTopic(name, partitions, 1, config=config)]))
        return name

    def delete(self, topic: str) -> None:
        _wait(self.admin.delete_topics([topic]))

    def create_again(self, topic: str) -> None:
        """After it was deleted, which takes the broker a moment."""

        def is_made() -> bool:
            with contextlib.suppress(KafkaException):
                return self.create(topic) == topic
            return False

        until(is_made)

    def add_partitions(self, topic: str, count: int) -> None:
        _wait(self.admin.create_partitions([by_admin.NewPartitions(topic, count)]))

    def allow(self, topic: str, *operations: by_admin.AclOperation) -> None:
        """`USER` may do so from now on."""
        for operation in operations:
            what = ("TOPIC", topic, "LITERAL", f"User:{self.USER}", "*", operation, "ALLOW")
            _wait(self.admin.create_acls([by_admin.AclBinding(*what)]))

    def forget(self, topic: str, before: int, partition: int = 0) -> None:
        """What retention does: messages before an offset are gone."""
        _wait(self.admin.delete_records([TopicPartition(topic, partition, before)]))

    def read(self, topic: str, partition: int = 0) -> Iterator[tuple[int, bytes | None]]:
        """What a partition holds, as (offset, value), by a consumer of its own."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "tests", "enable.partition.eof": True}
        with Consumer(settings) as consumer:
            consumer.assign([TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(30)
                assert message is not None
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    return
                yield message.offset(), message.value()

    def send(self, topic: str, messages: Iterable[Sent | bytes]) -> None:
        self._give(self._producer({}), topic, messages)

    def send_in_transaction(self, topic: str, messages: Iterable[Sent | bytes], *, commit: bool = True) -> None:
        with self.transaction(topic, messages) as producer:
            (producer.commit_transaction if commit else producer.abort_transaction)(30)
        # The broker writes the end of a transaction behind its answer.
        until(lambda: self._end(topic, IsolationLevel.READ_COMMITTED) == self._end(topic))

    def _end(self, topic: str, level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> dict[int, int]:
        """What is behind the last message that a consumer of the level sees, by partition."""
        partitions = self.admin.list_topics(topic, timeout=30).topics[topic].partitions
        asked = {TopicPartition(topic, number): by_admin.OffsetSpec.latest() for number in partitions}
        answers = self.admin.list_offsets(asked, isolation_level=level)
        return {place.partition: answer.result().offset for place, answer in answers.items()}

    @contextlib.contextmanager
    def transaction(self, topic: str, messages: Iterable[Sent | bytes]) -> Any:
        """Messages of a transaction that is open until the block ends it; else it is aborted."""
        producer = self._producer({"transactional.id": f"transaction-{next(_NUMBERS)}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        self._give(producer, topic, messages)
        yield producer

    def _producer(self, settings: dict[str, Any]) -> Producer:
        # Else messages that are sent again, because a new topic has no leader yet, come behind later ones.
        own = {"enable.idempotence": True, "linger.ms": 5, "log_level": 0, "message.max.bytes": 30_000_000}
        return Producer({"bootstrap.servers": self.bootstrap, **own, **settings})

    def _give(self, producer: Producer, topic: str, messages: Iterable[Sent | bytes]) -> None:
        errors: list[Any] = []
        for message in messages:
            sent = message if isinstance(message, Sent) else Sent(message)
            more = {"headers": list(sent.headers), "on_delivery": lambda error, _: errors.append(error)}
            more |= {} if sent.at is None else {"timestamp": sent.at}
            while True:
                try:
                    producer.produce(topic, sent.value, sent.key, sent.partition, **more)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert errors == [None] * len(errors), errors


def _wait(asked: Mapping[Any, Future[Any]]) -> None:
    for answer in asked.values():
        answer.result(30)
