"""The archive: what the source expires can still be decoded again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_lakehouse.errors import SourceError
from tests.kit.data_sets import apply_stage
from tests.kit.lakes import TestLake, run_all
from tests.kit.truth import Truth

pytestmark = pytest.mark.spark


def dates(lake: TestLake) -> frozenset[str]:
    return frozenset(row["feed_date"] for row in lake.machinery("segments"))


def archived(lake: TestLake) -> list[Path]:
    root = Path(lake.config.lake.warehouse.removeprefix("file://"))
    return sorted(path for path in (root / f"cdc_{lake.name}" / "archive").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "name", ["canal-json/date_dirs", "csv/random_2", pytest.param("canal-json/odd_names", marks=pytest.mark.long)]
)
def test_a_date_that_expired_is_decoded_again_from_the_archive(
    name: str, data_sets: Path, new_lake: Callable[..., TestLake]
) -> None:
    truth = Truth(data_sets / name)
    lake = new_lake(source={**truth.source, "archive": True})
    last = len(truth.stages) - 1
    apply_stage(truth.dataset, last, lake.sink)
    run_all(lake.run())
    lake.check(truth.tables(last))
    files = archived(lake)
    assert len(files) == len(lake.machinery("segments"))

    for place in lake.sink.rglob("CDC*.*"):
        place.unlink()
    run_all(lake.run(dates=dates(lake)))
    lake.check(truth.tables(last))
    assert lake.events_by_segment() == truth.events_by_segment(last)
    assert archived(lake) == files

    files[0].unlink()
    before = lake.metadata()
    with pytest.raises(SourceError, match="cannot be decoded again"):
        run_all(lake.run(dates=dates(lake)))
    assert lake.metadata() == before


def test_a_file_that_changed_is_archived_beside_what_it_was(data_sets: Path, new_lake: Callable[..., TestLake]) -> None:
    truth = Truth(data_sets / "canal-json/random_1")
    lake = new_lake(source={**truth.source, "archive": True})
    apply_stage(truth.dataset, len(truth.stages) - 1, lake.sink)
    run_all(lake.run())
    files = archived(lake)
    place = max(lake.sink.rglob("CDC*.json"))
    content = place.read_bytes()
    place.write_bytes(content + content.splitlines(keepends=True)[-1])
    run_all(lake.run())
    assert set(archived(lake)) > set(files) and len(archived(lake)) == len(files) + 1
    lake.check(truth.tables(len(truth.stages) - 1))


def test_a_copy_that_a_crash_cut_short_is_made_again(data_sets: Path, new_lake: Callable[..., TestLake]) -> None:
    truth = Truth(data_sets / "canal-json/random_2")
    lake = new_lake(source={**truth.source, "archive": True})
    apply_stage(truth.dataset, 0, lake.sink)
    run_all(lake.run())
    cut = archived(lake)[0]
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    run_all(lake.run(dates=dates(lake)))
    assert cut.read_bytes() == whole
    shutil.rmtree(lake.sink)
    apply_stage(truth.dataset, 1, lake.sink)
    run_all(lake.run())
    lake.check(truth.tables(1))
