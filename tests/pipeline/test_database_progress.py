"""How far the reading of a database is, by the files that are there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.pipeline.database_progress import ReadingProgress, read_progress
from cdc_lakehouse.sources.object_store import open_store

ROOT = 1_780_000_000


def planned(number: int, ranges: int, estimated: int | None) -> dict[str, Any]:
    known = {} if estimated is None else {"estimated_rows": estimated}
    return {"directory": f"t{number:06d}/", "ranges": [[None, None]] * ranges, **known}


class Directory:
    def __init__(self, root: Path, *tables: dict[str, Any]) -> None:
        self.root = root / "000001"
        for table in tables:
            (self.root / table["directory"]).mkdir(parents=True)
        (self.root / "plan.json").write_text(json.dumps({"tables": tables}))
        self.store = open_store(root.as_uri(), StorageConfig())

    def read(self, table: int, place: int, rows: int, at: int) -> None:
        name = self.root / f"t{table:06d}" / f"{place:09d}-aa"
        Path(f"{name}-0000.rows").write_bytes(b"x" * 10)
        done = Path(f"{name}.{rows}.done")
        done.write_text("done\n")
        os.utime(done, (ROOT + at, ROOT + at))

    @property
    def progress(self) -> ReadingProgress:
        return read_progress(self.store, 1, 100)


def test_of_a_plan(tmp_path: Path) -> None:
    found = Directory(tmp_path, planned(1, 10, 900), planned(2, 1, 5), planned(3, 4, None))
    # Of a table in ranges there are rows for all but the last, whatever the statistics say.
    assert found.progress == ReadingProgress(3, 0, 15, 0, 0, 900 + 5 + 300, 0, None)
    found.read(2, 0, 7, at=0)
    # Long before: the run ended, and another one goes on.
    found.read(1, 0, 100, at=100)
    found.read(1, 1, 100, at=5000)
    (tmp_path / "000001" / "t000001" / "000000002-bb-0000.rows").write_bytes(b"of a range that is not whole")
    assert found.progress == ReadingProgress(3, 1, 15, 3, 207, 900 + 7 + 300, 30, None)
    found.read(1, 2, 100, at=5020)
    found.read(3, 0, 300, at=5040)
    assert found.progress.seconds_left == round((1207 - 607) * 40 / 400)
    assert str(found.progress) == (
        "607 of about 1207 rows are read (50 bytes), 1 of 3 tables, 5 of 15 ranges; about 60 s left"
    )
    for number in range(3, 10):
        found.read(1, number, 101, at=5050)
    for number in range(1, 4):
        found.read(3, number, 1, at=5050)
    assert found.progress == ReadingProgress(3, 3, 15, 15, 1317, 1317, 150, None)
