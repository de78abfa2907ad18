"""The sample changefeed: what its files have of each date, through restarts and crashes too, and that its writer makes
the bytes that the simulator of TiCDC made. That a lake has the shop's own rows is in `tests/spark/test_dagster.py`."""

import datetime
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import ConfigurationError, SourceError
from tests.boundaries.change_log import TableName, utc_now
from tests.boundaries.sample import SampleRowChange, Shop, SinkWriter, Table, follow, state_path, write_history
from tests.boundaries.sources import LocalStore, list_sink, read_checkpoint, read_schema_file
from tests.kit.hand_sinks import layout_with

START = datetime.datetime(2026, 6, 1, 9, tzinfo=datetime.UTC)
END = datetime.datetime(2026, 6, 5, 18, tzinfo=datetime.UTC)
LATER = END + datetime.timedelta(hours=3)


def contents(sink: Path) -> dict[str, bytes]:
    return {path.relative_to(sink).as_posix(): path.read_bytes() for path in sink.rglob("*") if path.is_file()}


def messages(sink: Path) -> Iterator[dict[str, Any]]:
    for path in data_files(sink):
        yield from (json.loads(line) for line in path.read_bytes().split(b"\r\n")[:-1])


def data_files(sink: Path) -> list[Path]:
    """In the order in which they were written, within a table."""
    return sorted(sink.glob("*/*/*/*/CDC*.json"), key=lambda path: path.relative_to(sink).parts)


def write(sink: Path, transactions: int = 60, seed: int = 1) -> int:
    return write_history(sink, start=START, end=END, transactions=transactions, seed=seed)


def go_on(sink: Path, batches: int, after: int = 0) -> list[int]:
    """Each look at the clock is five seconds later; a pause lasts no time."""
    moments = (LATER + datetime.timedelta(seconds=5 * n) for n in itertools.count(after))
    return list(follow(sink, pause_seconds=5, batches=batches, clock=lambda: next(moments), sleep=lambda _: None))


def dates(sink: Path) -> Counter[str]:
    """How many files each date has."""
    return Counter(path.parent.name for path in data_files(sink))


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history that nobody changes."""
    directory = tmp_path_factory.mktemp("history") / "sink"
    write(directory, transactions=500)
    return directory


@pytest.mark.parametrize("days", [1, 3, 40])
@pytest.mark.parametrize("hours", [0.01, 3, 23.9])
def test_every_date_has_files(days: int, hours: float, tmp_path: Path) -> None:
    """Also where there are fewer transactions than dates, and where the last date has just begun."""
    start = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
    end = start + datetime.timedelta(days=days - 1, hours=hours)
    write_history(tmp_path / "sink", start=start, end=end, transactions=5)
    assert set(dates(tmp_path / "sink")) == {f"{start + datetime.timedelta(days=day):%Y-%m-%d}" for day in range(days)}


def test_everything_happens(sink: Path) -> None:
    types = Counter(json.loads(path.read_bytes())["Type"] for path in sink.glob("**/meta/schema_*.json"))
    assert types == {1: 1, 3: 4, 5: 2, 7: 1, 12: 2, 11: 1, 6: 1, 14: 1}
    seen = list(messages(sink))
    assert {message["type"] for message in seen} == {"INSERT", "UPDATE", "DELETE"}
    orders = [message["data"][0]["status"] for message in seen if message["table"] == "orders"]
    assert set(orders) == {"1", "2", "3", "4"}
    transactions: dict[int, set[tuple[str, str]]] = {}
    for message in seen:
        transactions.setdefault(message["_tidb"]["commitTs"], set()).add((message["table"], message["type"]))
    assert any(len({table for table, _ in parts}) > 2 for parts in transactions.values())
    assert any({("customers", "DELETE"), ("customers", "INSERT")} <= parts for parts in transactions.values())


def test_seed_decides_all_and_another_process_goes_on(tmp_path: Path) -> None:
    once, twice, other = (tmp_path / name for name in ("once", "twice", "other"))
    for sink, seed in ((once, 1), (twice, 1), (other, 2)):
        write(sink, seed=seed)
    assert go_on(once, 6) == go_on(twice, 2) + go_on(twice, 4, after=2)
    go_on(other, 6)
    assert contents(once) == contents(twice) != contents(other)
    names = {"once", "twice", "other"}
    assert {path.name for path in tmp_path.iterdir()} == names | {f"{name}.state.json" for name in names}
    assert sorted(path.name for path in once.iterdir()) == ["metadata", "shop"]


def test_a_shop_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc_lakehouse.sample.shop._ROWS_KEPT", 30)
    shop = Shop()
    shop.open(START)
    for _ in range(800):
        shop.trade(START)
    sizes = {table: len(rows) for table, rows in shop.content.items()}
    assert sizes["customers"] > 20 and max(sizes.values()) <= 31


def test_history_needs_an_empty_place_and_time_and_is_followed(tmp_path: Path) -> None:
    (tmp_path / "metadata").touch()
    with pytest.raises(SourceError, match="not empty"):
        write(tmp_path)
    state_path(tmp_path / "sink").touch()
    with pytest.raises(SourceError, match="left of an earlier sample"):
        write(tmp_path / "sink")
    with pytest.raises(ConfigurationError, match="not before"):
        write_history(Path("nowhere"), start=END, end=START, transactions=1)
    with pytest.raises(SourceError, match="write its history first"):
        next(follow(tmp_path, pause_seconds=1))


# --- The files: sinks of the simulator are read and written again ---

NAMES = ["date_dirs", "multi_schema_change", "pk_updates", "rename_chain", "types_enum_set", "types_text", "types_time"]
EVENING = datetime.datetime(2026, 6, 1, 23, 30, tzinfo=datetime.UTC)


def without_chance(content: bytes) -> bytes:
    """Go prints a map in any order: the types of `mysqlType` are put in order."""

    def ordered(match: re.Match[bytes]) -> bytes:
        return b'"mysqlType":{' + b",".join(sorted(match[1].split(b","))) + b"}"

    return re.sub(rb'"mysqlType":\{([^}]*)\}', ordered, content)


@pytest.mark.parametrize("name", NAMES)
def test_a_simulated_sink_is_written_byte_for_byte(name: str, data_sets: Path, tmp_path: Path) -> None:
    simulated = data_sets / "canal-json" / name / "tree"
    store = LocalStore(simulated)
    listing = list_sink(store, layout_with())
    writer = SinkWriter(tmp_path)
    tables: dict[tuple[str, str, int], Table] = {}
    for file in listing.schemas:
        change = read_schema_file(store, file)
        table = Table(TableName(change.database, change.table), change.commit_ts, change.columns)
        tables[change.database, change.table, change.commit_ts] = table
        writer.write_ddl(change, EVENING)
    for file in sorted(listing.data, key=lambda file: file.path):
        table = tables[file.database, file.table, file.version]
        lines = [json.loads(line) for line in (simulated / file.path).read_bytes().split(b"\r\n")[:-1]]
        for line in lines:
            old = None if line["old"] is None else line["old"][0]
            writer.write([SampleRowChange(line["type"], table, line["_tidb"]["commitTs"], line["data"][0], old)])
        writer.flush(datetime.datetime.fromtimestamp(lines[0]["ts"] / 1000, datetime.UTC))
    writer.checkpoint(read_checkpoint(store, utc_now()))

    written, expected = contents(tmp_path), contents(simulated)
    assert sorted(written) == sorted(expected)
    for path, content in expected.items():
        assert without_chance(written[path]) == without_chance(content), path
