"""A server that speaks as much of S3 as reading needs, and holds any key: servers that keep objects as files do not."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

from cdc_lakehouse.config import StorageConfig

BUCKET = "bucket"
_TIME = "2026-01-31T00:00:00.000Z"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, objects: Mapping[str, bytes], page: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects, self.page = objects, page


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # Else head and body are two packets, and the second waits for the first.

    def do_HEAD(self) -> None:
        self._answer_object()

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(url.query))
        if "list-type" in asked:
            self._answer(200, self._listing(asked).encode(), {"Content-Type": "application/xml"})
        else:
            self._answer_object()

    def _answer_object(self) -> None:
        key = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")
        content = self.server.objects.get(key)
        if content is None:
            # A bucket that is asked for by its name alone is there.
            self._answer(404 if key else 200, b"", {})
        else:
            headers = {"ETag": f'"{_etag(content)}"', "Last-Modified": "Sat, 31 Jan 2026 00:00:00 GMT"}
            self._answer(200, content, headers)

    def _listing(self, asked: Mapping[str, str]) -> str:
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter")
        after = asked.get("continuation-token") or asked.get("start-after", "")
        entries: dict[str, bytes | None] = {}
        for key, content in sorted(self.server.objects.items(), key=lambda item: item[0].encode()):
            if key.startswith(prefix):
                head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                entries |= {prefix + head + cut: None} if cut else {key: content}
        found = [(name, content) for name, content in entries.items() if name.encode() > after.encode()]
        page = found[: min(self.server.page, int(asked.get("max-keys", 1000)))]
        more = len(page) < len(found)
        quoted = urllib.parse.quote if asked.get("encoding-type") == "url" else escape
        contents = "".join(
            f"<CommonPrefixes><Prefix>{quoted(name)}</Prefix></CommonPrefixes>"
            if content is None
            else f"<Contents><Key>{quoted(name)}</Key><LastModified>{_TIME}</LastModified><ETag>&quot;{_etag(content)}"
            f"&quot;</ETag><Size>{len(content)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for name, content in page
        )
        token = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if more else ""
        return (
            f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>{BUCKET}</Name><KeyCount>{len(page)}'
            f"</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}</ListBucketResult>"
        )

    def _answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


def _etag(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@contextlib.contextmanager
def s3_server(objects: Mapping[str, bytes], page: int = 1000) -> Iterator[StorageConfig]:
    """Serve `objects` as those of `BUCKET`, so many in an answer, to who reads with the given configuration."""
    with _Server(objects, page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            settings = {"endpoint": endpoint, "path_style": True, "region": "us-east-1"}
            keys = {"access_key_id": "reader", "secret_access_key": "not-checked"}
            yield StorageConfig.model_validate({"s3": {**settings, **keys}})
        finally:
            server.shutdown()
            thread.join()
