"""DTS's records in Avro through a real broker: tables are what the source's are, whatever is killed or sent again."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pytest

from tests.decoders.messages.dts_records import body, row_body, sdk_records
from tests.kit.kills import kill_further_and_further
from tests.kit.lakes import TestLake, run_all
from tests.servers.kafka import Broker, Sent

pytestmark = [pytest.mark.spark, pytest.mark.server]

SDK_ROW: dict[str, Any] = {
    "id": decimal.Decimal((1 << 64) - 1), "c_tiny": -128, "c_small": 65535, "c_int": -2147483648, "c_med": 16777215,
    "c_bit": decimal.Decimal(5), "c_bool": 1, "c_dec": decimal.Decimal("-1234567890123456789012345678.0123456789"),
    "c_float": 1.5, "c_double": 3.141592653589793, "c_varchar": "vär 中文 😀", "c_char": "café", "c_gbk": "中文",
    "c_empty": "", "c_binary": b"\0\xff", "c_ts": datetime.datetime(2024, 11, 21, 2, 40, 0, 123456, datetime.UTC),
    "c_ts0": None, "c_datetime": datetime.datetime.fromisoformat("2024-02-29 12:34:56.789012"), "c_dt0": None,
    "c_date": datetime.date(1000, 1, 1), "c_time": "838:59:59", "c_negtime": "-12:34:56.500000", "c_year": 2155,
    "c_tstz": datetime.datetime(2024, 2, 29, 4, 34, 56, 1, datetime.UTC),
    "c_geom": "\1\1\0\0\0\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40", "c_wkt": "POINT(1 2)", "c_blob": bytes(range(256)),
    "c_blob0": b"", "c_json": '{"a":[1,null,"中"]}', "c_enum": "a", "c_set": "x,y", "c_null": None,
}  # fmt: skip
SDK_NULLS = {**dict.fromkeys(SDK_ROW), "id": decimal.Decimal(2)}


def test_every_record_of_the_sdk(kafka: Broker, new_lake: Callable[..., TestLake]) -> None:
    topic = kafka.create()
    source = {"type": "kafka", "format": "dts-avro", "bootstrap_servers": kafka.bootstrap, "topics": [topic]}
    lake = new_lake(source=source, start_date="2020-01-01")
    records = [value for value, _ in sdk_records()]

    def run(*values: bytes) -> set[str]:
        kafka.send(topic, [Sent(value) for value in values])
        done = run_all(lake.run())
        return {id.rpartition("#")[0] for id in done.applied.held}

    def rows(table: str) -> list[dict[str, Any]]:
        arrow = lake.tables()["cdc", table].scan().to_arrow().drop_columns(["_commit_ts"])
        return sorted(arrow.to_pylist(), key=lambda row: row["id"])

    def commit(number: int) -> bytes:
        return body(operation="COMMIT", sourcePosition=f"5@{number}", sourceTimestamp=1_732_156_802)

    # Zero dates are NULL by policy.
    assert run(*records[:3], commit(1002)) == set()
    assert rows("t_all") == [SDK_NULLS, SDK_ROW]
    assert run(records[3], commit(1003)) == set()
    updated = {**SDK_ROW, "c_int": 2147483647, "c_varchar": None, "c_null": "was null"}
    assert rows("t_all") == [SDK_NULLS, updated]
    # Up to the ALTER, which ends what is open. Two tables have no key.
    assert run(*records[4:12]) == {"cdc.no_pk", "cdc.no_tags"}
    assert rows("t_all") == [{**SDK_NULLS, "c_new": 7}]
    small = {"id": SDK_ROW["id"], "c_tiny": -128}
    assert rows("t3") == [{"id": 9, "c_tiny": 1}]
    assert rows("we.ird") == [small]
    assert rows("t_empty") == [{"id": SDK_ROW["id"], "c_enull": None}]
    # As after a task that starts again, whose run is killed after any commit: what was sent is known.
    kafka.send(topic, [Sent(value) for value in (*records[:3], commit(1002), *records[3:12])])
    kill_further_and_further(lake, lambda: run_all(lake.run()))
    assert run() == {"cdc.no_pk", "cdc.no_tags"}
    assert rows("t_all") == [{**SDK_NULLS, "c_new": 7}] and rows("we.ird") == [small]
    # A record that cannot be used holds the table that it names, and no other.
    bad = row_body([("id", 8, None)], objectName="cdc.we\\u002Eird", source={"sourceType": "Oracle", "version": "1"})
    assert run(*records[12:], bad) == {"cdc.no_pk", "cdc.no_tags", "cdc.we.ird"}
    assert rows("t_all") == [] and rows("we.ird") == [small]
    (row,) = lake.machinery("quarantine")
    assert (row["error_class"], row["database"], row["table"]) == ("BadMessage", "cdc", "we.ird")
