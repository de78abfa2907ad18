"""What an upgrade of Dagster breaks: private names are used in one module, and each does what it is used for."""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin

from tests.kit.dagster_feed import ended, runs

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
