"""`cdc-lakehouse status`: show the state of each feed. No JVM is started, and nothing is written."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from cdc_lakehouse.changelog.positions import lag_seconds, utc_now
from cdc_lakehouse.commands import common
from cdc_lakehouse.commands.common import DONE, HELD, UNREACHABLE, Asked, bad, of_feeds, say, short
from cdc_lakehouse.config import ProblemKind
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import SourceUnreachableError
from cdc_lakehouse.lake.tables.lease import last_holder
from cdc_lakehouse.lake.tables.segments import DUMP, LANDED, totals
from cdc_lakehouse.lake.tables.source_metadata import OPTION_CONFLICT_ADVICE
from cdc_lakehouse.operate.signals import find_problems
from cdc_lakehouse.operate.state import FeedState, health_document
from cdc_lakehouse.pipeline.progress import ReadingProgress, reading_of, time_span

_LONGEST_BEAT_SECONDS: Final = 300
"""How old the heartbeat of Dagster's daemon is at most while it runs."""


@click.command()
@click.option("--check", "checks", is_flag=True, help="For monitoring: exit code 1 if something needs attention.")
@click.option("--held", is_flag=True, help="Only the tables that are held.")
@click.option("--late", is_flag=True, help="Only the tables that are older than their freshness_minutes.")
@click.option("--table", "names", multiple=True, metavar="DATABASE.TABLE", help="Only this table. May be repeated.")
@click.option("--files", is_flag=True, help="The files of each table too, from its metadata.")
@click.option("--quiet", "-q", is_flag=True, help="Only what needs attention.")
@of_feeds("Print the status as JSON.")
def command(
    asked: Asked, checks: bool, held: bool, late: bool, names: tuple[str, ...], files: bool, quiet: bool
) -> int:
    """Show the state of each feed: what needs attention, checkpoints, lag, tables, what is held and quarantined.

    Exit code 0: shown. 3: a source cannot be reached. With --check it is 0 or 1: 1 if a table is held, rows are
    quarantined, messages contradict an option, a source cannot be used, the last run failed or was killed, nothing is
    published, or the cut or a table is older than its freshness_minutes. Runs come from the Dagster instance in
    DAGSTER_HOME, or from the one beside the configuration.

    \b
    Examples:
      cdc-lakehouse status
      cdc-lakehouse status --check --quiet
      cdc-lakehouse status --held
    """
    now = utc_now()
    states = [FeedState(feed, asked.lake, now=now) for feed in asked.feeds]
    # The sources first: what is published meanwhile is not behind them.
    unreachable = any(isinstance(state.source_status.error, SourceUnreachableError) for state in states)
    failed = failed_runs([state.feed.name for state in states])
    statuses = [_status(state, failed.get(state.feed.name, []), files=files) for state in states]
    for status in statuses:
        status["tables"] = [
            each for each in status["tables"]
            if (each["held"] is not None or not held) and (each["late"] or not late)
            and (not names or f"{each['database']}.{each['table']}" in names)
        ]  # fmt: skip
        status["held"] = {name: why for name, why in status["held"].items() if not names or name in names}
    lines = [line for status in statuses for line in _attention(status)]
    texts = ["\n".join(lines)] if quiet else [_text(status, files=files) for status in statuses]
    asked.answer({"feeds": statuses}, *texts)
    if checks:
        return HELD if any(status["attention"] for status in statuses) else DONE
    return UNREACHABLE if unreachable else DONE


def _status(state: FeedState, failed: list[dict[str, Any]], *, files: bool) -> dict[str, Any]:
    """Return the status as the command prints it in JSON. A checkpoint-ts is a TSO, a lag is in seconds; what does not
    exist, or a source does not have, is None.

    pending_records: offsets of topics that have not landed; only present for topics that answer.
    landed_entries, landed_position: entries of a Canal server in the lake, and the binlog position of the last one;
      only present for a server.
    initial: what is loaded of the feed's dump: its `position` (a TSO), files, bytes and rows; `reading` is the
      progress of reading the database, for a feed that begins with it.
    tables: those of the published cut and the held ones. `checkpoint_ts` is of the last cut that has the table, None
      for a held one that never was in a cut; `held` is the reason; `late` says whether it is older than its own or its
      feed's freshness_minutes; `health` is of the table's files now, None without --files, and when the table does not
      exist or cannot be read.
    last_run: the run that held the feed last; `ended_at` is None while it goes on.
    failed_runs: the last runs of the feed and of its own jobs (`job`) that failed; `next_try_at` is when the sensor
      retries one, if it does and Dagster's daemon runs.
    attention: sentences on what needs a person.
    quarantined, discarded: open rows that could not be used, and those that a person discarded.
    contradictions: messages that contradict an option of their format.
    warnings: possible mistakes in the configuration."""
    source, attention = state.source_status, _briefs(state, "held", "quarantined")
    if state.contradictions:
        attention.append("messages contradict an option of their format")
    if source.error is not None:
        attention.append("the source cannot be used")
    last = last_run(state, failed)
    attention += [said for said, _ in failed_or_killed(last, failed)]
    landed: dict[str, Any] = {}
    if source.pending_records is not None:
        landed = {"pending_records": source.pending_records}
    elif source.landed_entries is not None:
        landed = {"landed_entries": source.landed_entries, "landed_position": source.landed_position}
    initial: dict[str, Any] | None = None
    if state.feed.initial is not None:
        rows = state.segments.rows.filter(pc.field("kind") == DUMP)
        known, left = totals(rows), totals(rows.filter(pc.field("state") == LANDED))
        initial = {
            "position": known.max_commit_ts, "files": known.segments, "files_left": left.segments,
            "bytes": known.size, "bytes_left": left.size, "rows": known.events,
            "reading": (reading := reading_of(state.lake, state.feed)) and asdict(reading),
        }  # fmt: skip
    healths = state.health if files else {}
    return {
        "feed": state.feed.name,
        "source_checkpoint_ts": source.checkpoint_ts,
        "source_lag_seconds": None if source.checkpoint_ts is None else lag_seconds(source.checkpoint_ts, state.now),
        **landed,
        "published_checkpoint_ts": state.checkpoint_ts,
        "published_lag_seconds": state.lag_seconds,
        "initial": initial,
        "last_run": last,
        "failed_runs": failed,
        "tables": [
            {
                "database": name.database, "table": name.table,
                "rows": row and row.row_count, "checkpoint_ts": row and row.checkpoint_ts,
                "lag_seconds": state.lag_of(name), "held": state.held.get(name), "late": state.is_late(name),
                "health": (health := healths.get(name)) and health_document(health),
            }
            for name, row in state.tables.items()
        ],
        "held": {str(table): reason for table, reason in state.held.items()},
        "quarantined": state.quarantine.count(),
        "discarded": state.quarantine.count("discarded"),
        "contradictions": state.contradictions,
        "warnings": state.warnings,
        "error": None if source.error is None else source.error.coded,
        "attention": [*attention, *_briefs(state, "stale")],
    }  # fmt: skip


def _briefs(state: FeedState, *kinds: ProblemKind) -> list[str]:
    return list(dict.fromkeys(problem.brief for problem in find_problems(state, *kinds)))


def failed_runs(feeds: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the failed runs by feed. An unreadable instance is reported on stderr, beside the status of the lake."""
    if (home := common.existing_home()) is None or not common.may_have_pending_runs(home):
        return {}
    import dagster as dg  # noqa: PLC0415
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    from cdc_lakehouse.assets.runs import last_runs  # noqa: PLC0415

    def iso(seconds: float) -> str:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")

    try:
        with dg.DagsterInstance.get() as instance:
            beat = instance.get_daemon_heartbeats().get("SENSOR")
            has_sensor = beat is not None and utc_now().timestamp() - beat.timestamp < _LONGEST_BEAT_SECONDS
            return {
                feed: [
                    {
                        "run": run.run_id, "job": run.job or None, "ended_at": iso(run.ended_at), "error": run.error,
                        "next_try_at": iso(run.next_try_at) if has_sensor and run.next_try_at else None,
                    }
                    for run in last_runs(instance, feed) if run.error is not None
                ]
                for feed in feeds
            }  # fmt: skip
    except (dg.DagsterError, SQLAlchemyError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        say(f"cdc-lakehouse: the Dagster instance of {home} cannot be read: {reason}", err=True)
        return {}


def last_run(state: FeedState, failed: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """A run that is known to have failed was not killed: it could not release the feed, as on a full disk."""
    if (holder := last_holder(state.lake, state.feed.name)) is None:
        return None
    ended_at = next((run["ended_at"] for run in failed if run["run"] == holder.run), None)
    was_killed = ended_at is None and not holder.released and not holder.is_alive(state.now)
    if ended_at is None and not holder.is_alive(state.now):
        ended_at = holder.expires_at.isoformat(timespec="seconds")
    return {"run": holder.run, "host": holder.host, "ended_at": ended_at, "was_killed": was_killed}


def failed_or_killed(last: dict[str, Any] | None, failed: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return a sentence for each of the last runs that did not end well, with the details."""
    found = [(f"the last run{of_job(run)} failed", run["error"]) for run in failed]
    if last is not None and last["was_killed"]:
        found.append(("the last run was killed", f"run {last['run']} on {last['host']}"))
    return found


def _attention(status: dict[str, Any]) -> list[str]:
    return [bad(f"feed {status['feed']}: {each}") for each in status["attention"]]


def _text(status: dict[str, Any], *, files: bool) -> str:
    source = _moment(status["source_checkpoint_ts"], status["source_lag_seconds"])
    if "pending_records" in status:
        source = f"{plural(status['pending_records'], 'offset')} to land"
    elif "landed_entries" in status:
        reached = "cannot be used" if status["error"] is not None else "reachable"
        last = "" if status["landed_position"] is None else f", the last one at {status['landed_position']}"
        source = f"{reached}; {plural(status['landed_entries'], 'entry')} landed{last}"
    lines = [
        *(_attention(status) or [common.good(f"feed {status['feed']}: all is well")]),
        f"  source     {source}",
        f"  published  {_moment(status['published_checkpoint_ts'], status['published_lag_seconds'])}",
    ]
    if (run := status["last_run"]) is not None:
        ended = f"until {run['ended_at']}" if run["ended_at"] is not None else "in progress"
        killed = ", when it was killed" if run["was_killed"] else ""
        lines.append(f"  last run   {run['run']} on {run['host']}, {ended}{killed}")
    for failed in status["failed_runs"]:
        of_run = f"run {failed['run']}{of_job(failed)} at {failed['ended_at']}: {short(failed['error'], 200)}"
        lines.append(bad(f"  failed     {of_run}"))
        if failed["next_try_at"] is not None:
            lines.append(bad(f"  failed     the sensor tries it again at {failed['next_try_at']}"))
        elif failed["job"] is None:
            then = "`cdc-lakehouse run` tries it now; a sensor does when the source shows something new"
            lines.append(bad(f"  failed     {then}"))
    if (initial := status["initial"]) is not None:
        files_of = plural(initial["files"] - initial["files_left"], "file")
        loaded = f"loaded {plural(initial['rows'], 'row')} of {files_of}"
        if initial["files_left"]:
            loaded += f"; {plural(initial['files_left'], 'file')} left ({initial['bytes_left']:,} bytes)"
        if initial["reading"] is not None:
            loaded = f"the database is being read: {ReadingProgress(**initial['reading'])}"
        elif not initial["files"]:
            loaded = "the dump is not loaded yet"
        lines.append(f"  initial    {loaded}")
    if status["error"] is not None:
        lines.append(bad(f"  error      {status['error']}"))
    lines += [bad(f"  options    {conflict}") for conflict in status["contradictions"]]
    if status["contradictions"]:
        lines.append(f"             {OPTION_CONFLICT_ADVICE}")
    if status["tables"]:
        header = ["table", "rows", "behind", *(["files", "KiB a file", "deleted", "compacted"] if files else [])]
        cells: list[list[str]] = []
        for table in status["tables"]:
            rows = "-" if table["rows"] is None else str(table["rows"])
            behind = "-" if table["lag_seconds"] is None else time_span(table["lag_seconds"])
            of_files = ["-"] * 4
            if health := table["health"]:
                size, compacted = f"{health['average_bytes'] / 1024:.0f}", (health["compacted_at"] or "never")[:16]
                of_files = [str(health["files"]), size, f"{health['delete_ratio']:.1%}", compacted]
            behind += "" if table["held"] is None else " (held)"
            cells.append([f"{table['database']}.{table['table']}", rows, behind, *of_files][: len(header)])
        first, second, *grid = common.grid(header, cells)
        lines += ["", first, second]
        for line, table in zip(grid, status["tables"], strict=True):
            lines.append(bad(line) if table["held"] is not None else common.doubtful(line) if table["late"] else line)
    problems = common.problem_lines(status["held"], status["quarantined"], [], status["warnings"], status["discarded"])
    return "\n".join([*lines, *problems])


def of_job(run: dict[str, Any]) -> str:
    return "" if run["job"] is None else f" of {run['job']}"


def _moment(commit_ts: int | None, lag: float | None) -> str:
    return "none" if commit_ts is None or lag is None else f"{commit_ts}  ({time_span(lag)} behind)"
