"""Checks judge the lake as it is: each passes on a valid lake and fails on the fault that it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from cdc_lakehouse.definitions import build_definitions
from tests.boundaries.change_log import ColumnType, SourceColumn, utc_now
from tests.kit import scripted_lake as script
from tests.kit.dagster_feed import checks, table_checks
from tests.kit.lakes import TestLake
from tests.kit.scripted_lake import KEY, NOON, Rejected, bad_rows, before, land, offsets, publish, segment
from tests.pipeline import lake_in

FILE = "d/t/1/CDC000001.json"
ID_ALONE = pa.schema([pa.field("id", pa.int64())])


def failed(lake: TestLake) -> set[str]:
    return {name for name, result in checks(lake).items() if not result.passed}


def number(result: dg.AssetCheckResult, name: str) -> Any:
    return result.metadata[name].value


def labels_unknown(lake: TestLake) -> None:
    script.create(lake, "t", columns=(KEY, SourceColumn("kind", ColumnType.of("ENUM"))))


def mistyped(lake: TestLake) -> None:
    script.create(lake, "t")
    lake.configure(tables={"include": ["d.*", "D.t"]})


FAULTS: dict[str, Callable[[TestLake], None]] = {
    "no_index_gaps": lambda lake: land(lake, segment("d/t/1/CDC000003.json", file_index=3, state="landed")),
    "nothing_quarantined": bad_rows,
    "schema_files_valid": lambda lake: bad_rows(lake, kind="BadSchemaFile"),
    "events_of_segments": lambda lake: land(lake, segment(FILE, events=3)),
    "lines_accounted": lambda lake: land(lake, segment(FILE, events=0, quarantined=0, lines=1)),
    "cut_rows": lambda lake: publish(lake, {"t": (7, 3)}, at=before(utc_now(), 0)),
    "labels_known": labels_unknown,
    "patterns_match": mistyped,
    "nothing_held": lambda lake: publish(lake, held={"d.t#1": "a reason"}, at=before(utc_now(), 0)),
    "fresh": lambda lake: publish(lake, at=before(utc_now(), 120)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_fails_its_check_and_no_other(lake: TestLake, fault: str) -> None:
    publish(lake, at=before(utc_now(), 0))
    assert failed(lake) == set() and checks(lake).keys() == FAULTS.keys()
    FAULTS[fault](lake)
    assert failed(lake) == {fault}


def test_empty_lake_is_not_fresh_and_otherwise_valid(lake: TestLake) -> None:
    assert failed(lake) == {"fresh"}
    assert lake.metadata() == {}


def test_missing_and_bad_are_counted_named_and_discarded(lake: TestLake) -> None:
    publish(lake, at=before(utc_now(), 0))
    FAULTS["no_index_gaps"](lake)
    script.quarantine(lake, Rejected("d/t/s", 7, "BadLine", "it is bad", None, "d", "t", 12))
    bad_rows(lake, kind="BadSchemaFile")
    found = checks(lake)
    missing, bad = found["no_index_gaps"], found["nothing_quarantined"]
    assert number(missing, "missing_files") == 2 and "d/t/1: 1, 2" in number(missing, "where")
    assert number(bad, "open") == 12 and "d/t/s line 7: it is bad" in number(bad, "first")
    run = lake.run()
    run.quarantine.discard({row.id for row in run.quarantine.open()}, "ann", "test data", NOON)
    assert failed(lake) == {"no_index_gaps"}
    script.quarantine(lake, Rejected("d/t/other", 7, "NotJson", "it is bad", None, "d", "t"))
    found = checks(lake)
    for name, opened, discarded in (("nothing_quarantined", 1, 12), ("schema_files_valid", 0, 1)):
        result = found[name]
        assert (number(result, "open"), number(result, "discarded")) == (opened, discarded)
        assert "it is bad" not in number(result, "first") or opened


@pytest.mark.parametrize(("minutes", "passed"), [(5, False), (15, True)])
def test_fresh_allows_the_configured_age(lake: TestLake, minutes: int, passed: bool) -> None:
    lake.configure(freshness_minutes=minutes)
    publish(lake, at=before(utc_now(), 10))
    assert checks(lake)["fresh"].passed == passed


@pytest.mark.parametrize(
    ("state", "lines", "events", "rejected", "passed"),
    [
        ("open", 5, 4, 1, True),
        ("discarded", 5, 4, 1, True),
        ("redelivered", 5, 4, 1, True),
        ("replayed", 5, 4, 1, False),
        ("replayed", 5, 5, 0, True),
        ("open", 5, 5, 0, False),
        ("open", 6, 4, 1, False),
        ("open", 4, 4, 1, False),
        ("open", 6, 4, 2, False),
        ("open", None, 4, 2, True),
    ],
)
def test_each_line_is_an_event_or_quarantined(
    lake: TestLake, state: str, lines: int | None, events: int, rejected: int, passed: bool
) -> None:
    valid = segment("d/t/1/CDC000002.json", file_index=2, events=3, quarantined=0, lines=3)
    land(lake, segment(FILE, events=events, quarantined=rejected, lines=lines), valid)
    row = Rejected(FILE, 5, "NotJson", "it is bad", b"x", "d", "t")
    script.quarantine(lake, row, replace(row, line=2, error_class="BadValue"))
    run = lake.run()
    ids = {row.id: "it came again" for row in run.quarantine.rows if row.error_class == "NotJson"}
    match state:
        case "discarded":
            run.quarantine.discard(ids, "ann", "test data", NOON)
        case "redelivered":
            run.quarantine.redeliver(ids, NOON)
        case "replayed":
            run.quarantine.replace(lambda row: row.id in ids, [], NOON)
    result = checks(lake)["lines_accounted"]
    assert result.passed == passed
    assert passed or f"{FILE}: {lines} lines, {events} events, {rejected} rejected" in number(result, "where")


@pytest.mark.parametrize(
    ("lines", "events", "others", "rejected", "passed"),
    [
        (6, 3, 2, 1, True),
        (6, 9, -4, 1, True),
        (6, 2, 2, 1, False),
        (6, 4, 2, 1, False),
        (7, 3, 2, 1, False),
        (6, 3, 2, 0, False),
        (None, 3, None, 1, True),
    ],
)
def test_each_record_is_an_event_quarantined_or_explained(
    lake: TestLake, lines: int | None, events: int, others: int | None, rejected: int, passed: bool
) -> None:
    counts = {"lines": lines, "events": events, "others": others, "quarantined": rejected}
    ranges = [offsets(f"t/0/{at}", **counts) for at in (0, 6)]
    land(lake, *ranges)
    script.quarantine(lake, *(Rejected(each.segment, 5, "BadMessage", "it is bad") for each in ranges))
    result = checks(lake)["lines_accounted"]
    assert result.passed == passed
    assert passed or f"t/0/6: {lines} lines, {events} events, {rejected} rejected" in number(result, "where")
    # What stands for segments without a row is also of those that were not counted.
    script.resolve_all(lake)
    run = lake.run()
    run.segments.summarize(run.segments.rows)
    assert checks(lake)["lines_accounted"].passed


def test_rows_of_a_cut_are_those_of_its_snapshots(lake: TestLake) -> None:
    script.create(lake, "t")
    table = script.current_table(lake, "t", ID_ALONE)
    for cut, ids in ((60, [1, 2]), (70, [3])):
        table.append(pa.table({"id": ids}), snapshot_properties={"cdc.checkpoint-ts": str(cut)})
    first, second = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    gone = "its snapshot is gone"
    for snapshot, rows, where in (
        (second, 3, None), (first, 2, None), (first, 3, "2 in the snapshot"), (second, 4, "3 in the snapshot"),
        (second + 1, 3, gone),
    ):  # fmt: skip
        publish(lake, {"t": (snapshot, rows), "u": 0}, at=70)
        result = checks(lake)["cut_rows"]
        assert result.passed == (where is None) and number(result, "tables") == 2
        assert where is None or f"d.t: {rows} rows in the cut, {where}" in number(result, "where")


# --- Feeds of topics ---


def topics(directory: Path, name: str) -> TestLake:
    source = {"type": "kafka", "bootstrap_servers": "k:9092", "topics": ["t"], "format": name}
    return lake_in(directory, source=source)


@pytest.mark.parametrize(
    ("name", "own", "labels"),
    [
        ("dts-avro", {"cascades_logged"}, True),
        ("canal-json", {"cascades_logged"}, False),
        ("shareplex-json", {"cascades_logged"}, None),
        ("dts-canal-json", {"cascades_logged", "options_agree"}, None),
        ("ticdc-canal-json", set(), None),
    ],
)
def test_checks_exist_where_the_format_needs_them(
    tmp_path: Path, name: str, own: set[str], labels: bool | None
) -> None:
    lake = topics(tmp_path, name)
    found = checks(lake).keys()
    assert {"nothing_quarantined", "fresh", "labels_known"} <= found
    assert not found & {"no_index_gaps", "schema_files_valid"}, "there are no files"
    assert found & {"cascades_logged", "options_agree"} == own
    labels_unknown(lake)
    assert labels is None or checks(lake)["labels_known"].passed == labels


def test_contradicting_messages_fail_until_read_again(tmp_path: Path) -> None:
    lake = topics(tmp_path, "dts-canal-json")
    assert checks(lake)["options_agree"].passed
    script.contradict(lake, "a row of DELETE is in old", 3)
    result = checks(lake)["options_agree"]
    assert not result.passed and number(result, "messages") == 3
    assert "a row of DELETE is in old" in str(result.description) and "offset 17" in number(result, "where")
    script.contradict(lake, None)
    assert checks(lake)["options_agree"].passed


def test_foreign_keys_that_change_rows_fail_while_they_exist(tmp_path: Path) -> None:
    lake = topics(tmp_path, "canal-json")
    columns = "(id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES p (id) ON DELETE"
    script.ddl(lake, f"CREATE TABLE t {columns} CASCADE)", f"CREATE TABLE u {columns} NO ACTION)")
    result = checks(lake)["cascades_logged"]
    assert not result.passed and result.severity == dg.AssetCheckSeverity.WARN and number(result, "foreign_keys") == 1
    assert "d.t: ibfk_1 ON DELETE CASCADE" in number(result, "where") and "verify --repair" in str(result.description)
    script.ddl(lake, "ALTER TABLE t DROP FOREIGN KEY t_ibfk_1", at=3)
    assert checks(lake)["cascades_logged"].passed


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
