"""Packets over a TCP connection: each is its length in four bytes, the highest first, and a Packet.

What the other side announces costs no memory until it comes. Every wait ends: a packet must begin within the time given
for it, and then come at a rate that is slow for any network.
"""

from __future__ import annotations

import socket
import time
from typing import Final, Self

from google.protobuf.message import DecodeError, Message

from cdc_lakehouse.config.canal_source import Address
from cdc_lakehouse.errors import SourceUnreachableError
from cdc_lakehouse.sources.canal.errors import CanalProtocolError
from cdc_lakehouse.sources.canal.wire import packets_pb2 as wire

MAX_PACKET: Final = 256 * 1024 * 1024
"""Bytes. Canal's buffer of a destination has 16 MiB unless it is set to more; an entry that is greater comes whole."""

_LENGTH: Final = 4
_CHUNK: Final = 64 * 1024
_SLOWEST: Final = 64 * 1024  # bytes a second
_MAGIC: Final = (0, 17)
_VERSIONS: Final = (0, 1)
_NOT_COMPRESSED: Final = (0, 1)
_NOT_CANAL: Final = "see whether the address is that of a Canal server's TCP port, 11111 by default"


class Channel:
    """Raises `SourceUnreachableError` when the connection fails or nothing comes in time, and `CanalProtocolError`
    when what comes is no packet. After an error it is of no use."""

    def __init__(self, connected: socket.socket, address: Address) -> None:
        self._socket = connected
        self._address = address

    @classmethod
    def connect(cls, address: Address, seconds: float) -> Self:
        try:
            connected = socket.create_connection(address, seconds)
        except OSError as error:
            raise _unreachable(address, f"cannot be reached: {_reason(error)}") from error
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connected, address)

    def close(self) -> None:
        self._socket.close()

    def send(self, kind: wire.PacketType, body: Message, seconds: float) -> None:
        packet = wire.Packet(type=kind, body=body.SerializeToString()).SerializeToString()
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(len(packet).to_bytes(_LENGTH, "big") + packet)
        except OSError as error:
            raise self._lost(error) from error

    def has_news(self) -> bool:
        """Something has come that nobody asked for, or the other side has gone."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from error
        return True

    def receive(self, seconds: float, limit: int = MAX_PACKET) -> wire.Packet:
        """The next packet but heartbeats, which says of itself nothing that is not known here."""
        deadline = time.monotonic() + seconds
        while True:
            length = int.from_bytes(self._read(_LENGTH, deadline), "big")
            if length > limit:
                raise self._not_canal(f"announces a packet of {length} bytes, where {limit} are the most")
            packet = self._packet(self._read(length, deadline + length / _SLOWEST))
            if packet.type != wire.HEARTBEAT_PACKET:
                return packet

    def _packet(self, content: bytes) -> wire.Packet:
        try:
            packet = wire.Packet.FromString(content)
        except DecodeError:
            raise self._not_canal("sends what is no packet of Canal") from None
        if packet.magic_number not in _MAGIC or packet.version not in _VERSIONS:
            raise self._not_canal(f"sends a packet of number {packet.magic_number} and version {packet.version}")
        if packet.compression not in _NOT_COMPRESSED:
            raise self._not_canal(f"sends a packet with compression {packet.compression}, of which none is known")
        return packet

    def _read(self, length: int, deadline: float) -> bytes:
        content = bytearray()
        while len(content) < length:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise _unreachable(self._address, "does not answer in time")
            try:
                self._socket.settimeout(remaining)
                chunk = self._socket.recv(min(_CHUNK, length - len(content)))
            except OSError as error:
                raise self._lost(error) from error
            if not chunk:
                raise _unreachable(self._address, "has closed the connection")
            content += chunk
        return bytes(content)

    def _lost(self, error: OSError) -> SourceUnreachableError:
        if isinstance(error, TimeoutError):
            return _unreachable(self._address, "does not answer in time")
        return _unreachable(self._address, f"is gone: {_reason(error)}")

    def _not_canal(self, what: str) -> CanalProtocolError:
        return CanalProtocolError(f"{self._address} {what}", advice=_NOT_CANAL)


def _unreachable(address: Address, what: str) -> SourceUnreachableError:
    return SourceUnreachableError(
        f"the Canal server {address} {what}", advice="see whether it runs there and the network lets it through"
    )


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no connection in time"
    return error.strerror or type(error).__name__
