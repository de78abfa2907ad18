"""`cdc-lakehouse run --follow`: decide when to make a pass over a feed. The decision is the sensor's; this is its loop,
in one process that stays warm."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cdc_lakehouse.assets.last_runs import class_names
from cdc_lakehouse.assets.sensors import Decision
from cdc_lakehouse.commands.common import DONE, say
from cdc_lakehouse.errors import CdcError, ConcurrentRunError, EngineError, PermanentError, in_one_line
from cdc_lakehouse.pipeline.source import SourceState

_LONGEST_WAIT_SECONDS: Final = 60.0
_SIGNAL_SECONDS: Final = 0.5
"""How long a second signal may wait."""
_MOST_FAILED_PASSES: Final = 5
_NO_WAIT: Final = {None, *class_names(PermanentError)}
_SAME_ELSEWHERE: Final = {None, *class_names(CdcError)} - class_names(EngineError)
"""Failures that another process would have as well: they say nothing about this one."""
_Result = TypeVar("_Result")


@dataclass
class FollowedFeed:
    """One feed that is followed.

    poll: as `assets.sensors.poll_source`, with the cursor of the last pass. make_pass: a pass, given the number
    of tries that failed; returns the name of the error's class if it failed, and raises what kept it from beginning.
    interval: seconds from one look to the next."""

    name: str
    poll: Callable[[str | None], tuple[Decision, SourceState | None]]
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
        problem, state, made = "", None, False
        failures, self._failures = self._failures, 0
        try:
            decision, state = self.poll(self._cursor)
            problem = decision.reason if state is None else "; ".join(map(str, state.faults))
            if state is not None and decision.run_key is not None:
                failure = self.make_pass(decision.attempt)
                made, self._cursor = True, state.cursor
                self.failed_passes = 0 if failure in _SAME_ELSEWHERE else self.failed_passes + 1
                if failure not in _NO_WAIT:
                    self._wait(now, failures)
        except ConcurrentRunError as error:
            problem = str(error)
        except PermanentError as error:
            problem = str(error)
            # The same state would fail again: the next pass is for the next state of the source.
            self._cursor = self._cursor if state is None else state.cursor
        except Exception as error:  # noqa: BLE001 - Whatever a store or a catalog throws may pass.
            problem = str(error) if isinstance(error, CdcError) else in_one_line(error)
            self._wait(now, failures)
        self._tell(problem)
        return made

    def _wait(self, now: float, failures: int) -> None:
        """Take the next turn later than after the failure before."""
        self._failures = failures + 1
        self._due = now + min(self.interval * 2**self._failures, max(self.interval, _LONGEST_WAIT_SECONDS))

    def _tell(self, problem: str) -> None:
        """Print a problem, once while it stays the same."""
        if problem and problem != self._told:
            say(f"cdc-lakehouse: feed {self.name}: {problem}", err=True)
        self._told = problem


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


def unless_signalled(work: Callable[[], _Result]) -> _Result:
    """Return the result of the work, which is done in a thread as in `until_signalled`. SIGINT and SIGTERM end the
    process at once, with a sentence and the exit code that shells use for the signal."""

    def on_signal(number: int, _: Any) -> None:
        name = signal.Signals(number).name
        say(f"cdc-lakehouse: ended by {name}; the next run goes on from what is committed", err=True)
        # As if it were killed: if the JVM was stopped first, the work would end with other errors.
        os._exit(128 + number)

    return _in_thread(work, on_signal)


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
