"""`verify` against a MySQL: what differs is found, each time and to the value, and nothing else is."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import VerifyConfig
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.operate import verify
from cdc_lakehouse.operate.verify import TableResult, VerifyOptions, verify_feed
from cdc_lakehouse.sources.database.client import SourceDatabase
from tests.servers.mysql import MySqlServer
from tests.servers.verified import USER, Row, VerifiedFeed

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:Merge on read is not yet supported"),
]


@pytest.fixture
def feed(mysql: MySqlServer, tmp_path: Path) -> VerifiedFeed:
    return VerifiedFeed(mysql, tmp_path)


# Of each column its type, its values in six rows (SQL; none is NULL), and the first one after a small change.
TYPES: dict[str, str] = {}
ROWS: list[dict[str, str]] = [{} for _ in range(6)]
CHANGES: dict[str, str] = {}
for line in Path(__file__).with_name("verified_types.txt").read_text(encoding="utf-8").splitlines()[1:]:
    column, _, values = line.partition(" = ")
    name, _, TYPES[name] = column.partition(" ")
    values, _, CHANGES[name] = values.partition(" => ")
    for row, value in zip(ROWS, values.split(" | "), strict=False):
        row |= {} if value == "-" else {name: value}


def by_id(number: int, **values: Any) -> Callable[[list[Row]], None]:
    def change(rows: list[Row]) -> None:
        next(row for row in rows if row["id"] == number).update(values)

    return change


def named(table: Row) -> list[tuple[Any, ...]]:
    """Kind, key and columns of each difference."""
    return sorted((each["kind"], *each["key"].values(), *each["columns"]) for each in table["differences"])


@pytest.mark.in_turn
def test_changed_value_of_each_type_is_found(feed: VerifiedFeed) -> None:
    """Of rows that are equal; then each is not even opened: the checksums are the same."""
    columns = ", ".join(f"`{name}` {type}" for name, type in TYPES.items())
    feed.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
    rows = [ROWS[0]] * len(CHANGES) + ROWS
    for number, row in enumerate(rows):
        names = ", ".join(f"`{name}`" for name in ("id", *row))
        feed.execute(f"INSERT INTO t ({names}) VALUES ({', '.join([str(number), *row.values()])})")
    feed.copy("t")
    (table,) = feed.verify(code=0)
    assert (table["result"], table["source_rows"], table["lake_rows"]) == ("equal", len(rows), len(rows))
    assert (named(table), table["different_buckets"], table["left_out"]) == ([], 0, {})
    for number, (name, value) in enumerate(CHANGES.items()):
        feed.execute(f"UPDATE t SET `{name}` = {value} WHERE id = {number}")
    (table,) = feed.verify("--rows", "100", code=1)
    assert named(table) == sorted(("different", str(n), name) for n, name in enumerate(CHANGES))
    assert (table["different"], table["missing"], table["extra"], table["changing"]) == (len(CHANGES), 0, 0, 0)


# What happens in the source alone, each to a row of its own (1, 2, ... of three columns), and what is found then.
SMALL = """
v = 'b' => v
v = NULL => v
v = '' => v
v = 'a ' => v
v = 'A' => v
v = 'á' => v
t = '2020-01-01 00:00:00.000002' => t
v = 'b', n = NULL => v n
j = '{"a": 2}' => j
j = '{"b": [1, "x y"], "a": 1.0}' =>
n = 1.0 =>
""".strip().splitlines()


def test_each_kind_of_difference_is_found(feed: VerifiedFeed) -> None:
    """Numbers are compared, and not how they are written; a row that is there twice, or that one side alone has."""
    feed.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), n DECIMAL(10,2), t DATETIME(6), j JSON, b VARBINARY(4))"
    )
    for id in range(1, 31):
        row = """(%s, 'a', 1, '2020-01-01 00:00:00.000001', '{"a": 1, "b": [1.0, "x y"]}', x'00ff')"""
        feed.execute(f"INSERT INTO t VALUES {row}", values=[id])
    feed.execute("UPDATE t SET v = NULL WHERE id = 28", "UPDATE t SET v = '' WHERE id = 29")

    def change(rows: list[Row]) -> None:
        rows += [rows[26], {**rows[25], "v": "other"}]

    feed.copy("t", change)
    found = [("extra", "26"), ("extra", "27"), ("extra", "30"), ("missing", "99")]
    for id, (statement, _, columns) in enumerate((line.partition(" =>") for line in SMALL), 1):
        feed.execute(f"UPDATE t SET {statement} WHERE id = {id}")
        found += [("different", str(id), *columns.split())] if columns.strip() else []
    feed.execute("UPDATE t SET v = '' WHERE id = 28", "UPDATE t SET v = NULL WHERE id = 29")
    feed.execute("DELETE FROM t WHERE id = 30", "INSERT INTO t (id) VALUES (99)")
    found += [("different", "28", "v"), ("different", "29", "v")]
    (table,) = feed.verify("--rows", "100", code=1)
    assert (table["result"], named(table)) == ("different", sorted(found))
    (difference,) = [each for each in table["differences"] if each["key"] == {"id": "1"}]
    assert (difference["source"]["v"], difference["lake"]["v"], difference["lake"]["b"]) == ("b", "a", "00ff")
    text = feed.call("--rows", "100").stdout
    assert "id='1': v differs" in text and "source: v='b'" in text and "lake:   v='a'" in text
    feed.execute("DELETE FROM t")
    assert feed.verify("--rows", "100", code=1)[0]["extra"] == 30


@pytest.mark.in_turn
def test_floats_are_compared_to_the_last_bit(feed: VerifiedFeed) -> None:
    draw = random.Random(7)
    doubles = [0.0, 1.0, -1.0, 0.1, 1e15, 1e16, 123456789012345678.0, 1e22, 1e23, 9007199254740993.0, 2.5e-7, 1e-5]
    while len(doubles) < 3000:
        (value,) = struct.unpack("<d", draw.randbytes(8))
        doubles += [value] if value == value and abs(value) < 1.7e308 else []
    doubles += [draw.randint(-(10**6), 10**6) / 10 ** draw.randint(0, 6) for _ in range(1000)]
    feed.execute("CREATE TABLE t (id INT PRIMARY KEY, f FLOAT, d DOUBLE)")
    rows = [(n, value if abs(value) < 3e38 else None, value) for n, value in enumerate(doubles)]
    with feed.connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s)", rows)
    feed.copy("t")
    (table,) = feed.verify(code=0)
    assert table["different_buckets"] == 0
    feed.copy("t", by_id(3, d=0.1 + 2**-56))
    (table,) = feed.verify(code=1)
    assert named(table) == [("different", "3", "d")]


def test_odd_names_and_keys_are_compared(feed: VerifiedFeed) -> None:
    table = "o'dd.`t%s\"x"
    quoted = table.replace("`", "``")
    feed.execute(
        f"CREATE TABLE `{quoted}` (`a``b.c` VARCHAR(20), `%d \"'` INT, `tIme` DATETIME(3), `val\\ue` TEXT, "
        "PRIMARY KEY (`tIme`, `a``b.c`, `%d \"'`))",
    )
    for key in [
        ("it's", 1, "2020-01-01"),
        ("it's,1", 1, "2020-01-01"),
        ("N", 11, "2020-01-01 00:00:00.5"),
        ("", 0, "1999-01-01"),
    ]:
        feed.execute(f"INSERT INTO `{quoted.replace('%', '%%')}` VALUES (%s, %s, %s, 'x')", values=list(key))
    feed.copy(table)
    assert feed.verify(code=0)[0]["source_rows"] == 4
    feed.copy(table, lambda rows: rows[1].update({"val\\ue": "y"}))
    (found,) = feed.verify(code=1)
    (difference,) = found["differences"]
    assert (difference["kind"], difference["columns"]) == ("different", ["val\\ue"])
    assert set(difference["key"]) == {"a`b.c", "%d \"'", "tIme"}


def test_zero_dates_are_compared_by_policy(mysql: MySqlServer, tmp_path: Path) -> None:
    zone = {"time_zone": "Asia/Shanghai"}
    feed = VerifiedFeed(mysql, tmp_path, policy={"zero_dates": "string"}, source=zone)
    feed.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, d DATE, dt DATETIME(2), ts TIMESTAMP NULL)",
        "INSERT INTO t VALUES (1, '0000-00-00', '2020-00-01 10:00:00.25', 0)",
        "INSERT INTO t VALUES (2, '2020-01-01', '2020-01-01', '2020-01-01')",
    )
    # Text of moments is that of the log, in its time zone.
    local = by_id(2, ts="2020-01-01 08:00:00")
    feed.copy("t", local)
    feed.verify(code=0)
    feed.execute("DELETE FROM t WHERE id = 2")
    feed.copy("t", by_id(1, d="0000-00-01"))
    assert named(feed.verify(code=1)[0]) == [("different", "1", "d")]


def test_incomparable_columns_and_held_tables_are_named(feed: VerifiedFeed) -> None:
    feed.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, v INT AS (a + 1) VIRTUAL, g POINT)",
        "INSERT INTO t (id, a, g) VALUES (1, 2, POINT(1, 2))",
    )
    feed.copy("t", by_id(1, g="?"))
    (table,) = feed.verify(code=0)
    assert set(table["left_out"]) == {"v", "g"}
    assert "column g is not compared: type point" in feed.call().stdout
    feed.publish(held=(("d.x#1", "it is bad"),))
    assert [table["result"] for table in feed.verify(code=2)] == ["equal"]
    assert "d.x#1: it is bad" in feed.call().stdout
    feed.verify("--table", "d.t", code=0)


def test_unchecked_table_is_reported_with_code_2(feed: VerifiedFeed) -> None:
    feed.execute(
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "CREATE TABLE u (id INT PRIMARY KEY)",
        "CREATE TABLE v (id INT PRIMARY KEY, a INT)",
    )
    for name in "tuv":
        feed.copy(name)
    feed.execute("DROP TABLE t", "ALTER TABLE v ADD b INT, DROP a")
    t, u, v = feed.verify(code=2)
    assert (t["result"], u["result"], v["result"]) == ("unchecked", "equal", "unchecked")
    assert "no such table" in t["reason"] and "the lake alone has a; the source alone has b" in v["reason"]
    (only,) = feed.verify("--table", "d.u", code=0)
    assert only["table"] == "u"
    assert feed.call("--table", "d.none").exit_code == 2
    feed.execute("INSERT INTO u VALUES (1)")
    assert [table["result"] for table in feed.verify(code=1)] == ["unchecked", "different", "unchecked"]


def test_session_only_reads_and_shows_no_password(feed: VerifiedFeed) -> None:
    feed.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    feed.copy("t")
    result = feed.call(password="wrong-one")
    assert result.exit_code == 2
    assert "Access denied" in result.output and "wrong-one" not in result.output + repr(feed.lake.config)
    with SourceDatabase(VerifyConfig(url=feed.url)) as database:
        with pytest.raises(SourceError, match=r"denied.*: the user needs SELECT"):
            database.all("INSERT INTO d.t VALUES (1)")
        feed.execute(f"GRANT INSERT ON d.* TO {USER}@'%'")
    try:
        with SourceDatabase(VerifyConfig(url=feed.url)) as database, pytest.raises(SourceError, match="READ ONLY"):
            database.all("INSERT INTO d.t VALUES (1)")
    finally:
        feed.execute(f"REVOKE INSERT ON d.* FROM {USER}@'%'")


def test_counts_are_whole_beyond_what_is_shown(feed: VerifiedFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_ROWS_OF_A_BUCKET", 5)
    monkeypatch.setattr(verify, "_BUCKETS_OF_A_STATEMENT", 3)
    feed.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with feed.connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(n, n) for n in range(200)])

    def change(rows: list[Row]) -> None:
        for row in rows[:15]:
            row["v"] = -1
        del rows[20:25]

    feed.copy("t", change)
    (table,) = feed.verify("--rows", "4", code=1)
    assert (table["different"], table["missing"], table["extra"], len(table["differences"])) == (15, 5, 0, 4)
    assert 3 < table["different_buckets"] < table["buckets"]
    assert "and 16 more keys" in feed.call("--rows", "4").stdout
    monkeypatch.setattr(verify, "MOST_KEYS", 10)
    (table,) = feed.verify("--rows", "4", code=1)
    assert (table["different"], table["missing"], len(table["differences"])) == (15, 5, 4)


def verified(feed: VerifiedFeed, *between: Callable[[], None]) -> TableResult:
    """The result of table `t`, with something done before each further attempt."""
    steps = iter(between)
    options = VerifyOptions(1 + len(between), 0, sleep=lambda _: next(steps)())
    (table,) = verify_feed(feed.lake.run, VerifyConfig(url=feed.url), (), options).tables
    return table


def test_key_that_is_equal_in_one_attempt_is_equal(feed: VerifiedFeed) -> None:
    feed.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    feed.copy("t")
    feed.execute("UPDATE t SET v = 10 WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (4, 4)")
    found = verified(feed, lambda: None, lambda: feed.copy("t"))
    assert (found.result, found.differing_keys, found.changing) == ("equal", 0, 0)
    # What was wrong from the start stays so.
    feed.copy("t", by_id(3, v=-3))
    feed.execute("UPDATE t SET v = 11 WHERE id = 1")
    found = verified(feed, lambda: feed.copy("t", by_id(3, v=-3)))
    assert (found.result, [each.key for each in found.differences], found.changing) == ("different", [{"id": "3"}], 0)
    # A key that differs in another way each time is changing.
    feed.execute("UPDATE t SET v = v + 1 WHERE id = 1")
    found = verified(feed, *[lambda: feed.execute("UPDATE t SET v = v + 1 WHERE id = 1") and None] * 2)
    assert ([each.key for each in found.differences], found.changing) == ([{"id": "3"}], 1)


def test_key_with_events_above_the_cut_is_changing(feed: VerifiedFeed) -> None:
    feed.execute(
        "CREATE TABLE t (at DATETIME(3), id INT, v INT, PRIMARY KEY (id, at))",
        "INSERT INTO t VALUES ('2020-01-01', 1, 1), ('2020-01-01 00:00:00.5', 2, 2), ('2020-01-01', 3, 3)",
    )
    feed.copy("t", lambda rows: [row.update(v=0) for row in rows] and None)
    first, second = {"id": "1", "at": "2020-01-01 00:00:00.000"}, {"id": "2", "at": "2020-01-01 00:00:00.500"}
    feed.events("t", [(feed.checkpoint_ts, first), (feed.checkpoint_ts + 1, second)])
    feed.events("other", [(feed.checkpoint_ts + 1, first)])
    found = verified(feed, lambda: None)
    keys = [each.key["id"] for each in found.differences]
    assert (sorted(keys), found.different, found.changing, found.result) == (["1", "3"], 2, 1, "different")
    # With nothing else wrong, there is no difference.
    feed.copy("t", lambda rows: rows[1].update(v=0))
    feed.events("t", [(feed.checkpoint_ts + 1, second)])
    found = verified(feed)
    assert (found.result, found.differing_keys, found.changing) == ("equal", 0, 1)
