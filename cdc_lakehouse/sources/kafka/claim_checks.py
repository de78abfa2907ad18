"""Claim checks: the files in which TiCDC stores messages that are too large for the broker.

    {"key":null,"value":"<the message, base64>"}

With claim-check-raw-value the file is the message itself. Either can be compressed: bytes are returned as they are. A
message in the topic has the URI of its file; only its file name is used here, so that a message can refer to no other
place than the configured one.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any, Final, cast

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.object_store import read_segment

_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,200}\.json")
_LIMIT: Final = 128 << 20
"""The limit of a file in bytes: a message in base64, with a margin."""


def read_claim_check(uri: str, storage: StorageConfig, location: str) -> bytes:
    """Read the complete message of the claim check that a message names by `location`. Its file is below `uri`.

    Raises `SourceError` when the location names no such file or the file is not a claim check, `ObjectMissingError`
    when it does not exist, and as `ObjectStore.read` does.
    """
    name = location.rsplit("/", 1)[-1]
    if not _NAME.fullmatch(name):
        raise SourceError("the message names a claim check whose name is none of TiCDC's", segment=name)
    content = read_segment(uri, storage, name, None, limit=_LIMIT)
    if not content.startswith(b"{"):
        return content
    try:
        document = cast("dict[str, Any]", json.loads(content))
    except (ValueError, RecursionError) as error:
        raise SourceError("the claim check is not JSON", segment=name) from error
    value = document.get("value")
    if not isinstance(value, str):
        return content
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise SourceError("the value of the claim check is not base64", segment=name) from error
