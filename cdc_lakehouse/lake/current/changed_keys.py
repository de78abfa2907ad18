"""Read the keys that events above a commit-ts change, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.changelog.row_texts import Form
from cdc_lakehouse.decoders.event_schema import image_of
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current import value_parsing
from cdc_lakehouse.lake.current.row_texts import in_row, row_text, value_text
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.tables.event_files import event_reader


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a key: its name and its type in the log, its type in the source, and its form in a row's text (see
    `changelog.row_texts`)."""

    name: str
    type: ColumnType
    source_type: ColumnType
    form: Form


def keys_changed_above(
    lake: Lake,
    feed: str,
    names: Sequence[tuple[str, str]],
    commit_ts: int,
    key: Sequence[KeyColumn],
    value_format: ValueFormat,
) -> Iterator[str]:
    """Yield the MD5 of each key's text in events with a greater commit-ts, for a table by all its names (database,
    table). A key can occur several times."""
    reader = event_reader(lake, feed)
    if reader is None:
        return
    wanted = set(names)
    for events in reader.read(wanted, commit_ts + 1, END_TS):
        columns = (events.column(name).to_pylist() for name in ("schema_name", "table_name", "commit_ts"))
        images = zip(events.column("before").to_pylist(), events.column("after").to_pylist(), strict=True)
        found = [
            image_of(image)
            for database, name, at, both in zip(*columns, images, strict=True)
            if at > commit_ts and (database, name) in wanted
            for image in both
            if image is not None
        ]
        if found:
            yield from _digests(found, key, value_format)


def _digests(images: Sequence[dict[str, str | None]], key: Sequence[KeyColumn], value_format: ValueFormat) -> list[str]:
    texts = {f"t{n}": pa.array([image.get(part.name) for image in images], pa.string()) for n, part in enumerate(key)}
    values = ", ".join(f"{value_parsing.value(f't{n}', part.type, value_format)} AS v{n}" for n, part in enumerate(key))
    parts = [
        in_row(value_text(f"v{n}", part.source_type, value_format.type_of(part.type), value_format), part.form)
        for n, part in enumerate(key)
    ]
    query = f"SELECT md5({row_text(parts)}) AS digest FROM (SELECT {values} FROM key_texts)"
    with sql.database() as connection:
        return sql.query(connection, query, key_texts=pa.table(texts)).column("digest").to_pylist()
