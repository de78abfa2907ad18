"""`init` and `doctor` as a new user runs them."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from cdc_lakehouse import config
from cdc_lakehouse.adopt import diagnose
from cdc_lakehouse.cli import main
from cdc_lakehouse.config import StorageSinkSource
from cdc_lakehouse.config.sources import store_options
from cdc_lakehouse.errors import ConfigurationError
from cdc_lakehouse.sample.shop import write_history
from tests import LONG
from tests.kit.data_sets import names
from tests.kit.dumped_truth import dump_of
from tests.kit.kafka import MemoryTopic
from tests.kit.truth import Truth


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def written_with(dataset: Path) -> dict[str, object]:
    """What the data set says of the changefeed that wrote it, as keys of `source`."""
    said = json.loads((dataset / "expected.json").read_text(encoding="utf-8"))
    sink, encoder = said["sink"], said["encoder"]
    keys: dict[str, object] = {"protocol": sink["protocol"], "date_separator": sink["date"] or "none"}
    if sink["protocol"] == "csv":
        keys |= {name: encoder[name] for name in ("delimiter", "quote", "null")}
        keys |= {"terminator": sink["terminator"], "old_value": encoder["old_value"], "header": encoder["header"]}
    return keys


def read_with(source: StorageSinkSource) -> dict[str, object]:
    keys: dict[str, object] = {"protocol": source.protocol, "date_separator": source.date_separator}
    if (csv := source.csv) is not None:
        keys |= {"delimiter": csv.delimiter, "quote": csv.quote, "null": csv.null, "terminator": csv.terminator}
        keys |= {"old_value": csv.output_old_value, "header": csv.output_field_header}
    return keys


@pytest.mark.parametrize("protocol", ["canal-json", "csv"])
def test_a_sink_is_read_as_it_was_written(protocol: str, data_sets: Path, here: Path) -> None:
    looked = 0
    for name in names(protocol)[:: 1 if LONG else 2]:
        dataset = data_sets / protocol / name
        if not any((dataset / "tree").rglob(f"CDC*.{'csv' if protocol == 'csv' else 'json'}")):
            continue
        result = run("init", "--source", str(dataset / "tree"), "--force")
        assert result.exit_code == 0, (name, result.output)
        source = config.load(here / "lakehouse.yaml").feeds[0].storage_sink
        assert read_with(source) == written_with(dataset), name
        looked += 1
    assert looked > 10


def test_a_dump_beside_the_log_is_found(data_sets: Path, here: Path) -> None:
    """As `<prefix>/snapshot` and `<prefix>/incremental`, or where it is said to be."""
    truth = Truth(data_sets / "canal-json" / "date_dirs")
    dump_of(truth, 0, here / "shop" / "snapshot")
    shutil.copytree(truth.dataset / "tree", here / "shop" / "incremental")
    words = (["shop"], ["shop/incremental", "--dump", "shop/snapshot"])
    for source in words:
        result = run("init", "--source", *source, "--force")
        assert result.exit_code == 0 and f"found a dump of dumpling at file://{here}/shop/snapshot" in result.output
        found = config.load(here / "lakehouse.yaml").feeds[0].storage_sink
        assert found.uri.endswith("/shop/incremental") and found.initial is not None
        assert (found.initial.type, found.initial.uri) == ("dumpling", f"file://{here}/shop/snapshot")
    (here / "shop" / "snapshot" / "metadata").unlink()
    for source in words:
        refused = run("init", "--source", *source, "--force")
        assert refused.exit_code == 1 and "holds no finished dump" in refused.output


def test_the_time_zone_shows_where_rows_say_when_they_were_written(here: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    write_history(here / "sink", start=now - datetime.timedelta(hours=2), end=now, transactions=50, seed=1)
    for file in (here / "sink").rglob("CDC*.json"):
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            stamps = [name for name, type in line["mysqlType"].items() if type.startswith("timestamp")]
            commit = datetime.datetime.fromtimestamp((line["_tidb"]["commitTs"] >> 18) / 1000, datetime.UTC)
            for row in line["data"] or []:
                row |= dict.fromkeys(stamps, f"{commit + datetime.timedelta(hours=8):%Y-%m-%d %H:%M:%S}")
        file.write_text("".join(json.dumps(line) + "\r\n" for line in lines), encoding="utf-8")
    result = run("init", "--source", "sink")
    assert result.exit_code == 0 and "+08:00" in result.output
    assert config.load(here / "lakehouse.yaml").feeds[0].storage_sink.time_zone == "+08:00"


def test_json_says_what_was_found_and_what_to_look_at(data_sets: Path, here: Path) -> None:
    words = ("init", "--source", str(data_sets / "canal-json" / "date_dirs" / "tree"))
    said = run(*words).output
    document = json.loads(run(*words, "--json", "--force").stdout)
    assert (document["wrote"], document["set_in_environment"]) == ("lakehouse.yaml", [])
    assert document["found"] and all(f"found {each}" in said for each in document["found"])
    assert said.count("look at this: ") == len(document["look_at"])


def test_a_directory_above_the_sink_or_with_none_is_refused(data_sets: Path, here: Path) -> None:
    above = run("init", "--source", str(data_sets / "canal-json" / "date_dirs"))
    assert above.exit_code == 1 and "name one below it" in above.output and "tree" in above.output
    (here / "empty").mkdir()
    none = run("init", "--source", "empty")
    assert none.exit_code == 1 and "neither metadata nor data files" in none.output
    missing = run("init", "--source", "nowhere")
    assert missing.exit_code == 3
    assert not (here / "lakehouse.yaml").exists()


def test_a_file_that_is_there_is_kept_and_a_source_is_asked_for(data_sets: Path, here: Path) -> None:
    (here / "lakehouse.yaml").write_text("mine", encoding="utf-8")
    tree = str(data_sets / "canal-json" / "date_dirs" / "tree")
    kept = run("init", "--source", tree)
    assert kept.exit_code == 2 and "--force" in kept.output
    assert (here / "lakehouse.yaml").read_text(encoding="utf-8") == "mine"
    assert run("init", "--output", "other.yaml").exit_code == 2


CATALOGS = {
    "sqlite:///./lake/catalog.db": ({"type": "sql"}, []),
    "postgresql://cdc:p%40ss@db:5432/iceberg": ({"type": "sql"}, ["CATALOG_PASSWORD"]),
    "https://catalog.example.com/": ({"type": "rest"}, []),
    "thrift://metastore:9083": ({"type": "hive"}, []),
    "glue": ({"type": "glue"}, []),
}


@pytest.mark.parametrize("uri", CATALOGS)
def test_the_catalog_is_of_the_kind_that_its_uri_says(
    uri: str, data_sets: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its password is in the environment, and not in the file."""
    kind, secrets = CATALOGS[uri]
    source = str(data_sets / "canal-json" / "date_dirs" / "tree")
    words = ("--warehouse", "s3://lake/tables", "--catalog-uri", uri, "--json")
    document = json.loads(run("init", "--source", source, *words).stdout)
    assert document["set_in_environment"] == secrets
    assert any("credential" in each for each in document["look_at"]) == (kind["type"] == "rest")
    assert "p%40ss" not in (here / "lakehouse.yaml").read_text(encoding="utf-8")
    monkeypatch.setenv("CATALOG_PASSWORD", "p%40ss")
    found = config.load(here / "lakehouse.yaml").lake
    assert (found.warehouse, found.catalog.type) == ("s3://lake/tables", kind["type"])
    assert found.catalog.uri == (None if uri == "glue" else uri.replace("/./", f"/{here}/"))


def test_a_terminal_is_asked(data_sets: Path, here: Path) -> None:
    """For the source, the warehouse and the catalog, of which the last two have a default."""
    tree = data_sets / "canal-json" / "date_dirs" / "tree"
    terminal, inside = pty.openpty()
    program = Path(sys.executable).with_name("cdc-lakehouse")
    with subprocess.Popen([program, "init"], cwd=here, stdin=inside, stdout=inside, stderr=inside) as asked:
        os.close(inside)
        os.write(terminal, f"{tree}\ns3://lake/tables\n\n\x04".encode())
        said = b""
        with contextlib.suppress(OSError):  # Nobody has the other end any more.
            while part := os.read(terminal, 4096):
                said += part
    os.close(terminal)
    assert asked.returncode == 0, said.decode()
    found = config.load(here / "lakehouse.yaml").lake
    assert (found.warehouse, found.catalog.uri) == ("s3://lake/tables", f"sqlite:///{here}/lake/catalog.db")


def test_secrets_of_a_pasted_uri_are_named_and_not_written() -> None:
    uri = "s3://b/p?protocol=csv&endpoint=http://127.0.0.1:9&access-key=AKIA1&secret-access-key=hunter2&region=eu"
    keys, secrets = store_options(uri)
    assert keys == {
        "s3": {
            "endpoint": "http://127.0.0.1:9", "access_key_id": "${S3_ACCESS_KEY_ID}", "region": "eu",
            "secret_access_key": "${S3_SECRET_ACCESS_KEY}", "path_style": True,
        }
    }  # fmt: skip
    assert secrets == {"S3_ACCESS_KEY_ID": "AKIA1", "S3_SECRET_ACCESS_KEY": "hunter2"}


def outcomes(*words: str) -> dict[str, str]:
    result = run("doctor", "--json", *words)
    return {found["part"]: found["outcome"] for found in json.loads(result.stdout)["findings"]}


def test_doctor_tries_each_part_and_leaves_nothing(data_sets: Path, here: Path) -> None:
    assert (
        run("init", "--source", str(data_sets / "canal-json" / "date_dirs" / "tree"), "--name", "shop").exit_code == 0
    )
    result = run("doctor")
    assert result.exit_code == 0 and "FAILED" not in result.output
    assert outcomes()["catalog"] == outcomes()["warehouse"] == outcomes()["shop: source"] == "ok"
    (expiration,) = [line for line in result.output.splitlines() if "shop: expiration" in line]
    assert "when files expire is not known; the oldest ones are of 20" in expiration
    assert list((here / "lake" / "warehouse").rglob("*")) == []


def test_pythons_that_are_supported_are_stated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the project's metadata, from which `scripts/setup` has them, by the lock and by doctor."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    low, high = (".".join(map(str, each)) for each in diagnose.PYTHONS)
    assert project["project"]["requires-python"] == f">={low},<{high}"
    assert f'requires-python = ">={low}, <{high}"\n' in (root / "uv.lock").read_text(encoding="utf-8")
    tried = [tuple(map(int, each.split("."))) for each in project["tool"]["cdc-lakehouse"]["tried-pythons"]]
    assert tried[0] == diagnose.PYTHONS[0] and tried == sorted(tried) and tried[-1] < diagnose.PYTHONS[1]
    for version in ((3, 11, 1), (3, 14, 0)):
        monkeypatch.setattr(diagnose.sys, "version_info", version)
        with pytest.raises(ConfigurationError, match="no test ran on this version"):
            diagnose._python()


@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_topic_with_compressed_values_is_reported(codec: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = b'{"database":"d","table":"t","type":"TIDB_WATERMARK","_tidb":{"watermarkTs":463256217600000001}}'
    value = base64.b64encode(pa.Codec(codec).compress(message, asbytes=True)).decode()
    MemoryTopic(monkeypatch).send([{"partition": 0, "key": None, "b64": value, "timestamp": 0}])
    said = run("init", "--source", "kafka://broker:9092/cdc")
    assert f"TiCDC compresses with {codec}" in said.output
    assert config.load(here / "lakehouse.yaml").feeds[0].kafka.format == "ticdc-canal-json"
    assert f"TiCDC compresses values with {codec}" in run("doctor").output


def test_doctor_says_which_part_fails_and_what_to_do(
    data_sets: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init", "--source", str(data_sets / "canal-json" / "date_dirs" / "tree"), "--name", "shop")
    file = here / "lakehouse.yaml"
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace("date_separator: day", "date_separator: month"), encoding="utf-8")
    assert outcomes()["shop: source"] == "failed"
    assert "set source.date_separator to day" in run("doctor").output
    file.write_text(whole.replace("date_dirs", "nowhere"), encoding="utf-8")
    assert outcomes()["shop: source"] == "failed" and run("doctor").exit_code == 1
    file.write_text(whole, encoding="utf-8")
    assert "archive-classes" not in run("doctor").output
    monkeypatch.setenv("JAVA_HOME", str(here))
    assert (
        outcomes()["jars"] == "ok" and "`python -m cdc_lakehouse.lake.spark --archive-classes`" in run("doctor").output
    )
    assert outcomes()["java"] == "failed" and "JAVA_HOME" in run("doctor").output
    file.write_text("lake: [", encoding="utf-8")
    assert run("doctor").exit_code == 2


def test_doctor_says_what_a_catalog_refuses(data_sets: Path, here: Path) -> None:
    """A table may be made there and not be changed, as where rights are missing. Nothing is left."""
    run("init", "--source", str(data_sets / "canal-json" / "date_dirs" / "tree"), "--name", "shop")
    assert run("doctor").exit_code == 0
    with contextlib.closing(sqlite3.connect(here / "lake" / "catalog.db")) as catalog:
        refused = "CREATE TRIGGER no BEFORE UPDATE ON iceberg_tables BEGIN SELECT RAISE(ABORT, 'it is refused'); END"
        catalog.execute(refused)
    result = run("doctor")
    assert result.exit_code == 1 and "FAILED   catalog: " in result.output
    assert "it is refused" in result.output and "make, change and remove namespaces and tables" in result.output
    assert outcomes()["catalog"] == "failed" and outcomes()["warehouse"] == outcomes()["shop: source"] == "ok"
    assert list((here / "lake" / "warehouse").rglob("*")) == []


def test_the_schema_is_printed() -> None:
    assert json.loads(run("config", "schema").stdout)["properties"].keys() >= {"lake", "feeds"}
