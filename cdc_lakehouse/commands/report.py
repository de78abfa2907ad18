"""`cdc-lakehouse report` and `ui`: write or serve an HTML page about each feed, which is self-contained.

All texts are escaped, because names and statements come from the source."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import html
import itertools
import math
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
import pyarrow as pa
from cachetools import TTLCache, cached

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import commit_time, lag_seconds, utc_now
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.commands.common import DONE, Asked, of_feeds, printable, say, short
from cdc_lakehouse.commands.decisions import groups, place_of, resolution, since, table_of
from cdc_lakehouse.commands.status import failed_or_killed, failed_runs, last_run, of_job
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.errors import CdcError, ConfigurationError
from cdc_lakehouse.lake.tables.quarantine import Decisions
from cdc_lakehouse.lake.tables.segments import DECODED, FILE, OFFSETS, SUMMARY, totals
from cdc_lakehouse.operate.signals import find_problems
from cdc_lakehouse.operate.state import FeedState, KnownHealth, changes_by_table
from cdc_lakehouse.pipeline.progress import time_span

_MOST_ROWS: Final = 200
"""The most rows of the quarantine, and of each lane of the timeline, that are shown, newest first."""
_TOOLTIP: Final = 200
"""The most characters of an event in the drawing; the list below it has all of them."""
_ON_TIME: Final = "on time"
_DATES_OF_CHANGES: Final = 7
"""The number of feed dates for which a table's changes are counted."""
_Event = tuple[datetime.datetime, str, str, str]
"""When, of which lane of the timeline, of which table, and what."""
_LANES: Final = ("run", "DDL", "hold")
_Units = Sequence[tuple[int, str]]
"""The sizes of units and their names, ascending."""
_SPANS: Final[_Units] = ((1, "s"), (60, "min"), (3600, "h"), (86400, "d"))
_COUNTS: Final[_Units] = ((1, ""), (10**3, "thousand"), (10**6, "million"), (10**9, "billion"))
_BYTES: Final[_Units] = ((1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB"))
_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--accent:#3b76c4;--bad:#c0392b;--good:#2e7d4f}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.25rem;margin-top:3rem;border-bottom:2px solid var(--accent)}h3{font-size:1.05rem}
.tiles{display:flex;flex-wrap:wrap;gap:.75rem}.tile{border:1px solid var(--line);border-radius:.5rem;padding:.5rem 1rem}
.tile b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}.bad{color:var(--bad)}.good{color:var(--good)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.875rem}
th,td{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td:first-child{white-space:nowrap}li{overflow-wrap:anywhere}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}code{word-break:break-word;font-size:.8125rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1rem}figure{margin:0}
svg{width:100%;max-height:11rem}svg polyline{fill:none;stroke:var(--accent)}svg rect,svg circle{fill:var(--accent)}
svg text{font-size:11px;fill:currentColor}
svg line{stroke:var(--line)}tr.bad td{color:var(--bad)}input{font:inherit;width:100%;max-width:24rem;margin:.5rem 0}
@media print{h2{break-before:page}}@media(max-width:40rem){.lanes text{font-size:22px}}
"""

_SCRIPT: Final = """
for (const search of document.querySelectorAll("input[type=search]")) search.oninput = () => {
  for (const row of search.nextElementSibling.querySelectorAll("tbody tr"))
    row.hidden = !row.textContent.toLowerCase().includes(search.value.toLowerCase());
};
"""
_POLICY: Final = (
    "default-src 'none';style-src 'unsafe-inline';"
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
)
"""What a browser may load and execute: nothing but this page's own style and script."""
_REFRESH_SECONDS: Final = 30


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("report.html"),
    help="The file to write or overwrite.",
)  # fmt: skip
@of_feeds("Print what was written as JSON.")
def command(asked: Asked, out: Path) -> int:
    """Write a page of HTML about each feed: lag, throughput, tables by size and change rate, health, what is held and
    quarantined, runs and DDL.

    The file is self-contained. It holds names of tables, statements and error messages, and no rows.
    No table is changed.

    \b
    Example:
      cdc-lakehouse report --feed shop --out report.html
    """
    document = _page(asked, {})
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(document, encoding="utf-8")
    asked.answer({"wrote": str(out), "feeds": [feed.name for feed in asked.feeds]}, f"wrote {out}")
    return DONE


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=3070, help="The port; 0: any free one.")
@click.option("--host", default="127.0.0.1", help="The address to listen on. There is no password.")
@of_feeds(None)
def ui(asked: Asked, port: int, host: str) -> int:
    """Serve the report as a status page, until it is interrupted. It refreshes every 30 seconds.

    \b
    Example:
      cdc-lakehouse ui --port 3070
    """
    try:
        server = ThreadingHTTPServer((host, port), page_handler(asked))
    except OSError as error:
        what = f"cannot listen at {host}:{port}: {error.strerror}"
        raise ConfigurationError(what, advice="give another --host or --port") from None
    with server:
        say(f"http://{host}:{server.server_port}/")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return DONE


def page_handler(asked: Asked) -> type[BaseHTTPRequestHandler]:
    """Return the handler of a server that serves the page of the feeds. A page is kept for some seconds."""
    known = KnownHealth()

    @cached(TTLCache(1, _REFRESH_SECONDS / 2), condition=threading.Condition())
    def current() -> tuple[int, bytes]:
        try:
            return 200, _page(asked, known, refreshes=True).encode()
        except CdcError as error:
            return 503, f"<!doctype html><meta charset=utf-8><p>{_text(error.coded)}</p>".encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = current() if self.path == "/" else (404, b"")
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - The base's name.

    return Page


def _page(asked: Asked, known: KnownHealth, *, refreshes: bool = False) -> str:
    """Return the document; one that `refreshes` is loaded again by the browser."""
    now = utc_now()
    states = [FeedState(feed, asked.lake, now=now, known_health=known) for feed in asked.feeds]
    failed = failed_runs([feed.name for feed in asked.feeds])
    refresh = f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">' if refreshes else ""
    links = " · ".join(f'<a href="#feed-{n}">{_text(state.feed.name)}</a>' for n, state in enumerate(states))
    body = "".join(_feed(state, failed.get(state.feed.name, []), number) for number, state in enumerate(states))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>cdc-lakehouse report</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">{refresh}'
        f"<style>{_STYLE}</style></head><body>"
        f"<h1>Report of {_time(now)}</h1><p>{links}</p>{body}<script>{_SCRIPT}</script></body></html>\n"
    )


def _feed(state: FeedState, failed: Sequence[dict[str, Any]], number: int) -> str:
    cuts, decoded = _cuts(state), state.segments.rows.filter(pc.field("state") == DECODED)
    every = sorted(_events(state, cuts, failed), reverse=True)
    by_lane = ([event for event in every if event[1] == lane][:_MOST_ROWS] for lane in _LANES)
    events = sorted(itertools.chain(*by_lane), reverse=True)
    shown = [[_time(at), *texts] for at, *texts in events]
    error = state.source_status.error
    notes = [] if error is None else [f"the source cannot be used: {error.coded}"]
    notes += [problem.text for problem in find_problems(state, "held", "quarantined", "stale")]
    notes += map(": ".join, failed_or_killed(last_run(state, failed), failed))
    notes += [*state.contradictions, *state.warnings]
    items = re.sub("`([^`<]+)`", r"<code>\1</code>", "".join(f"<li>{_text(note)}</li>" for note in notes))
    well = '<p class="good">Nothing is held, and nothing contradicts the configuration.</p>'
    found = groups(state.quarantine.open())
    quarantined = [
        [row.error_class, table_of(row), f"{sum(each.count for each in alike):,}", since(alike), row.id, place_of(row),
         row.message]
        for alike in found[:_MOST_ROWS] for row in alike[:1]
    ]  # fmt: skip
    header = ["class", "table", "rows", "since", "first", "where", "message"]
    return "".join([
        f'<section id="feed-{number}"><h2>Feed {_text(state.feed.name)}</h2>',
        _tiles(state, totals(decoded).events),
        f'<ul class="bad">{items}</ul>' if notes else well,
        "<h3>Timeline</h3>",
        _lanes(events),
        '<h3>Cuts, by when they were published</h3><div class="plots">',
        _plot("Lag", _SPANS, [(cut.published_at, cut.lag_seconds) for cut in cuts]),
        _plot("Changes a minute", _COUNTS, [(cut.published_at, cut.changes_a_minute) for cut in cuts]),
        _plot("Rows in the cut", _COUNTS, [(cut.published_at, cut.rows) for cut in cuts]),
        _plot("Bytes in the cut, of tables that exist now", _BYTES, [(cut.published_at, cut.size) for cut in cuts]),
        "</div><h3>Tables</h3>",
        _tables(state, decoded),
        "<h3>Quarantine</h3>",
        _grid(header, quarantined, {2}, {5, 6}) + _more(len(found) - _MOST_ROWS),
        "<h3>Runs, DDL and holds</h3>",
        _grid(["time", "what", "table", ""], shown, code={3}) + _more(len(every) - len(events)),
        "</section>",
    ])  # fmt: skip


def _tiles(state: FeedState, decoded: int) -> str:
    rows = sum(row.row_count for row in state.tables.values() if row is not None)
    open_rows, source = state.quarantine.count(), state.source_status
    pending, shown = source.pending_records, source.checkpoint_ts
    tiles = [
        ("offsets not landed", None if pending is None else f"{pending:,}", False),
        ("source", None if shown is None else f"{time_span(lag_seconds(shown, state.now))} behind", False),
        ("published", "nothing" if state.lag_seconds is None else f"{time_span(state.lag_seconds)} behind",
         state.checkpoint_ts is None),
        ("tables", f"{len(state.tables):,}", False),
        ("rows", f"{rows:,}", False),
        ("changes decoded", f"{decoded:,}", False),
        ("held tables", f"{len(state.held):,}", bool(state.held)),
        ("quarantined", f"{open_rows:,}", bool(open_rows)),
    ]  # fmt: skip
    shown_tiles = (
        f'<div class="tile">{name}<b{" class=bad" if bad else ""}>{_text(value)}</b></div>'
        for name, value, bad in tiles if value is not None
    )  # fmt: skip
    return f'<div class="tiles">{"".join(shown_tiles)}</div>'


def _tables(state: FeedState, decoded: pa.Table) -> str:
    """The tables, and their changes from a date on: a recent rate, and a limit to what is read."""
    dates = pc.unique(decoded.filter(pc.field("kind") != SUMMARY)["feed_date"]).to_pylist()
    first = next(iter(sorted(filter(None, dates))[-_DATES_OF_CHANGES:]), None)
    changes, late = changes_by_table(state, first), {name for name in state.tables if state.is_late(name)}
    words = {"held": state.held, "quarantined": state.quarantined, "late": late}
    states = {name: next((word for word, of in words.items() if name in of), _ON_TIME) for name in state.tables}
    by_size = sorted(state.tables, key=lambda name: -(health.bytes if (health := state.health[name]) else 0))
    rows: list[list[str]] = []
    for name in sorted(by_size, key=lambda name: states[name] == _ON_TIME):
        row, lag, health, counts = state.tables[name], state.lag_of(name), state.health[name], changes.get(name)
        files = ["–"] * 4
        if health is not None:
            compacted = "never" if health.compacted_at is None else f"{health.compacted_at:%Y-%m-%d %H:%M}"
            files = [f"{health.bytes >> 10:,}", f"{health.files:,}", f"{health.delete_ratio:.1%}", compacted]
        changed = ["–"] * 4 if counts is None else [f"{number:,}" for number in (sum(counts), *counts)]
        shown = ["–" if row is None else f"{row.row_count:,}", "–" if lag is None else time_span(lag)]
        rows.append([str(name), states[name], *shown, *files, *changed])
    bad = {place for place, row in enumerate(rows) if row[1] != _ON_TIME}
    header = ["table", "state", "rows", "behind", "KiB", "files", "deleted", "compacted"]
    header += ["changes", "inserts", "updates", "deletes"]
    search = '<input type="search" placeholder="search tables" aria-label="search tables">'
    counted = "" if first is None else f"<p>Changes are those since {_text(first)}.</p>"
    return search + _grid(header, rows, range(2, len(header)), bad=bad) + counted


class _Cut(NamedTuple):
    """A published cut. rows: of all its tables. size: the bytes of those that are there now, None when one of their
    snapshots is gone. changes_a_minute: those since the cut before, by the minutes between both; None for the first."""

    checkpoint_ts: int
    published_at: datetime.datetime
    lag_seconds: float
    tables: int
    rows: int
    size: int | None
    changes_a_minute: float | None


def _cuts(state: FeedState) -> list[_Cut]:
    """Return the newest cuts, oldest first, from `checkpoints`, the segments, and the tables' snapshots."""
    rows = state.checkpoints.newest(_MOST_ROWS)
    known = [health.sizes for health in state.health.values() if health is not None]
    sizes: dict[int | None, int] = {None: 0, **{id: size for each in known for id, size in each}}
    # Before it a table of this name was another one, which was dropped or renamed.
    lives = sorted(state.history.history.incarnations().values(), key=_named_since)
    began = {life.last.name: _named_since(life) for life in lives}
    of_cut: dict[int, list[int | None]] = {}
    for row in rows.select(["checkpoint_ts", "database", "table", "snapshot_id"]).to_pylist():
        of_tables = of_cut.setdefault(row["checkpoint_ts"], [])
        name = TableName(row["database"], row["table"])
        if name in state.health and row["checkpoint_ts"] >= began.get(name, 0):
            of_tables.append(sizes.get(row["snapshot_id"]))
    columns = [("published_at", "max"), ("row_count", "count"), ("row_count", "sum")]
    found = sorted(zip(*rows.group_by("checkpoint_ts").aggregate(columns).to_pydict().values(), strict=True))
    # The events of the segments that end after the cut before.
    segments = state.segments.rows.filter(
        pc.field("kind").isin([FILE, OFFSETS]) & pc.field("events").is_valid() & pc.field("max_commit_ts").is_valid()
    )
    ends = np.array([commit_ts for commit_ts, *_ in found], np.int64)
    places = np.searchsorted(ends, segments["max_commit_ts"].to_numpy())
    changed = np.bincount(places, segments["events"].to_numpy(), len(ends) + 1)[: len(ends)].astype(int).tolist()
    cuts: list[_Cut] = []
    for (commit_ts, published_at, tables, row_count), changes in zip(found, changed, strict=True):
        minutes = (published_at - cuts[-1].published_at).total_seconds() / 60 if cuts else 0
        bytes_of = of_cut[commit_ts]
        size = None if None in bytes_of else sum(each or 0 for each in bytes_of)
        rate = changes / minutes if minutes > 0 else None
        behind = lag_seconds(commit_ts, published_at)
        cuts.append(_Cut(commit_ts, published_at, behind, tables, row_count, size, rate))
    return cuts


def _named_since(life: Incarnation) -> int:
    """Return the commit-ts from which on a table has had its last name."""
    *_, first = itertools.takewhile(lambda version: version.name == life.last.name, reversed(life.versions))
    return first.commit_ts


def _events(state: FeedState, cuts: Iterable[_Cut], failed: Iterable[dict[str, Any]]) -> Iterator[_Event]:
    """Yield what happened to a feed: runs that published or failed, DDL, and what holds tables."""
    for cut in cuts:
        numbers = f"{plural(cut.tables, 'table')}, {plural(cut.rows, 'row')}, {time_span(cut.lag_seconds)} behind"
        yield cut.published_at, "run", "", f"published {cut.checkpoint_ts}: {numbers}"
    for run in failed:
        yield datetime.datetime.fromisoformat(run["ended_at"]), "run", "", f"failed{of_job(run)}: {run['error']}"
    for version in state.history.history.versions:
        if version.query and version.kind != "seen":
            # A statement on a database has no table.
            table = str(version.name).removesuffix(".")
            yield commit_time(version.commit_ts), "DDL", table, f"{version.effect}: {version.query}"
    for alike in groups(state.quarantine.rows):
        row, rows = alike[0], plural(sum(row.count for row in alike), "row")
        began, why = min(each.quarantined_at for each in alike), f"quarantined as {row.error_class}: {place_of(row)}"
        yield began, "hold", table_of(row), f"{rows} {why}"
        if row.resolved_at is not None:
            yield row.resolved_at, "hold", table_of(row), f"{rows} {resolution(row)}"
    for hold in Decisions(state.lake, state.feed.name).holds():
        yield hold.decided_at, "hold", f"{hold.database}.{hold.table}", f"held by {hold.decided_by}: {hold.reason}"


# --- HTML ---


def _text(value: str) -> str:
    return html.escape(printable(value))


def _grid(
    header: Iterable[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = (), code: Collection[int] = (),
    bad: Collection[int] = (),
) -> str:  # fmt: skip
    if not rows:
        return "<p>None.</p>"

    def cells(tag: str, values: Iterable[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place in numbers else ''}>"
            + (f"<code>{_text(value)}</code>" if place in code and tag == "td" else _text(value))
            + f"</{tag}>"
            for place, value in enumerate(values)
        )

    body = "".join(f"<tr{' class=bad' if n in bad else ''}>{cells('td', row)}</tr>" for n, row in enumerate(rows))
    return f'<div class="wide"><table><thead><tr>{cells("th", header)}</tr></thead><tbody>{body}</tbody></table></div>'


def _plot(title: str, units: _Units, points: Sequence[tuple[datetime.datetime, float | None]]) -> str:
    """Draw a value over time, with axes; each point has its number as a tooltip. Times without a value are left out."""
    known = [(at, value) for at, value in points if value is not None]
    if len(known) < 2:
        return f"<figure><figcaption>{title}</figcaption><p>Fewer than two cuts have this value.</p></figure>"
    first, last, most = known[0][0], known[-1][0], max(value for _, value in known)
    size, unit = next(((size, unit) for size, unit in reversed(units) if most >= size), units[0])
    power = 10 ** math.floor(math.log10(max(most / size, 1)))
    top = next(step * power for step in (1, 2, 5, 10) if step * power >= most / size)
    scale = 370 / max(1.0, (last - first).total_seconds())
    placed = [(60 + (at - first).total_seconds() * scale, 130 - 110 * value / size / top) for at, value in known]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{_time(at)}: {value / size:,.1f} {unit}</title></circle>'
        for (x, y), (at, value) in zip(placed, known, strict=True)
    )
    ticks = "".join(
        f'<line x1="60" x2="430" y1="{y}" y2="{y}"/><text x="54" y="{y + 4}" text-anchor="end">{value:,.10g}</text>'
        for y, value in ((130, 0), (75, top / 2), (20, top))
    )
    form = "%H:%M" if first.date() == last.date() else "%m-%d %H:%M"
    ends = f'<text x="60" y="150">{first:{form}}</text><text x="430" y="150" text-anchor="end">{last:{form}} UTC</text>'
    caption = f"<figcaption>{title}{unit and f', {unit}'}</figcaption>"
    drawing = f'{ticks}{ends}<polyline points="{line}"/>{marks}'
    return f'<figure>{caption}<svg viewBox="0 0 440 156" role="img" aria-label="{title}">{drawing}</svg></figure>'


def _lanes(events: Sequence[_Event]) -> str:
    """Draw a mark for each event, with a lane for runs, one for DDL and one for holds; the newest is on the right."""
    if not events:
        return "<p>None.</p>"
    first, last = events[-1][0], events[0][0]
    scale = 836 / max(1.0, (last - first).total_seconds())
    heights = {lane: 10 + 36 * n for n, lane in enumerate(_LANES)}
    axes = "".join(f'<line x1="0" y1="{y}" x2="900" y2="{y}"/>' for y in (42, 78, 114))
    marks: list[str] = []
    for at, lane, table, text in events:
        title = _text(f"{_time(at)} {table} {short(text, _TOOLTIP)}")
        place = f'x="{60 + (at - first).total_seconds() * scale:.1f}" y="{heights[lane]:.1f}"'
        marks.append(f'<g><title>{title}</title><rect {place} width="4.0" height="28.0"/></g>')
    names = "".join(f'<text x="0" y="{y + 18}">{lane}</text>' for lane, y in heights.items())
    ends = _time(first) if first == last else f"{_time(first)} to {_time(last)}"
    form = 'class="lanes" viewBox="0 0 900 136" role="img" preserveAspectRatio="xMinYMid meet"'
    return f'<svg {form}>{axes}{"".join(marks)}{names}<text x="0" y="130">{ends}</text></svg>'


def _more(left_out: int) -> str:
    return f"<p>and {left_out:,} more</p>" if left_out > 0 else ""


def _time(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
