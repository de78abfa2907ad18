"""`verify` against a MySQL: what differs is found, each time and to the value, and nothing else is. `--repair` puts it
right by events, and it stays so; in both format versions."""

import functools
import json
import random
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, PrimitiveType
from pymysql.converters import encoders

from cdc_lakehouse.changelog.ddl.statements import parse_type
from cdc_lakehouse.changelog.mysql_types import iceberg_type
from cdc_lakehouse.changelog.schema import SourceColumn, TableName, quoted
from cdc_lakehouse.config import VerifyConfig, load
from cdc_lakehouse.decoders.event_schema import EVENTS
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.current.tables import CurrentTables
from cdc_lakehouse.lake.files import live_files
from cdc_lakehouse.operate import verify
from cdc_lakehouse.operate.verify import TableResult, VerifyOptions, verify_feed
from cdc_lakehouse.sources.database import SourceDatabase
from tests.kit import hand_sinks
from tests.kit import scripted_lake as script
from tests.kit.case_files import Case, read_cases, text_of
from tests.kit.hand_sinks import CREATE, CSV, HandSink
from tests.kit.lakes import TestLake, run_all
from tests.kit.sessions import printed
from tests.pipeline import T0, lake_in
from tests.servers.mysql import MySqlServer, Session

_MERGED = pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")
pytestmark = [pytest.mark.spark, pytest.mark.server, _MERGED]

# --- Tables of a MySQL with the same rows in a lake, by casts of the server's text, not by what compares them ---

USER, PASSWORD = "verify", "a/b@c:%"
_TYPE: TypeAdapter[PrimitiveType] = TypeAdapter(PrimitiveType)

Row = dict[str, Any]


class VerifiedFeed(Session):
    """A feed of database `d` of a server, empty, which a user may read. `copy` brings its tables to the lake."""

    def __init__(self, server: MySqlServer, lake: TestLake, **connection: Any) -> None:
        super().__init__(server, **connection)
        self.lake, self.address = lake, f"127.0.0.1:{server.port}"
        self.run("DROP DATABASE IF EXISTS d", "CREATE DATABASE d CHARACTER SET utf8mb4", "USE d")
        self.run("SET SESSION sql_mode = '', SESSION time_zone = '+00:00'")
        self.run(f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}'")
        self.run(f"GRANT SELECT ON d.* TO {USER}@'%'")
        self.configure()
        self._cut: dict[str, tuple[int | None, int]] = {}
        self.checkpoint_ts = T0

    def columns(self, table: str) -> tuple[SourceColumn, ...]:
        found = self.run(
            "SELECT column_name, column_type, is_nullable = 'YES', column_key = 'PRI', extra "
            "FROM information_schema.columns WHERE table_schema = 'd' AND table_name = %s ORDER BY ordinal_position",
            values=[table],
        )
        columns = list[SourceColumn]()
        for name, declared, nullable, key, extra in found:
            type = parse_type(declared if isinstance(declared, str) else declared.decode())
            virtual = "configured" if "VIRTUAL" in extra else None
            columns.append(SourceColumn(name, type, bool(int(nullable)), bool(int(key)), virtual=virtual))
        return tuple(columns)

    def configure(self, **feed: Any) -> None:
        """The feed is verified against the server, with the password of the environment's SOURCE_PASSWORD."""
        self.lake.configure(**feed)
        document = json.loads(self.lake.config_path.read_text())
        document["feeds"][0]["verify"] = {"url": f"mysql://{USER}:${{SOURCE_PASSWORD}}@{self.address}"}
        self.lake.config_path.write_text(json.dumps(document))

    def call(self, line: str, password: str = PASSWORD) -> str:
        """What `verify` prints."""
        environment = {"CDC_LAKEHOUSE_CONFIG": str(self.lake.config_path), "SOURCE_PASSWORD": password}
        return printed(f"verify --pause 0 {line}", environment).replace(self.address, "<server>")

    def copy(self, table: str, change: Callable[[list[Row]], None] = lambda rows: None) -> None:
        """The table's rows into the lake, after `change`; and a cut that has them."""
        columns = self.columns(table)
        where = CurrentTables(self.lake.lake, self.lake.feed).identifier(TableName("d", table))
        self.checkpoint_ts += 10
        carried = [column for column in columns if column.virtual is None]
        # Dates and times are text where zero dates are.
        texts = _DATES if self.lake.feed.zero_dates_of("d", table) == "string" else frozenset[str]()
        types = ["string" if column.type.name in texts else iceberg_type(column.type) for column in carried]
        named = [*zip((column.name for column in carried), types, strict=True), ("_commit_ts", "long")]
        fields = [NestedField(n, name, _TYPE.validate_python(type)) for n, (name, type) in enumerate(named, 1)]
        arrow = schema_to_pyarrow(Schema(*fields), include_field_ids=False)
        shown = self.run(f"SELECT {', '.join(map(_read, carried))} FROM {quoted(table)}")
        cells = [
            pa.array([_castable(row[place], type) for row in shown]).cast(arrow.field(place).type).to_pylist()
            for place, type in enumerate(types)
        ]
        rows = [dict(zip(arrow.names, row, strict=False)) for row in zip(*cells, strict=True)]
        change(rows)
        found = self.lake.lake.load(where)
        if found is None:
            script.create(self.lake, table, at=self.checkpoint_ts, columns=columns)
            found = script.current_table(self.lake, table, arrow)
        # A table that has no row yet warns that nothing was deleted.
        (found.overwrite if found.current_snapshot() else found.append)(
            pa.Table.from_pylist([{"_commit_ts": T0, **row} for row in rows], arrow)
        )
        snapshot = self.lake.lake.existing(where).current_snapshot()
        self._cut[table] = snapshot and snapshot.snapshot_id, len(rows)
        self.publish()

    def events(self, table: str, events: Sequence[tuple[int, dict[str, str]]]) -> None:
        """Inserts (commit-ts, row) that are in `events`, whether a cut has them or not."""
        where = system_table(self.lake.name, "events")
        self.lake.lake.ensure_namespace(where.namespace)
        found = self.lake.lake.load(where) or self.lake.lake.catalog.create_table(where.parts, EVENTS)
        rows = [
            {"feed_date": "2026-06-01", "schema_name": "d", "table_name": table, "op": "I", "commit_ts": commit_ts,
             "after": json.dumps(row), "segment": "s", "line": n, "synthetic": False}
            for n, (commit_ts, row) in enumerate(events)
        ]  # fmt: skip
        found.append(pa.Table.from_pylist(rows, EVENTS))

    def publish(self, held: tuple[tuple[str, str], ...] = ()) -> None:
        script.publish(self.lake, self._cut, dict(held), at=self.checkpoint_ts)

    def verify(self, options: str = "") -> Row:
        """The first table of the result, by `verify --json`."""
        return json.loads(self.call(f"--json {options} | feeds.0.tables.0").splitlines()[0])

    @property
    def url(self) -> str:
        return f"mysql://{USER}:{PASSWORD}@{self.address}"


_DATES = frozenset({"date", "datetime", "timestamp"})


def _read(column: SourceColumn) -> str:
    # All digits of a FLOAT, and numbers without ZEROFILL.
    return quoted(column.name) + {"float": " + 0e0", "bit": " + 0"}.get(column.type.name, "")


def _castable(value: str | bytes | None, iceberg: str) -> str | bytes | None:
    """What the server sends as what Arrow reads: without dates that are none."""
    if isinstance(value, str) and iceberg.startswith(("date", "timestamp")):
        return None if "0000-" in value or "-00" in value[:10] else value + "Z" * (iceberg == "timestamptz")
    return value.decode("latin-1") if isinstance(value, bytes) and iceberg == "string" else value


# --- What differs is found ---


@pytest.fixture
def feed(mysql: MySqlServer, tmp_path: Path) -> VerifiedFeed:
    return VerifiedFeed(mysql, lake_in(tmp_path), conv=encoders)


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
    return sorted((each["kind"], *each["key"].values(), *each["columns"]) for each in table["differences"])


class Played:
    """A case of `cases/verify.txt`: `> SQL` in the source, `limit NAME NUMBER` of the product. `copy` brings its tables
    into the lake, where rows by their place then have other values (`0-2 {…}`), are `gone`, or are there `again {…}`.
    `event TABLE AT ROW` is behind the cut, `held ID WHY` in it. `verify TABLE …` compares, after each `then STEP` once
    more. `$ OPTIONS` calls the command, as in sessions; a repair is confirmed after all `then STEP`.

    Of `cases/repair.txt`: `log FILE UPTO CHANGE | …` (op, commit-ts, id, v) comes to a sink, and `run` reads it;
    `rebuild` makes the table anew from its events. `rows` are its own, `repairs` what was repaired, by whom, and the
    kinds of its deletes, `check` what the scheduled job finds."""

    def __init__(self, feed: VerifiedFeed, patch: pytest.MonkeyPatch) -> None:
        self._feed, self._patch, self._between = feed, patch, list[str]()
        self._sink = HandSink(feed.lake.sink)

    def step(self, line: str) -> list[str]:
        feed, (word, _, rest) = self._feed, line.partition(" ")
        match word:
            case ">":
                feed.run(rest)
            case "copy":
                for (table,) in feed.run("SHOW TABLES"):
                    feed.copy(table, functools.partial(changed, rest.split("; ") if rest else []))
            case "event":
                table, at, row = rest.split(" ", 2)
                feed.events(table, [(feed.checkpoint_ts + int(at), json.loads(row))])
            case "held":
                table, _, why = rest.partition(" ")
                feed.publish(held=((table, why),))
            case "limit":
                name, number = rest.split()
                self._patch.setattr(verify, name, int(number))
            case "then":
                self._between.append(rest)
            case "verify":
                between, self._between = self._between, []
                options = VerifyOptions(1 + len(between), 0, 100, lambda _: self.step(between.pop(0)) and None)
                done = verify_feed(feed.lake.run, VerifyConfig(url=feed.url), rest.split(), options)
                return [shown(table) for table in done.tables]
            case "$":
                between, self._between = self._between, []
                with self._patch.context() as patch:
                    if between:
                        patch.setattr("click.confirm", lambda *_, **__: [*map(self.step, between)] != [])
                    return [each for each in map(str.strip, feed.call(rest).splitlines()) if each]
            case "log":
                index, upto, changes = rest.split(" ", 2)
                self._sink.rows("d/t", 0, *map(logged, changes.split(" | ")), index=int(index))
                self._sink.checkpoint(int(upto))
            case "run":
                feed.lake.go_through()
            case "configure":
                feed.configure(tables=json.loads(rest))
            case "rebuild":
                assert not run_all(feed.lake.run(rebuild=feed.lake.names())).applied.held
            case "rows":
                return [" ".join(map(str, row)) for row in feed.lake.rows("t")]
            case "repairs":
                table = feed.lake.tables()["d", "t"]
                kinds = {each.place is None for file in live_files(table) for each in file.deletes}
                deletes = " and ".join("positions" if each else "vectors" for each in sorted(kinds, reverse=True))
                rows = [each for each in feed.lake.machinery("segments") if each["kind"] == "repair"]
                rows.sort(key=lambda each: each["segment"])
                names = ("table", "state", "inserts", "updates", "deletes")
                assert all("@" in each["requested_by"] for each in rows)
                found = [" ".join(f"{each[name]}" for name in names) for each in rows]
                return [*found, f"format version {table.format_version}: {deletes or 'nothing'} deleted"]
            case "check":
                definitions = build_definitions(load(feed.lake.config_path))
                done = definitions.resolve_job_def(f"{feed.lake.name}_verify").execute_in_process()
                (found,) = done.get_asset_check_evaluations()
                numbers = {
                    name: found.metadata[name].value
                    for name in ("differing_keys", "differing")
                    if name in found.metadata
                }
                return [f"{'passes' if found.passed else 'fails'}: {numbers}"]
            case _:
                assert not line, line
        return []


def changed(changes: Sequence[str], rows: list[Row]) -> None:
    for first, last, how in [re.fullmatch(r"(\d+)(?:-(\d+))? (.*)", each).groups() for each in changes]:
        places = slice(int(first), int(last or first) + 1)
        if how == "gone":
            del rows[places]
        elif how.startswith("again "):
            rows += [{**row, **json.loads(how.removeprefix("again "))} for row in rows[places]]
        else:
            for row in rows[places]:
                row |= json.loads(how)


def shown(table: TableResult) -> str:
    told = sorted(" ".join([each.kind, *each.key.values(), *each.columns]) for each in table.differences)
    counts = {"missing": table.missing, "extra": table.extra, "different": table.different}
    assert Counter(each.kind for each in table.differences) == Counter(counts)
    told += [f"{table.changing} changing"] * bool(table.changing) + [table.reason or ""] * bool(table.reason)
    told += ["in many buckets"] * (3 < table.different_buckets < table.buckets)
    told += [f"{column} is left out: {why}" for column, why in table.left_out.items()]
    return f"{table.name} {table.result} of {table.source_rows} rows: {' | '.join(told)}".removesuffix(": ")


@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("cases") / "verify.txt"), ids=str)
def test_verify_tells_what_differs(
    case: Case, mysql: MySqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: bool
) -> None:
    played = Played(VerifiedFeed(mysql, lake_in(tmp_path, **case.settings), conv=encoders), monkeypatch)
    case.compare([text_of(line) for step in case.own for line in played.step(step)], update=update)


@pytest.mark.in_turn
def test_changed_value_of_each_type_is_found(feed: VerifiedFeed) -> None:
    """Of rows that are equal; then each is not even opened: the checksums are the same."""
    columns = ", ".join(f"`{name}` {type}" for name, type in TYPES.items())
    feed.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
    rows = [ROWS[0]] * len(CHANGES) + ROWS
    for number, row in enumerate(rows):
        names = ", ".join(f"`{name}`" for name in ("id", *row))
        feed.run(f"INSERT INTO t ({names}) VALUES ({', '.join([str(number), *row.values()])})")
    feed.copy("t")
    table = feed.verify()
    assert (table["result"], table["source_rows"], table["lake_rows"]) == ("equal", len(rows), len(rows))
    assert (named(table), table["different_buckets"], table["left_out"]) == ([], 0, {})
    for number, (name, value) in enumerate(CHANGES.items()):
        feed.run(f"UPDATE t SET `{name}` = {value} WHERE id = {number}")
    table = feed.verify("--rows 100")
    assert named(table) == sorted(("different", str(n), name) for n, name in enumerate(CHANGES))
    assert (table["different"], table["missing"], table["extra"], table["changing"]) == (len(CHANGES), 0, 0, 0)


@pytest.mark.in_turn
def test_floats_are_compared_to_the_last_bit(feed: VerifiedFeed) -> None:
    draw = random.Random(7)
    doubles = [0.0, 1.0, -1.0, 0.1, 1e15, 1e16, 123456789012345678.0, 1e22, 1e23, 9007199254740993.0, 2.5e-7, 1e-5]
    while len(doubles) < 3000:
        (value,) = struct.unpack("<d", draw.randbytes(8))
        doubles += [value] if value == value and abs(value) < 1.7e308 else []
    doubles += [draw.randint(-(10**6), 10**6) / 10 ** draw.randint(0, 6) for _ in range(1000)]
    feed.run("CREATE TABLE t (id INT PRIMARY KEY, f FLOAT, d DOUBLE)")
    rows = [(n, value if abs(value) < 3e38 else None, value) for n, value in enumerate(doubles)]
    feed.cursor.executemany("INSERT INTO t VALUES (%s, %s, %s)", rows)
    feed.copy("t")
    table = feed.verify()
    assert table["different_buckets"] == 0
    feed.copy("t", by_id(3, d=0.1 + 2**-56))
    table = feed.verify()
    assert named(table) == [("different", "3", "d")]


def test_session_only_reads_and_shows_no_password(feed: VerifiedFeed) -> None:
    feed.run("CREATE TABLE t (id INT PRIMARY KEY)")
    feed.copy("t")
    said = feed.call("", password="wrong-one")
    assert "Access denied" in said and "exit code 2" in said and "wrong-one" not in said + repr(feed.lake.config)
    with SourceDatabase(VerifyConfig(url=feed.url)) as database:
        with pytest.raises(SourceError, match=r"denied.*: the user needs SELECT"):
            database.all("INSERT INTO d.t VALUES (1)")
        feed.run(f"GRANT INSERT ON d.* TO {USER}@'%'")
    try:
        with SourceDatabase(VerifyConfig(url=feed.url)) as database, pytest.raises(SourceError, match="READ ONLY"):
            database.all("INSERT INTO d.t VALUES (1)")
    finally:
        feed.run(f"REVOKE INSERT ON d.* FROM {USER}@'%'")


# --- Repairs ---

TABLE = (
    "CREATE TABLE t (id BIGINT, at DATETIME(3), v INT, s VARCHAR(50), ts TIMESTAMP NULL, b VARBINARY(10), "
    "e ENUM('a','b'), d DECIMAL(10,2), PRIMARY KEY (id, at))"
)
# The csv has TIMESTAMP in the feed's zone, and bytes in base64.
LOGGED = '"2026-01-01 12:00:00.250"', "{v}", '"s{id}"', '"2026-01-01 20:00:00"', '"AP8="', '"b"', "1.50"


def logged(change: str) -> str:
    op, at, id, v = change.split()
    return hand_sinks.row(op, "t", int(at), id, *(text.format(id=id, v=v) for text in LOGGED))


@pytest.mark.in_turn
@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("cases") / "repair.txt"), ids=str)
def test_repaired_rows_are_the_sources_and_stay_so(
    case: Case, mysql: MySqlServer, new_lake: Callable[..., TestLake], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, update: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SOURCE_PASSWORD", PASSWORD)
    settings = {"settings": {"d.t": {"format_version": 2}}}
    feed = VerifiedFeed(mysql, new_lake(source={**CSV, "time_zone": "Asia/Shanghai"}, tables=settings))
    feed.run(TABLE)
    HandSink(feed.lake.sink).schema("t", 0, *feed.columns("t"), action=CREATE, query=TABLE)
    played = Played(feed, monkeypatch)
    case.compare([text_of(line) for step in case.own for line in played.step(step)], update=update)
