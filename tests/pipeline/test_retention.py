"""What is forgotten, without a JVM; `tests/scenarios/retention.txt` has the rest."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from cdc_lakehouse.lake.tables.segments import Archive
from cdc_lakehouse.operate.retention import Retention
from cdc_lakehouse.sources.object_store import LocalStore, UnreadableDirectory
from tests.kit.scripted_lake import NOON, T0, land, publish, segment
from tests.pipeline import lake_in


def test_old_cuts_go_where_the_archive_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_in(tmp_path, source={"archive": True}, maintenance={"keep_archive_days": 1})
    land(lake, segment("d/t/1"))
    for at in (5, 6):
        publish(lake, {"t": 1}, at=T0 + at)

    monkeypatch.setattr(LocalStore, "_walk", lambda *_: iter([UnreadableDirectory("c/archive", "Permission denied")]))
    with pytest.raises(SourceError, match=r"list the archive: Permission denied \[segment c/archive\]") as found:
        Retention(lake.run(clock=lambda: NOON + datetime.timedelta(days=9))).remove()
    assert "let this user list" in str(found.value.advice) and "keep_archive_days" in str(found.value.advice)
    assert [row["checkpoint_ts"] for row in lake.machinery("checkpoints")] == [T0 + 6]


def test_archive_that_is_not_there_is_empty_and_lost_store_fails(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, source={"archive": True})
    publish(lake, {"t": 1}, at=T0)
    archive = Archive(lake.run().lake, lake.name, lake.run().store)
    assert archive.copies() == []
    lake.warehouse.rename(tmp_path / "elsewhere")
    with pytest.raises(SourceUnreachableError):
        archive.copies()
