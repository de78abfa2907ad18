"""Whatever TiCDC writes is read back; whatever befalls a file, only what it befalls is lost, and is kept as it is."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cdc_lakehouse.changelog.positions import END_TS
from cdc_lakehouse.config import CsvOptions
from cdc_lakehouse.decoders import event_schema
from cdc_lakehouse.decoders.format import Dialect
from cdc_lakehouse.decoders.text.strict import CsvRecordReader
from tests.decoders.csv_reading import NAMES, PIECES, options, read, strictly
from tests.decoders.damage import damaged
from tests.decoders.ticdc_csv import DATABASE, TABLE, AmbiguousError, Bare, Change, Encoder, Row, Value, events

# What the options can be, and values that are nasty under them.

DELIMITERS = (",", "|", "\t", " ", ";", "|#|", "||", "ab", "@#", "\x1f", "\x00", "¦", "€", "¦|", "日本", "\\")
QUOTES = ('"', "'", "", "`", "\\", "\x00")
NULLS = ("\\N", "NULL", "", "<null>", "N", "é", "true")
PARTS = (
    "a", "b", "I", '"', "'", '""', "`", "“", "\r", "\n", "\r\n", ",", "|", "#", "|#|", "||", "ab", "@#", "¦",
    "€", "日本", "\\", "\\N", "\\\\N", "\\n", "\\r", "\\,", "NULL", "<null>", "\x00", "\x1f", "\x1e", " ", "\t",
    "\ufeff", "\U0001f600", '\r\n"I","parcels","shop",1,', "true", "ticdc-meta$operation", "x" * 90,
)  # fmt: skip

texts = st.lists(st.sampled_from(PARTS), max_size=5).map("".join) | st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.sampled_from(["0", "-1", "18446744073709551615", "3.5e+10", "2155"]).map(Bare)
values: st.SearchStrategy[Value] = st.none() | numbers | texts
tables, databases = st.just(TABLE) | texts, st.just(DATABASE) | texts
stamps = st.integers(1, 3) | st.integers(1, END_TS - 1)


@st.composite
def all_options(draw: st.DrawFn) -> CsvOptions:
    chosen: dict[str, object] = {
        "delimiter": draw(st.sampled_from(DELIMITERS)),
        "quote": draw(st.sampled_from(QUOTES)),
        "null": draw(st.sampled_from(NULLS)),
        "terminator": draw(st.sampled_from(["\r\n", "\n", "\r"])),
        "output_old_value": draw(st.booleans()),
        "output_field_header": draw(st.booleans()),
    }
    quote, delimiter, null = str(chosen["quote"]), str(chosen["delimiter"]), str(chosen["null"])
    assume(delimiter not in null and not (quote and (quote in delimiter or quote in null)))
    # What is part of escapes cannot be both; the configuration refuses it.
    assume(quote or not set(delimiter) & set("\\nr"))
    return options(**chosen)


@st.composite
def files(draw: st.DrawFn, of: st.SearchStrategy[CsvOptions]) -> tuple[Encoder, list[Change]]:
    """Of what TiCDC writes so that it can be read back."""
    names = NAMES[: draw(st.integers(1, 3))]
    encoder = Encoder(draw(of), names, draw(st.booleans()))
    row: st.SearchStrategy[Row | None] = st.none() | st.tuples(*[values] * len(names))
    changes = draw(st.lists(st.builds(Change, stamps, row, row, tables, databases, texts), max_size=8))
    changes = [change for change in changes if change.before is not None or change.after is not None]
    try:
        encoder.file(changes)
    except AmbiguousError:
        assume(False)
    return encoder, changes


def read_file(content: bytes, encoder: Encoder, piece: int = 1 << 20) -> list[dict[str, Any]]:
    return read(content, encoder.options, encoder.names, encoder.handle_key, piece)


@pytest.mark.slow
@pytest.mark.parametrize("reader", [contextlib.nullcontext, strictly], ids=["pieces", "records"])
@given(files(all_options()), st.sampled_from(PIECES), st.integers(2, 5))
def test_what_ticdc_writes_is_read(reader: Any, file: tuple[Encoder, list[Change]], piece: int, batch: int) -> None:
    encoder, changes = file
    with patch.object(event_schema, "BATCH_ROWS", batch), reader():
        assert read_file(encoder.file(changes), encoder, piece) == list(events(changes, encoder))


usual = st.builds(
    options,
    quote=st.sampled_from(['"', ""]),
    delimiter=st.sampled_from([",", "|#|", "¦"]),
    terminator=st.sampled_from(["\r\n", "\n"]),
    output_old_value=st.booleans(),
)
damage = st.lists(
    st.tuples(
        st.floats(0, 1), st.integers(0, 3), st.sampled_from([b"", b'"', b",", b"\\", b"\n", b"\xff", b'"I"', b"\0"])
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@given(files(usual), damage, st.sampled_from(PIECES))
def test_the_readers_agree_on_any_file(
    file: tuple[Encoder, list[Change]], places: list[tuple[float, int, bytes]], piece: int
) -> None:
    encoder, changes = file
    content = damaged(encoder.file(changes), places)
    found = read_file(content, encoder, piece)
    with strictly():
        assert found == read_file(content, encoder)


@pytest.mark.slow
@given(files(usual), damage, st.integers(0, 7))
def test_a_bad_record_leaves_its_neighbours_alone(
    file: tuple[Encoder, list[Change]], places: list[tuple[float, int, bytes]], which: int
) -> None:
    encoder, changes = file
    encoder = Encoder(encoder.options.model_copy(update={"output_old_value": False}), encoder.names, encoder.handle_key)
    assume(which < len(changes))
    records = [encoder.records(change)[0] for change in changes]
    expected = [{**event, "line": 0} for event in events(changes, encoder)]
    end = encoder.options.terminator.encode()
    records[which] = damaged(records[which].removesuffix(end), places) + end
    found = [{**event, "line": 0} for event in read_file(b"".join(records), encoder)]
    assert found[:which] == expected[:which]
    after = len(expected) - which - 1
    assert after == 0 or found[-after:] == expected[-after:]
    for event in found[which : len(found) - after]:
        assert (event["value"] is not None) == (event["problem"] is not None)
        # What is of another table is no more than its values.
        assert not isinstance(event["value"], bytes) or event["value"] in records[which]


@pytest.mark.slow
@given(st.binary(max_size=200) | st.lists(st.sampled_from(PARTS)).map(lambda parts: "".join(parts).encode()), usual)
@example(b'"I","a","b",1,"c', options())
def test_no_byte_is_lost(content: bytes, csv_options: CsvOptions) -> None:
    at = 0
    for record in CsvRecordReader(content, Dialect.of(csv_options)).records(0, len(content)):
        assert not content[at : record.start].strip(b"\r\n") and record.start < record.end <= record.following
        at = record.end
    assert not content[at:].strip(b"\r\n")
    bad = [event for event in read(content, csv_options) if isinstance(event["value"], bytes)]
    assert all(event["problem"] and event["value"] and event["value"] in content for event in bad)
