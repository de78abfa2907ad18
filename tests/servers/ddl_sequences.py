"""Random DDL, mostly what a server accepts: statements that follow from the server's tables as they are."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.kit import golden

TABLES = ("t", "u", "v", "w x")
NAMES = ("a", "b", "c", "d", "E", "f g", "h`i", "ü")
KEYS = ("k", "K2", "a", "b_2")
# Not ucs2: MySQL 8.0.12 spoils the labels of an ENUM when it converts them to or from it.
CHARSETS = ("latin1", "utf8mb4", "utf8", "binary", "gbk")
_SHOWN = {each["declared"]: re.match(r"\w+", each["is"])[0] for each in golden.read("types")}
TIMES = tuple(each for each in _SHOWN if each.startswith(("DATE", "TIME")))
NUMBERS = tuple(kind for kind, shown in _SHOWN.items() if re.fullmatch(r"\w*int|decimal|float|double|bit|year", shown))
NO_NUMBERS = {
    shown for shown in _SHOWN.values() if re.fullmatch(r"json|geom\w*|point|linestring|polygon|multi\w+", shown)
}
OTHERS = tuple(kind for kind, shown in _SHOWN.items() if shown in NO_NUMBERS)
TEXTS = tuple(kind for kind in _SHOWN if kind not in (*TIMES, *NUMBERS, *OTHERS))
DEFAULTS = (
    "NULL", "0", "1", "-1", "7", "'7'", "1.7", "2.5", "'abc'", "''", "'a'", "'x,z'", "TRUE", "FALSE", "1e2", "0.1",
    "300", "0x41", "b'101'", "'2020-01-02'", "20200102", "'2020-01-02 03:04:05'", "'2020-01-02 3:4:5.6789'",
    "'10:11:12'", "'838:59:59'", "'1999'", "20", "CURRENT_TIMESTAMP", "NOW(3)", "CURRENT_TIMESTAMP(6)",
    "'it''s'", "'a\\nb'", "'ü'", "N'n'", "_utf8mb4'u'", "123456789.123", "1e30", "'B'", "' 7 '", "-0.5",
)  # fmt: skip


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`" if not name.isalnum() or not name.isascii() else name


Column = dict[str, Any]
"""`name`, `type`, `nullable`, `default`, `data_type`, `extra`, as information_schema.columns has them."""


@dataclass
class ServerTable:
    """A table on a server; `keys` are the columns of each key by its name, `unique` the names of unique ones over whole
    columns."""

    columns: list[Column] = field(default_factory=list[Column])
    keys: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])
    unique: set[str] = field(default_factory=set[str])

    def add_key(self, name: str, column: str | None, *, unique: bool, whole: bool) -> None:
        if unique and name not in self.keys:
            self.unique.add(name)
        if not whole or column is None:
            self.unique.discard(name)
        self.keys.setdefault(name, []).append(column or "")

    def named(self, name: str) -> Column | None:
        return next((column for column in self.columns if column["name"].lower() == name.lower()), None)


@dataclass
class ServerDatabase:
    name: str
    tables: dict[str, ServerTable]


def is_large(kind: str) -> bool:
    """Values that lie outside of the row: no default, and keys over beginnings only."""
    return kind.endswith(("text", "blob")) or kind in NO_NUMBERS


@dataclass
class Statements:
    """Makes statements for a database in a given state; `slips` is the share of names that are wrong, `generated` those
    of columns that are generated, or half of it AUTO_INCREMENT."""

    random: random.Random
    slips: float = 0.02
    generated: float = 0.06

    def next(self, database: ServerDatabase) -> str:
        if not database.tables or (len(database.tables) < 3 and self.random.random() < 0.25):
            return self.create(database)
        kinds: list[tuple[Callable[[ServerDatabase], str], float]] = [
            (self.alter, 16), (self.create, 2), (self.create_like, 0.7), (self.rename, 1), (self.drop, 0.7),
            (self.index, 1.5), (self.truncate, 0.3), (self.create_as, 0.4),
        ]  # fmt: skip
        made = self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        return made(database)

    # --- Small choices ---

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def slip(self) -> bool:
        return self.chance(self.slips)

    def table(self, database: ServerDatabase) -> str:
        return self.random.choice([*TABLES] if self.slip() else sorted(database.tables))

    def new_table(self, database: ServerDatabase) -> str:
        free = [name for name in TABLES if name not in database.tables]
        return self.random.choice([*TABLES] if self.slip() or not free else free)

    def column(self, table: ServerTable) -> str:
        name = self.random.choice([*NAMES] if self.slip() else [column["name"] for column in table.columns])
        return quoted(self.random.choice((name, name.upper(), name.lower())) if self.chance(0.2) else name)

    def new_column(self, table: ServerTable) -> str:
        free = [name for name in NAMES if table.named(name) is None]
        return quoted(self.random.choice([*NAMES] if self.slip() or not free else free))

    # --- Columns ---

    def type(self) -> str:
        return self.random.choice(self.random.choices((NUMBERS, TEXTS, TIMES, OTHERS), (5, 5, 3, 1))[0])

    def definition(self, table: ServerTable | None) -> str:
        if self.chance(0.02):
            return "SERIAL"
        kind = self.type()
        if table is not None and self.chance(self.generated):
            return self.generated_column(table)
        words = [kind]
        if self.chance(0.25):
            words.append(self.random.choice(("NOT NULL", "NOT NULL", "NULL")))
        if self.chance(0.35):
            words.append(f"DEFAULT {self.default_of(kind)}")
        if self.chance(0.05):
            words.append(self.random.choice(("UNIQUE", "UNIQUE KEY", "PRIMARY KEY", "KEY")))
        if self.chance(self.generated / 2):
            words += ["AUTO_INCREMENT", self.random.choice(("", "UNIQUE", "PRIMARY KEY"))]
        if kind.startswith(("DATETIME", "TIMESTAMP")) and self.chance(0.2):
            digits = kind.partition("(")[2].removesuffix(")") or "0"
            words.append(f"ON UPDATE CURRENT_TIMESTAMP({digits})")
        if self.chance(0.1):
            words.append("COMMENT 'c'")
        return " ".join(words)

    def default_of(self, kind: str) -> str:
        fitting: tuple[str, ...] = DEFAULTS
        # MySQL 8.0.12 makes the table although it refuses a time as the default of a DECIMAL.
        exact = kind.startswith(("DEC", "NUMERIC", "FIXED"))
        if exact or not self.chance(0.15):
            name = kind.partition("(")[0]
            if kind in NUMBERS:
                fitting = ("0", "1", "7", "'7'", "1.7", "2.5", "TRUE", "NULL", "0.1", "b'101'", "0x05", "1e1", "-1")
            elif kind in TIMES and name == "TIME":
                fitting = ("'10:11:12'", "'838:59:59'", "'-1:2:3.456'", "101112", "NULL")
            elif kind in TIMES:
                fitting = ("'2020-01-02'", "20200102", "'2020-01-02 3:4:5.6789'", "NULL")
                if name != "DATE":
                    digits = kind.partition("(")[2].removesuffix(")")
                    fitting = (*fitting, f"CURRENT_TIMESTAMP({digits})", f"NOW({digits})")
            elif kind in OTHERS:
                fitting = ("NULL",)
            elif name in ("ENUM", "SET"):
                fitting = ("'a'", "'B'", "'x,z'", "'z,X'", "''", "NULL", "'p'")
            else:
                fitting = ("'a'", "''", "NULL", "'ü'", "' a '", "7", "1.50", "0x41", "'abc'", "N'n'")
        return self.random.choice(fitting)

    def generated_column(self, table: ServerTable) -> str:
        usable = [column["name"] for column in table.columns if column["data_type"] not in NO_NUMBERS]
        source = quoted(self.random.choice(usable or ["a"]))
        expression = self.random.choice((f"{source} + 1", f"concat({source}, 'x')", f"({source} * 2)", "1", "nope + 1"))
        kind = self.random.choice(("INT", "VARCHAR(30)", "DOUBLE"))
        null = self.random.choice(("", "", "NOT NULL", "NULL", "UNIQUE"))
        return f"{kind} GENERATED ALWAYS AS ({expression}) {self.random.choice(('', 'VIRTUAL', 'STORED'))} {null}"

    def position(self, table: ServerTable) -> str:
        where = self.random.random()
        return " FIRST" if where < 0.1 else f" AFTER {self.column(table)}" if where < 0.3 else ""

    # --- Keys ---

    def key_part(self, column: Column) -> str:
        name = quoted(column["name"])
        if is_large(column["data_type"]) and not self.slip():
            return f"{name}({self.random.randint(1, 12)})"
        text = column["data_type"] in ("char", "varchar", "binary", "varbinary")
        return f"{name}({self.random.randint(1, 6)})" if text and self.chance(0.3) else name

    def key_parts(self, columns: list[Column]) -> str:
        usable = [column for column in columns if column["data_type"] not in NO_NUMBERS]
        chosen = self.random.sample(usable or columns, min(len(usable or columns), self.random.choice((1, 1, 1, 2, 3))))
        return ", ".join(self.key_part(column) for column in chosen)

    def key(self, columns: list[Column]) -> str:
        parts = self.key_parts(columns)
        kind = self.random.random()
        if kind < 0.25:
            return f"PRIMARY KEY ({parts})"
        name = quoted(self.random.choice(KEYS)) if self.chance(0.5) else ""
        if kind < 0.65:
            words = self.random.choice(("UNIQUE", "UNIQUE KEY", "UNIQUE INDEX"))
            return f"{words} {name} ({parts})"
        return f"{self.random.choice(('KEY', 'INDEX'))} {name} ({parts})"

    # --- Statements ---

    def create(self, database: ServerDatabase) -> str:
        names = self.random.sample(NAMES, self.random.randint(1, 5))
        if self.slip():
            names.append(names[0].upper())
        elements = [f"{quoted(name)} {self.definition(None)}" for name in names]
        if self.chance(0.4):
            parts = ", ".join(map(quoted, self.random.sample(names, self.random.choice((1, 1, min(2, len(names)))))))
            kind = self.random.choice(("PRIMARY KEY", "UNIQUE", "KEY", "UNIQUE KEY k", "INDEX a"))
            elements.append(f"{kind} ({parts})")
        options = self.random.choice(
            ("", "", "", "ENGINE=InnoDB", "CHARSET=latin1", "COLLATE utf8_bin", "CHARSET binary")
        )
        lenient = "IF NOT EXISTS " if self.chance(0.1) else ""
        return f"CREATE TABLE {lenient}{quoted(self.new_table(database))} ({', '.join(elements)}) {options}"

    def create_like(self, database: ServerDatabase) -> str:
        lenient = "IF NOT EXISTS " if self.chance(0.2) else ""
        return f"CREATE TABLE {lenient}{quoted(self.new_table(database))} LIKE {quoted(self.table(database))}"

    def create_as(self, database: ServerDatabase) -> str:
        names = self.random.sample(("a", "b", "c", "d"), self.random.randint(1, 3))
        columns = ", ".join(f"{name} {self.random.choice(('INT', 'BIGINT', 'VARCHAR(9)'))}" for name in names)
        chosen = self.random.sample(names, self.random.randint(1, len(names)))
        values = ", ".join(f"1 AS {name}" for name in chosen)
        return f"CREATE TABLE {quoted(self.new_table(database))} ({columns}) AS SELECT {values} FROM DUAL WHERE 1 = 0"

    def rename(self, database: ServerDatabase) -> str:
        old, new = self.table(database), self.new_table(database)
        names = sorted(database.tables)
        if self.chance(0.4) and len(names) > 1:
            one, other = self.random.sample(names, 2)
            pairs = ((one, "swap"), (other, one), ("swap", other))
            return "RENAME TABLE " + ", ".join(f"{quoted(a)} TO {quoted(b)}" for a, b in pairs)
        return f"RENAME TABLE {quoted(old)} TO {quoted(new)}"

    def drop(self, database: ServerDatabase) -> str:
        names = {self.table(database) for _ in range(self.random.choice((1, 1, 2)))}
        lenient = "IF EXISTS " if self.chance(0.3) else ""
        return f"DROP TABLE {lenient}{', '.join(map(quoted, sorted(names)))}"

    def truncate(self, database: ServerDatabase) -> str:
        return f"TRUNCATE {self.random.choice(('', 'TABLE '))}{quoted(self.table(database))}"

    def index(self, database: ServerDatabase) -> str:
        name = self.table(database)
        table = database.tables.get(name)
        if table is None:
            return f"CREATE INDEX k ON {quoted(name)} (a)"
        if table.keys and self.chance(0.4):
            return f"DROP INDEX {self.key_name(table)} ON {quoted(name)}"
        unique = self.random.choice(("", "UNIQUE "))
        return f"CREATE {unique}INDEX {self.random.choice(KEYS)} ON {quoted(name)} ({self.key_parts([*table.columns])})"

    def key_name(self, table: ServerTable) -> str:
        names = [*table.keys]
        return "`" + self.random.choice([*KEYS] if self.slip() or not names else names).replace("`", "``") + "`"

    def alter(self, database: ServerDatabase) -> str:
        name = self.table(database)
        table = database.tables.get(name)
        if table is None:
            return f"ALTER TABLE {quoted(name)} ADD z INT"
        count = self.random.choice((1, 1, 1, 2, 2, 3, 4))
        clauses = [self.clause(table) for _ in range(count)]
        if self.chance(0.04):
            clauses.insert(self.random.randint(0, count), f"RENAME TO {quoted(self.new_table(database))}")
        return f"ALTER TABLE {quoted(name)} {', '.join(clauses)}"

    def clause(self, table: ServerTable) -> str:
        kinds: list[tuple[Callable[[ServerTable], str], float]] = [
            (self.add, 6), (self.add_many, 0.7), (self.drop_column, 2.5), (self.modify, 4), (self.change, 3),
            (self.rename_column, 2), (self.set_default, 2), (self.drop_default, 0.8), (self.add_key, 2),
            (self.drop_key, 1.3), (self.rename_key, 0.4), (self.charset, 0.6), (self.option, 0.5),
        ]  # fmt: skip
        return self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0](table)

    def add(self, table: ServerTable) -> str:
        word = self.random.choice(("ADD", "ADD COLUMN"))
        return f"{word} {self.new_column(table)} {self.definition(table)}{self.position(table)}"

    def add_many(self, table: ServerTable) -> str:
        elements = [f"{self.new_column(table)} {self.definition(table)}" for _ in range(self.random.choice((1, 2)))]
        if self.chance(0.3):
            elements.append(self.key([*table.columns]))
        return f"ADD ({', '.join(elements)})"

    def drop_column(self, table: ServerTable) -> str:
        return f"DROP {self.random.choice(('', 'COLUMN '))}{self.column(table)}"

    def modify(self, table: ServerTable) -> str:
        return f"MODIFY {self.column(table)} {self.definition(table)}{self.position(table)}"

    def change(self, table: ServerTable) -> str:
        old = self.column(table)
        new = old if self.chance(0.4) else self.column(table) if self.chance(0.15) else self.new_column(table)
        return f"CHANGE COLUMN {old} {new} {self.definition(table)}{self.position(table)}"

    def rename_column(self, table: ServerTable) -> str:
        if self.chance(0.15) and len(table.columns) > 1:
            one, other = (quoted(column["name"]) for column in self.random.sample(table.columns, 2))
            return f"RENAME COLUMN {one} TO {other}, RENAME COLUMN {other} TO {one}"
        return f"RENAME COLUMN {self.column(table)} TO {self.new_column(table)}"

    def set_default(self, table: ServerTable) -> str:
        value = self.random.choice([each for each in DEFAULTS if not each.startswith(("CURRENT", "NOW"))])
        usable = [column for column in table.columns if self.slip() or not is_large(column["data_type"])]
        column = self.random.choice(usable) if usable else None
        if column is not None and (self.chance(0.7) or column["data_type"] == "decimal"):
            fitting = {
                "date": "20200102",
                "year": "1999",
                "datetime": "'2020-01-02'",
                "timestamp": "'2021-3-4'",
                "time": "'1:2'",
            }
            value = fitting.get(column["data_type"], self.random.choice(("1", "'1'", "NULL", "'a'", "0", "1.25")))
        name = self.column(table) if column is None else quoted(column["name"])
        return f"ALTER {self.random.choice(('', 'COLUMN '))}{name} SET DEFAULT {value}"

    def drop_default(self, table: ServerTable) -> str:
        usable = [
            quoted(column["name"]) for column in table.columns if self.slip() or not is_large(column["data_type"])
        ]
        return f"ALTER {self.random.choice(usable or ['a'])} DROP DEFAULT"

    def add_key(self, table: ServerTable) -> str:
        return f"ADD {self.key([*table.columns])}"

    def drop_key(self, table: ServerTable) -> str:
        if self.chance(0.4):
            return "DROP PRIMARY KEY"
        return f"DROP {self.random.choice(('KEY', 'INDEX'))} {self.key_name(table)}"

    def rename_key(self, table: ServerTable) -> str:
        word, new_name = self.random.choice(("KEY", "INDEX")), quoted(self.random.choice(KEYS))
        return f"RENAME {word} {self.key_name(table)} TO {new_name}"

    def charset(self, _: ServerTable) -> str:
        charset = self.random.choice(CHARSETS)
        return f"{self.random.choice(('CONVERT TO CHARACTER SET', 'DEFAULT CHARACTER SET', 'CHARSET ='))} {charset}"

    def option(self, _: ServerTable) -> str:
        return self.random.choice(("COMMENT 'x'", "ENGINE=InnoDB", "AUTO_INCREMENT = 5", "ROW_FORMAT=DYNAMIC", "FORCE"))
