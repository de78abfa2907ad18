"""Decisions of people, on which the next run acts: `cdc-lakehouse quarantine` shows what could not be used, and decides
about it; `cdc-lakehouse hold` holds a table in its current state, and `cdc-lakehouse resume` releases it. No JVM is
started.

A decision about rows is one commit on top of what was read, and is refused while a run holds the feed."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from cdc_lakehouse.changelog.positions import utc_now
from cdc_lakehouse.commands.common import DONE, HELD, Asked, of_feeds, os_user, printable, say
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.decoders import problems
from cdc_lakehouse.errors import ConcurrentRunError, ConfigurationError
from cdc_lakehouse.lake.tables.lease import last_holder
from cdc_lakehouse.lake.tables.quarantine import Quarantined, State
from cdc_lakehouse.lake.tables.segments import DECODED, DUMP, MOVED_ROWS, REPAIR, Kind, Segment
from cdc_lakehouse.pipeline.dump import DumpSource
from cdc_lakehouse.pipeline.holds import hold_table, resume_table
from cdc_lakehouse.pipeline.run import UNKNOWN_COLUMNS, UNREADABLE_SEGMENT, FeedRun

_UNTIL_READ: Final = "its rows are missing from the tables until it can be decoded; each run tries it again"
_MISSING_INPUT: Final = {
    UNREADABLE_SEGMENT: _UNTIL_READ,
    UNKNOWN_COLUMNS: _UNTIL_READ,
    problems.UNREADABLE_INDEX: "rows may be missing from the tables: whether the last data file is there is not known",
    problems.MISSING_FILE: "its rows are missing from the tables until the file is there",
    problems.EXPIRED_FILES: "what the table's files of that time held, if there were any, is missing from it",
    problems.UNREADABLE_DIRECTORY: "the rows of all its files are missing from the tables until it can be listed",
    problems.BAD_SCHEMA_FILE: "its statement is not carried out, and a table with files of its version stays held",
    problems.BAD_TABLE_OF_DUMP: "rows of the dump are missing from the table",
}
"""What it means to discard a row that stands for missing input, by error class."""

_RANGE: Final = re.compile(r"(.*/\d+)/\d+")
"""The name of a range of offsets: its topic's partition, and where it begins."""
_Wanted = Callable[[Quarantined], bool]
_Answer = tuple[dict[str, Any], list[str]]
"""What a command says of a feed: in JSON, and as lines."""

_ids: Any = click.argument("ids", nargs=-1, metavar="[ID]...")
_table: Any = click.option("--table", help="Rows of this table (database.table).")
_class: Any = click.option("--class", "error_class", help="Rows of this class, such as NotJson.")


@click.group()
def command() -> None:
    """List unusable input, give it up, or decode it again."""


@command.command("list")
@_table
@_class
@click.option("--all", "shows_all", is_flag=True, help="Include resolved and discarded rows.")
@of_feeds("Print the rows as JSON.")
def list_(asked: Asked, table: str | None, error_class: str | None, shows_all: bool) -> int:
    """List what is open in the quarantine: by file (or partition of a topic), table and class, with one example; the
    most rows first. --json lists every row.

    \b
    Example:
      cdc-lakehouse quarantine list --table shop.orders
    """
    wanted, found = _filter(table, error_class), list[_Answer]()
    for run in asked.runs:
        rows = sorted(filter(wanted, run.quarantine.rows if shows_all else run.quarantine.open()), key=_order)
        # These count all rows of the feed, whatever is listed.
        counts = {state: run.quarantine.count(state) for state in ("open", "discarded")}
        shown = [{name: value for name, value in _fields(row).items() if name != "raw"} for row in rows]
        head = f"feed {run.feed.name}: {counts['open']} open, {counts['discarded']} discarded"
        found.append(({"feed": run.feed.name, **counts, "rows": shown}, [head, *_groups(rows)]))
    asked.answer({"feeds": [document for document, _ in found]}, *("\n".join(lines) for _, lines in found))
    return DONE


@command.command()
@click.argument("id")
@click.option(
    "--raw", "raw_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the raw bytes to this file."
)
@of_feeds("Print the row as JSON.")
def show(asked: Asked, id: str, raw_path: Path | None) -> int:
    """Print all of a row, with unprintable bytes escaped.

    \b
    Example:
      cdc-lakehouse quarantine show 1f0c2a9be4d7 --raw line.json
    """
    rows = [(run.feed.name, row) for run in asked.runs for row in run.quarantine.rows if row.id == id]
    if not rows:
        raise _no_such([id])
    # A row that was repaired and failed again occurs once for each time.
    feed, row = max(rows, key=lambda each: (each[1].state != "replayed", each[1].quarantined_at))
    if raw_path is not None:
        if row.raw is None:
            what = f"the row {id} has no bytes: it stands for what was not read"
            raise ConfigurationError(what, advice="leave out --raw")
        raw_path.write_bytes(row.raw)
    fields = {"feed": feed, **_fields(row)}
    fields["raw"] = None if row.raw is None else row.raw.decode("utf-8", "backslashreplace")
    width = max(map(len, fields))
    lines = (f"{name:<{width}}  {'-' if value is None else printable(str(value))}" for name, value in fields.items())
    asked.answer(fields, "\n".join(lines))
    return DONE


@command.command()
@_ids
@_table
@_class
@click.option("--reason", help="Why; kept with the rows. [default: asked]")
@click.option("--by", "who", help="Who; by default the user of the operating system.")
@click.option("--yes", is_flag=True, help="Do not ask; with --reason.")
@of_feeds("Print what was done as JSON; with --yes and --reason.")
def discard(
    asked: Asked, ids: Sequence[str], table: str | None, error_class: str | None, reason: str | None, who: str | None,
    yes: bool,
) -> int:  # fmt: skip
    """Give up open rows, by ID, or all of --table, or of --table and --class. It shows them, and asks.

    The next run continues without exactly these rows. They no longer hold a table, and stay discarded as long as the
    same bytes are at the same place. `quarantine replay ID` reverts it.

    Exit code 0: discarded. 1: none of the rows is open, a run has the feed, or the answer was no. 2: there is no such
    row.

    \b
    Examples:
      cdc-lakehouse quarantine discard 1f0c2a9be4d7
      cdc-lakehouse quarantine discard --table shop.orders --class NotJson --reason "test data" --yes
    """
    if not ids and table is None:
        raise click.UsageError("say which rows: ID..., or --table")
    if (yes or asked.as_json) and not (yes and (reason or "").strip()):
        raise click.UsageError("write --yes with --reason" if yes else "write --json with --yes and --reason")
    chosen_rows = _meant(asked, ids, _filter(table, error_class), ("open",))
    for run, rows in [] if asked.as_json else chosen_rows:
        say("\n".join([f"feed {run.feed.name}: {_count(rows)} to discard", *_groups(rows)]))
    if chosen_rows and not yes:
        reason = (reason or "").strip() or click.prompt("Why are they discarded")
        click.confirm("Discard these rows, and have the next run continue without them?", abort=True)
    done: list[_Answer] = []
    for run, rows in chosen_rows:
        discarded = run.quarantine.discard({row.id for row in rows}, who or os_user(), reason or "", utc_now())
        means = [{"id": row.id, "segment": row.segment, "means": _MISSING_INPUT.get(row.error_class)}
                 for row in discarded]  # fmt: skip
        line = f"feed {run.feed.name}: discarded {_count(discarded)}; the next run continues without"
        count = sum(row.count for row in discarded)
        done.append(({"feed": run.feed.name, "discarded": count, "rows": means}, [line]))
    return _answer(asked, done, "none of these rows is open")


@command.command()
@_ids
@_table
@of_feeds("Print what was done as JSON.")
def replay(asked: Asked, ids: Sequence[str], table: str | None) -> int:
    """Have the next run decode the segments of rows again, by ID, or of the open rows of --table.

    Use it after you corrected the configuration, or upgraded. A repaired file needs no replay: its etag has changed.
    Rows that can be used now take their place in the order of the log, because they keep their segment and line.
    Discarded rows are opened again.

    Exit code 0: the next run does it. 1: none of the rows can be decoded again, a segment is no longer in the
    source, or a run has the feed. 2: there is no such row.

    \b
    Example:
      cdc-lakehouse quarantine replay --table shop.orders
    """
    if not ids and table is None:
        raise click.UsageError("say which rows: ID..., or --table")
    done: list[_Answer] = []
    for run, rows in _meant(asked, ids, _filter(table, None), ("open", "discarded") if ids else ("open",)):
        landed, others = replay_rows(run, rows)
        tried, count = [row.segment for row in others], plural(len(landed), "segment")
        lines = [f"feed {run.feed.name}: the next run decodes {count} again"] if landed else []
        lines += [f"  {printable(segment)}: each run tries it again anyway" for segment in tried]
        done.append(({"feed": run.feed.name, "decoded_again": len(landed), "tried_by_each_run": tried}, lines))
    return _answer(asked, done, "none of these rows can be decoded again")


def replay_rows(run: FeedRun, rows: Sequence[Quarantined]) -> tuple[list[Segment], list[Quarantined]]:
    """Land the segments of the rows again; rows that a person had discarded are opened again. Return the segments that
    the next run decodes again, including others that must be decoded with them, and the rows that each run retries by
    itself, such as a file that cannot be read. Needs no JVM.

    Raises `SourceError` when a source no longer has a segment, and `ConcurrentRunError` when another run has written
    meanwhile."""
    known = run.segments.find(row.segment for row in rows).values()
    wanted: dict[Kind, list[Segment]] = defaultdict(list)
    for segment in known:
        if segment.state == DECODED and segment.kind not in (MOVED_ROWS, REPAIR):
            wanted[segment.kind].append(segment)
    landed: list[Segment] = []
    for kind, segments in wanted.items():
        if kind == run.source.kind:
            landed += run.source.replay(segments)
        elif kind == DUMP and run.feed.initial is not None:
            landed += DumpSource(run, run.feed.initial).replay(segments)
        else:
            said = f"the feed has no source of segments of kind {kind} any more"
            raise ConfigurationError(said, feed=run.feed.name, advice="set it back to what it was when they landed")
    # Last: where this ends before, the command can be repeated.
    run.quarantine.reopen({row.id for row in rows})
    names = {segment.segment for segment in landed}
    return landed, [row for row in rows if row.segment not in names]


def _meant(
    asked: Asked, ids: Sequence[str], wanted: _Wanted, states: Collection[State]
) -> list[tuple[FeedRun, list[Quarantined]]]:
    """Return the selected rows in these states, by feed. Raises `ConfigurationError` for an unknown ID, and
    `ConcurrentRunError` when a run holds a feed that has such rows."""
    if unknown := set(ids) - {row.id for run in asked.runs for row in run.quarantine.rows}:
        raise _no_such(sorted(unknown))
    found: list[tuple[FeedRun, list[Quarantined]]] = []
    for run in asked.runs:
        rows = [r for r in run.quarantine.rows if r.state in states and wanted(r) and (not ids or r.id in ids)]
        if rows:
            # A run that begins after this is detected by the commits, which are on top of what was read.
            if (holder := last_holder(asked.lake, run.feed.name)) is not None and holder.is_alive(utc_now()):
                what, advice = f"another run has the feed: {holder}", "wait for it to end, then try again"
                raise ConcurrentRunError(what, feed=run.feed.name, advice=advice)
            found.append((run, rows))
    return found


def _no_such(ids: Sequence[str]) -> ConfigurationError:
    advice = "`cdc-lakehouse quarantine list` shows them"
    return ConfigurationError(f"no row of the quarantine has the id {', '.join(ids)}", advice=advice)


def _answer(asked: Asked, done: Sequence[_Answer], why_not: str) -> int:
    asked.answer({"feeds": [document for document, _ in done]}, "\n".join(line for _, lines in done for line in lines))
    if not done:
        say(why_not, err=True)
    return DONE if done else HELD


def _filter(table: str | None, error_class: str | None) -> _Wanted:
    return lambda row: table in (None, table_of(row)) and error_class in (None, row.error_class)


def table_of(row: Quarantined) -> str:
    """Return the table's name, with `*` for unknown parts: such a row holds all tables that it may belong to."""
    return f"{row.database or '*'}.{row.table or '*'}"


def _fields(row: Quarantined) -> dict[str, Any]:
    """Return a row as JSON, with its bytes as they are. Times are ISO, in UTC."""
    fields = {"id": row.id, **asdict(row)}
    times = {name: value.isoformat() for name, value in fields.items() if isinstance(value, datetime.datetime)}
    return {**fields, **times}


def _groups(rows: Sequence[Quarantined]) -> Iterator[str]:
    """Yield lines about rows, with one example of those that are alike, and what it means to continue without them."""
    for alike in groups(rows):
        row = alike[0]
        yield ""
        yield f"  {row.id}  {row.error_class}  {printable(table_of(row))}  {_count(alike)} since {since(alike)}"
        yield f"    {printable(place_of(row))}: {printable(row.message)}"
        if len(alike) > 1:
            yield f"    and {len(alike) - 1} more like this; `quarantine list --json` has each"
        if row.error_class in _MISSING_INPUT:
            yield f"    without it: {_MISSING_INPUT[row.error_class]}"
        if found := resolution(row):
            yield f"    {printable(found)}"


def groups(rows: Sequence[Quarantined]) -> list[list[Quarantined]]:
    """Return rows that are alike together: of one class, table and file (or partition of a topic), with one resolution.
    Open ones come first, then the most rows."""
    found: dict[tuple[str, ...], list[Quarantined]] = defaultdict(list)
    for row in sorted(rows, key=_order):
        place = partition[1] if (partition := _RANGE.fullmatch(row.segment)) else row.segment
        found[resolution(row), place, row.error_class, table_of(row)].append(row)
    return sorted(found.values(), key=lambda alike: (alike[0].state != "open", -sum(row.count for row in alike)))


def _order(row: Quarantined) -> tuple[str, int, str]:
    return row.segment, row.line or 0, row.error_class


def since(rows: Sequence[Quarantined]) -> str:
    return f"{min(row.quarantined_at for row in rows):%Y-%m-%d %H:%M:%S} UTC"


def place_of(row: Quarantined) -> str:
    return row.segment if row.line is None else f"{row.segment} line {row.line}"


def resolution(row: Quarantined) -> str:
    """Say what became of a row; nothing for an open one."""
    if row.resolved_at is None:
        return ""
    given_up = "" if row.discarded_by is None else f"; discarded by {row.discarded_by}: {row.discard_reason}"
    return f"{row.state} at {row.resolved_at:%Y-%m-%d %H:%M:%S} UTC{given_up}"


def _count(rows: Sequence[Quarantined]) -> str:
    return plural(sum(row.count for row in rows), "row")


# --- Tables ---


@click.command()
@click.argument("table")
@click.option("--reason", required=True, help="Why; `status` and the check nothing_held show it.")
@click.option("--by", "held_by", help="Who holds the table. [default: the user of the system]")
@of_feeds("Print what was done as JSON.")
def hold(asked: Asked, table: str, reason: str, held_by: str | None) -> int:
    """Hold TABLE (database.table) at its last cut until it is resumed. Its events are kept; other tables continue.

    Exit code 0: held, from the next run on. 2: no feed has such a table.

    \b
    Example:
      cdc-lakehouse hold shop.orders --reason "wrong prices since Monday"
    """
    held, refused = list[str](), list[ConfigurationError]()
    for run in asked.runs:
        try:
            hold_table(run, table, reason, held_by or os_user(), utc_now())
            held.append(run.feed.name)
        except ConfigurationError as error:  # It may be a table of another feed.
            refused.append(error)
    if not held:
        raise refused[-1]
    document = {"feeds": [{"feed": feed, "table": table, "held": True} for feed in held]}
    asked.answer(document, "\n".join(f"feed {feed}: the next run holds {table}" for feed in held))
    return DONE


@click.command()
@click.argument("table")
@of_feeds("Print what was done as JSON.")
def resume(asked: Asked, table: str) -> int:
    """Release TABLE (database.table) that a person holds, or approve a rewrite that the policy holds.

    Exit code 0: the next run continues the table. 1: nobody holds it, and none of its rewrites waits.

    \b
    Example:
      cdc-lakehouse resume shop.orders
    """
    done: list[_Answer] = []
    for run in asked.runs:
        hold_ended, versions = resume_table(run, table, utc_now())
        # Statements whose rewrite the next run carries out.
        approved = [version.query or version.kind for version in versions]
        lines = [f"feed {run.feed.name}: {table} continues with the next run"] if hold_ended else []
        lines += [f"feed {run.feed.name}: the next run carries out"] if approved else []
        lines += [f"  {statement}" for statement in approved]
        document = {"feed": run.feed.name, "table": table, "held": False, "hold_ended": hold_ended is not None}
        done += [({**document, "approved": approved}, lines)] if lines else []
    code = _answer(asked, done, f"nobody holds {table}, and no rewrite of {table} waits")
    for run in asked.runs if code == HELD else ():
        lives = run.history.history.incarnations()
        for id, reason in run.last_cut.held:
            if id in lives and str(lives[id].last.name) == table:
                say(f"feed {run.feed.name} holds it for another reason: {reason}", err=True)
    return code
