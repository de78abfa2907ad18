"""Buckets on real servers, with the writes that a sink does and that the product must not be able to."""

import base64
import email.utils
import hashlib
import hmac
import itertools
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import boto3
from botocore.config import Config

from cdc_lakehouse.config import StorageConfig

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

    def allow(self, user: str, rights: Sequence[str] = READER) -> None:
        statements = [
            {
                "Effect": "Allow", "Principal": {"AWS": [user]}, "Action": f"s3:{action}",
                "Resource": f"arn:aws:s3:::{self.name}" + ("" if action == "ListBucket" else "/*"),
            }
            for action in rights
        ]  # fmt: skip
        policy = {"Version": "2012-10-17", "Statement": statements}
        self.client.put_bucket_policy(Bucket=self.name, Policy=json.dumps(policy))


def s3_client(endpoint: str, access: str, secret: str) -> Any:
    keys = {"aws_access_key_id": access, "aws_secret_access_key": secret}
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config, **keys)


def s3_storage(endpoint: str, access: str, secret: str) -> dict[str, Any]:
    keys = {"access_key_id": access, "secret_access_key": secret}
    return {"s3": {"endpoint": endpoint, "path_style": True, "region": "us-east-1", **keys}}


class GcsBucket(Bucket):
    SCHEME = "gs"

    def __init__(self, endpoint: str, prefix: str = PREFIX) -> None:
        super().__init__(endpoint, prefix)
        self._send("POST", "/storage/v1/b?project=test", json.dumps({"name": self.name}).encode(), "application/json")
        self.storage = {"gs": {"endpoint": endpoint, "anonymous": True}}

    def put(self, path: str, content: bytes) -> None:
        name = self._quoted(path)
        self._send("POST", f"/upload/storage/v1/b/{self.name}/o?uploadType=media&name={name}", content)

    def delete(self, path: str) -> None:
        self._send("DELETE", f"/storage/v1/b/{self.name}/o/{self._quoted(path)}")

    def _quoted(self, path: str) -> str:
        return urllib.parse.quote(self._key(path), safe="")

    def _send(self, method: str, path: str, body: bytes | None = None, kind: str = "application/octet-stream") -> None:
        request = urllib.request.Request(self.endpoint + path, data=body, method=method, headers={"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=30):
            pass


class AzureContainer(Bucket):
    SCHEME = "azure"
    ACCOUNT = "devstoreaccount1"
    # The key that every Azurite has.
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def __init__(self, endpoint: str, prefix: str = PREFIX) -> None:
        super().__init__(endpoint, prefix)
        self._send("PUT", "", query="restype=container")
        settings = {"endpoint": endpoint, "account": self.ACCOUNT, "account_key": self.KEY}
        self.storage = {"azure": settings}

    def put(self, path: str, content: bytes) -> None:
        self._send("PUT", self._path(path), content)

    def delete(self, path: str) -> None:
        self._send("DELETE", self._path(path))

    def _path(self, path: str) -> str:
        return "/" + urllib.parse.quote(self._key(path))

    def _send(self, method: str, path: str, body: bytes | None = None, query: str = "") -> None:
        """By hand, as a client takes no key with an empty part."""
        length, kind = ("", "") if body is None else (str(len(body) or ""), "application/octet-stream")
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        if body is not None:
            headers |= {"x-ms-blob-type": "BlockBlob"}
        lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        resource = f"/{self.ACCOUNT}/{self.ACCOUNT}/{self.name}{path}\n{query.replace('=', ':')}".rstrip("\n")
        text = f"{method}\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{lines}{resource}"
        signed = hmac.new(base64.b64decode(self.KEY), text.encode(), hashlib.sha256)
        headers |= {"Authorization": f"SharedKey {self.ACCOUNT}:{base64.b64encode(signed.digest()).decode()}"}
        if kind:
            headers |= {"Content-Type": kind}
        url = f"{self.endpoint}/{self.name}{path}?{query}".rstrip("?")
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=30):
            pass
