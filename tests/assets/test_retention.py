"""Old runs are deleted with their files, but those that an asset page shows; and what an upgrade of Dagster breaks."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin

from tests.boundaries.change_log import TableName, utc_now
from tests.kit.dagster_feed import FEED_TAG, build_retention, delete_runs, ended, feed_named, keys, runs
from tests.kit.lakes import TestLake

FEED = feed_named("f")
DAYS = dg.DailyPartitionsDefinition("2026-06-01", end_date="2026-06-05")


@dg.asset(key=keys.raw_key(FEED), partitions_def=DAYS)
def raw() -> None: ...


@dg.asset(key=keys.checkpoint_key(FEED), partitions_def=None)
def checkpoint() -> None: ...


JOB_OF_DATES = dg.define_asset_job("dated", [raw])
JOB_OF_CUTS = dg.define_asset_job("cuts", [checkpoint])
DEFINITIONS = dg.Definitions(
    assets=[raw, checkpoint], jobs=[JOB_OF_DATES, JOB_OF_CUTS], executor=dg.in_process_executor
)


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as instance:
        yield instance


def run(instance: dg.DagsterInstance, date: str | None = None, feed: str = "f") -> str:
    job = DEFINITIONS.resolve_job_def("cuts" if date is None else "dated")
    return job.execute_in_process(instance=instance, partition_key=date, tags={FEED_TAG: feed}).run_id


def run_ids(instance: dg.DagsterInstance) -> set[str]:
    return {each.run_id for each in instance.get_runs()}


def test_run_is_deleted_with_files_unless_shown(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    first = run(instance, "2026-06-01")
    again, other_date = run(instance, "2026-06-01"), run(instance, "2026-06-02")
    earlier_cut, cut, of_another = run(instance), run(instance), run(instance, feed="g")
    assert delete_runs(instance, FEED, utc_now() - datetime.timedelta(days=1)) == (0, 0), "none is old enough"

    assert delete_runs(instance, FEED, utc_now()) == (3, 2)
    # The last cut is another feed's run here: it is the one that is shown.
    assert run_ids(instance) == {again, other_date, of_another}
    assert instance.get_materialized_partitions(raw.key) == {"2026-06-01", "2026-06-02"}
    assert instance.get_latest_materialization_event(checkpoint.key) is not None
    gone = {first, earlier_cut, cut}
    left = [path for path in tmp_path.rglob("*") if any(run in str(path) for run in gone)]
    assert not left
    assert delete_runs(instance, FEED, utc_now()) == (0, 2)


def test_shown_run_stays_where_keys_have_a_prefix(instance: dg.DagsterInstance, lake: TestLake) -> None:
    lake.configure(key_prefix=["company"])

    @dg.asset(key=keys.current_key(lake.feed, TableName("d", "t")))
    def current() -> None: ...

    job = dg.Definitions(assets=[current], jobs=[dg.define_asset_job("j", [current])]).resolve_job_def("j")
    first, last = (job.execute_in_process(instance=instance, tags={FEED_TAG: lake.name}).run_id for _ in range(2))
    assert delete_runs(instance, lake.feed, utc_now()) == (1, 1)
    assert first not in run_ids(instance) and last in run_ids(instance)
    assert current.key.path[0] == "company"


def test_runs_of_other_jobs_of_the_feed_are_deleted(instance: dg.DagsterInstance) -> None:
    first, last = set[str](), set[str]()
    for kind in ("maintenance", "compaction", "verify"):

        @dg.asset(key=dg.AssetKey(["f", kind]))
        def work() -> None: ...

        job = dg.Definitions(assets=[work], jobs=[dg.define_asset_job(f"f_{kind}", [work])]).resolve_job_def(
            f"f_{kind}"
        )
        for which in (first, last):
            which.add(job.execute_in_process(instance=instance).run_id)
    assert delete_runs(instance, FEED, utc_now()) == (3, 3)
    assert run_ids(instance) == last


def test_job_keeps_runs_for_the_configured_days(instance: dg.DagsterInstance) -> None:
    definitions = build_retention([FEED], 1)
    kept = {run(instance), run(instance)}
    done = definitions.resolve_job_def("cdc_prune_runs").execute_in_process(instance=instance)
    assert done.success and run_ids(instance) == {*kept, done.run_id}
    (schedule,) = definitions.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition) and schedule.job_name == "cdc_prune_runs"


# --- Private names of Dagster ---


PACKAGE = Path(runs.__file__).parents[1]


def test_private_names_of_dagster_do_what_they_are_used_for(tmp_path: Path) -> None:
    users = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"dagster(\._|_shared)", path.read_text("utf-8"))]
    assert users == ["runs.py"]
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        backfill = PartitionBackfill(
            "b", BulkActionStatus.REQUESTED, False, {}, 0.0, asset_selection=[dg.AssetKey("a")]
        )
        instance.add_backfill(backfill)
        assert [each.backfill_id for each in runs.requested_backfills(instance)] == ["b"]
        run = ended(instance, None, fails=True)
        error = runs.step_failure(instance, run)
        assert error is not None and error.cause is not None and error.cause.cls_name == "CatalogUnreachableError"
        key, whole = (dg.AssetCheckKey(dg.AssetKey("a"), name) for name in ("bad", "whole"))
        for each in (key, whole):
            evaluation = dg.AssetCheckEvaluation(
                asset_key=each.asset_key, check_name=each.name, passed=each is whole, metadata={}
            )
            instance.report_runless_asset_event(evaluation)
        assert list(runs.failed_checks(instance, [key, whole])) == [key]
        files = set(tmp_path.rglob(f"{run}*"))
        runs.delete_log_file(instance, run)
        assert files - set(tmp_path.rglob(f"{run}*")), "each run has a file"
    server = runs.code_server(GrpcServerCodeLocationOrigin("127.0.0.1", port=1))
    with pytest.raises(dg.DagsterError, match="Could not reach user code server"):
        server.reload_code(timeout=1)
    assert runs.code_server(None) is None
