"""Parse a record of Alibaba DTS in Avro: from bytes to its fields.

A message's value is the bare Avro binary of one Record: no header, no schema id, no length. There are two schemas,
which differ at the end: the public example's ends with `bornTimestamp long`, which the SDK 2.0.0 does not have. So this
field is read where bytes remain for it, and then no bytes may remain.

Source of the schema: `Record` and its parts in the SDK of the service (com.aliyun.dts:dts-new-subscribe-sdk 1.4.0 and
2.0.0), read by the field orders and union branches of its classes, and records that it wrote."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import fastavro

from cdc_lakehouse.changelog.events import MessageError
from cdc_lakehouse.decoders.messages.format import sized

Image = tuple[str, Any] | None
"""One column's value: the name of its union branch with the branch's content; None for NULL."""


@dataclass(frozen=True, slots=True)
class DtsRecord:
    """The fields of a Record that are used. `source_timestamp` is in seconds since 1970 (UTC), the other names are the
    schema's."""

    source_timestamp: int
    source_position: str
    source_type: str
    operation: str
    object_name: str | None
    tags: Mapping[str, str]
    fields: Sequence[Mapping[str, Any]] | str | None
    """`name` and `dataTypeNumber` of each column, in order."""
    before_images: Sequence[Image] | str | None
    after_images: Sequence[Image] | str | None


def _record(name: str, /, **fields: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": type} for field, type in fields.items()]}


def _enum(name: str, symbols: str) -> dict[str, object]:
    return {"type": "enum", "name": name, "symbols": symbols.split()}


_OPTIONAL_INT: Final = ["null", "int"]
_DATE_TIME: Final = _record(
    "DateTime", year=_OPTIONAL_INT, month=_OPTIONAL_INT, day=_OPTIONAL_INT, hour=_OPTIONAL_INT, minute=_OPTIONAL_INT,
    second=_OPTIONAL_INT, millis=_OPTIONAL_INT,
)  # fmt: skip
# The order is part of the format: a value begins with the number of its branch.
_IMAGE: Final = [
    "null",
    _record("Integer", precision="int", value="string"),
    _record("Character", charset="string", value="bytes"),
    _record("Decimal", value="string", precision="int", scale="int"),
    _record("Float", value="double", precision="int", scale="int"),
    _record("Timestamp", timestamp="long", millis="int"),
    _DATE_TIME,
    _record("TimestampWithTimeZone", value="DateTime", timezone="string"),
    _record("BinaryGeometry", type="string", value="bytes"),
    _record("TextGeometry", type="string", value="string"),
    _record("BinaryObject", type="string", value="bytes"),
    _record("TextObject", type="string", value="string"),
    _enum("EmptyObject", "NULL NONE"),
]
_IMAGE_BY_NAME: Final = [branch if isinstance(branch, str) else branch["name"] for branch in _IMAGE]
SCHEMA: Final[Mapping[str, Any]] = _record(
    "Record",
    version="int",
    id="long",
    sourceTimestamp="long",
    sourcePosition="string",
    safeSourcePosition="string",
    sourceTxid="string",
    source=_record(
        "Source",
        sourceType=_enum(
            "SourceType", "MySQL Oracle SQLServer PostgreSQL MongoDB Redis DB2 PPAS DRDS HBASE HDFS FILE OTHER"
        ),
        version="string",
    ),
    operation=_enum(
        "Operation",
        "INSERT UPDATE DELETE DDL BEGIN COMMIT ROLLBACK ABORT HEARTBEAT CHECKPOINT COMMAND FILL FINISH CONTROL RDB "
        "NOOP INIT",
    ),
    objectName=["null", "string"],
    processTimestamps=["null", {"type": "array", "items": "long"}],
    tags={"type": "map", "values": "string"},
    fields=["null", "string", {"type": "array", "items": _record("Field", name="string", dataTypeNumber="int")}],
    beforeImages=["null", "string", {"type": "array", "items": _IMAGE}],
    afterImages=["null", "string", {"type": "array", "items": _IMAGE_BY_NAME}],
)
"""The schema without `bornTimestamp`."""

_PARSED: Final = fastavro.parse_schema(dict(SCHEMA))
_LONG: Final = fastavro.parse_schema("long")
_LONGEST_LONG: Final = 10
"""The maximum length of Avro's long, in bytes."""


def read_record(value: bytes) -> DtsRecord:
    """The record that the bytes are, all of them. Raises MessageError.

    Values of rows stay as they are in Avro, and are not checked: a byte string may not be text, a month may be 13.
    """
    body = io.BytesIO(sized(value))
    try:
        read: Any = fastavro.schemaless_reader(body, _PARSED, None, return_named_type=True)
        rest = len(value) - body.tell()
        if 0 < rest <= _LONGEST_LONG:
            fastavro.schemaless_reader(body, _LONG, None)
            rest = len(value) - body.tell()
    except (EOFError, IndexError, ValueError) as error:
        # An invalid length, branch or symbol, text that is not UTF-8, or a premature end.
        raise MessageError(
            f"the message is not a record of DTS in Avro, or is cut short: see byte {body.tell()} of {len(value)}",
            advice="see that the DTS task writes DTS Avro to this topic",
        ) from error
    if rest:
        raise MessageError(f"after the record of DTS in Avro {rest} bytes are left over")
    return DtsRecord(
        read["sourceTimestamp"], read["sourcePosition"], read["source"]["sourceType"], read["operation"],
        read["objectName"], read["tags"], read["fields"], read["beforeImages"], read["afterImages"],
    )  # fmt: skip
