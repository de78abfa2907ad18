"""`cdc-lakehouse maintain`: rewrite small files and deleted rows, expire old snapshots, remove orphan files."""

from __future__ import annotations

from typing import Any

import click

from cdc_lakehouse.commands.common import DONE, HELD, Asked, ProgressLine, Shown, grid, of_feeds, progress_options
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.spark import build_session
from cdc_lakehouse.operate.maintenance import REMOVED, RULES, Maintained, Maintenance
from cdc_lakehouse.operate.state import health_document


@click.command()
@click.option("--table", help="Only this table: database.table of the source, events or records.")
@click.option("--compact", is_flag=True, help="Only rewrite files of current-state tables that need it.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@progress_options
@of_feeds()
def command(asked: Asked, table: str | None, compact: bool, dry_run: bool, progress: Shown) -> int:
    """Keep tables small, as each needs it: compaction, manifests, snapshots, orphan files.

    Runs of the feed can continue meanwhile; they wait briefly. Exit code 0: done. 1: something could not be done.

    \b
    Examples:
      cdc-lakehouse maintain --dry-run
      cdc-lakehouse maintain --table shop.orders
    """
    done: list[tuple[FeedConfig, Maintained]] = []
    with ProgressLine(progress):
        for feed in asked.feeds:
            maintenance = Maintenance(feed, asked.lake, lambda: build_session(asked.config.lake, asked.config.storage))
            work = maintenance.compact if compact else maintenance.maintain
            done.append((feed, work(table, dry_run=dry_run)))
    feeds = [_document(feed, each) for feed, each in done]
    asked.answer({"dry_run": dry_run, "feeds": feeds}, *(_text(feed, each, dry_run=dry_run) for feed, each in done))
    return HELD if any(row.deferred is not None for _, each in done for row in each.tables) else DONE


def _document(feed: FeedConfig, done: Maintained) -> dict[str, Any]:
    tables = [
        {
            "table": str(row.identifier), "source": row.source and str(row.source),
            "before": health_document(row.before), "after": row.after and health_document(row.after),
            **{rule.name: row.counts[rule.name] for rule in RULES if rule.name}, "deferred": row.deferred,
        }
        for row in done.tables
    ]  # fmt: skip
    removed = dict(done.removed)
    forgotten = {f"forgotten_{name}": removed.pop(name) for name in ("cut_rows", "quarantine_rows")}
    return {"feed": feed.name, **forgotten, "removed": removed, "tables": tables}


def _text(feed: FeedConfig, done: Maintained, *, dry_run: bool) -> str:
    columns = {rule.column: rule.name for rule in RULES if rule.column is not None}
    rows = [
        [
            str(row.identifier),
            _change(row.before.files, row.after and row.after.files),
            _change(row.before.bytes >> 10, row.after and row.after.bytes >> 10),
            _change(f"{row.before.delete_ratio:.1%}", row.after and f"{row.after.delete_ratio:.1%}"),
            _change(row.before.snapshots, row.after and row.after.snapshots),
            *(str(row.counts[name] or "-") for name in columns.values()),
        ]
        for row in done.tables
    ]
    what = "; a dry run: nothing was done" if dry_run else ""
    lines = [f"feed {feed.name}{what}", "", *grid(["table", "files", "KiB", "deleted", "snapshots", *columns], rows)]
    removed = [
        (done.removed[name], of if size is None else f"{of} ({done.removed[size] >> 10} KiB)")
        for name, (of, size) in REMOVED.items()
    ]
    superseded = sum(row.counts["superseded_events"] for row in done.tables)
    removed.append((superseded, "events that later ones of their rows superseded"))
    lines += [f"  no longer kept: {count} {of}" for count, of in removed if count]
    deferred = [f"    {row.identifier}: {row.deferred}" for row in done.tables if row.deferred is not None]
    return "\n".join([*lines, *(["", "  could not be done:", *deferred] if deferred else [])])


def _change(before: int | str, after: int | str | None) -> str:
    return str(before) if after is None or after == before else f"{before} → {after}"
