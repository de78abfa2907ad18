"""Whatever dumps write is read back, wherever its pieces are cut; the readers agree on any bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cdc_lakehouse.decoders import problems
from cdc_lakehouse.decoders.formats.dump_values import DumpContext
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.sources.dump.contents import InsertNotation, TextNotation
from tests.decoders.damage import damaged
from tests.decoders.dump_reading import PIECES, context, eagerly, images, read, strictly
from tests.decoders.dump_writing import COLUMNS, COMMIT_TS, LABELS, MARKS, InsertWriter, Row, TextWriter, image

PARTS = (
    "a", "N", "'", '"', "''", '""', "\\", "\\N", "\\n", "NULL", "\n", "\r", "\r\n", "\t", "\0", "\b", "\x1a", ",", "|",
    "||", "é", "日本", "\U0001f600", "),\n(", ");\n", "(1", "x'00'", "\nINSERT INTO", "%", "\\%", "\ufeff", "\x07",
    "\x1f", "--", "/*", "_binary ", "x" * 90,
    ");\nINSERT INTO `parcels` VALUES\n(", ");\nINSERT INTO `parcels` VALUES ('",
)  # fmt: skip

texts = st.lists(st.sampled_from(PARTS), max_size=5).map("".join) | st.text(st.characters(exclude_categories=["Cs"]))
blobs = st.binary(max_size=6) | st.sampled_from([b"\xff'\"\\", b"\r\n\0", bytes(range(256)), b"\xf8\xf9"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(0, 2**64 - 1) | st.sampled_from([-1, 0.5, -2.5e-07, 1e30]),
    "Name": texts,
    "data": blobs,
    "flags": st.binary(min_size=2, max_size=2),
    "kind": st.sampled_from(["", *LABELS]),
    "marks": st.sets(st.sampled_from(MARKS)).map(lambda labels: ",".join(sorted(labels, key=MARKS.index))),
    "shape": st.binary(min_size=1, max_size=5),
    "note": texts,
}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[str, ...], list[Row]]:
    names = tuple(draw(st.lists(st.sampled_from([*COLUMNS]), min_size=1, max_size=5, unique=True)))
    row = st.tuples(*(st.none() | VALUES[name] for name in names))
    return names, draw(st.lists(row, max_size=8))


@st.composite
def text_files(draw: st.DrawFn, plain: bool = False) -> tuple[TextWriter, list[Row]]:
    names, rows = draw(tables())
    escapes = plain or draw(st.booleans())
    quotes = [b'"'] if plain else [b'"', b"'", b"|'", *([b""] if escapes else [])]
    quote = draw(st.sampled_from(quotes))
    separator = draw(st.sampled_from([b",", b"\t", b";", b"|#|", b"\x01", "¦".encode()]))
    null = draw(st.sampled_from([rb"\N", b"NULL", b""]))
    # What is written as NULL is cannot be told from it.
    assume(escapes or null != rb"\N" or quote)
    notation = TextNotation(
        names,
        separator,
        quote,
        null if quote else rb"\N",
        draw(st.sampled_from([b"\n", b"\r\n", *([b"%", b"|\n"] if quote and not plain else [])])),
        escapes,
        not plain and draw(st.booleans()),
        draw(st.sampled_from(["raw", "hex", "base64"])),
        {name: draw(st.sampled_from(["raw", "hex", "base64"])) for name in names if name in ("data", "shape")},
    )
    return TextWriter(notation, draw(st.booleans())), rows


@st.composite
def insert_files(draw: st.DrawFn) -> tuple[InsertWriter, list[Row]]:
    names, rows = draw(tables())
    style = draw(st.sampled_from(["dumpling", "mydumper", "mysqldump"]))
    notation = InsertNotation(names, draw(st.booleans()))
    listed = draw(st.booleans())
    return InsertWriter(notation, style, listed, draw(st.integers(1, 5)), draw(st.booleans())), rows


files = text_files() | insert_files()
binaries = st.sampled_from(["characters", "base64", "hex"])
damage = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 3),
        st.sampled_from([b"", b'"', b"'", b",", b"\\", b"\n", b"\r", b"\r\n", b"\xff", b"(", b")", b";", b"x", b"1",
                         b".", b"e", b"N", b"\0", b"--", b"/*", b"\xf8", b"\x01"]),
    ),
    min_size=1,
    max_size=3,
)  # fmt: skip


def cut(content: bytes, shares: Sequence[float]) -> list[bytes]:
    places = sorted(int(share * len(content)) for share in shares)
    return [content[start:end] for start, end in zip([0, *places], [*places, len(content)], strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("reader", [eagerly, strictly], ids=["pieces", "rows"])
@given(files, binaries, st.booleans(), st.sampled_from(PIECES))
def test_what_a_dump_writes_is_read(reader: Any, file: Any, binary: Any, labels: bool, piece: int) -> None:
    writer, rows = file
    with reader():
        found = read(writer.file(rows), context(writer.notation, labels=labels, binary=binary), piece)
    assert images(found) == [image(row, writer.notation.columns, binary, labels) for row in rows]
    assert [event["line"] for event in found] == list(range(1, len(rows) + 1))
    assert all((event["op"], event["commit_ts"], event["before"]) == ("R", COMMIT_TS, None) for event in found)


def read_or_error(content: bytes | Sequence[bytes], of: DumpContext, piece: int = 1 << 20) -> list[dict[str, Any]]:
    """Nothing for a file of which a statement lists columns that the table does not have."""
    try:
        return read(content, of, piece)
    except SourceError:
        return []


@pytest.mark.slow
@given(files, damage, st.lists(st.floats(0, 1), max_size=8), st.sampled_from(PIECES))
def test_pieces_and_readers_make_no_difference(file: Any, places: Any, shares: list[float], piece: int) -> None:
    writer, rows = file
    content = damaged(writer.file(rows), places)
    if isinstance(writer, TextWriter) and writer.notation.header:
        # A damaged header is an error.
        header = writer.file([])
        content = header + damaged(writer.file(rows)[len(header) :], places)
    of = context(writer.notation)
    with strictly():
        expected = read_or_error(content, of)
    with eagerly():
        assert read_or_error(cut(content, shares), of, piece) == expected
    with strictly():
        assert read_or_error([content[at : at + 1] for at in range(len(content))], of, piece) == expected
    assert all(event["problem"] is None or event["problem"] in problems.PROBLEMS for event in expected)
    assert all((event["problem"] is None) == (event["op"] == "R") for event in expected)


@pytest.mark.slow
@given(text_files(plain=True), damage, st.integers(0, 7))
def test_a_bad_row_leaves_those_before_it_and_after_it_alone(file: Any, places: Any, which: int) -> None:
    writer, rows = file
    assume(rows)
    which %= len(rows)
    end = writer.notation.terminator
    records = [writer.row(row) for row in rows]
    expected = [image(row, writer.notation.columns, "characters", False) for row in rows]
    bad = damaged(records[which].removesuffix(end), places)
    # A terminator in it makes more rows of it; one that is no more makes one row of two.
    assume(end not in bad + end[:-1] and not bad.endswith(b"\\"))
    records[which] = bad + end
    with eagerly():
        found = images(read(b"".join(records), context(writer.notation)))
    assert len(found) == len(rows)
    assert found[:which] + found[which + 1 :] == expected[:which] + expected[which + 1 :]
