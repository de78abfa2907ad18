"""The metadata of Dumpling and of mydumper before 0.13: when the dump began and ended, and where the source was.

    Started dump at: 2024-05-06 07:08:09
    SHOW MASTER STATUS:
    <tab>Log: tidb-binlog
    <tab>Pos: 449590000000000001
    <tab>GTID:

    Finished dump at: 2024-05-06 07:09:10

The header is `SHOW BINARY LOG STATUS:` from MySQL 8.4 on. A block of a replica's own source (`SHOW SLAVE STATUS:`) says
nothing of the dumped server's log. Dumpling writes the status a second time when its connections are open, as
`SHOW MASTER STATUS: /* AFTER CONNECTION POOL ESTABLISHED */` (pingcap/tidb, dumpling/export/metadata.go)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cdc_lakehouse.changelog.positions import is_commit_ts
from cdc_lakehouse.errors import DumpError, ObjectMissingError, SourceError
from cdc_lakehouse.sources.dump.contents import DumpPosition
from cdc_lakehouse.sources.dump.reading import SMALL_FILE_LIMIT
from cdc_lakehouse.sources.object_store import ObjectStore

METADATA: Final = "metadata"
TIDB_LOG: Final = "tidb-binlog"
"""TiDB's name for its binlog; the offset in it is a TSO."""

_STARTED: Final = "Started dump at: "
_FINISHED: Final = "Finished dump at: "
_HEADER: Final = re.compile(
    r"SHOW (?P<of>MASTER|BINARY LOG|SLAVE|REPLICA|ALL SLAVES|ALL REPLICAS) STATUS:"
    r"(?P<later> /\* AFTER CONNECTION POOL ESTABLISHED \*/)?\s*"
)
_AGAIN: Final = "wait until the dump is finished, or dump again into an empty directory"


@dataclass(frozen=True, slots=True)
class DumpStatus:
    """The position and start of a dump. `started` is the time as the tool wrote it."""

    position: DumpPosition
    started: str | None


def read_metadata(store: ObjectStore) -> str:
    """Read the text of the dump's metadata file. Raises `SourceError` when it does not exist, and as `ObjectStore.read`
    does."""
    try:
        content = store.read(METADATA, limit=SMALL_FILE_LIMIT)
    except ObjectMissingError:
        raise SourceError(
            "the dump has no metadata file: it is not finished, or not there",
            segment=METADATA,
            advice=f"check source.initial.uri, or {_AGAIN}",
        ) from None
    return content.decode("utf-8", "replace")


def parse_status(text: str) -> DumpStatus:
    """Parse a metadata file in the form above.

    Raises `SourceError` when the dump is not finished, and when the file has no position, two different ones, or one
    that is not a number.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    if not any(line.startswith(_FINISHED) for line in lines):
        raise unfinished()
    positions = [position_of(block.get("Log"), block.get("Pos"), block.get("GTID")) for block in _blocks(lines)]
    if not positions:
        raise no_position()
    for position in positions[1:]:
        if position != positions[0]:
            raise SourceError(
                f"the dump is not of one point: it began at {_shown(positions[0])} and went on at {_shown(position)}",
                segment=METADATA,
                advice="dump again with --consistency flush, lock or snapshot",
            )
    started = next((line.removeprefix(_STARTED).strip() for line in lines if line.startswith(_STARTED)), None)
    return DumpStatus(positions[0], started)


def _blocks(lines: list[str]) -> list[dict[str, str]]:
    """Return the fields of each status of the dumped server."""
    blocks: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    last = ""
    for line in lines:
        if header := _HEADER.fullmatch(line):
            fields, last = {}, ""
            if header["of"] in ("MASTER", "BINARY LOG"):
                blocks.append(fields)
        elif line.startswith("\t"):
            last, _, value = line.strip().partition(":")
            fields[last] = value.strip()
        elif line and last == "GTID":
            fields[last] += line.strip()  # A set of several servers has a line for each.
        else:
            last = ""
    return blocks


def position_of(log: str | None, offset: str | None, gtid: str | None) -> DumpPosition:
    """Return the position in a status: TiDB calls its log `tidb-binlog`, and its offset there is a TSO.

    Raises `SourceError` when the offset is not a number, or the status has no position at all.
    """
    gtid = "".join((gtid or "").split()) or None
    if not log:
        if gtid is None:
            raise no_position()
        return DumpPosition(gtid=gtid)
    number = int(offset) if offset and offset.isascii() and offset.isdigit() and len(offset) <= 20 else None
    if log == TIDB_LOG:
        if number is None or not is_commit_ts(number):
            raise SourceError(
                f"the position of the dump is not a TSO: {offset!r}",
                segment=METADATA,
                advice="dump again with --snapshot and the TSO as a number, or without --snapshot",
            )
        return DumpPosition(tso=number)
    if number is None:
        raise DumpError(f"the position of the dump in {log} is not a number: {offset!r}", segment=METADATA)
    return DumpPosition(log_file=log, log_offset=number, gtid=gtid)


def unfinished() -> SourceError:
    """Return the error for a dump that has not ended."""
    return SourceError("the dump is not finished: its metadata does not say when", segment=METADATA, advice=_AGAIN)


def no_position() -> SourceError:
    """Return the error for a dump that changes cannot be joined to."""
    return SourceError(
        "the dump does not say its position in the change log",
        segment=METADATA,
        advice="dump MySQL again with its binlog on, as a user who may see its status (REPLICATION CLIENT); dump TiDB "
        "with Dumpling",
    )


def _shown(position: DumpPosition) -> str:
    if position.tso is not None:
        return f"TSO {position.tso}"
    return " ".join(str(part) for part in (position.log_file, position.log_offset, position.gtid) if part is not None)
