"""Messages of DTS Avro: what each operation says, names, keys, types and positions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc_lakehouse.changelog.events import Ddl, Message, MessageError, Origin, RowChange, TransactionEnd
from cdc_lakehouse.decoders.messages.dts_avro import decode
from tests.decoders.messages.dts_records import Image, body, change, character, date_time, row_body, sdk_records

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
SMALL = {"id": "18446744073709551615", "c_tiny": "-128"}
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
    (
        RowChange(
            "cdc", "t3", "U", {"id": "1", "c_tiny": "1"}, {"id": "9", "c_tiny": "1"}, SMALL_TYPES, ("id", "c_tiny")
        ),
    ),
    (RowChange("cdc", "we.ird", "I", None, SMALL, SMALL_TYPES, ("id", "c_tiny")),),
    (
        RowChange(
            "cdc", "t_empty", "I", None, {"id": SMALL["id"], "c_enull": None}, {"id": "decimal(20,0)"}, ("id",)
        ),
    ),
    (Ddl("cdc", "", "ALTER TABLE `t_all` ADD COLUMN `c_new` int DEFAULT '7' COMMENT '中'"),),
    (Ddl("cdc", "t_all", "TRUNCATE TABLE t_all"),),
    *[()] * 11,
]  # fmt: skip


@pytest.mark.parametrize(("record", "parts"), list(zip(sdk_records(), EXPECTED, strict=True)), ids=map(str, range(24)))
def test_the_sdks_records(record: tuple[bytes, dict[str, Any]], parts: tuple[Any, ...]) -> None:
    value, expected = record
    offset, file = expected["sourcePosition"].split("@")
    origin = Origin(time_ms=expected["sourceTimestamp"] * 1000, log_file=f"{int(file):06d}", log_offset=int(offset))
    assert decode(None, value) == Message(origin, parts)
    view = expected["sdkView"]
    if isinstance(view, dict):
        (part,) = parts
        assert (view["db"], view["table"], view["pk"]) == (part.database, part.table, list(part.key or ()))


ONE = ("Integer", {"precision": 8, "value": "1"})
TWO = ("Integer", {"precision": 8, "value": "2"})
COLUMN: list[tuple[str, int, Image]] = [("id", 8, ONE)]


def test_an_update_with_its_tags_and_position() -> None:
    fields = [{"name": "a", "dataTypeNumber": 8}, {"name": "b", "dataTypeNumber": 253}]
    old = [("Integer", {"precision": 8, "value": "987654321"}), character("utf8mb4", b"first")]
    new = [old[0], character("utf8mb4", b"second")]
    value = body(
        operation="UPDATE",
        objectName="stock.bins",
        tags={"metaVersion": "77", "pk_uk_info": '{"PRIMARY":["a"]}', "server_id": "31"},
        fields=fields,
        beforeImages=old,
        afterImages=new,
        sourcePosition="5120@12",
        sourceTimestamp=1_709_629_811,
    )
    assert decode(None, value) == Message(
        Origin(time_ms=1_709_629_811_000, log_file="000012", log_offset=5120),
        (
            RowChange(
                "stock",
                "bins",
                "U",
                {"a": "987654321", "b": "first"},
                {"a": "987654321", "b": "second"},
                {"a": "decimal(20,0)", "b": "varchar"},
                ("a",),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("position", "file", "offset"),
    [
        ("4711@12", "000012", 4711),
        ("1@1234567", "1234567", 1),
        ("4@0", "000000", 4),
        ("", None, None),
        ("78", None, None),
        ("mysql-bin.000078:4", None, None),
        ("4@78<->9", None, None),
        ("-4@78", None, None),
        ("4@78\n", None, None),
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


@pytest.mark.parametrize("seconds", [-1, 1_732_156_800_789, (1 << 63) - 1])
def test_a_time_that_is_not_in_seconds_is_an_error(seconds: int) -> None:
    with pytest.raises(MessageError, match="sourceTimestamp"):
        decode(None, body(sourceTimestamp=seconds))


@pytest.mark.parametrize(
    ("pk_uk_info", "key"),
    [
        ('{"PRIMARY":["id"]}', ("id",)),
        ('{"uk_1":["v"],"PRIMARY":["v","id"]}', ("v", "id")),
        ("{}", ()),
        # Whether `v` may be NULL is not said: no key of it.
        ('{"uk_1":["v"]}', ()),
        ('{"PRIMARY":[]}', ()),
        ("", None),
    ],
)
def test_keys(pk_uk_info: str, key: tuple[str, ...] | None) -> None:
    assert change(row_body(COLUMN, tags={"pk_uk_info": pk_uk_info})).key == key


@pytest.mark.parametrize(
    "pk_uk_info",
    ["[]", "{", '{"PRIMARY":"id"}', '{"PRIMARY":[null]}', '{"PRIMARY":null}', '{"PRIMARY":["\\ud800"]}', "[" * 100_000],
)
def test_a_key_that_cannot_be_read_is_an_error(pk_uk_info: str) -> None:
    with pytest.raises(MessageError, match=r"tag pk_uk_info .*\[table shop\.t\]") as caught:
        decode(None, row_body(COLUMN, tags={"pk_uk_info": pk_uk_info}))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("object_name", "database", "table"),
    [
        ("shop.orders", "shop", "orders"),
        ("shop.public.orders", "shop", "orders"),
        ("a\\u002Eb.c\\u002Ed\\u002Ee", "a.b", "c.d.e"),
        ("shop.or-ders 中", "shop", "or-ders 中"),
        ("shop.\\u002e", "shop", "\\u002e"),
    ],
)
def test_object_names(object_name: str, database: str, table: str) -> None:
    found = change(row_body(COLUMN, objectName=object_name))
    assert (found.database, found.table) == (database, table)


@pytest.mark.parametrize("object_name", [None, "", "shop", "shop.", ".t", "a.b.c.d", "a..b"])
def test_a_row_of_no_table_is_an_error(object_name: str | None) -> None:
    with pytest.raises(MessageError, match="objectName"):
        decode(None, row_body(COLUMN, objectName=object_name))


@pytest.mark.parametrize(
    ("object_name", "expected"),
    [
        (None, Ddl("", "", "DROP DATABASE d")),
        ("d", Ddl("d", "", "DROP DATABASE d")),
        ("d.t", Ddl("d", "t", "DROP DATABASE d")),
        ("d.s.t", Ddl("d", "t", "DROP DATABASE d")),
    ],
)
def test_statements(object_name: str | None, expected: Ddl) -> None:
    value = body(operation="DDL", objectName=object_name, afterImages="DROP DATABASE d")
    assert decode(None, value).parts == (expected,)


@pytest.mark.parametrize("images", [None, "", [ONE]])
def test_a_ddl_without_a_statement_is_an_error(images: object) -> None:
    with pytest.raises(MessageError, match="no statement"):
        decode(None, body(operation="DDL", afterImages=images))


def test_updates_without_their_old_row() -> None:
    found = change(row_body(COLUMN, operation="UPDATE"))
    assert (found.op, found.before, found.after) == ("U", None, {"id": "1"})


def test_a_row_of_the_full_load_is_an_insert() -> None:
    found = change(row_body(COLUMN, operation="INIT"))
    assert (found.op, found.before, found.after) == ("I", None, {"id": "1"})


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"afterImages": None}, "the INSERT has no row"),
        ({"operation": "UPDATE", "afterImages": None, "beforeImages": [ONE]}, "the UPDATE has no row"),
        ({"operation": "DELETE"}, "the DELETE has no row"),
        ({"afterImages": [ONE, TWO]}, "2 values for 1 columns"),
        ({"afterImages": []}, "0 values for 1 columns"),
        ({"operation": "UPDATE", "beforeImages": [ONE, ONE]}, "beforeImages has 2 values"),
        ({"afterImages": "(1)"}, "afterImages of a row is text"),
        ({"fields": None}, "columns are not named"),
        ({"fields": "id"}, "columns are not named"),
        ({"fields": [], "afterImages": []}, "columns are not named"),
        ({"fields": [{"name": "id", "dataTypeNumber": 8}] * 2, "afterImages": [ONE, TWO]}, "same name"),
    ],
)
def test_rows_that_are_not_whole_are_an_error(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(MessageError, match=problem) as caught:
        decode(None, row_body(COLUMN, **values))
    assert caught.value.table == "shop.t"


EMPTY = (
    "ROLLBACK", "ABORT", "HEARTBEAT", "CHECKPOINT", "COMMAND", "FILL", "FINISH", "CONTROL", "RDB", "NOOP",
    "INIT",
)  # fmt: skip


@pytest.mark.parametrize("operation", EMPTY)
def test_operations_that_carry_nothing(operation: str) -> None:
    assert decode(None, body(operation=operation)).parts == ()


@pytest.mark.parametrize("operation", ["COMMIT", "BEGIN"])
def test_both_ends_of_a_transaction_end_what_came_before(operation: str) -> None:
    assert decode(None, body(operation=operation)).parts == (TransactionEnd(),)


@pytest.mark.parametrize("operation", ["COMMIT", "BEGIN", "FILL", "RDB"])
def test_rows_of_an_operation_that_should_have_none_are_not_dropped(operation: str) -> None:
    with pytest.raises(MessageError, match=f"operation {operation} with images"):
        decode(None, row_body(COLUMN, operation=operation))


@pytest.mark.parametrize("source", ["PostgreSQL", "Oracle", "MongoDB"])
def test_other_databases_are_refused(source: str) -> None:
    """Their type numbers are their own, and some have nanoseconds where MySQL has microseconds."""
    with pytest.raises(MessageError, match=rf"source {source} \[table shop.t\]: only those of MySQL"):
        decode(None, row_body(COLUMN, source={"sourceType": source, "version": "1"}))
    assert decode(None, body(source={"sourceType": source, "version": "1"})).parts == ()


@pytest.mark.parametrize("source", ["MySQL", "DRDS", "OTHER"])
def test_databases_with_mysqls_types(source: str) -> None:
    assert change(row_body(COLUMN, source={"sourceType": source, "version": "1"})).after == {"id": "1"}


@pytest.mark.parametrize("value", [None, b"", b"\x00", b"\x00\x00", b"\x00" * 48, bytes(range(48))])
def test_values_that_only_move_the_offset_on(value: bytes | None) -> None:
    assert decode(b"key", value) == Message(Origin())


def test_a_record_of_48_bytes_is_read() -> None:
    short = body(born=None, operation="COMMIT", sourceTxid="")
    value = body(born=None, operation="COMMIT", sourceTxid="7" * (48 - len(short)))
    assert len(value) == 48
    assert decode(None, value).parts == (TransactionEnd(),)


@pytest.mark.parametrize("size", [3, 47, 49])
def test_other_sizes_are_no_no_op(size: int) -> None:
    with pytest.raises(MessageError, match="not a record of DTS"):
        decode(None, b"\x01" * size)


def test_an_unreadable_row_of_48_bytes_is_not_taken_for_a_no_op() -> None:
    row = {"charset": "x", "safeSourcePosition": "", "sourcePosition": "", "sourceTxid": ""}
    image = character(row.pop("charset"), b"")
    value = row_body([("c", 253, image)], born=None, source={"sourceType": "MySQL", "version": ""}, **row)
    value = row_body(
        [("c", 253, image)], born=None, source={"sourceType": "MySQL", "version": "8" * (48 - len(value))}, **row
    )
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
        (252, ("TextObject", {"type": "text", "value": ""}), "longtext"),
        (249, ("BinaryObject", {"type": "blob", "value": b""}), "tinyblob"),
        (250, ("BinaryObject", {"type": "blob", "value": b""}), "mediumblob"),
        (251, ("BinaryObject", {"type": "blob", "value": b""}), "longblob"),
        (254, ("TextObject", {"type": "ENUM", "value": "a"}), "enum"),
        (254, ("TextObject", {"type": "set", "value": "a"}), "set"),
        (0, ("Decimal", {"value": "1.0", "precision": 10, "scale": 2}), "decimal(10,2)"),
        (246, ("Decimal", {"value": "1.0", "precision": 65, "scale": 30}), "decimal(65,30)"),
        (246, ("Decimal", {"value": "1.0", "precision": 0, "scale": 0}), None),
        (246, ("Decimal", {"value": "1.0", "precision": 66, "scale": 2}), None),
        (246, ("Decimal", {"value": "1.0", "precision": 2, "scale": 3}), None),
        (246, None, None),
        (253, None, None),
        (252, ("EmptyObject", "NULL"), None),
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
)
def test_types(number: int, image: Image, expected: str | None) -> None:
    assert change(row_body([("c", number, image)])).types.get("c") == expected


def test_a_type_is_told_by_either_row() -> None:
    columns: list[tuple[str, int, Image]] = [("a", 253, None), ("b", 253, character("binary", b"x"))]
    value = row_body(columns, operation="UPDATE", beforeImages=[character("utf8mb4", b"y"), None])
    assert change(value).types == {"a": "varchar", "b": "varbinary"}


def test_names_of_columns_are_not_cut_or_changed() -> None:
    names = ["a.b", "\\u002E", "", "ü" * 64, "`"]
    found = change(row_body([(name, 8, ONE) for name in names]))
    assert found.after == dict.fromkeys(names, "1")


def test_decoding_is_the_same_for_any_key() -> None:
    for value, _ in sdk_records():
        assert decode(b"any key", value) == decode(None, value)


def test_json_of_a_key_is_what_the_sdk_writes() -> None:
    """That the keys above are compared with the SDK's own."""
    keys = [json.loads(record["tags"].get("pk_uk_info", "null")) for _, record in sdk_records()]
    assert {"PRIMARY": ["id"], "uk_1": ["c_int", "c_varchar"]} in keys and {} in keys
