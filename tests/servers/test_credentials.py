"""Who asks: each way to say it, against servers that check it."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import ConfigurationError, SourceError
from cdc_lakehouse.sources.object_store import open_store
from tests.servers.buckets import AzureContainer, S3Bucket, s3_client
from tests.servers.conftest import S3Server

pytestmark = pytest.mark.server

READER_SECRET = "reader-secret-5d1c"


@pytest.fixture(autouse=True)
def no_credentials_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def bucket(s3: S3Server) -> S3Bucket:
    bucket = S3Bucket(s3.endpoint)
    bucket.put("metadata", b"{}")
    return bucket


@pytest.fixture
def reader(s3: S3Server, bucket: S3Bucket) -> str:
    """Someone who may list and read the bucket, and no more."""
    name = s3.new_user(READER_SECRET)
    bucket.allow(name)
    return name


def s3_config(bucket: S3Bucket, **settings: Any) -> StorageConfig:
    own = {"access_key_id": None, "secret_access_key": None, **settings}
    return StorageConfig.model_validate({"s3": {**bucket.storage["s3"], **own}})


def check(bucket: S3Bucket, storage: StorageConfig) -> None:
    store = open_store(bucket.uri, storage)
    assert [found.path for found in store.list()] == ["metadata"]
    assert store.read("metadata", limit=2) == b"{}"
    for shown in (repr(storage), str(storage), repr(store)):
        assert READER_SECRET not in shown and S3Bucket.SECRET not in shown


@pytest.mark.parametrize("by", ["keys", "environment", "profile", "bucket"])
def test_credentials_of_a_reader_are_found(
    by: str, s3: S3Server, bucket: S3Bucket, reader: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = {"access_key_id": reader, "secret_access_key": READER_SECRET}
    settings: dict[str, Any] = {}
    match by:
        case "keys":
            settings = own
            with pytest.raises(botocore.exceptions.ClientError, match="AccessDenied"):
                s3_client(s3.endpoint, reader, READER_SECRET).put_object(Bucket=bucket.name, Key="x", Body=b"")
        case "environment":
            for name, value in own.items():
                monkeypatch.setenv(f"AWS_{name.upper()}", value)
        case "profile":
            keys = "".join(f"aws_{name}={value}\n" for name, value in own.items())
            (tmp_path / "credentials").write_text(f"[cdc]\n{keys}")
            settings = {"profile": "cdc"}
        case _:
            settings = {"access_key_id": "x", "secret_access_key": "y", "buckets": {bucket.name: own}}
    check(bucket, s3_config(bucket, **settings))
    other = S3Bucket(s3.endpoint)
    words = rf"no permission to list the bucket '{other.name}' \(HTTP 403 AccessDenied\)"
    if by != "bucket":
        with pytest.raises(SourceError, match=words):
            open_store(other.uri, s3_config(bucket, **settings)).check()


def test_missing_credentials_are_reported(bucket: S3Bucket, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no credentials for S3 were found: set storage\.s3\.profile"):
        open_store(bucket.uri, s3_config(bucket))
    (tmp_path / "credentials").write_text("[cdc]\n")
    with pytest.raises(ConfigurationError, match=r"\(none\) could not be found.*storage\.s3"):
        open_store(bucket.uri, s3_config(bucket, profile="none"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"access_key_id": S3Bucket.ACCESS, "secret_access_key": "wrong-secret"}, "does not take the credentials"),
        ({"access_key_id": "nobody", "secret_access_key": "wrong-secret"}, "does not take the credentials"),
        ({"anonymous": True}, "no permission to list the bucket"),
    ],
)
def test_wrong_credentials_are_reported_without_them(bucket: S3Bucket, settings: dict[str, Any], words: str) -> None:
    store = open_store(bucket.uri, s3_config(bucket, **settings))
    for call in (lambda: list(store.list()), lambda: store.read("metadata", limit=10), store.directories):
        with pytest.raises(SourceError) as told:
            call()
        assert bucket.name in str(told.value) and "storage.s3" in str(told.value)
        assert "wrong-secret" not in str(told.value) and "Signature=" not in str(told.value)
    with pytest.raises(SourceError, match=words):
        list(store.list())


# --- Roles: a token service that gives the owner's keys ---


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """A token service for tests; gives the requests that it was asked. A role called `refused` is refused."""
    asked: list[dict[str, str]] = []
    refusal = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append(dict(urllib.parse.parse_qsl(body)))
            refused = asked[-1]["RoleArn"].endswith("refused")
            action = asked[-1]["Action"]
            granted = (
                f"<{action}Response xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><{action}Result><Credentials>"
                f"<AccessKeyId>{S3Bucket.ACCESS}</AccessKeyId><SecretAccessKey>{S3Bucket.SECRET}</SecretAccessKey>"
                "<SessionToken></SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration>"
                f"</Credentials></{action}Result></{action}Response>"
            )
            self.send_response(403 if refused else 200)
            self.end_headers()
            self.wfile.write((refusal if refused else granted).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_address[1]}")
    yield asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("kind", ["source_profile", "web_identity"])
def test_profile_with_role_assumes_it(kind: str, bucket: S3Bucket, sts: list[dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("the-token")
    (tmp_path / "credentials").write_text("[who]\naws_access_key_id=who\naws_secret_access_key=ever\n")
    by, told = {
        "source_profile": ("source_profile=who\nexternal_id=ext", ("ext", None)),
        "web_identity": (f"web_identity_token_file={tmp_path}/token", (None, "the-token")),
    }[kind]
    roles = "".join(f"[profile {name}]\nrole_arn=arn:aws:iam::1:role/{name}\n{by}\n" for name in ("reader", "refused"))
    (tmp_path / "config").write_text(roles)
    check(bucket, s3_config(bucket, profile="reader"))
    (asked,) = {(each["RoleArn"], each.get("ExternalId"), each.get("WebIdentityToken")) for each in sts}
    assert asked == ("arn:aws:iam::1:role/reader", *told)
    with pytest.raises(SourceError, match=r"credentials for S3 are refused: AccessDenied.*profile"):
        open_store(bucket.uri, s3_config(bucket, profile="refused")).check()


# --- Azure and GCS ---


def test_azure_refusals_do_not_show_the_token(azure: str) -> None:
    bucket = AzureContainer(azure)
    settings = {"endpoint": azure, "account": AzureContainer.ACCOUNT}
    signature = "sv=2021-08-06&sr=c&sp=rl&se=2020-01-01T00:00:00Z&sig=c2VjcmV0LXNpZ25hdHVyZQ%3D%3D"
    storage = StorageConfig.model_validate({"azure": {**settings, "sas_token": signature}})
    store = open_store(bucket.uri, storage)
    for call in (store.check, lambda: store.read("f", limit=1)):
        with pytest.raises(SourceError, match=r"storage\.azure") as told:
            call()
        assert "c2VjcmV0" not in str(told.value) and told.value.__cause__ is None and told.value.__suppress_context__
    assert "c2VjcmV0" not in repr(storage)
    storage = StorageConfig.model_validate({"azure": {**settings, "account_key": "d3Jvbmc="}})
    with pytest.raises(SourceError, match=r"list the bucket.*HTTP 403.*storage\.azure"):
        open_store(bucket.uri, storage).check()


def test_unusable_key_file_is_reported_without_it(tmp_path: Path) -> None:
    for content in (None, json.dumps({"type": "x", "private_key": "hidden-key"})):
        path = tmp_path / "key.json"
        if content is not None:
            path.write_text(content)
        storage = StorageConfig.model_validate({"gs": {"service_account_file": str(path)}})
        with pytest.raises(ConfigurationError, match=r"storage\.gs") as told:
            open_store("gs://bucket/sink", storage)
        assert "hidden-key" not in str(told.value)
