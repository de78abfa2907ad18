"""Random partitioned tables on a server, and which rows the product finds in a partition."""

from __future__ import annotations

import datetime
import random
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from cdc_lakehouse.changelog.schema import SchemaChange, TableVersion
from cdc_lakehouse.changelog.versions import LiveTables, versions_of
from cdc_lakehouse.decoders.event_schema import image_text
from cdc_lakehouse.lake.current.keyed_events import KEYED_EVENTS
from cdc_lakehouse.lake.current.typed_rows import PartitionRows, Target, typed_rows, without_emptied
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from tests.kit.duckdb_sql import connection

ZONES: Final = ("UTC", "+08:00", "-09:30", "Europe/Berlin", "America/New_York", "Asia/Shanghai")
COLLATIONS: Final = (
    "utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs",
    "latin1_swedish_ci", "latin1_bin", "utf8mb4_unicode_520_ci", "gbk_chinese_ci", "utf8mb4_roman_ci",
)  # fmt: skip
WORDS: Final = (
    "a", "A", "b", "B", "ab", "aB", "East", "east", "EAST", "east ", "west", "vest", "m", "M", "m_", "m-1", "m1", "z",
    "Z", "_", "-", "1", "10", "9", "2024-01-01", "2024-02-01", "", " ", "i", "j", "y", "u", "\u4e1c", "\u897f",
)  # fmt: skip
ACCENTED: Final = ("\u00e9ast", "\u00e0", "\u00df", "ss", "\u00c4")
NUMBERS: Final = {
    "INT": (-(2**31), -5, -4, -1, 0, 1, 3, 4, 7, 10, 2**31 - 1),
    "BIGINT": (-(2**63), -9, -1, 0, 1, 5, 8, 2**63 - 1),
    "BIGINT UNSIGNED": (0, 1, 5, 9, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1),
}
DATE_FUNCTIONS: Final = (
    "YEAR", "MONTH", "DAY", "DAYOFMONTH", "DAYOFYEAR", "DAYOFWEEK", "WEEKDAY", "QUARTER", "TO_DAYS", "HOUR", "MINUTE",
    "SECOND",
)  # fmt: skip
_SPRING: Final = 1711846800
"""When clocks of Berlin were put forward in 2024."""


@dataclass(frozen=True)
class Definition:
    """A table `t` of `id` and some columns, by the text of its statement, its partitions, and rows to try."""

    columns: str
    clause: str
    partitions: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def statement(self) -> str:
        return f"CREATE TABLE t (id INT, {self.columns}) PARTITION BY {self.clause}"


def random_definition(chance: random.Random) -> Definition:
    kinds = (_by_hash, _by_date, _by_moment, _by_list, _by_text_list, _by_text_range, _by_bytes, _by_pairs)
    return chance.choice(kinds)(chance)


def _named(bounds: Sequence[str], form: str) -> tuple[str, tuple[str, ...]]:
    names = tuple(f"p{n}" for n in range(len(bounds)))
    listed = ", ".join(f"PARTITION {name} VALUES {form.format(b)}" for name, b in zip(names, bounds, strict=True))
    return f"({listed})", names


def _hashed(columns: str, expression: str, rows: Sequence[Any], chance: random.Random) -> Definition:
    count = chance.randint(1, 7)
    names = tuple(f"p{n}" for n in range(count))
    return Definition(columns, f"HASH ({expression}) PARTITIONS {count}", names, tuple((row,) for row in rows))


def _by_hash(chance: random.Random) -> Definition:
    kind = chance.choice([*NUMBERS])
    expression = chance.choice(["c", "c", "ABS(c)", "FLOOR(c)", "CEILING(c)"])
    if kind == "BIGINT" and expression == "ABS(c)":
        kind = "INT"  # -2**63 has none.
    return _hashed(f"c {kind}", expression, [*NUMBERS[kind], None], chance)


def _by_date(chance: random.Random) -> Definition:
    kind, function = chance.choice(["DATE", "DATETIME", "DATETIME(3)"]), chance.choice(DATE_FUNCTIONS)
    if kind == "DATE" and function in ("HOUR", "MINUTE", "SECOND"):
        function = "YEAR"
    start = datetime.datetime(2023, 12, 28, 22, 58, 57)  # noqa: DTZ001 - It has no zone in the source.
    rows = [str(start + datetime.timedelta(days=chance.randint(-400, 400), seconds=n)) for n in range(12)]
    rows = [row[:10] if kind == "DATE" else row for row in rows]
    if chance.random() < 0.5:
        return _hashed(f"c {kind}", f"{function}(c)", [*rows, None], chance)
    days = sorted(chance.sample(range(-400, 400), 2))
    bounds = [f"({function}('{(start + datetime.timedelta(days=day)).date()}'))" for day in days]
    if function not in ("YEAR", "TO_DAYS"):
        bounds = [f"({bound})" for bound in sorted(chance.sample(range(1, 28), 2))]
    clause, names = _named([*bounds, "MAXVALUE"], "LESS THAN {}")
    return Definition(f"c {kind}", f"RANGE ({function}(c)) {clause}", names, tuple((row,) for row in [*rows, None]))


def _by_moment(chance: random.Random) -> Definition:
    """Moments around a change of the clocks, as their seconds; bounds may be times that clocks skip or show twice."""
    around = chance.choice([_SPRING, 1729990800, 1710054000, 1704038400])
    times = sorted({around + chance.randrange(-10_000, 10_000, 600) for _ in range(3)})
    texts = [str(datetime.datetime.fromtimestamp(each, datetime.UTC))[:19] for each in times]
    bounds = [f"(UNIX_TIMESTAMP('{text}'))" for text in texts]
    clause, names = _named([*bounds, "MAXVALUE"], "LESS THAN {}")
    rows = tuple((around + shift,) for shift in range(-40_000, 40_001, 1200))
    return Definition("c TIMESTAMP NULL", f"RANGE (UNIX_TIMESTAMP(c)) {clause}", names, (*rows, (None,)))


def _parted(values: Sequence[Any], chance: random.Random) -> list[str]:
    chosen = chance.sample(list(values), min(len(values), chance.randint(2, 7)))
    cut = chance.randint(1, len(chosen) - 1)
    return [f"({', '.join(map(_literal, part))})" for part in (chosen[:cut], chosen[cut:])]


def _literal(value: Any) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


def _by_list(chance: random.Random) -> Definition:
    kind = chance.choice([*NUMBERS])
    clause, names = _named(_parted([*NUMBERS[kind], None], chance), "IN {}")
    method = chance.choice(["LIST", "LIST COLUMNS"])
    return Definition(f"c {kind}", f"{method} (c) {clause}", names, tuple((row,) for row in [*NUMBERS[kind], None]))


def _text(chance: random.Random) -> tuple[str, tuple[str | None, ...]]:
    collation = chance.choice(COLLATIONS)
    words = [*WORDS, *(ACCENTED if chance.random() < 0.3 and not collation.startswith("gbk") else ())]
    if collation.startswith("latin1"):
        words = [word for word in words if word < "\u4e00"]
    charset = collation.split("_")[0]
    column = f"{chance.choice(['VARCHAR', 'CHAR'])}(20) CHARACTER SET {charset} COLLATE {collation}"
    return column, (*chance.sample(words, chance.randint(3, len(words))), None)


def _by_text_list(chance: random.Random) -> Definition:
    column, words = _text(chance)
    values = [*chance.sample([word for word in words if word is not None], 3), None]
    clause, names = _named(_parted(values, chance), "IN {}")
    return Definition(f"c {column}", f"LIST COLUMNS (c) {clause}", names, tuple((word,) for word in words))


def _by_text_range(chance: random.Random) -> Definition:
    column, words = _text(chance)
    bounds = sorted(chance.sample([word for word in words if word], 2), key=str.lower)
    clause, names = _named([*(f"('{bound}')" for bound in bounds), "(MAXVALUE)"], "LESS THAN {}")
    return Definition(f"c {column}", f"RANGE COLUMNS (c) {clause}", names, tuple((word,) for word in words))


def _by_bytes(chance: random.Random) -> Definition:
    kind = chance.choice(["BINARY(4)", "VARBINARY(4)"])
    values = ["a", "A", "ab", "b", "B", "a ", ""]
    clause, names = _named(_parted(values, chance), "IN {}")
    if chance.random() < 0.5:
        low, high = sorted(chance.sample(values, 2))
        clause, names = _named([f"('{low}')", f"('{high}')", "(MAXVALUE)"], "LESS THAN {}")
    method = "LIST" if " IN " in clause else "RANGE"
    rows = tuple((value,) for value in [*values, None])
    return Definition(f"c {kind}", f"{method} COLUMNS (c) {clause}", names, rows)


def _by_pairs(chance: random.Random) -> Definition:
    column, words = _text(chance)
    plain = [word for word in words if word]
    bounds = [f"({chance.choice([1, 2])}, '{chance.choice(plain)}')", "(2, MAXVALUE)", "(MAXVALUE, MAXVALUE)"]
    clause, names = _named(bounds, "LESS THAN {}")
    rows = tuple((number, word) for number in (None, 0, 1, 2, 3) for word in words)
    return Definition(f"c INT, d {column}", f"RANGE COLUMNS (c, d) {clause}", names, rows)


def rows_of_partition(statement: str, name: str, rows: Sequence[dict[str, str | None]], zone: str) -> set[str]:
    """Return the ids of the rows (texts by column) that an emptied partition takes with it. Raises `CdcError` where
    the product would hold the table."""
    live = LiveTables()
    change = SchemaChange(1, "d", "", None, statement, (), "", backslash_escapes=True, kind="text")
    (version,) = versions_of(change, live)
    kept = without_emptied(connection(), _events(rows), [_partition(version, name)], *_reading(zone, _events(rows)))
    return {row["id"] or "" for row in rows} - {key for (key,) in kept.column("key").to_pylist()}


def _partition(version: TableVersion, name: str) -> PartitionRows:
    assert version.partitioning is not None
    return PartitionRows(version.partitioning, (name,), Target(version.carried, {0: version}))


def _reading(zone: str, events: pa.Table) -> tuple[ValueFormat, Any]:
    read = ValueFormat(zone, database="mysql")
    return read, lambda upserts, target: typed_rows(connection(), events, upserts, target, read)


def _events(rows: Sequence[dict[str, str | None]]) -> pa.Table:
    made = [
        {
            "table_no": 0, "key": [row["id"]], "stage": 2, "upsert": True, "is_insert": True, "version_no": 0,
            "commit_ts": 1, "image": image_text(row), "segment": "s", "line": number,
        }
        for number, row in enumerate(rows)
    ]  # fmt: skip
    return pa.Table.from_pylist(made, KEYED_EVENTS)


def load_zone(cursor: Any, zone: str) -> None:
    """Make one of `ZONES` known to a server, from 1970 on, if it is not yet."""
    info, day, number = zoneinfo.ZoneInfo(zone), 86_400, ZONES.index(zone) + 1
    if cursor.execute("SELECT * FROM mysql.time_zone_name WHERE name = %s", (zone,)):
        return
    types: list[tuple[int, bool, str]] = []

    def kind(moment: int) -> int:
        local = datetime.datetime.fromtimestamp(moment, info)
        offset = local.utcoffset()
        assert offset is not None
        found = int(offset.total_seconds()), bool(local.dst()), (local.tzname() or "")[:8]
        if found not in types:
            types.append(found)
        return types.index(found)

    changes = [(0, kind(0))]
    for begin in range(0, 2**31 - 1 - day, day):
        if kind(begin + day) == changes[-1][1]:
            continue
        low, high = begin, begin + day
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if kind(middle) == changes[-1][1] else (low, middle)
        changes.append((high, kind(high)))
    cursor.execute("INSERT INTO mysql.time_zone (Time_zone_id, Use_leap_seconds) VALUES (%s, 'N')", (number,))
    cursor.execute("INSERT INTO mysql.time_zone_name VALUES (%s, %s)", (zone, number))
    cursor.executemany(
        "INSERT INTO mysql.time_zone_transition_type VALUES (%s, %s, %s, %s, %s)",
        [(number, place, *each) for place, each in enumerate(types)],
    )
    cursor.executemany(
        "INSERT INTO mysql.time_zone_transition VALUES (%s, %s, %s)", [(number, *each) for each in changes]
    )
