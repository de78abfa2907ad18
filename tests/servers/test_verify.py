"""`verify` against a MySQL: what differs is found, each time and to the value, and nothing else is. `--repair` puts it
right by events, and it stays so; in both format versions."""

import json
import re
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
from cdc_lakehouse.operate.verify import TableResult, verify_feed
from cdc_lakehouse.sources.database import SourceDatabase
from tests.kit import hand_sinks
from tests.kit import scripted_lake as script
from tests.kit.case_files import Case, read_cases, text_of
from tests.kit.hand_sinks import CREATE, CSV, HandSink
from tests.kit.lakes import TestLake
from tests.kit.sessions import printed
from tests.pipeline import T0, lake_in
from tests.servers.mysql import MySqlServer, Session

_MERGED = pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")
pytestmark = [pytest.mark.spark, pytest.mark.server, _MERGED]

# --- Tables of a MySQL with the same rows in a lake, by casts of the server's text, not by what compares them ---

USER, PASSWORD = "verify", "a/b@c:%"
_TYPE: TypeAdapter[PrimitiveType] = TypeAdapter(PrimitiveType)
# Of each column its definition, its values in six rows, and the first one after a small change.
TYPES = [
    re.fullmatch("(.*?) = (.*) => (.*)", line).groups()
    for line in Path(__file__).with_name("verified_types.txt").read_text(encoding="utf-8").splitlines()[1:]
]
# The csv has TIMESTAMP in the feed's zone, and bytes in base64.
REPAIR = ("table", "state", "inserts", "updates", "deletes")
LOGGED = '"2026-01-01 12:00:00.250"', "{v}", '"s{id}"', '"2026-01-01 20:00:00"', '"AP8="', '"b"', "1.50"


class VerifiedFeed(Session):
    """A feed of database `d` of a server, empty, which a user may read; and the steps of a case.

    Of `cases/verify.txt`: `> SQL` in the source, `limit NAME NUMBER` of the product. `types` are the columns of
    `verified_types.txt`, each with its first value in a row of its own, which is then `changed`. `copy` brings tables
    into the lake, where rows by their place then have other values (`0-2 {…}`), are `gone`, or are there `again {…}`.
    `event TABLE AT ROW` is behind the cut, `held ID WHY` in it. `verify TABLE …` compares, after each `then STEP` once
    more. `$ OPTIONS` calls the command, as in sessions; a repair is confirmed after all `then STEP`.

    Of `cases/repair.txt`: `log FILE UPTO CHANGE | …` (op, commit-ts, id, v) comes to a sink, and `run` reads it;
    `rebuild` makes the table anew from its events. `rows` are its own, `repairs` what was repaired, by whom, and the
    kinds of its deletes, `check` what the scheduled job finds."""

    def __init__(self, server: MySqlServer, lake: TestLake, patch: pytest.MonkeyPatch) -> None:
        super().__init__(server, conv=encoders)
        self.lake, self.address, self._patch = lake, f"127.0.0.1:{server.port}", patch
        self.url = f"mysql://{USER}:{PASSWORD}@{self.address}"
        self.run("DROP DATABASE IF EXISTS d", "CREATE DATABASE d CHARACTER SET utf8mb4", "USE d")
        self.run("SET SESSION sql_mode = '', SESSION time_zone = '+00:00'")
        self.run(f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}'")
        self.run(f"GRANT SELECT ON d.* TO {USER}@'%'")
        self.configure()
        self._cut, self._checkpoint_ts = dict[str, tuple[int | None, int]](), T0
        self._between, self._sink = list[str](), HandSink(lake.sink)

    def compare(self, case: Case, *, update: bool) -> None:
        case.compare([text_of(line) for step in case.own for line in self.step(step)], update=update)

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
        document["feeds"][0]["verify"] = {"url": self.url.replace(PASSWORD, "${SOURCE_PASSWORD}")}
        self.lake.config_path.write_text(json.dumps(document))

    def call(self, line: str, password: str = PASSWORD) -> str:
        """What `verify` prints."""
        environment = {"CDC_LAKEHOUSE_CONFIG": str(self.lake.config_path), "SOURCE_PASSWORD": password}
        return printed(f"verify --pause 0 {line}", environment).replace(self.address, "<server>")

    def copy(self, table: str, changes: Sequence[str]) -> None:
        """The table's rows into the lake, changed; and a cut that has them."""
        columns = self.columns(table)
        where = CurrentTables(self.lake.lake, self.lake.feed).identifier(TableName("d", table))
        self._checkpoint_ts += 10
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
        for first, last, how in [re.fullmatch(r"(\d+)(?:-(\d+))? (.*)", each).groups() for each in changes]:
            places = slice(int(first), int(last or first) + 1)
            if how == "gone":
                del rows[places]
            elif how.startswith("again "):
                rows += [{**row, **json.loads(how.removeprefix("again "))} for row in rows[places]]
            else:
                rows[places] = [{**row, **json.loads(how)} for row in rows[places]]
        found = self.lake.lake.load(where)
        if found is None:
            script.create(self.lake, table, at=self._checkpoint_ts, columns=columns)
            found = script.current_table(self.lake, table, arrow)
        # A table that has no row yet warns that nothing was deleted.
        (found.overwrite if found.current_snapshot() else found.append)(
            pa.Table.from_pylist([{"_commit_ts": T0, **row} for row in rows], arrow)
        )
        snapshot = self.lake.lake.existing(where).current_snapshot()
        self._cut[table] = snapshot and snapshot.snapshot_id, len(rows)
        self._publish()

    def _publish(self, **held: str) -> None:
        script.publish(self.lake, self._cut, held, at=self._checkpoint_ts)

    def step(self, line: str) -> list[str]:
        word, _, rest = line.partition(" ")
        match word:
            case ">":
                self.run(rest)
            case "types":
                for number, column in enumerate(TYPES):
                    (name, *_), values, change = column[0].split(), column[1].split(" | "), column[2]
                    if rest == "changed":
                        self.run(f"UPDATE t SET {name} = {change} WHERE id = {number}")
                    else:
                        self.run(f"ALTER TABLE t ADD {column[0]}", f"UPDATE t SET {name} = {values[0]} WHERE id >= 0")
                        for id, value in enumerate(values, -len(values)):
                            self.run(f"UPDATE t SET {name} = {value} WHERE id = {id}")
            case "copy":
                for (table,) in self.run("SHOW TABLES"):
                    self.copy(table, rest.split("; ") if rest else [])
            case "event":
                table, at, row = rest.split(" ", 2)
                where = system_table(self.lake.name, "events")
                self.lake.lake.ensure_namespace(where.namespace)
                found = self.lake.lake.load(where) or self.lake.lake.catalog.create_table(where.parts, EVENTS)
                event = {
                    "feed_date": "2026-06-01", "schema_name": "d", "table_name": table, "op": "I", "after": row,
                    "commit_ts": self._checkpoint_ts + int(at), "segment": "s", "line": 0, "synthetic": False,
                }  # fmt: skip
                found.append(pa.Table.from_pylist([event], EVENTS))
            case "held":
                table, _, why = rest.partition(" ")
                self._publish(**{table: why})
            case "limit":
                name, number = rest.split()
                self._patch.setattr(verify, name, int(number))
            case "then":
                self._between.append(rest)
            case "verify":
                between, self._between = self._between, []
                again = {"attempts": 1 + len(between), "pause_seconds": 0, "sleep": lambda _: self.step(between.pop(0))}
                done = verify_feed(self.lake.run, VerifyConfig(url=self.url), rest.split(), shown=100, **again)
                return [shown(table) for table in done.tables]
            case "$":
                between, self._between = self._between, []
                with self._patch.context() as patch:
                    if between:
                        patch.setattr("click.confirm", lambda *_, **__: [*map(self.step, between)] != [])
                    return [each for each in map(str.strip, self.call(rest).splitlines()) if each]
            case "log":
                index, upto, changes = rest.split(" ", 2)
                rows = [
                    hand_sinks.row(op, "t", int(at), id, *(text.format(id=id, v=v) for text in LOGGED))
                    for op, at, id, v in map(str.split, changes.split(" | "))
                ]
                self._sink.rows("d/t", 0, *rows, index=int(index))
                self._sink.checkpoint(int(upto))
            case "run":
                self.lake.go_through()
            case "configure":
                self.configure(tables=json.loads(rest))
            case "rebuild":
                self.lake.go_through(rebuild=self.lake.names())
            case "rows":
                return [" ".join(map(str, row)) for row in self.lake.rows("t")]
            case "repairs":
                table = self.lake.tables()["d", "t"]
                kinds = {each.place is None for file in live_files(table) for each in file.deletes}
                deletes = " and ".join("positions" if each else "vectors" for each in sorted(kinds, reverse=True))
                rows = [each for each in self.lake.machinery("segments") if each["kind"] == "repair"]
                assert all("@" in each["requested_by"] for each in rows)
                rows.sort(key=lambda row: row["segment"])
                found = [" ".join(str(row[name]) for name in REPAIR) for row in rows]
                return [*found, f"format version {table.format_version}: {deletes or 'nothing'} deleted"]
            case "check":
                definitions = build_definitions(load(self.lake.config_path))
                done = definitions.resolve_job_def(f"{self.lake.name}_verify").execute_in_process()
                (found,) = done.get_asset_check_evaluations()
                names = [name for name in ("differing_keys", "differing") if name in found.metadata]
                numbers = {name: found.metadata[name].value for name in names}
                return [f"{'passes' if found.passed else 'fails'}: {numbers}"]
            case _:
                assert not line, line
        return []


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


def shown(table: TableResult) -> str:
    told = sorted(" ".join([each.kind, *each.key.values(), *each.columns]) for each in table.differences)
    counts = {"missing": table.missing, "extra": table.extra, "different": table.different}
    assert Counter(each.kind for each in table.differences) == Counter(counts)
    told += [f"{table.changing} changing"] * bool(table.changing) + [table.reason or ""] * bool(table.reason)
    told += ["in many buckets"] * (3 < table.different_buckets < table.buckets)
    told += ["checksums are equal"] * (table.result == "equal" and not table.different_buckets)
    told += [f"{column} is left out: {why}" for column, why in table.left_out.items()]
    return f"{table.name} {table.result} of {table.source_rows} rows: {' | '.join(told)}".removesuffix(": ")


@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("cases") / "verify.txt"), ids=str)
def test_verify_tells_what_differs(
    case: Case, mysql: MySqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: bool
) -> None:
    feed = VerifiedFeed(mysql, lake_in(tmp_path, **case.settings), monkeypatch)
    feed.compare(case, update=update)


def test_session_only_reads_and_shows_no_password(
    mysql: MySqlServer, lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = VerifiedFeed(mysql, lake, monkeypatch)
    feed.run("CREATE TABLE t (id INT PRIMARY KEY)")
    feed.step("copy")
    said = feed.call("", password="wrong-one")
    assert "Access denied" in said and "exit code 2" in said and "wrong-one" not in said + repr(feed.lake.config)
    for grant, words in (("DELETE", r"denied.*: the user needs SELECT"), ("INSERT", "READ ONLY")):
        feed.run(f"GRANT {grant} ON d.* TO {USER}@'%'")
        try:
            with SourceDatabase(VerifyConfig(url=feed.url)) as database, pytest.raises(SourceError, match=words):
                database.all("INSERT INTO d.t VALUES (1)")
        finally:
            feed.run(f"REVOKE {grant} ON d.* FROM {USER}@'%'")


# --- Repairs ---

TABLE = (
    "CREATE TABLE t (id BIGINT, at DATETIME(3), v INT, s VARCHAR(50), ts TIMESTAMP NULL, b VARBINARY(10), "
    "e ENUM('a','b'), d DECIMAL(10,2), PRIMARY KEY (id, at))"
)


@pytest.mark.in_turn
@pytest.mark.parametrize("case", read_cases(Path(__file__).with_name("cases") / "repair.txt"), ids=str)
def test_repaired_rows_are_the_sources_and_stay_so(
    case: Case, mysql: MySqlServer, new_lake: Callable[..., TestLake], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, update: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SOURCE_PASSWORD", PASSWORD)
    settings = {"settings": {"d.t": {"format_version": 2}}}
    lake = new_lake(source={**CSV, "time_zone": "Asia/Shanghai"}, tables=settings)
    feed = VerifiedFeed(mysql, lake, monkeypatch)
    feed.run(TABLE)
    HandSink(lake.sink).schema("t", 0, *feed.columns("t"), action=CREATE, query=TABLE)
    feed.compare(case, update=update)
