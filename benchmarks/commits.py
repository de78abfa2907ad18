"""`python -m benchmarks.commits`: what a commit costs: of a current-state table through the JVM, one after the other
and two at once, and of a small table without it. CPU is that of this process and of the JVM together."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import click
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from benchmarks.__main__ import CACHE
from benchmarks.lakehouse import lake_config
from benchmarks.many_tables import cpu_seconds
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import FORMAT_VERSION, TABLE_PROPERTIES
from cdc_lakehouse.lake.files import write_file
from cdc_lakehouse.lake.iceberg_java import IcebergJavaApi
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.spark import build_session, open_catalog
from cdc_lakehouse.lake.tables.small_table import SmallTable

_TABLES: Final = [Identifier("commits", f"t{number}") for number in range(24)]
_WARM_UP, _PASSES = 3, 9
_COLUMNS: Final = Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType()))
_ROW: Final = pa.table({"id": [1], "text": ["x" * 100]})


class Tables:
    """Tables of one row more from pass to pass."""

    def __init__(self, lake: Lake, api: IcebergJavaApi) -> None:
        self._lake, self._api = lake, api
        lake.ensure_namespace("commits")
        for table in _TABLES:
            where, properties = lake.location("commits", table.name), {**TABLE_PROPERTIES, FORMAT_VERSION: "3"}
            api.create(table, _COLUMNS, where, properties)

    def commits(self) -> Iterator[Callable[[], object]]:
        """Yield the commit of each table, with its file written."""
        for identifier in _TABLES:
            table = self._lake.existing(identifier)
            path = f"{table.location()}/data/{time.time_ns()}.parquet"
            file = write_file(table.io, path, table.schema(), _ROW, table.properties)
            yield partial(self._commit, identifier, table.metadata.current_snapshot_id, file)

    def _commit(self, identifier: Identifier, snapshot_id: int | None, file: str) -> None:
        transaction = self._api.transaction(identifier, snapshot_id)
        transaction.commit(data_files=[file], properties={"p": "1"}, summary={"s": "1"})


def _ms(work: Sequence[Callable[[], object]], at_once: int = 1) -> tuple[float, float]:
    """Do the work; return its milliseconds and those of CPU, each."""
    start, cpu = time.perf_counter(), cpu_seconds()
    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(each) for each in work]:
            done.result()
    return (time.perf_counter() - start) * 1000 / len(work), (cpu_seconds() - cpu) * 1000 / len(work)


def main() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="commits-", dir=CACHE) as directory:
        config = lake_config(Path(directory), 2, 2)
        spark = build_session(config)
        lake = Lake(config)
        tables = Tables(lake, IcebergJavaApi(lambda: open_catalog(lake.config, lake.storage)))
        small = SmallTable(lake, "commits", "small", _ROW.schema)
        found: dict[str, list[tuple[float, float]]] = {}
        for number in range(_WARM_UP + _PASSES):
            passes: dict[str, tuple[float, float]] = {
                "a table, one after the other": _ms([*tables.commits()]),
                "a table, two at once": _ms([*tables.commits()], 2),
                "a small table, added": _ms([lambda: small.write(_ROW)] * 10),
                "a small table, replaced": _ms([lambda: small.write(_ROW, replacing={"id": [1]})] * 10),
            }
            for what, figures in passes.items() if number >= _WARM_UP else ():
                found.setdefault(what, []).append(figures)
        spark.stop()
    click.echo("| commit of | ms | CPU ms |\n|---|--:|--:|")
    for what, figures in found.items():
        wall, cpu = (statistics.median(each) for each in zip(*figures, strict=True))
        click.echo(f"| {what} | {wall:.0f} | {cpu:.0f} |")


if __name__ == "__main__":
    main()
