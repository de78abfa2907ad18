"""Checks judge the lake as it is: each passes on a valid lake and fails on the fault that it is for."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from cdc_lakehouse.definitions import build_definitions
from tests.kit import scripted_lake as script
from tests.kit.dagster_feed import table_checks
from tests.kit.lakes import TestLake

ID_ALONE = pa.schema([pa.field("id", pa.int64())])


def number(result: dg.AssetCheckResult, name: str) -> Any:
    return result.metadata[name].value


# --- Feeds of topics ---


# --- Tables ---


class Written:
    """A current-state table with batches as a run leaves them."""

    SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("part.no", pa.string())])

    def __init__(self, lake: TestLake, **properties: str) -> None:
        script.create(lake, "t")
        key = {"cdc_key": '["id", "part.no"]'}
        self.lake, self.table = lake, script.current_table(lake, "t", self.SCHEMA, **key, **properties)

    def append(self, batch: int, *rows: tuple[int | None, str | None], **said: int) -> None:
        found = pa.Table.from_pylist([{"id": id, "part.no": part} for id, part in rows], schema=self.SCHEMA)
        self.table.append(found, snapshot_properties=self._summary(batch, said))

    def delete(self, batch: int, where: str, **said: int) -> None:
        self.table.delete(where, snapshot_properties=self._summary(batch, said))

    @staticmethod
    def _summary(batch: int, said: dict[str, int]) -> dict[str, str]:
        return {"cdc.batch": str(batch), **{f"cdc.rows-{name}": str(count) for name, count in said.items()}}

    def duplicates(self, *, of_batch: bool = True) -> dg.AssetCheckResult:
        return table_checks(self.lake, self.table, of_batch=of_batch)["no_duplicate_keys"]

    def conserved(self) -> dg.AssetCheckResult:
        return table_checks(self.lake, self.table)["rows_conserved"]


@pytest.mark.parametrize("of_batch", [False, True])
def test_duplicate_key_is_found_and_shown(lake: TestLake, of_batch: bool) -> None:
    written = Written(lake)
    assert written.duplicates(of_batch=of_batch).passed and written.conserved().passed, "a table without a row"
    written.append(1, (1, "a"), (1, "b"), (2, "a"))
    assert written.duplicates(of_batch=of_batch).passed
    written.append(2, (1, "b"))
    result = written.duplicates(of_batch=of_batch)
    assert (result.passed, number(result, "duplicate_keys")) == (False, 1)
    assert number(result, "examples") == "(1, 'b')"


OTHERS = [(id, "other") for id in range(40)]


def test_run_looks_only_for_keys_that_it_wrote(lake: TestLake) -> None:
    written = Written(lake)
    written.append(1, (51, "a"), (51, "a"), (52, "a"), (53, "a"), *OTHERS)
    assert not written.duplicates().passed, "the batch wrote the whole table"
    written.delete(2, "id = 52")
    written.append(2, (52, "a"), (54, "a"))
    result = written.duplicates()
    assert result.passed and number(result, "rows") == 2
    assert not written.duplicates(of_batch=False).passed
    written.delete(3, "id = 53")
    assert written.duplicates().passed, "a batch that wrote no row"


@pytest.mark.parametrize("keys", [((None, "a"), (None, "a")), ((5, None), (5, None)), ((-7, "x"), (8, "x"), (-7, "x"))])
def test_key_that_a_run_wrote_twice_is_found(lake: TestLake, keys: tuple[tuple[int | None, str | None], ...]) -> None:
    written = Written(lake)
    written.append(1, keys[0], *OTHERS)
    assert written.duplicates().passed
    written.append(2, *keys[1:])
    result = written.duplicates()
    assert number(result, "duplicate_keys") == 1 and number(result, "rows") == len(keys)


@pytest.mark.parametrize(("touched", "passed"), [("2", True), ("1", False), ("", True)])
def test_no_more_rows_went_than_keys_were_touched(lake: TestLake, touched: str, passed: bool) -> None:
    written = Written(lake, **{"cdc_keys-touched": touched})
    written.append(1, (1, "a"), (2, "a"), (3, "a"), (4, "a"))
    written.delete(2, "id < 3")
    written.append(2, (1, "a"))
    result = written.conserved()
    assert result.passed == passed
    assert [number(result, f"rows_{name}") for name in ("before", "deleted", "written", "after")] == [4, 2, 1, 3]
    assert number(result, "keys_touched") == (int(touched) if touched else "any")


@pytest.mark.parametrize(
    ("written", "removed", "passed"),
    [(2, 1, True), (3, 1, False), (1, 1, False), (2, 2, False), (2, 0, False)],
    ids=["as the events say", "a row was lost", "one was added", "a row was left", "one too many went"],
)
def test_rows_are_those_that_events_wrote_and_took(lake: TestLake, written: int, removed: int, passed: bool) -> None:
    table = Written(lake, **{"cdc_keys-touched": "3"})
    table.append(1, (1, "a"), (2, "a"), (3, "a"))
    table.delete(2, "id = 1", written=0, removed=removed)
    table.append(2, (1, "b"), (4, "a"), written=written, removed=0)
    result = table.conserved()
    assert (result.passed, number(result, "expected")) == (passed, f"{written} written, {removed} deleted")
    # Of one commit nothing is said: an earlier release made it.
    table.append(2, (5, "a"))
    assert table.conserved().passed


def test_failed_table_check_stops_assets_that_depend_on_it(lake: TestLake) -> None:
    script.create(lake, "t", "u")
    tables = {name: script.current_table(lake, name, ID_ALONE, cdc_key='["id"]') for name in "tu"}
    one = pa.table({"id": [1]})
    for table in tables.values():
        table.append(one)
    assets = {name: dg.AssetKey([lake.name, "current", "d", name]) for name in tables}

    @dg.asset(deps=[assets["t"]])
    def of_t() -> None: ...

    @dg.asset(deps=[assets["u"]])
    def of_u() -> None: ...

    chosen = dg.AssetSelection.checks_for_assets(*assets.values()) | dg.AssetSelection.assets(of_t, of_u)
    marts = dg.Definitions([of_t, of_u], jobs=[dg.define_asset_job("marts", chosen)])
    job = dg.Definitions.merge(build_definitions(lake.config), marts).resolve_job_def("marts")

    def runs() -> set[str]:
        done = job.execute_in_process(raise_on_error=False)
        assert len(done.get_asset_check_evaluations()) == 4
        return {event.step_key or "" for event in done.all_events if event.is_step_success} & {"of_t", "of_u"}

    assert runs() == {"of_t", "of_u"}
    tables["t"].append(one)
    assert runs() == set(), "the checks of all tables are one step"
