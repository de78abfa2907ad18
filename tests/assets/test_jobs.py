"""Runs of jobs that need no JVM: nothing is new for a table, or a person holds it."""

from __future__ import annotations

import dagster as dg
import pytest

from cdc_lakehouse.definitions import build_definitions
from tests.kit.lakes import TestLake
from tests.lake import CREATE, NOON, change
from tests.pipeline import T0, Sink


def test_what_is_new_is_said_of_the_assets_and_a_hold_is_of_a_person(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.sink.parent / "lakehouse.yaml"))
    Sink(lake.sink, checkpoint=10)
    lake.run().history.record([change(10, "a", CREATE)], NOON)
    decisions = {"hold": {"d.a": "an audit"}, "decided_by": "ann"}
    config = {"ops": {f"{lake.name}_tables__decide": {"config": decisions}}}
    with dg.DagsterInstance.ephemeral() as instance:
        definitions = build_definitions(lake.config)
        job = definitions.resolve_job_def(f"{lake.name}_tables")
        assert job.execute_in_process(instance=instance, run_config=config).success
        ((table, why),) = lake.run().checkpoints.last().held
        assert table == "d.a#1" and "held by ann since" in why and "an audit" in why

        done = definitions.resolve_job_def(f"{lake.name}_new").execute_in_process(instance=instance)
        assert done.success and lake.run().checkpoints.last().checkpoint_ts == T0 + 10
        for layer, dated in (("raw", True), ("events", True), ("checkpoint", False)):
            event = instance.get_latest_materialization_event(dg.AssetKey([lake.name, layer]))
            assert event is not None and event.run_id == done.run_id and event.asset_materialization is not None
            assert (event.asset_materialization.partition is not None) == dated
        checks = {each.check_name: each.passed for each in done.get_asset_check_evaluations()}
        assert checks["no_index_gaps"] and checks["events_of_segments"] and not checks["nothing_held"]
