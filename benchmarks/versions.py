"""`python -m benchmarks.versions`: what a task's update of a table costs by how many versions the table has had, and
by how many columns it has.

Each version gives one column another type, so that no two are alike. Measured is the CPU time of one task that types
the rows, without Spark: of one row of the first version and one update in the last one that has two of the columns
(`partial`), and of one row of each version (`rows of all`), each of which is read by its own version. Columns after the
fiftieth are numbers, texts and times by turns, and keep their types."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import click
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, IntegerType, LongType, NestedField, StringType, TimestampType

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion
from cdc_lakehouse.decoders.event_schema import image_text
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS
from cdc_lakehouse.lake.current.typed_rows import COMMIT_TS
from cdc_lakehouse.lake.current.update_tasks import FeedTable, TableUpdate, update_tables
from cdc_lakehouse.lake.current.value_parsing import ValueFormat

_COUNT: Final = click.IntRange(min=2)
_CHANGING: Final = 50
"""The first columns, whose types change."""
_OTHERS: Final = (
    (ColumnType.of("bigint"), LongType(), "1"),
    (ColumnType.of("varchar", length=20), StringType(), "1"),
    (ColumnType.of("datetime"), TimestampType(), "2024-01-01 00:00:00"),
    (ColumnType.of("decimal", length=10, scale=2), DecimalType(10, 2), "1.50"),
)


def _versions(count: int, width: int) -> list[TableVersion]:
    types = [ColumnType.of("int"), *(ColumnType.of("varchar", length=20) for _ in range(1, min(width, _CHANGING)))]
    types += [_OTHERS[place % len(_OTHERS)][0] for place in range(_CHANGING, width)]
    columns = [Column(number, f"c{number}", type) for number, type in enumerate(types, start=1)]
    found: list[TableVersion] = []
    for number in range(count):
        if number:
            place = 1 + number % (min(width, _CHANGING) - 1)
            columns[place] = replace(columns[place], type=ColumnType.of("varchar", length=20 + number))
        found.append(TableVersion(number + 1, TableName("d", "t"), "d.t#1", "alter", "evolve", "", "", tuple(columns)))
    return found


def _event(op: str, number: int, commit_ts: int, image: dict[str, str | None]) -> dict[str, Any]:
    return {
        "table_no": 0, "key": [image["c1"]], "stage": 2 * commit_ts, "upsert": True, "is_insert": op == "I",
        "version_no": number, "commit_ts": commit_ts, "image": image_text(image), "segment": "s", "line": commit_ts,
    }  # fmt: skip


def _seconds(versions: list[TableVersion], events: Iterable[dict[str, Any]]) -> float:
    columns = versions[-1].columns
    kinds = [StringType() if n < _CHANGING else _OTHERS[n % len(_OTHERS)][1] for n in range(1, len(columns))]
    others = [NestedField(column.id, column.name, kind) for column, kind in zip(columns[1:], kinds, strict=True)]
    schema = Schema(NestedField(1, "c1", IntegerType()), *others, NestedField(len(columns) + 1, COMMIT_TS, LongType()))
    changes = pa.Table.from_pylist(list(events), KEYED_EVENTS)
    table = FeedTable(Incarnation("d.t#1", tuple(versions)), columns[:1], ValueFormat(), 0)
    with tempfile.TemporaryDirectory() as directory:
        place = f"file://{directory}"
        plan = TableUpdate(0, table, place, schema, skips_rejected=False)
        start = time.process_time()
        (result,) = update_tables({}, [plan], changes)
        seconds = time.process_time() - start
    if not result.files or result.failure or result.rejections:
        raise click.ClickException(f"the table was not updated: {result}")
    return seconds


@click.command()
@click.option("--versions", type=_COUNT, multiple=True, default=(100, 200, 400), show_default=True)
@click.option("--columns", type=_COUNT, multiple=True, default=(50,), show_default=True)
def main(versions: tuple[int, ...], columns: tuple[int, ...]) -> None:
    """Measure updates of a table by how many versions it has had and how many columns it has."""
    click.echo("| versions | columns | partial, CPU s | rows of all, CPU s | ms a version |")
    click.echo(f"|{'--:|' * 5}")
    for count, width in itertools.product(versions, columns):
        made = _versions(count, width)
        values = ["1" if n < _CHANGING else _OTHERS[n % len(_OTHERS)][2] for n in range(width)]
        whole = {column.name: value for column, value in zip(made[0].columns, values, strict=True)}
        rows = [_event("I", number, number + 1, {**whole, "c1": str(number)}) for number in range(count)]
        partial = _seconds(made, [rows[0], _event("U", count - 1, count + 1, {"c1": "0", "c2": "2"})])
        every = _seconds(made, rows)
        click.echo(f"| {count} | {width} | {partial:.2f} | {every:.2f} | {every / count * 1000:.0f} |")


if __name__ == "__main__":
    main()
