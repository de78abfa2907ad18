"""A small table on a real catalog against a list of rows: what is written is read, and a lost race is seen."""

import functools
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from cdc_lakehouse.errors import ConcurrentRunError, StoredFormError
from tests.boundaries.small_tables import ALL, Lake, SmallTable
from tests.kit.kills import KillAtCommit
from tests.kit.lakes import TestLake, lake_config
from tests.kit.other_writer import rewrite

SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("size", pa.int64())])
ODD = [
    "", " ", "'", '"', "a'b", "\\", "\\'", "%", "_", "*", "None", "null", "true", "1", "it's; DROP TABLE x", "a\nb",
    "a\x00b", "é", "e\u0301", "订单/表 1/2026-06-01/CDC000001.json", "x" * 16, "x" * 16 + "y", "\U0010ffff" * 17, "A",
    "a",
]  # fmt: skip
NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1])
SIZES = st.none() | NUMBERS


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


class Runs(RuleBasedStateMachine):
    """Two runs at a time over one table. Each sees the rows of when it first looked, and what it wrote since."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.rows: list[Row] = []
        self.commits = 0
        self.seen: dict[int, tuple[int, list[Row]]] = {}

    @initialize()
    def open(self) -> None:
        self.runs = [small_table(Path(self.directory.name)) for _ in range(2)]

    @rule(number=st.integers(0, 1))
    def restart(self, number: int) -> None:
        self.runs[number] = small_table(Path(self.directory.name))
        self.seen.pop(number, None)

    @rule(number=st.integers(0, 1), names=st.sets(st.sampled_from(ODD) | st.text(max_size=20)), size=NUMBERS)
    def read(self, number: int, names: set[str], size: int) -> None:
        _, known = self.seen.setdefault(number, (self.commits, self.rows))
        run = self.runs[number]
        assert rows(run) == sorted(known, key=repr)
        if names:
            assert rows(run, where={"name": names}) == [row for row in rows(run) if row.name in names]
        found = rows(run, where={"size": [size], "name": [*ODD]})
        assert found == [row for row in rows(run) if row.size == size and row.name in ODD]
        assert run.properties().get("n") == (str(self.seen[number][0]) if self.seen[number][0] else None)

    @rule(
        number=st.integers(0, 1),
        new=st.lists(st.builds(Row, st.sampled_from(ODD), SIZES), max_size=4),
        replaced=st.none() | st.just(ODD) | st.sets(st.sampled_from(ODD), min_size=1),
    )
    def write(self, number: int, new: list[Row], replaced: set[str] | list[str] | None) -> None:
        seen, known = self.seen.get(number, (self.commits, self.rows))
        gone = None if replaced is None else ALL if replaced is ODD else {"name": set(replaced)}
        run = self.runs[number]
        if seen != self.commits:
            with pytest.raises(ConcurrentRunError, match="things"):
                run.write(new, replacing=gone)
            self.restart(number)
            return
        run.write(new, replacing=gone, properties={"n": str(self.commits + 1)})
        self.commits += 1
        self.rows = [*(row for row in known if row.name not in (replaced or ())), *new]
        self.seen[number] = (self.commits, self.rows)

    def teardown(self) -> None:
        assert rows(small_table(Path(self.directory.name))) == sorted(self.rows, key=repr)
        self.directory.cleanup()


class TestSmallTable(Runs.TestCase):
    settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
    pytestmark = pytest.mark.slow


def test_table_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    small_table(tmp_path).write([Row("a")])
    newer = small_table(tmp_path, pa.schema([*SCHEMA, pa.field("kind", pa.string())]))
    for use in (newer.read, newer.properties, lambda: newer.write([])):
        with pytest.raises(StoredFormError, match=r"lacks the columns \['kind'\].*: load the feed"):
            use()


# --- Upkeep ---


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def test_table_written_often_stays_small_and_right(tmp_path: Path) -> None:
    table: Any = functools.partial(small_table, tmp_path)
    chance, expected, run = random.Random(1), dict[str, int](), table()
    for number in range(60):
        if chance.random() < 0.2:
            run = table()
        written = {str(chance.randrange(200)): number for _ in range(chance.randrange(4))}
        known = written.keys() & expected.keys()
        if number == 40:
            expected, known = {}, None
        replacing = ALL if known is None else {"name": known} if known else None
        run.write([Row(*each) for each in written.items()], replacing=replacing, properties={"n": str(number)})
        expected |= written
        assert rows(run) == sorted((Row(*each) for each in expected.items()), key=repr)
        assert run.properties()["n"] == str(number)
        iceberg = run.table
        assert len(list(iceberg.scan().plan_files())) <= 10
        assert len(iceberg.snapshots()) < 32
        assert len(iceberg.snapshots()[-1].manifests(iceberg.io)) <= 10
        assert local(iceberg.metadata_location).stat().st_size < 40_000
    assert sum(path.is_file() for path in (tmp_path / "warehouse").rglob("*")) < 200
    # No file is left that no snapshot needs, and none is gone that one needs.
    iceberg = table().table
    for snapshot in iceberg.snapshots():
        iceberg.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    in_use = {local(path) for path in iceberg.inspect.all_files().column("file_path").to_pylist()}
    assert in_use == set((tmp_path / "warehouse").rglob("*.parquet"))
    table().write([Row("last")], replacing=ALL)
    now = table().table
    assert len(now.snapshots()[-1].manifests(now.io)) <= 2 and rows(table()) == [Row("last")]


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
