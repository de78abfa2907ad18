"""The record of a command's run in the Dagster instance. The run is not Dagster's: it is recorded when it begins to
work, and its events, those of the job's ops, in one go when it has ended. A run that is killed in between stays
unfinished until it is found (`runs.find_unfinished`)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import dagster as dg

from cdc_lakehouse.assets.runs import FAILURE_TAG, payload_of_event, payload_of_failure, payload_of_success
from cdc_lakehouse.assets.sensors import run_tags
from cdc_lakehouse.assets.steps import DATES_TAG, LOAD_TAG, build_new_job, decisions_config, log_step
from cdc_lakehouse.errors import RunNotRecordedError, failure_kind, in_one_line
from cdc_lakehouse.pipeline.run import FeedRun
from cdc_lakehouse.pipeline.steps import Steps

_Kind = dg.DagsterEventType
_MESSAGE = logging.Formatter("%(message)s")
"""With the stack of an exception, where one was logged."""


class RunReport:
    """The report of one run, with the tags and the configuration with which Dagster can execute it again; the context
    of functions that log results. `messages` are what the run has logged and the report does not have yet."""

    def __init__(
        self, instance: dg.DagsterInstance, run: FeedRun, run_id: str, attempt: int, rebuild_tables: Sequence[str],
        messages: list[logging.LogRecord], began: float,
    ) -> None:  # fmt: skip
        self.instance, self.log = instance, run.log
        self._run_id, self._messages, self._began, self._is_recorded = run_id, messages, began, False
        self._job, self._tags, self._settings = build_new_job(run.feed), run_tags(run.feed, attempt), dict[str, Any]()
        self._step: str | None = None
        if run.dates:
            self._job = build_new_job(run.feed, "dates")
            # Dagster knows a range: these partitions, and those between them.
            ends = {f"dagster/asset_partition_range_{end}": of(run.dates) for end, of in (("start", min), ("end", max))}
            self._tags |= {DATES_TAG: ",".join(sorted(run.dates)), **ends}
        if run.reload_tables:
            self._tags[LOAD_TAG] = json.dumps(sorted(run.reload_tables))
        if rebuild_tables:
            self._settings = decisions_config(run.feed.name, rebuild=list(rebuild_tables))

    def begin(self) -> None:
        """Record the run, as one that is going on since it began. Raises `RunNotRecordedError`."""
        if self._is_recorded:
            return
        of_run = {"run_id": self._run_id, "run_config": self._settings, "tags": self._tags}
        try:
            self.instance.create_run_for_job(self._job, **of_run)
            self._is_recorded = True
            self._report(_Kind.RUN_START, at=self._began)
        except Exception as error:  # Whatever its storage raises.
            raise RunNotRecordedError(f"the run cannot be recorded in Dagster: {in_one_line(error)}") from error

    def end(self, steps: Steps) -> None:
        """Record the results of the run, which has begun and ended. Raises what it has failed with."""
        end = _Kind.RUN_FAILURE
        try:
            for node in self._job.graph.nodes_in_topological_order:
                self._step, began = node.name, time.time()
                self._report(_Kind.STEP_START)
                log_step(self, steps, self._step.rpartition("__")[2])
                self._report_messages()
                self._report(_Kind.STEP_SUCCESS, data=payload_of_success(time.time() - began))
            end = _Kind.RUN_SUCCESS
        except Exception as error:
            self._report_messages()
            self._report(_Kind.STEP_FAILURE, data=payload_of_failure(error))
            self.instance.add_run_tags(self._run_id, {FAILURE_TAG: failure_kind(error)})
            raise
        finally:
            self._step = None
            self._report(end)

    def log_event(self, event: Any) -> None:
        self._report(*payload_of_event(event))

    def _report(self, kind: dg.DagsterEventType, what: str = "", data: Any = None, at: float | None = None) -> None:
        message = what or f"{kind.value} of {self._step or self._job.name}, which a command runs."
        event = dg.DagsterEvent(
            kind.value, self._job.name, step_key=self._step, event_specific_data=data, message=message
        )
        self.instance.report_dagster_event(event, self._run_id, timestamp=at)

    def _report_messages(self) -> None:
        for each in self._messages:
            text, at = _MESSAGE.format(each), each.created
            entry = dg.EventLogEntry(None, each.levelno, text, self._run_id, at, self._step, self._job.name, None)
            self.instance.handle_new_event(entry)
        self._messages.clear()
