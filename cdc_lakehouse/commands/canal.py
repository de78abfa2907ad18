"""`cdc-lakehouse canal`: print what a Canal server sends. Needs no configuration and no JVM."""

from __future__ import annotations

import base64
import json
import math
import os
import time
from typing import Any, Final

import click
import msgspec
from pydantic import ValidationError

from cdc_lakehouse.changelog.events import Ddl, MessageError, RowChange, TransactionEnd, Watermark
from cdc_lakehouse.commands.common import DONE, HELD, exits, say
from cdc_lakehouse.config import CanalSource
from cdc_lakehouse.config.reporting import reasons
from cdc_lakehouse.decoders.formats import canal_entries
from cdc_lakehouse.sources.canal.client import CanalClient, CanalRedeliveryError

_PASSWORD: Final = "CDC_LAKEHOUSE_CANAL_PASSWORD"
_KINDS: Final = {RowChange: "row", Ddl: "ddl", TransactionEnd: "end", Watermark: "watermark"}
_LONGEST_WAIT: Final = 1.0
_PATIENCE: Final = 60.0


@click.group(name="canal")
def command() -> None:
    """Inspect what a Canal server sends."""


@command.command("tail")
@click.option("--host", required=True, help="Host of the Canal server.")
@click.option("--port", type=click.IntRange(1, 65535), default=11111, help="Port of the Canal server.")
@click.option("--destination", default="example", help="Name of the instance on the server.")
@click.option("--user", help=f"Canal's own user; the password is taken from the environment, {_PASSWORD}.")
@click.option(
    "--filter", "pattern",
    help="Patterns database\\.table, with commas between. They replace the server's own, for every client.",
)  # fmt: skip
@click.option(
    "--batch-size", type=click.IntRange(1, 1_000_000), default=1000,
    help="Largest batch, in KiB of the server's memory.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(1), help="Stop after this many entries.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after this many seconds.")
@click.option(
    "--ack/--no-ack", default=False,
    help="Acknowledge what is printed, so that it is not sent again. Otherwise it stops when its buffer is full.",
)  # fmt: skip
@exits
def tail_command(
    host: str, port: int, destination: str, user: str | None, pattern: str | None, batch_size: int, limit: int | None,
    seconds: float | None, ack: bool,
) -> int:  # fmt: skip
    """Print entries as they arrive, one JSON object per line.

    A destination has one consumer: do not use this while another one reads. A batch that --limit cuts is not
    acknowledged. An entry that cannot be read is printed in base64 with its error, and the exit code is then 1.

    \b
    Example:
      cdc-lakehouse canal tail --host canal-1 --limit 10
    """
    settings = {
        "type": "canal", "addresses": [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"],
        "destination": destination, "user": user, "password": os.environ.get(_PASSWORD), "filter": pattern,
        "batch_size": batch_size,
    }  # fmt: skip
    try:
        source = CanalSource.model_validate(settings)
    except ValidationError as error:
        raise click.UsageError(reasons(error)) from None
    most, time_left = limit or math.inf, math.inf if seconds is None else seconds
    with CanalClient(source, patience_seconds=min(_PATIENCE, time_left)) as client:
        return HELD if _tail(client, most, time_left, ack) else DONE


def _tail(client: CanalClient, limit: float, seconds: float, ack: bool) -> int:
    """Print entries; return the number of those that could not be read."""
    faults = printed = 0
    end = time.monotonic() + seconds
    try:
        while printed < limit and (wait := min(_LONGEST_WAIT, end - time.monotonic())) > 0:
            try:
                if (batch := client.get(wait_seconds=wait)) is None:
                    continue
                for entry in batch.entries:
                    line = _line(batch.id, entry)
                    faults += "error" in line
                    # With escapes where a terminal takes characters as commands, or some readers as a line's end.
                    text = json.dumps(line, ensure_ascii=False)
                    click.echo(text if text.isprintable() else json.dumps(line))
                    printed += 1
                    if printed >= limit and entry is not batch.entries[-1]:
                        return faults
                if ack:
                    client.ack(batch)
            except CanalRedeliveryError as error:
                say(f"cdc-lakehouse: {error.coded}", err=True)
    except KeyboardInterrupt:
        say("stopped", err=True)
    return faults


def _line(batch: int, entry: bytes) -> dict[str, Any]:
    try:
        message = canal_entries.decode(entry)
    except MessageError as error:
        return {"batch": batch, "error": str(error), "entry": base64.b64encode(entry).decode("ascii")}
    origin = message.origin
    place = {"log_file": origin.log_file, "log_offset": origin.log_offset, "gtid": origin.gtid}
    parts = [{"kind": _KINDS[type(part)], **msgspec.structs.asdict(part)} for part in message.parts]
    return {"batch": batch, **place, "time_ms": origin.time_ms, "parts": parts}
