"""The whole pipeline with sources and warehouse on real servers: equal to the truth, and whole after each fault."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from cdc_lakehouse.pipeline.steps import Steps
from tests.kit.data_sets import apply_stage
from tests.kit.dumped_truth import dump_of
from tests.kit.lakes import TestLake, run_all
from tests.kit.truth import Truth
from tests.servers.buckets import WRITER, Bucket, Mirror, S3Bucket, s3_storage
from tests.servers.conftest import S3Server
from tests.servers.proxy import Proxy, reading

pytestmark = [pytest.mark.server, pytest.mark.spark]

T1 = ("test", "t1")
READER_SECRET, WRITER_SECRET = "reader-secret-91bd", "writer-secret-c40e"


def check(lake: TestLake, truth: Truth, number: int) -> None:
    keyless = {name for name, table in truth.tables(number).items() if not table["key"]}
    lake.check(truth.tables(number), except_for=keyless)
    assert lake.events_by_segment() == truth.events_by_segment(number)


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
    service: str, name: str, data_sets: Path, new_bucket: Callable[..., Bucket], request: pytest.FixtureRequest,
    lake_elsewhere: Callable[..., TestLake], tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """From one into another; of Azure onto a disk. On S3 a user may only read the source, and another one writes the
    warehouse, with the rights that docs/security.md names; nothing of either one's credentials is shown anywhere."""
    truth, source = Truth(data_sets / "canal-json" / name), new_bucket(service)
    settings: dict[str, Any] = {"source": {**truth.source, "uri": source.uri}, "storage": source.storage}
    warehouse = None if service == "azure" else new_bucket(service, "lake house")
    settings["warehouse"] = str(tmp_path / "lake house") if warehouse is None else warehouse.uri
    if service == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        reader, writer = s3.new_user(READER_SECRET), s3.new_user(WRITER_SECRET)
        source.allow(reader)
        warehouse.allow(writer, WRITER)
        settings["storage"] = s3_storage(s3.endpoint, reader, READER_SECRET)
        keys = {"access_key_id": writer, "secret_access_key": WRITER_SECRET}
        settings["storage"]["s3"]["buckets"] = {warehouse.name: keys}
    lake = lake_elsewhere(**settings)
    mirror = Mirror(lake.sink, source)
    for number in range(len(truth.stages)):
        apply_stage(truth.dataset, number, lake.sink)
        mirror.sync()
        run_all(lake.run())
        check(lake, truth, number)
    before = lake.metadata()
    run_all(lake.run())
    assert lake.metadata() == before, "a run with nothing to do has changed something"
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
