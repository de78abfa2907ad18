"""The csv section of a source, and what goes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import load
from tests.test_config import Edit, put, read, refusal

SOURCE = "feeds.0.source"


def csv(**options: Any) -> tuple[Edit, Edit]:
    return put(f"{SOURCE}.protocol", "csv"), put(f"{SOURCE}.csv", {"include-commit-ts": True, **options})


def test_the_defaults_are_ticdcs(tmp_path: Path) -> None:
    options = read(tmp_path, *csv()).feed("shop").storage_sink.csv
    assert options is not None
    assert (options.delimiter, options.quote, options.null, options.terminator) == (",", '"', "\\N", "\r\n")
    assert (options.binary_encoding_method, options.output_old_value) == ("base64", False)
    assert (options.output_handle_key, options.output_field_header) == (False, False)


def test_every_option_under_ticdcs_own_name(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "delimiter": "|#|", "quote": "'", "null": "<null>", "terminator": "\n", "include-commit-ts": True,
        "binary-encoding-method": "hex", "output-old-value": True, "output-handle-key": True,
        "output-field-header": True,
    }  # fmt: skip
    options = read(tmp_path, *csv(**given)).feed("shop").storage_sink.csv
    assert options is not None and options.model_dump(by_alias=True) == given


def test_a_bare_null_is_the_options_name(tmp_path: Path) -> None:
    """YAML reads it as its own word for nothing."""
    path = tmp_path / "lakehouse.yaml"
    read(tmp_path, *csv())
    text = path.read_text(encoding="utf-8").replace("include-commit-ts: true", "include-commit-ts: true\n      null: x")
    path.write_text(text, encoding="utf-8")
    options = load(path, {}).feed("shop").storage_sink.csv
    assert options is not None and options.null == "x"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"include-commit-ts": False}, "include-commit-ts must be true"),
        ({"delimiter": ""}, "delimiter"),
        ({"delimiter": "abcd"}, "delimiter"),
        ({"delimiter": ",\n"}, "line end"),
        ({"quote": '""'}, "quote"),
        ({"quote": "«"}, "ASCII"),
        ({"quote": "|", "delimiter": "|#|"}, "the quote must not be part of the delimiter"),
        ({"quote": "", "delimiter": "n"}, "backslash, n or r"),
        ({"null": "a,b"}, "null must hold neither"),
        ({"null": '"'}, "null must hold neither"),
        ({"terminator": ";"}, "terminator"),
        ({"binary-encoding-method": "base32"}, "binary-encoding-method"),
        ({"output_old_value": True}, "output_old_value: is not a key that is known here"),
    ],
)
def test_what_cannot_be_is_refused_with_the_options_name(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    text = refusal(tmp_path, *csv(**options))
    assert said in text and "feeds[0].source.csv" in text


def test_the_section_goes_with_the_protocol(tmp_path: Path) -> None:
    protocol, options = csv()
    assert "include-commit-ts: true" in refusal(tmp_path, protocol)
    assert "mean nothing with protocol canal-json" in refusal(tmp_path, options)
