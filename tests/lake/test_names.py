"""Names of the source as names of the lake, whatever MySQL allows; and names that are in lakes."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
import sqlglot
from hypothesis import example, given
from hypothesis import strategies as st
from sqlglot import exp

from cdc_lakehouse.lake import names
from cdc_lakehouse.lake.names import Identifier, encode_namespace, encode_table, path_part

NAMES = st.text(
    st.one_of(st.sampled_from("%.2fF5E/ab`'\" \\\n\x00\x7f-_é桌"), st.characters(codec="utf-8")),
    min_size=1,
    max_size=12,
)


@given(name=NAMES)
@example(name="%2F/%2f%%2F")
@example(name="100%")
def test_encoded_name_is_decoded_and_fits_any_catalog(name: str) -> None:
    for encode in (encode_table, encode_namespace):
        encoded = encode(name)
        assert unquote(encoded) == name and "/" not in encoded
        assert not any(ord(character) < 0x20 or ord(character) == 0x7F for character in encoded)
    assert "." not in encode_namespace(name)


@pytest.mark.parametrize(
    ("name", "table", "namespace"),
    [
        # What fits stays as it is, what does not is percent-encoded.
        *(
            (name, name, name)
            for name in ("orders", "Order Lines", "100%", "%zz", "订单", "a`b", "it's", "a-b_c", "#1")
        ),
        ("a.b", "a.b", "a%2Eb"),
        ("a/b", "a%2Fb", "a%2Fb"),
        ("50%25", "50%2525", "50%2525"),
        ("tab\there", "tab%09here", "tab%09here"),
        # The namespaces of feeds' own tables, in catalogs that tell no case apart too.
        ("cdc_shop", "cdc_shop", "%63dc_shop"),
        ("CDC_shop", "CDC_shop", "%43DC_shop"),
        ("cdc", "cdc", "cdc"),
    ],
)
def test_name_is_encoded_as_lakes_have_it(name: str, table: str, namespace: str) -> None:
    assert (encode_table(name), encode_namespace(name)) == (table, namespace)


def parts_in_spark(sql: str) -> list[str]:
    """The parts of the one table that a query names."""
    (statement,) = sqlglot.parse(f"SELECT 1 FROM {sql}", read="spark")
    assert isinstance(statement, exp.Select)
    (table,) = statement.find_all(exp.Table)
    return [part.name for part in table.parts]


@given(namespace=NAMES, name=NAMES)
@example(namespace="d`; DROP TABLE x; --", name="`")
@example(namespace="a``b", name="c\\")
def test_identifier_in_sql_is_one_table(namespace: str, name: str) -> None:
    identifier = Identifier(encode_namespace(namespace), encode_table(name))
    assert parts_in_spark(identifier.sql) == ["lake", *identifier.parts]


@given(name=NAMES | st.sampled_from(["..", ".", "../../etc", "a/../b", "~"]))
def test_path_part_is_harmless(name: str) -> None:
    part = path_part(name)
    assert part.isascii()
    assert not set(part) & set("/\\.:%?#*~ ")
    assert len(part) == len(name)


IN_LAKES = """
batch checkpoint-ts offsets row-count schema-versions settings held oldest-date whole-at unclear lease-run
lease-host lease-process lease-expires-at lease-released lease-before unmarked-batches superseded landed.
batch-segments first-batch removed-upto canal-position canal-repeats feed database table incarnation applied-ts
applied-batch lineage columns dropped-ts key compacted-at keys-touched rows-written rows-removed
"""


def test_properties_have_the_names_that_lakes_have() -> None:
    """In the order of the module: lakes of before are not understood by another one."""
    found = [value for value in vars(names).values() if isinstance(value, str) and value.startswith("cdc.")]
    assert found == [f"cdc.{name}" for name in IN_LAKES.split()]
