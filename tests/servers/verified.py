"""Tables of a MySQL with the same rows in a lake, made without the code that compares them: by the client's own Python
values."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner, Result
from pydantic import TypeAdapter
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, PrimitiveType
from pymysql.converters import conversions

from cdc_lakehouse.changelog.ddl.statements import parse_type
from cdc_lakehouse.changelog.mysql_types import ColumnType, iceberg_type
from cdc_lakehouse.changelog.schema import SourceColumn, TableName, quoted
from cdc_lakehouse.cli import main
from cdc_lakehouse.decoders.event_schema import EVENTS
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.current.tables import CurrentTables
from tests.kit import scripted_lake as script
from tests.kit.lakes import TestLake
from tests.pipeline import T0, lake_in
from tests.servers.mysql import MySqlServer

USER, PASSWORD = "verify", "a/b@c:%"
_TYPE: TypeAdapter[PrimitiveType] = TypeAdapter(PrimitiveType)

Row = dict[str, Any]


class VerifiedSource:
    """Database `d` of a server, empty, with a user who may read it, for a feed of `lake`."""

    lake: TestLake

    def __init__(self, server: MySqlServer, **connection: Any) -> None:
        self.connection = server.connect(autocommit=True, **connection)
        self.address = f"127.0.0.1:{server.port}"
        self.execute("DROP DATABASE IF EXISTS d", "CREATE DATABASE d CHARACTER SET utf8mb4", "USE d")
        self.execute("SET SESSION sql_mode = '', SESSION time_zone = '+00:00'")
        self.execute(f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}'")
        self.execute(f"GRANT SELECT ON d.* TO {USER}@'%'")

    def execute(self, *statements: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement, values)
            return list(cursor.fetchall())

    def columns(self, table: str) -> tuple[SourceColumn, ...]:
        found = self.execute(
            "SELECT column_name, column_type, is_nullable = 'YES', column_key = 'PRI', extra "
            "FROM information_schema.columns WHERE table_schema = 'd' AND table_name = %s ORDER BY ordinal_position",
            values=[table],
        )
        return tuple(
            SourceColumn(
                name,
                parse_type(declared if isinstance(declared, str) else declared.decode()),
                bool(nullable),
                bool(key),
                virtual="configured" if "VIRTUAL" in extra else None,
            )
            for name, declared, nullable, key, extra in found
        )

    def configure(self) -> None:
        """The feed is verified against it, with the password of the environment's SOURCE_PASSWORD."""
        document = json.loads(self.lake.config_path.read_text())
        document["feeds"][0]["verify"] = {"url": f"mysql://{USER}:${{SOURCE_PASSWORD}}@{self.address}"}
        self.lake.config_path.write_text(json.dumps(document))

    def call(self, *options: str, password: str = PASSWORD, answer: str = "") -> Result:
        """`verify`, with what it reads from its input."""
        environment = {"CDC_LAKEHOUSE_CONFIG": str(self.lake.config_path), "SOURCE_PASSWORD": password}
        arguments = ["verify", "--pause", "0", *options]
        return CliRunner().invoke(main, arguments, env=environment, input=answer, catch_exceptions=False)


class VerifiedFeed(VerifiedSource):
    """A feed of such a database, whose lake has what `copy` brings there."""

    def __init__(self, server: MySqlServer, directory: Path, **feed: Any) -> None:
        super().__init__(server, conv=_CONVERSIONS)
        self.lake = lake_in(directory, **feed)
        self.configure()
        self._cut: dict[str, tuple[int | None, int]] = {}
        self.checkpoint_ts = T0

    def copy(self, table: str, change: Callable[[list[Row]], None] = lambda rows: None) -> None:
        """The table's rows into the lake, after `change`; and a cut that has them."""
        columns, where = (
            self.columns(table),
            CurrentTables(self.lake.lake, self.lake.feed).identifier(TableName("d", table)),
        )
        self.checkpoint_ts += 10
        carried = [column for column in columns if column.virtual is None]
        zero_dates = self.lake.feed.zero_dates_of("d", table)
        types = {
            column.name: "string"
            if zero_dates == "string" and column.type.name in _ZONED
            else iceberg_type(column.type)
            for column in carried
        }
        fields = [NestedField(n, name, _TYPE.validate_python(type)) for n, (name, type) in enumerate(types.items(), 1)]
        fields.append(NestedField(len(fields) + 1, "_commit_ts", _TYPE.validate_python("long")))
        arrow = schema_to_pyarrow(Schema(*fields), include_field_ids=False)
        names = ", ".join(_read(quoted(column.name), column.type) for column in carried)
        rows = [dict(zip(types, row, strict=True)) for row in self.execute(f"SELECT {names} FROM {quoted(table)}")]
        for row in rows:
            for column in carried:
                row[column.name] = _value(row[column.name], types[column.name])
        change(rows)
        found = self.lake.lake.load(where)
        if found is None:
            script.create(self.lake, table, at=self.checkpoint_ts, columns=columns)
            found = script.current_table(self.lake, table, arrow)
        # A table that has no row yet warns that nothing was deleted.
        (found.overwrite if found.current_snapshot() else found.append)(
            pa.Table.from_pylist([{"_commit_ts": T0, **row} for row in rows], arrow)
        )
        snapshot = self.lake.lake.existing(where).current_snapshot()
        self._cut[table] = snapshot and snapshot.snapshot_id, len(rows)
        self.publish()

    def events(self, table: str, events: Sequence[tuple[int, dict[str, str]]]) -> None:
        """Inserts (commit-ts, row) that are in `events`, whether a cut has them or not."""
        where = system_table(self.lake.name, "events")
        self.lake.lake.ensure_namespace(where.namespace)
        found = self.lake.lake.load(where) or self.lake.lake.catalog.create_table(where.parts, EVENTS)
        rows = [
            {"feed_date": "2026-06-01", "schema_name": "d", "table_name": table, "op": "I", "commit_ts": commit_ts,
             "after": json.dumps(row), "segment": "s", "line": n, "synthetic": False}
            for n, (commit_ts, row) in enumerate(events)
        ]  # fmt: skip
        found.append(pa.Table.from_pylist(rows, EVENTS))

    def publish(self, held: tuple[tuple[str, str], ...] = ()) -> None:
        script.publish(self.lake, self._cut, dict(held), at=self.checkpoint_ts)

    def verify(self, *options: str, code: int) -> list[Row]:
        """The tables of the result, by `verify --json`."""
        result = self.call("--json", *options)
        assert result.exit_code == code, result.output
        (feed,) = json.loads(result.stdout)["feeds"]
        assert feed["error"] is None and feed["server"].startswith("8.0")
        return feed["tables"]

    @property
    def url(self) -> str:
        return f"mysql://{USER}:{PASSWORD}@{self.address}"


_ZONED = frozenset({"date", "datetime", "timestamp"})
# Dates and times as they are sent: some are none.
_CONVERSIONS = {key: value for key, value in conversions.items() if key not in (7, 10, 11, 12)}


def _read(name: str, type: ColumnType) -> str:
    # All digits of a FLOAT, and numbers without ZEROFILL.
    return f"{name} + 0e0" if type.name == "float" else f"{name} + 0" if type.name == "bit" else name


def _value(value: Any, iceberg: str) -> Any:
    """A value of the client's as one that pyarrow takes for the Iceberg type."""
    if value is None:
        return None
    match iceberg.partition("(")[0]:
        case "date" | "timestamp" | "timestamptz" as kind:
            read = datetime.date.fromisoformat if kind == "date" else datetime.datetime.fromisoformat
            with contextlib.suppress(ValueError):
                return read(value + "+00:00" if kind == "timestamptz" else value)
            return None
        case "decimal":
            return Decimal(value)
        case "int" | "long":
            return int(value)
        case "string" if isinstance(value, Decimal):
            return f"{value:f}"
        case "string" if isinstance(value, bytes):
            return value.decode("latin-1")
        case _:
            return value
