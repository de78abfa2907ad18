"""Compute checksums of a current-state table's rows by bucket, and read the rows of some buckets, as of a snapshot.

The columns are read file by file and passed through DuckDB, which holds one number for each bucket and sorts on
disk."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from cdc_lakehouse import duckdb_sql as sql
from cdc_lakehouse.changelog.row_texts import Form
from cdc_lakehouse.lake.current.row_texts import in_row, number_of_digits, row_text
from cdc_lakehouse.lake.data_files import column, live_files, read_rows

_ROWS: Final = "lake_rows"
_BATCH_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class LakeValue:
    """A column: its field, the expression of its text (over `column(field_id)`), and its form in a row's text."""

    field_id: int
    text: str
    form: Form


@dataclass(frozen=True)
class LakeRows:
    """The rows of a snapshot, by the compared columns, those of the key first. `schema` is the schema to read the
    snapshot with; without a snapshot there are no rows."""

    table: Table
    snapshot: Snapshot | None
    schema: Schema
    columns: tuple[LakeValue, ...]
    key_count: int
    buckets: int

    def checksums(self) -> dict[int, tuple[int, int]]:
        """Return the number of rows and the checksum of each bucket that has rows."""
        values = [in_row(each.text, each.form) for each in self.columns]
        row = number_of_digits(f"md5({row_text(values)})", 16)
        query = (
            f"SELECT bucket, count(*), sum(hash) FROM (SELECT {self._bucket(f'md5({self._key()})')} AS bucket, "
            f"{row} AS hash FROM {_ROWS}) GROUP BY bucket"
        )
        with sql.database() as connection, sql.named(connection, **{_ROWS: self._reader()}):
            found = connection.execute(query).fetchall()
        return {int(bucket): (int(rows), int(checksum)) for bucket, rows, checksum in found}

    def rows(self, buckets: Sequence[int] | None) -> Generator[tuple[Any, ...]]:
        """Yield the MD5 of the key's text and the texts of all columns, of some buckets or of all (None), ordered by
        the MD5. The texts of binaries are their bytes."""
        texts = ", ".join(f"{each.text} AS c{n}" for n, each in enumerate(self.columns))
        digest = f"md5({self._key()})"
        some = ""
        if buckets is not None:
            some = f" WHERE {self._bucket('digest')} IN ({', '.join(f'{bucket:d}' for bucket in buckets)})"
        names = ", ".join(f"c{n}" for n in range(len(self.columns)))
        query = f"SELECT digest, {names} FROM (SELECT {digest} AS digest, {texts} FROM {_ROWS}){some} ORDER BY digest"
        with sql.database() as connection, sql.named(connection, **{_ROWS: self._reader()}):
            found = connection.execute(query)
            while rows := found.fetchmany(_BATCH_ROWS):
                yield from rows

    def _key(self) -> str:
        return row_text([in_row(each.text, each.form) for each in self.columns[: self.key_count]])

    def _bucket(self, digest: str) -> str:
        return f"{number_of_digits(digest, 8)} % {self.buckets:d}"

    def _reader(self) -> pa.RecordBatchReader:
        ids = [each.field_id for each in self.columns]
        types = {field.field_id: field.field_type for field in self.schema.fields}
        schema = pa.schema([(column(id), schema_to_pyarrow(types[id], include_field_ids=False)) for id in ids])
        return pa.RecordBatchReader.from_batches(schema, self._batches(ids, schema))

    def _batches(self, ids: Sequence[int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self.snapshot is None:
            return
        for file in live_files(self.table, (), snapshot=self.snapshot):
            for rows in read_rows(self.table.io, file, self.schema, ids):
                yield from rows.select(schema.names).cast(schema).to_batches()
