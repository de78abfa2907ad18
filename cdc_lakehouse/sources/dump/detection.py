"""Detection of the tool that made a dump, from the files in its directory."""

from __future__ import annotations

import itertools
import re
from typing import Final

from cdc_lakehouse.config.initial import DumpType
from cdc_lakehouse.errors import ObjectMissingError
from cdc_lakehouse.sources.dump.reading import SMALL_FILE_LIMIT
from cdc_lakehouse.sources.dump.status import METADATA, TIDB_LOG
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject

_LOOKED_AT: Final = 1_000
_OF_SHELL: Final = "@.json"
_OF_DUMPLING: Final = re.compile(r".+\.\d{9,}\.(?:sql|csv)(?:\.\w+)?")
_OF_TEXT: Final = b"Started dump at:"


def detect_dump(store: ObjectStore) -> DumpType | None:
    """Return the tool that made the dump in a store; None where it is not a finished dump. Raises as `ObjectStore.list`
    does.

    Dumpling's metadata and that of mydumper before 0.13 are alike: the source's log and the numbers of files differ.
    """
    found = list(itertools.islice(store.list(), _LOOKED_AT))
    paths = {each.path for each in found if isinstance(each, StoredObject)}
    if _OF_SHELL in paths:
        return "mysqlshell"
    try:
        metadata = store.read(METADATA, limit=SMALL_FILE_LIMIT)
    except ObjectMissingError:
        return None
    if metadata.startswith((b"#", b"[")):
        return "mydumper"
    if _OF_TEXT not in metadata:
        return None
    numbered = any(_OF_DUMPLING.fullmatch(path) for path in paths)
    return "dumpling" if numbered or TIDB_LOG.encode() in metadata else "mydumper"
