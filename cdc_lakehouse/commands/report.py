"""`cdc-lakehouse report`: write an HTML page about each feed, in one self-contained file.

All texts are escaped, because names and statements come from the source."""

from __future__ import annotations

import datetime
import html
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from cdc_lakehouse.changelog.positions import commit_time, lag_seconds, utc_now
from cdc_lakehouse.changelog.schema import TableName, TableVersion
from cdc_lakehouse.commands.common import DONE, chosen, configured, feed_option, print_json, printable, say
from cdc_lakehouse.config import LakehouseConfig
from cdc_lakehouse.decoders.arrow import pc
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.tables.quarantine import Quarantined
from cdc_lakehouse.lake.tables.segments import DECODED, SUMMARY, totals
from cdc_lakehouse.operate.state import FeedState, changes_by_table

_MOST_ROWS: Final = 200
"""The most rows of the quarantine, the DDL and the cuts that are shown, newest first."""
_MOST_BARS: Final = 60
_DATES_OF_CHANGES: Final = 7
"""The number of feed dates for which a table's changes are counted."""
_CUTS: Final = ("checkpoint-ts", "shows", "published", "lag then", "tables", "rows")
_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--accent:#3b76c4;--bad:#c0392b;--good:#2e7d4f}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.25rem;margin-top:3rem;border-bottom:2px solid var(--accent)}h3{font-size:1.05rem}
.tiles{display:flex;flex-wrap:wrap;gap:.75rem}.tile{border:1px solid var(--line);border-radius:.5rem;padding:.5rem 1rem}
.tile b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}.bad{color:var(--bad)}.good{color:var(--good)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.875rem}
th,td{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td:first-child{white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}code{word-break:break-word;font-size:.8125rem}
svg{width:100%;height:9rem}svg rect{fill:var(--accent)}svg text{font-size:11px;fill:currentColor}
@media print{h2{break-before:page}}
"""


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The file to write or overwrite.",
)
@feed_option
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
@configured
def command(config: LakehouseConfig, out: Path, feed_name: str | None, as_json: bool) -> int:
    """Write a page of HTML about each feed: lag, throughput, tables by size and change rate, health, what is held and
    quarantined, DDL and cuts.

    The file is self-contained. It holds names of tables, statements and error messages, and no rows.
    No table is changed.

    \b
    Example:
      cdc-lakehouse report --feed shop --out report.html
    """
    now, lake = utc_now(), Lake(config.lake, config.storage)
    states = [FeedState(lake, feed, now) for feed in chosen(config, feed_name)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(states, now), encoding="utf-8")
    if as_json:
        print_json({"wrote": str(out), "feeds": [state.feed.name for state in states]})
    else:
        say(f"wrote {out}")
    return DONE


def page(states: Sequence[FeedState], now: datetime.datetime) -> str:
    """Return the document."""
    names = [_text(state.feed.name) for state in states]
    links = " · ".join(f'<a href="#feed-{number}">{name}</a>' for number, name in enumerate(names))
    body = "".join(_feed(state, number) for number, state in enumerate(states))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>cdc-lakehouse report</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body>"
        f"<h1>Report of {_time(now)}</h1><p>{links}</p>{body}</body></html>\n"
    )


def _feed(state: FeedState, number: int) -> str:
    cuts, decoded = _cuts(state), state.segments.rows.filter(pc.field("state") == DECODED)
    dated = decoded.filter(pc.field("kind") != SUMMARY)
    dates: list[str | None] = sorted(pc.unique(dated["feed_date"]).to_pylist(), key=lambda date: date or "")
    since = next(iter([date for date in dates if date is not None][-_DATES_OF_CHANGES:]), None)
    by_date = [(date or "no date", totals(dated.filter(_is(date))).events) for date in dates[-_MOST_BARS:]]
    lags = [(_time(cut[1]), round(lag_seconds(cut[0], cut[1]))) for cut in reversed(cuts[:_MOST_BARS])]
    return "".join([
        f'<section id="feed-{number}"><h2>Feed {_text(state.feed.name)}</h2>',
        _tiles(state, totals(decoded).events),
        _notes(state),
        "<h3>Changes by date</h3>",
        _bars(by_date, "changes on one date"),
        "<h3>Lag of cuts when they were published</h3>",
        _bars(lags, "seconds"),
        "<h3>Tables</h3>",
        _tables(state, since),
        "<h3>DDL</h3>",
        _ddl([each for each in reversed(state.history.versions) if each.query and each.kind != "seen"]),
        "<h3>Quarantine</h3>",
        _quarantine(state.quarantine.open()),
        "<h3>Cuts</h3>",
        _grid(_CUTS, [_cut(*cut) for cut in cuts[:_MOST_ROWS]], frozenset({3, 4, 5})) + _more(cuts),
        "</section>",
    ])  # fmt: skip


def _is(date: str | None) -> Any:
    return pc.field("feed_date").is_null() if date is None else pc.field("feed_date") == date


def _tiles(state: FeedState, decoded: int) -> str:
    rows = sum(row.row_count for row in state.tables.values() if row is not None)
    open_rows, shown = state.quarantine.count(), state.source.checkpoint_ts
    published = "nothing" if state.checkpoint_ts is None else _ago(state, state.checkpoint_ts)
    tiles = [
        ("published", published, state.checkpoint_ts is None),
        ("tables", _count(len(state.tables)), False),
        ("rows", _count(rows), False),
        ("changes decoded", _count(decoded), False),
        ("held tables", _count(len(state.held)), bool(state.held)),
        ("quarantined", _count(open_rows), bool(open_rows)),
    ]
    if shown is not None:
        tiles.insert(0, ("source", _ago(state, shown), False))
    if state.source.pending_records is not None:
        tiles.insert(0, ("offsets not landed", _count(state.source.pending_records), False))
    shown_tiles = (
        f'<div class="tile">{name}<b{" class=bad" if bad else ""}>{_text(value)}</b></div>'
        for name, value, bad in tiles
    )
    return f'<div class="tiles">{"".join(shown_tiles)}</div>'


def _notes(state: FeedState) -> str:
    notes = [] if state.source.error is None else [f"the source cannot be used: {state.source.error}"]
    notes += [f"{table} is held: {state.held[table]}" for table in state.tables if table in state.held]
    notes += [*state.contradictions, *state.warnings]
    if not notes:
        return '<p class="good">Nothing is held, and nothing contradicts the configuration.</p>'
    return f'<ul class="bad">{"".join(f"<li>{_text(note)}</li>" for note in notes)}</ul>'


def _tables(state: FeedState, since: str | None) -> str:
    """The tables, and their changes from a date on: a recent rate, and a limit to what is read."""
    header = ["table", "rows", "behind", "KiB", "files", "deleted", "compacted", "changes", "inserts", "updates",
              "deletes"]  # fmt: skip
    changes = changes_by_table(state, since)
    by_size = sorted(state.tables, key=lambda name: -(health.bytes if (health := state.health[name]) else 0))
    counted = "" if since is None else f"<p>Changes are those since {_text(since)}.</p>"
    rows = [_table(state, name, changes.get(name)) for name in by_size]
    return _grid(header, rows, frozenset(range(1, len(header)))) + counted


def _table(state: FeedState, name: TableName, changes: tuple[int, int, int] | None) -> list[str]:
    row, lag, health = state.tables[name], state.lag_of(name), state.health[name]
    files = ["–"] * 4
    if health is not None:
        compacted = "never" if health.compacted_at is None else f"{health.compacted_at:%Y-%m-%d %H:%M}"
        files = [_count(health.bytes >> 10), _count(health.files), f"{health.delete_ratio:.1%}", compacted]
    return [
        str(name),
        "–" if row is None else _count(row.row_count),
        "–" if lag is None else _span(lag),
        *files,
        *(["–"] * 4 if changes is None else [_count(number) for number in (sum(changes), *changes)]),
    ]


def _ddl(versions: Sequence[TableVersion]) -> str:
    rows = [
        # A statement on a database has no table.
        [_time(commit_time(version.commit_ts)), str(version.name).removesuffix("."), version.effect, version.query]
        for version in versions[:_MOST_ROWS]
    ]
    return _grid(["time", "table", "effect", "statement"], rows, code=frozenset({3})) + _more(versions)


def _quarantine(open_rows: Sequence[Quarantined]) -> str:
    if not open_rows:
        return "<p>Empty.</p>"
    classes: Counter[str] = Counter()
    for row in open_rows:
        classes[row.error_class] += row.count
    rows = [
        [
            row.id,
            row.error_class,
            f"{row.database or '*'}.{row.table or '*'}",
            _count(row.count),
            _time(row.quarantined_at),
            row.segment if row.line is None else f"{row.segment} line {row.line}",
            row.message,
        ]
        for row in sorted(open_rows, key=lambda row: row.quarantined_at, reverse=True)[:_MOST_ROWS]
    ]
    header = ["id", "class", "table", "rows", "since", "where", "message"]
    return (
        _grid(["class", "rows"], [[name, _count(count)] for name, count in classes.most_common()], frozenset({1}))
        + _grid(header, rows, frozenset({3}), frozenset({5, 6}))
        + _more(open_rows)
    )


def _cuts(state: FeedState) -> list[tuple[int, datetime.datetime, int, int]]:
    """Return the published cuts, the newest first: the commit-ts, when they were published, and how many tables and
    rows they show."""
    found: dict[int, tuple[datetime.datetime, int, int]] = {}
    for row in state.checkpoints.all_rows():
        _, tables, rows = found.get(row.checkpoint_ts, (None, 0, 0))
        found[row.checkpoint_ts] = row.published_at, tables + 1, rows + row.row_count
    return [(ts, *found[ts]) for ts in sorted(found, reverse=True)]


def _cut(commit_ts: int, published: datetime.datetime, tables: int, rows: int) -> list[str]:
    lag = _span(lag_seconds(commit_ts, published))
    return [str(commit_ts), _time(commit_time(commit_ts)), _time(published), lag, _count(tables), _count(rows)]


# --- HTML ---


def _text(value: str) -> str:
    return html.escape(printable(value))


def _grid(
    header: Iterable[str],
    rows: Sequence[Sequence[str]],
    numbers: frozenset[int] = frozenset(),
    code: frozenset[int] = frozenset(),
) -> str:
    if not rows:
        return "<p>None.</p>"

    def cells(tag: str, values: Iterable[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place in numbers else ''}>"
            + (f"<code>{_text(value)}</code>" if place in code and tag == "td" else _text(value))
            + f"</{tag}>"
            for place, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", header)}</tr></thead><tbody>{body}</tbody></table></div>'


def _bars(values: Sequence[tuple[str, int]], unit: str) -> str:
    """Draw a bar for each value, with its name and number as a tooltip."""
    if not values:
        return "<p>None.</p>"
    most, width = max(1, *(value for _, value in values)), min(60.0, 900 / len(values))
    bars = "".join(
        f'<g><title>{_text(name)}: {_count(value)}</title><rect x="{place * width + 1:.1f}" '
        f'y="{110 - 100 * value / most:.1f}" width="{max(1.0, width - 2):.1f}" '
        f'height="{100 * value / most:.1f}"/></g>'
        for place, (name, value) in enumerate(values)
    )
    first, last = _text(values[0][0]), _text(values[-1][0])
    ends = first if len(values) == 1 else f"{first} to {last}"
    note = f'<text x="0" y="128">{ends}; at most {_count(max(value for _, value in values))} {unit}</text>'
    return f'<svg viewBox="0 0 900 134" role="img" preserveAspectRatio="xMinYMid meet">{bars}{note}</svg>'


def _more(rows: Sequence[object]) -> str:
    return f"<p>and {_count(len(rows) - _MOST_ROWS)} older ones</p>" if len(rows) > _MOST_ROWS else ""


def _count(number: int) -> str:
    return f"{number:,}"


def _time(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _ago(state: FeedState, commit_ts: int) -> str:
    return f"{_span(lag_seconds(commit_ts, state.now))} behind"


def _span(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 120 else f"{datetime.timedelta(seconds=round(seconds))}"
