"""Receivers of alerts on this machine: an HTTP server and a mail server that keep what they are sent."""

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email import message_from_string
from email.message import Message
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class HttpReceiver:
    """requests: (path, headers, JSON). Each is answered with `status`; `location` is where a redirect leads."""

    port: int = 0
    status: int = 200
    location: str | None = None
    requests: list[tuple[str, Mapping[str, str], Any]] = field(default_factory=list)

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    @property
    def documents(self) -> list[Any]:
        return [document for _, _, document in self.requests]


@contextlib.contextmanager
def http_receiver() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append((self.path, dict(self.headers), json.loads(content)))
            self.send_response(receiver.status)
            if receiver.location is not None:
                self.send_header("Location", receiver.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            receiver.requests.append((self.path, dict(self.headers), None))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        receiver.port = port
        yield receiver


@dataclass
class MailReceiver:
    """mails: what arrived, with the addresses of its envelope. A mail is answered with `answer`."""

    port: int = 0
    answer: str = "250 taken"
    mails: list[tuple[str, list[str], Message]] = field(default_factory=list)


@contextlib.contextmanager
def mail_receiver() -> Iterator[MailReceiver]:
    receiver = MailReceiver()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            sender, recipients = "", []
            self._say("220 here")
            while line := self.rfile.readline().decode().rstrip("\r\n"):
                match line.upper().split(":")[0].split(" ")[0]:
                    case "EHLO" | "HELO":
                        self._say("250 here")
                    case "MAIL":
                        sender = line.split("<")[1].split(">")[0]
                        self._say("250 ok")
                    case "RCPT":
                        recipients.append(line.split("<")[1].split(">")[0])
                        self._say("250 ok")
                    case "DATA":
                        self._say("354 go on")
                        lines = iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), ".")
                        text = "\n".join(each.removeprefix(".") for each in lines)
                        receiver.mails.append((sender, recipients, message_from_string(text, policy=default)))
                        self._say(receiver.answer)
                    case "QUIT":
                        self._say("221 bye")
                        return
                    case _:
                        self._say("502 not known")

        def _say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    with served(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        receiver.port = port
        yield receiver


@contextlib.contextmanager
def served(server: socketserver.TCPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
