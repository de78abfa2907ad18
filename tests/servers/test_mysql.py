"""What is known of MySQL is what a real one does: tables after statements, the answers that tests without a server
replay (`make golden` writes them), characters of its character sets."""

import contextlib
import itertools
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_lakehouse.changelog.mysql_types import CharsetError, text, type_change
from cdc_lakehouse.changelog.schema import TableVersion, quoted
from tests import LONG
from tests.changelog.statements import NEXT_NUMBER, ProductTables, ShownTable, differences, in_odd_case
from tests.kit import golden
from tests.servers.mysql import MySqlServer, Session, load_zone, mysql_server

pytestmark = pytest.mark.server

TABLES = ("t", "u", "v", "w x")
NAMES = ("a", "b", "c", "d", "E", "f g", "h`i", "ü")
_SHOWN = {each["declared"]: re.match(r"\w+", each["is"])[0] for each in golden.read("types")}
TIMES = tuple(each for each in _SHOWN if each.startswith(("DATE", "TIME")))
NUMBERS = tuple(kind for kind, shown in _SHOWN.items() if re.fullmatch(r"\w*int|decimal|float|double|bit|year", shown))
NO_NUMBERS = {
    shown for shown in _SHOWN.values() if re.fullmatch(r"json|geom\w*|point|linestring|polygon|multi\w+", shown)
}
OTHERS = tuple(kind for kind, shown in _SHOWN.items() if shown in NO_NUMBERS)
TEXTS = tuple(kind for kind in _SHOWN if kind not in (*TIMES, *NUMBERS, *OTHERS))

RULES: dict[str, tuple[list[str], list[float]]] = {}
"""By the name of each rule its alternatives and their weights."""
for block in Path(__file__).with_name("random_ddl.txt").read_text(encoding="utf-8").split("\n\n"):
    first, *rest = [line for line in block.splitlines() if not line.startswith("#")] or [""]
    if " = " in first:
        for name, _, words in (line.partition(" = ") for line in (first, *rest)):
            found = [word.strip() for word in words.split("|")]
            RULES[name] = found, [1.0] * len(found)
    elif first:
        pairs = [line.partition(" ") for line in rest]
        RULES[first] = [text for _, _, text in pairs], [float(weight) for weight, _, _ in pairs]


def typed(name: str) -> str:
    """As a user types it: in quotes only where it has to be."""
    return name if name.isalnum() and name.isascii() else quoted(name)


Column = dict[str, Any]
"""`name`, `type`, `nullable`, `default`, `data_type`, `extra`, as information_schema.columns has them."""


@dataclass
class ServerTable:
    """A table on a server; `keys` are the columns of each key by its name."""

    columns: list[Column] = field(default_factory=list[Column])
    keys: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])


def is_large(column: Column) -> bool:
    """Values that lie outside of the row: no default, and keys over beginnings only."""
    return column["data_type"].endswith(("text", "blob")) or column["data_type"] in NO_NUMBERS


@dataclass
class RandomDdl:
    """Makes statements for tables as they are; `slips` is the share of names that are wrong, `generated` those of
    columns that are generated, or half of it AUTO_INCREMENT."""

    random: random.Random
    slips: float = 0.02
    generated: float = 0.06

    def next(self, tables: dict[str, ServerTable]) -> str:
        self._tables, self._of, self._kind, self._new = tables, ServerTable(), "", list[str]()
        return self._make("create" if len(tables) < (3 if self._chance(0.25) else 1) else "statement")

    def _make(self, rule: str) -> str:
        return re.sub(r"\{(\w+)\}", self._word, self.random.choices(*RULES[rule])[0])

    def _word(self, match: re.Match[str]) -> str:
        return self._make(match[1]) if match[1] in RULES else getattr(self, match[1])()

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _slip(self) -> bool:
        return self._chance(self.slips)

    def _one_of(self, usual: Sequence[str], names: Sequence[str]) -> str:
        """Now and then, or where there is none, another name."""
        return self.random.choice([*names] if self._slip() or not usual else usual)

    # --- Names ---

    def table(self) -> str:
        name = self._one_of(sorted(self._tables), TABLES)
        self._of = self._tables.get(name, ServerTable())
        return typed(name)

    def new_table(self) -> str:
        return typed(self._one_of([name for name in TABLES if name not in self._tables], TABLES))

    def swap(self) -> str:
        one, other = self.random.choices(sorted(self._tables), k=2)
        return ", ".join(f"{typed(a)} TO {typed(b)}" for a, b in ((one, "swap"), (other, one), ("swap", other)))

    def column(self) -> str:
        name = self._one_of([column["name"] for column in self._of.columns], NAMES)
        return typed(self.random.choice((name, name.upper(), name.lower())) if self._chance(0.2) else name)

    def new_column(self) -> str:
        known = {column["name"].lower() for column in self._of.columns}
        return typed(self._one_of([name for name in NAMES if name.lower() not in known], NAMES))

    def same_column(self) -> str:
        return " ".join([self.column()] * 2)

    def swap_columns(self) -> str:
        one, other = self.column(), self.column()
        return f"RENAME COLUMN {one} TO {other}, RENAME COLUMN {other} TO {one}"

    def small_column(self) -> str:
        """One that can have a default."""
        usable = [column for column in self._of.columns if self._slip() or not is_large(column)]
        self._kind = (chosen := self.random.choice(usable))["data_type"] if usable else ""
        return typed(chosen["name"]) if usable else "a"

    def number_column(self) -> str:
        usable = [column["name"] for column in self._of.columns if column["data_type"] not in NO_NUMBERS]
        return typed(self.random.choice(usable or ["a"]))

    # --- Columns ---

    def elements(self) -> str:
        self._new = self.random.sample(NAMES, self.random.randint(1, 5))
        self._new += [self._new[0].upper()] * self._slip()
        return ", ".join(f"{typed(name)} {self._make('plain_definition')}" for name in self._new) + self._make(
            "table_key"
        )

    def definition(self) -> str:
        return self._make("generated_definition" if self._chance(self.generated) else "plain_definition")

    def type(self) -> str:
        self._kind = self.random.choice(self.random.choices((NUMBERS, TEXTS, TIMES, OTHERS), (5, 5, 3, 1))[0])
        return self._kind

    def digits(self) -> str:
        return self._kind.partition("(")[2].removesuffix(")")

    def default_of_type(self) -> str:
        name = self._kind.partition("(")[0]
        # MySQL 8.0.12 makes the table although it refuses a time as the default of a DECIMAL.
        if self._chance(0.15) and not name.startswith(("DEC", "NUMERIC", "FIXED")):
            return self._make("any_default")
        if self._kind in OTHERS:
            return "NULL"
        kinds = {"TIME": "time", "DATE": "date", "ENUM": "label", "SET": "label"}
        of = "number" if self._kind in NUMBERS else kinds.get(name, "moment" if self._kind in TIMES else "text")
        return self._make(f"{of}_default")

    def fitting_default(self) -> str:
        dates = {
            "date": "20200102", "year": "1999", "datetime": "'2020-01-02'", "timestamp": "'2021-3-4'", "time": "'1:2'",
        }  # fmt: skip
        if self._chance(0.7) or self._kind == "decimal":
            return dates.get(self._kind) or self.random.choice(("1", "'1'", "NULL", "'a'", "0", "1.25"))
        return self.random.choice([each for each in RULES["any_default"][0] if not each.startswith(("CURRENT", "NOW"))])

    def auto_increment(self) -> str:
        return f"AUTO_INCREMENT {self._make('unique_or_primary')}" if self._chance(self.generated / 2) else ""

    def on_update(self) -> str:
        moment = self._kind.startswith(("DATETIME", "TIMESTAMP")) and self._chance(0.2)
        return f"ON UPDATE CURRENT_TIMESTAMP({self.digits() or 0})" if moment else ""

    # --- Keys ---

    def key_parts(self) -> str:
        usable = [column for column in self._of.columns if column["data_type"] not in NO_NUMBERS] or self._of.columns
        count = min(len(usable), self.random.choice((1, 1, 1, 2, 3)))
        return ", ".join(map(self._key_part, self.random.sample(usable, count))) or "a"

    def _key_part(self, column: Column) -> str:
        text = column["data_type"] in ("char", "varchar", "binary", "varbinary")
        part = (is_large(column) and not self._slip()) or (text and self._chance(0.3))
        return f"{typed(column['name'])}({self.random.randint(1, 6)})" if part else typed(column["name"])

    def new_key_columns(self) -> str:
        return ", ".join(map(typed, self.random.sample(self._new, min(len(self._new), self.random.choice((1, 1, 2))))))

    def key_name(self) -> str:
        return quoted(self._one_of([*self._of.keys], RULES["key_word"][0]))

    def key_of_table(self) -> str:
        table = self.table()
        return f"{self.key_name()} ON {table}"

    # --- Clauses ---

    def clauses(self) -> str:
        found = [self._make("clause") for _ in range(self.random.choice((1, 1, 1, 2, 2, 3, 4)))]
        if self._chance(0.04):
            found.insert(self.random.randint(0, len(found)), f"RENAME TO {self.new_table()}")
        return ", ".join(found)


# --- Server and product ---

_COLUMNS = """
    SELECT table_name, column_name, column_type, is_nullable = 'YES', column_default, data_type, extra
    FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
    WHERE table_schema = 'd' AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position
"""
_PARTS = ("name", "type", "nullable", "default", "data_type", "extra")
_KEYS = """
    SELECT table_name, index_name, column_name FROM information_schema.statistics
    WHERE table_schema = 'd' ORDER BY table_name, index_name, seq_in_index
"""


class Server(Session):
    """A session that is not strict, with the database `d`."""

    def __init__(self, mysql: MySqlServer) -> None:
        super().__init__(mysql)
        self.run("SET sql_mode = ''")

    def begin(self) -> None:
        self.run("DROP DATABASE IF EXISTS d", "CREATE DATABASE d CHARACTER SET utf8mb4", "USE d")

    def tables(self) -> dict[str, ServerTable]:
        tables: dict[str, ServerTable] = {}
        for table, *column in self.run(_COLUMNS):
            found = dict(zip(_PARTS, column, strict=True))
            tables.setdefault(table, ServerTable()).columns.append({**found, "nullable": bool(found["nullable"])})
        for table, key, column in self.run(_KEYS):
            if table in tables:
                tables[table].keys.setdefault(key, []).append(column or "")
        return tables

    def in_zone(self, zone: str) -> None:
        if "/" in zone:
            load_zone(self.cursor, zone)
        self.run(f"SET time_zone = '{zone}'")

    def shown(self, name: str, kind: str, rows: int) -> list[str | None]:
        """A column as text: all digits of numbers, bytes in hexadecimal, moments in UTC."""
        self.run("SET time_zone = '+00:00'")
        return [text for (text,) in self.run(f"SELECT {_text(name, kind.lower())} FROM t ORDER BY id LIMIT {rows}")]


def shown(table: ServerTable) -> ShownTable:
    columns = [
        [each["name"], each["type"], each["nullable"], NEXT_NUMBER if "auto_inc" in each["extra"] else each["default"]]
        for each in table.columns
    ]
    return {"columns": columns, "primary": table.keys.get("PRIMARY", [])}


@dataclass
class Oracle:
    """A server that compares names of tables without case, and the product beside it."""

    mysql: MySqlServer
    has_rows: bool

    def __post_init__(self) -> None:
        self._server = Server(self.mysql)
        self._server.run("SET sql_mode = DEFAULT")

    def begin(self) -> None:
        self._here, self._log = ProductTables("d"), list[str]()
        self._server.begin()
        self.current = self._server.tables()

    def run(self, statement: str) -> bool:
        """Whether the server took the statement; fails where the product makes other tables of it, or holds one."""
        before = {table.incarnation: (table, self._values(table)) for table in self._here.tables}
        try:
            self._server.run(statement)
        except pymysql.MySQLError:
            return False
        self._log.append(statement)
        story = ";\n".join(self._log)
        effects = self._here.run(statement)
        self.current = self._server.tables()
        tables = [(table.name.table.lower(), table) for table in self._here.tables]
        wrong = [*differences({name: shown(table) for name, table in self.current.items()}, tables)]
        assert not wrong, f"server, here: {wrong}\n{story}"
        for name, table in tables:
            if table.incarnation not in before or "empty" in effects.get(table.incarnation, ()):
                self._fill(name)
            elif "hold" not in effects.get(table.incarnation, ()):
                changed = _changed(*before[table.incarnation], table, self._values(table))
                assert not changed, f"{name}: the server changed {changed}, and the table is not held\n{story}"
        return True

    def _values(self, table: TableVersion) -> dict[int, list[Any]]:
        """The values of each column that rows have, by its id, in the same order of rows for all columns."""
        if not self.has_rows:
            return {}
        names = ", ".join(typed(each.name) for each in table.columns)
        found = self._server.run(f"SELECT {names} FROM {typed(table.name.table)}")
        # Labels in the character set binary are bytes to the client.
        rows = sorted([[v.decode("latin1") if isinstance(v, bytes) else v for v in row] for row in found], key=repr)
        return {each.id: [row[n] for row in rows] for n, each in enumerate(table.columns) if each.carried}

    def _fill(self, table: str) -> None:
        """Insert rows with other values in each column, as far as the server takes them."""
        names = [typed(each["name"]) for each in self.current[table].columns if "GENERATED" not in each["extra"]]
        for number in range(1, 4) if self.has_rows and names else ():
            insert = f"INSERT IGNORE INTO {typed(table)} ({', '.join(names)}) VALUES "
            with contextlib.suppress(pymysql.MySQLError):
                self._server.run(f"{insert}({', '.join([str(number)] * len(names))})")


def _changed(
    before: TableVersion, old: dict[int, list[Any]], after: TableVersion, new: dict[int, list[Any]]
) -> list[str]:
    """The columns whose values were changed though their type was not, or that are new and not the same in all rows."""
    changed: list[str] = []
    for column in after.columns:
        was, values = before.column(column.id), new.get(column.id, [])
        if was is None:
            changed += [column.name] if len(set(map(repr, values))) > 1 else []
        elif column.id in old and type_change(was.type, column.type) == "none":
            changed += [column.name] if sorted(map(repr, old[column.id])) != sorted(map(repr, values)) else []
    return changed


# --- Random statements ---

SEQUENCES = int(os.environ.get("CDC_DDL_SEQUENCES", 5000 if LONG else 40))
"""How many random sequences; more on demand."""
FIRST_SEED = int(os.environ.get("CDC_DDL_SEED", "0"))
LENGTH = 15
SHOWN = 50


@pytest.fixture(scope="module")
def folding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySqlServer]:
    with mysql_server(tmp_path_factory.mktemp("folding"), folding=True) as server:
        yield server


@pytest.mark.in_turn
@pytest.mark.parametrize("half", range(2))
@pytest.mark.parametrize("has_rows", [False, True])
def test_random_sequences(folding: MySqlServer, half: int, has_rows: bool) -> None:
    """Names are typed in any letter case. With rows, a table is held where the server changes them as the log does not
    say, and nowhere else."""
    oracle = Oracle(folding, has_rows)
    taken: Counter[bool] = Counter()
    different: list[str] = []
    for seed in range(FIRST_SEED + half, FIRST_SEED + SEQUENCES, 2):
        oracle.begin()
        made = RandomDdl(random.Random(seed), generated=0.15 if has_rows else 0.06)
        try:
            for _ in range(LENGTH):
                taken[oracle.run(in_odd_case(made.next(oracle.current), seed))] += 1
        except AssertionError as error:
            different.append(f"seed {seed}: {error}")
    shown = "\n\n".join(different[:SHOWN])
    assert not different, f"{len(different)} sequences are different:\n{shown}"
    # A generator whose statements are mostly refused tells little; rows refuse more of them.
    assert taken[True] > (0.3 if has_rows else 0.45) * taken.total()


# --- Answers that unit tests replay (`make golden` writes them): in the zone UTC, mostly without strict mode ---


def _text(name: str, kind: str) -> str:
    if re.match(r"bit|float", kind):
        return f"CAST({name} + {'0e0' if kind.startswith('float') else '0'} AS CHAR)"
    return f"CONCAT('0x', HEX({name}))" if _is_bytes(kind) else f"CAST({name} AS CHAR)"


def _is_bytes(kind: str) -> bool:
    return re.match(r"(var)?binary|(tiny|medium|long)?blob", kind) is not None


def _put(text: str, kind: str) -> Any:
    return bytes.fromhex(text[2:]) if _is_bytes(kind) else int(text) if kind.startswith("bit") else text


def conversions(server: Server) -> Iterator[dict[str, Any]]:
    """`values`: of the first type, and what an ALTER TABLE to each of the others in turn makes of them."""
    asked = golden.read("conversions")
    zones = [each.get("zone", "+00:00") for each in asked]
    answers: dict[int, dict[str, str | None]] = {}
    for zone in sorted(set(zones)):
        numbers = [n for n, each in enumerate(zones) if each == zone]
        types = {n: asked[n]["types"] for n in numbers}
        values = {n: [_put(text, types[n][0]) for text in asked[n]["values"]] for n in numbers}
        server.begin()
        server.run(f"CREATE TABLE t (id int, {', '.join(f'c{n} {types[n][0]}' for n in numbers)})")
        server.cursor.executemany(
            f"INSERT INTO t VALUES (%s, {', '.join(['%s'] * len(numbers))})",
            [[k, *(each[k % len(each)] for each in values.values())] for k in range(max(map(len, values.values())))],
        )
        given = {n: server.shown(f"c{n}", types[n][0], len(values[n])) for n in numbers}
        for step in range(1, max(map(len, types.values()))):
            server.in_zone(zone)
            modified = [f"MODIFY c{n} {types[n][step]}" for n in numbers if step < len(types[n])]
            server.run(f"ALTER TABLE t {', '.join(modified)}")
        for n in numbers:
            answers[n] = dict(zip(given[n], server.shown(f"c{n}", types[n][-1], len(values[n])), strict=True))
    return ({**each, "values": answers[n]} for n, each in enumerate(asked))


_ZERO_DATES_TOO = "'STRICT_ALL_TABLES'"


def defaults(server: Server) -> Iterator[dict[str, Any]]:
    """`defaults`: literals (none is an empty one), what information_schema prints of each, and what a row has that is
    older than the column (null for what is computed); null where the server refuses the definition. In strict mode."""
    server.begin()
    for question in golden.read("defaults"):
        # A column of dates that must not be NULL begins with a zero date, which a server may refuse.
        server.run(f"SET sql_mode = {_ZERO_DATES_TOO if 'NOT NULL' in question['column'] else 'DEFAULT'}")
        server.run("DROP TABLE IF EXISTS t", "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
        answers: dict[str, list[str | None] | None] = dict.fromkeys(question["defaults"])
        made: dict[str, str] = {}
        for number, literal in enumerate(answers):
            default = f" DEFAULT {literal}" * bool(literal)
            with contextlib.suppress(pymysql.MySQLError):
                server.run(f"ALTER TABLE t ADD c{number} {question['column']}{default}")
                made[f"c{number}"] = literal
        for column in server.tables()["t"].columns[1:]:
            (held,) = server.shown(column["name"], question["column"], 1)
            of_moments, default = column["data_type"] in ("timestamp", "datetime"), column["default"]
            is_now = of_moments and str(default).startswith("CURRENT_TIMESTAMP")
            answers[made[column["name"]]] = [default, None if is_now else held]
        yield {**question, "defaults": answers}


def ddl(server: Server) -> Iterator[dict[str, Any]]:
    """`log`: statements from an empty database on, and the tables after each."""
    server.run("SET sql_mode = DEFAULT")
    for question in golden.read("ddl"):
        server.begin()
        log: dict[str, Any] = {}
        for statement in question["log"]:
            server.run(statement)
            log[statement] = {name: shown(table) for name, table in server.tables().items()}
        yield {**question, "log": log}


def types(server: Server) -> Iterator[dict[str, Any]]:
    """`is`: how information_schema has a declared type."""
    asked = golden.read("types")
    server.begin()
    for question in asked:
        server.run(f"CREATE TABLE t (c {question['declared']})")
        yield {**question, "is": server.tables()["t"].columns[0]["type"]}
        server.run("DROP TABLE t")


def partitions(server: Server) -> Iterator[dict[str, Any]]:
    """`gone`: which rows of `rows` (`id` and others) a partition takes with it when it is emptied."""
    server.begin()
    for question in golden.read("partitions"):
        server.in_zone(question.get("zone", "+00:00"))
        server.run("DROP TABLE IF EXISTS t", question["table"])
        marks = ", ".join(["%s"] * len(question["rows"][0]))
        server.cursor.executemany(f"INSERT INTO t VALUES ({marks})", question["rows"])
        server.run(f"ALTER TABLE t TRUNCATE PARTITION {question['partition']}")
        left = {id for (id,) in server.run("SELECT CAST(id AS CHAR) FROM t")}
        yield {**question, "gone": [row[0] for row in question["rows"] if row[0] not in left]}


ANSWERS = {each.__name__: each for each in (conversions, defaults, ddl, types, partitions)}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_those_of_the_server(mysql: MySqlServer, name: str, update: bool) -> None:
    asked, answered = golden.read(name), list(ANSWERS[name](Server(mysql)))
    if update:
        golden.write(name, answered)
    else:
        assert [each for each in zip(asked, answered, strict=True) if each[0] != each[1]] == []


# --- Characters ---

# What no codec here reads: the error says so, no other character comes of it.
_WITHOUT_CODEC = {"armscii8", "dec8", "eucjpms", "geostd8", "keybcs2", "swe7"}
# Characters that users define for themselves; halves of surrogate pairs, which are no characters.
_NO_CHARACTERS = {"ujis": 1880, "ucs2": 8 * 207}


def _sequences() -> Iterator[bytes]:
    """All single bytes, all pairs that can be a character, the three bytes of EUC, some four of GB 18030."""
    yield from (bytes([byte]) for byte in range(256))
    yield from (bytes(pair) for pair in itertools.product(range(0x81, 0xFF), range(0x30, 0xFF)))
    yield from (bytes([0x8F, *pair]) for pair in itertools.product(range(0xA1, 0xFF), repeat=2))
    yield from (chr(point).encode("gb18030") for point in (0x1E3F, 0x20AC, 0xE7C7, 0x1F600, 0x10FFFF))
    encodings = itertools.product("é中😀", ("utf-8", "utf-16-be", "utf-16-le", "utf-32-be"))
    yield from (character.encode(codec) for character, codec in encodings)


def _server_texts(mysql: MySqlServer) -> dict[str, dict[bytes, str]]:
    """By character set, the text of each sequence that is one there."""
    sequences = sorted(set(_sequences()))
    server, texts = Server(mysql), dict[str, dict[bytes, str]]()
    server.begin()
    server.run("CREATE TABLE t (b VARBINARY(16) PRIMARY KEY)")
    server.cursor.executemany("INSERT INTO t VALUES (%s)", [(b,) for b in sequences])
    for (name,) in server.run("SELECT character_set_name FROM information_schema.character_sets"):
        as_text = f"CONVERT(b USING {name})"
        # What is not well-formed is cut by MySQL; what has no Unicode becomes a question mark.
        is_one = f"HEX({as_text}) = HEX(b) AND CHAR_LENGTH({as_text}) = 1"
        shown = server.run(f"SELECT b, HEX(CONVERT({as_text} USING utf8mb4)) FROM t WHERE {is_one}")
        read = {bytes(b): bytes.fromhex(found).decode() for b, found in shown}
        texts[name] = {b: found for b, found in read.items() if "\ufffd" not in found and (found != "?" or b == b"?")}
    return texts


@pytest.mark.in_turn
def test_each_character_of_each_set_is_mysqls(mysql: MySqlServer) -> None:
    unread, server_texts = Counter[str](), _server_texts(mysql)
    for name, texts in server_texts.items():
        for b, expected in texts.items():
            try:
                assert text(b, name) == expected or name == "binary", (name, b)
            except CharsetError:
                unread[name] += 1
    assert {name: count for name, count in unread.items() if name not in _WITHOUT_CODEC} == _NO_CHARACTERS
    assert len(server_texts) == 41
    for name in server_texts:
        if name in _WITHOUT_CODEC:
            with pytest.raises(CharsetError, match=f"{name} is MySQL's"):
                text(b"a", name)
        else:
            assert text(b"", name) == ""
    counts = {name: len(texts) for name, texts in server_texts.items()}
    assert counts["latin1"] == 256, "something is compared"
    assert counts["gbk"] > 20_000 and counts["gb18030"] > 20_000 and counts["big5"] > 13_000 and counts["ujis"] > 12_000
