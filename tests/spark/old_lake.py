"""A lake that older code made, packed, for the next run on it by today's code.

`tests/data/lake-9c3a84d.tar.xz` was made by commit 9c3a84d. It holds the warehouse, the catalog and each feed's sink.
Each feed was stopped by a kill in the middle of a run: `files` after events were appended, the data sets before a table
was published, `binlog` after its schema was recorded. An Iceberg table names its files by absolute paths: `unpack`
rewrites them to where the lake then is.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import tarfile
from pathlib import Path
from typing import Any, Final

import fastavro
from pyspark.sql import SparkSession

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.spark import use_catalog
from tests.kit.data_sets import ARCHIVES
from tests.kit.hand_sinks import ID, HandSink, integer, row, text
from tests.kit.lakes import TestLake, lake_config, write_config
from tests.kit.truth import Truth

ARCHIVE: Final = ARCHIVES / "lake-9c3a84d.tar.xz"
_MADE_AT: Final = "/lake-made-elsewhere/"
"""Stands in the archive for the directory of the lake."""

STOPPED: Final = {"random_3": 1, "random_5": 5}
"""Data sets of Canal-JSON files, each a feed, and the stage at which they were stopped."""
CAPTURE: Final = "mysql8.0.12"
CAPTURE_STOPPED: Final = 4
"""Batches of the captured session that are acknowledged."""

EXCHANGE: Final = "ALTER TABLE `p` EXCHANGE PARTITION `p0` WITH TABLE `d`.`u`"
EXCHANGED: Final = 42
COLUMNS: Final = (ID, integer("v"), text("s"))


class OldLake:
    """The lake in a directory, and its feeds."""

    def __init__(self, root: Path, spark: SparkSession) -> None:
        self.root = root
        self._spark = use_catalog(spark.newSession(), lake_config(root), StorageConfig.nothing())

    def feed(self, name: str, **settings: Any) -> TestLake:
        directory = self.root / "feeds" / name
        lake = TestLake(self.root, directory, lambda: self._spark, **settings)
        lake.name = name
        lake.config = write_config(directory / "lakehouse.yaml", self.root, lake.sink, name, **settings)
        lake.lake = Lake(lake.config.lake, lake.config.storage)
        return lake

    def files(self) -> TestLake:
        return self.feed("files", source={"protocol": "csv", "csv": {"include-commit-ts": True}})

    def data_set(self, truth: Truth) -> TestLake:
        return self.feed(truth.dataset.name, source=truth.source)

    def binlog(self, address: str) -> TestLake:
        source = {"type": "canal", "addresses": [address], "destination": "example"}
        return self.feed("binlog", source=source, start_date="2020-01-01")


def put(sink: HandSink, table: str, version: int, *changes: tuple[str, int, str, str], index: int = 1) -> Path:
    """Changes as (op, at, id, v); `s` says which change it was."""
    lines = [row(op, table, at, id, v, f'"{table}{at}"') for op, at, id, v in changes]
    return sink.rows(f"d/{table}", version, *lines, index=index)


def unpack(root: Path) -> None:
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(root, filter="data")
    # To the nanosecond, which an archive does not keep: a changed time is a changed file.
    for path, time in json.loads((root / "times.json").read_text(encoding="utf-8")).items():
        os.utime(root / path, ns=(time, time))
    _replace_paths(root, _MADE_AT, f"{root}/")


def _replace_paths(root: Path, old: str, new: str) -> None:
    """In all that Iceberg keeps of tables below a directory; their data files name no paths."""
    with contextlib.closing(sqlite3.connect(root / "catalog.db")) as catalog, catalog:
        for column in ("metadata_location", "previous_metadata_location"):
            catalog.execute(f"UPDATE iceberg_tables SET {column} = replace({column}, ?, ?)", (old, new))
        catalog.execute(
            "UPDATE iceberg_namespace_properties SET property_value = replace(property_value, ?, ?)", (old, new)
        )
    for path in root.rglob("*.metadata.json"):
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    # Hadoop checks files against these, and does without where they are missing.
    for checksum in root.rglob("metadata/.*.crc"):
        checksum.unlink()
    sizes: dict[str, int] = {}
    for path in root.rglob("*.puffin"):
        path.write_bytes(_puffin(path.read_bytes(), old, new))
        sizes[path.name] = path.stat().st_size
    files = sorted(root.rglob("metadata/*.avro"), key=lambda path: path.name.startswith("snap-"))

    def replaced(value: Any) -> Any:
        match value:
            case str():
                return value.replace(old, new)
            case bytes():  # Bounds of a column of paths.
                return value.replace(old.encode(), new.encode())
            case dict():
                return {key: replaced(item) for key, item in value.items()}
            case list():
                return [replaced(item) for item in value]
            case _:
                return value

    # Manifests come before the lists of them, which have their sizes.
    for path in files:
        reader = fastavro.reader(io.BytesIO(path.read_bytes()))
        records = [replaced(record) for record in reader]
        for record in records:
            if "manifest_path" in record:
                record["manifest_length"] = sizes[Path(record["manifest_path"]).name]
            elif (name := Path(record["data_file"]["file_path"]).name) in sizes:
                record["data_file"]["file_size_in_bytes"] = sizes[name]
        kept = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
        schema = json.loads(reader.metadata["avro.schema"])
        with path.open("wb") as file:
            fastavro.writer(file, schema, records, codec=reader.codec, metadata=kept)
        sizes[path.name] = path.stat().st_size


def _puffin(content: bytes, old: str, new: str) -> bytes:
    """A Puffin file whose deletion vectors are of the data files below another directory.

    It ends with `PFA1`, the footer as JSON, its length in four bytes (little endian), four bytes of flags, `PFA1`
    (https://iceberg.apache.org/puffin-spec/). PyIceberg takes the data file's path from the footer."""
    length = int.from_bytes(content[-12:-8], "little")
    blobs, footer, flags = content[: -12 - length], content[-12 - length : -12], content[-8:-4]
    footer = footer.replace(old.encode(), new.encode())
    return blobs + footer + len(footer).to_bytes(4, "little") + flags + content[-4:]
