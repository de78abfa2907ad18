"""What tests of the change log share: changes as a source tells them, in short; what statements declare; and tables as
a server has them, beside those that the product makes of the same statements.

>>> change(7, "db.t", 3, "CREATE TABLE `db`.`t` …", "id:bigint:pk v:int name:varchar:!null:#12")

`cases/ddl/*.txt` have statements and what they say, one a line: `statement => clause; clause …`; types.txt has
`declaration => type`, errors.txt `statement => offset reason`. `show` prints a clause as its class with the fields that
have no default, then by name those that differ from theirs; names of tables and types as SQL has them.
"""

import dataclasses
import inspect
import random
import re
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, TypedDict

import msgspec

from cdc_lakehouse.changelog.ddl.clauses import AddColumn, ColumnDefinition, PartitionBy, Partitioning, TableRef
from cdc_lakehouse.changelog.ddl.statements import parse, parse_type
from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.mysql_types import BLOBS, INTEGERS, ColumnType, type_text
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableVersion
from cdc_lakehouse.changelog.versions import LiveTables, versions_of

SEEN, CREATE, DROP, DROP_DATABASE, ADD, DROP_COLUMN, TRUNCATE, MODIFY, RENAME = 0, 3, 4, 2, 5, 6, 11, 12, 14

_WORDS = re.compile(
    r"""(?P<kept>[a-z]?'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|/\*.{0,2}(?:\[[^\]]*\]|\d+)?|--[^\n]*|\b\d\w*)"""
    r"|(?P<word>`(?:[^`]|``)+`|\w+)",
    re.IGNORECASE | re.DOTALL,
)


def in_odd_case(text: str, seed: int | str = 0, keep: Container[str] = ()) -> str:
    """A statement with the names that have a small letter typed in another letter case, drawn from the seed; not those
    to `keep`: the new ones, which become what is typed."""
    drawn = random.Random(zlib.crc32(f"{seed} {text}".encode()))

    def typed(found: re.Match[str]) -> str:
        word = found["word"]
        if word is None or not word.isascii() or word.strip("`").replace("``", "`") in keep or word == word.upper():
            return found[0]
        return drawn.choice((word, word.upper(), word.lower(), word.swapcase(), word.title()))

    return _WORDS.sub(typed, text)


def columns(spec: str) -> tuple[SourceColumn, ...]:
    return tuple(_column(*words.split(":")) for words in spec.split())


def _column(name: str, kind: str = "int", *flags: str) -> SourceColumn:
    numbers = [int(flag[1:]) for flag in flags if flag.startswith("#")]
    return SourceColumn(
        name=name,
        type=parse_type(kind) if "(" in kind else ColumnType.of(kind.replace("_", " ")),
        nullable=not {"pk", "!null"} & set(flags),
        primary_key="pk" in flags,
        source_id=numbers[0] if numbers else None,
    )


def change(ts: int, name: str, action: int, query: str = "", spec: str = "") -> SchemaChange:
    """`name` is `database.table`, or a database alone. The statement has names in any letter case, as a user types
    them; columns and the table have their own."""
    database, _, table = name.partition(".")
    kind = "columns" if action == SEEN else "statement"
    query = query if action == CREATE else in_odd_case(query)
    return SchemaChange(ts, database, table, action, query, columns(spec), f"{name}@{ts}", kind=kind)


def history(*changes: SchemaChange) -> History:
    made = History()
    made.apply(changes)
    return made


def declared(text: str, *, backslash_escapes: bool = True) -> ColumnDefinition:
    """The column of `ADD COLUMN c …`."""
    (clause,) = parse(f"ALTER TABLE t ADD COLUMN c {text}", backslash_escapes=backslash_escapes)
    assert isinstance(clause, AddColumn)
    return clause.column


def partitioned_by(clause: str) -> Partitioning:
    """The partitioning of a table of `a` and `b`."""
    (partitioned,) = parse(f"ALTER TABLE t PARTITION BY {clause}")
    assert isinstance(partitioned, PartitionBy) and partitioned.partitioning is not None
    return partitioned.partitioning


def files_of(told: Sequence[TableVersion]) -> Iterator[SchemaChange]:
    """What a sink writes of the same statements: a file for each table, under the name that it has then, or one of the
    database. The other table of an EXCHANGE has one without a statement."""
    of_database: set[int] = set()
    for version in {(each.commit_ts, each.incarnation, each.name): each for each in told}.values():
        if version.commit_ts in of_database:
            continue
        database, table, shown = version.name.database, version.name.table, version.source_columns
        if not version.incarnation:
            table = "" if version.kind.endswith("_database") else "t"
        file = SchemaChange(version.commit_ts, database, table, None, version.query, shown, "f", backslash_escapes=True)
        is_other = version.swap is not None and version.swap.plain == version.incarnation
        yield replace(file, query="", kind="columns") if is_other else file
        if version.kind in ("drop_database", "recover_database"):
            of_database.add(version.commit_ts)


def in_any_case(versions: Sequence[TableVersion], *ts: int) -> str:
    """The verdicts of statements, alike for names in any letter case: a MODIFY or CHANGE names its column anew, as it
    is typed, which evolves the table."""
    return repr([verdicts(versions, each) for each in ts]).lower().replace("'evolve'", "'none'")


def verdicts(versions: Sequence[TableVersion], ts: int) -> dict[str, tuple[object, ...]]:
    """What the statement of a commit-ts makes of each table. Not `charset`: with it the types of columns are found that
    a later statement defines, and schema files show them."""
    return {
        version.incarnation: (
            version.effect, version.hold is not None, [
                (each.name, type_text(each.type, widths=True), each.nullable, each.id in version.key, each.initial)
                for each in version.columns
            ],
            version.incarnation and version.name, version.previous_name, version.key,
            version.primary_key, version.unique_keys, version.partitioning, version.emptied, version.swap,
            version.restored,
        )
        for version in versions
        if version.commit_ts == ts
    }  # fmt: skip


def cases(name: str) -> Iterator[tuple[str, str]]:
    """Each statement of a file, and what stands after its arrow."""
    for line in (Path(__file__).parent / f"cases/ddl/{name}.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            statement, arrow, expected = line.partition(" =>")
            assert arrow, line
            yield statement, expected.strip()


def show(value: Any) -> str:
    match value:
        case TableRef(None, name):
            return _quoted(name)
        case TableRef(database, name):
            return f"{_quoted(database)}.{_quoted(name)}"
        case ColumnType(name):
            fields = _different(value, set())
            return f"{name}({', '.join(fields)})" if fields else name
        case tuple():
            return f"[{', '.join(show(item) for item in value)}]"
        case _ if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
            needed = [each.name for each in _parameters(value) if each.default is each.empty]
            fields = [show(getattr(value, name)) for name in needed] + _different(value, set(needed))
            return f"{type(value).__name__}({', '.join(fields)})"
        case _:
            return repr(value)


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"


def _parameters(value: Any) -> Iterable[inspect.Parameter]:
    return inspect.signature(type(value)).parameters.values()


def _different(value: Any, shown: set[str]) -> list[str]:
    """`name=value` of the fields that differ from their defaults."""
    others = [each for each in _parameters(value) if each.name not in shown and each.default is not each.empty]
    found = [(each.name, getattr(value, each.name)) for each in others if getattr(value, each.name) != each.default]
    return [f"{name}={show(content)}" for name, content in found]


_HOLDS = (
    (re.compile(r"numbers its rows in column"), re.compile(r"AUTO_INCREMENT|SERIAL", re.IGNORECASE)),
    (re.compile(r"computes column"), re.compile(r"STORED|MODIFY|CHANGE|CONVERT", re.IGNORECASE)),
    (re.compile(r"have the default .* in column"), re.compile(r"(CURRENT_TIMESTAMP|NOW)\b", re.IGNORECASE)),
)
"""Reasons of holds, and what the statement has that makes each of them true."""


NEXT_NUMBER: Final = "AUTO_INCREMENT"


class ShownTable(TypedDict):
    """`columns`: name, type, whether it can be NULL, and default, as information_schema has them; `NEXT_NUMBER` is that
    of an AUTO_INCREMENT column."""

    columns: list[list[Any]]
    primary: list[str]


class ProductTables:
    """What the product makes of a log of statements, from an empty database on."""

    def __init__(self, database: str) -> None:
        self.database, self._live, self._count = database, LiveTables(), 0

    @property
    def tables(self) -> list[TableVersion]:
        return self._live.in_database(self.database)

    def run(self, statement: str) -> dict[str, set[str]]:
        """The effects on each table, by incarnation."""
        self._count += 1
        change = SchemaChange(
            self._count, self.database, "", None, statement, (), "", backslash_escapes=True, kind="text"
        )
        effects: dict[str, set[str]] = {}
        for version in versions_of(change, self._live):
            self._live.record(version)
            effects.setdefault(version.incarnation, set()).add(version.effect)
            odd = [sign for sign in ("which is not known", "appears", "are gone") if sign in (version.note or "")]
            # Not where the server does to rows what neither the log nor the statement says.
            by_rule = (cause.search(statement) for said, cause in _HOLDS if said.search(version.hold or ""))
            held = version.hold is not None and not any(by_rule)
            assert not held and not odd, f"{statement}: {version.hold or version.note}"
        return effects


def differences(server: Mapping[str, ShownTable], here: Sequence[tuple[str, TableVersion]]) -> Iterator[Any]:
    """The tables `here` have the names that they have on the server."""
    names = sorted(name for name, _ in here)
    if names != sorted(server):
        yield sorted(server), names
        return
    for name, table in here:
        own = server[name]
        shown = [[c.name, type_text(c.type, widths=True), c.nullable] for c in table.columns]
        if [column[:3] for column in own["columns"]] != shown:
            yield name, own["columns"], shown
            continue
        for (column, *_, default), found in zip(own["columns"], table.columns, strict=True):
            if default != NEXT_NUMBER and not is_same_default(default, found.default, found.type):
                yield name, column, default, found.default
        primary = {column.name for column in table.columns if column.id in table.primary_key}
        if primary != set(own["primary"]):
            yield name, own["primary"], primary


def is_same_default(server: str | None, here: str | None, kind: ColumnType) -> bool:
    """Whether rows would hold the same value by it."""
    if server is None or here is None or server == here:
        return server == here
    if kind.name in BLOBS:
        # The server prints the bytes up to the first that is zero.
        content = bytes.fromhex(here[2:]) if here.startswith("0x") else here.encode()
        return server.removeprefix("0x").lower() == content.partition(b"\0")[0].hex()
    if kind.name in INTEGERS | {"decimal", "float", "double", "year"}:
        try:
            one, other = Decimal(server), Decimal(here)
        except InvalidOperation:
            return False
        # The server prints six digits of a FLOAT.
        return abs(one - other) <= abs(one) * Decimal("1e-5") if kind.name == "float" else float(one) == float(other)
    if kind.name in ("enum", "set") and server.startswith("0x"):
        return bytes.fromhex(server[2:]).decode() == here
    return False
