"""What a store does on a bad day: tried again where it may pass, told where it does not, never a half-read object."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import ObjectChangedError, SourceError, SourceUnreachableError
from cdc_lakehouse.sources import object_store
from cdc_lakehouse.sources.object_store import ObjectStore, StoredObject, open_store
from tests.servers.buckets import S3Bucket, s3_storage
from tests.servers.conftest import S3Server
from tests.servers.proxy import Proxy, listing, reading

pytestmark = pytest.mark.server

CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def bucket(s3: S3Server) -> S3Bucket:
    bucket = S3Bucket(s3.endpoint)
    bucket.put("a/large", CONTENT)
    bucket.put("a/small", b"small")
    return bucket


@pytest.fixture
def store(
    bucket: S3Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> ObjectStore:
    """Through the proxy, with less patience than in earnest where an answer is slow: a busy machine is slow too."""
    monkeypatch.setattr(object_store, "_WAIT_SECONDS", 0.01)
    retries = {"max_retries": 3, "retry_timeout": datetime.timedelta(seconds=20)}
    monkeypatch.setattr(
        object_store, "RETRIES", {**retries, "backoff": {"init_backoff": datetime.timedelta(milliseconds=5)}}
    )
    if "slow" in request.node.name:
        short = {"connect_timeout": "1s", "read_timeout": "400ms", "timeout": "2s"}
        monkeypatch.setattr(object_store, "TIMEOUTS", short)
    return open_store(
        bucket.uri, StorageConfig.model_validate(s3_storage(proxy.endpoint, bucket.ACCESS, bucket.SECRET))
    )


def names(store: ObjectStore) -> list[str]:
    return [found.path for found in store.list()]


Use = Callable[[ObjectStore], object]
USES: dict[str, Use] = {
    "list": lambda store: list(store.list("a/")),
    "directories": lambda store: store.directories(),
    "read": lambda store: store.read("a/large", limit=len(CONTENT)),
    "head": lambda store: store.head("a/small", 3),
    "pieces": lambda store: list(store.pieces("a/large", len(CONTENT) // 2)),
}
PASSING: dict[str, dict[str, Any]] = {
    "503": {"times": 3, "status": 503},
    "500": {"times": 3, "status": 500, "code": "InternalError"},
    "429": {"times": 3, "status": 429, "code": "TooManyRequests"},
    "slow": {"times": 2, "wait": 0.6},
    "reset at once": {"times": 3, "cut": 0},
    "reset in the middle": {"times": 3, "cut": 0.5},
}


@pytest.mark.in_turn
@pytest.mark.parametrize("use", ["list", "read"])
@pytest.mark.parametrize("fault", PASSING)
def test_passing_fault_is_tried_again(store: ObjectStore, proxy: Proxy, use: str, fault: str) -> None:
    wanted = USES[use](store)
    spoiled = proxy.add(**PASSING[fault])
    assert USES[use](store) == wanted
    assert spoiled.seen == spoiled.times


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("use", "fault"),
    [
        *((use, "503") for use in USES),
        *((use, fault) for use in ("list", "read") for fault in ("slow", "reset at once")),
    ],
)
def test_fault_that_stays_is_reported_as_passing(store: ObjectStore, proxy: Proxy, use: str, fault: str) -> None:
    proxy.add(**{**PASSING[fault], "times": 1000})
    with pytest.raises(SourceUnreachableError) as told:
        USES[use](store)
    assert S3Bucket.SECRET not in str(told.value) and "http" not in str(told.value)


@pytest.mark.parametrize("use", USES)
def test_missing_server_is_reported_as_passing(bucket: S3Bucket, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "RETRIES", {"max_retries": 1, "retry_timeout": datetime.timedelta(seconds=2)})
    for endpoint in ("http://127.0.0.1:1", "http://no-such-host.invalid"):
        store = open_store(bucket.uri, StorageConfig.model_validate(s3_storage(endpoint, "a", "b")))
        with pytest.raises(SourceUnreachableError, match="cannot be read for now"):
            USES[use](store)


PERMANENT = {
    "expired": (400, "ExpiredToken", "does not take the credentials.*renew"),
    "wrong key": (403, "SignatureDoesNotMatch", "does not take the credentials"),
    "not allowed": (403, "AccessDenied", "no permission to"),
    "other region": (301, "PermanentRedirect", r"another region.*storage\.s3\.region"),
    "other": (400, "InvalidRequest", r"refuses the request \(HTTP 400 InvalidRequest\)"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("use", ["list", "head", "pieces"])
@pytest.mark.parametrize("kind", PERMANENT)
def test_permanent_fault_is_not_tried_again(
    store: ObjectStore, bucket: S3Bucket, proxy: Proxy, use: str, kind: str
) -> None:
    status, code, words = PERMANENT[kind]
    fault = proxy.add(times=1000, status=status, code=code)
    with pytest.raises(SourceError, match=words) as told:
        USES[use](store)
    assert bucket.name in str(told.value) and "storage.s3" in str(told.value)
    assert fault.seen == 1


@pytest.mark.parametrize("conditional", [True, False])
def test_object_changed_between_tries_is_never_mixed(
    store: ObjectStore, bucket: S3Bucket, proxy: Proxy, conditional: bool
) -> None:
    """The first half of one object is never put before the second of another."""
    found = next(each for each in store.list() if isinstance(each, StoredObject) and each.path == "a/large")
    other = bytes(reversed(CONTENT))
    proxy.add(applies=reading("a/large"), cut=0.5)
    proxy.add(applies=reading("a/large"), before=lambda: bucket.put("a/large", other))
    if conditional:
        with pytest.raises(ObjectChangedError):
            store.read("a/large", limit=len(CONTENT), etag=found.etag)
    else:
        assert store.read("a/large", limit=len(CONTENT)) == other


def test_object_that_a_list_missed_is_in_the_next(store: ObjectStore, proxy: Proxy) -> None:
    proxy.add(applies=listing, hide="a/small")
    assert names(store) == ["a/large"]
    assert names(store) == ["a/large", "a/small"]
