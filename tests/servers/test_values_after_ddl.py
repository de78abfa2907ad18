"""What rows hold after a DDL that the source sends no row changes for, as a real server has it: converted types, and
the defaults of added columns."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.ddl.clauses import AddColumn
from cdc_lakehouse.changelog.ddl.statements import parse
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn
from cdc_lakehouse.duckdb_sql import cast
from cdc_lakehouse.lake.current.conversions import conversions, convert_through
from cdc_lakehouse.lake.current.typed_rows import any_of
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from tests.kit import truth
from tests.kit.duckdb_sql import of, rows_of
from tests.kit.hand_sinks import ADD_COLUMN, CREATE, ID, HandSink, row
from tests.kit.lakes import TestLake, run_all
from tests.servers.mysql import MySqlServer

pytestmark = [pytest.mark.spark, pytest.mark.server]

CSV = {"protocol": "csv", "csv": {"include-commit-ts": True}}
MODIFY = 12

# Old type, new type, values of the old one. In strict mode the server refuses what would lose data.
CONVERSIONS: list[tuple[str, str, list[str | None]]] = [
    ("int", "varchar(20)", ["0", "-7", "2147483647", None]),
    ("int unsigned", "varchar(20)", ["4294967295", "1"]),
    ("bigint", "decimal(30,2)", ["-9223372036854775808", "5"]),
    ("bigint unsigned", "varchar(30)", ["18446744073709551615", "0"]),
    ("int", "double", ["1", "-3"]),
    ("int", "bigint unsigned", ["1", "3"]),
    ("bigint", "int", ["1", "-3"]),
    ("bigint unsigned", "bigint", ["12", "0"]),
    ("int", "year", ["1999", "2155"]),
    ("year", "int", ["1999", "0"]),
    ("year", "varchar(10)", ["1999", "2155"]),
    ("int", "datetime", ["20260102", "20251231"]),
    ("varchar(20)", "int", ["12", "-7", " 15", None]),
    ("varchar(20)", "int", ["1.5", "2.4", "-1.5"]),
    ("varchar(30)", "bigint unsigned", ["18446744073709551615", "0"]),
    ("varchar(30)", "decimal(12,3)", ["1.5", "-2.25", "1e3"]),
    ("varchar(30)", "double", ["1.5", "-2.5e10"]),
    ("varchar(30)", "datetime(3)", ["2026-01-02 03:04:05.678", "2026-01-02"]),
    ("varchar(30)", "date", ["2026-01-02", "1999-12-31"]),
    ("varchar(30)", "enum('a','b')", ["a", "b"]),
    ("varchar(30)", "set('x','y','z')", ["x", "x,z", ""]),
    ("varchar(30)", "varbinary(30)", ["abc", "é😀"]),
    ("varchar(30)", "json", ['{"a": [1, 2]}', "3"]),
    ("varchar(30)", "time(2)", ["10:11:12.35", "-100:00:00"]),
    ("text", "varchar(100)", ["abc", ""]),
    ("char(5)", "binary(8)", ["ab", "abcde"]),
    ("decimal(12,4)", "decimal(12,2)", ["1.2550", "-1.2450", "1.9999"]),
    ("decimal(10,2)", "decimal(20,6)", ["1.25", "-99999999.99"]),
    ("decimal(10,2)", "int", ["1.50", "2.50", "-1.50"]),
    ("decimal(10,2)", "varchar(20)", ["1.50", "-0.01"]),
    ("decimal(10,2)", "double", ["1.50", "-0.01"]),
    ("decimal(40,5)", "decimal(50,7)", ["12345678901234567890.12345", "-1.00000"]),
    ("decimal(20,2)", "decimal(60,4)", ["12345.12", "-1.00"]),
    ("double", "decimal(20,3)", ["1.5", "-2.0625"]),
    ("double", "int", ["1.5", "2.5", "-1.4"]),
    ("double", "varchar(40)", ["1.5", "100", "-0.25", "1e14", "-1e14", "1234567890123456.5", "1e-5", "-1e-14"]),
    ("float", "double", ["1.5", "-0.25"]),
    ("double", "float", ["1.5", "-0.25"]),
    ("datetime", "date", ["2026-01-02 03:04:05", "2026-01-02 23:59:59", None]),
    ("datetime(6)", "datetime", ["2026-01-02 03:04:05.499999", "2026-01-02 03:04:05.500000"]),
    ("datetime(6)", "datetime(3)", ["2026-01-02 03:04:05.123499", "2026-01-02 23:59:59.999600"]),
    ("datetime", "timestamp", ["2026-01-02 03:04:05", "2001-01-01 00:00:00"]),
    ("timestamp", "datetime", ["2026-01-02 03:04:05", "2001-01-01 00:00:00"]),
    ("datetime(3)", "varchar(40)", ["2026-01-02 03:04:05.120", "2026-01-02 00:00:00.000"]),
    ("timestamp", "varchar(40)", ["2026-01-02 03:04:05", "2001-01-01 00:00:00"]),
    ("date", "datetime", ["2026-01-02", "1000-01-01"]),
    ("date", "varchar(20)", ["2026-01-02", "1000-01-01"]),
    ("datetime", "time", ["2026-01-02 03:04:05", "2026-01-02 00:00:00"]),
    ("datetime", "bigint", ["2026-01-02 03:04:05", "1999-12-31 00:00:00"]),
    ("time", "varchar(20)", ["10:11:12", "-838:59:59"]),
    ("time(3)", "time", ["10:11:12.499", "10:11:12.500", "-00:00:01.500"]),
    ("time", "time(3)", ["10:11:12", "-838:59:59"]),
    ("enum('a','b')", "enum('b','a','c')", ["a", "b"]),
    ("enum('a','b')", "varchar(10)", ["a", "b"]),
    ("enum('a','b')", "int", ["a", "b"]),
    ("int", "enum('a','b')", ["1", "2"]),
    ("set('x','y')", "set('y','x','z')", ["x", "x,y", ""]),
    ("set('x','y')", "varchar(20)", ["x", "x,y", ""]),
    ("set('x','y')", "int", ["x", "x,y", ""]),
    ("varbinary(10)", "varchar(10)", ["abc", ""]),
    ("varbinary(10)", "binary(10)", ["abc", ""]),
    ("blob", "varbinary(20)", ["abc", ""]),
    ("bit(8)", "int", ["5", "255"]),
    ("int", "bit(8)", ["5", "255"]),
    ("json", "text", ['{"a": [1, 2], "b": null}', '"x"']),
]  # fmt: skip

# Values that the server changes, most of them without strict mode only: in strict mode it refuses the statement. The
# last list has those that become a fault, because they cannot be computed here.
ODD: list[tuple[str, str, list[str], list[str]]] = [
    ("varchar(20)", "char(5)", ["ab  ", " a", "abcdef", "ab\t"], []),
    ("varchar(20)", "varchar(3)", ["abcd", "abc  ", "ab é"], []),
    ("text", "tinytext", ["é" * 100], ["a" * 300]),
    ("varbinary(20)", "binary(2)", ["abc", "a"], []),
    ("binary(8)", "binary(4)", ["ab", "abcdef"], []),
    ("int", "varchar(2)", ["12345", "-1"], []),
    ("varchar(20) character set gbk", "varbinary(20)", ["中", "a"], []),
    ("varchar(20) character set latin1", "blob", ["é", "€"], []),
    ("varchar(20) character set utf16", "blob", ["é", "a"], []),
    ("varchar(20) character set utf8mb4", "varchar(20) character set utf8", ["é", "中"], ["😀"]),
    ("varchar(20)", "varchar(20) character set latin1", ["é", "a"], ["中"]),
    ("varchar(20)", "enum('red','blue')", ["Red", "blue ", "BLUE", "nope", "", " red", "2", "01", "-1"], ["ｒｅｄ"]),
    ("varchar(20)", "enum('é','x')", ["É", "e", "X "], ["ü"]),
    ("varchar(20)", "set('a','b','c')", ["b,a", "C", "c,a,A", "a ", "a, b", "x", "a,x", "", "3", "9", ",a"], []),
    ("enum('a','b')", "enum('B','c')", ["a", "b"], []),
    ("set('a','b')", "set('b','c')", ["a,b", "a", "b"], []),
    ("enum('a','b')", "set('b','a')", ["a"], []),
    ("enum('10:11:12','b')", "time", ["10:11:12", "b"], []),
    ("int", "enum('2','1')", ["1", "2", "0", "3", "-1"], []),
    ("int", "set('x','y')", ["3", "4", "0"], []),
    ("double", "enum('a','b')", ["1", "1.5"], []),
    ("decimal(3,1)", "enum('a','b')", ["1.0"], []),
    ("datetime", "enum('2026-01-02 03:04:05','b')", ["2026-01-02 03:04:05"], []),
    ("int", "year", ["99", "5", "0", "69", "70", "100", "1900", "1901", "2156", "-5"], []),
    ("varchar(20)", "year", ["99", "5", "0", "000", "0000", "1999 ", "abc", "2156", "1.5", "99.6", "7x", ""], []),
    ("double", "year", ["99.4", "5.5", "0.4"], []),
    ("date", "year", ["2026-01-02"], []),
    ("double", "double(10,2)", ["1.239", "1.005", "-1.235", "2.675", "1.125", "123456.785"], ["1e9"]),
    ("double(10,4)", "double(10,2)", ["1.2350", "2.3450", "1.2399"], []),
    ("float", "float(10,1)", ["1.26", "1.25", "-1.35", "0.05"], []),
    ("double", "float(10,2)", ["1.239", "2.675"], []),
    ("decimal(10,4)", "double(10,2)", ["1.2350", "1.2349"], []),
    ("int", "double(5,2)", ["99999", "5"], []),
    ("varchar(20)", "double(10,2)", ["1.235", "abc", "7x", "1e3x", "."], []),
    ("double(10,2)", "varchar(20)", ["1.2", "5"], []),
    ("double", "double unsigned", ["-1.5"], []),
    ("int(5) zerofill", "varchar(20)", ["5"], []),
    ("decimal(5,2) zerofill", "varchar(20)", ["1.5"], []),
    ("varchar(20)", "int", ["abc", "7x", "", "-", "1e2x", "99999999999", "-99999999999", "1.5x", ".5", "0x1"], []),
    ("varchar(20)", "tinyint unsigned", ["300", "-3", "-0.4"], []),
    ("varchar(40)", "bigint", ["9223372036854775807.5", "1e30", "-1e30"], []),
    ("varchar(20)", "bigint unsigned", ["18446744073709551616", "-1"], []),
    ("varchar(60)", "decimal(5,2)", ["abc", "7x", "1.235x", "99999", "-99999", "-1e-1", "1e50"], []),
    ("varchar(60)", "decimal(50,3)", ["abc", "7x", "1e60", "-1e60"], []),
    ("varchar(20)", "bit(8)", ["5", "A", "2.7", "1e1", "300", "-1", ""], []),
    ("varchar(20)", "double", ["1e400", "abc"], []),
    ("int", "tinyint", ["300", "-300"], []),
    ("int", "int unsigned", ["-1"], []),
    ("bigint", "int", ["99999999999", "-99999999999"], []),
    ("bigint unsigned", "bigint", ["18446744073709551615"], []),
    ("int", "bit(8)", ["256", "-1"], []),
    ("decimal(10,2)", "decimal(4,1)", ["99999.99", "999.95", "1.25"], []),
    ("decimal(10,2)", "int unsigned", ["-1.50", "-0.40"], []),
    ("decimal(40,5)", "tinyint", ["300.5", "-300"], []),
    ("decimal(40,5)", "decimal(39,3) unsigned", ["-1.5"], []),
    ("double", "int", ["1e20", "-1e20", "2147483647.5"], []),
    ("double", "decimal(5,2)", ["99999", "1.005", "1.235"], []),
    ("float", "bigint", ["1e9"], ["1e20"]),
    ("varchar(20)", "time", ["101112", "1 02:03:04", "10:11", "10:11:12.6", "123", "-10:11:12", "839:00:00", "abc",
        "10:61:00", "", "12.5", "1:2:3", "2026-01-02 03:04:05", "20260102030405", "-1 02:03:04", "99", "12:30.5"],
        ["10:", "1 2", "10:11:12x"]),
    ("varchar(20)", "time(2)", ["101112.345", "1 02:03:04.999", "838:59:59.999", ".5"], []),
    ("int", "time", ["101112", "5", "-101112", "8390000", "106100"], []),
    ("double", "time(1)", ["101112.25", "-5.5", "1e20"], []),
    ("varchar(30)", "date", ["2026-1-2", "260102", "70101", "2026/1/2", "26-1-2", "2026-01-02 23:59:59.9", "abc", "101",
        "2026-02-30", ""], ["2026-01-02abc"]),
    ("varchar(40)", "datetime", ["2026-01-02 03", "10:11:12", "2026-01-02 25:00:00", "12"], ["2026-01-02 03:04:05x"]),
    ("varchar(40)", "timestamp null", ["1960-01-01", "2039-01-01", "1970-01-01 00:00:01"], []),
    ("int", "datetime", ["70101", "101", "1020304", "260102", "99999999"], []),
    ("datetime", "timestamp null", ["1960-01-01 00:00:00", "1970-01-01 00:00:00", "2038-01-19 03:14:07"], []),
    ("datetime(6)", "date", ["2026-01-02 23:59:59.9", "2026-01-02 23:59:59.4"], []),
]  # fmt: skip

# Definitions whose default every older row then has.
DEFAULTS = [
    "int DEFAULT 7", "int DEFAULT '-8'", "int NOT NULL", "bigint unsigned DEFAULT 18446744073709551615",
    "decimal(10,3) DEFAULT 1.5", "decimal(10,3) NOT NULL", "decimal(50,3) DEFAULT 1.5", "double DEFAULT -2.5e3",
    "decimal(65,30) DEFAULT 1.5", "float DEFAULT 0.1", "bit(8) DEFAULT b'101'", "bit(8) DEFAULT 5", "bit(1) DEFAULT 0",
    "bit(8) DEFAULT 49", "bit(8) DEFAULT b'11111111'", "bit(16) DEFAULT 456", "bit(64) DEFAULT 18446744073709551615",
    "year DEFAULT 99", "year DEFAULT 0", "year DEFAULT '0'", "year NOT NULL",
    "varchar(20) DEFAULT 'it''s \\\\ \"x\" é'", "varchar(20) NOT NULL",
    "char(5) DEFAULT 'ab  '", "varchar(5) DEFAULT 5",
    "varchar(20) CHARACTER SET latin1 DEFAULT _latin1 x'e9'",
    "varbinary(10) DEFAULT x'00ff41'", "binary(4) DEFAULT 'a'", "binary(4) NOT NULL", "varbinary(10) NOT NULL",
    "date DEFAULT '2026-01-02'", "date DEFAULT 20260102", "datetime(3) DEFAULT '2026-01-02 03:04:05.1235'",
    "timestamp NULL DEFAULT '2026-01-02 03:04:05'", "time(2) DEFAULT '-10:11:12.345'", "time NOT NULL",
    "enum('a','b') DEFAULT 'b'", "enum('a','b') NOT NULL", "set('x','y') DEFAULT 'y,x'", "set('x','y') NOT NULL",
    "text", "text NOT NULL", "blob NOT NULL", "json", "int DEFAULT NULL", "bool DEFAULT true", "int DEFAULT 0x1f",
]  # fmt: skip


class Source:
    """One table on the server and in a sink. TIMESTAMPs are in UTC, as the server's zone is."""

    def __init__(self, server: MySqlServer, lake: TestLake) -> None:
        self.sink = HandSink(lake.sink)
        self.lake = lake
        connection = server.connect()
        # A transaction that only reads keeps others from dropping what it has read.
        connection.autocommit(True)
        self._cursor = connection.cursor()
        for statement in ("DROP DATABASE IF EXISTS d", "CREATE DATABASE d", "USE d"):
            self._cursor.execute(statement)

    def run(self, statement: str) -> None:
        self._cursor.execute(statement)

    def put(self, values: Sequence[str | int | None]) -> None:
        self._cursor.execute(f"INSERT INTO t VALUES ({', '.join(['%s'] * len(values))})", values)

    def columns(self) -> list[tuple[str, str, bool, str | None]]:
        """Name, type, whether it can be NULL, and the default."""
        self._cursor.execute(
            "SELECT column_name, column_type, is_nullable = 'YES', column_default FROM information_schema.columns "
            "WHERE table_schema = 'd' AND table_name = 't' ORDER BY ordinal_position"
        )
        return [(name, kind, bool(nullable), default) for name, kind, nullable, default in self._cursor.fetchall()]

    def rows(self) -> list[list[Any]]:
        """As the data sets have them: texts, bytes as base64."""
        kinds = [kind for _, kind, *_ in self.columns()]
        parts = [_as_text(f"`{name}`", kind) for name, kind, *_ in self.columns()]
        self._cursor.execute(f"SELECT {', '.join(parts)} FROM t ORDER BY id")
        return [[_cell(cell, kind) for cell, kind in zip(each, kinds, strict=True)] for each in self._cursor.fetchall()]

    def schema(self, at: int, action: int, query: str) -> None:
        shown = [
            ID if name == "id" else SourceColumn(name, _type(kind), nullable, default=_tidb(default, kind))
            for name, kind, nullable, default in self.columns()
        ]
        self.sink.schema("t", at, *shown, action=action, query=query)

    def send(self, version: int) -> None:
        """The rows as they are, as inserts."""
        kinds = [kind for _, kind, *_ in self.columns()]
        lines = [row("I", "t", version + 1 + n, *map(_csv, each, kinds)) for n, each in enumerate(self.rows())]
        self.sink.rows("d/t", version, *lines)

    def data_files(self) -> list[Path]:
        return sorted(self.lake.warehouse.rglob(f"{self.lake.name}__d*/**/*.parquet"))

    def check(self, told: Sequence[str] = ()) -> None:
        """The lake's rows are the server's; `told` says what each column after the key is about."""
        wanted, table = self.rows(), self.lake.tables()["d", "t"]
        arrow = table.scan().to_arrow().sort_by("id")
        wrong: dict[str, Any] = {}
        for place, (name, kind, *_) in enumerate(self.columns()):
            true = [truth.true_value(cells[place], kind) for cells in wanted]
            seen = [truth.seen_value(value, kind) for value in arrow.column(place).to_pylist()]
            shown = str(table.schema().find_type(name))
            if true != seen or shown != truth.iceberg_type(kind):
                wrong[f"{name} {told[place - 1] if told else kind}"] = (shown, true, seen)
        assert not wrong


def _as_text(name: str, kind: str) -> str:
    if kind.startswith("bit"):
        return f"CAST({name} + 0 AS CHAR)"
    if _is_bytes(kind):
        return f"TO_BASE64({name})"
    return f"CAST({name} AS CHAR)"


def _cell(cell: Any, kind: str) -> Any:
    if cell is None:
        return None
    if kind == "json":
        return json.loads(cell)
    return {"b64": cell.replace("\n", "")} if _is_bytes(kind) else cell


def _is_bytes(kind: str) -> bool:
    return kind.startswith(("binary", "varbinary", "blob"))


def _csv(cell: Any, kind: str) -> str:
    if cell is None:
        return r"\N"
    text = json.dumps(cell) if kind == "json" else cell["b64"] if isinstance(cell, dict) else cell
    return '"' + text.replace('"', '""') + '"'


def _tidb(default: str | None, kind: str) -> str | None:
    """A default of information_schema as TiDB has it in schema files: bytes, those of a BIT too. It loses what is not
    UTF-8 of a VARBINARY; of a BIT it is Go's JSON that does."""
    if default is not None and kind.startswith("bit"):
        number = int(default[2:-1], 2)
        return number.to_bytes(number.bit_length() // 8 + 1).lstrip(b"\0").decode(errors="surrogateescape") or "\0"
    if default is not None and _is_bytes(kind) and default.startswith("0x"):
        return bytes.fromhex(default[2:]).decode(errors="replace")
    return default


def _type(kind: str) -> ColumnType:
    (clause,) = parse(f"ALTER TABLE t ADD COLUMN c {kind}")
    assert isinstance(clause, AddColumn)
    return clause.column.type


@pytest.fixture
def source(mysql: MySqlServer, new_lake: Callable[..., TestLake]) -> Source:
    return Source(mysql, new_lake(source=CSV))


def test_old_values_are_converted_as_the_server_does(source: Source) -> None:
    columns = ", ".join(f"c{n} {old}" for n, (old, _, _) in enumerate(CONVERSIONS))
    create = f"CREATE TABLE t (id bigint PRIMARY KEY, {columns})"
    source.run(create)
    height = max(len(values) for _, _, values in CONVERSIONS)
    for number in range(height):
        values = [(old, texts[number % len(texts)]) for old, _, texts in CONVERSIONS]
        source.put([number, *(int(text or 0) if old.startswith("bit") else text for old, text in values)])
    source.schema(1, CREATE, create)
    source.send(1)
    source.sink.checkpoint(50)
    run_all(source.lake.run())
    source.check()
    modify = "ALTER TABLE t " + ", ".join(f"MODIFY COLUMN c{n} {new}" for n, (_, new, _) in enumerate(CONVERSIONS))
    source.run(modify)
    source.schema(60, MODIFY, modify)
    source.sink.checkpoint(70)
    assert not run_all(source.lake.run()).applied.held
    source.check([f"{old} to {new}" for old, new, _ in CONVERSIONS])


def test_odd_values_are_converted_as_the_server_does_or_lost(mysql: MySqlServer) -> None:
    connection = mysql.connect()
    connection.autocommit(True)
    cursor = connection.cursor()
    columns = ", ".join(f"c{n} {old}" for n, (old, *_) in enumerate(ODD))
    for statement in (
        "SET sql_mode = ''",
        "DROP DATABASE IF EXISTS d",
        "CREATE DATABASE d CHARACTER SET utf8mb4",
        "USE d",
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
    ):
        cursor.execute(statement)
    values = [[*computed, *lost] for _, _, computed, lost in ODD]
    for number in range(max(map(len, values))):
        marks = ", ".join(["%s"] * (len(ODD) + 1))
        cursor.execute(f"INSERT INTO t VALUES ({marks})", [number, *(each[number % len(each)] for each in values)])

    def shown(place: int, kind: str) -> list[Any]:
        cursor.execute(f"SELECT {_as_text(f'c{place}', kind)} FROM t ORDER BY id LIMIT {len(values[place])}")
        return [_cell(cell, kind) for (cell,) in cursor.fetchall()]

    given = [shown(place, old) for place, (old, *_) in enumerate(ODD)]
    cursor.execute("ALTER TABLE t " + ", ".join(f"MODIFY c{n} {new}" for n, (_, new, *_) in enumerate(ODD)))
    value_format = ValueFormat(database="mysql")
    wrong: list[tuple[Any, ...]] = []
    for place, (old, new, computed, _) in enumerate(ODD):
        types = [_type(old), _type(new)]
        first = value_format.type_of(types[0])
        relation, result, lost, _ = conversions(f"(SELECT {cast('value', first)} AS v0)", types, value_format)
        texts = [base64.b64decode(each["b64"]) if isinstance(each, dict) else each for each in given[place]]
        kind = "binary" if first == "binary" else "string"
        parts = (cast(result, value_format.type_of(types[1])), any_of(lost))
        found = rows_of(texts, kind, *(f"(SELECT {each} FROM {relation})" for each in parts))
        for n, (text, true, (seen, is_lost)) in enumerate(zip(texts, shown(place, new), found, strict=True)):
            wanted = (truth.true_value(true, new), False) if n < len(computed) else (None, True)
            if (truth.seen_value(seen, new), is_lost) != wanted:
                wrong.append((old, new, text, wanted, seen, is_lost))
    assert not wrong


def test_older_rows_have_the_default_of_an_added_column(source: Source) -> None:
    create = "CREATE TABLE t (id bigint PRIMARY KEY)"
    source.run(create)
    source.put(["1"])
    source.put(["2"])
    source.schema(1, CREATE, create)
    source.send(1)
    source.sink.checkpoint(50)
    run_all(source.lake.run())
    add = "ALTER TABLE t " + ", ".join(f"ADD COLUMN c{n} {definition}" for n, definition in enumerate(DEFAULTS))
    source.run(add)
    source.schema(60, ADD_COLUMN, add)
    source.sink.checkpoint(70)
    before = source.data_files()
    assert not run_all(source.lake.run()).applied.held
    assert source.data_files() == before
    source.check(DEFAULTS)


def test_floating_point_numbers_become_text_as_the_server_prints_them(mysql: MySqlServer) -> None:
    """Feeds of TiDB have them with all digits, which is another text from 1e15 on and below 1e-15."""
    numbers = [f"{digits}e{exponent}" for exponent in range(-18, 26) for digits in ("1", "-1.25", "1.234567890123456")]
    connection = mysql.connect()
    connection.autocommit(True)
    cursor = connection.cursor()
    for statement in ("DROP DATABASE IF EXISTS d", "CREATE DATABASE d", "USE d"):
        cursor.execute(statement)
    cursor.execute("CREATE TABLE t (id int PRIMARY KEY, d double, f float)")
    rows = ", ".join(f"({id}, {number}, {number})" for id, number in enumerate(numbers))
    cursor.execute(f"INSERT INTO t VALUES {rows}")
    cursor.execute("SELECT d, f + 0e0 FROM t ORDER BY id")
    doubles, floats = zip(*cursor.fetchall(), strict=True)
    cursor.execute("ALTER TABLE t MODIFY d varchar(40), MODIFY f varchar(40)")
    cursor.execute("SELECT d, f FROM t ORDER BY id")
    wanted = cursor.fetchall()
    of_doubles, of_floats = (
        of(values, kind, convert_through("value", [_type(kind), _type("varchar(40)")], ValueFormat(database="mysql")))
        for values, kind in ((doubles, "double"), (floats, "float"))
    )
    found = list(zip(of_doubles, of_floats, strict=True))
    assert [each for each in zip(numbers, found, wanted, strict=True) if each[1] != each[2]] == []


def test_bytes_are_what_was_put(source: Source) -> None:
    """That the server's texts are not what makes the two equal."""
    source.run("CREATE TABLE t (id bigint PRIMARY KEY, b varbinary(10))")
    source.put(["1", "é"])
    assert source.rows() == [["1", {"b64": base64.b64encode("é".encode()).decode()}]]
