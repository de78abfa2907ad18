"""A server and the product side by side: what the server takes goes to both; then they have the same tables. And random
DDL, mostly what a server accepts: statements for the server's tables as they are, by `random_ddl.txt`."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql

from cdc_lakehouse.changelog.mysql_types import type_change
from cdc_lakehouse.changelog.schema import TableVersion
from tests.changelog.statements import NEXT_NUMBER, ProductTables, ShownTable, differences
from tests.kit import golden
from tests.servers.mysql import MySqlServer

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


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`" if not name.isalnum() or not name.isascii() else name


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
        return quoted(name)

    def new_table(self) -> str:
        return quoted(self._one_of([name for name in TABLES if name not in self._tables], TABLES))

    def swap(self) -> str:
        one, other = self.random.choices(sorted(self._tables), k=2)
        return ", ".join(f"{quoted(a)} TO {quoted(b)}" for a, b in ((one, "swap"), (other, one), ("swap", other)))

    def column(self) -> str:
        name = self._one_of([column["name"] for column in self._of.columns], NAMES)
        return quoted(self.random.choice((name, name.upper(), name.lower())) if self._chance(0.2) else name)

    def new_column(self) -> str:
        known = {column["name"].lower() for column in self._of.columns}
        return quoted(self._one_of([name for name in NAMES if name.lower() not in known], NAMES))

    def same_column(self) -> str:
        return " ".join([self.column()] * 2)

    def swap_columns(self) -> str:
        one, other = self.column(), self.column()
        return f"RENAME COLUMN {one} TO {other}, RENAME COLUMN {other} TO {one}"

    def small_column(self) -> str:
        """One that can have a default."""
        usable = [column for column in self._of.columns if self._slip() or not is_large(column)]
        self._kind = (chosen := self.random.choice(usable))["data_type"] if usable else ""
        return quoted(chosen["name"]) if usable else "a"

    def number_column(self) -> str:
        usable = [column["name"] for column in self._of.columns if column["data_type"] not in NO_NUMBERS]
        return quoted(self.random.choice(usable or ["a"]))

    # --- Columns ---

    def elements(self) -> str:
        self._new = self.random.sample(NAMES, self.random.randint(1, 5))
        self._new += [self._new[0].upper()] * self._slip()
        return ", ".join(f"{quoted(name)} {self._make('plain_definition')}" for name in self._new) + self._make(
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
        return f"{quoted(column['name'])}({self.random.randint(1, 6)})" if part else quoted(column["name"])

    def new_key_columns(self) -> str:
        return ", ".join(map(quoted, self.random.sample(self._new, min(len(self._new), self.random.choice((1, 1, 2))))))

    def key_name(self) -> str:
        return "`" + self._one_of([*self._of.keys], RULES["key_word"][0]).replace("`", "``") + "`"

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
    WHERE table_schema = %s AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position
"""
_KEYS = """
    SELECT table_name, index_name, column_name FROM information_schema.statistics
    WHERE table_schema = %s ORDER BY table_name, index_name, seq_in_index
"""


def tables_of(cursor: Any, database: str) -> dict[str, ServerTable]:
    tables: dict[str, ServerTable] = {}
    cursor.execute(_COLUMNS, (database,))
    for table, name, kind, nullable, default, data_type, extra in cursor.fetchall():
        columns = tables.setdefault(table, ServerTable()).columns
        columns.append({
            "name": name, "type": kind, "nullable": bool(nullable), "default": default, "data_type": data_type,
            "extra": extra,
        })  # fmt: skip
    cursor.execute(_KEYS, (database,))
    for table, key, column in cursor.fetchall():
        if table in tables:
            tables[table].keys.setdefault(key, []).append(column or "")
    return tables


def shown(table: ServerTable) -> ShownTable:
    columns = [
        [
            column["name"], column["type"], column["nullable"],
            NEXT_NUMBER if "auto_increment" in column["extra"] else column["default"],
        ]
        for column in table.columns
    ]  # fmt: skip
    return {"columns": columns, "primary": table.keys.get("PRIMARY", [])}


@dataclass
class Oracle:
    """Two databases of one name, one on the server, one in the product."""

    server: MySqlServer
    database: str = "d"
    has_rows: bool = False
    folding: bool = False
    """Whether the server compares names of tables without case."""
    log: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._cursor = self.server.connect().cursor()
        self.begin()

    def begin(self) -> None:
        """An empty database, in use."""
        self._here, self.log = ProductTables(self.database), []
        for statement in (
            f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}", f"USE {self.database}"
        ):  # fmt: skip
            self._cursor.execute(statement)
        self.current = tables_of(self._cursor, self.database)

    def run(self, statement: str) -> bool:
        """Whether the server took the statement; fails where the product makes other tables of it, or holds one."""
        before = {table.incarnation: (table, self._values(table)) for table in self._here.tables}
        try:
            self._cursor.execute(statement)
        except pymysql.MySQLError:
            return False
        self.log.append(statement)
        effects = self._here.run(statement)
        self.current = tables_of(self._cursor, self.database)
        tables = [(self._on_server_as(table), table) for table in self._here.tables]
        wrong = [*differences({name: shown(table) for name, table in self.current.items()}, tables)]
        assert not wrong, f"server, here: {wrong}\n{self.story()}"
        for name, table in tables:
            if table.incarnation not in before or "empty" in effects.get(table.incarnation, ()):
                self._fill(table)
            elif "hold" not in effects.get(table.incarnation, ()):
                changed = _changed(*before[table.incarnation], table, self._values(table))
                assert not changed, f"{name}: the server changed {changed}, and the table is not held\n{self.story()}"
        return True

    def _on_server_as(self, table: TableVersion) -> str:
        return table.name.table.lower() if self.folding else table.name.table

    def _values(self, table: TableVersion) -> dict[int, list[Any]]:
        """The values of each column that rows have, by its id, in the same order of rows for all columns."""
        if not self.has_rows:
            return {}
        self._cursor.execute(
            f"SELECT {', '.join(quoted(each.name) for each in table.columns)} FROM {quoted(table.name.table)}"
        )
        # Labels in the character set binary are bytes to the client.
        values = [[v.decode("latin1") if isinstance(v, bytes) else v for v in row] for row in self._cursor.fetchall()]
        rows = sorted(values, key=repr)
        return {each.id: [row[n] for row in rows] for n, each in enumerate(table.columns) if each.carried}

    def _fill(self, table: TableVersion) -> None:
        """Insert rows with other values in each column, as far as the server takes them."""
        own = self.current[self._on_server_as(table)].columns
        names = [quoted(column["name"]) for column in own if "GENERATED" not in column["extra"]]
        for number in range(1, 4) if self.has_rows and names else ():
            insert = f"INSERT IGNORE INTO {quoted(table.name.table)} ({', '.join(names)}) VALUES "
            with contextlib.suppress(pymysql.MySQLError):
                self._cursor.execute(f"{insert}({', '.join([str(number)] * len(names))})")

    def story(self) -> str:
        return ";\n".join(self.log)


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
