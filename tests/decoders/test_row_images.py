"""Images are the JSON of their rows, whatever stands in names and texts."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.decoders.event_schema import row_images

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
ALL = "".join(map(chr, [*range(0x100), 0x2028, 0xFFFF, 0x1F600]))


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[str], list[tuple[str | None, ...]]]:
    names = draw(st.lists(TEXTS, max_size=4, unique=True))
    cells = [draw(st.sampled_from([st.none() | TEXTS, TEXTS, st.just("7")])) for _ in names]
    return names, draw(st.lists(st.tuples(*cells), max_size=6))


@given(rows(), st.integers(0, 2))
def test_an_image_is_the_json_of_its_row(given: tuple[list[str], list[tuple[str | None, ...]]], start: int) -> None:
    names, cells = given
    columns = [pa.array([row[place] for row in cells], pa.string()).slice(start) for place in range(len(names))]
    cells = cells[start:]
    found = row_images(names, columns, len(cells))
    assert found.type == pa.string()
    assert [json.loads(image) for image in found.to_pylist()] == [dict(zip(names, row, strict=True)) for row in cells]


@pytest.mark.parametrize("name", ["a", ALL])
def test_every_character_of_one_byte(name: str) -> None:
    (image, null) = row_images([name, "b"], [pa.array([ALL, None]), pa.array(["x", "y"])], 2).to_pylist()
    assert (json.loads(image), json.loads(null)) == ({name: ALL, "b": "x"}, {name: None, "b": "y"})
