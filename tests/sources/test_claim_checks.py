"""Claim-check files: as TiCDC writes them, and files that must not be used."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import ObjectMissingError, SourceError
from tests.boundaries.sources import TICDC_CANAL_JSON, MessageError, Options, read_claim_check

Claims = Callable[[str], bytes]

NAME = "3d1f9049-db27-493f-15f5-d9352b4bcba5.json"
LOCATION = f"s3://claims/prefix/{NAME}"
WHOLE: dict[str, Any] = {
    "database": "d", "table": "t", "type": "INSERT", "isDdl": False, "pkNames": ["id"], "old": None,
    "mysqlType": {"id": "int", "v": "text"}, "data": [{"id": "1", "v": "long"}], "_tidb": {"commitTs": 7},
}  # fmt: skip
IN_TOPIC = {**WHOLE, "data": [{"id": "1"}], "_tidb": {"commitTs": 7, "claimCheckLocation": LOCATION}}


def wrapped(message: object) -> bytes:
    value = message if isinstance(message, bytes) else json.dumps(message).encode()
    return json.dumps({"key": None, "value": base64.b64encode(value).decode()}).encode()


@pytest.fixture
def claims(tmp_path: Path) -> Claims:
    return functools.partial(read_claim_check, tmp_path.as_uri(), StorageConfig.nothing())


def decode(**options: Any) -> Any:
    return TICDC_CANAL_JSON.make(Options(**options))(None, json.dumps(IN_TOPIC).encode())


@pytest.mark.parametrize("codec", [None, "lz4", "snappy"])
@pytest.mark.parametrize("is_raw", [False, True])
def test_claim_check_file_has_the_whole_message(
    is_raw: bool, codec: str | None, claims: Claims, tmp_path: Path
) -> None:
    whole = json.dumps(WHOLE).encode()
    content = whole if codec is None else pa.Codec(codec).compress(whole, asbytes=True)
    (tmp_path / NAME).write_bytes(content if is_raw else wrapped(content))
    message = decode(claims=claims)
    (row,) = message.parts
    assert row.after == {"id": "1", "v": "long"} and message.origin.commit_ts == 7


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "restore the file"),
        (b"{", "not JSON"),
        (b'{"key": null, "value": "?"}', "not base64"),
        (wrapped({**WHOLE, "table": "other"}), "another message"),
        (wrapped({**WHOLE, "_tidb": {"commitTs": 8}}), "another message"),
        (wrapped(IN_TOPIC), "another message"),
        (wrapped([]), "JSON, but not an object"),
    ],
)
def test_claim_check_file_without_the_message_is_refused(
    content: bytes | None, words: str, claims: Claims, tmp_path: Path
) -> None:
    if content is None:
        with pytest.raises(ObjectMissingError):
            claims(LOCATION)
    else:
        (tmp_path / NAME).write_bytes(content)
    with pytest.raises(MessageError, match=words):
        decode(claims=claims)


@pytest.mark.parametrize("location", ["", "..", "s3://claims/..", "file:///etc/passwd", "a/b.json/", "a%2Fb.json"])
def test_message_cannot_name_a_place_of_its_own(location: str, claims: Claims, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(wrapped(WHOLE))
    with pytest.raises(SourceError, match="none of TiCDC's"):
        claims(location)


def test_fault_of_the_store_is_not_the_messages_own() -> None:
    """Its messages would be quarantined one by one, and their tables held until a person replays them."""

    def refused(location: str) -> bytes:
        raise SourceError("the bucket 'claims' does not take the credentials")

    with pytest.raises(SourceError, match="credentials"):
        decode(claims=refused)
    with pytest.raises(MessageError, match=r"source\.claim_check"):
        decode()
