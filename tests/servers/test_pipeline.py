"""The whole pipeline with sources and warehouse on real servers, and on a cluster of Spark's: equal to the truth, and
whole after each fault."""

import contextlib
import datetime
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyiceberg.table import Table

from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from cdc_lakehouse.operate.maintenance import Maintenance
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit import data_sets as packed
from tests.kit.data_sets import apply_stage
from tests.kit.dumps import dump_of
from tests.kit.kills import KillAtCommit
from tests.kit.lakes import TestLake, run_all
from tests.kit.processes import free_port, in_own_session, running
from tests.kit.scenarios import load, play
from tests.kit.truth import Truth
from tests.kit.waiting import until
from tests.servers.buckets import WRITER, Bucket, Mirror, S3Bucket, s3_storage
from tests.servers.kafka import Broker, Sent
from tests.servers.proxy import Proxy, reading

pytestmark = [pytest.mark.server, pytest.mark.spark]

T1 = ("test", "t1")
READER_SECRET, WRITER_SECRET = "reader-secret-91bd", "writer-secret-c40e"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("service", "name"),
    [
        ("s3", "types_text"),
        ("gcs", "rename_swap"),
        ("azure", "date_dirs"),
        *(pytest.param(service, "odd_names", marks=pytest.mark.long) for service in ("s3", "gcs")),
    ],
)
def test_feed_between_buckets_equals_its_rows(
    service: str, name: str, data_sets: Path, new_bucket: Callable[..., Any], lake_elsewhere: Callable[..., TestLake],
    tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """From one into another; of Azure onto a disk. On S3 a user may only read the source, and another one writes the
    warehouse, with the rights that docs/security.md names; nothing of either one's credentials is shown anywhere."""
    truth, source = Truth(data_sets / "canal-json" / name), new_bucket(service)
    settings: dict[str, Any] = {"source": {**truth.source, "uri": source.uri}, "storage": source.storage}
    warehouse = None if service == "azure" else new_bucket(service, "lake house")
    settings["warehouse"] = str(tmp_path / "lake house") if warehouse is None else warehouse.uri
    if service == "s3":
        settings["storage"] = s3_storage(source.endpoint, source.new_user(READER_SECRET), READER_SECRET)
        keys = {"access_key_id": warehouse.new_user(WRITER_SECRET, WRITER), "secret_access_key": WRITER_SECRET}
        settings["storage"]["s3"]["buckets"] = {warehouse.name: keys}
    lake = lake_elsewhere(**settings)
    mirror = Mirror(lake.sink, source)
    for number in range(len(truth.stages)):
        apply_stage(truth.dataset, number, lake.sink)
        mirror.sync()
        run_all(lake.run())
        tables = truth.tables(number)
        lake.check(tables, except_for={name for name, table in tables.items() if not table["key"]})
        assert lake.events_by_segment() == truth.events_by_segment(number)
    lake.check_nothing_to_do()
    shown = "".join(capfd.readouterr()) + repr(lake.config)
    assert READER_SECRET not in shown and WRITER_SECRET not in shown


def test_dump_on_a_server_is_loaded(
    data_sets: Path, new_lake: Callable[..., TestLake], new_bucket: Callable[..., Bucket], tmp_path: Path
) -> None:
    truth, dumps = Truth(data_sets / "canal-json/date_dirs"), new_bucket("s3")
    last = len(truth.stages) - 1
    dump_of(truth, last // 2, tmp_path / "snapshot", suffix=".gz")
    Mirror(tmp_path / "snapshot", dumps).sync()
    lake = new_lake(source={**truth.source, "initial": {"type": "dumpling", "uri": dumps.uri}}, storage=dumps.storage)
    apply_stage(truth.dataset, last, lake.sink)
    assert run_all(lake.run()).loaded.commit_ts == truth.stages[last // 2]["checkpoint_ts"]
    lake.check(truth.tables(last))


@pytest.mark.in_turn
def test_store_faults_within_a_run_are_made_good_by_the_next(
    proxy: Proxy, s3: str, data_sets: Path, new_lake: Callable[..., TestLake]
) -> None:
    """A store that does not answer, credentials that end, and an object that changes after it was listed: nothing of it
    is taken, its table alone waits, and the next run lists it as what it is by then."""
    # The rows are sound in all of its files; only its metadata of stage 2 is not.
    truth, bucket = Truth(data_sets / "canal-json" / "fault_metadata_backwards"), S3Bucket(s3)
    storage = s3_storage(proxy.endpoint, bucket.ACCESS, bucket.SECRET)
    lake = new_lake(source={**truth.source, "uri": bucket.uri}, storage=storage)
    mirror = Mirror(lake.sink, bucket)
    for number in (1, 2):
        before = set(lake.sink.rglob("CDC*.json"))
        apply_stage(truth.dataset, number, lake.sink)
        (lake.sink / "metadata").write_text(json.dumps({"checkpoint-ts": truth.stages[number]["checkpoint_ts"]}))
        mirror.sync()
        if number == 1:
            run_all(lake.run())
    file = min(set(lake.sink.glob("test/t1/**/CDC*.json")) - before)
    path, sound = str(file.relative_to(lake.sink)), file.read_bytes()
    bucket.put(path, sound + sound.replace(b'"id":"', b'"id":"9'))
    for status, code, kind, words in (
        (503, "SlowDown", SourceUnreachableError, r"HTTP 503 SlowDown"),
        (400, "ExpiredToken", SourceError, r"does not take the credentials \(HTTP 400 ExpiredToken\)"),
        (403, "InvalidAccessKeyId", SourceError, r"does not take the credentials \(HTTP 403 InvalidAccessKeyId\)"),
    ):
        steps = Steps(lake.run())
        _ = steps.landed
        fault = proxy.add(applies=reading(".json"), times=1_000_000, status=status, code=code)
        with pytest.raises(kind, match=words):
            _ = steps.published
        fault.times = 0
        assert not lake.machinery("quarantine"), "of the whole store: no segment is to blame"
    steps = Steps(lake.run())
    _ = steps.landed
    bucket.put(path, sound)
    _ = steps.published
    (reason,) = steps.applied.held.values()
    assert "changed since it was listed" in reason and path in reason
    lake.check({**truth.tables(2), T1: truth.tables(1)[T1]})
    assert path not in lake.events_by_segment()
    done = run_all(lake.run())
    assert not done.applied.held and not done.run.quarantine.open()
    lake.check(truth.tables(2))
    assert lake.events_by_segment() == truth.events_by_segment(2)


# --- Topics: data sets of messages through a real broker ---

CLAIM_CHECK = "large_claim_check"
SHORT = {"types_all_random", "rename_chain_topic_per_table", "drop_recreate_topic_per_table", CLAIM_CHECK}
"""What other sets have, scenarios over topics and chaos have too."""
SOUND = [
    pytest.param(name, marks=[] if name in SHORT else pytest.mark.long)
    for name in packed.names("kafka")
    if name != "large_handle_key_only"  # Its messages hold only keys.
]
PARTITIONS = 3


class TopicSet:
    """A data set's messages on the broker: in a topic of its own, or where it has one for each table, in as many, each
    of which is made when it gets its first message."""

    def __init__(
        self, directory: Path, broker: Broker, new_lake: Callable[..., TestLake], storage: Any = None, **source: Any
    ) -> None:
        self.truth, self._broker = Truth(directory), broker
        self.stages = json.loads((directory / "stages.json").read_text(encoding="utf-8"))["stages"]
        self.last = len(self.stages) - 1
        self.messages: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for file in sorted(directory.glob("*.jsonl")):
            for line in map(json.loads, filter(None, file.read_bytes().split(b"\n"))):
                self.messages.setdefault((line["topic"], line["partition"]), []).append(line)
        first, *others = sorted({topic for stage in self.stages for topic in stage["end"]})
        self.topic = broker.create(partitions=PARTITIONS)
        self._topics = {first: self.topic}
        self.sent = dict.fromkeys(((topic, n) for topic in (first, *others) for n in range(PARTITIONS)), 0)
        topics = {"topic_pattern": f"{re.escape(self.topic)}(_.*)?"} if others else {"topics": [self.topic]}
        told = {"type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": broker.bootstrap, **topics}
        self.lake = new_lake(source={**told, **source}, start_date="2020-01-01", storage=storage)

    def advance(self, stage: int) -> None:
        """What is there at a stage, sent."""
        for topic, ends in self.stages[stage]["end"].items():
            for place, end in (((topic, number), end) for number, end in enumerate(ends)):
                messages = self.messages.get(place, [])[self.sent[place] : end]
                if messages and topic not in self._topics:
                    self._topics[topic] = self._broker.create(f"{self.topic}_{topic}", partitions=PARTITIONS)
                if messages:
                    self._broker.send(self._topics[topic], map(_sent, messages))
                self.sent[place] = max(end, self.sent[place])


def _sent(message: dict[str, Any]) -> Sent:
    key, value = (None if each is None else each.encode() for each in (message["key"], message["value"]))
    return Sent(value, key, partition=message["partition"], at=message["timestamp"])


@pytest.fixture
def topic_set(data_sets: Path, kafka: Broker, new_lake: Callable[..., TestLake]) -> Callable[..., TopicSet]:
    return lambda name, **more: TopicSet(data_sets / "kafka" / name, kafka, new_lake, **more)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", SOUND)
def test_topics_at_each_stage_equal_their_rows(
    name: str, topic_set: Callable[..., TopicSet], new_bucket: Callable[..., Bucket], data_sets: Path
) -> None:
    more: dict[str, Any] = {}
    if name == CLAIM_CHECK:
        bucket = new_bucket("s3")
        Mirror(data_sets / "kafka" / name / "claims", bucket).sync()
        more = {"storage": bucket.storage, "claim_check": bucket.uri}
    found = topic_set(name, **more)
    for stage in range(len(found.stages)):
        found.advance(stage)
        done = found.lake.go_through()
        assert done.published.cut.checkpoint_ts == found.stages[stage]["checkpoint_ts"]
        found.lake.check(found.truth.tables(stage))
    found.lake.check_nothing_to_do()


def test_rows_left_out_by_a_killed_run_are_taken_later(topic_set: Callable[..., TopicSet]) -> None:
    found = topic_set("random_2")
    found.advance(found.last)
    left_out = next(name for name, rows in found.truth.tables(found.last).items() if rows["rows"])
    found.lake.configure(tables={"exclude": [".".join(left_out)]})
    commits = list[str]()
    while commits != ["update events"]:
        with KillAtCommit(2)(found.lake) as killed:
            run_all(found.lake.run())
        assert killed.happened, "no kill came right after the events"
        commits = killed.commits
    found.lake.configure(tables={})
    found.lake.go_through()
    found.lake.check(found.truth.tables(found.last))
    assert not [row for row in found.lake.machinery("quarantine") if row["state"] == "open"]
    found.lake.check_nothing_to_do()


def test_topic_goes_on_from_a_dump_unless_it_begins_later(
    kafka: Broker, topic_set: Callable[..., TopicSet], tmp_path: Path
) -> None:
    """As one of a changefeed that was created later, or whose messages the brokers have removed."""
    root = tmp_path / "snapshot"
    found, late = (topic_set("rename_chain", initial={"type": "dumpling", "uri": str(root)}) for _ in range(2))
    middle, last = found.last // 2, found.last
    at, early = found.stages[middle]["checkpoint_ts"], 400_000_000_000_000_000
    dump_of(found.truth, middle, root, filetype="sql")
    whole = (root / "metadata").read_text()
    (root / "metadata").write_text(whole.replace(str(at), str(early)))
    found.advance(last)
    with pytest.raises(SourceError, match=rf"the dump is of {early} and the change log begins at 4\d{{17}}"):
        run_all(found.lake.run())
    (root / "metadata").write_text(whole)
    late.advance(last)
    for (_, partition), sent in late.sent.items():
        if sent > 2:
            kafka.forget(late.topic, sent - 2, partition)  # As retention does.
    words = rf"the dump is of {at}, and partition 0 of the topic \S+ is whole from the commit-ts "
    with pytest.raises(SourceError, match=words):
        run_all(late.lake.run())
    assert not found.lake.machinery("segments") and not late.lake.machinery("segments"), "nothing is loaded"
    assert found.lake.go_through().loaded.commit_ts == at
    found.lake.check(found.truth.tables(last))


def test_without_the_extension_the_order_is_the_offset(kafka: Broker, topic_set: Callable[..., TopicSet]) -> None:
    """The messages of all partitions, in the order of their commits, in a topic with one."""
    found = topic_set("rename_chain", tidb_extension=False, topics=[topic := kafka.create()])
    told: dict[tuple[int, bool, Any], bytes] = {}
    for value in (json.loads(each["value"]) for messages in found.messages.values() for each in messages):
        if (at := value.pop("_tidb").get("commitTs")) is not None:
            # A statement is in every partition.
            told[at, value["isDdl"], value["sql"] or len(told)] = json.dumps(value).encode()
    values = [told[place] for place in sorted(told, key=lambda place: place[:2])]
    for part in values[: len(values) // 2], values[len(values) // 2 :]:
        kafka.send(topic, part)
        found.lake.go_through()
    found.lake.check(found.truth.tables(found.last))


# --- Warehouses: what removes files, and what stops in the middle, on a disk and on S3 ---

CASES = Path(__file__).with_name("cases")


def referenced(table: Table) -> set[str]:
    """All files that a table's metadata names, in any of its snapshots."""
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            found |= {entry.data_file.file_path for entry in entries}
    return found


@pytest.mark.in_turn
@pytest.mark.parametrize("where", ["disk", "s3"])
def test_orphans_are_removed_and_no_live_file(
    where: str, request: pytest.FixtureRequest, lake_elsewhere: Callable[..., TestLake], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    root, place = tmp_path / "ware house", dict[str, Any](warehouse=str(tmp_path / "ware house"))
    if where == "s3":
        bucket = S3Bucket(request.getfixturevalue("s3"), prefix="ware house")
        root = request.getfixturevalue("s3_data") / bucket.name / "ware house"
        place = {"warehouse": bucket.uri, "storage": bucket.storage}
    lakes = list[TestLake]()

    def new_lake(**feed: Any) -> TestLake:
        lakes.append(lake_elsewhere(**feed, **place))
        return lakes[-1]

    file = load(CASES / "orphans.txt")
    play(file, file.ways[0], new_lake, monkeypatch)
    (lake,) = lakes
    rows = lake.all_rows()

    def files() -> set[str]:
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    def local(location: str) -> str:
        _, found, path = location.partition(f"/{root.name}/")
        assert found, location
        return path

    def tables() -> dict[str, Table]:
        """By the name that maintenance gives them, those in which it looks for orphans."""
        own = [lake.lake.catalog.load_table((f"cdc_{lake.name}", name)) for name in ("events", "records")]
        return {".".join(table.name()): table for table in (*lake.tables().values(), *own)}

    def orphans_of(*table: str, dry_run: bool = False) -> dict[str, int]:
        """How many maintenance removes, which does nothing else."""
        done = Maintenance(lake.feed, lake.lake, lake.session).maintain(*table, dry_run=dry_run)
        for each in done.tables:
            assert each.deferred is None and each.counts["compacted_files"] == each.counts["expired_snapshots"] == 0
        return {str(each.identifier): each.counts["orphan_files"] for each in done.tables}

    locations = {name: local(table.location()) for name, table in tables().items()}
    names_of_orphans = ("data/old ü 1.parquet", "data/feed_date=2020-01-01/00000-0-old.parquet", "metadata/old-m0.avro")
    planted = {f"{location}/{each}" for each in names_of_orphans for location in locations.values()}
    for name in planted:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"of a task that died")
    before = files()
    days_ago = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=4)).timestamp()
    for name in before:
        os.utime(root / name, (days_ago, days_ago))
    fresh = {f"{location}/data/fresh.parquet" for location in locations.values()}
    for name in fresh:
        (root / name).write_bytes(b"of a task that works")
    live = {local(path) for table in tables().values() for path in referenced(table)}
    assert live <= before
    orphans = {name: {path for path in before - live if path.startswith(f"{of}/")} for name, of in locations.items()}
    assert set().union(*orphans.values()) >= planted
    metadata = lake.metadata()
    assert orphans_of(dry_run=True) == {name: len(paths) for name, paths in orphans.items()}
    assert (files(), lake.metadata()) == (before | fresh, metadata), "a dry run does nothing at all"
    orphans_of("s1.t2")
    assert before - files() == orphans[f"{lake.name}__s1.t2"]
    orphans_of()
    under = tuple(f"{location}/" for location in locations.values())
    assert {path for path in before - files() if path.startswith(under)} == set().union(*orphans.values())
    assert fresh <= files()
    for table in tables().values():
        for snapshot in table.snapshots():
            table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    done = run_all(lake.run(rebuild=lake.names(), dates=frozenset({r["feed_date"] for r in lake.machinery("records")})))
    assert not done.applied.held and lake.all_rows() == rows


@pytest.mark.in_turn
def test_scenario_in_a_warehouse_on_s3_ends_as_written(
    s3: str, lake_elsewhere: Callable[..., TestLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cases/warehouse.txt`; those of tests/scenarios are on a disk."""
    bucket, file = S3Bucket(s3, prefix="ware house"), load(CASES / "warehouse.txt")
    new_lake = functools.partial(lake_elsewhere, warehouse=bucket.uri, storage=bucket.storage)
    play(file, file.ways[0], new_lake, monkeypatch)


# --- A cluster of Spark's own: a master and a worker, each a process ---

_HERE = "127.0.0.1"
_SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """Its URL. The worker has two cores."""
    home = Path(pyspark.__file__).parent
    # The version of Scala is what Spark's scripts find out.
    own = {"HOME": str(home), "SCALA_VERSION": "2.13", "LOCAL_IP": _HERE, "WORKER_DIR": str(directory / "work")}
    environment = {**os.environ, **{f"SPARK_{name}": value for name, value in own.items()}}
    port, log = free_port(), directory / "worker.log"

    def daemon(kind: str, port: int, log: Path, *options: str) -> contextlib.AbstractContextManager[object]:
        where = ["--host", _HERE, "--port", str(port), "--webui-port", str(free_port())]
        main = ["-cp", str(home / "jars" / "*"), f"org.apache.spark.deploy.{kind}"]
        return running(["java", *_SMALL, *main, *where, *options], port, log, environment)

    with daemon("master.Master", port, directory / "master.log"):
        url = f"spark://{_HERE}:{port}"
        with daemon("worker.Worker", free_port(), log, "--cores", "2", "--memory", "2g", url):
            until(lambda: "Successfully registered" in log.read_text())
            yield url


_IN_TASKS = """
import pytest
from cdc_lakehouse.cli import main
from tests.kit.lakes import let_spark_do_all
let_spark_do_all(pytest.MonkeyPatch())
main()
"""


@pytest.mark.in_turn
def test_run_of_two_executors_equals_its_rows(data_sets: Path, tmp_path: Path) -> None:
    truth = Truth(data_sets / "canal-json/types_all_random")
    (tmp_path / "lake").mkdir()
    lake = TestLake(tmp_path / "lake", tmp_path / "feed", pytest.fail, source=truth.source)
    with cluster(tmp_path) as url:
        document = json.loads(lake.config_path.read_text())
        conf = {"spark.driver.host": _HERE, "spark.executor.memory": "512m", "spark.executor.cores": "1"}
        conf |= {f"spark.{part}.extraJavaOptions": " ".join(_SMALL[1:]) for part in ("driver", "executor")}
        document["lake"]["spark"] = {"master": url, "conf": conf}
        lake.config_path.write_text(json.dumps(document))
        places = {"CDC_LAKEHOUSE_CONFIG": str(lake.config_path), "DAGSTER_HOME": str(tmp_path), "SPARK_LOCAL_IP": _HERE}
        last = len(truth.stages) - 1
        apply_stage(truth.dataset, last, lake.sink)
        with in_own_session([sys.executable, "-c", _IN_TASKS, "run"], tmp_path / "log", places) as process:
            assert process.wait(600) == 0, (tmp_path / "log").read_text()
    lake.check(truth.tables(last))
    assert lake.events_by_segment() == truth.events_by_segment(last)
    assert len(list((tmp_path / "work").glob("app-*/*/stderr"))) == 2, "both executors"
