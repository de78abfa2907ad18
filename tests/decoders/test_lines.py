"""Lines of files that are read whole: as Spark's own reader gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.decoders.files import canal_json, lines
from cdc_lakehouse.decoders.files.tasks import SegmentRef, _groups

CONTENTS = {
    "empty": b"",
    "one": b"a",
    "ended": b"a\n",
    "crlf": b"a\r\nb\r\n",
    "blank": b"\n",
    "blanks": b"\r\n\r\na\n\n",
    "cr": b"a\rb\r\rc",
    "mixed": b"a\n\rb\r\nc\n\r\n",
    "bytes": b"\x00\xff\xfe\n\xc3\x28\nok",
    "mark": b"\xef\xbb\xbfa\nb",
    "unicode": "é\u2028日本\x85𐍈\x0b\x0c\x1e\n".encode(),
}


def found(content: bytes) -> list[tuple[int, bytes]]:
    return [
        (number, value.as_buffer().to_pybytes())
        for batch in lines.lines_of("f", content)
        for number, value in zip(batch["line"].to_pylist(), batch["value"], strict=True)
    ]


def test_lines_have_their_file_and_number() -> None:
    (batch,) = lines.lines_of("a/b", b"x\r\ny\n")
    assert batch.to_pydict() == {"file": ["a/b"] * 2, "line": [1, 2], "value": ["x", "y"]}


def test_numbers_go_on_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_LINES_A_BATCH", 2)
    assert found(b"a\nb\nc\nd\ne") == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d"), (5, b"e")]


@given(st.lists(st.binary(max_size=8).filter(lambda line: not set(line) & set(b"\r\n")), min_size=1))
def test_every_line_end_ends_a_line(content: list[bytes]) -> None:
    content = [b"first", *content]
    for end in (b"\n", b"\r\n", b"\r"):
        assert [line for _, line in found(end.join(content) + end)] == content


def test_groups_hold_every_segment_once_in_order() -> None:
    for sizes in ([], [0], [5] * 1000, [10**9, 1, 1, 10**9], list(range(0, 10**8, 10**6))):
        segments = [SegmentRef(str(number), size, "") for number, size in enumerate(sizes)]
        groups = _groups(segments, 2)
        assert [segment for group in groups for segment in group] == segments
        assert all(groups) and len(groups) <= max(8, sum(sizes) // 2**27 + 1, 1) + 1


@pytest.mark.spark
def test_they_are_those_of_sparks_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    refs = [SegmentRef(name, len(content), "") for name, content in CONTENTS.items()]
    root = f"file://{tmp_path}"
    read = lines.read_lines(spark, root, StorageConfig.nothing(), refs)
    files = lines.segments_of(read, root, refs)
    rows = read.select("file", "line", F.col("value").cast("binary")).collect()
    for name, content in CONTENTS.items():
        own = sorted((row[1], bytes(row[2])) for row in rows if files[row[0]] == name)
        assert own == found(content), name


@pytest.mark.spark
def test_a_line_is_parsed_once(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("{}")
    refs = [SegmentRef("f", 2, "")]
    storage = StorageConfig.model_validate({"s3": {"anonymous": True}})
    for root in (f"file://{tmp_path}", "s3://bucket/sink"):
        decoded = canal_json._events(lines.read_lines(spark, root, storage, refs))
        good = decoded.where(F.col("problem").isNull()).select("file", "line", "op", "before", "after")
        plan = good._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("from_json(") == 1
