"""The same work in DuckDB: the same lines into the same columns, then one typed row a key, in zstd Parquet.

It does less than the product: lines that cannot be used are an error, a change of a key is not looked for, nothing is
a transaction, and what is written is files, not tables. Parquet has no deletes, so that changes on top of a table
write the whole table again.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import duckdb

from benchmarks import sbtest
from benchmarks.change_log import Stage
from cdc_lakehouse.config import Protocol

_LINE: Final = (
    """{"database": 'VARCHAR', "table": 'VARCHAR', "isDdl": 'BOOLEAN', "type": 'VARCHAR', """
    """"old": 'JSON[]', "data": 'JSON[]', "_tidb": 'STRUCT("commitTs" BIGINT)'}"""
)
# One statement a file, for only `row_number() OVER ()` numbers lines, and it keeps to one thread.
_DECODE: Final = """
COPY (
    SELECT
        left(type, 1) AS op,
        _tidb."commitTs" AS commit_ts,
        CASE type WHEN 'DELETE' THEN data[1] WHEN 'UPDATE' THEN old[1] END AS before,
        CASE WHEN type <> 'DELETE' THEN data[1] END AS after,
        {segment} AS segment,
        row_number() OVER () AS line
    FROM read_json({file}, format = 'newline_delimited', columns = {columns})
) TO {target} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)
"""
_ROW: Final = (
    """{"op": 'VARCHAR', "tbl": 'VARCHAR', "db": 'VARCHAR', "commit_ts": 'BIGINT', """
    + ", ".join(f"\"{column.name}\": 'VARCHAR'" for column in sbtest.COLUMNS)
    + "}"
)
_DECODE_CSV: Final = """
COPY (
    SELECT
        op,
        commit_ts,
        CASE WHEN op = 'D' THEN row END AS before,
        CASE WHEN op <> 'D' THEN row END AS after,
        {segment} AS segment,
        row_number() OVER () AS line
    FROM (
        SELECT op, commit_ts, json_object({row}) AS row
        FROM read_csv(
            {file}, columns = {columns}, header = false, auto_detect = false, delim = ',', quote = '"', escape = '"',
            nullstr = '\\N', allow_quoted_nulls = false, new_line = '\\r\\n'
        )
    )
) TO {target} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)
"""
# Measured against arg_max and against positions first and rows afterwards: the fastest, or as fast.
_LATEST: Final = """
    SELECT op, id, row.k::INTEGER AS k, row.c AS c, row.pad AS pad, _commit_ts
    FROM (
        SELECT
            op,
            id,
            json_transform(after, '{{"k": "VARCHAR", "c": "VARCHAR", "pad": "VARCHAR"}}') AS row,
            commit_ts AS _commit_ts
        FROM (SELECT *, (coalesce(after, before)->>'$.id')::BIGINT AS id FROM read_parquet({events}))
        QUALIFY row_number() OVER (
            PARTITION BY id ORDER BY commit_ts DESC, op <> 'D' DESC, segment DESC, line DESC
        ) = 1
    )
"""
_PUBLISH: Final = """
COPY (
    WITH latest AS MATERIALIZED ({latest})
    {kept}
    SELECT * EXCLUDE (op) FROM latest WHERE op <> 'D'
) TO {target} (FORMAT parquet, COMPRESSION zstd)
"""
_KEPT: Final = "SELECT * FROM read_parquet({table}) ANTI JOIN latest USING (id) UNION ALL"


class Files:
    """`decode` and then `publish`, once for each stage of the sink."""

    def __init__(self, directory: Path, sink: Path, cores: int, memory_gib: int, protocol: Protocol) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._sink = sink
        self._cores = cores
        self._csv = protocol == "csv"
        self._connection = duckdb.connect(config={"threads": cores, "memory_limit": f"{memory_gib}GiB"})
        self._connection.execute("SET preserve_insertion_order = false")
        self._decoded: set[Path] = set()
        self._batch: list[Path] = []
        self._tables: list[Path] = []

    def decode(self, stage: Stage) -> None:
        """Sink files to events: a Parquet file for each."""
        new = sorted(set(self._sink.rglob("CDC*[0-9].*")) - self._decoded)
        self._batch = [self._directory / f"events-{stage.name}-{number}.parquet" for number in range(len(new))]
        with ThreadPoolExecutor(self._cores) as pool:
            list(pool.map(self._decode_file, new, self._batch))
        self._decoded |= set(new)

    def publish(self, stage: Stage) -> None:
        """The batch's events to the table: written anew where there was one."""
        target = self._directory / f"table-{stage.name}.parquet"
        statement = _PUBLISH.format(
            latest=_LATEST.format(events=_texts(self._batch)),
            kept=_KEPT.format(table=_text(self._tables[-1])) if self._tables else "",
            target=_text(target),
        )
        self._connection.execute(statement)
        self._tables.append(target)

    def close(self) -> None:
        self._connection.close()

    def current(self, stage_number: int) -> str:
        """The table as it was after a stage, for a FROM."""
        return f"read_parquet({_text(self._tables[stage_number])})"

    def events(self) -> str:
        return f"read_parquet({_text(self._directory / 'events-*.parquet')})"

    def _decode_file(self, file: Path, target: Path) -> None:
        segment = file.relative_to(self._sink).as_posix()
        given = {"file": _text(file), "segment": _text(segment), "target": _text(target)}
        row = ", ".join(f"'{column.name}', \"{column.name}\"" for column in sbtest.COLUMNS)
        statement = (
            _DECODE_CSV.format(columns=_ROW, row=row, **given) if self._csv else _DECODE.format(columns=_LINE, **given)
        )
        with self._connection.cursor() as cursor:
            cursor.execute(statement)


def _text(value: Path | str) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def _texts(values: Sequence[Path]) -> str:
    return "[" + ", ".join(map(_text, values)) + "]"
