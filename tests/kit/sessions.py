"""Sessions as text: what happens to a feed's sink, lake and Dagster instance, and what commands and Dagster show then.

    publish {"rows": {"a": 12}, "minutes": 3}
    $ status --check
    checks

A line is a word (of `CALLS`, a method of `Session`, else a function of `scripted_lake`), plain words, and named values
as JSON. `$` calls a command; `| path` behind it takes a part of its JSON, `/ pattern` the lines that match, `< answers`
is what a person types. The clock shows noon of 2026-06-01 until `later`.
"""

import contextlib
import datetime
import functools
import itertools
import json
import re
import shlex
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pyarrow as pa
import pytest
from click.testing import CliRunner
from dagster._daemon.types import DaemonHeartbeat
from pyiceberg.catalog import load_catalog

from cdc_lakehouse.assets.checks import table_evaluations
from cdc_lakehouse.cli import main
from cdc_lakehouse.commands.common import problem_lines
from cdc_lakehouse.definitions import build_definitions
from cdc_lakehouse.errors import CdcError, ConcurrentRunError, ConfigurationError
from cdc_lakehouse.pipeline.holds import find_holds
from cdc_lakehouse.pipeline.run import FeedRun
from tests.boundaries.change_log import ColumnType, SourceColumn, TableName
from tests.commands import run_that_fails
from tests.kit import scripted_lake as script
from tests.kit.case_files import Case
from tests.kit.dagster_feed import FAILURE_TAG, AlertSensor, empty_instance, ended, run_partitions, started, tick
from tests.kit.dumps import dump_of
from tests.kit.golden_pages import normalized, plain
from tests.kit.kafka import MemoryTopic, wait_at_most
from tests.kit.leases import lease_of, take_on_a_lost_machine
from tests.kit.receivers import http_receiver
from tests.kit.scripted_lake import NOON, Rejected
from tests.kit.truth import Truth
from tests.kit.waiting import clock_at
from tests.pipeline import Sink, lake_in
from tests.sources.canal.servers import HandMadeCanal, binlog_of, serving, wire

ENTRIES = binlog_of([{"kind": "mysql", "rows": 0, "seconds": 1, "rotated": False}] * 14).entries

COLOURS = {"31": "red", "32": "green", "33": "yellow", "0": "plain"}


def printed(line: str, environment: dict[str, str], *, terminal: bool = False) -> str:
    """What a command prints, with what of that is asked for behind it; the code that it ends with where not 0."""
    words, pipe, path = line.partition(" | ")
    words, slash, pattern = words.partition(" / ") if not pipe else (words, "", "")
    words, _, answers = words.partition(" < ")
    done = CliRunner(env=environment).invoke(main, shlex.split(words), input="\n".join(answers.split()), color=terminal)
    is_told = done.exception is None or isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output and is_told, (done.output, done.exception)
    said = re.sub(r"\x1b\[(\d+)m", lambda found: f"⟨{COLOURS[found[1]]}⟩", done.stdout)
    if pipe:
        found = json.loads(said)
        for step in path.split("."):
            found = found[int(step) if step.isdigit() else step]
        said = json.dumps(found, ensure_ascii=False)
    said = "\n".join(each for each in said.splitlines() if not slash or re.search(pattern, each))
    return f"{said}\n{done.stderr}" + (f"\nexit code {done.exit_code}" if done.exit_code else "")


CALLS: dict[str, Callable[..., object]] = {
    "write_here": lambda self, name, text: (self.directory / name).write_text(text, encoding="utf-8"),
    "folder": lambda self, name: (self.directory / name).mkdir(),
    "listing": lambda self, name: f"{name}: {sorted(path.name for path in (self.directory / name).rglob('*'))}",
    "raw": lambda self, name: repr((self.directory / name).read_bytes()),
    "remove": lambda self, name: (self.directory / name).unlink(),
    "instance_settings": lambda self, text: (self.home / "dagster.yaml").write_text(text),
    "checkpoint": lambda self, at: self.files.checkpoint(int(at)),
    "segment": lambda self, path, **fields: script.land(self.lake, script.segment(path, **fields)),
    "contradict": lambda self, reason="", of="1": script.contradict(self.lake, reason or None, int(of)),
    "land": lambda self: self.lake.run().source.land(),
    "decoded": lambda self: self.lake.mark_decoded(),
    "no_events": lambda self: self.lake.lake.catalog.create_table(
        ("cdc_shop", "events"), pa.schema([("segment", pa.string())])
    ),
    "waiting": lambda self: str(
        {n: [each.segment for each in of] for n, of in self.lake.run().segments.undecoded("file").items()}
    ),
    "written": lambda self: ", ".join(sorted(self.lake.metadata())) or "no table is written",
    "delete": lambda self, name, where, *, summary: self.tables[name].delete(where, snapshot_properties=summary),
    "sensors": lambda self: f"sensors: {[each.name for each in build_definitions(self.lake.config).sensors or ()]}",
}
"""Words that are one call; a text that it gives is shown."""


class Session:
    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, **feed: Any) -> None:
        self.directory, self._patch, self.now = directory, patch, NOON
        patch.chdir(directory)
        self.feed(**feed)
        self.home = self.lake.config_path.parent / "dagster_home"
        self.files = Sink(self.lake.sink)
        self.data, self._open = Path("/no/data"), contextlib.ExitStack()
        self._alerts: AlertSensor | None = None
        self._kinds: tuple[str, ...] = ()
        self.cursor: str | None = None
        self.is_terminal = False
        self.tables: dict[str, Any] = {}
        self._canal, self._address = HandMadeCanal([]), ""

    def feed(self, **feed: Any) -> None:
        self.lake = lake_in(self.directory, name="shop", **feed)
        if self.lake.feed.source.type == "kafka":
            wait_at_most(self._patch, 1)

    def results(self, case: Case) -> list[str]:
        with clock_at(lambda: self.now), self._open:
            titles = [step for step in case.own if step.startswith("$ ")]
            titles = titles if len(titles) > 1 else []
            return [line for step in case.own for line in (*([step] * (step in titles)), *self._step(step))]

    @cached_property
    def instance(self) -> dg.DagsterInstance:
        """Made where a session looks at one: its tables in memory take a tenth of a second."""
        return self._open.enter_context(dg.DagsterInstance.ephemeral())

    def _step(self, line: str) -> Iterator[str]:
        if line.startswith("$ "):
            yield from self._command(line[2:])
            return
        text, brace, rest = line.partition(" {")
        word, *words = shlex.split(text)
        others = functools.partial(CALLS[word], self) if word in CALLS else None
        do = others or getattr(self, word, None) or functools.partial(getattr(script, word), self.lake)
        said = do(*words, **(json.loads("{" + rest) if brace else {}))
        yield from self._shown(said if isinstance(said, str) else "")

    def _command(self, line: str) -> Iterator[str]:
        environment = {"CDC_LAKEHOUSE_CONFIG": str(self.lake.config_path), "DAGSTER_HOME": str(self.home)}
        yield from self._shown(printed(self._places(line), environment, terminal=self.is_terminal))

    def _places(self, text: str) -> str:
        text = text.replace("<canal>", f"--host {self._address.replace(':', ' --port ')}")
        return text.replace("<dir>", str(self.directory)).replace("<data>", str(self.data))

    def _shown(self, text: str) -> list[str]:
        text = text.replace(str(self.data), "<data>")
        text = normalized(text, self.directory, "2026-06-01").replace("<now>+00:00", "<now>")
        return [line for line in text.splitlines() if line.strip()]

    # --- Files beside the lake ---

    def read(self, name: str, pattern: str = "") -> str:
        text = (self.directory / name).read_text(encoding="utf-8")
        return "\n".join(line for line in text.splitlines() if re.search(pattern, line))

    def change(self, name: str, old: str, new: str) -> None:
        text = (self.directory / name).read_text(encoding="utf-8")
        assert old in text
        (self.directory / name).write_text(text.replace(old, new), encoding="utf-8")

    def dump(self, dataset: str, place: str) -> None:
        """The dump of a data set's tables as its log begins, and the log: `snapshot` and `incremental` of a folder."""
        truth = Truth(self.data / dataset)
        dump_of(truth, 0, self.directory / place / "snapshot")
        shutil.copytree(truth.dataset / "tree", self.directory / place / "incremental")

    def terminal(self, **environment: str) -> None:
        """Commands print to one from here on."""
        self.is_terminal = True
        self._patch.delenv("NO_COLOR", raising=False)
        for name, value in environment.items():
            self._patch.setenv(name, value)

    def refuse_changes(self) -> None:
        """The catalog of `init` lets tables be made, and not be changed, as where rights are missing."""
        path = self.directory / "lake" / "catalog.db"
        path.parent.mkdir()
        load_catalog("lake", type="sql", uri=f"sqlite:///{path}", warehouse=str(path.parent))
        with contextlib.closing(sqlite3.connect(path)) as catalog:
            refusal = "BEGIN SELECT RAISE(ABORT, 'it is refused'); END"
            catalog.execute(f"CREATE TRIGGER no BEFORE UPDATE ON iceberg_tables {refusal}")

    # --- The clock, the configuration, the sink ---

    def later(self, minutes: str) -> None:
        self.now += datetime.timedelta(minutes=float(minutes))

    def at(self, time_of_day: str) -> None:
        self.now = datetime.datetime.combine(self.now, datetime.time.fromisoformat(time_of_day), datetime.UTC)

    def configure(self, **feed: Any) -> None:
        self.lake.configure(**feed)
        if self._alerts is not None:
            self._alerts.configure(**feed)

    def edit(self, where: str, value: Any) -> None:
        document = json.loads(self.lake.config_path.read_text())
        *parents, last = where.split(".")
        section = document
        for step in parents:
            section = section[int(step) if step.isdigit() else step]
        section[last] = value
        self.lake.config_path.write_text(json.dumps(document).replace("<dir>", str(self.directory)))

    def sink(self, *tables: str, checkpoint: int | None = 10) -> None:
        self.files = Sink(self.lake.sink, *tables, checkpoint=checkpoint)

    def file(self, table: str, **place: int) -> None:
        self.files.file(table, **place)

    def write(self, name: str, text: str) -> None:
        (self.lake.sink / name).parent.mkdir(parents=True, exist_ok=True)
        (self.lake.sink / name).write_text(text)

    # --- The lake ---

    def create_enum(self, table: str) -> None:
        """A table with an ENUM whose labels nobody knows."""
        script.create(self.lake, table, columns=(script.KEY, SourceColumn("kind", ColumnType.of("ENUM"))))

    def publish(
        self, *, rows: Any = None, held: Any = None, minutes: float = 0, at: int | None = None,
        snapshot: int | None = None,
    ) -> None:  # fmt: skip
        """`rows` are numbers, or [snapshot, number], by table. `snapshot`: which one of its table the cut shows."""
        found = {name: tuple(each) if isinstance(each, list) else each for name, each in (rows or {}).items()}
        for name in found.keys() & self.tables.keys() if snapshot is not None else ():
            found[name] = self.tables[name].refresh().metadata.snapshots[snapshot].snapshot_id, found[name]
        where = script.before(self.now, minutes) if at is None else at
        script.publish(self.lake, found, held, at=where, published=self.now)

    def table(
        self, name: str, *, columns: dict[str, str], rows: list[Any], summary: Any = None, **properties: str
    ) -> None:
        """A current-state table with rows, which a later call adds to."""
        kinds = {"int": pa.int64(), "text": pa.string(), "bytes": pa.binary()}
        schema = pa.schema([(column, kinds[kind]) for column, kind in columns.items()])
        if name not in self.tables:
            self.tables[name] = script.current_table(self.lake, name, schema, **properties)
        cells = [[bytes.fromhex(cell) if schema.field(n).type == pa.binary() and cell else cell
                  for n, cell in enumerate(row)] for row in rows]  # fmt: skip
        named = [dict(zip(columns, row, strict=True)) for row in cells]
        if rows:
            self.tables[name].append(pa.Table.from_pylist(named, schema), snapshot_properties=summary or {})

    def table_checks(self, whole: str = "") -> str:
        """The checks of `d.t`: of the last batch, or of all rows."""
        table = self.tables["t"].refresh()
        found = table_evaluations(self.lake.feed, TableName("d", "t"), table, of_batch=not whole)
        assert {tuple(each.asset_key.path) for each in found if each.asset_key} == {("shop", "d", "t")}
        return "\n".join(map(_check, found))

    def quarantine(self, segment: str, line: str = "-", **fields: Any) -> None:
        known = {"error_class": "NotJson", "message": "not JSON", "raw": "{", "database": None, "table": None, **fields}
        raw = None if known["raw"] is None else known["raw"].encode("latin-1")
        rejected = Rejected(segment, None if line == "-" else int(line), **{**known, "raw": raw})
        script.quarantine(self.lake, rejected, at=self.now)

    def resolve(self, table: str = "") -> None:
        where = (lambda row: row.table == table) if table else (lambda row: True)
        self.lake.run().quarantine.replace(where, [], self.now)

    def holds(self, upto: str = "100") -> str:
        """The tables that are held up to a commit-ts, by their incarnations, with what to do in a line of its own."""
        run = self.lake.run()
        found = find_holds(run, run.history.history.incarnations(), int(upto))
        return click.unstyle("\n".join(problem_lines(found, 0, [], [])[2:])) or "nothing is held"

    def redeliver(self) -> None:
        quarantine = self.lake.run().quarantine
        quarantine.redeliver({row.id: "it came again" for row in quarantine.rows}, self.now)

    def offsets(self, name: str, **fields: Any) -> None:
        script.land(self.lake, script.offsets(name, **{"decoded_at": self.now, **fields}))

    def summarize(self) -> None:
        run = self.lake.run()
        run.segments.summarize(run.segments.rows)

    def reported(self, pattern: str) -> str:
        """The rows, paragraphs and drawings of the page that match, as texts; `bad` begins a row in red."""
        (page,) = self.directory.rglob("report.html")
        shown = page.read_text(encoding="utf-8").replace("<tr class=bad>", "bad ")
        parts = re.split("</tr>|</p>|</li>|</g>|</figure>", shown)
        lines = (" ".join(re.sub("<[^>]*>", " ", part).split()) for part in parts)
        return "\n".join(line for line in lines if re.search(pattern, line))

    def lease(self, what: str, run: str = "another") -> str:
        """Given to a run, to the `last` one of Dagster, or what it has is released."""
        id = self.instance.get_runs(limit=1)[0].run_id if run == "last" else run
        try:
            match what:
                case "lose":
                    take_on_a_lost_machine(self.lake, id, lambda: self.now)
                case "take":
                    lease = lease_of(self.lake, id, lambda: self.now)
                    lease.take()
                    self._lease = lease
                case _:
                    self._lease.release()
        except ConcurrentRunError as error:
            return f"lease: {error}"
        return ""

    def catalog(self, where: str) -> None:
        """The catalog is `away`, and `back`."""
        path = Path(str(self.lake.lake.config.catalog.uri).removeprefix("sqlite:///"))
        if where == "away":
            self._content = path.read_bytes()
        path.write_bytes(b"this is not a database" * 1000 if where == "away" else self._content)

    # --- Topics and Canal servers ---

    def topic(self, *messages: str) -> None:
        """The feed's topic has as many messages as that."""
        message = {"partition": 0, "key": None, "value": "{}", "timestamp": 0}
        MemoryTopic(self._patch).send([message] * int(*messages))

    def canal(self, *entries: str) -> None:
        """A server, from the first call on the feed's, has entries: a number of them, or the bytes of one after `x`."""
        log = iter(ENTRIES)
        found = ([bytes.fromhex(each[1:])] if each[0] == "x" else itertools.islice(log, int(each)) for each in entries)
        self._canal.entries = [*itertools.chain(*found)]
        if not self._address:
            self._address = self._open.enter_context(serving(self._canal))
            source = {"type": "canal", "destination": "example", "addresses": [self._address]}
            self.feed(source=source, start_date="2020-01-01")

    def asked(self) -> str:
        """What the server was asked for since this was asked last, and how many entries need not come again."""
        acked = self._canal.acked
        heard = sorted(wire.PacketType.Name(kind) for kind in self._canal.heard)
        self._canal.heard.clear()
        return f"asked for {', '.join(heard) or 'nothing'}; {acked} acknowledged"

    def acknowledged(self, number: str) -> None:
        self._canal.acked = int(number)

    # --- Alerts ---

    def receive(self, *kinds: str) -> None:
        """The receiver wants these kinds of problems alone."""
        self._kinds = kinds

    def alerts(self) -> str:
        if self._alerts is None:
            self._hook = self._open.enter_context(http_receiver())
            kinds = {"on": self._kinds} if self._kinds else {}
            receiver = {"type": "webhook", "url": self._hook.url("${HOOK}"), **kinds}
            self._alerts = AlertSensor(self.lake, self.instance, receiver)
        self._alerts.now = self.now
        self._alerts.tick(datetime.timedelta())
        sent = [notice for document in self._hook.documents for notice in document["notices"]]
        self._hook.requests.clear()
        lines = [f"{each['event']} {each['kind']} {each['subject'] or '-'} | {each['text']}" for each in sent]
        return "alerts: " + "\n        ".join(lines or ["nothing"])

    def cursor_of_alerts(self, text: str) -> None:
        assert self._alerts is not None
        self._alerts.cursor = text

    def ran(self, how: str, job: str = "any", feed: str = "shop") -> None:
        """A run that Dagster has carried out, and that `fails`."""
        with self._dagsters_clock():
            ended(self.instance, feed if job == "any" else None, fails=how == "fails", job=job)

    # --- Dagster ---

    def failed_run(self, **tags: str) -> None:
        """A run in the instance of the commands that a configuration made fail, a moment ago."""
        with self._dagsters_clock() as patch:
            run_that_fails(self.lake, patch, ConfigurationError("the wrong key", advice="correct it"), **tags)

    def daemon(self) -> None:
        """Dagster's daemon runs beside the instance of the commands."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            instance.add_daemon_heartbeat(DaemonHeartbeat(self.now.timestamp(), "SENSOR", None, None))

    def checks(self, *names: str) -> str:
        """The checks of the feed that fail, or those that are named, with their numbers."""
        context, found = dg.build_op_context(instance=empty_instance()), dict[str, dg.AssetCheckResult]()
        for each in build_definitions(self.lake.config).asset_checks or ():
            (key, *others) = each.check_keys
            if not others and key.asset_key.path[-2:-1] == ["shop"] and (not names or key.name in names):
                found[key.name] = each(context)  # pyright: ignore
        shown = [_check(each) for each in found.values() if names or not each.passed]
        return "\n".join(shown) or f"pass: {' '.join(found)}"

    def tick(self) -> str:
        """What the feed's sensor answers, with the cursor that its last request left."""
        result = tick(self.lake, self.cursor, self.instance)
        if isinstance(result, dg.SkipReason):
            return f"tick: {result.skip_message}"
        (request,) = result.run_requests or []
        self.cursor = result.cursor
        return f"tick: run {request.run_key} {json.dumps(dict(request.tags))}"

    def dates(self) -> str:
        try:
            new = FeedRun(self.lake.feed, self.lake.lake).source.new_dates()
            return f"dates: {' '.join(run_partitions(self.lake.feed, new, self.now))}"
        except CdcError as error:
            return f"{type(error).__name__}: {error}"

    def run(self, status: str, feed: str = "shop", **tags: str) -> None:
        with self._dagsters_clock():
            unfinished = status if status not in ("FAILURE", "CANCELED", "SUCCESS") else "STARTED"
            run = started(self.instance, feed, dg.DagsterRunStatus[unfinished], **tags)
            if status == "FAILURE":
                self.instance.report_run_failed(run)
            elif status == "CANCELED":
                self.instance.report_run_canceled(run)
            elif status == "SUCCESS":
                event = dg.DagsterEvent(dg.DagsterEventType.PIPELINE_SUCCESS.value, "feed")
                self.instance.report_dagster_event(event, run_id=run.run_id)

    def runs(self) -> str:
        found = self.instance.get_runs()
        return f"runs: {', '.join(f'{each.status.name} {each.tags.get(FAILURE_TAG)}' for each in found)}"

    @contextlib.contextmanager
    def _dagsters_clock(self) -> Iterator[pytest.MonkeyPatch]:
        with self._patch.context() as patch:
            patch.setattr(time, "time", self.now.timestamp)
            # What log records have as their time since Python 3.13.
            patch.setattr(time, "time_ns", lambda: int(self.now.timestamp() * 1e9))
            yield patch


def _check(result: dg.AssetCheckResult) -> str:
    outcome = "passes" if result.passed else {"WARN": "warns", "ERROR": "fails"}[result.severity.value]
    numbers = json.dumps(plain(result.metadata), ensure_ascii=False)
    return f"{result.check_name} {outcome}: {numbers}" + (f" {result.description}" if result.description else "")
