"""A proxy before a server that does what networks, stores and catalogs do on bad days."""

import http.client
import re
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.kit.receivers import served

Applies = Callable[[str], bool]
"""Whether a request, by its method and its path with the query, is one to spoil."""


def listing(request: str) -> bool:
    return "list-type=2" in request


def reading(name: str) -> Applies:
    """Reads of the object with this name at the end of its path."""
    return lambda request: urllib.parse.unquote(request.partition("?")[0]).endswith(name)


@dataclass
class Fault:
    """What is done to the first `times` requests that it applies to."""

    applies: Applies = lambda _: True
    times: int = 1
    status: int | None = None
    code: str = "SlowDown"
    wait: float = 0
    cut: float | None = None
    """Part of the body after which the connection is reset."""
    hide: str | None = None
    """A name that is left out of listings."""
    before: Callable[[], object] | None = None
    """What happens right before the request is passed on."""
    seen: int = 0


@dataclass
class Proxy:
    port: int
    faults: list[Fault] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, **fault: Any) -> Fault:
        self.faults.append(Fault(**fault))
        return self.faults[-1]

    def take(self, request: str) -> Fault:
        with self.lock:
            for fault in self.faults:
                if fault.seen < fault.times and fault.applies(request):
                    fault.seen += 1
                    return fault
        return Fault()


@contextmanager
def proxy_before(upstream: str) -> Iterator[Proxy]:
    target = urllib.parse.urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.take(f"{self.command} {self.path}")
            time.sleep(fault.wait)
            if fault.before is not None:
                fault.before()
            if fault.status is not None:
                self._answer(fault.status, {}, f"<Error><Code>{fault.code}</Code></Error>".encode())
                return
            upward = http.client.HTTPConnection(target, timeout=60)
            # The signature is of the host that the client knows, so that header goes on as it is.
            upward.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upward.putheader(name, value)
            upward.endheaders(body)
            response = upward.getresponse()
            content = response.read()
            upward.close()
            if fault.hide is not None:
                hidden = fault.hide.encode()
                content = _LISTED.sub(lambda each: b"" if hidden in each[0] else each[0], content)
            headers = {n: v for n, v in response.getheaders() if n.lower() not in _OWN}
            self._answer(response.status, headers, content, fault.cut)

        do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

        def _answer(self, status: int, headers: dict[str, str], content: bytes, cut: float | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", headers.get("content-length", str(len(content))))
            self.end_headers()
            if self.command == "HEAD":
                return
            if cut is None:
                self.wfile.write(content)
                return
            self.wfile.write(content[: int(len(content) * cut)])
            self.wfile.flush()
            # Closed with a linger of nothing, a connection is reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # A client that has gone is no news.
    proxy = Proxy(server.server_address[1])
    with served(server):
        yield proxy


_OWN = {"content-length", "transfer-encoding", "connection"}
_LISTED = re.compile(rb"<Contents>(?:(?!</Contents>).)*?</Contents>", re.DOTALL)
