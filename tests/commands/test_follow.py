"""`run --follow`: when a pass is made, on real sinks, with passes that only publish; and how it ends."""

import contextlib
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

import dagster as dg
import pytest
from dagster._core.storage.runs.schema import RunStorageSqlMetadata
from sqlalchemy import event

from cdc_lakehouse.assets import runs, steps
from cdc_lakehouse.assets.sensors import Decision, poll_source
from cdc_lakehouse.changelog.positions import commit_time, utc_now
from cdc_lakehouse.commands import run
from cdc_lakehouse.commands.run import FollowedFeed, _Runner, follow, until_signalled
from cdc_lakehouse.errors import ConcurrentRunError, ConfigurationError, EngineError, SourceUnreachableError
from cdc_lakehouse.lake.catalog import system_table
from cdc_lakehouse.lake.tables import lease
from cdc_lakehouse.lake.tables.checkpoints import Cut
from cdc_lakehouse.lake.tables.events import Events
from cdc_lakehouse.lake.tables.segments import Archive
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.source import SourceState
from tests.kit.dagster_feed import empty_instance
from tests.kit.lakes import TestLake
from tests.kit.leases import take_on_a_lost_machine
from tests.kit.waiting import until
from tests.pipeline import Sink, lake_in

NEWS = Decision("a:1", "new", SourceState("1", waiting=True, new=True, reason="new"))
NOTHING = Decision(None, "old", SourceState("1", waiting=False, new=False, reason="old"))


@pytest.fixture
def sink(lake: TestLake) -> Sink:
    return Sink(lake.sink, "t", checkpoint=10)


@pytest.fixture
def runner(lake: TestLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Runner:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    return _Runner(lake.config, progress="nothing")


def followed(lake: TestLake, make_pass: Callable[[int], str | None]) -> FollowedFeed:
    return FollowedFeed(lake.name, partial(poll_source, empty_instance(), lake.lake, lake.feed), make_pass, interval=2)


class Passes:
    """Passes that publish what the sink shows, or fail."""

    def __init__(self, lake: TestLake) -> None:
        self.attempts: list[int] = []
        self.error: Exception | None = None
        self._lake, self.feed = lake, followed(lake, self)

    def __call__(self, attempt: int) -> None:
        self.attempts.append(attempt)
        if self.error is not None:
            raise self.error
        run = self._lake.run()
        run.checkpoints.publish(Cut(int(FeedRun(run.feed, run.lake).source.poll(None).cursor)), [])


def test_source_without_answer_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[float] = []
    now = 0.0

    def see(_: str | None) -> Decision:
        asked.append(now)
        if now < 150:
            raise SourceUnreachableError("no answer")
        if now < 300:
            return NOTHING
        raise OSError("not ours\nat all")

    feed = FollowedFeed("a", see, lambda _: pytest.fail("a pass"), interval=2)
    for now in range(400):
        feed.take_turn(now)
    assert asked[:7] == [0, 4, 12, 28, 60, 120, 180]
    assert asked[7:9] == [181, 182], "as often as before, when it answers again"
    assert [after - before for before, after in zip(asked[-5:], asked[-4:], strict=False)] == [4, 8, 16, 32]
    told = [f"cdc-lakehouse: feed a: {what}" for what in (str(SourceUnreachableError("no answer")), "OSError not ours")]
    assert capsys.readouterr().err.splitlines() == told


@pytest.mark.parametrize(("error", "turns"), [(ConfigurationError("wrong"), 1), (ConcurrentRunError("taken"), 3)])
def test_a_pass_that_cannot_begin_waits_for_the_source_or_for_the_other_run(
    lake: TestLake, sink: Sink, capsys: pytest.CaptureFixture[str], error: Exception, turns: int
) -> None:
    passes = Passes(lake)
    passes.error = error
    assert [passes.feed.take_turn(now) for now in (0, 2, 4)] == [False] * 3
    assert len(passes.attempts) == turns
    passes.error = None
    sink.checkpoint(11)
    assert passes.feed.take_turn(6)
    assert capsys.readouterr().err.count(str(error)) == 1


def test_feeds_have_their_turns_and_none_waits_for_anothers_source(tmp_path: Path) -> None:
    lakes = [lake_in(tmp_path / name) for name in ("one", "two", "lost")]
    sinks = [Sink(lake.sink, "t", checkpoint=10) for lake in lakes[:2]]
    passes = [Passes(lake) for lake in lakes]
    order: list[int] = []
    stop = threading.Event()

    def counted(number: int, attempt: int) -> None:
        passes[number](attempt)
        order.append(number)
        if len(order) == 4:
            stop.set()
        elif number == 1:
            for sink in sinks:
                sink.checkpoint(11)

    feeds = [followed(lake, partial(counted, number)) for number, lake in enumerate(lakes)]
    follow(feeds, stop, interval=0.01)
    assert order == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("failure", "waits", "of_this_process"),
    [("EngineError", True, True), ("Py4JError", True, True), ("CatalogUnreachableError", True, False),
     ("DumpError", False, False)],
)  # fmt: skip
def test_follow_passes_that_fail_are_made_later_and_later(failure: str, waits: bool, of_this_process: bool) -> None:
    """Each time the source has something new. Where another process may do better this one ends."""
    feed = FollowedFeed("a", lambda _: NEWS, lambda _: failure, interval=2)
    times = [0, 4, 12, 28, 60, 120] if waits else [0, 1, 2, 3, 4, 5]
    assert [now for now in range(150) if feed.take_turn(now)][:6] == times
    assert bool(feed.failed_passes) == of_this_process
    if of_this_process:
        with pytest.raises(EngineError, match="passes in a row have failed"):
            follow([feed], threading.Event(), 0.01)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_pass_under_way(handlers: None, number: signal.Signals) -> None:
    done: list[str] = []

    def make_pass(_: int) -> None:
        os.kill(os.getpid(), number)
        done.append("whole")

    feeds = [FollowedFeed(name, lambda _: NEWS, make_pass, 0.01) for name in "ab"]

    def work(stop: threading.Event) -> None:
        feeds[0].make_pass = lambda attempt: make_pass(attempt) or (None if stop.wait() else "")
        follow(feeds, stop, 0.01)

    until_signalled(work)
    assert done == ["whole"], "the other feed has no turn any more"


def test_a_second_signal_ends_the_process_at_once(handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))

    def work(stop: threading.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait()
        os.kill(os.getpid(), signal.SIGINT)
        ended.wait()

    until_signalled(work)
    assert codes == [0]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_signal_ends_single_run(lake: TestLake, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """In the midst of it: it reads a checkpoint that never comes."""
    lake.sink.mkdir()
    os.mkfifo(lake.sink / "metadata")
    own = {"DAGSTER_HOME": str(tmp_path / "home"), "CDC_LAKEHOUSE_CONFIG": str(lake.config_path)}
    command = [sys.executable, "-c", "from cdc_lakehouse.cli import main; main(['run'])"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **own}) as run:
        end = writing_end(lake.sink / "metadata", run)
        run.send_signal(number)
        _, said = run.communicate(timeout=300)
        os.close(end)
    assert run.returncode == code, said
    told = f"cdc-lakehouse: ended by {number.name}; the next run continues from what is committed"
    assert said.splitlines()[-1] == told and "Traceback" not in said


def test_two_processes_make_the_instance_of_a_new_home(runner: _Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, lock = list[object](), fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda *what: (asked.append(what), lock(*what)))
    opened: list[dg.DagsterInstance] = []

    def opens() -> None:
        # Of a property that is cached, Python 3.11 makes one at a time.
        opened.append(_Runner.instance.func(runner))

    other = threading.Thread(target=opens)

    def comes_between(*_: object, **__: object) -> None:
        other.start()
        until(lambda: len(asked) == 2 or not other.is_alive())

    # It is called once it is known which tables are absent.
    event.listen(RunStorageSqlMetadata, "before_create", comes_between, once=True)
    opens()
    other.join()
    for each in opened:
        assert each.get_runs() == []
        each.dispose()
    assert len(opened) == 2


def test_run_without_news_takes_no_lease(lake: TestLake, runner: _Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink(lake.sink, checkpoint=10)

    def ran(**settings: object) -> tuple[bool, bool]:
        before = lake.metadata()
        result = runner.try_run(lake.feed.model_copy(update=settings))
        assert result.error is None, result.error
        return result.published, lake.metadata() != before

    assert [ran(), ran()] == [(True, True), (False, False)]
    # The source does not show it, and the checkpoint stays: it is found by the steps.
    assert [ran(format_version=2), ran(format_version=2)] == [(True, True), (False, False)]
    # What a killed run left is taken over, for a status says that it was killed.
    take_on_a_lost_machine(lake, "killed")
    monkeypatch.setattr(lease, "_is_gone", lambda _: True)
    assert [ran(format_version=2), ran(format_version=2)] == [(False, True), (False, False)]
    sink.checkpoint(11)
    assert ran(format_version=2) == (True, True)


def test_run_that_sees_another_begin_says_so(lake: TestLake, runner: _Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nothing to do, and looks without the lease."""
    monkeypatch.setattr(lease.Lease, "_renew", lambda _: None)
    Sink(lake.sink, checkpoint=10)
    other = lease.Lease(lake.lake, lake.name, "other", utc_now)
    assert runner.try_run(lake.feed).published

    monkeypatch.setattr("cdc_lakehouse.commands.run.commit_time", lambda ts: (other.take(), commit_time(ts))[1])
    assert runner.try_run(lake.feed).error_class == "ConcurrentRunError"


def writing_end(pipe: Path, reader: subprocess.Popen[str]) -> int:
    """Open as soon as the process reads from the pipe."""
    while reader.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the process has ended")


def away(*_: object) -> NoReturn:
    raise SourceUnreachableError("away")


def test_run_is_recorded_once_when_threads_write_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It archives what a run before has landed."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    lake = lake_in(tmp_path, source={"archive": True})
    sink, runner = Sink(lake.sink, "t", checkpoint=10), _Runner(lake.config, progress="nothing")
    files = [sink.file("t", at=at) for at in range(1, 9)]
    monkeypatch.setattr(_Runner, "_start", lambda *_, **__: None)
    monkeypatch.setattr(Events, "ensure", lambda _: None)
    monkeypatch.setattr(Events, "writer", away)
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "keep", away)
        assert runner.try_run(lake.feed).error_class == "SourceUnreachableError"
    for number in (2, 3):
        assert runner.try_run(lake.feed).error_class == "SourceUnreachableError"
        assert [run.is_failure for run in runner.instance.get_runs()] == [True] * number
    assert len(Archive(lake.lake, lake.name, lake.run().store).copies()) == len(files)


def test_a_run_that_dagster_does_not_record_writes_nothing(lake: TestLake, runner: _Runner, tmp_path: Path) -> None:
    Sink(lake.sink, checkpoint=10)
    assert runner.instance.get_runs() == []
    with contextlib.closing(sqlite3.connect(tmp_path / "home/history/runs.db")) as storage:
        storage.execute("CREATE TRIGGER fails BEFORE INSERT ON runs BEGIN INSERT INTO absent VALUES (1); END")
        failed = runner.try_run(lake.feed)
        storage.execute("DROP TRIGGER fails")
    assert (failed.error_class, failed.run_id, failed.exit_code) == ("RunNotRecordedError", None, 1)
    assert "no such table" in (failed.error or "") and not failed.held
    assert lake.lake.load(system_table(lake.name, "checkpoints")) is None
    assert runner.try_run(lake.feed).published


@pytest.mark.parametrize("fault", ["event", "commit", "failure"])
def test_events_beside_a_fault_of_dagsters_storage_stay(
    fault: str, lake: TestLake, runner: _Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are stored in one transaction, so that other processes do not wait for long. None is stored twice where a
    database fails to commit, and another has. A run's own failure stays one that is permanent, and is not retried."""
    Sink(lake.sink, checkpoint=10)
    at_once, stored_at_once, real = list[int](), runs.stored_at_once, dg.DagsterInstance.handle_new_event

    @contextlib.contextmanager
    def counted(instance: dg.DagsterInstance) -> Iterator[None]:
        at_once.append(0)
        with stored_at_once(instance):
            yield
        if fault == "commit":
            raise OSError("no room")

    def handle(instance: dg.DagsterInstance, entry: dg.EventLogEntry) -> None:
        event, kind = entry.dagster_event, {"event": "is_step_materialization", "failure": "is_failure"}.get(fault, "")
        if getattr(event, kind, False):
            raise OSError("no room")
        at_once[-1:] = [each + 1 for each in at_once[-1:]]
        real(instance, entry)

    with monkeypatch.context() as patch:
        patch.setattr(steps, "_STORED_AT_ONCE", 2)
        patch.setattr(runs, "stored_at_once", counted)
        patch.setattr(dg.DagsterInstance, "handle_new_event", handle)
        if fault == "failure":
            patch.setattr(steps, "log_step", lambda *_: (_ for _ in ()).throw(ConfigurationError("no room for it")))
        failed = runner.try_run(lake.feed)
    assert "no room" in (failed.error or "") and failed.run_id is not None
    if fault == "failure":
        assert failed.error_class == "ConfigurationError"
        assert runs.find_unfinished(runner.instance, lake.lake, lake.feed, utc_now().replace(year=2100)) is None
        ended = runner.instance.get_run_by_id(failed.run_id)
        assert ended is not None and ended.is_failure and runs.retry_at(ended, 0) is None
        return
    logs = runner.instance.all_logs(failed.run_id)
    found = [each.dagster_event for each in logs if each.dagster_event]
    (step,) = [each.step_key for each in found if each.is_step_failure]
    assert max(at_once[:-1]) == 2 and len(logs) == len({(each.timestamp, each.message) for each in logs})
    wanted = {"STEP_START", "STEP_FAILURE", *(["STEP_SUCCESS"] if fault == "commit" else [])}
    assert wanted <= {each.event_type_value for each in found if each.step_key == step}


def test_following_begins_while_dagsters_storage_is_away(
    lake: TestLake, runner: _Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dg.DagsterInstance, "get", away)
    monkeypatch.setattr(run, "until_signalled", lambda work: work(threading.Event()))
    turns: list[bool] = []
    monkeypatch.setattr(run, "follow", lambda feeds, *_: turns.extend(feed.take_turn(1) for feed in feeds))
    run._follow(runner, [lake.feed], 1, as_json=False)
    assert turns == [False] and "feed" in (said := capsys.readouterr().err) and "away" in said
