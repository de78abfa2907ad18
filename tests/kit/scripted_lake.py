"""A lake as runs leave it, written without one: for tests that need no JVM."""

import datetime
from typing import Any

import pyarrow as pa

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.decoders.topic_reader import OptionConflict, PartitionSummary
from cdc_lakehouse.lake.catalog import Lake, system_table
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.names import Identifier
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.lake.tables.quarantine import Quarantine
from cdc_lakehouse.lake.tables.schema_history import SchemaHistory
from cdc_lakehouse.lake.tables.segments import Segment
from cdc_lakehouse.pipeline.progress import location_of
from cdc_lakehouse.sources.database import KeyRange, TableDefinition
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.dump.database import Plan, PlannedTable, stored_document
from tests.kit.lakes import TestLake

NOON = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)
T0 = tso(NOON)
KEY = SourceColumn("id", ColumnType.of("BIGINT", length=20), nullable=False, primary_key=True)
_CREATE, _DROP, _RENAME = 3, 4, 14

__all__ = ["KEY", "NOON", "T0", "Rejected"]


def create(lake: TestLake, *tables: str, at: int = 5, columns: tuple[SourceColumn, ...] = (KEY,)) -> list[str]:
    """Tables of database `d`; gives the ids of their incarnations."""
    for table in tables:
        _record(lake, change(at, table, _CREATE, "", *columns))
    return [incarnation(lake, table) for table in tables]


def drop(lake: TestLake, table: str, at: int = 20) -> None:
    _record(lake, change(at, table, _DROP, f"DROP TABLE {table}"))


def rename(lake: TestLake, old: str, new: str, at: int = 6) -> None:
    _record(lake, change(at, new, _RENAME, f"RENAME TABLE `d`.`{old}` TO `d`.`{new}`"))


def ddl(lake: TestLake, *statements: str, at: int = 1) -> None:
    """Statements as topics and Canal servers bring them, each at a later commit-ts."""
    changes = [
        SchemaChange(T0 + at + n, "d", "", None, text, (), f"o{at + n}", kind="text")
        for n, text in enumerate(statements)
    ]
    lake.run().history.record(changes, NOON)


def change(commit_ts: int, table: str, action: int, query: str = "", *columns: SourceColumn) -> SchemaChange:
    """A DDL in database `d`; without columns those of a table with only a key."""
    shown = columns or ((KEY,) if table else ())
    return SchemaChange(commit_ts, "d", table, action, query, shown, f"d/{table}/meta/schema_{commit_ts}_{table}.json")


def _record(lake: TestLake, made: SchemaChange) -> None:
    lake.run().history.record([made], NOON)


def create_in(config: LakehouseConfig, database: str, table: str) -> None:
    """A table that a feed of that name has seen, in the lake of any configuration."""
    path = f"{database}/{table}/meta/schema_10_{table}.json"
    seen = SchemaChange(10, database, table, _CREATE, "", (KEY,), path)
    SchemaHistory(Lake(config.lake, config.storage), database).record([seen], NOON)


def incarnation(lake: TestLake, table: str) -> str:
    lives = lake.run().history.history.incarnations()
    return next(id for id, life in lives.items() if life.last.name.table == table)


def publish(
    lake: TestLake, rows: dict[str, Any] | None = None, held: dict[str, str] | None = None, *, at: int = T0 + 5,
    published: datetime.datetime = NOON,
) -> None:  # fmt: skip
    """A cut. `rows` are numbers, or (snapshot, number), by table of `d`; `held` reasons by incarnation or name."""
    found = {name: value if isinstance(value, tuple) else (None, value) for name, value in (rows or {}).items()}
    cut_rows = [CutRow(at, "d", name, snapshot, count, published) for name, (snapshot, count) in found.items()]
    lake.run().checkpoints.publish(Cut(at, held=tuple((held or {}).items())), cut_rows)


def before(now: datetime.datetime, minutes: float) -> int:
    return tso(now - datetime.timedelta(minutes=minutes))


def quarantine(lake: TestLake, *rows: Rejected, at: datetime.datetime = NOON) -> None:
    lake.run().quarantine.replace(lambda _: False, rows, at)


def quarantined(lake: TestLake) -> Quarantine:
    return Quarantine(lake.lake, lake.name)


def segment(path: str, **fields: Any) -> Segment:
    """A data file by its path: `database/table/version/file`."""
    database, table, version, *_ = path.split("/")
    fields = {"feed_date": None, "file_index": 1, "size": 10, "batch": 1, "state": "decoded", **fields}
    return Segment(segment=path, kind="file", database=database, table=table, table_version=int(version),
                   **{"landed_at": NOON, "etag": "e", "modified_at": NOON, **fields})  # fmt: skip


def offsets(name: str, **fields: Any) -> Segment:
    fields = {"size": 9, "batch": 1, "record_batch": 1, "state": "decoded", **fields}
    return Segment(segment=name, kind="offsets", landed_at=NOON, **fields)


def land(lake: TestLake, *segments: Segment) -> None:
    lake.run().segments.land(segments)


def events(lake: TestLake, rows: list[tuple[str | None, str, str]]) -> None:
    """Rows of `events` in database `d`: date, table and op."""
    table = pa.table({
        "feed_date": [date for date, _, _ in rows],
        "schema_name": ["d"] * len(rows),
        "table_name": [name for _, name, _ in rows],
        "op": [op for _, _, op in rows],
    })  # fmt: skip
    lake.lake.catalog.create_table(system_table(lake.name, "events").parts, table.schema).append(table)


def contradict(lake: TestLake, reason: str | None, messages: int = 1) -> None:
    """Messages of topic `t` from offset 17 on contradict an option; None: they were read again, and do not."""
    conflict = None if reason is None else OptionConflict("t", 0, 17, reason, messages)
    lake.run().signals.write(1, {("t", 0, 1): PartitionSummary(0, 0, option_conflict=conflict)})


def progress(lake: TestLake, *, rows: int = 0, estimated: int = 0, ended: bool = False) -> None:
    """How far the source database is read, which the feed begins with: one of two ranges of a table."""
    root = f"{location_of(lake.lake, lake.name)}/000001"
    if ended:
        lake.lake.write(f"{root}/dump.json", b"{}")
        return
    definition = TableDefinition(TableName("d", "t"), "CREATE TABLE t (a INT)", "", estimated)
    table = PlannedTable(definition, "t000001/", DumpPosition(tso=1), (KeyRange(), KeyRange()))
    lake.lake.write(f"{root}/plan.json", stored_document(Plan(["*"], None, 1, {"d.t": table})).encode())
    lake.lake.write(f"{root}/t000001/000000000-aa.{rows}.done", b"done")


def current_table(lake: TestLake, table: str, schema: pa.Schema, **properties: str) -> Any:
    """A current-state table of `d`, of a table that the feed has seen."""
    life = lake.run().history.history.incarnations()[incarnation(lake, table)]
    where = CurrentTables(lake.lake, lake.feed).identifier(life.last.name)
    return make_current_table(lake, life, where, schema, **properties)


def make_current_table(
    lake: TestLake, life: Incarnation, where: Identifier, columns: pa.Schema | None = None, **properties: str
) -> Any:
    """A current-state table as a run makes it, without rows, with further properties (`_` for `.`)."""
    own = CurrentTables(lake.lake, lake.feed).first_properties(life)
    more = {name.replace("_", "."): value for name, value in properties.items()}
    lake.lake.ensure_namespace(where.namespace)
    return lake.lake.catalog.create_table(
        where.parts, columns or pa.schema([("id", pa.int64())]), properties={**own, "format-version": "2", **more}
    )
