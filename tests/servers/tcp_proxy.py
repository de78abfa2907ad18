"""A proxy for any protocol over TCP, that resets connections after so many bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Side = Literal["client", "server"]


@dataclass
class TcpProxy:
    address: str
    connections: int = 0


@contextlib.contextmanager
def tcp_proxy(port: int, cuts: Iterable[tuple[Side, int]]) -> Iterator[TcpProxy]:
    """Before a server on 127.0.0.1. Of each cut the first connection is reset after so many bytes of one side, the
    second by the second cut, and so on; those that follow are whole."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = TcpProxy(f"127.0.0.1:{listener.getsockname()[1]}")
    left = iter(cuts)
    threads: list[threading.Thread] = []

    def carry(source: socket.socket, target: socket.socket, limit: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                if limit is not None and passed + len(content) >= limit:
                    target.sendall(content[: limit - passed])
                    break
                passed += len(content)
                target.sendall(content)
        for end in (source, target):
            with contextlib.suppress(OSError):
                # Closed with a linger of nothing, a connection is reset; the other thread wakes by the shutdown.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
                end.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                proxy.connections += 1
                side, limit = next(left, (None, None))
                try:
                    server = socket.create_connection(("127.0.0.1", port), 5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                for source, target, name in ((client, server, "client"), (server, client, "server")):
                    arguments = (source, target, limit if name == side else None)
                    threads.append(threading.Thread(target=carry, args=arguments, daemon=True))
                    threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield proxy
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(5)
