"""Cuts for readers: every engine reads the same rows."""

import ast
import datetime
import re
import shlex
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import cdc_lakehouse
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.cli import main
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.changefeed import Changefeed
from tests.kit.lakes import TestLake
from tests.kit.log import Column, Ddl, Entry, RowChange, fold
from tests.kit.log import values as seen
from tests.lake import moment, utc
from tests.servers.tools import rows_in_duckdb

# In one worker, which makes the cuts once.
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("reading")]

DATABASE = "shop"


# --- Every engine ---


def at(day: int, hour: int) -> int:
    return tso(datetime.datetime(2026, 1, day, hour, tzinfo=datetime.UTC))


CREATED = (Column("id", "int"), Column("name", "varchar(20)"))
CUTS = {"A": at(1, 10), "B": at(1, 20), "C": at(2, 9), "D": at(3, 9)}
ENTRIES: list[Entry] = [
    *(Ddl(at(1, 8), name, "create", columns=CREATED, key=("id",)) for name in ("busy", "quiet")),
    *(RowChange(at(1, 9) + n, "busy", None, {"id": f"{n}", "name": f"n{n}"}) for n in range(1, 9)),
    RowChange(CUTS["A"], "quiet", None, {"id": "1", "name": "q"}),
    RowChange(at(1, 19), "busy", {"id": "1", "name": "n1"}, {"id": "1", "name": "new"}),
    RowChange(CUTS["B"], "busy", {"id": "2", "name": "n2"}, None),
    Ddl(at(2, 8), "busy", "add", column=Column("more", "varchar(20)", "none")),
    RowChange(CUTS["C"], "busy", None, {"id": "20", "name": "n20", "more": "m"}),
    RowChange(at(3, 8), "quiet", {"id": "1", "name": "q"}, {"id": "2", "name": "q"}),
    RowChange(CUTS["D"], "busy", {"id": "1", "name": "new", "more": "none"}, {"id": "1", "name": "x", "more": "m"}),
]


def make_cuts(lake: TestLake) -> TestLake:
    """Four cuts on three days."""
    feed = Changefeed(lake.sink)
    for entry in ENTRIES:
        feed.send(entry)
        if entry.commit_ts in CUTS.values():
            feed.checkpoint(entry.commit_ts)
            lake.go_through()
    return lake


@pytest.fixture(scope="module")
def cuts(lake_root: Any, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> TestLake:
    return make_cuts(TestLake(lake_root, tmp_path_factory.mktemp("cuts"), lambda: spark))


@pytest.fixture(scope="module", params=[2, 3])
def any_cuts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TestLake:
    """In each of Iceberg's format versions; those of 2 have position deletes, and rows older than a default."""
    if request.param == 3:
        return request.getfixturevalue("cuts")
    root, session = request.getfixturevalue("lake_root"), request.getfixturevalue("spark")
    lake = TestLake(root, tmp_path_factory.mktemp("cuts_2"), lambda: session, format_version=2)
    assert {table.format_version for table in make_cuts(lake).tables().values()} == {2}
    return lake


def tags(lake: TestLake, name: str) -> dict[str, int]:
    refs = lake.tables()[DATABASE, name].metadata.refs
    return {name: ref.snapshot_id for name, ref in refs.items() if name != "main"}


def rows_of(entries: list[Entry], name: str, commit_ts: int) -> list[tuple[Any, ...]]:
    return fold(entries, commit_ts)[name].typed()[1]


def test_states_that_are_over_have_tags_for_as_long_as_is_configured(cuts: TestLake) -> None:
    shown = {(row["checkpoint_ts"], row["table"]): row["snapshot_id"] for row in cuts.machinery("checkpoints")}
    assert tags(cuts, "busy") == {
        f"cut_{CUTS['C']}": shown[CUTS["C"], "busy"],
        "day_2026-01-01": shown[CUTS["B"], "busy"],
        "day_2026-01-02": shown[CUTS["C"], "busy"],
    }
    first = shown[CUTS["A"], "quiet"]
    assert tags(cuts, "quiet") == {f"cut_{CUTS['A']}": first, "day_2026-01-01": first, "day_2026-01-02": first}


MOMENTS: dict[str, tuple[Any, int]] = {
    "the last cut": (None, CUTS["D"]),
    "a day": ("day_2026-01-01", CUTS["B"]),
    "a cut by its tag": (f"cut_{CUTS['C']}", CUTS["C"]),
    "a cut without a tag": (f"cut_{CUTS['B']}", CUTS["B"]),
    "a time between": (datetime.datetime(2026, 1, 2, 23, tzinfo=datetime.UTC), CUTS["C"]),
    "a time of a cut": (datetime.datetime(2026, 1, 2, 9, tzinfo=datetime.UTC), CUTS["C"]),
    "a commit-ts between": (at(1, 9) + 3, at(1, 9) + 3),
    "a commit-ts after DDL": (at(2, 8), at(2, 8)),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", ["busy", "quiet"])
def test_a_moment_is_read_as_arrow_and_as_a_frame(cuts: TestLake, name: str, moment: str) -> None:
    as_of, commit_ts = MOMENTS[moment]
    expected = rows_of(ENTRIES, name, commit_ts)
    rows = cdc_lakehouse.read(cuts.config_path, f"{DATABASE}.{name}", as_of)
    assert seen(rows) == expected
    frame = cdc_lakehouse.read_spark(cuts.config, f"{DATABASE}.{name}", as_of)
    assert frame.columns == rows.column_names
    assert sorted(tuple(row) for row in frame.collect()) == sorted(expected)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/unreadable.txt"), ids=str)
def test_table_at_an_unknown_moment_is_refused(cuts: TestLake, case: Case, update: bool) -> None:
    def read(table: str, as_of: Any = None) -> None:
        cdc_lakehouse.read(cuts.config, table, as_of)

    found = evaluated(case, {"read": read, "at": at, "utc": utc, "moment": moment})
    case.compare([line.replace(f"feed {cuts.name}", "feed f") for line in found], update=update)


# Tables as of a moment by plain means: the name of a tag, or None for the table as it is.
PLAIN = [("busy", None, CUTS["D"]), ("quiet", None, CUTS["D"]), ("busy", "day_2026-01-01", CUTS["B"]),
         ("quiet", "day_2026-01-01", CUTS["A"]), ("busy", f"cut_{CUTS['C']}", CUTS["C"])]  # fmt: skip


def connected(cuts: TestLake, engine: str, name: str, *words: str) -> str:
    """What `connect` prints for a table."""
    environment = {"CDC_LAKEHOUSE_CONFIG": str(cuts.config_path)}
    return CliRunner(env=environment).invoke(main, ["connect", engine, f"{DATABASE}.{name}", *words]).stdout


@pytest.mark.in_turn
def test_spark_with_printed_settings_reads_tags(any_cuts: TestLake, spark: SparkSession) -> None:
    plain = spark.newSession()
    command, _, _ = connected(any_cuts, "spark", "busy").partition("\n\n")
    for setting in re.findall(r"--conf (\S+)", command):
        plain.conf.set(*shlex.split(setting)[0].split("=", 1)) if ".catalog." in setting else None
    for name, tag, commit_ts in PLAIN:
        _, _, query = connected(any_cuts, "spark", name, *(["--as-of", tag] if tag else [])).partition("\n\n")
        found = plain.sql(query.rstrip(";\n")).collect()
        assert sorted(tuple(row) for row in found) == sorted(rows_of(ENTRIES, name, commit_ts)), (name, tag)
        by_tag = f"SELECT * FROM lake.{any_cuts.name}__{DATABASE}.{name} VERSION AS OF '{tag}'"
        assert tag is None or sorted(map(tuple, plain.sql(by_tag).collect())) == sorted(map(tuple, found))


def test_pyiceberg_and_duckdb_as_printed_read_tags(any_cuts: TestLake) -> None:
    for name, tag, commit_ts in PLAIN:
        words = ["--as-of", tag] if tag else []
        names: dict[str, Any] = {"print": lambda rows: None}
        exec(connected(any_cuts, "pyiceberg", name, *words), names)
        expected = rows_of(ENTRIES, name, commit_ts)
        assert seen(names["rows"]) == expected, (name, tag)
        found = duckdb.from_arrow(names["rows"]).filter("id > 1").order("id").fetchall()
        assert found == sorted(row for row in expected if row[0] > 1), (name, tag)
        by_ref = names["catalog"].load_table(f"{any_cuts.name}__{DATABASE}.{name}").scan()
        assert tag is None or seen(by_ref.use_ref(tag).to_arrow()) == expected


DOCS = Path(__file__).parents[2] / "docs"


def documented(cuts: TestLake, page: str, language: str) -> list[str]:
    """The blocks of a page, for this lake and its table `busy`."""
    lake, table = cuts.config.lake, f"{cuts.name}__{DATABASE}.busy"
    newest = cuts.tables()[DATABASE, "busy"].metadata.current_snapshot_id
    here = {
        "sqlite:////data/lake/catalog.db": lake.catalog.uri, "sqlite:///demo/lake/catalog.db": lake.catalog.uri,
        "file:///data/lake/warehouse": lake.warehouse, "file:///…/demo/lake/warehouse": lake.warehouse,
        '"lakehouse.yaml", "shop.orders"': f'"{cuts.config_path}", "{DATABASE}.busy"',
        "shop.orders": table, '["shop", "orders"]': f'["{DATABASE}", "busy"]',
        "cdc_shop.checkpoints": f"cdc_{cuts.name}.checkpoints", "5291526609135445063": newest,
        "day_2026-11-21": "day_2026-01-01", "datetime(2026, 11, 21, 9": "datetime(2026, 1, 2, 9",
        "462107578368000000": CUTS["C"], "462107578368000123": CUTS["C"],
    }  # fmt: skip
    blocks = re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    for written, value in here.items():
        blocks = [block.replace(written, str(value)) for block in blocks]
    return blocks


def values(block: str) -> list[Any]:
    """What the expressions of a program give that stand alone, and at last its variable `orders`."""
    names: dict[str, Any] = {}
    found = []
    for statement in ast.parse(block).body:
        if isinstance(statement, ast.Expr):
            found.append(eval(compile(ast.Expression(statement.value), "page", "eval"), names))
        else:
            exec(compile(ast.Module([statement], []), "page", "exec"), names)
    return [*found, names.get("orders")]


def test_the_programs_of_the_documentation_read_what_it_says(cuts: TestLake, spark: SparkSession) -> None:
    rows = {name: rows_of(ENTRIES, "busy", commit_ts) for name, commit_ts in CUTS.items()}
    by_ref, of_cut, by_read = documented(cuts, "readers.md", "python")
    *_, at_day = values(by_ref)
    assert seen(at_day) == rows["B"]
    *read, _, _ = values(by_read)
    assert [seen(each) for each in read] == [rows["D"], rows["B"], rows["C"], rows["C"]]
    assert sorted(tuple(row) for row in spark.table("orders").collect()) == sorted(rows["B"])
    assert seen(values(of_cut)[-1]) == rows["D"]
    (newest,) = documented(cuts, "start/ten-minutes.md", "python")
    assert seen(values(newest.replace("print(", "("))[0]) == rows["D"]

    by_tag, *_, by_cut = documented(cuts, "readers.md", "sql")
    tags_of_page, *by_tag = by_tag.strip().removesuffix(";").split(";")
    assert dict(spark.sql(tags_of_page).collect()) == tags(cuts, "busy")
    shown = [spark.sql(each).collect() for each in by_tag]
    assert [sorted(map(tuple, each)) for each in shown] == [sorted(rows["B"]), sorted(rows["C"])]
    of_cut, at_snapshot = by_cut.strip().removesuffix(";").split(";")
    assert {row["table"] for row in spark.sql(of_cut).collect()} == {"busy", "quiet"}
    assert sorted(map(tuple, spark.sql(at_snapshot).collect())) == sorted(rows["D"])


def test_duckdb_with_its_printed_statements_reads_tags(any_cuts: TestLake) -> None:
    for name, tag, commit_ts in PLAIN:
        printed = connected(any_cuts, "duckdb", name, *(["--as-of", tag] if tag else []))
        assert sorted(rows_in_duckdb(printed)) == sorted(rows_of(ENTRIES, name, commit_ts)), (name, tag)
