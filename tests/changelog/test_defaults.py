"""What rows that are older than a column hold in it (MySQL manual, "Data Type Default Values", "ALTER TABLE").

`cases/defaults/*.txt`: a case is a column's declaration and, behind `|`, the text of its default in a schema file. The
results are the value in the column's older rows, or why there is none: with the statement, without it, and by the
statement alone, as topics and Canal servers have it; one line where they are the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.changelog.defaults import UTC, default_text, initial_default, of_schema_file
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn
from tests.changelog.server_tables import is_same_default
from tests.changelog.statements import declared
from tests.kit import golden, truth
from tests.kit.case_files import Case, bytes_of, read_cases, text_of

CASES = read_cases(*sorted(Path(__file__).parent.glob("cases/defaults/*.txt")))


def results_of(case: Case) -> Iterator[str]:
    (line,) = case.own
    text, given, source = line.partition(" |")
    definition, alone = (declared(text, backslash_escapes=escapes) for escapes in (False, True))
    nullable = definition.nullable is not False
    default = bytes_of(source[1:]).decode() if given else None
    column = of_schema_file(SourceColumn("c", definition.type, nullable=nullable, default=default))
    printed = SourceColumn("c", alone.type, nullable=nullable, default=default_text(alone.default, alone.type))
    found: dict[str, str] = {}
    for name, (initial, reason) in (
        ("with the statement: ", initial_default(column, definition)),
        ("without it: ", initial_default(column, None)),
        ("by the statement: ", initial_default(printed, alone)),
    ):
        found[name] = text_of(f"{initial.text!r}{'' if reason is None else f', {reason}'}")
    yield from [found.popitem()[1]] if len(set(found.values())) == 1 else map("".join, found.items())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_older_rows_hold_default(case: Case, update: bool) -> None:
    case.compare(list(results_of(case)), update=update)


def _as_tidb(printed: str | None, kind: str) -> str | None:
    """A default of information_schema as TiDB has it in schema files: bytes, those of a BIT too. It loses what is not
    UTF-8 of a VARBINARY; of a BIT it is Go's JSON that does."""
    if printed is not None and kind.startswith("bit"):
        number = int(printed[2:-1], 2)
        return (number.to_bytes(number.bit_length() // 8 + 1).lstrip(b"\0") or b"\0").decode(errors="replace")
    is_bytes = printed is not None and "b" in kind and printed.startswith("0x")
    return bytes.fromhex(printed[2:]).decode(errors="replace") if is_bytes and "bin" in kind else printed


def _meaning(text: str | None, kind: str) -> Any:
    return text if golden.is_zero_date(text, kind) else golden.value(text, kind)


def test_older_rows_hold_what_mysql_answered() -> None:
    """By the statement alone, and with a schema file; and the default is printed as the server does."""
    wrong = list[Any]()
    for question in golden.read("defaults"):
        kind = question["column"].lower()
        for literal, answer in question["defaults"].items():
            if answer is None:
                continue
            printed, held = answer
            definition = declared(question["column"] + f" DEFAULT {literal}" * bool(literal))
            column = SourceColumn("c", definition.type, nullable=definition.nullable is not False)
            text = default_text(definition.default, definition.type)
            if not is_same_default(printed, text, definition.type):
                wrong.append((kind, literal, "printed", printed, text))
            for default in (text, text if kind.startswith("float") else _as_tidb(printed, kind)):
                source = replace(column, default=default)
                initial, reason = initial_default(source if default == text else of_schema_file(source), definition)
                here = (initial.text or "").removesuffix(UTC) if initial.text is not None else None
                if here is not None and truth.iceberg_type(kind) == "binary":
                    here = f"0x{here.encode('latin-1').hex()}"
                if reason is None if printed and held is None else _meaning(here, kind) != _meaning(held, kind):
                    wrong.append((kind, literal, "held", held, initial.text, reason))
    assert not wrong


def test_labels_that_nobody_says_give_no_default() -> None:
    initial, warning = initial_default(SourceColumn("c", ColumnType("enum"), nullable=False), None)
    assert (initial.text, warning) == (None, None)
