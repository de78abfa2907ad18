"""Lines of files, and which files a task reads."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.decoders.json.forms import lines_of
from cdc_lakehouse.errors import SourceError
from cdc_lakehouse.lake.tables.decoding import _groups
from cdc_lakehouse.sources.object_store.opening import SegmentRef, read_in_parts

PIECES = (1, 2, 5, 1 << 20)


def found(content: bytes, piece: int = 1 << 20, parts: Sequence[bytes] = ()) -> list[tuple[int, bytes]]:
    return [
        (number, lines.line(which))
        for lines in lines_of(parts or [content], piece)
        for which, number in enumerate(lines.numbers.tolist())
    ]


PARTS = (
    b"a",
    b"bc",
    b"\r",
    b"\n",
    b"\r\n",
    b" ",
    b"\xff",
    b"\0",
    b"\x0b",
    b"\x0c",
    b"\x1e",
    b"\xc2\x85",
    b"\xef\xbb\xbf",
)


@given(st.lists(st.sampled_from(PARTS)), st.sampled_from(PIECES), st.sets(st.integers(0, 30)))
def test_every_line_end_ends_a_line(written: list[bytes], piece: int, cuts: set[int]) -> None:
    content = b"".join(written)
    lines = re.split(rb"\r\n|\r|\n", content.removeprefix(b"\xef\xbb\xbf"))
    expected = [(number, line) for number, line in enumerate(lines, 1) if line]
    assert found(content, piece) == expected
    parts = [content[start:stop] for start, stop in itertools.pairwise([0, *sorted(cuts), len(content)])]
    assert found(content, piece, parts) == expected


def test_groups_hold_every_segment_once_in_order() -> None:
    for sizes in ([], [0], [5] * 1000, [10**9, 1, 1, 10**9], list(range(0, 10**8, 10**6))):
        segments = [SegmentRef(str(number), size, "") for number, size in enumerate(sizes)]
        groups = _groups(segments, 2)
        assert [segment for group in groups for segment in group] == segments
        assert all(groups) and len(groups) <= max(8, sum(sizes) // 2**27 + 1, 1) + 1


def test_a_file_on_a_disk_comes_in_parts(tmp_path: Path) -> None:
    content = b"a line\n" * 2_000_000
    (tmp_path / "a").write_bytes(content)
    ref = SegmentRef("a", len(content), None)
    ((_, parts),) = read_in_parts(tmp_path.as_uri(), StorageConfig.nothing(), [ref])
    found = list(parts)
    assert len(found) == 2 and b"".join(found) == content
    too_large = [SegmentRef("a", 1 << 31, None)]
    with pytest.raises(SourceError, match="larger than 2147483647 bytes"):
        list(read_in_parts(tmp_path.as_uri(), StorageConfig.nothing(), too_large))
