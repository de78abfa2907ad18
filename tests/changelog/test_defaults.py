"""What rows that are older than a column hold in it (MySQL manual, "Data Type Default Values", "ALTER TABLE").

`cases/defaults/*.txt`: a case is a column's declaration and, behind `|`, the text of its default in a schema file. The
results are the value in the column's older rows, or why there is none: with the statement, without it, and by the
statement alone, as topics and Canal servers have it; one line where they are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lakehouse.changelog.defaults import default_text, initial_default, of_schema_file
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import SourceColumn
from tests.changelog.statements import declared
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


def test_labels_that_nobody_says_give_no_default() -> None:
    initial, warning = initial_default(SourceColumn("c", ColumnType("enum"), nullable=False), None)
    assert (initial.text, warning) == (None, None)
