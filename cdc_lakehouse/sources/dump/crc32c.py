"""CRC-32C (Castagnoli; RFC 3720, B.4), the checksum of framed snappy's chunks. Neither zlib nor pyarrow has it.

A CRC is linear: bytes go through the register in many lanes at once, and the lanes' registers are then joined in pairs,
the left one of each advanced by as many zero bytes as the right one has processed.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_POLYNOMIAL: Final = 0x82F63B78
_LANE: Final = 64
"""The bytes of a lane. A chunk of framed snappy has 1,024 lanes."""
_BYTE: Final = np.uint32(0xFF)


def crc32c(content: bytes) -> int:
    """Return the checksum, as an unsigned number of 32 bits."""
    if len(content) < 4:
        return _bytewise(content)
    lanes = 1 << max(0, -(-len(content) // _LANE) - 1).bit_length()
    padded = np.zeros(lanes * _LANE, np.uint8)
    # Leading zero bytes leave a register of zeros unchanged. Starting with ones is equivalent to inverting the first
    # four bytes.
    start = len(padded) - len(content)
    padded[start:] = np.frombuffer(content, np.uint8)
    padded[start : start + 4] ^= np.uint8(0xFF)
    words = padded.view("<u4").reshape(lanes, _LANE // 4).T
    register = np.zeros(lanes, np.uint32)
    for word in words:
        register = _moved(register ^ word, _zeros(4))
    length = _LANE
    while len(register) > 1:
        register = _moved(register[0::2], _zeros(length)) ^ register[1::2]
        length *= 2
    return int(register[0]) ^ 0xFFFFFFFF


def _bytewise(content: bytes) -> int:
    table, register = _byte_table(), 0xFFFFFFFF
    for byte in content:
        register = int(table[(register ^ byte) & 0xFF]) ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def _moved(register: Words, tables: Words) -> Words:
    """Advance registers by as many zero bytes as the tables are made for."""
    low = tables[0][register & _BYTE] ^ tables[1][(register >> np.uint32(8)) & _BYTE]
    return low ^ tables[2][(register >> np.uint32(16)) & _BYTE] ^ tables[3][register >> np.uint32(24)]


@functools.cache
def _zeros(count: int) -> Words:
    """Return, for each byte of a register (4) and each of its values (256), the register after `count` zero bytes, a
    power of two."""
    values = np.arange(256, dtype=np.uint32)
    single = np.stack([values << np.uint32(8 * place) for place in range(4)])
    if count == 1:
        table = _byte_table()
        return table[single & _BYTE] ^ (single >> np.uint32(8))
    half = _zeros(count // 2)
    return np.stack([_moved(half[place], half) for place in range(4)])


@functools.cache
def _byte_table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & np.uint32(1), (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    return table
