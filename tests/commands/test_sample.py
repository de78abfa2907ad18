"""`sample` writes a changefeed that the project can read, and never over one that is there."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import Result

from cdc_lakehouse.assets.keys import partitions_of
from cdc_lakehouse.changelog.positions import commit_time, utc_now
from cdc_lakehouse.config import load
from cdc_lakehouse.sources.object_store import LocalStore, open_store
from cdc_lakehouse.sources.sink.paths import list_sink, read_checkpoint
from tests.commands import call
from tests.kit.sink_layouts import layout_with
from tests.sample.test_changefeed import contents


def sample(directory: Path, *options: str) -> Result:
    return call("sample", "--directory", str(directory), "--transactions", "40", *options)


def test_the_configuration_is_valid_and_every_partition_has_files(tmp_path: Path) -> None:
    result = sample(tmp_path / "demo", "--days", "2")
    assert result.exit_code == 0, result.output
    (feed,) = load(tmp_path / "demo" / "lakehouse.yaml", {}).feeds
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
