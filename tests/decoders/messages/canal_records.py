"""Entries and packets of Canal, made by hand."""

from __future__ import annotations

from typing import Any

from cdc_lakehouse.sources.canal.wire import entries_pb2, packets_pb2


def column(
    name: str, value: str | None, *, key: bool = False, updated: bool = False, index: int = 0
) -> entries_pb2.Column:
    said = {} if value is None else {"value": value}
    return entries_pb2.Column(
        index=index, name=name, is_null=value is None, is_key=key, updated=updated, mysql_type="int(11)", **said
    )


def entry(change: entries_pb2.RowChange | bytes, **header: Any) -> bytes:
    """Of the table `t` of the database `d`, at the first byte of a file, unless the header says something else."""
    place = {"schema_name": "d", "table_name": "t", "logfile_name": "bin.1", "logfile_offset": 0}
    return entries_pb2.Entry(
        header=entries_pb2.Header(execute_time=5000, **{**place, **header}),
        entry_type=entries_pb2.ROW_DATA,
        store_value=change if isinstance(change, bytes) else change.SerializeToString(),
    ).SerializeToString()


def packet(*entries: bytes, **said: Any) -> bytes:
    """A value of a topic with `entries`."""
    content = packets_pb2.Messages(batch_id=1 if entries else 0, messages=entries).SerializeToString()
    return packets_pb2.Packet(**{"type": packets_pb2.MESSAGES, "body": content, **said}).SerializeToString()
