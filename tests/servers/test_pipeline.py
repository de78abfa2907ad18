"""The whole pipeline with sources and warehouse on real servers: equal to the truth, and whole after each fault."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from cdc_lakehouse.lake.spark import use_catalog
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit.data_sets import apply_stage
from tests.kit.dumped_truth import dump_of
from tests.kit.lakes import TestLake, run_all
from tests.kit.truth import Truth
from tests.servers.buckets import Bucket, GcsBucket, Mirror, S3Bucket, s3_storage
from tests.servers.conftest import S3Server
from tests.servers.proxy import Proxy, proxy_before, reading

pytestmark = [pytest.mark.server, pytest.mark.spark]

T1 = ("test", "t1")
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
        ("gcs", "canal-json/rename_swap"),
        ("azure", "canal-json/date_dirs"),
        pytest.param("gcs", "canal-json/odd_names", marks=pytest.mark.long),
    ],
)
def test_source_on_a_server_equals_its_rows(
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


@pytest.mark.in_turn
def test_warehouse_on_gcs_equals_its_rows(data_sets: Path, gcs: str, spark: SparkSession, tmp_path: Path) -> None:
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


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[Proxy]:
    with proxy_before(s3.endpoint) as proxy:
        yield proxy


@pytest.mark.in_turn
def test_store_faults_within_a_run_are_made_good_by_the_next(
    proxy: Proxy, s3: S3Server, data_sets: Path, new_lake: Callable[..., TestLake]
) -> None:
    """A store that does not answer, credentials that end, and an object that changes after it was listed: nothing of it
    is taken, its table alone waits, and the next run lists it as what it is by then."""
    # The rows are sound in all of its files; only its metadata of stage 2 is not.
    truth, bucket = Truth(data_sets / "canal-json" / "fault_metadata_backwards"), S3Bucket(s3.endpoint)
    storage = s3_storage(proxy.endpoint, bucket.ACCESS, bucket.SECRET)
    lake = new_lake(source={**truth.source, "uri": bucket.uri}, storage=storage)
    mirror = Mirror(lake.sink, bucket)
    for number in (1, 2):
        apply_stage(truth.dataset, number, lake.sink)
        (lake.sink / "metadata").write_text(json.dumps({"checkpoint-ts": truth.stages[number]["checkpoint_ts"]}))
        mirror.sync()
        if number == 1:
            run_all(lake.run())
    stages = json.loads((truth.dataset / "stages.json").read_text())["stages"]
    before, after = ({entry["path"] for entry in stages[number]["files"]} for number in (1, 2))
    path = min(path for path in after - before if re.search(r"test/t1/.*CDC\d+\.json$", path))
    sound = (lake.sink / path).read_bytes()
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
