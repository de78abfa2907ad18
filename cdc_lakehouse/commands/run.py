"""`cdc-lakehouse run`: make one pass over the feeds without a daemon, or a pass whenever there is something new.

It does what the sensor and its run do. A pass that does something is recorded in the same Dagster instance.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from cdc_lakehouse import errors
from cdc_lakehouse.changelog.positions import BEGINNING, commit_time, utc_now
from cdc_lakehouse.commands import common
from cdc_lakehouse.commands.common import DONE, HELD, Asked, Shown, exit_code, of_feeds, progress_options, say
from cdc_lakehouse.config import FeedConfig, LakehouseConfig
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.errors import CdcError, ConcurrentRunError, ConfigurationError, EngineError, PermanentError
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables import events
from cdc_lakehouse.lake.tables.lease import last_holder
from cdc_lakehouse.operate.state import held_by_name
from cdc_lakehouse.pipeline.feed_tables import known_tables, unmatched_patterns, was_taken
from cdc_lakehouse.pipeline.holds import tables_named
from cdc_lakehouse.pipeline.run import FeedRun, take_feed
from cdc_lakehouse.pipeline.steps import Steps

if TYPE_CHECKING:
    from dagster import DagsterInstance
    from pyspark.sql import SparkSession

    from cdc_lakehouse.assets.sensors import Decision
    from cdc_lakehouse.assets.steps import RunReport

_LONGEST_WAIT_SECONDS: Final = 60.0
_SIGNAL_SECONDS: Final = 0.5
"""How long a second signal may wait."""
_MOST_FAILED_PASSES: Final = 5
_NO_WAIT: Final = {None, *errors.class_names(PermanentError)}
_SAME_ELSEWHERE: Final = {None, *errors.class_names(CdcError)} - errors.class_names(EngineError)
"""Failures that another process would have as well: they say nothing about this one."""
_Result = TypeVar("_Result")


@dataclass
class FollowedFeed:
    """One feed that is followed.

    poll: as `assets.sensors.poll_source`, with the cursor of the last pass. make_pass: a pass, given the number
    of tries that failed; returns the name of the error's class if it failed, and raises what kept it from beginning.
    interval: seconds from one look to the next."""

    name: str
    poll: Callable[[str | None], Decision]
    make_pass: Callable[[int], str | None]
    interval: float
    failed_passes: int = 0
    """The last passes in a row that failed for a reason that another process may not have."""
    _cursor: str | None = None
    _failures: int = 0
    _due: float = 0
    _told: str = ""

    def take_turn(self, now: float) -> bool:
        """Look, and make a pass if one is needed; return whether one was made. `now` is in seconds of a monotonic
        clock."""
        if now < self._due:
            return False
        problem, state, made, waits = "", None, False, False
        try:
            decision = self.poll(self._cursor)
            state = decision.state
            problem = decision.reason if state is None else "; ".join(map(str, state.faults))
            if state is not None and decision.run_key is not None:
                failure = self.make_pass(decision.attempt)
                made, self._cursor = True, state.cursor
                self.failed_passes = 0 if failure in _SAME_ELSEWHERE else self.failed_passes + 1
                waits = failure not in _NO_WAIT
        except ConcurrentRunError as error:
            problem = str(error)
        except PermanentError as error:
            problem = str(error)
            # The same state would fail again: the next pass is for the next state of the source.
            self._cursor = self._cursor if state is None else state.cursor
        except Exception as error:  # noqa: BLE001 - Whatever a store or a catalog throws may pass.
            problem = str(error) if isinstance(error, CdcError) else errors.in_one_line(error)
            waits = True
        self._failures = self._failures + 1 if waits else 0
        if waits:  # Longer than after the failure before.
            self._due = now + min(self.interval * 2**self._failures, max(self.interval, _LONGEST_WAIT_SECONDS))
        # Once while it stays the same.
        if problem and problem != self._told:
            say(f"cdc-lakehouse: feed {self.name}: {problem}", err=True)
        self._told = problem
        return made


def follow(feeds: Sequence[FollowedFeed], stop: threading.Event, interval: float) -> None:
    """Give each feed its turn, repeatedly, until `stop` is set; when nothing is new, rounds are `interval` seconds
    apart. Raises `EngineError` when passes keep failing, so that whatever supervises the process starts another."""
    while not stop.is_set():
        made = [feed.take_turn(time.monotonic()) for feed in feeds if not stop.is_set()]
        for feed in feeds:
            if feed.failed_passes >= _MOST_FAILED_PASSES and not stop.is_set():
                what = f"{feed.failed_passes} passes in a row have failed"
                raise EngineError(what, feed=feed.name, advice="start it again, and see what is said before this")
        if not any(made):
            stop.wait(interval)


def until_signalled(work: Callable[[threading.Event], None]) -> None:
    """Do the work in a thread, with an event that SIGINT and SIGTERM set; a second signal ends the process at once.

    It is done in a thread because Dagster and PySpark replace the handlers of the main thread by their own."""
    stop = threading.Event()

    def on_signal(*_: Any) -> None:
        if stop.is_set():
            # As if it were killed: the lease and the run then belong to a process that is gone.
            os._exit(DONE)
        stop.set()

    _in_thread(lambda: work(stop), on_signal)


def _in_thread(work: Callable[[], _Result], on_signal: Callable[[int, Any], object]) -> _Result:
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="feeds") as worker:
            result = worker.submit(work)
            # A signal that arrives while another one is handled is not seen before this thread does something again.
            while not wait([result], _SIGNAL_SECONDS).done:
                pass
            return result.result()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command()
@click.option("--partition", "partitions", multiple=True, help="Decode this feed date again. May be repeated.")
@click.option("--follow", "follows", is_flag=True, help="Keep running: a pass whenever a source has something new.")
@click.option(
    "--interval", type=click.FloatRange(0, min_open=True), default=2.0,
    help="With --follow: seconds between two looks at a source.",
)  # fmt: skip
@progress_options
@of_feeds("Print the result as JSON, with --follow a line for each pass.")
def command(asked: Asked, partitions: Sequence[str], follows: bool, interval: float, progress: Shown) -> int:
    """Bring the tables up to date: land, decode, apply DDL and rows, publish.

    Exit code 0: done, or nothing to do. 1: something is held or quarantined. 2: the configuration is wrong.
    3: a source cannot be reached. 4: Spark failed. 130 and 143: ended by SIGINT and SIGTERM, at once. With --follow it
    is 0: SIGINT or SIGTERM ends it after the current pass, a second one at once; it is 4 if Spark keeps failing.

    \b
    Examples:
      cdc-lakehouse run --feed shop
      cdc-lakehouse run --feed shop --partition 2026-11-18
      cdc-lakehouse run --follow
    """
    if follows and partitions:
        raise click.UsageError("--follow takes what is new: it goes without --partition")
    if partitions:
        from cdc_lakehouse.assets.keys import partitions_of  # noqa: PLC0415

        for feed, partition in itertools.product(asked.feeds, partitions):
            if (definition := partitions_of(feed)) is None or not definition.has_partition_key(partition):
                what, advice = "has no such partition", "give one from the feed's start_date on"
                if definition is None:
                    what, advice = "has no partitions: its date_separator is none", "leave out --partition"
                raise ConfigurationError(f"{partition!r}: the feed {feed.name} {what}", advice=advice)
    if follows:
        _follow(_Runner(asked.config, progress=progress), asked.feeds, interval, as_json=asked.as_json)
        return DONE
    return _pass_over(asked, progress, [(feed, {"dates": frozenset(partitions)}) for feed in asked.feeds])


@click.command()
@click.option("--table", "tables", multiple=True, help="database.table of the dump. May be repeated. [default: all]")
@progress_options
@of_feeds()
def load(asked: Asked, tables: Sequence[str], progress: Shown) -> int:
    """Load tables of source.initial, even if they are loaded already, and make a pass.

    A table starts over at the position of the dump; its earlier rows are kept as a dropped table. Exit codes are those
    of `run`.

    \b
    Example:
      cdc-lakehouse load --table shop.orders
    """
    feeds = [feed for feed in asked.feeds if feed.initial is not None]
    if not feeds:
        raise ConfigurationError("no feed has a dump to load", advice="set source.initial")
    return _pass_over(asked, progress, [(feed, {"reload_tables": frozenset(tables or ("*",))}) for feed in feeds])


@click.command()
@click.argument("table_names", metavar="TABLE...", nargs=-1, required=True)
@progress_options
@of_feeds()
def rebuild(asked: Asked, table_names: Sequence[str], progress: Shown) -> int:
    """Recompute each TABLE (database.table) from all of its events, and make a pass.

    Readers see the table as it was until it is replaced, in one commit. A table that is held stays as it is. Exit codes
    are those of `run`; 2 where no feed has such a table.

    \b
    Example:
      cdc-lakehouse rebuild shop.orders shop.payments
    """
    wanted = [
        (feed, sorted({*map(str, known_tables(asked.lake, feed))}.intersection(table_names))) for feed in asked.feeds
    ]
    for table in table_names:
        if not any(table in tables for _, tables in wanted):
            raise ConfigurationError(f"there is no table {table}", advice="name one as database.table")
    return _pass_over(asked, progress, [(feed, {"rebuild_tables": tables}) for feed, tables in wanted if tables])


def make_passes(
    config: LakehouseConfig, progress: Shown, passes: Sequence[tuple[FeedConfig, dict[str, Any]]]
) -> list[RunResult]:
    """Make a pass over each feed, with its options of `_Runner.run`. SIGINT and SIGTERM end the process at once, with a
    sentence and the exit code that shells use for the signal."""

    def on_signal(number: int, _: Any) -> None:
        name = signal.Signals(number).name
        say(f"cdc-lakehouse: ended by {name}; the next run continues from what is committed", err=True)
        # As if it were killed: if the JVM was stopped first, the work would end with other errors.
        os._exit(128 + number)

    runner = _Runner(config, progress=progress)
    return _in_thread(lambda: [runner.try_run(feed, **options) for feed, options in passes], on_signal)


def _pass_over(asked: Asked, progress: Shown, passes: Sequence[tuple[FeedConfig, dict[str, Any]]]) -> int:
    """Make the passes and print their results; return the exit code."""
    results = make_passes(asked.config, progress, passes)
    asked.answer({"feeds": [asdict(result) for result in results]}, *map(_text, results))
    return max(result.exit_code for result in results)


@dataclass
class RunResult:
    """What a run of one feed did, as the command prints it in JSON. `checkpoint_ts` is a TSO. `loaded_rows` came from
    the initial dump. `warnings` say what may be a mistake in the configuration; they do not change the exit code.

    `tables` have `rows_in` (decoded events, and of them `inserts`, `updates` and `deletes`), `rows` (the current number
    in the table; None when it is not published) and `ddl` (`commit_ts`, `statement`, `effect`)."""

    feed: str
    run_id: str | None = None
    loaded_rows: int = 0
    checkpoint_ts: int | None = None
    checkpoint_time: str | None = None
    published: bool = False
    tables: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    held: dict[str, str] = field(default_factory=dict[str, str])
    quarantined: int = 0
    faults: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    error: str | None = None
    error_class: str | None = None
    exit_code: int = DONE


class _Runner:
    """Runs feeds in this process. Dagster, whose import takes longer than a pass with nothing new, hears of a pass that
    does something, fails, or finds a part of the source that cannot be used."""

    def __init__(self, config: LakehouseConfig, *, progress: Shown) -> None:
        self._progress: Shown = progress
        self._config, self._home, self.lake = config, common.find_home(), Lake(config.lake, config.storage)
        os.environ["DAGSTER_HOME"] = str(self._home)
        self._home.mkdir(parents=True, exist_ok=True)
        if not (settings := self._home / "dagster.yaml").exists():
            # They allow one run of a feed at a time.
            shutil.copy(Path(__file__).with_name("dagster.yaml"), settings)

    @functools.cached_property
    def instance(self) -> DagsterInstance:
        from dagster import DagsterInstance  # noqa: PLC0415

        # Dagster makes its databases in a new home, and fails where another process makes them too.
        with (self._home / "dagster.yaml").open() as settings:
            fcntl.flock(settings, fcntl.LOCK_EX)
            return DagsterInstance.get()

    def try_run(self, feed: FeedConfig, **options: Any) -> RunResult:
        """Run as `run` does; the result contains what kept the run from beginning."""
        try:
            return (None if any(options.values()) else self._unchanged(feed)) or self.run(feed, **options)
        except CdcError as error:
            return RunResult(feed.name, error=error.coded, error_class=type(error).__name__, exit_code=exit_code(error))

    def run(
        self, feed: FeedConfig, *, attempt: int = 0, rebuild_tables: Sequence[str] = (), **requested: Any
    ) -> RunResult:
        """One pass over a feed: over what is new, or what is `requested` of a `FeedRun`. `attempt` counts earlier tries
        that failed, `rebuild_tables` are those to recompute. Raises what keeps the run from beginning."""
        run_id, began, result = str(uuid.uuid4()), time.time(), RunResult(feed.name)
        is_requested = any([rebuild_tables, *requested.values()])
        log, logged = logging.Logger(feed.name, logging.INFO), BufferingHandler(sys.maxsize)
        log.addHandler(logged)

        report: RunReport | None = None
        recording = threading.Lock()

        def record() -> RunReport:
            """Record the run, once: of threads that write first at the same time, all wait for one."""
            from cdc_lakehouse.assets.steps import RunReport  # noqa: PLC0415

            nonlocal report
            with recording:
                report = report or RunReport(self.instance, run, run_id, attempt, rebuild_tables, logged.buffer, began)
                report.begin()
                result.run_id = run_id
                return report

        def session() -> SparkSession:
            from cdc_lakehouse.lake.spark import build_session  # noqa: PLC0415

            record()
            return build_session(self._config.lake, self._config.storage)

        if is_pending := common.may_have_pending_runs(self._home):
            from cdc_lakehouse.assets.runs import find_unfinished  # noqa: PLC0415

            # The feed's pool keeps the daemon's runs apart, but a run from the command line must check for them itself.
            if (unfinished := find_unfinished(self.instance, self.lake, feed, utc_now())) is not None:
                raise ConcurrentRunError(unfinished, feed=feed.name, advice="wait, or cancel it")
        lease = take_feed(self.lake, feed.name, run_id)
        # What it writes first is what it has found to do: from then on others see the run.
        self.lake.on_write = record
        run = FeedRun(feed, self.lake, session, log=log, require_lease=lease.require, **requested)
        try:
            steps = Steps(run)
            with common.ProgressLine(self._progress) as line:
                log.addHandler(line)
                is_known_work = is_requested or FeedRun(feed, self.lake).source.new_dates()
                try:
                    if is_known_work:
                        # The JVM starts while the run goes on, and Spark's session for more than fits this process.
                        self._start(feed, session=is_requested)
                        if not events.fits_driver([segment.size for segment in steps.landed.new]):
                            self._start(feed, session=True)
                    if rebuild_tables and steps.decoded:
                        run.rebuild = tables_named(run, rebuild_tables)
                    steps.published  # noqa: B018 - All steps are taken.
                except Exception as error:  # noqa: BLE001 - It is raised again below, for the report too.
                    steps.error = error
                try:
                    if steps.error is None:
                        _describe(result, steps)
                    # What has written is reported already, and has the report's id.
                    if is_pending or is_requested or attempt or steps.error or result.run_id or steps.landed.faults:
                        record().end(steps)
                except Exception as error:  # noqa: BLE001 - Whatever a run fails with is its result.
                    root = errors.root_cause(steps.error or error)
                    result.error_class = type(root).__name__
                    if isinstance(root, CdcError):
                        result.error, result.exit_code = root.coded, exit_code(root)
                    else:
                        result.error, result.exit_code = traceback.format_exception_only(root)[-1].strip(), HELD
                        say("".join(traceback.format_exception(root)), err=True)
        finally:
            self.lake.on_write = lambda: None
            lease.release()
        return result

    def _start(self, feed: FeedConfig, *, session: bool) -> None:
        from cdc_lakehouse.lake.spark import start  # noqa: PLC0415

        start(self._config.lake, self._config.storage, session=session or feed.initial is not None)

    def _unchanged(self, feed: FeedConfig) -> RunResult | None:
        """The result of a run that would write nothing, which needs no lease: its steps are taken up to the first
        write. None when there is one, when the source or the last run failed, and when a look takes entries away."""
        result = RunResult(feed.name)

        def would_write() -> NoReturn:
            result.error = "nothing is written without the lease"
            raise ConcurrentRunError(result.error)

        self.lake.on_write = would_write
        try:
            last = last_holder(self.lake, feed.name)
            steps = Steps(FeedRun(feed, self.lake, would_write, log=logging.Logger(feed.name, sys.maxsize)))
            if common.may_have_pending_runs(self._home) or (last and not last.released):
                return None
            if (source := steps.run.source).look_takes or source.poll(None).waiting:
                if not source.look_takes and source.new_dates():
                    self._start(feed, session=False)
                return None
            _describe(result, steps)
            # An error of one table holds it, and comes no further. Another run may have begun meanwhile.
            return None if result.error or steps.landed.faults or last_holder(self.lake, feed.name) != last else result
        except Exception:  # noqa: BLE001 - Whatever it is: the run says it.
            return None
        finally:
            self.lake.on_write = lambda: None


def _follow(runner: _Runner, feeds: Sequence[FeedConfig], interval: float, *, as_json: bool) -> None:
    from cdc_lakehouse.assets.sensors import poll_source  # noqa: PLC0415

    def followed(feed: FeedConfig) -> FollowedFeed:
        def make_pass(attempt: int) -> str | None:
            result = runner.run(feed, attempt=attempt)
            if as_json:
                click.echo(json.dumps(asdict(result), ensure_ascii=False))
            else:
                say(f"{_text(result)}\n")
            return result.error_class

        # Dagster's storage is opened by the first look: one that does not answer is tried again.
        look = lambda cursor: poll_source(runner.instance, runner.lake, feed, cursor)  # noqa: E731
        return FollowedFeed(feed.name, look, make_pass, interval)

    until_signalled(lambda stop: follow([followed(feed) for feed in feeds], stop, interval))


def _describe(result: RunResult, steps: Steps) -> None:
    published, applied = steps.published, steps.applied
    if published.cut.checkpoint_ts != BEGINNING:
        result.checkpoint_ts = published.cut.checkpoint_ts
        result.checkpoint_time = commit_time(published.cut.checkpoint_ts).isoformat()
    result.published = published.new
    result.loaded_rows = sum(steps.loaded.counts["events"].to_pylist())
    lives = steps.run.history.history.incarnations()
    result.held = {str(table): reason for table, reason in held_by_name(applied.held.items(), lives).items()}
    result.quarantined = steps.run.quarantine.count()
    result.faults = list(steps.landed.faults)
    result.warnings = unmatched_patterns(steps.run.feed.tables, steps.run.history.history)
    if steps.loaded.waits is not None:
        result.warnings.insert(0, steps.loaded.waits)
    result.tables = _tables(steps)
    result.exit_code = HELD if result.held or result.quarantined or result.faults else DONE


def _tables(steps: Steps) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}

    def row(database: str, table: str) -> dict[str, Any]:
        empty = {"rows_in": 0, "inserts": 0, "updates": 0, "deletes": 0, "rows": None, "ddl": []}
        return rows.setdefault((database, table), {"database": database, "table": table, **empty})

    for published in steps.published.rows:
        row(published.database, published.table)["rows"] = published.row_count
    for counts in events.summed(steps.decoded.counts, "schema_name", "table_name"):
        row(counts.pop("schema_name"), counts.pop("table_name")).update(rows_in=counts.pop("events"), **counts)
    lives = steps.run.history.history.incarnations()
    for version in steps.evolved:
        life = lives.get(version.incarnation)
        left_out = life is not None and not was_taken(steps.run.feed.tables, life)
        if version.kind != "seen" and version.name.table and not left_out:
            statement = {"commit_ts": version.commit_ts, "statement": version.query, "effect": version.effect}
            row(version.name.database, version.name.table)["ddl"].append(statement)
    return [rows[name] for name in sorted(rows)]


def _text(result: RunResult) -> str:
    lines = [f"feed {result.feed}"]
    if result.error is not None:
        return "\n".join([*lines, f"  failed: {result.error}"])
    if result.checkpoint_ts is None:
        lines.append("  nothing is published yet")
    else:
        what = "published" if result.published else "nothing to do: published before,"
        lines.append(f"  {what} checkpoint-ts {result.checkpoint_ts} ({result.checkpoint_time})")
    if result.loaded_rows:
        lines.append(f"  loaded {plural(result.loaded_rows, 'row')} of the dump")
    if result.tables:
        header = ["table", "rows in", "insert", "update", "delete", "rows now", "ddl"]
        rows = [
            [f"{each['database']}.{each['table']}",
             *(str(each[name]) for name in ("rows_in", "inserts", "updates", "deletes")),
             "-" if each["rows"] is None else str(each["rows"]), str(len(each["ddl"]))]
            for each in result.tables
        ]  # fmt: skip
        lines += ["", *common.grid(header, rows)]
    if ddl := [(change, table) for table in result.tables for change in table["ddl"]]:
        lines += ["", "  DDL applied:"]
        lines += [f"    {each['effect']:<8} {common.short(each['statement'] or table['table'])}" for each, table in ddl]
    problems = common.problem_lines(result.held, result.quarantined, result.faults, result.warnings)
    return "\n".join([*lines, *problems])
