"""`cdc-lakehouse verify`: compare the tables with those of the source database. A JVM is only started for a repair."""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from typing import Any, Final

import click

from cdc_lakehouse.commands import common
from cdc_lakehouse.commands.common import BAD_INPUT, DONE, HELD, Asked, Shown, grid, of_feeds, os_user, say
from cdc_lakehouse.commands.run import make_passes
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.errors import CdcError, ConfigurationError
from cdc_lakehouse.operate import verify
from cdc_lakehouse.operate.verify import Values, VerifyResult
from cdc_lakehouse.pipeline.run import FeedRun, TableRepair

_Repair = tuple[Sequence[TableRepair], dict[str, str], bool]
"""What was repaired, why other tables were not, and whether no table is left that differs or could not be checked."""
_CODES: Final = {"equal": DONE, "different": HELD, "unchecked": BAD_INPUT}
_FIELDS: Final = ("result", "reason", "source_rows", "lake_rows", "buckets", "different_buckets", "missing", "extra",
                  "different", "changing")  # fmt: skip
"""What JSON has of a `TableResult` as it is."""


@click.command()
@click.option("--table", "tables", multiple=True, help="Only this table (database.table); may be repeated.")
@click.option("--attempts", type=click.IntRange(1, 100), default=3, help="How many times differing keys are compared.")
@click.option("--pause", type=click.FloatRange(0), default=10, help="Seconds between two attempts.")
@click.option("--rows", type=click.IntRange(0, 10_000), default=10, help="Keys shown of each table.")
@click.option("--repair", "repairs", is_flag=True, help="Repair differing rows, and make a pass.")
@click.option("--yes", is_flag=True, help="With --repair: do not ask.")
@common.progress_options
@of_feeds()
def command(
    asked: Asked, tables: tuple[str, ...], attempts: int, pause: float, rows: int, repairs: bool, yes: bool,
    progress: Shown,
) -> int:  # fmt: skip
    """Compare the tables of the published cut with the source database.

    Exit code 0: they are equal, or have been repaired. 1: rows differ. 2: something could not be checked, and no row
    differs.

    \b
    Examples:
      cdc-lakehouse verify --table shop.orders --rows 100
      cdc-lakehouse verify --repair
    """
    if yes and not repairs:
        raise click.UsageError("--yes goes with --repair")
    options = {"attempts": attempts, "pause_seconds": pause, "shown": verify.MOST_KEYS if repairs else rows}
    with common.ProgressLine(progress):
        results = [
            verify.verify_feed(functools.partial(FeedRun, feed, asked.lake), feed.verify, tables, **options)
            for feed in asked.feeds
            if feed.verify is not None
        ]
    if not results:
        raise ConfigurationError("no source database is configured", advice="set verify.url of the feed")
    if tables and not any(result.tables or result.held or result.error for result in results):
        advice = "name it as the source does, database.table: `cdc-lakehouse status` shows what is published"
        raise ConfigurationError(f"no table {', '.join(tables)} is published", advice=advice)
    if not asked.as_json:
        say("\n\n".join(_text(result, rows) for result in results))
    repaired = {result.feed: _repair(asked, result, ask=not yes, progress=progress) for result in results if repairs}
    if asked.as_json:
        common.print_json({"feeds": [_document(result, rows, repaired.get(result.feed)) for result in results]})
    else:
        for name, (done, refused, _) in repaired.items():
            lines = [
                f"  repaired {each.name} at {each.checkpoint_ts}: {each.count('I')} inserted, "
                f"{each.count('U')} updated, {each.count('D')} deleted"
                for each in done
            ]
            lines += [f"  not repaired: {table}: {why}" for table, why in refused.items()]
            say("\n".join(["", f"feed {name}:", *(lines or ["  nothing to repair"])]))
    found = {"equal" if result.feed in repaired and repaired[result.feed][2] else result.result for result in results}
    return next(_CODES[each] for each in ("different", "unchecked", "equal") if each in found)


def _repair(asked: Asked, result: VerifyResult, *, ask: bool, progress: Shown) -> _Repair:
    """Repair the differing tables of a feed, as far as possible."""
    feed, run = asked.config.feed(result.feed), FeedRun(asked.config.feed(result.feed), asked.lake)
    planned: list[TableRepair] = []
    refused: dict[str, str] = {}
    for table in result.tables:
        if table.result == "different":
            try:
                planned.append(verify.plan_repair(run, table, f"{os_user()}@{socket.gethostname()}"))
            except CdcError as error:
                refused[str(table.name)] = str(error)
    if not planned:
        return (), refused, False
    keys = sum(len(each.rows) for each in planned)
    question = f"Write {plural(keys, 'row')} of the source into {', '.join(str(each.name) for each in planned)}?"
    if ask and not click.confirm(question, err=True):
        return (), refused | {str(each.name): "not confirmed" for each in planned}, False
    (made,) = make_passes(asked.config, progress, [(feed, {"repairs": tuple(planned)})])
    if made.error is not None:
        return (), refused | {str(each.name): made.error for each in planned}, False
    held = FeedRun(feed, asked.lake).last_cut.held_incarnations
    refused |= {str(e.name): "written, and the table is held" for e in planned if e.incarnation in held}
    left = any(table.result == "unchecked" for table in result.tables)
    return planned, refused, not (refused or left or result.held or result.error)


def _document(result: VerifyResult, rows: int, repair: _Repair | None) -> dict[str, Any]:
    """Return a result as JSON, with `repair` where there was one. Binary values are hexadecimal, others are texts."""
    repaired = [
        {
            "database": each.name.database, "table": each.name.table, "checkpoint_ts": each.checkpoint_ts,
            "inserted": each.count("I"), "updated": each.count("U"), "deleted": each.count("D"),
        }
        for each in (repair[0] if repair else ())
    ]  # fmt: skip
    return {
        **({"repair": {"tables": repaired, "not_repaired": repair[1]}} if repair else {}),
        **{name: getattr(result, name) for name in ("feed", "result", "checkpoint_ts", "server", "error")},
        "held": {str(table): why for table, why in result.held.items()},
        "tables": [
            {
                "database": table.name.database, "table": table.name.table,
                **{name: getattr(table, name) for name in _FIELDS},
                "left_out": dict(table.left_out),
                "differences": [
                    {
                        "kind": each.kind, "key": _printable(each.key), "columns": list(each.columns),
                        "source": _printable(each.source), "lake": _printable(each.lake),
                    }
                    for each in table.differences[:rows]
                ],
            }
            for table in result.tables
        ],
    }  # fmt: skip


def _printable(values: Values | None) -> dict[str, str | None] | None:
    if values is None:
        return None
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}


def _text(result: VerifyResult, rows: int) -> str:
    # What was compared says whether it is equal, whatever else is held.
    equal, summary = sum(table.result == "equal" for table in result.tables), result.result
    if result.held and result.error is None and equal == len(result.tables):
        summary = f"{plural(equal, 'table')} equal; {len(result.held)} held, not compared"
    lines = [f"feed {result.feed}: {summary}", f"  cut     {result.checkpoint_ts or 'none'}"]
    if result.server is not None:
        lines.append(f"  source  {result.server}")
    if result.error is not None:
        lines.append(f"  error   {result.error}")
    if result.tables:
        header = ["table", "result", "rows in source", "in lake", "buckets", "differ", "differing keys", "changing"]
        cells: list[list[str]] = []
        for table in result.tables:
            names = ("source_rows", "lake_rows", "buckets", "different_buckets", "differing_keys", "changing")
            shown = ["-" if table.result == "unchecked" else str(getattr(table, name)) for name in names]
            cells.append([str(table.name), table.result, *shown])
        lines += ["", *grid(header, cells)]
    for table in result.tables:
        notes = [] if table.reason is None else [f"    could not be checked: {table.reason}"]
        notes += [f"    column {name} is not compared: {why}" for name, why in table.left_out.items()]
        differences = table.differences[:rows]
        for each in differences:
            notes.append(f"    {each}")
            if each.kind != "extra":
                notes.append(f"      source: {verify.row_text(each.source, each.columns)}")
            if each.kind != "missing":
                notes.append(f"      lake:   {verify.row_text(each.lake, each.columns)}")
        if table.differing_keys > len(differences):
            notes.append(f"    and {plural(table.differing_keys - len(differences), 'more key')}")
        lines += ["", f"  {table.name}", *notes] if notes else []
    if result.held:
        held = (f"    {table}: {why}" for table, why in sorted(result.held.items(), key=str))
        lines += ["", "  held, not compared:", *held]
    return "\n".join(lines)
