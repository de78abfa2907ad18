"""How a password is sent: scrambled with what the server says, as MySQL's native passwords are."""

from __future__ import annotations

import hashlib


def scrambled(password: str, seed: bytes) -> bytes:
    """`SHA1(password) XOR SHA1(seed + SHA1(SHA1(password)))` in 40 lower-case hexadecimal digits.

    Source: captured sessions; that of `tests/data/canal` is reproduced by a test.
    """
    once = hashlib.sha1(password.encode("utf-8")).digest()
    mask = hashlib.sha1(seed + hashlib.sha1(once).digest()).digest()
    return bytes(left ^ right for left, right in zip(once, mask, strict=True)).hex().encode("ascii")
