"""Messages of DTS Avro: what each operation says, names, keys, types and positions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange, TransactionEnd
from cdc_lakehouse.decoders.formats.dts_avro import decode
from tests.decoders.messages.dts_records import (
    NULL,
    Image,
    binary_object,
    body,
    change,
    character,
    date_time,
    decimal,
    integer,
    row_body,
    sdk_records,
    text_object,
)
from tests.kit.cases import shown

ALL_BYTES = "".join(map(chr, range(256)))
# What MySQL prints for the first row of the SDK's records, binary values one character a byte.
T_ALL = {
    "id": "18446744073709551615", "c_tiny": "-128", "c_small": "65535", "c_int": "-2147483648", "c_med": "16777215",
    "c_bit": "5", "c_bool": "1", "c_dec": "-1234567890123456789012345678.0123456789", "c_float": "1.5",
    "c_double": "3.141592653589793", "c_varchar": "vär 中文 😀", "c_char": "café", "c_gbk": "中文", "c_empty": "",
    "c_binary": "\0\xff", "c_ts": "2024-11-21 02:40:00.123456+00:00", "c_ts0": "0000-00-00 00:00:00",
    "c_datetime": "2024-02-29 12:34:56.789012", "c_dt0": "0000-00-00 00:00:00", "c_date": "1000-01-01",
    "c_time": "838:59:59", "c_negtime": "-12:34:56.500000", "c_year": "2155",
    "c_tstz": "2024-02-29 04:34:56.000001+00:00",
    "c_geom": "\1\1\0\0\0\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40", "c_wkt": "POINT(1 2)", "c_blob": ALL_BYTES,
    "c_blob0": "", "c_json": '{"a":[1,null,"中"]}', "c_enum": "a", "c_set": "x,y", "c_null": None,
}  # fmt: skip
T_ALL_TYPES = {
    "id": "decimal(20,0)", "c_tiny": "smallint", "c_small": "mediumint", "c_int": "bigint", "c_med": "int",
    "c_bit": "bit(64)", "c_bool": "smallint", "c_dec": "decimal(38,10)", "c_float": "float", "c_double": "double",
    "c_varchar": "varchar", "c_char": "char", "c_gbk": "varchar", "c_empty": "varchar", "c_binary": "binary",
    "c_ts": "timestamp(6)", "c_ts0": "timestamp(6)", "c_datetime": "datetime(6)", "c_dt0": "datetime(6)",
    "c_date": "date", "c_time": "time(6)", "c_negtime": "time(6)", "c_year": "year", "c_tstz": "timestamp(6)",
    "c_geom": "geometry", "c_wkt": "geometry", "c_blob": "longblob", "c_blob0": "longblob", "c_json": "json",
    "c_enum": "enum", "c_set": "set",
}  # fmt: skip
UPDATED = {**T_ALL, "c_int": "2147483647", "c_varchar": None, "c_null": "was null"}
SMALL_ID = {"id": "18446744073709551615"}
SMALL = {**SMALL_ID, "c_tiny": "-128"}
TWO_KEYS = ("id", "c_tiny")
SMALL_TYPES = {"id": "decimal(20,0)", "c_tiny": "smallint"}
NULLS = dict.fromkeys(T_ALL) | {"id": "2"}
# NULL does not say whether a string is text or bytes, nor how many digits a decimal has.
UNTOLD = {"c_dec", "c_varchar", "c_char", "c_gbk", "c_empty", "c_binary", "c_blob", "c_blob0"}
NULLS_TYPES = {name: type for name, type in T_ALL_TYPES.items() if name not in UNTOLD}
UPDATED_TYPES = {**T_ALL_TYPES, "c_null": "varchar"}
DELETED_TYPES = {name: type for name, type in UPDATED_TYPES.items() if name != "c_varchar"}

EXPECTED = [
    (TransactionEnd(),),
    (RowChange("cdc", "t_all", "I", None, T_ALL, T_ALL_TYPES, ("id",)),),
    (RowChange("cdc", "t_all", "I", None, NULLS, NULLS_TYPES, ("id",)),),
    (RowChange("cdc", "t_all", "U", T_ALL, UPDATED, UPDATED_TYPES, ("id",)),),
    (RowChange("cdc", "t_all", "D", UPDATED, None, DELETED_TYPES, ("id",)),),
    (TransactionEnd(),),
    (RowChange("cdc", "no_pk", "I", None, SMALL, SMALL_TYPES, ()),),
    (RowChange("cdc", "no_tags", "I", None, SMALL, SMALL_TYPES, None),),
    (RowChange("cdc", "t3", "U", {"id": "1", "c_tiny": "1"}, {"id": "9", "c_tiny": "1"}, SMALL_TYPES, TWO_KEYS),),
    (RowChange("cdc", "we.ird", "I", None, SMALL, SMALL_TYPES, TWO_KEYS),),
    (RowChange("cdc", "t_empty", "I", None, {**SMALL_ID, "c_enull": None}, {"id": "decimal(20,0)"}, ("id",)),),
    (Ddl("cdc", "", "ALTER TABLE `t_all` ADD COLUMN `c_new` int DEFAULT '7' COMMENT '中'"),),
    (Ddl("cdc", "t_all", "TRUNCATE TABLE t_all"),),
    *[()] * 11,
]


@pytest.mark.parametrize(("record", "parts"), list(zip(sdk_records(), EXPECTED, strict=True)), ids=map(str, range(24)))
def test_the_sdks_records(record: tuple[bytes, dict[str, Any]], parts: tuple[Any, ...]) -> None:
    value, expected = record
    offset, file = expected["sourcePosition"].split("@")
    origin = Origin(time_ms=expected["sourceTimestamp"] * 1000, log_file=f"{int(file):06d}", log_offset=int(offset))
    assert decode(None, value) == decode(b"any key", value) == Message(origin, parts)
    view = expected["sdkView"]
    if isinstance(view, dict):
        (part,) = parts
        assert (view["db"], view["table"], view["pk"]) == (part.database, part.table, list(part.key or ()))


def test_json_of_a_key_is_what_the_sdk_writes() -> None:
    """That the keys below are written as the SDK's own."""
    keys = [json.loads(record["tags"].get("pk_uk_info", "null")) for _, record in sdk_records()]
    assert {"PRIMARY": ["id"], "uk_1": ["c_int", "c_varchar"]} in keys and {} in keys


ONE, TWO = integer("1"), integer("2")
FIELD = {"name": "id", "dataTypeNumber": 8}


def row(**values: Any) -> bytes:
    """An INSERT of `id` 1 into `shop.t`, unless something else is said."""
    return row_body([("id", 8, ONE)], **values)


@pytest.mark.parametrize(
    ("position", "file", "offset"),
    [
        ("4711@12", "000012", 4711),
        ("1@1234567", "1234567", 1),
        ("4@0", "000000", 4),
        *((each, None, None) for each in ("", "78", "mysql-bin.000078:4", "4@78<->9", "-4@78", "4@78\n")),
        ("9" * 19 + "@1", None, None),
    ],
)
def test_positions(position: str, file: str | None, offset: int | None) -> None:
    origin = decode(None, body(sourcePosition=position)).origin
    assert (origin.log_file, origin.log_offset) == (file, offset)


def test_the_gtid_is_a_tag() -> None:
    value = body(operation="BEGIN", tags={"GTID": "281c62dc-590c-11ee-a295-00163e390c7c:108156", "GTID_SET": "x"})
    assert decode(None, value).origin.gtid == "281c62dc-590c-11ee-a295-00163e390c7c:108156"
    assert decode(None, body()).origin.gtid is None


def inserted(database: str = "shop", table: str = "t", key: tuple[str, ...] | None = None) -> RowChange:
    return RowChange(database, table, "I", None, {"id": "1"}, {"id": "decimal(20,0)"}, key)


EMPTY = (
    "ROLLBACK", "ABORT", "HEARTBEAT", "CHECKPOINT", "COMMAND", "FILL", "FINISH", "CONTROL", "RDB", "NOOP", "INIT",
)  # fmt: skip
DROP = "DROP DATABASE d"
PARTS = [
    # Keys.
    (row(tags={"pk_uk_info": '{"PRIMARY":["id"]}'}), inserted(key=("id",))),
    (row(tags={"pk_uk_info": '{"uk_1":["v"],"PRIMARY":["v","id"]}'}), inserted(key=("v", "id"))),
    (row(tags={"pk_uk_info": "{}"}), inserted(key=())),
    # Whether `v` may be NULL is not said: no key of it.
    (row(tags={"pk_uk_info": '{"uk_1":["v"]}'}), inserted(key=())),
    (row(tags={"pk_uk_info": '{"PRIMARY":[]}'}), inserted(key=())),
    (row(tags={"pk_uk_info": ""}), inserted(key=None)),
    # Names of tables.
    (row(objectName="shop.orders"), inserted("shop", "orders")),
    (row(objectName="shop.public.orders"), inserted("shop", "orders")),
    (row(objectName="a\\u002Eb.c\\u002Ed\\u002Ee"), inserted("a.b", "c.d.e")),
    (row(objectName="shop.or-ders 中"), inserted("shop", "or-ders 中")),
    (row(objectName="shop.\\u002e"), inserted("shop", "\\u002e")),
    # An update without its old row, a row of the full load.
    (row(operation="UPDATE"), replace(inserted(), op="U")),
    (row(operation="INIT"), inserted()),
    # Databases with MySQL's types.
    *((row(source={"sourceType": each, "version": "1"}), inserted()) for each in ("MySQL", "DRDS", "OTHER")),
    # Statements.
    (body(operation="DDL", objectName=None, afterImages=DROP), Ddl("", "", DROP)),
    (body(operation="DDL", objectName="d", afterImages=DROP), Ddl("d", "", DROP)),
    (body(operation="DDL", objectName="d.t", afterImages=DROP), Ddl("d", "t", DROP)),
    (body(operation="DDL", objectName="d.s.t", afterImages=DROP), Ddl("d", "t", DROP)),
    # Both ends of a transaction end what came before. The other operations carry nothing.
    (body(operation="BEGIN"), TransactionEnd()),
    (body(operation="COMMIT"), TransactionEnd()),
    *((body(operation=each), None) for each in EMPTY),
    *((body(source={"sourceType": each, "version": "1"}), None) for each in ("PostgreSQL", "Oracle", "MongoDB")),
]


@pytest.mark.parametrize(("value", "part"), PARTS, ids=shown)
def test_what_a_record_says(value: bytes, part: object) -> None:
    assert decode(None, value).parts == (() if part is None else (part,))


NO_KEYS = (
    "[]", "{", '{"PRIMARY":"id"}', '{"PRIMARY":[null]}', '{"PRIMARY":null}', '{"PRIMARY":["\\ud800"]}', "[" * 100_000,
)  # fmt: skip
ERRORS = [
    *((body(sourceTimestamp=each), "not between the years") for each in (-1, 1_732_156_800_789, (1 << 63) - 1)),
    *((row(tags={"pk_uk_info": each}), r"tag pk_uk_info .*\[table shop\.t\]") for each in NO_KEYS),
    *((row(objectName=each), "objectName") for each in (None, "", "shop", "shop.", ".t", "a.b.c.d", "a..b")),
    *((body(operation="DDL", afterImages=each), "no statement") for each in (None, "", [ONE])),
    # Rows that are not whole.
    (row(afterImages=None), r"the INSERT has no row.*\[table shop\.t\]"),
    (row(operation="UPDATE", afterImages=None, beforeImages=[ONE]), r"the UPDATE has no row.*\[table shop\.t\]"),
    (row(operation="DELETE"), r"the DELETE has no row.*\[table shop\.t\]"),
    (row(afterImages=[ONE, TWO]), r"2 values for 1 columns.*\[table shop\.t\]"),
    (row(afterImages=[]), r"0 values for 1 columns.*\[table shop\.t\]"),
    (row(operation="UPDATE", beforeImages=[ONE, ONE]), r"beforeImages has 2 values.*\[table shop\.t\]"),
    (row(afterImages="(1)"), r"afterImages of a row is text.*\[table shop\.t\]"),
    (row(fields=None), r"columns are not named.*\[table shop\.t\]"),
    (row(fields="id"), r"columns are not named.*\[table shop\.t\]"),
    (row(fields=[], afterImages=[]), r"columns are not named.*\[table shop\.t\]"),
    (row(fields=[FIELD] * 2, afterImages=[ONE, TWO]), r"same name.*\[table shop\.t\]"),
    # Rows of an operation that should have none are not dropped.
    *((row(operation=each), f"operation {each} with images") for each in ("COMMIT", "BEGIN", "FILL", "RDB")),
    # Their type numbers are their own, and some have nanoseconds where MySQL has microseconds.
    *(
        (row(source={"sourceType": each, "version": "1"}), rf"source {each} \[table shop.t\]: only those of MySQL")
        for each in ("PostgreSQL", "Oracle", "MongoDB")
    ),
    *((b"\x01" * size, "not a record of DTS") for size in (3, 47, 49)),
]


@pytest.mark.parametrize(("value", "problem"), ERRORS, ids=shown)
def test_what_cannot_be_used_is_an_error(value: bytes, problem: str) -> None:
    with pytest.raises(MessageError, match=problem) as caught:
        decode(None, value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [None, b"", b"\x00", b"\x00\x00", b"\x00" * 48, bytes(range(48))])
def test_values_that_only_move_the_offset_on(value: bytes | None) -> None:
    assert decode(b"key", value) == Message(Origin())


def test_a_record_of_48_bytes_is_read() -> None:
    short = body(born=None, operation="COMMIT", sourceTxid="")
    value = body(born=None, operation="COMMIT", sourceTxid="7" * (48 - len(short)))
    assert len(value) == 48
    assert decode(None, value).parts == (TransactionEnd(),)


def test_an_unreadable_row_of_48_bytes_is_not_taken_for_a_no_op() -> None:
    def of_version(version: str) -> bytes:
        source = {"sourceType": "MySQL", "version": version}
        texts = dict.fromkeys(("safeSourcePosition", "sourcePosition", "sourceTxid"), "")
        return row_body([("c", 253, character("x", b""))], born=None, source=source, **texts)

    value = of_version("8" * (48 - len(of_version(""))))
    assert len(value) == 48
    with pytest.raises(MessageError, match="character set 'x' is not known"):
        decode(None, value)


NEW_DATE = 14


@pytest.mark.parametrize(
    ("number", "image", "expected"),
    [
        (15, character("utf8mb4", b""), "varchar"),
        (15, character("binary", b""), "varbinary"),
        (253, character("Binary", b""), "varbinary"),
        (254, character("gbk", b""), "char"),
        (249, character("utf8mb4", b""), "tinytext"),
        (250, character("utf8mb4", b""), "mediumtext"),
        (251, character("utf8mb4", b""), "longtext"),
        (252, character("utf8mb4", b""), "longtext"),
        (252, text_object("text", ""), "longtext"),
        (249, binary_object("blob", b""), "tinyblob"),
        (250, binary_object("blob", b""), "mediumblob"),
        (251, binary_object("blob", b""), "longblob"),
        (254, text_object("ENUM", "a"), "enum"),
        (254, text_object("set", "a"), "set"),
        (0, decimal("1.0", 2, precision=10), "decimal(10,2)"),
        (246, decimal("1.0", 30, precision=65), "decimal(65,30)"),
        (246, decimal("1.0", 0, precision=0), None),
        (246, decimal("1.0", 2, precision=66), None),
        (246, decimal("1.0", 3, precision=2), None),
        (246, None, None),
        (253, None, None),
        (252, NULL, None),
        (8, None, "decimal(20,0)"),
        (12, None, "datetime(6)"),
        (18, None, "datetime(6)"),
        (17, None, "timestamp(6)"),
        (19, None, "time(6)"),
        (NEW_DATE, date_time(year=2024, month=1, day=1), "date"),
        (NEW_DATE, date_time(year=2024, month=1, day=1, hour=0, minute=0, second=0), "datetime(6)"),
        (NEW_DATE, None, None),
        (6, None, None),
        (-1, ONE, None),
        (1_000_000, character("utf8mb4", b""), None),
    ],
    ids=shown,
)
def test_types(number: int, image: Image, expected: str | None) -> None:
    assert change(row_body([("c", number, image)])).types.get("c") == expected


def test_a_type_is_told_by_either_row() -> None:
    columns: list[tuple[str, int, Image]] = [("a", 253, None), ("b", 253, character("binary", b"x"))]
    value = row_body(columns, operation="UPDATE", beforeImages=[character("utf8mb4", b"y"), None])
    assert change(value).types == {"a": "varchar", "b": "varbinary"}


def test_names_of_columns_are_not_cut_or_changed() -> None:
    names = ["a.b", "\\u002E", "", "ü" * 64, "`"]
    assert change(row_body([(name, 8, ONE) for name in names])).after == dict.fromkeys(names, "1")
