"""The figures: a table for people and JSON for machines, from the same values."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import duckdb
from pyspark import __version__ as spark_version

from benchmarks.passes import Part, Runs


def as_json(parts: Sequence[Part], settings: dict[str, Any]) -> dict[str, Any]:
    """`ratio` is DuckDB's seconds divided by ours: 1 is as fast as DuckDB, 0.5 half as fast."""
    return {
        "settings": settings,
        "machine": {
            "system": platform.platform(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "spark": spark_version,
            "duckdb": duckdb.__version__,
        },
        "parts": [_figures(part) for part in parts],
    }


def as_markdown(figures: dict[str, Any]) -> str:
    settings, machine = figures["settings"], figures["machine"]
    lines = [
        "| events | measured | MiB read | ours, s | events/s | DuckDB, s | ratio | CPU s | DuckDB, CPU s | ratio "
        "| heap, MiB | JVM, MiB | DuckDB, MiB |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(_line(part) for part in figures["parts"]),
        "",
        "ratio = DuckDB's seconds / ours: 1 is as fast as DuckDB. Seconds are medians, memory is the highest of all "
        "passes (heap used; resident memory of the JVM and of the Python process that DuckDB runs in).",
        "",
        f"{settings['repeats']} passes, {settings['cores']} cores, {settings['memory_gib']} GiB, "
        f"Spark {machine['spark']}, DuckDB {machine['duckdb']}, Python {machine['python']}, {machine['system']}.",
    ]
    return "\n".join(lines)


def _figures(part: Part) -> dict[str, Any]:
    ours, theirs = median(part.ours.seconds), median(part.duckdb.seconds)
    return {
        "stage": part.stage.name,
        "measured": part.what,
        "events": part.stage.total,
        "bytes": part.stage.bytes,
        "rows_after": part.stage.rows,
        "ratio": round(theirs / ours, 3),
        "cpu_ratio": round(median(part.duckdb.cpu) / median(part.ours.cpu), 3),
        "ours": {**_engine(part, part.ours), "all_seconds": part.ours.seconds, "peak_mib": asdict(part.ours.peaks)},
        "duckdb": {
            **_engine(part, part.duckdb),
            "all_seconds": part.duckdb.seconds,
            "peak_mib": {"python": part.duckdb.peaks.python},
        },
    }


def _engine(part: Part, runs: Runs) -> dict[str, float]:
    seconds = median(runs.seconds)
    return {
        "seconds": round(seconds, 3),
        "events_per_second": round(part.stage.total / seconds),
        "cpu_seconds": round(median(runs.cpu), 2),
    }


def _line(part: dict[str, Any]) -> str:
    ours, theirs = part["ours"], part["duckdb"]
    cells = [
        f"{part['events']:,} {part['stage']}",
        part["measured"],
        f"{part['bytes'] >> 20:,}",
        f"{ours['seconds']:.2f}",
        f"{ours['events_per_second']:,}",
        f"{theirs['seconds']:.2f}",
        f"{part['ratio']:.2f}",
        f"{ours['cpu_seconds']:.2f}",
        f"{theirs['cpu_seconds']:.2f}",
        f"{part['cpu_ratio']:.2f}",
        f"{ours['peak_mib']['heap']:,}",
        f"{ours['peak_mib']['jvm']:,}",
        f"{theirs['peak_mib']['python']:,}",
    ]
    return f"| {' | '.join(cells)} |"
