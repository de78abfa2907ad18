"""The table of the design (types of the current-state tables), and the names that types go by."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.mysql_types import ColumnType, iceberg_type, type_text
from tests.changelog.statements import declared
from tests.kit import data_sets as packed
from tests.kit import truth

# --- Iceberg's type ---

# Iceberg's type, and the declarations that have it; `;` stands for the comma within one.
DESIGN = {
    "int": "TINYINT, SMALLINT, MEDIUMINT, INT, INTEGER, YEAR, BOOL, TINYINT(1), TINYINT UNSIGNED, SMALLINT UNSIGNED,"
    " MEDIUMINT UNSIGNED, INT(11), YEAR(4), INT SIGNED",
    "long": "INT UNSIGNED, INT ZEROFILL, BIGINT, BIGINT(20), BIT, BIT(1), BIT(63)",
    "decimal(20,0)": "BIGINT UNSIGNED, BIGINT ZEROFILL, BIT(64), SERIAL",
    "float": "FLOAT, FLOAT UNSIGNED, FLOAT4",
    "double": "DOUBLE, DOUBLE PRECISION, DOUBLE UNSIGNED, REAL, FLOAT8",
    "decimal(10,0)": "DECIMAL, NUMERIC, DEC, FIXED, DECIMAL(10), DECIMAL UNSIGNED",
    "decimal(38,0)": "DECIMAL(38)",
    "decimal(12,2)": "DECIMAL(12;2)",
    "decimal(38,30)": "DECIMAL(38;30)",
    "date": "DATE",
    "timestamp": "DATETIME, DATETIME(6)",
    "timestamptz": "TIMESTAMP, TIMESTAMP(3)",
    "string": "TIME, TIME(6), CHAR, CHAR(3), VARCHAR(9), TINYTEXT, TEXT, MEDIUMTEXT, LONGTEXT, NCHAR(2), LONG, JSON,"
    " GEOMETRY, POINT, LINESTRING, POLYGON, MULTIPOINT, MULTILINESTRING, MULTIPOLYGON, GEOMETRYCOLLECTION, ENUM('a'),"
    " SET('a'), DECIMAL(39), DECIMAL(65), DECIMAL(39;1)",
    "binary": "BINARY, BINARY(16), VARBINARY(9), TINYBLOB, BLOB, MEDIUMBLOB, LONGBLOB, CHAR BYTE, LONG VARBINARY",
    "list<float>": "VECTOR, VECTOR(3)",
}


@pytest.mark.parametrize("iceberg", DESIGN)
def test_types_of_the_design(iceberg: str) -> None:
    found = {mysql: iceberg_type(declared(mysql.replace(";", ",")).type) for mysql in DESIGN[iceberg].split(", ")}
    assert found == dict.fromkeys(found, iceberg)


def test_a_type_of_a_newer_server_is_text() -> None:
    assert iceberg_type(ColumnType.of("HYPERCUBE")) == "string"


# --- Names ---


@pytest.mark.parametrize(
    ("words", "name", "unsigned"),
    [
        ("int unsigned", "int", True),
        ("unsigned int", "int", True),
        ("bigint unsigned zerofill", "bigint", True),
        ("decimal zerofill", "decimal", True),
        ("bit unsigned", "bit", False),
        ("year unsigned", "year", False),
        ("double precision unsigned", "double", True),
        ("character varying", "varchar", False),
        ("int signed", "int", False),
    ],
)
def test_words_of_a_type(words: str, name: str, unsigned: bool) -> None:
    for written in (words.lower(), words.upper(), words.title()):
        found = ColumnType.of(written)
        assert (found.name, found.unsigned) == (name, unsigned)


def test_a_boolean_is_a_number_of_one_digit() -> None:
    assert ColumnType.of("bool") == ColumnType.of("BOOLEAN") == ColumnType("tinyint", length=1)


# --- Text ---

LABELS = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8).map(str.rstrip), min_size=1)
TYPES = st.one_of(
    st.sampled_from(["tinyint(1)", "smallint", "year", "float", "double unsigned", "date", "json", "longblob", "text"]),
    st.integers(1, 64).map("bit({})".format),
    st.integers(1, 6).flatmap(lambda f: st.sampled_from([f"datetime({f})", f"timestamp({f})", f"time({f})"])),
    st.integers(1, 65).flatmap(lambda p: st.integers(0, min(p, 30)).map(lambda s: f"decimal({p},{s})")),
    st.integers(1, 255).flatmap(lambda n: st.sampled_from([f"char({n})", f"varbinary({n})", f"vector({n})"])),
    st.sampled_from(["int unsigned", "bigint unsigned zerofill", "decimal(5,2) unsigned zerofill"]),
)


@settings(deadline=None)
@given(TYPES)
def test_the_text_of_a_type_says_the_type(text: str) -> None:
    assert type_text(declared(text).type) == text


@settings(deadline=None)
@given(st.sampled_from(["enum", "set"]), LABELS)
def test_labels_go_through_the_text(name: str, labels: list[str]) -> None:
    kind = ColumnType(name, elements=tuple(labels))
    assert declared(type_text(kind)).type == kind


# A schema file does not say the width of a number, ZEROFILL or the dimensions of a vector; the server that made the
# data sets leaves backslashes in labels as they are.
UNSAID = re.compile(r"(?<=int)\(\d+\)(?= unsigned zerofill)| zerofill|(?<=float)\(\d+,\d+\)|(?<=vector)\(\d+\)|\\+")


@pytest.mark.parametrize("name", packed.names("canal-json"))
def test_types_of_schema_files_are_those_of_the_server(data_sets: Path, name: str) -> None:
    """`expected.json` has the server's information_schema; a column keeps its name in one version of a table."""
    dataset = data_sets / "canal-json" / name
    last = truth.Truth(dataset).stages[-1]
    compared = 0
    for table in last["tables"]:
        directory = dataset / "tree" / table["schema"] / table["table"] / "meta"
        files = sorted(directory.glob("schema_*.json"), key=lambda path: int(path.name.split("_")[1]))
        for column in json.loads(files[-1].read_bytes())["TableColumns"] if files else ():
            types = {each["name"]: each["type"] for each in table["columns"]}
            if column["ColumnName"] not in types:
                continue
            length, scale = (int(v) if (v := column.get(k)) else None for k in ("ColumnPrecision", "ColumnScale"))
            elements = tuple(column.get("ColumnElems", ()))
            found = ColumnType.of(column["ColumnType"], length=length, scale=scale, elements=elements)
            server = types[column["ColumnName"]]
            if elements or found.name not in ("enum", "set"):
                assert UNSAID.sub("", type_text(found)) == UNSAID.sub("", server)
            assert iceberg_type(found) == truth.iceberg_type(server).replace(", ", ",")
            compared += 1
    assert compared or not last["tables"]
