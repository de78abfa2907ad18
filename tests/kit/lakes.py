"""A lake to test in: one Spark session and one catalog for all tests, a feed and namespaces of its own for each."""

import contextlib
import datetime
import functools
import itertools
import json
import logging
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig, LakeConfig, LakehouseConfig, load
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.file_io import packages
from cdc_lakehouse.lake.names import CATALOG, Identifier
from cdc_lakehouse.operate.state import FeedState, conservation, event_counts
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps, publish
from tests.kit import truth

_NUMBERS = itertools.count(1)


def run_all(run: FeedRun) -> Steps:
    steps = Steps(run)
    steps.upto(publish)
    return steps


class TestLake:
    __test__ = False

    def __init__(
        self, root: Path, directory: Path, session: Callable[[], SparkSession], *, name: str | None = None, **feed: Any
    ) -> None:
        self.name = name or f"f{next(_NUMBERS)}"
        self.sink = directory / "sink"
        self.session = session
        self.feed_settings = feed
        self._root, self.config_path = root, directory / "lakehouse.yaml"
        self.config = write_config(self.config_path, root, self.sink, self.name, **feed)
        self.lake = Lake(self.config.lake, self.config.storage)

    def configure(self, **feed: Any) -> None:
        """Change settings of the feed, for the runs that follow."""
        self.feed_settings = {**self.feed_settings, **feed}
        self.config = write_config(self.config_path, self._root, self.sink, self.name, **self.feed_settings)

    @property
    def feed(self) -> FeedConfig:
        return self.config.feeds[0]

    @property
    def warehouse(self) -> Path:
        """On a disk."""
        return Path(self.config.lake.warehouse.removeprefix("file://"))

    def run(self, **options: Any) -> FeedRun:
        logger = logging.getLogger("cdc_lakehouse.tests")
        return FeedRun(self.feed, Lake(self.config.lake, self.config.storage), self.session, log=logger, **options)

    def go_through(self, **options: Any) -> Steps:
        """A whole run that holds no table."""
        done = run_all(self.run(**options))
        assert not done.applied.held, done.applied.held
        return done

    def check_nothing_to_do(self) -> None:
        with self.without_changes():
            run_all(self.run())

    def mark_decoded(self) -> None:
        """All files that have landed have become events, one each."""
        run = self.run()
        for segments in run.segments.undecoded("file").values():
            run.segments.mark_decoded([replace(each, state="decoded", events=1) for each in segments])

    def names(self) -> frozenset[TableName]:
        """The names of all tables that there ever were, as they were last."""
        return frozenset(life.last.name for life in self.run().history.history.incarnations().values())

    def tables(self) -> dict[tuple[str, str], Any]:
        """The live current-state tables, found by their properties as a reader would, where the feed has them now."""
        found, catalog = {}, self.lake.catalog
        begins = self.feed.namespace.partition("{database}")[0]
        namespaces = [each for each in catalog.list_namespaces() if each[0].startswith(begins)]
        for table in (catalog.load_table(name) for namespace in namespaces for name in catalog.list_tables(namespace)):
            properties = table.properties
            if properties.get("cdc.feed") == self.name and "cdc.dropped-ts" not in properties:
                found[properties["cdc.database"], properties["cdc.table"]] = table
        return found

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """While nobody writes: tables, and rows of the feed's own, are read once for all who ask."""
        once = {"tables": functools.cache(self.tables), "machinery": functools.cache(self.machinery)}
        vars(self).update(once)
        try:
            yield
        finally:
            for name in once:
                delattr(self, name)

    def metadata(self) -> dict[str, str]:
        """Where each table of the feed has its metadata: any commit at all changes it."""
        statement = (
            "SELECT table_namespace || '.' || table_name, metadata_location FROM iceberg_tables "
            "WHERE table_namespace = 'cdc_' || ?1 OR substr(table_namespace, 1, length(?1) + 1) = ?1 || '_'"
        )
        self.lake.catalog.list_namespaces()  # Which makes the catalog's own tables.
        with contextlib.closing(sqlite3.connect(self._root / "catalog.db", timeout=60)) as catalog:
            return dict(catalog.execute(statement, (self.name,)))

    @contextlib.contextmanager
    def without_changes(self, but: str = ".lease") -> Iterator[None]:
        """No table of the feed is committed to in the block, but for the lease."""
        before = self.metadata()
        yield
        changed = {name for name, _ in before.items() ^ self.metadata().items() if not but or not name.endswith(but)}
        assert not changed, f"tables were changed: {changed}"

    def remove(self) -> None:
        """All of the feed, with its files, without asking the product: where many feeds come one after the other."""
        for namespace in self.lake.catalog.list_namespaces():
            if namespace[0] == f"cdc_{self.name}" or namespace[0].startswith(f"{self.name}_"):
                for identifier in self.lake.catalog.list_tables(namespace):
                    self.lake.catalog.drop_table(identifier)
                self.lake.catalog.drop_namespace(namespace)
                shutil.rmtree(self.warehouse / namespace[0], ignore_errors=True)
        shutil.rmtree(self.config_path.parent, ignore_errors=True)

    def machinery(self, name: str) -> list[dict[str, Any]]:
        """Rows of one of the feed's own tables, row images as dicts; none when the table is not there."""
        identifier = (f"cdc_{self.name}", name)
        if not self.lake.catalog.table_exists(identifier):
            return []
        rows: list[dict[str, Any]] = self.lake.catalog.load_table(identifier).scan().to_arrow().to_pylist()
        for row, image in itertools.product(rows, ("before", "after")):
            if row.get(image) is not None:
                row[image] = json.loads(row[image])
        return rows

    def events_by_segment(self) -> dict[str, int]:
        return dict(Counter(event["segment"] for event in self.machinery("events")))

    def check(
        self, expected: dict[tuple[str, str], dict[str, Any]], *, except_for: Set[tuple[str, str]] = frozenset()
    ) -> None:
        """Every table equals its true rows, and there is no table too many or too few."""
        seen = self.tables()
        assert set(seen) - except_for == set(expected) - except_for
        for name in set(expected) - except_for:
            table, types = seen[name], [column["type"] for column in expected[name]["columns"]]
            columns = [(field.name, str(field.field_type)) for field in table.schema().fields]
            wanted = [(column["name"], truth.iceberg_type(column["type"])) for column in expected[name]["columns"]]
            assert columns == [*wanted, ("_commit_ts", "long")], f"columns of {name}"
            arrow = table.scan().to_arrow()
            # By position: names may differ in case only by what a reader's engine makes of them.
            cells = [[truth.seen_value(v, kind) for v in arrow.column(n).to_pylist()] for n, kind in enumerate(types)]
            found = sorted(zip(*cells, strict=True), key=repr)
            assert found == truth.true_rows(expected[name]), f"rows of {name}"
            assert None not in arrow.column("_commit_ts").to_pylist()
            assert conservation(table).holds, f"{name}: {conservation(table)}"

    def rows(self, table: str, database: str = "d") -> list[tuple[Any, ...]]:
        """The rows of a table in order, without their commit-ts."""
        found = self.tables()[database, table].scan().to_arrow().drop(["_commit_ts"])
        return sorted(tuple(each.values()) for each in found.to_pylist())

    def all_rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Those of every table, by its name."""
        return {table: self.rows(table, database) for database, table in self.tables()}

    def data_files(self, table: str = "") -> list[Path]:
        """The data files of all current-state tables, or of one and of those that were dropped as such."""
        return sorted(self.warehouse.glob(f"{self.name}__*/{table}*/**/*.parquet"))


NewLake = Callable[..., TestLake]
"""Makes feeds of their own in the shared lake."""


def check_events(lake: TestLake) -> None:
    """Each change of each segment is in `events` once, and as many as the segments say, but for superseded ones."""
    # A file that is written over leaves events of the lines that it had.
    places = ("segment", "line", "op", "commit_ts")
    events = Counter(tuple(each[place] for place in places) for each in lake.machinery("events"))
    assert not (twice := [place for place, count in events.items() if count > 1]), f"events twice: {twice}"
    of_segments, in_table, gone = event_counts(FeedState(lake.feed, lake.lake))
    assert of_segments == in_table + gone
    rows = (row for row in lake.machinery("segments") if row["events"] and row["kind"] != "summary")
    said = {row["segment"]: row["events"] for row in rows}
    found = lake.events_by_segment()
    # Rows that an exchange moves are of segments of their own.
    wrong = {name: (count, found.get(name)) for name, count in said.items() if found.get(name) != count}
    assert not wrong, f"segments with other numbers of events than they say: {wrong}"


def write_config(
    path: Path, root: Path, sink: Path, name: str, *, source: dict[str, Any] | None = None,
    storage: dict[str, Any] | None = None, warehouse: str | None = None, **feed: Any,
) -> LakehouseConfig:  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    environment: dict[str, str] = {}
    if not source or "type" not in source:
        source = {"type": "storage_sink", "uri": str(sink), "protocol": "canal-json", **(source or {})}
    own = {"name": name, "source": source, "namespace": name + "__{database}", "start_date": "2026-01-01"}
    document = {
        "lake": lake_section(root) | ({} if warehouse is None else {"warehouse": warehouse}),
        "storage": _from_environment(storage or {}, environment),
        "feeds": [{**own, **feed}],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return load(path, environment)


def _from_environment(section: Any, environment: dict[str, str]) -> Any:
    """A section whose texts are all taken from the environment, as secrets must be."""
    if isinstance(section, dict):
        return {key: _from_environment(value, environment) for key, value in section.items()}
    if not isinstance(section, str):
        return section
    name = f"TEST_{len(environment)}"
    environment[name] = section
    return f"${{{name}}}"


def lake_section(root: Path) -> dict[str, Any]:
    return {
        "warehouse": str(root / "warehouse"),
        "catalog": {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"},
        # Small data: planning is what costs, and generated code is not compiled for a handful of rows.
        "spark": {
            "master": "local[2]",
            "conf": {
                "spark.sql.shuffle.partitions": 1,
                "spark.sql.adaptive.enabled": False,
                "spark.sql.codegen.wholeStage": False,
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
                "spark.ui.enabled": False,
                # One JVM for all tests: it must have what warehouses on S3 and GCS need.
                "spark.jars.packages": ",".join([*packages("s3://warehouse"), *packages("gs://warehouse")]),
                # The second compiler takes a quarter of the CPU, and does not pay that back in a hundred runs.
                "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            },
        },
    }


def lake_config(root: Path) -> LakeConfig:
    return LakeConfig.model_validate(lake_section(root))


# --- Another writer, such as the optimizer of a managed catalog, which compacts and expires any table ---


def rewrite(table: Table) -> None:
    """Write the rows of a table of format version 2 into new files, and let all earlier snapshots expire."""
    table.overwrite(table.scan().to_arrow())
    expire_all(table)


def expire_all(table: Table) -> None:
    """Let all snapshots expire but the current one and those that branches and tags name."""
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in kept]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def optimize(session: SparkSession, identifier: Identifier, *, expires: bool = True) -> None:
    """Compact a table's files and manifests by Iceberg's procedures, and expire all but the newest snapshot."""
    values = {"table": identifier.sql, "now": datetime.datetime.now(datetime.UTC)}
    calls = ["rewrite_data_files(table => :table, options => map('rewrite-all', 'true'))",
             "rewrite_manifests(table => :table)"]  # fmt: skip
    calls += ["expire_snapshots(table => :table, older_than => :now, retain_last => 1)"] if expires else []
    for call in calls:
        session.sql(f"CALL {CATALOG}.system.{call}", args=values)


# --- What a run does in the driver because it is little, and how a test lets Spark do it ---


def let_spark_do_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("cdc_lakehouse.lake.tables.events._DRIVER_SEGMENTS", 0)
    patch.setattr("cdc_lakehouse.sources.kafka._WORTH_A_TASK", 1)
    patch.setattr("cdc_lakehouse.lake.current.update_tasks._DRIVER_TASKS", 0)
    patch.setattr("cdc_lakehouse.pipeline.synthetic._DRIVER_EVENTS", -1)


def divide_tables(patch: pytest.MonkeyPatch) -> None:
    """A table with two events has several tasks, as a large one has."""
    patch.setattr("cdc_lakehouse.lake.current.update_tasks._SMALL_TASK_EVENTS", 1)
