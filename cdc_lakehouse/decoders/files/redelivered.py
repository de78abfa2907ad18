"""Whether later files contain everything of an earlier file that was cut off: all of its records, and the incomplete
one.

A changefeed that restarts sends again, in the same order, what it has not promised; its files may end at other rows.
So where the records of the cut file follow one another in later files, read as one sequence, and these continue after
them, nothing is lost with the rest of the cut file.
What cannot be compared is not considered equal. A file without a complete record before the cut is never found again:
there would be nothing to search for.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Final

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders.files.csv_format import LINE_ENDS, Dialect
from cdc_lakehouse.decoders.files.csv_rows import behind_header
from cdc_lakehouse.decoders.files.csv_strict import CsvRecordReader
from cdc_lakehouse.decoders.messages.json_object import parse, utf8

_SENT_AT: Final = b',"ts":'
_IMAGES: Final = re.compile(rb',"old":(?:null|\[)')


def redelivers_canal_json(cut: bytes, later: Sequence[bytes], csv: CsvOptions | None = None) -> bool:
    """Whether the later canal-json files of TiCDC contain the cut one: a message is the same whenever it was sent."""
    *whole, part = cut.split(b"\n")
    lines = b"".join(later).split(b"\n")[:-1]
    if not whole or not part.strip():
        return False
    wanted = [_digest(line) for line in whole]
    found = [_digest(line) for line in lines]
    count = len(wanted)
    return None not in wanted and any(
        found[at : at + count] == wanted and found[at + count] is not None and _begins_with(lines[at + count], part)
        for at in range(len(found) - count)
        if found[at] == wanted[0]
    )


def redelivers_csv(cut: bytes, later: Sequence[bytes], csv: CsvOptions | None) -> bool:
    """Whether the later csv files contain the cut one: a row always has the same bytes."""
    assert csv is not None, "they are known of each file of csv"
    dialect = Dialect.of(csv)
    reader = CsvRecordReader(cut, dialect)
    first, _ = behind_header(reader, cut)
    starts = [record.start for record in reader.records(first, len(cut))]
    if len(starts) < 2 or cut[-1:] in (b"\r", b"\n"):
        return False
    rest, part = cut[first:], len(cut) - starts[-1]
    text = b"".join(each[behind_header(CsvRecordReader(each, dialect), each)[0] :] for each in later)
    later_reader = CsvRecordReader(text, dialect)
    at = text.find(rest)
    while at >= 0:
        if at == 0 or text[at - 1] in LINE_ENDS:
            start = at + len(rest) - part
            record = next(later_reader.records(start, len(text)), None)
            if record is not None and record.fields and record.start == start and part < record.end - start:
                return record.following > record.end
        at = text.find(rest, at + 1)
    return False


def _digest(line: bytes) -> bytes | None:
    """Return the hash of a message without the time of sending and the order of its names; None where it is not a
    message."""
    try:
        message = parse(utf8(line), exact=False)
    except MessageError:
        return None
    message.pop("ts", None)
    return hashlib.sha256(json.dumps(message, sort_keys=True).encode()).digest()


def _begins_with(line: bytes, part: bytes) -> bool:
    """Whether a message that was cut off to `part` can be this one, comparing what two sendings have in common: the
    part up to the time of sending, and the row's images. Between them are the types, whose order changes."""
    sent_at = line.find(_SENT_AT)
    if sent_at < 0 or not line[:sent_at].startswith(part[:sent_at]):
        return False
    images, own = _IMAGES.search(line, sent_at), _IMAGES.search(part, sent_at)
    if images is None:
        return False
    return own is None or line.startswith(part[own.start() :], images.start())
