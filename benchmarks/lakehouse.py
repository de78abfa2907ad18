"""The product: a feed of its own for each pass, run step by step as a Dagster run does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks import sbtest
from benchmarks.agreement import Disagreement
from benchmarks.change_log import Stage
from cdc_lakehouse.config import FeedConfig, LakeConfig, Protocol
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps

_NAMESPACE: Final = "{feed}__{database}"


def lake_config(directory: Path, cores: int, memory_gib: int) -> LakeConfig:
    return LakeConfig.model_validate(
        {
            "warehouse": (directory / "warehouse").as_uri(),
            "catalog": {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"},
            "spark": {"master": f"local[{cores}]", "conf": {"spark.driver.memory": f"{memory_gib}g"}},
        }
    )


def sink_source(sink: Path, protocol: Protocol) -> dict[str, object]:
    csv = {"csv": {"include-commit-ts": True}} if protocol == "csv" else {}
    return {"type": "storage_sink", "uri": sink.as_uri(), "protocol": protocol, "date_separator": "day", **csv}


class Feed:
    """`decode` and then `publish`, once for each stage of the sink."""

    def __init__(self, config: LakeConfig, spark: SparkSession, name: str, source: Mapping[str, object]) -> None:
        self._config = config
        self._spark = spark
        self._feed = FeedConfig.model_validate(
            {"name": name, "source": source, "namespace": _NAMESPACE, "start_date": sbtest.FILL_DAY.date()}
        )
        self._steps: Steps | None = None
        self._snapshots: list[int] = []

    def land(self) -> None:
        """The first step: what is new is known, and messages of topics are in `records`."""
        self._steps = Steps(FeedRun(self._feed, Lake(self._config), lambda: self._spark))
        _ = self._steps.landed

    def decode(self, stage: Stage) -> None:
        """To events; it lands first what was not."""
        if self._steps is None:
            self.land()
        assert self._steps is not None
        decoded = sum(segment.events or 0 for segment in self._steps.decoded.segments)
        if decoded != stage.total:
            raise Disagreement(f"{self._feed.name}: {decoded} events decoded, {stage.total} written")

    def publish(self, stage: Stage) -> None:
        """The steps that are left: a whole run is this after `decode`."""
        assert self._steps is not None, "decode comes first"
        published = self._steps.published
        if published.cut.held:
            raise Disagreement(f"{self._feed.name}: held at {stage.name}: {published.cut.held}")
        (row,) = published.rows
        assert row.snapshot_id is not None, "a cut of a table with rows"
        self._snapshots.append(row.snapshot_id)
        self._steps = None

    def current(self, stage_number: int) -> pa.RecordBatchReader:
        """The table as it was after a stage, read by PyIceberg."""
        name = Identifier(_NAMESPACE.format(feed=self._feed.name, database=sbtest.NAME.database), sbtest.NAME.table)
        return self._read(name, self._snapshots[stage_number])

    def events(self) -> pa.RecordBatchReader:
        return self._read(system_table(self._feed.name, "events"))

    def _read(self, identifier: Identifier, snapshot: int | None = None) -> pa.RecordBatchReader:
        table = Lake(self._config).load(identifier)
        assert table is not None, identifier
        return table.scan(snapshot_id=snapshot).to_arrow_batch_reader()
