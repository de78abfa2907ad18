"""`cdc-lakehouse sample`: write a changefeed for trying the project; and `config schema`: print that of its file."""

from __future__ import annotations

import datetime
import itertools
import json
from pathlib import Path
from typing import Final

import click

from cdc_lakehouse.changelog.positions import commit_time, utc_now
from cdc_lakehouse.commands.common import DONE, exits, print_json
from cdc_lakehouse.config.file import json_schema
from cdc_lakehouse.config.reporting import plural
from cdc_lakehouse.errors import CdcError
from cdc_lakehouse.sample.shop import follow, write_history

_CONFIGURATION: Final = """\
# A sample changefeed on disk, an SQLite catalog and a local Spark: nothing else is needed.
lake:
  warehouse: ./lake/warehouse
  catalog: {{type: sql, uri: "sqlite:///./lake/catalog.db"}}
  spark: {{master: "local[*]", conf: {{}}}}
feeds:
  - name: shop
    source:
      type: storage_sink
      uri: ./sink
      protocol: canal-json
      date_separator: day
      time_zone: UTC
    tables: {{include: ["*.*"], exclude: []}}
    namespace: "{{database}}"
    start_date: {start_date}
"""


@click.command()
@click.option("--directory", type=click.Path(path_type=Path), default=Path("demo"), help="Where to write.")
@click.option("--days", type=click.IntRange(1, 365), default=3, help="Days of history up to today.")
@click.option("--transactions", type=click.IntRange(1, 1_000_000), default=2000, help="Transactions of history.")
@click.option("--seed", type=int, default=1, help="Another seed gives other rows.")
@click.option("--follow", "follows", is_flag=True, help="Keep writing new transactions until interrupted.")
@click.option("--pause", type=click.FloatRange(0.1, 3600), default=3.0, help="Seconds between batches.")
@click.option("--batches", type=click.IntRange(1), help="With --follow: stop after this many batches.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; with --follow a line for each batch.")
def command(
    directory: Path, days: int, transactions: int, seed: int, follows: bool, pause: float, batches: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Write a sample changefeed of a small shop: a sink, and a lakehouse.yaml that reads it.

    What exists in the directory is kept. With --follow, new files are added to an existing sink.

    \b
    Examples:
      cdc-lakehouse sample --days 7
      cdc-lakehouse sample --follow
    """
    sink, end = directory / "sink", utc_now()
    directory.mkdir(parents=True, exist_ok=True)
    # From midnight on, so that the first date is complete, and every date until now is a partition with files.
    first = end.date() - datetime.timedelta(days=days - 1)
    start = datetime.datetime.combine(first, datetime.time(), datetime.UTC)
    wrote, said = dict[str, int | str](), list[str]()
    if sink.exists():
        said.append(f"{sink} exists: kept")
    else:
        checkpoint = write_history(sink, start=start, end=end, transactions=transactions, seed=seed)
        wrote |= {"sink": str(sink), "transactions": transactions, "checkpoint_ts": checkpoint}
        written = f"{plural(transactions, 'transaction')} of {plural(days, 'day')}"
        said.append(f"wrote {written} to {sink}, checkpoint-ts {checkpoint}")
    if not (configuration := directory / "lakehouse.yaml").exists():
        configuration.write_text(_CONFIGURATION.format(start_date=first.isoformat()), encoding="utf-8")
        wrote["configuration"] = str(configuration)
        said.append(f"wrote {configuration}")
    click.echo(json.dumps({"wrote": wrote}) if as_json else "\n".join(said))
    if not follows:
        return
    try:
        for number, checkpoint in zip(itertools.count(1), follow(sink, pause_seconds=pause, batches=batches)):
            text = f"batch {number}: checkpoint-ts {checkpoint} ({commit_time(checkpoint):%H:%M:%S} UTC)"
            click.echo(json.dumps({"batch": number, "checkpoint_ts": checkpoint}) if as_json else text)
    except CdcError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        if not as_json:
            click.echo("stopped")


@click.group()
def config() -> None:
    """Print the schema of lakehouse.yaml."""


@config.command()
@exits
def schema() -> int:
    """Print the JSON Schema of lakehouse.yaml, so that editors complete and check it.

    \b
    Example:
      cdc-lakehouse config schema > lakehouse.schema.json

    The first line of lakehouse.yaml names it: `# yaml-language-server: $schema=lakehouse.schema.json`.
    """
    print_json(json_schema())
    return DONE
