"""`init`, `doctor` and `sample` as a new user runs them."""

import base64
import contextlib
import datetime
import json
import os
import pty
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result

from cdc_lakehouse import config
from cdc_lakehouse.assets.keys import partitions_of
from cdc_lakehouse.changelog.positions import commit_time, utc_now
from cdc_lakehouse.commands import doctor
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.sample.shop import write_history
from cdc_lakehouse.sources.object_store import LocalStore, open_store
from cdc_lakehouse.sources.sink.paths import list_sink, read_checkpoint
from tests import LONG
from tests.commands import call
from tests.kit.data_sets import names
from tests.kit.dumps import dump_of
from tests.kit.hand_sinks import layout_with
from tests.kit.kafka import MemoryTopic
from tests.kit.truth import Truth
from tests.sample.test_changefeed import contents


@pytest.mark.parametrize("protocol", ["canal-json", "csv"])
def test_a_sink_is_read_as_it_was_written(protocol: str, data_sets: Path, here: Path) -> None:
    looked = 0
    for name in names(protocol)[:: 1 if LONG else 2]:
        dataset = data_sets / protocol / name
        if not any((dataset / "tree").rglob(f"CDC*.{'csv' if protocol == 'csv' else 'json'}")):
            continue
        result = call("init", "--source", str(dataset / "tree"), "--force")
        assert result.exit_code == 0, (name, result.output)
        source = config.load(here / "lakehouse.yaml").feeds[0].storage_sink
        # What the data set says of the changefeed that wrote it.
        said = json.loads((dataset / "expected.json").read_text(encoding="utf-8"))
        sink, encoder = said["sink"], said["encoder"]
        assert (source.protocol, source.date_separator) == (sink["protocol"], sink["date"] or "none"), name
        assert (source.csv is not None) == (protocol == "csv"), name
        if (csv := source.csv) is not None:
            read = (csv.delimiter, csv.quote, csv.null, csv.terminator, csv.output_old_value, csv.output_field_header)
            written = (encoder["delimiter"], encoder["quote"], encoder["null"], sink["terminator"])
            assert read == (*written, encoder["old_value"], encoder["header"]), name
        looked += 1
    assert looked > 10


def test_a_dump_beside_the_log_is_found(data_sets: Path, here: Path) -> None:
    """As `<prefix>/snapshot` and `<prefix>/incremental`, or where it is said to be."""
    truth = Truth(data_sets / "canal-json" / "date_dirs")
    dump_of(truth, 0, here / "shop" / "snapshot")
    shutil.copytree(truth.dataset / "tree", here / "shop" / "incremental")
    words = (["shop"], ["shop/incremental", "--dump", "shop/snapshot"])
    for source in words:
        result = call("init", "--source", *source, "--force")
        assert result.exit_code == 0 and f"found a dump of dumpling at file://{here}/shop/snapshot" in result.output
        found = config.load(here / "lakehouse.yaml").feeds[0].storage_sink
        assert found.uri.endswith("/shop/incremental") and found.initial is not None
        assert (found.initial.type, found.initial.uri) == ("dumpling", f"file://{here}/shop/snapshot")
    (here / "shop" / "snapshot" / "metadata").unlink()
    for source in words:
        refused = call("init", "--source", *source, "--force")
        assert refused.exit_code == 1 and "holds no finished dump" in refused.output


def test_the_time_zone_shows_where_rows_say_when_they_were_written(here: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    write_history(here / "sink", start=now - datetime.timedelta(hours=2), end=now, transactions=50, seed=1)
    for file in (here / "sink").rglob("CDC*.json"):
        lines = [json.loads(line) for line in file.read_bytes().splitlines()]
        for line in lines:
            stamps = [name for name, type in line["mysqlType"].items() if type.startswith("timestamp")]
            commit = datetime.datetime.fromtimestamp((line["_tidb"]["commitTs"] >> 18) / 1000, datetime.UTC)
            for row in line["data"] or []:
                row |= dict.fromkeys(stamps, f"{commit + datetime.timedelta(hours=8):%Y-%m-%d %H:%M:%S}")
        file.write_text("".join(json.dumps(line) + "\r\n" for line in lines), encoding="utf-8")
    result = call("init", "--source", "sink")
    assert result.exit_code == 0 and "+08:00" in result.output
    assert config.load(here / "lakehouse.yaml").feeds[0].storage_sink.time_zone == "+08:00"


def test_terminal_is_asked_until_each_answer_is_right(data_sets: Path, here: Path) -> None:
    """For the source, the warehouse, the catalog and the engines, of which the last three have a default."""
    tree = data_sets / "canal-json" / "date_dirs" / "tree"
    terminal, inside = pty.openpty()
    program = Path(sys.executable).with_name("cdc-lakehouse")
    with subprocess.Popen([program, "init"], cwd=here, stdin=inside, stdout=inside, stderr=inside) as asked:
        os.close(inside)
        os.write(terminal, f"{tree}/none\n{tree}\nftp://x\ns3://lake/tables\n\nathena\n".encode())
        said = b""
        with contextlib.suppress(OSError):  # Nobody has the other end any more.
            while part := os.read(terminal, 4096):
                said += part
    os.close(terminal)
    assert asked.returncode == 0, said.decode()
    assert b"is not a directory" in said and b"ftp:// is not supported" in said
    found, (feed,) = (loaded := config.load(here / "lakehouse.yaml")).lake, loaded.feeds
    assert feed.format_version == 2
    assert (found.warehouse, found.catalog.uri) == ("s3://lake/tables", f"sqlite:///{here}/lake/catalog.db")


def test_pythons_that_are_supported_are_stated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the project's metadata, from which `scripts/setup` has them, by the lock and by doctor."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    low, high = (".".join(map(str, each)) for each in doctor.PYTHONS)
    assert project["project"]["requires-python"] == f">={low},<{high}"
    assert f'requires-python = ">={low}, <{high}"\n' in (root / "uv.lock").read_text(encoding="utf-8")
    tried = [tuple(map(int, each.split("."))) for each in project["tool"]["cdc-lakehouse"]["tried-pythons"]]
    assert tried[0] == doctor.PYTHONS[0] and tried == sorted(tried) and tried[-1] < doctor.PYTHONS[1]
    for version in ((3, 11, 1), (3, 14, 0)):
        monkeypatch.setattr(doctor.sys, "version_info", version)
        with pytest.raises(ConfigurationError, match="no test ran on this version"):
            doctor._python()


@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_topic_with_compressed_values_is_reported(codec: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = b'{"database":"d","table":"t","type":"TIDB_WATERMARK","_tidb":{"watermarkTs":463256217600000001}}'
    value = base64.b64encode(pa.Codec(codec).compress(message, asbytes=True)).decode()
    MemoryTopic(monkeypatch).send([{"partition": 0, "key": None, "b64": value, "timestamp": 0}])
    said = call("init", "--source", "kafka://broker:9092/cdc")
    assert f"TiCDC compresses with {codec}" in said.output
    assert config.load(here / "lakehouse.yaml").feeds[0].kafka.format == "ticdc-canal-json"
    assert f"TiCDC compresses values with {codec}" in call("doctor").output


def test_doctor_names_a_java_that_is_missing(data_sets: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("init", "--source", str(data_sets / "canal-json" / "date_dirs" / "tree"), "--name", "shop")
    assert "archive-classes" not in call("doctor").output
    monkeypatch.setenv("JAVA_HOME", str(here))
    said = call("doctor").output
    assert "`python -m cdc_lakehouse.lake.spark --archive-classes`" in said and "JAVA_HOME" in said
    outcomes = {each["part"]: each["outcome"] for each in json.loads(call("doctor", "--json").stdout)["findings"]}
    assert (outcomes["java"], outcomes["jars"]) == ("failed", "ok")


# --- A sample changefeed ---


def sample(directory: Path, *options: str) -> Result:
    return call("sample", "--directory", str(directory), "--transactions", "40", *options)


def test_the_configuration_is_valid_and_every_partition_has_files(tmp_path: Path) -> None:
    result = sample(tmp_path / "demo", "--days", "2")
    assert result.exit_code == 0, result.output
    (feed,) = config.load(tmp_path / "demo" / "lakehouse.yaml", {}).feeds
    store = open_store(feed.storage_sink.uri)
    listing = list_sink(store, layout_with(feed.storage_sink.date_separator))
    assert str(read_checkpoint(store, utc_now())) in result.stdout
    assert listing.unknown == [] and {file.database for file in listing.data} == {"shop"}
    partitions = partitions_of(feed)
    assert partitions is not None
    dates = partitions.get_partition_keys(commit_time(read_checkpoint(store, utc_now())))
    assert len(dates) == 2 and {file.feed_date for file in listing.data} == set(dates)


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    sample(tmp_path)
    (tmp_path / "lakehouse.yaml").write_text("mine")
    before = contents(tmp_path)
    result = sample(tmp_path, "--seed", "2")
    assert result.exit_code == 0 and "kept" in result.stdout
    assert contents(tmp_path) == before


def test_json_says_what_was_written_and_each_batch(tmp_path: Path) -> None:
    result = sample(tmp_path, "--json", "--follow", "--batches", "2", "--pause", "0.1")
    first, *batches = map(json.loads, result.stdout.splitlines())
    assert first["wrote"].pop("checkpoint_ts") < batches[0]["checkpoint_ts"] < batches[1]["checkpoint_ts"]
    assert batches[1]["checkpoint_ts"] == read_checkpoint(LocalStore(tmp_path / "sink"), utc_now())
    files = {"sink": str(tmp_path / "sink"), "configuration": str(tmp_path / "lakehouse.yaml")}
    assert first == {"wrote": {**files, "transactions": 40}}
    assert json.loads(sample(tmp_path, "--json").stdout) == {"wrote": {}}
