"""Row images as columns: the usual ones, and those that a version does not fit."""

from __future__ import annotations

from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.mysql_types import ColumnType
from cdc_lakehouse.changelog.schema import Column, TableName, TableVersion
from cdc_lakehouse.decoders.event_schema import image_text
from cdc_lakehouse.lake.current import typed_rows
from cdc_lakehouse.lake.current.typed_rows import image_of, row_images
from tests.kit.duckdb_sql import connection

TEXT: Final = ColumnType.of("varchar", length=20)


def version_of(*names: str, virtual: str | None = None) -> TableVersion:
    columns = [Column(id, name, TEXT, carried=name != virtual) for id, name in enumerate(names, 1)]
    return TableVersion(1, TableName("d", "t"), "d.t#1", "create", "create", "", "", tuple(columns))


AB: Final = version_of("a", "b")
WITH_VIRTUAL: Final = version_of("a", "v", "b", virtual="v")


def read(version: TableVersion, *images: str | None, wanted: set[int] | None = None) -> list[dict[str, Any]]:
    """One row for each image, after the same in one query and image by image."""
    whole = _read(version, images, wanted)
    with patch.object(typed_rows, "_FEW_IMAGES", 0):
        assert whole == _read(version, images, wanted)
    assert whole == [row for image in images for row in _read(version, [image], wanted)]
    return whole


def _read(version: TableVersion, images: Any, wanted: set[int] | None) -> list[dict[str, Any]]:
    events = pa.table({"image": pa.array(images, pa.string())})
    columns = {column.id for column in version.columns} if wanted is None else wanted
    found = row_images(connection(), events, version, columns)
    return pa.table({**found.texts, "strange": found.strange, "absent": found.absent}).to_pylist()


def row(a: str | None, b: str | None, *, strange: bool = False, absent: bool = False) -> dict[str, Any]:
    return {"t1": a, "t2": b, "strange": strange, "absent": absent}


def test_images_have_the_columns_in_any_order() -> None:
    assert read(AB, '{"a":"1","b":null}', '{"b":"","a":"null"}') == [row("1", None), row("null", "")]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ('{"a":"1"}', row("1", None, absent=True)),
        ("{}", row(None, None, absent=True)),
        (None, row(None, None, absent=True)),
        ('{"a":"1","b":"2","c":null}', row("1", "2", strange=True)),
        ('{"A":"1","b":"2"}', row(None, "2", strange=True, absent=True)),
        ('{"a":"1","b":"2","a":"1"}', row("1", "2", strange=True)),
    ],
)
def test_an_image_may_not_fit(image: str | None, expected: dict[str, Any]) -> None:
    assert read(AB, '{"a":"1","b":"2"}', image) == [row("1", "2"), expected]


@pytest.mark.parametrize(
    ("image", "strange"),
    [('{"a":"1","v":"x","b":"2"}', False), ('{"a":"1","b":"2"}', False), ('{"a":"1","b":"2","w":"x"}', True)],
)
def test_virtual_columns_may_have_values(image: str, strange: bool) -> None:
    assert read(WITH_VIRTUAL, image) == [{"t1": "1", "t3": "2", "strange": strange, "absent": False}]


def test_only_wanted_columns_are_read() -> None:
    assert read(AB, '{"a":"1","b":"2"}', wanted={2, 9}) == [{"t2": "2", "strange": False, "absent": False}]
    assert read(AB, '{"a":"1","b":"2"}', wanted=set()) == [{"strange": False, "absent": False}]


NAMES: Final = ["*", "a.b", "", "0", "$", "a/b", "~1", "'", '"', "\\", "a b", "名", "😀", "VARCHAR"]


@pytest.mark.parametrize("names", [(name,) for name in NAMES] + [tuple(NAMES)])
def test_a_column_may_have_any_name(names: tuple[str, ...]) -> None:
    texts = {f"t{id}": f"v{id}" for id in range(1, len(names) + 1)}
    image = image_text(dict(zip(names, texts.values(), strict=True)))
    assert read(version_of(*names), image) == [{**texts, "strange": False, "absent": False}]


@pytest.mark.parametrize(
    "text", ["\0", "a\0b", "😀", "\U0010ffff", "\ue000", '"\\/\b\f\n\r\t', "\x1f\x7f\u2028", "1e400"]
)
@pytest.mark.parametrize("name", ["a", ""])
def test_a_text_may_have_any_characters(name: str, text: str) -> None:
    escaped = "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text)
    for image in (image_text({name: text}), f'{{"{name}":"{escaped}"}}'):
        assert read(version_of(name), image) == [{"t1": text, "strange": False, "absent": False}]
        assert image_of(image) == {name: text}


texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "v", "w"]), texts), max_size=6))
def test_images_say_what_their_text_says(images: list[dict[str, str | None]]) -> None:
    assert read(WITH_VIRTUAL, *map(image_text, images)) == [
        {
            "t1": image.get("a"),
            "t3": image.get("b"),
            "strange": "w" in image,
            "absent": not {"a", "b"} <= image.keys(),
        }
        for image in images
    ]
