"""Rows that are taken at once are rows of texts, each name once; those that are written as usual are taken at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.decoders.formats.ticdc_canal_json import (
    NUMBERS,
    ROWS,
    FlatKind,
    RowForm,
    are_flat,
    have_known_entries,
    read_rows,
)
from tests.decoders.test_file_properties import damaged

NAMES = st.sampled_from(["a", "b", "id", ":", ",", "null", "{", "né", "a b"])
PLAIN = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=5)
TEXTS = PLAIN | st.sampled_from(["", ":", ",", "null", '"', "\\", '":"', '","b":"', "}", "\n", ":null"])
SLIPS = st.sampled_from([b"", b'"', b":", b",", b"\\", b"\n", b" ", b"\xff", b"{", b"}", b"[", b"null", b"1", b"\xc3"])
DAMAGE = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), SLIPS), max_size=2)


def written(row: Mapping[str, str | None]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


def is_row(text: bytes) -> bool:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    try:
        found = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, AssertionError):
        return False
    return isinstance(found, dict) and all(value is None or isinstance(value, str) for value in found.values())


batches = st.lists(
    st.lists(st.tuples(st.dictionaries(NAMES, st.none() | TEXTS, max_size=4), DAMAGE), max_size=8), max_size=4
)


@pytest.mark.slow
@given(batches)
def test_no_other_text_is_taken_for_a_row(batches: list[list[tuple[dict[str, str | None], Any]]]) -> None:
    forms: list[RowForm] = []
    for batch in batches:
        texts = [damaged(written(row), places) for row, places in batch]
        found, of_form = read_rows(pa.array(texts, pa.binary()), forms)
        assert found[of_form >= 0].all()
        # With the forms that are known by then.
        assert found.tolist() == read_rows(pa.array(texts, pa.binary()), forms)[0].tolist()
        for text, (row, places), is_taken in zip(texts, batch, found.tolist(), strict=True):
            assert not is_taken or is_row(text), text
            assert is_taken or places or not row, text


@pytest.mark.slow
@given(batches, st.sampled_from([ROWS, NUMBERS]))
def test_entries_make_no_other_text_an_object(
    batches: list[list[tuple[dict[str, str | None], Any]]], of: FlatKind
) -> None:
    known: dict[bytes | str, int] = {}
    for batch in batches:
        texts = pa.array([damaged(written(row), places) for row, places in batch], pa.binary())
        found = have_known_entries(texts, of, known)
        assert not (found & ~are_flat(texts, of)).any()


def test_a_row_that_is_shorter_than_a_form() -> None:
    forms: list[RowForm] = []
    for rows in ([{"a": "1", "a long name": "2"}], [{"a": "1", "b": "2"}], [{"a": "1", "a long name": "2"}]):
        sound, of_form = read_rows(pa.array([*map(written, rows)], pa.binary()), forms)
        assert sound.all() and (of_form >= 0).all()
