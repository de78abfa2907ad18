"""Claim-check files: as TiCDC writes them, and such as must not be used."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lakehouse.changelog.events import Message, MessageError, RowChange
from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.decoders.messages import ticdc_canal_json
from cdc_lakehouse.errors import ObjectMissingError, SourceError
from cdc_lakehouse.sources.kafka.claim_checks import read_claim_check

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


def decode(claims: Claims, message: object = IN_TOPIC) -> Message:
    return ticdc_canal_json.FORMAT.decoder({"claims": claims})(None, json.dumps(message).encode())  # type: ignore[return-value]


@pytest.mark.parametrize("codec", [None, "lz4", "snappy"])
@pytest.mark.parametrize("is_raw", [False, True])
def test_the_whole_message_is_in_the_file(is_raw: bool, codec: str | None, claims: Claims, tmp_path: Path) -> None:
    whole = json.dumps(WHOLE).encode()
    content = whole if codec is None else pa.Codec(codec).compress(whole, asbytes=True)
    content = content if is_raw else wrapped(content)
    (tmp_path / NAME).write_bytes(content)
    message = decode(claims)
    (row,) = message.parts
    assert isinstance(row, RowChange) and row.after == {"id": "1", "v": "long"}
    assert message.origin.commit_ts == 7


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "not JSON"),
        (b'{"key": null, "value": "?"}', "not base64"),
        (wrapped({**WHOLE, "table": "other"}), "another message"),
        (wrapped({**WHOLE, "_tidb": {"commitTs": 8}}), "another message"),
        (wrapped(IN_TOPIC), "another message"),
        (wrapped([]), "JSON, but not an object"),
    ],
)
def test_a_file_that_is_none(content: bytes, told: str, claims: Claims, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(MessageError, match=told):
        decode(claims)


def test_a_file_that_is_missing(claims: Claims) -> None:
    with pytest.raises(ObjectMissingError):
        claims(LOCATION)
    with pytest.raises(MessageError, match="restore the file"):
        decode(claims)


@pytest.mark.parametrize("location", ["", "..", "s3://claims/..", "file:///etc/passwd", "a/b.json/", "a%2Fb.json"])
def test_a_message_names_no_place_of_its_own(location: str, claims: Claims, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(wrapped(WHOLE))
    with pytest.raises(SourceError, match="none of TiCDC's"):
        claims(location)


def test_a_fault_of_the_whole_store_is_no_message_s() -> None:
    """Its messages would be quarantined one by one, and their tables held until a person replays them."""

    def refused(location: str) -> bytes:
        raise SourceError("the bucket 'claims' does not take the credentials")

    with pytest.raises(SourceError, match="credentials"):
        decode(refused)


def test_without_a_place_it_is_said_what_to_configure() -> None:
    with pytest.raises(MessageError, match=r"source\.claim_check"):
        ticdc_canal_json.FORMAT.decoder({})(None, json.dumps(IN_TOPIC).encode())
