"""Checks judge the lake as it is: each passes on a sound lake and fails on the fault that it is for."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from cdc_lakehouse.assets.checks import build_checks, table_evaluations
from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.positions import tso, utc_now
from cdc_lakehouse.changelog.schema import SchemaChange, SourceColumn, TableName
from cdc_lakehouse.decoders.partition_summary import OptionConflict, PartitionSummary
from cdc_lakehouse.decoders.problems import Rejected
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.tables.checkpoints import Cut, CutRow
from cdc_lakehouse.lake.tables.segments import Segment
from tests.assets import check_context
from tests.kit.lakes import TestLake
from tests.lake import ID, NOON, change, make_current_table, segment
from tests.pipeline import lake_in

T = TableName("d", "t")


def check(lake: TestLake, name: str) -> dg.AssetCheckResult:
    (found,) = [
        each for each in build_checks(lake.lake, lake.feed, []) if name in {key.name for key in each.check_keys}
    ]
    result: Any = found(check_context())
    return result


def failed(lake: TestLake) -> set[str]:
    results: list[Any] = [(each.check_keys, each(check_context())) for each in build_checks(lake.lake, lake.feed, [])]
    return {key.name for keys, result in results for key in keys if not result.passed}


def number(result: dg.AssetCheckResult, name: str) -> Any:
    return result.metadata[name].value


def publish(lake: TestLake, checkpoint_ts: int, **held: str) -> None:
    lake.run().checkpoints.publish(Cut(checkpoint_ts, held=tuple(held.items())), [])


def quarantine(lake: TestLake, kind: str, count: int = 1) -> None:
    row = Rejected("d/t/s", 7, kind, "it is bad", None, "d", "t", count)
    lake.run().quarantine.replace(lambda _: False, [row], NOON)


def gap(lake: TestLake) -> None:
    lake.run().segments.land([segment("d/t/1/CDC000003.json", file_index=3)])


def lost_events(lake: TestLake) -> None:
    lake.run().segments.land([segment("d/t/1/CDC000001.json", state="decoded", events=3)])


def lost_line(lake: TestLake) -> None:
    lake.run().segments.land([segment("d/t/1/CDC000001.json", state="decoded", events=0, quarantined=0, lines=1)])


def lost_table(lake: TestLake) -> None:
    row = CutRow(tso(utc_now()), "d", "t", 7, 3, NOON)
    lake.run().checkpoints.publish(Cut(row.checkpoint_ts), [row])


def labels_unknown(lake: TestLake) -> None:
    kind = SourceColumn("kind", ColumnType.of("ENUM"))
    lake.run().history.record([change(5, "t", 0, "", ID, kind)], NOON)


def mistyped(lake: TestLake) -> None:
    lake.run().history.record([change(5, "t", 0, "", ID)], NOON)
    lake.configure(tables={"include": ["d.*", "D.t"]})


FAULTS: dict[str, Callable[[TestLake], None]] = {
    "no_index_gaps": gap,
    "nothing_quarantined": lambda lake: quarantine(lake, "BadLine"),
    "schema_files_valid": lambda lake: quarantine(lake, "BadSchemaFile"),
    "events_of_segments": lost_events,
    "lines_accounted": lost_line,
    "cut_rows": lost_table,
    "labels_known": labels_unknown,
    "patterns_match": mistyped,
    "nothing_held": lambda lake: publish(lake, tso(utc_now()), **{"d.t#1": "a reason"}),
    "fresh": lambda lake: publish(lake, tso(utc_now() - datetime.timedelta(hours=2))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_check_and_no_other(lake: TestLake, fault: str) -> None:
    publish(lake, tso(utc_now()))
    assert failed(lake) == set()
    FAULTS[fault](lake)
    assert failed(lake) == {fault}


def test_what_is_missing_and_bad_is_counted_and_named(lake: TestLake) -> None:
    gap(lake)
    quarantine(lake, "BadLine", count=12)
    missing = check(lake, "no_index_gaps")
    assert number(missing, "missing_files") == 2 and "d/t/1: 1, 2" in number(missing, "where")
    bad = check(lake, "nothing_quarantined")
    assert number(bad, "open") == 12 and "d/t/s line 7: it is bad" in number(bad, "first")


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
def test_each_line_is_an_event_or_a_row_of_the_quarantine(
    lake: TestLake, state: str, lines: int | None, events: int, rejected: int, passed: bool
) -> None:
    path, sound = "d/t/1/CDC000001.json", {"events": 3, "quarantined": 0, "lines": 3}
    counts = {"events": events, "quarantined": rejected, "lines": lines}
    whole = segment("d/t/1/CDC000002.json", state="decoded", file_index=2, **sound)
    lake.run().segments.land([segment(path, state="decoded", **counts), whole])
    run = lake.run()
    of_table = Rejected(path, 2, "BadValue", "it is bad", b"x", "d", "t")
    run.quarantine.replace(lambda _: False, [Rejected(path, 5, "NotJson", "it is bad", b"x", "d", "t"), of_table], NOON)
    ids = {row.id: "it came again" for row in run.quarantine.rows if row.error_class == "NotJson"}
    match state:
        case "discarded":
            run.quarantine.discard(ids, "ann", "test data", NOON)
        case "redelivered":
            run.quarantine.redeliver(ids, NOON)
        case "replayed":
            run.quarantine.replace(lambda row: row.id in ids, [], NOON)
    result = check(lake, "lines_accounted")
    assert result.passed == passed
    assert passed or f"{path}: {lines} lines, {events} events, {rejected} rejected" in number(result, "where")


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
def test_each_record_is_an_event_a_row_of_the_quarantine_or_explained(
    lake: TestLake, lines: int | None, events: int, others: int | None, rejected: int, passed: bool
) -> None:
    ranges = [
        Segment(
            segment=f"t/0/{at}", kind="offsets", size=9, batch=1, state="decoded", landed_at=NOON, record_batch=1,
            lines=lines, events=events, others=others, quarantined=rejected,
        )
        for at in (0, 6)
    ]  # fmt: skip
    run = lake.run()
    run.segments.land(ranges)
    bad = [Rejected(each.segment, 5, "BadMessage", "it is bad") for each in ranges]
    run.quarantine.replace(lambda _: False, bad, NOON)
    result = check(lake, "lines_accounted")
    assert result.passed == passed
    assert passed or f"t/0/6: {lines} lines, {events} events, {rejected} rejected" in number(result, "where")
    # What stands for segments without a row is also of those that were not counted.
    run.quarantine.replace(lambda _: True, [], NOON)
    run.segments.summarize(run.segments.rows)
    assert check(lake, "lines_accounted").passed


def test_the_rows_of_a_cut_are_those_of_its_snapshots(lake: TestLake) -> None:
    where = CurrentTables(lake.lake, lake.feed).identifier(T)
    lake.lake.ensure_namespace(where.namespace)
    table = lake.lake.catalog.create_table(where.parts, pa.schema([pa.field("id", pa.int64())]))
    for cut, ids in ((60, [1, 2]), (70, [3])):
        table.append(pa.table({"id": ids}), snapshot_properties={"cdc.checkpoint-ts": str(cut)})
    first, second = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    empty = CutRow(70, "d", "u", None, 0, NOON)

    def judged(snapshot_id: int, rows: int) -> dg.AssetCheckResult:
        lake.run().checkpoints.publish(Cut(70), [CutRow(70, "d", "t", snapshot_id, rows, NOON), empty])
        return check(lake, "cut_rows")

    sound = judged(second, 3)
    assert sound.passed and (number(sound, "tables"), number(sound, "rows")) == (2, 3)
    assert judged(first, 2).passed
    assert not judged(first, 3).passed
    wrong = judged(second, 4)
    assert not wrong.passed and "d.t: 4 rows in the cut, 3 in the snapshot" in number(wrong, "where")
    assert "d.t: 3 rows in the cut, its snapshot is gone" in number(judged(second + 1, 3), "where")


def test_what_was_discarded_fails_nothing_and_is_counted(lake: TestLake) -> None:
    publish(lake, tso(utc_now()))
    quarantine(lake, "BadLine", count=12)
    quarantine(lake, "BadSchemaFile")
    run = lake.run()
    run.quarantine.discard({row.id for row in run.quarantine.open()}, "ann", "test data", NOON)
    assert failed(lake) == set()
    quarantine(lake, "NotJson")
    for name, opened, discarded in (("nothing_quarantined", 1, 12), ("schema_files_valid", 0, 1)):
        result = check(lake, name)
        assert (number(result, "open"), number(result, "discarded")) == (opened, discarded)
        assert "BadLine" not in number(result, "first")


def test_an_empty_lake_is_not_fresh_and_otherwise_sound(lake: TestLake) -> None:
    assert failed(lake) == {"fresh"}
    assert lake.metadata() == {}


@pytest.mark.parametrize(("minutes", "passed"), [(5, False), (15, True)])
def test_freshness_is_as_old_as_the_configuration_allows(tmp_path: Path, minutes: int, passed: bool) -> None:
    lake = lake_in(tmp_path, freshness_minutes=minutes)
    publish(lake, tso(utc_now() - datetime.timedelta(minutes=10)))
    assert check(lake, "fresh").passed == passed


def topics(directory: Path, name: str) -> TestLake:
    source = {"type": "kafka", "bootstrap_servers": "k:9092", "topics": ["t"], "format": name}
    return lake_in(directory, source=source)


def test_a_feed_without_files_has_no_checks_of_files(tmp_path: Path) -> None:
    lake = topics(tmp_path, "dts-avro")
    names = {key.name for each in build_checks(lake.lake, lake.feed, []) for key in each.check_keys}
    assert {"nothing_quarantined", "fresh"} <= names and not names & {"no_index_gaps", "schema_files_valid"}


def test_messages_that_contradict_an_option_fail_a_check_until_they_are_read_again(tmp_path: Path) -> None:
    lake = topics(tmp_path, "dts-canal-json")
    assert check(lake, "options_agree").passed
    conflict = OptionConflict("t", 0, 17, "a row of DELETE is in old", 3)
    lake.run().signals.write(1, {("t", 0, 1): PartitionSummary(0, 0, option_conflict=conflict)})
    result = check(lake, "options_agree")
    assert not result.passed and number(result, "messages") == 3
    assert "a row of DELETE is in old" in str(result.description) and "offset 17" in number(result, "where")
    lake.run().signals.write(1, {("t", 0, 1): PartitionSummary(0, 0)})
    assert check(lake, "options_agree").passed


@pytest.mark.parametrize(("name", "labels"), [("dts-avro", True), ("canal-json", False), ("shareplex-json", None)])
def test_formats_without_options_have_no_such_check_and_those_with_labels_need_none_from_statements(
    tmp_path: Path, name: str, labels: bool | None
) -> None:
    lake = topics(tmp_path, name)
    checks = {key.name for each in build_checks(lake.lake, lake.feed, []) for key in each.check_keys}
    assert "options_agree" not in checks and "labels_known" in checks
    labels_unknown(lake)
    assert labels is None or check(lake, "labels_known").passed == labels


def test_foreign_keys_that_change_rows_fail_a_check_while_they_are_there(tmp_path: Path) -> None:
    lake = topics(tmp_path, "canal-json")
    columns = "(id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES p (id) ON DELETE"
    texts = (
        f"CREATE TABLE t {columns} CASCADE)", f"CREATE TABLE u {columns} NO ACTION)",
        "ALTER TABLE t DROP FOREIGN KEY t_ibfk_1",
    )  # fmt: skip
    changes = [SchemaChange(n, "d", "", None, text, (), f"o{n}", kind="text") for n, text in enumerate(texts)]
    lake.run().history.record(changes[:2], NOON)
    result = check(lake, "cascades_logged")
    assert not result.passed and result.severity == dg.AssetCheckSeverity.WARN and number(result, "foreign_keys") == 1
    assert "d.t: ibfk_1 ON DELETE CASCADE" in number(result, "where") and "verify --repair" in str(result.description)
    lake.run().history.record(changes[2:], NOON)
    assert check(lake, "cascades_logged").passed


@pytest.mark.parametrize(("name", "there"), [("canal-json", True), ("dts-avro", True), ("ticdc-canal-json", False)])
def test_cascades_are_checked_where_the_log_lacks_them(tmp_path: Path, name: str, there: bool) -> None:
    lake = topics(tmp_path, name)
    checks = {key.name for each in build_checks(lake.lake, lake.feed, []) for key in each.check_keys}
    assert ("cascades_logged" in checks) == there


class Written:
    """A current-state table with batches as a run leaves them."""

    SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("part.no", pa.string())])

    def __init__(self, lake: TestLake, **properties: str) -> None:
        lake.lake.ensure_namespace("d")
        settings = {"cdc.key": '["id", "part.no"]', **{k.replace("_", "."): v for k, v in properties.items()}}
        self.lake, self.table = lake, lake.lake.catalog.create_table(("d", "t"), self.SCHEMA, properties=settings)

    def append(self, batch: int, *keys: tuple[int | None, str | None], **said: int) -> None:
        rows = pa.Table.from_pylist([{"id": id, "part.no": part} for id, part in keys], schema=self.SCHEMA)
        self.table.append(rows, snapshot_properties=self._summary(batch, said))

    def delete(self, batch: int, where: str, **said: int) -> None:
        self.table.delete(where, snapshot_properties=self._summary(batch, said))

    @staticmethod
    def _summary(batch: int, said: dict[str, int]) -> dict[str, str]:
        return {"cdc.batch": str(batch), **{f"cdc.rows-{name}": str(count) for name, count in said.items()}}

    def check(self, *, of_batch: bool = False) -> dict[str, dg.AssetCheckResult]:
        results = table_evaluations(self.lake.feed, T, self.table, of_batch=of_batch)
        tables = {tuple(result.asset_key.path) for result in results if result.asset_key}
        assert tables == {(self.lake.name, "current", "d", "t")}
        return {str(result.check_name): result for result in results}


@pytest.mark.parametrize("of_batch", [False, True])
def test_a_key_that_stands_twice_is_found_and_shown(lake: TestLake, of_batch: bool) -> None:
    written = Written(lake)
    written.append(1, (1, "a"), (1, "b"), (2, "a"))
    assert written.check(of_batch=of_batch)["no_duplicate_keys"].passed
    written.append(2, (1, "b"))
    result = written.check(of_batch=of_batch)["no_duplicate_keys"]
    assert (result.passed, number(result, "duplicate_keys")) == (False, 1)
    assert number(result, "examples") == "(1, 'b')"


def test_what_hangs_on_a_table_does_not_run_after_a_check_that_finds_its_rows_wrong(lake: TestLake) -> None:
    lake.run().history.record([change(5, "t", 0, "", ID), change(6, "u", 0, "", ID)], NOON)
    current = CurrentTables(lake.lake, lake.feed)
    tables = {
        life.last.name.table: make_current_table(lake, life, current.identifier(life.last.name), cdc_key='["id"]')
        for life in lake.run().history.history.incarnations().values()
    }
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


OTHERS = [(id, "other") for id in range(40)]


def test_a_run_looks_only_for_keys_that_it_wrote(lake: TestLake) -> None:
    written = Written(lake)
    written.append(1, (51, "a"), (51, "a"), (52, "a"), (53, "a"), *OTHERS)
    assert not written.check(of_batch=True)["no_duplicate_keys"].passed, "the batch wrote the whole table"
    written.delete(2, "id = 52")
    written.append(2, (52, "a"), (54, "a"))
    result = written.check(of_batch=True)["no_duplicate_keys"]
    assert result.passed and number(result, "rows") == 2
    assert not written.check()["no_duplicate_keys"].passed
    written.delete(3, "id = 53")
    assert written.check(of_batch=True)["no_duplicate_keys"].passed, "a batch that wrote no row"


@pytest.mark.parametrize("keys", [((None, "a"), (None, "a")), ((5, None), (5, None)), ((-7, "x"), (8, "x"), (-7, "x"))])
def test_a_key_that_a_run_wrote_twice_is_found(lake: TestLake, keys: tuple[tuple[int | None, str | None], ...]) -> None:
    written = Written(lake)
    written.append(1, keys[0], *OTHERS)
    assert written.check(of_batch=True)["no_duplicate_keys"].passed
    written.append(2, *keys[1:])
    result = written.check(of_batch=True)["no_duplicate_keys"]
    assert number(result, "duplicate_keys") == 1 and number(result, "rows") == len(keys)


@pytest.mark.parametrize(("touched", "passed"), [("2", True), ("1", False), ("", True)])
def test_rows_are_conserved_when_no_more_went_than_keys_were_touched(
    lake: TestLake, touched: str, passed: bool
) -> None:
    written = Written(lake, **{"cdc_keys-touched": touched})
    written.append(1, (1, "a"), (2, "a"), (3, "a"), (4, "a"))
    written.delete(2, "id < 3")
    written.append(2, (1, "a"))
    result = written.check()["rows_conserved"]
    assert result.passed == passed
    assert [number(result, f"rows_{name}") for name in ("before", "deleted", "written", "after")] == [4, 2, 1, 3]
    assert number(result, "keys_touched") == (int(touched) if touched else "any")


@pytest.mark.parametrize(
    ("written", "removed", "passed"),
    [(2, 1, True), (3, 1, False), (1, 1, False), (2, 2, False), (2, 0, False)],
    ids=["as the events say", "a row was lost", "one was added", "a row was left", "one too many went"],
)
def test_rows_are_those_before_less_what_the_events_took_with_what_they_wrote(
    lake: TestLake, written: int, removed: int, passed: bool
) -> None:
    table = Written(lake, **{"cdc_keys-touched": "3"})
    table.append(1, (1, "a"), (2, "a"), (3, "a"))
    table.delete(2, "id = 1", written=0, removed=removed)
    table.append(2, (1, "b"), (4, "a"), written=written, removed=0)
    result = table.check()["rows_conserved"]
    assert (result.passed, number(result, "expected")) == (passed, f"{written} written, {removed} deleted")
    # Of one commit nothing is said: an earlier release made it.
    table.append(2, (5, "a"))
    assert table.check()["rows_conserved"].passed


def test_a_table_without_a_row_is_sound(lake: TestLake) -> None:
    written = Written(lake)
    assert all(result.passed for of_batch in (False, True) for result in written.check(of_batch=of_batch).values())
