"""One behaviour on every store: a local directory, and buckets on real servers; what stores do on a bad day, and each
way to say who asks."""

import datetime
import functools
import http.server
import json
import re
import shlex
import traceback
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.config import StorageConfig
from cdc_lakehouse.errors import CdcError, ObjectChangedError, SourceError, SourceUnreachableError
from cdc_lakehouse.sample.shop import write_history
from cdc_lakehouse.sources import object_store
from tests.boundaries.sources import ObjectStore, StoredObject, open_store, shared_store
from tests.commands import call
from tests.kit.case_files import Case, bytes_of, read_cases, text_of
from tests.kit.receivers import served
from tests.servers.buckets import Bucket, Mirror, S3Bucket, s3_storage, store_config
from tests.servers.proxy import Proxy, listing, reading

pytestmark = pytest.mark.server

CASES = Path(__file__).with_name("cases")
NAMES = (CASES / "names.txt").read_text(encoding="utf-8").splitlines()


class Directory(Bucket):
    storage: dict[str, object] = {}  # noqa: RUF012

    def __init__(self, root: Path) -> None:
        self.name, self._root = "local", root
        root.mkdir()

    @property
    def uri(self) -> str:
        return f"file://{self._root}"

    def put(self, path: str, content: bytes) -> None:
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}.part")
        part.write_bytes(content)
        part.replace(place)

    def delete(self, path: str) -> None:
        (self._root / path).unlink()


@pytest.fixture(autouse=True)
def no_credentials_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(params=["local", "s3", "gcs", "azure"])
def bucket(request: pytest.FixtureRequest, new_bucket: Callable[..., Bucket], tmp_path: Path) -> Bucket:
    return Directory(tmp_path / "sink") if request.param == "local" else new_bucket(request.param)


@pytest.fixture
def store(bucket: Bucket) -> ObjectStore:
    return open_store(bucket.uri, store_config(bucket))


@pytest.fixture
def filled(bucket: Bucket) -> ObjectStore:
    for name in NAMES:
        bucket.put(name, name.encode())
    return open_store(bucket.uri, store_config(bucket))


def listed(store: ObjectStore, prefix: str = "", after: str | None = None) -> dict[str, StoredObject]:
    return {found.path: found for found in store.list(prefix, after) if isinstance(found, StoredObject)}


def test_every_name_is_listed_and_read(filled: ObjectStore) -> None:
    found = listed(filled)
    assert sorted(found) == sorted(NAMES)
    assert listed(filled) == found
    for name, each in found.items():
        content = name.encode()
        assert each.size == len(content)
        assert filled.read(name, limit=each.size) == content
        assert filled.read(name, limit=each.size, etag=each.etag) == content
        assert filled.head(name, 3, etag=each.etag) == content[:3]
        assert filled.head(name, 1000) == content
        assert b"".join(filled.pieces(name, 5, etag=each.etag)) == b"".join(filled.pieces(name, 5)) == content


@pytest.mark.parametrize("prefix", ["", "a/", "a/b/", "db/slash/", "no/", "ü中/"])
def test_listing_after_a_path_has_the_later_ones(filled: ObjectStore, prefix: str) -> None:
    for after in (None, "", "a", "a/", "a/b", "a/b/", "a/b/1", "a/b/1x", "db/t", "ü中/zzz", "\U0010ffff", *NAMES):
        wanted = {
            name for name in NAMES if name.startswith(prefix) and (after is None or name.encode() > after.encode())
        }
        assert set(listed(filled, prefix, after)) == wanted, after


def test_directories_of_a_prefix_are_listed(filled: ObjectStore) -> None:
    assert filled.directories() == tuple(sorted({name.split("/")[0] for name in NAMES if "/" in name}))
    assert filled.directories("a/") == ("b", "b-c")
    assert filled.directories("db/slash/table/") == ("458", "meta")
    assert filled.directories("db/slash/table/meta/") == filled.directories("no/") == filled.directories("A/") == ()


@pytest.mark.parametrize("service", ["s3", "gcs"])
def test_listing_of_many_pages_is_complete(service: str, new_bucket: Callable[..., Bucket]) -> None:
    """Of 1,000 objects each; Azure's have 5,000."""
    bucket = new_bucket(service)
    store = open_store(bucket.uri, store_config(bucket))
    names = [f"t/{number:05}" for number in range(1100)]
    for name in names:
        bucket.put(name, b"")
    assert sorted(listed(store)) == names
    assert sorted(listed(store, "t/", "t/00998")) == names[999:]


READER_SECRET = "reader-secret-5d1c"
HIDDEN = ("wrong-secret", "hidden-key", "c2VjcmV0", S3Bucket.SECRET, READER_SECRET)
GRANTED = """<{0}Response xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><{0}Result><Credentials>
<AccessKeyId>{1}</AccessKeyId><SecretAccessKey>{2}</SecretAccessKey><SessionToken></SessionToken>
<Expiration>2100-01-01T00:00:00Z</Expiration></Credentials></{0}Result></{0}Response>"""
REFUSED = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>"


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """A token service that gives the owner's keys, but for a role called `refused`; what it was asked."""
    asked: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode())))
            refused = asked[-1]["RoleArn"].endswith("refused")
            self.send_response(403 if refused else 200)
            self.end_headers()
            granted = GRANTED.format(asked[-1]["Action"], S3Bucket.ACCESS, S3Bucket.SECRET)
            self.wfile.write((REFUSED if refused else granted).encode())

        def log_message(self, *_: object) -> None: ...

    with served(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{port}")
        yield asked


def played(
    case: Case, bucket: Bucket, directory: Path, patch: pytest.MonkeyPatch, asked: list[dict[str, str]]
) -> Iterator[str]:
    """Steps of `cases/stores.txt`: PATH with a prefix, a limit or a size; `listed`: as it was when last listed; `put`:
    written over, with this text, once a piece of it is read. `file` is one on this machine, in `<dir>`, `env` of its
    environment; `<reader>` may list and read the bucket, and no more, not `<other>` either; `asked` is the token
    service. Its settings `storage` differ from those of the bucket; null: there is none."""
    places = {"<dir>": str(directory), "<bucket>": bucket.name}
    if isinstance(bucket, S3Bucket) and "<reader>" in f"{case.settings} {case.own}":
        places |= {"<reader>": bucket.new_user(READER_SECRET), "<other>": S3Bucket(bucket.endpoint).name}

    def named(text: str) -> str:
        return functools.reduce(lambda text, place: text.replace(*place), places.items(), text)

    uri = named(case.settings.get("uri", bucket.uri.replace(bucket.name, case.settings.get("bucket", bucket.name))))
    changed = json.loads(named(json.dumps(case.settings.get("storage", {}))))
    storage = {
        kind: {key: value for key, value in {**settings, **changed}.items() if value is not None}
        for kind, settings in bucket.storage.items()
    }
    config, seen = StorageConfig.model_validate(storage), dict[str, StoredObject]()
    for line in case.own:
        word, path, number, *how = *shlex.split(named(line)), "", ""
        of: dict[str, Any] = {"etag": seen[path].etag} if "listed" in how else {}
        pieces = list[bytes]()
        try:
            match word:
                case "put":
                    bucket.put(path, number.encode())
                    continue
                case "file":
                    (directory / path).write_bytes(bytes_of(number))
                    continue
                case "env":
                    patch.setenv(path, number)
                    continue
                case "asked":
                    said = str([{name: each.get(name) for name in path.split(",")} for each in asked])
                    yield f"{line}: {said}"
                    continue
            store = (shared_store if word == "shared" else open_store)(uri, config)
            match word:
                case "list":
                    seen = listed(store, path)
                    said = ", ".join(f"{name} {seen[name].size}" for name in sorted(seen))
                case "dirs":
                    said = " ".join(store.directories(path))
                case "read" | "shared":
                    said = store.read(path, limit=int(number), **of).decode()
                case "head":
                    said = store.head(path, int(number), **of).decode()
                case "pieces":
                    for piece in store.pieces(path, int(number), **of):
                        pieces.append(piece)
                        if how[0] == "put":
                            bucket.put(path, how[1].encode())
                    said = b"|".join(pieces).decode() or f"{len(pieces)} pieces"
                case "check":
                    store.check()
                    said = store.uri.replace(uri, "<uri>")
                case _:
                    raise ValueError(line)
            assert not [text for text in HIDDEN if text in f"{config!r} {config} {store!r}"]
        except CdcError as error:
            assert not [text for text in HIDDEN if text in traceback.format_exc() + repr(config)]
            said = f"{type(error).__name__}: {error}".replace(uri, "<uri>").replace(bucket.name, "<bucket>")
            said = said.replace(str(directory), "<dir>").replace(places.get("<other>", "<other>"), "<other>")
            said = " after ".join([said, *(repr(piece) for piece in pieces)])  # None comes before a refusal.
        yield f"{line}: {said or 'nothing'}"


@pytest.mark.parametrize(
    ("case", "service"),
    [
        pytest.param(case, service, id=f"{case}-{service}")
        for case in read_cases(CASES / "stores.txt")
        for service in case.settings.get("services", ["local", "s3", "gcs", "azure"])
    ],
)
def test_store_answers_as_written(
    case: Case, service: str, new_bucket: Callable[..., Bucket], sts: list[dict[str, str]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, update: bool,
) -> None:  # fmt: skip
    own = {"prefix": case.settings["prefix"]} if "prefix" in case.settings else {}
    bucket = Directory(tmp_path / "sink") if service == "local" else new_bucket(service, **own)
    monkeypatch.setattr(object_store, "RETRIES", {**object_store.RETRIES, "max_retries": 1})
    case.compare([text_of(line) for line in played(case, bucket, tmp_path, monkeypatch, sts)], update=update)


def test_large_object_is_read_in_pieces(bucket: Bucket, store: ObjectStore) -> None:
    content = bytes(range(256)) * 40_000
    bucket.put("large", content)
    (found,) = listed(store).values()
    assert store.read("large", limit=found.size, etag=found.etag) == content
    assert store.head("large", 1 << 20) == content[: 1 << 20]
    for size in (1 << 20, len(content) // 2, len(content), len(content) + 1):
        pieces = list(shared_store(bucket.uri, store_config(bucket)).pieces("large", size, etag=found.etag))
        assert b"".join(pieces) == content
        assert {len(piece) for piece in pieces[:-1]} <= {size} and len(pieces[-1]) <= size


# --- Faults: tried again where they can pass, reported where not, never a half-read object ---

CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def s3_bucket(s3: str) -> S3Bucket:
    bucket = S3Bucket(s3)
    for name, content in (("metadata", b"{}"), ("a/large", CONTENT), ("a/small", b"small")):
        bucket.put(name, content)
    return bucket


@pytest.fixture
def proxied(
    s3_bucket: S3Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> ObjectStore:
    """Through the proxy, with less patience than in earnest where an answer is slow: a busy machine is slow too."""
    monkeypatch.setattr(object_store, "_WAIT_SECONDS", 0.01)
    backoff = {"init_backoff": datetime.timedelta(milliseconds=5)}
    retries = {"max_retries": 3, "retry_timeout": datetime.timedelta(seconds=20), "backoff": backoff}
    monkeypatch.setattr(object_store, "RETRIES", retries)
    if "slow" in request.node.name:
        short = {"connect_timeout": "1s", "read_timeout": "400ms", "timeout": "2s"}
        monkeypatch.setattr(object_store, "TIMEOUTS", short)
    storage = s3_storage(proxy.endpoint, S3Bucket.ACCESS, S3Bucket.SECRET)
    return open_store(s3_bucket.uri, StorageConfig.model_validate(storage))


USES: dict[str, Callable[[ObjectStore], object]] = {
    "list": lambda store: list(store.list("a/")),
    "directories": lambda store: store.directories(),
    "read": lambda store: store.read("a/large", limit=len(CONTENT)),
    "head": lambda store: store.head("a/small", 3),
    "pieces": lambda store: list(store.pieces("a/large", len(CONTENT) // 2)),
}


def faults() -> Iterator[Any]:
    """Of `cases/store_faults.txt`: what is done to requests, who makes them, and what becomes of that."""
    lines = (CASES / "store_faults.txt").read_text(encoding="utf-8").splitlines()
    for name, fault, uses, outcome in (line.split(" | ") for line in lines if not line.startswith("#")):
        for use in uses.split():
            yield pytest.param(json.loads(fault), use, outcome, id=f"{name}-{use}")


@pytest.mark.in_turn
@pytest.mark.parametrize(("fault", "use", "outcome"), [*faults()])
def test_fault_that_passes_is_tried_again_and_others_reported(
    proxied: ObjectStore, s3_bucket: S3Bucket, proxy: Proxy, fault: dict[str, Any], use: str, outcome: str
) -> None:
    wanted, spoiled = USES[use](proxied), proxy.add(**{"times": 1000, **fault})
    if outcome == "tried again":
        assert USES[use](proxied) == wanted and spoiled.seen == spoiled.times
        return
    with pytest.raises(SourceUnreachableError if outcome == "unreachable" else SourceError) as told:
        USES[use](proxied)
    assert S3Bucket.SECRET not in (said := str(told.value))
    if outcome == "unreachable":
        assert "http" not in said
    else:
        assert re.search(outcome, said) and s3_bucket.name in said and "storage.s3" in said and spoiled.seen == 1


@pytest.mark.parametrize("conditional", [True, False])
def test_object_changed_between_tries_is_never_mixed(
    proxied: ObjectStore, s3_bucket: S3Bucket, proxy: Proxy, conditional: bool
) -> None:
    """The first half of one object is never put before the second of another."""
    found = listed(proxied)["a/large"]
    other = bytes(reversed(CONTENT))
    proxy.add(applies=reading("a/large"), cut=0.5)
    proxy.add(applies=reading("a/large"), before=lambda: s3_bucket.put("a/large", other))
    if conditional:
        with pytest.raises(ObjectChangedError):
            proxied.read("a/large", limit=len(CONTENT), etag=found.etag)
    else:
        assert proxied.read("a/large", limit=len(CONTENT)) == other


def test_object_that_a_list_missed_is_in_the_next(proxied: ObjectStore, proxy: Proxy) -> None:
    proxy.add(applies=listing, hide="a/small")
    assert [*listed(proxied)] == ["a/large", "metadata"]
    assert [*listed(proxied)] == ["a/large", "a/small", "metadata"]


# --- `init` ---


def test_init_by_the_uri_of_a_changefeed_writes_no_secret(
    new_bucket: Callable[..., Bucket], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket: Any = new_bucket("s3", "cdc")
    end = datetime.datetime(2026, 3, 2, tzinfo=datetime.UTC)
    write_history(here / "sink", start=end - datetime.timedelta(days=1), end=end, transactions=20, seed=1)
    Mirror(here / "sink", bucket).sync()
    keys = f"endpoint={bucket.endpoint}&access-key={bucket.ACCESS}&secret-access-key={bucket.SECRET}"
    result = call("init", "--source", f"{bucket.uri}?protocol=canal-json&{keys}")
    written = (here / "lakehouse.yaml").read_text(encoding="utf-8")
    assert result.exit_code == 0 and bucket.SECRET not in written + result.output
    monkeypatch.setenv("S3_ACCESS_KEY_ID", bucket.ACCESS)
    monkeypatch.setenv("S3_SECRET_ACCESS_KEY", bucket.SECRET)
    assert json.loads(call("doctor", "--json").stdout)["findings"][-1]["outcome"] == "ok"
