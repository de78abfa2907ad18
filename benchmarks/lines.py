"""`python -m benchmarks.lines`: CPU time of the decoder of canal-json alone, by the form of the lines and the width of
their table: rare forms beside the usual one, lines that are read one by one, and the same as messages of a topic."""

from __future__ import annotations

import json
import random
import time
from typing import Any, Final

import click
import pyarrow as pa

from cdc_lakehouse.decoders.format import FileContext, Options
from cdc_lakehouse.decoders.formats import ticdc_canal_json
from cdc_lakehouse.decoders.topic_reader import RECORDS, TopicReader

_MIB: Final = 1 << 20
_FORMS: Final[dict[str, dict[str, Any]]] = {
    "usual": {},
    "update": {"type": "UPDATE", "old": True},
    "types in any order": {"shuffled": True},
    "spaces": {"spaces": True},
    "INSERT with old": {"old": True},
    "of a list": {"list": True},
}


def _line(random: random.Random, number: int, columns: int, form: dict[str, Any]) -> bytes:
    row = {"id": str(number), "k": str(random.randrange(10**9)), "c": "c" * 119, "pad": "p" * 59}
    if columns > len(row):
        row = {"id": str(number)} | {f"column_{n}": f"text {random.randrange(10**9)}" for n in range(1, columns)}
    names, form = [*row], {**form}
    if form.pop("shuffled", False):
        random.shuffle(names)
    separators = (", ", ": ") if form.pop("spaces", False) else (",", ":")
    old = [row] if form.pop("old", False) else None
    form |= {"other": [number]} if form.pop("list", False) else {}
    ts = 450000000000000001 + (number << 18)
    message = {
        "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "INSERT",
        "es": 1768435200000 + number, "ts": 1768435200128 + number, "sql": "", "sqlType": dict.fromkeys(names, 12),
        "mysqlType": dict.fromkeys(names, "varchar"), "old": old, "data": [row], "_tidb": {"commitTs": ts}, **form,
    }  # fmt: skip
    return json.dumps(message, separators=separators).encode()


def _of_topic(values: list[bytes]) -> float:
    """The CPU seconds of the same as messages, in batches of the size that a task reads."""
    starts = {("t", 0, 1): (0, 0, None, 0)}
    shared = {"feed_date": "2026-01-01", "topic": "t", "partition": 0, "time_ms": 0, "segment": "s", "batch": 1}
    columns = {**{name: [value] * len(values) for name, value in shared.items()}, "is_before": [False] * len(values)}
    columns |= {"offset": [*range(len(values))], "key": [None] * len(values), "value": values}
    records = pa.record_batch(columns, schema=RECORDS)
    start, rows = time.process_time(), 0
    how = {"has_record_times": True, "ignores_tombstones": True}
    reader = TopicReader("ticdc-canal-json", Options(), starts, lambda *_: True, {1: 1 << 41}, **how)
    at_once = max(1, len(values) * (8 * _MIB) // sum(map(len, values)))
    for at in range(0, len(values), at_once):
        rows += sum(batch.num_rows for batch in reader.read(records.slice(at, at_once)))
    rows += sum(batch.num_rows for batch in reader.rest())
    if rows != len(values):
        raise click.ClickException(f"{len(values) - rows} messages of {len(values)} cannot be used")
    return time.process_time() - start


@click.command()
@click.option("--mib", type=click.IntRange(min=1), default=10, show_default=True, help="Of each form.")
@click.option("--repeats", type=click.IntRange(min=1), default=4, show_default=True, help="The best of these counts.")
def main(mib: int, repeats: int) -> None:
    """Measure the decoder of canal-json alone."""
    click.echo(
        "| columns | lines | bytes a line | CPU µs a line | MiB a CPU s | read one by one | CPU µs a message |\n"
        "|--:|---|--:|--:|--:|--:|--:|"
    )
    for columns in (4, 200):
        for name, form in _FORMS.items():
            made, lines, size = random.Random(1), list[bytes](), 0
            while size < mib * _MIB:
                lines.append(_line(made, len(lines), columns, form))
                size += len(lines[-1]) + 1
            content, best, strict = b"\n".join(lines), float("inf"), 0
            for _ in range(repeats):
                start = time.process_time()
                batches = list(ticdc_canal_json.decode([content], FileContext("d", "t")))
                best = min(best, time.process_time() - start)
                if any(batch.column("problem").null_count < batch.num_rows for batch in batches):
                    raise click.ClickException(f"{name}: not all lines can be used")
                strict = sum(batch.column("strict").true_count for batch in batches)
            each, speed = best / len(lines) * 1e6, size / _MIB / best
            message = min(_of_topic(lines) for _ in range(repeats)) / len(lines) * 1e6
            of = (
                f"| {columns} | {name} | {size // len(lines):,} | {each:.1f} | {speed:.0f} | {strict} | {message:.1f} |"
            )
            click.echo(of)


if __name__ == "__main__":
    main()
