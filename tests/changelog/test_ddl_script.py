from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.ddl_script import split


def texts(script: str) -> list[str]:
    return [statement.text for statement in split(script)]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", []),
        (" ;; \n; -- nothing\n/* ; */ # ;", []),
        ("USE a; USE b", ["USE a", "USE b"]),
        ("A 'x;''y' \"z;\" `w;``v`; B", ["A 'x;''y' \"z;\" `w;``v`", "B"]),
        (r"A 'x\';y'; B", [r"A 'x\';y'", "B"]),
        ("A -- b;\nC; D", ["A -- b;\nC", "D"]),
        ("A --b; C", ["A --b", "C"]),
        ("A # b;\n; /* c; */ D /* e; */;", ["A # b;", "D /* e; */"]),
        ("/*!40101 SET x = 1; */; /*T![ttl] y */ A;", ["/*!40101 SET x = 1; */", "/*T![ttl] y */ A"]),
        ("DELIMITER //\nA; B; // C //\ndelimiter ;\nD;E", ["A; B;", "C", "D", "E"]),
        ("DELIMITER $$\nA$B$$C;", ["A$B", "C;"]),
        ("A delimiter; B", ["A delimiter", "B"]),
        ("A 'open; B", ["A 'open; B"]),
        ("A /* open; B", ["A /* open; B"]),
        ("A / B - C; D", ["A / B - C", "D"]),
    ],
)
def test_statements_of_a_script(script: str, expected: list[str]) -> None:
    assert texts(script) == expected


def test_places() -> None:
    script = "-- first\nUSE a;\n\nCREATE\n TABLE t;  DROP TABLE t"
    assert [(each.line, each.column) for each in split(script)] == [(2, 1), (4, 1), (5, 12)]
    assert [each.place(2, 5) for each in split(script)] == [(3, 5), (5, 5), (6, 5)]
    assert [each.place(1, 5) for each in split(script)] == [(2, 5), (4, 5), (5, 16)]


@given(st.text(alphabet="a;'\"`\\-/*!#$ \nT", max_size=60))
def test_any_script_is_split_without_loss(script: str) -> None:
    lines = script.split("\n")
    for each in split(script):
        assert each.text.strip()
        assert "\n".join(lines[each.line - 1 :])[each.column - 1 :].startswith(each.text)


@pytest.mark.parametrize("piece", ["USE a;", "'a;", "/* ", "a -- b\n", ";", "`", "/", "-", "''"])
def test_long_scripts_take_no_longer_than_they_are_long(piece: str) -> None:
    assert len(texts(piece * 100_000)) <= 100_000
