"""Random DDL, mostly what a server accepts: statements for the server's tables as they are, by `random_ddl.txt`."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit import golden

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


def _rules() -> Iterator[tuple[str, tuple[list[str], list[float]]]]:
    """By the name of each rule its alternatives and their weights."""
    blocks = Path(__file__).with_name("random_ddl.txt").read_text(encoding="utf-8").split("\n\n")
    for block in blocks:
        first, *rest = [line for line in block.splitlines() if not line.startswith("#")] or [""]
        if " = " in first:
            for name, _, words in (line.partition(" = ") for line in (first, *rest)):
                found = [word.strip() for word in words.split("|")]
                yield name, (found, [1.0] * len(found))
        elif first:
            pairs = [line.partition(" ") for line in rest]
            yield first, ([text for _, _, text in pairs], [float(weight) for weight, _, _ in pairs])


RULES = dict(_rules())


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
        return self._fill(self.random.choices(*RULES[rule])[0])

    def _fill(self, text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: self._word(match[1]), text)

    def _word(self, name: str) -> str:
        return self._make(name) if name in RULES else getattr(self, name)()

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _slip(self) -> bool:
        return self._chance(self.slips)

    # --- Names ---

    def table(self) -> str:
        name = self.random.choice([*TABLES] if self._slip() else sorted(self._tables))
        self._of = self._tables.get(name, ServerTable())
        return quoted(name)

    def new_table(self) -> str:
        free = [name for name in TABLES if name not in self._tables]
        return quoted(self.random.choice([*TABLES] if self._slip() or not free else free))

    def swap(self) -> str:
        one, other = self.random.choices(sorted(self._tables), k=2)
        return ", ".join(f"{quoted(a)} TO {quoted(b)}" for a, b in ((one, "swap"), (other, one), ("swap", other)))

    def column(self) -> str:
        known = [column["name"] for column in self._of.columns]
        name = self.random.choice([*NAMES] if self._slip() or not known else known)
        return quoted(self.random.choice((name, name.upper(), name.lower())) if self._chance(0.2) else name)

    def new_column(self) -> str:
        known = {column["name"].lower() for column in self._of.columns}
        free = [name for name in NAMES if name.lower() not in known]
        return quoted(self.random.choice([*NAMES] if self._slip() or not free else free))

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
            "date": "20200102",
            "year": "1999",
            "datetime": "'2020-01-02'",
            "timestamp": "'2021-3-4'",
            "time": "'1:2'",
        }
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
        names = [*self._of.keys]
        name = self.random.choice(RULES["key_word"][0] if self._slip() or not names else names)
        return "`" + name.replace("`", "``") + "`"

    def key_of_table(self) -> str:
        table = self.table()
        return f"{self.key_name()} ON {table}"

    # --- Clauses ---

    def clauses(self) -> str:
        found = [self._make("clause") for _ in range(self.random.choice((1, 1, 1, 2, 2, 3, 4)))]
        if self._chance(0.04):
            found.insert(self.random.randint(0, len(found)), f"RENAME TO {self.new_table()}")
        return ", ".join(found)
