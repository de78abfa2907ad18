"""`init` and `doctor` as a new user runs them."""

import base64
import contextlib
import datetime
import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest

from cdc_lakehouse import config
from cdc_lakehouse.commands import doctor
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.sample.shop import write_history
from tests import LONG
from tests.commands import call
from tests.kit.data_sets import names
from tests.kit.kafka import MemoryTopic


@pytest.mark.slow
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
