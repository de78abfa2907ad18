"""A small table on a real catalog against a list of rows: what is written is read, and a lost race is seen."""

import functools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from cdc_lakehouse.errors import ConcurrentRunError, StoredFormError
from tests.boundaries.small_tables import ALL, Lake, SmallTable
from tests.kit.kills import KillAtCommit
from tests.kit.lakes import TestLake, lake_config, rewrite

SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("size", pa.int64())])
ODD = [
    "", " ", "'", '"', "a'b", "\\", "\\'", "%", "_", "*", "None", "null", "true", "1", "it's; DROP TABLE x", "a\nb",
    "a\x00b", "é", "e\u0301", "订单/表 1/2026-06-01/CDC000001.json", "x" * 16, "x" * 16 + "y", "\U0010ffff" * 17, "A",
    "a",
]  # fmt: skip
NUMBERS = [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]


@dataclass(frozen=True)
class Row:
    name: str
    size: int | None = None


def small_table(directory: Path, schema: pa.Schema = SCHEMA) -> SmallTable:
    """As another run has it: with its own catalog and its own sight of the one table."""
    return SmallTable(Lake(lake_config(directory)), "f", "things", schema)


def rows(table: SmallTable, **scan: Any) -> list[Row]:
    return sorted((Row(**row) for row in table.read(**scan)), key=repr)


def test_schema_of_manifests_is_understood_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade of PyIceberg can make the cache useless, and nothing else would show it."""
    made: list[object] = []
    real = AvroSchemaConversion.avro_to_iceberg
    for number in range(4):
        small_table(tmp_path).write([Row(f"row {number}")], replacing={"name": ["row 0"]})
        if number == 0:
            monkeypatch.setattr(AvroSchemaConversion, "avro_to_iceberg", lambda *a: made.append(a) or real(*a))
    assert [row.name for row in rows(small_table(tmp_path))] == ["row 1", "row 2", "row 3"]
    assert len(made) <= 2, "the forms of a manifest and of a list of them"


def test_table_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    small_table(tmp_path).write([Row("a")])
    newer = small_table(tmp_path, pa.schema([*SCHEMA, pa.field("kind", pa.string())]))
    for use in (newer.read, newer.properties, lambda: newer.write([])):
        with pytest.raises(StoredFormError, match=r"lacks the columns \['kind'\].*: load the feed"):
            use()


# --- Upkeep ---


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


@pytest.mark.slow
def test_table_that_two_runs_write_often_stays_small_and_right(tmp_path: Path) -> None:
    """Each run sees the rows of when it first looked, and what it wrote since. One that is behind writes nothing."""
    chance, expected, commits, seen = random.Random(1), list[Row](), 0, dict[int, tuple[int, list[Row]]]()
    runs: list[Any] = [small_table(tmp_path) for _ in range(2)]
    unused = set[Path]()
    for _ in range(200):
        which = chance.choice([0, 0, 0, 1])
        if chance.random() < 0.15:
            runs[which], _ = small_table(tmp_path), seen.pop(which, None)
        run, (at, known) = runs[which], seen.setdefault(which, (commits, expected))
        texts = [*ODD, str(commits), "".join(chance.choices("".join(ODD), k=chance.randrange(20)))]
        names, size = {*chance.sample(texts, 4), texts[-1]}, chance.choice(NUMBERS)
        if chance.random() < 0.4:
            assert rows(run) == sorted(known, key=repr)
            assert rows(run, where={"name": names}) == [row for row in rows(run) if row.name in names]
            found = rows(run, where={"size": [size], "name": [*ODD]})
            assert found == [row for row in rows(run) if row.size == size and row.name in ODD]
            assert run.properties().get("n") == (str(at) if at else None)
            continue
        new = [Row(chance.choice(texts), chance.choice([size, None])) for _ in range(chance.randrange(4))]
        gone = chance.choices([None, {"name": names}, ALL], (30, 30, 1))[0]
        if at != commits:
            before = set(tmp_path.rglob("*.parquet"))
            with pytest.raises(ConcurrentRunError, match="things"):
                run.write(new, replacing=gone)
            unused |= set(tmp_path.rglob("*.parquet")) - before  # Maintenance removes them.
            runs[which], _ = small_table(tmp_path), seen.pop(which)
            continue
        commits += 1
        run.write(new, replacing=gone, properties={"n": str(commits)})
        left = known if gone is None else [row for row in known if gone and row.name not in names]
        seen[which] = commits, (expected := [*left, *new])
        assert rows(run) == sorted(expected, key=repr)
        iceberg = run.table
        assert len(list(iceberg.scan().plan_files())) <= 10 and len(iceberg.snapshots()) < 32
        assert len(iceberg.snapshots()[-1].manifests(iceberg.io)) <= 10
        assert local(iceberg.metadata_location).stat().st_size < 40_000
    assert commits > 50 and sum(path.is_file() for path in (tmp_path / "warehouse").rglob("*")) < 200
    # No file is left that no snapshot needs, and none is gone that one needs.
    now: Any = small_table(tmp_path)
    assert rows(now) == sorted(expected, key=repr)
    for snapshot in now.table.snapshots():
        now.table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    in_use = {local(path) for path in now.table.inspect.all_files().column("file_path").to_pylist()}
    assert in_use == set(tmp_path.rglob("*.parquet")) - unused
    now.write([Row("last")], replacing=ALL)
    assert len(now.table.snapshots()[-1].manifests(now.table.io)) <= 2 and rows(now) == [Row("last")]


def test_write_killed_at_its_commit_changes_nothing(lake: TestLake) -> None:
    """Where it would expire snapshots: their files are deleted after the commit."""

    def things() -> SmallTable:
        return SmallTable(Lake(lake.config.lake), "f", "things", SCHEMA)

    run = things()
    for number in range(30):
        run.write([Row(f"{number:02}")], replacing={"name": [f"{number - 1:02}"]})
    before = rows(run)
    with KillAtCommit(1)(lake) as killed:
        things().write([Row("new")])
    assert killed.happened and rows(things()) == rows(run) == before
    things().write([Row("next")])
    assert rows(things()) == [*before, Row("next")] and len(things().table.snapshots()) < 30  # type: ignore[union-attr]


def test_reader_continues_while_snapshots_are_written(tmp_path: Path) -> None:
    run, reader, slow = (small_table(tmp_path) for _ in range(3))
    run.write([Row("a")])
    assert reader.table is not None and slow.table is not None
    for number in range(12):
        run.write([Row(str(number))])
    assert rows(reader) == [Row("a")]
    for number in range(18):
        run.write([Row("a", number)], replacing=ALL)
    with pytest.raises(ConcurrentRunError, match="things"):
        slow.write([Row("slow")], replacing={"name": ["a"]})
    assert rows(small_table(tmp_path)) == [Row("a", 17)]


@pytest.mark.parametrize("rewritten", [True, False])
def test_lost_file_is_concurrent_run_only_after_rewrite(tmp_path: Path, *, rewritten: bool) -> None:
    table: Any = functools.partial(small_table, tmp_path)
    table().write([Row("a")])
    reader = table()
    (file,) = reader.table.inspect.all_files().column("file_path").to_pylist()
    if rewritten:
        rewrite(table().table)
    local(file).unlink()
    for use in (reader.read, lambda: reader.write([], replacing={"name": ["a"]})):
        with pytest.raises(ConcurrentRunError if rewritten else FileNotFoundError):
            use()
    if rewritten:
        assert rows(table()) == [Row("a")]
