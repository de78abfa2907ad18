"""Buckets on real servers, with the writes that a sink does and that the product must not be able to."""

import base64
import hashlib
import hmac
import itertools
import json
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from cdc_lakehouse.config import StorageConfig
from tests.servers.tools import go_server, run_tool

PREFIX: Final = "sink of/a=b+c"
READER: Final = ("ListBucket", "GetObject")
WRITER: Final = (*READER, "PutObject", "DeleteObject", "AbortMultipartUpload")
"""What docs/security.md says that a source and a warehouse on S3 need, and no more."""
_NUMBERS: Final = itertools.count(1)


class Bucket:
    """What is written below `prefix`, if that is not empty. Each kind has `put` and `delete`."""

    SCHEME: ClassVar[str]
    storage: dict[str, Any]
    """The section of the configuration that reaches it."""

    def __init__(self, endpoint: str, prefix: str = PREFIX) -> None:
        self.name, self.endpoint, self.prefix = f"bucket-{next(_NUMBERS)}", endpoint, prefix

    @property
    def uri(self) -> str:
        return f"{self.SCHEME}://{self.name}" + (f"/{self.prefix}" if self.prefix else "")

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path


def store_config(bucket: Bucket) -> StorageConfig:
    return StorageConfig.model_validate(bucket.storage)


class Mirror:
    """Brings a bucket to what a local sink has, in the order in which a sink writes."""

    def __init__(self, sink: Path, bucket: Bucket) -> None:
        self._sink = sink
        self._bucket = bucket
        self._seen: dict[str, bytes] = {}

    def sync(self) -> None:
        there = {str(path.relative_to(self._sink)): path for path in self._sink.rglob("*") if path.is_file()}
        for name in sorted(there, key=lambda name: (name == "metadata", name.endswith(".index"), name)):
            content = there[name].read_bytes()
            if self._seen.get(name) != content:
                self._bucket.put(name, content)
                self._seen[name] = content
        for name in set(self._seen) - set(there):
            self._bucket.delete(name)
            del self._seen[name]


class S3Bucket(Bucket):
    """With the credentials of the server's owner, who alone may write."""

    SCHEME = "s3"
    ACCESS, SECRET = "owner", "owner-secret-7f3a"

    def __init__(self, endpoint: str, prefix: str = PREFIX) -> None:
        super().__init__(endpoint, prefix)
        self.client = s3_client(endpoint, self.ACCESS, self.SECRET)
        self.client.create_bucket(Bucket=self.name)
        self.storage = s3_storage(endpoint, self.ACCESS, self.SECRET)

    def put(self, path: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=self._key(path), Body=content)

    def delete(self, path: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=self._key(path))

    def new_user(self, secret: str, rights: Sequence[str] = READER) -> str:
        """The name of someone who may do this in the bucket, and nothing else anywhere."""
        user = f"user{next(_NUMBERS)}"
        owner = ["--access", self.ACCESS, "--secret", self.SECRET, "--endpoint-url", self.endpoint]
        command = [go_server("versitygw"), "admin", *owner, "create-user", "--role", "user"]
        run_tool([*command, "--access", user, "--secret", secret], seconds=60, tries=1)
        statements = [
            {
                "Effect": "Allow", "Principal": {"AWS": [user]}, "Action": f"s3:{action}",
                "Resource": f"arn:aws:s3:::{self.name}" + ("" if action == "ListBucket" else "/*"),
            }
            for action in rights
        ]  # fmt: skip
        policy = {"Version": "2012-10-17", "Statement": statements}
        self.client.put_bucket_policy(Bucket=self.name, Policy=json.dumps(policy))
        if "PutObject" not in rights:
            with pytest.raises(ClientError, match="AccessDenied"):
                s3_client(self.endpoint, user, secret).put_object(Bucket=self.name, Key=self._key("f"), Body=b"")
        return user


def s3_client(endpoint: str, access: str, secret: str) -> Any:
    keys = {"aws_access_key_id": access, "aws_secret_access_key": secret}
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config, **keys)


def s3_storage(endpoint: str, access: str, secret: str) -> dict[str, Any]:
    keys = {"access_key_id": access, "secret_access_key": secret}
    return {"s3": {"endpoint": endpoint, "path_style": True, "region": "us-east-1", **keys}}


def _send(method: str, url: str, body: bytes | None = None, **headers: str) -> None:
    """By hand, as clients take no key with an empty part."""
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=30):
        pass


class GcsBucket(Bucket):
    SCHEME = "gs"

    def __init__(self, endpoint: str, prefix: str = PREFIX) -> None:
        super().__init__(endpoint, prefix)
        made = json.dumps({"name": self.name}).encode()
        _send("POST", f"{endpoint}/storage/v1/b?project=test", made, **{"Content-Type": "application/json"})
        self.storage = {"gs": {"endpoint": endpoint, "anonymous": True}}

    def put(self, path: str, content: bytes) -> None:
        options = urllib.parse.urlencode({"uploadType": "media", "name": self._key(path)})
        url = f"{self.endpoint}/upload/storage/v1/b/{self.name}/o?{options}"
        _send("POST", url, content, **{"Content-Type": "application/octet-stream"})

    def delete(self, path: str) -> None:
        name = urllib.parse.quote(self._key(path), safe="")
        _send("DELETE", f"{self.endpoint}/storage/v1/b/{self.name}/o/{name}")


class AzureContainer(Bucket):
    """Written to by a signature of its owner's for everything."""

    SCHEME = "azure"
    ACCOUNT = "devstoreaccount1"
    # The key that every Azurite has.
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def __init__(self, endpoint: str, prefix: str = PREFIX) -> None:
        super().__init__(endpoint, prefix)
        rights = {"sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": "2100-01-01T00:00:00Z", "sip": "", "spr": "",
                  "sv": "2020-10-02"}  # fmt: skip
        text = "".join(f"{each}\n" for each in (self.ACCOUNT, *rights.values()))
        signed = hmac.new(base64.b64decode(self.KEY), text.encode(), hashlib.sha256).digest()
        given = {name: value for name, value in rights.items() if value} | {"sig": base64.b64encode(signed).decode()}
        self._signature = urllib.parse.urlencode(given)
        _send("PUT", f"{endpoint}/{self.name}?restype=container&{self._signature}")
        self.storage = {"azure": {"endpoint": endpoint, "account": self.ACCOUNT, "account_key": self.KEY}}

    def put(self, path: str, content: bytes) -> None:
        _send("PUT", self._url(path), content, **{"x-ms-blob-type": "BlockBlob"})

    def delete(self, path: str) -> None:
        _send("DELETE", self._url(path))

    def _url(self, path: str) -> str:
        return f"{self.endpoint}/{self.name}/{urllib.parse.quote(self._key(path))}?{self._signature}"
