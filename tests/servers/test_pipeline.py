"""The whole pipeline with sources and warehouse on real servers: equal to the truth, and whole after each fault."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from cdc_lakehouse.lake.spark import use_catalog
from cdc_lakehouse.operate.decisions import replay
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit.data_sets import apply_stage
from tests.kit.dumped_truth import dump_of
from tests.kit.lakes import TestLake, run_all
from tests.kit.truth import Truth
from tests.servers.buckets import Bucket, GcsBucket, Mirror, S3Bucket, s3_storage
from tests.servers.conftest import S3Server
from tests.servers.proxy import Proxy, proxy_before, reading

pytestmark = [pytest.mark.server, pytest.mark.spark]

T0, T1 = ("test", "t0"), ("test", "t1")
READER_SECRET, WRITER_SECRET = "reader-secret-91bd", "writer-secret-c40e"
_USERS = itertools.count(1)


def stage(truth: Truth, number: int, lake: TestLake, mirror: Mirror) -> None:
    apply_stage(truth.dataset, number, lake.sink)
    mirror.sync()


def check(lake: TestLake, truth: Truth, number: int) -> None:
    keyless = {name for name, table in truth.tables(number).items() if not table["key"]}
    lake.check(truth.tables(number), except_for=keyless)
    assert lake.events_by_segment() == truth.events_by_segment(number)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("service", "name"),
    [
        ("s3", "csv/types_text"),
        ("gcs", "canal-json/rename_swap"),
        ("azure", "canal-json/date_dirs"),
        pytest.param("gcs", "canal-json/odd_names", marks=pytest.mark.long),
    ],
)
def test_a_source_on_a_server(
    service: str, name: str, data_sets: Path, new_lake: Callable[..., TestLake], new_bucket: Callable[..., Bucket]
) -> None:
    truth, bucket = Truth(data_sets / name), new_bucket(service)
    lake = new_lake(source={**truth.source, "uri": bucket.uri}, storage=bucket.storage)
    mirror = Mirror(lake.sink, bucket)
    for number in range(len(truth.stages)):
        stage(truth, number, lake, mirror)
        run_all(lake.run())
        check(lake, truth, number)
    before = lake.metadata()
    run_all(lake.run())
    assert lake.metadata() == before, "a run with nothing to do has changed something"


def test_a_dump_on_a_server_of_which_files_are_damaged(
    data_sets: Path, new_lake: Callable[..., TestLake], new_bucket: Callable[..., Bucket], tmp_path: Path
) -> None:
    """Each holds its table alone, and says what is wrong, until it is restored."""
    truth, dumps = Truth(data_sets / "canal-json/date_dirs"), new_bucket("s3")
    root, last = tmp_path / "snapshot", len(truth.stages) - 1
    dump_of(truth, last // 2, root, suffix=".gz")
    initial = {"type": "dumpling", "uri": dumps.uri}
    lake = new_lake(source={**truth.source, "initial": initial}, storage=dumps.storage)
    apply_stage(truth.dataset, last, lake.sink)
    cut, garbled = sorted(root.glob("*.000000000.csv.gz"))[:2]
    whole = {path: path.read_bytes() for path in (cut, garbled)}
    cut.write_bytes(whole[cut][:-9])
    lines = gzip.decompress(whole[garbled]).splitlines(keepends=True)
    garbled.write_bytes(gzip.compress(b"".join([*lines[:2], b"\x00no,rows\r\n" * 3, *lines[2:]])))
    mirror = Mirror(root, dumps)
    mirror.sync()
    done = run_all(lake.run())
    held = {done.applied.lives[id].last.name.table: reason for id, reason in done.applied.held.items()}
    parts = {path: path.name.split(".") for path in whole}
    names = {path: (database, table) for path, (database, table, *_) in parts.items()}
    assert held.keys() == {table for _, table in names.values()}
    assert "the gzip file cannot be decompressed" in held[names[cut][1]]
    rows = [row for row in lake.machinery("quarantine") if row["table"] == names[garbled][1]]
    assert {row["line"] for row in rows} == {2, 3, 4} and all(garbled.name in row["segment"] for row in rows)
    lake.check(truth.tables(last), except_for=set(names.values()))
    for path, content in whole.items():
        path.write_bytes(content)
    mirror.sync()
    run = lake.run()
    assert replay(run, run.quarantine.open()).landed
    assert not run_all(lake.run()).applied.held
    lake.check(truth.tables(last))


@pytest.mark.parametrize("name", ["types_text", pytest.param("odd_names", marks=pytest.mark.long)])
def test_from_s3_into_s3_by_users_with_the_least_rights(
    name: str, data_sets: Path, s3: S3Server, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The source's bucket may only be read, and the warehouse's written by a user of its own, with the rights that
    docs/security.md names; nothing of either one's credentials is shown anywhere."""
    truth = Truth(data_sets / "canal-json" / name)
    source, warehouse = S3Bucket(s3.endpoint), S3Bucket(s3.endpoint, prefix="lake house")
    reader = f"pipeline-reader{next(_USERS)}"
    s3.add_user(reader, READER_SECRET)
    source.allow_reading(reader)
    storage = s3_storage(s3.endpoint, reader, READER_SECRET)
    writer = f"pipeline-writer{next(_USERS)}"
    s3.add_user(writer, WRITER_SECRET)
    warehouse.allow_writing(writer)
    storage["s3"]["buckets"] = {warehouse.name: {"access_key_id": writer, "secret_access_key": WRITER_SECRET}}

    settings = {"source": {**truth.source, "uri": source.uri}, "storage": storage, "warehouse": warehouse.uri}
    session = spark.newSession()
    lake = TestLake(tmp_path / "lake", tmp_path / "feed", lambda: session, **settings)
    use_catalog(session, lake.config.lake, lake.config.storage)
    mirror = Mirror(lake.sink, source)
    written: set[str] = set()
    for number in range(len(truth.stages)):
        stage(truth, number, lake, mirror)
        written = set(source.keys())
        run_all(lake.run())
        check(lake, truth, number)
    assert set(source.keys()) == written, "something was written to the source"
    assert any(key.endswith(".parquet") for key in warehouse.keys())  # noqa: SIM118
    assert not list((tmp_path / "lake").glob("warehouse*")), "something was written beside the warehouse"
    shown = "".join(capfd.readouterr()) + repr(lake.config)
    assert READER_SECRET not in shown and WRITER_SECRET not in shown


def test_into_a_warehouse_on_gcs(data_sets: Path, gcs: str, spark: SparkSession, tmp_path: Path) -> None:
    truth, warehouse = Truth(data_sets / "canal-json/types_text"), GcsBucket(gcs, prefix="lake")
    session = spark.newSession()
    settings = {"source": truth.source, "storage": warehouse.storage, "warehouse": warehouse.uri}
    lake = TestLake(tmp_path / "lake", tmp_path / "feed", lambda: session, **settings)
    use_catalog(session, lake.config.lake, lake.config.storage)
    for number in range(len(truth.stages)):
        apply_stage(truth.dataset, number, lake.sink)
        run_all(lake.run())
        check(lake, truth, number)
    assert not list((tmp_path / "lake").glob("warehouse*")), "something was written beside the warehouse"


class Remote:
    """A changefeed of two tables on S3, behind a proxy, that has run stage 1; stage 2 has come."""

    def __init__(self, data_sets: Path, new_lake: Callable[..., TestLake], bucket: S3Bucket, proxy: Proxy) -> None:
        # The rows are sound in all of its files; only its metadata of stage 2 is not.
        self.truth = Truth(data_sets / "canal-json" / "fault_metadata_backwards")
        self.bucket, self.proxy = bucket, proxy
        storage = s3_storage(proxy.endpoint, bucket.ACCESS, bucket.SECRET)
        self.lake = new_lake(source={**self.truth.source, "uri": bucket.uri}, storage=storage)
        self.mirror = Mirror(self.lake.sink, bucket)

    def stage(self, number: int) -> None:
        apply_stage(self.truth.dataset, number, self.lake.sink)
        checkpoint = self.truth.stages[number]["checkpoint_ts"]
        (self.lake.sink / "metadata").write_text(json.dumps({"checkpoint-ts": checkpoint}))
        self.mirror.sync()

    def new_file(self) -> str:
        """A data file of t1 that only stage 2 brings."""
        stages = json.loads((self.truth.dataset / "stages.json").read_text())["stages"]
        before, after = ({entry["path"] for entry in stages[number]["files"]} for number in (1, 2))
        return min(path for path in after - before if re.search(r"test/t1/.*CDC\d+\.json$", path))

    def content(self, path: str) -> bytes:
        return (self.lake.sink / path).read_bytes()

    def run(self, **options: Any) -> Steps:
        return run_all(self.lake.run(**options))

    def check_held(self, done: Steps, *words: str) -> None:
        (reason,) = done.applied.held.values()
        for word in words:
            assert word in reason, reason
        expected = self.truth.tables(2)
        expected[T1] = self.truth.tables(1)[T1]
        self.lake.check(expected)

    def check_done(self) -> None:
        done = self.run()
        assert not done.applied.held and not done.run.quarantine.open()
        self.lake.check(self.truth.tables(2))


@pytest.fixture
def remote(s3: S3Server, data_sets: Path, new_lake: Callable[..., TestLake]) -> Iterator[Remote]:
    with proxy_before(s3.endpoint) as proxy:
        remote = Remote(data_sets, new_lake, S3Bucket(s3.endpoint), proxy)
        remote.stage(1)
        remote.run()
        remote.stage(2)
        yield remote


def test_an_object_that_changes_between_list_and_read(remote: Remote) -> None:
    """None of it is taken, its table waits, and the next run lists it as what it is by then."""
    path = remote.new_file()
    sound = remote.content(path)
    longer = sound + sound.replace(b'"id":"', b'"id":"9')
    remote.bucket.put(path, longer)
    steps = Steps(remote.lake.run())
    _ = steps.landed
    remote.bucket.put(path, sound)
    _ = steps.published
    remote.check_held(steps, "changed since it was listed", path)
    assert path not in remote.lake.events_by_segment()
    remote.check_done()
    assert remote.lake.events_by_segment() == remote.truth.events_by_segment(2)


def test_a_store_that_does_not_answer_in_a_task(remote: Remote) -> None:
    """The run fails as one that may be tried again; nothing is taken for bad, and the next run does it all."""
    steps = Steps(remote.lake.run())
    _ = steps.landed
    fault = remote.proxy.add(applies=reading(".json"), times=1_000_000, status=503)
    with pytest.raises(SourceUnreachableError, match=r"HTTP 503 SlowDown"):
        _ = steps.published
    assert not remote.lake.machinery("quarantine")
    fault.times = 0
    remote.check_done()


@pytest.mark.parametrize(("status", "code"), [(400, "ExpiredToken"), (403, "InvalidAccessKeyId")])
def test_credentials_that_end_in_the_middle_of_a_run(remote: Remote, status: int, code: str) -> None:
    """That is of the whole store: no segment is to blame."""
    steps = Steps(remote.lake.run())
    _ = steps.landed
    fault = remote.proxy.add(applies=reading(".json"), times=1_000_000, status=status, code=code)
    with pytest.raises(SourceError, match=rf"does not take the credentials \(HTTP {status} {code}\)"):
        _ = steps.published
    assert not remote.lake.machinery("quarantine")
    fault.times = 0
    remote.check_done()
