"""Files that were damaged on their way."""

from __future__ import annotations

from collections.abc import Sequence


def damaged(content: bytes, places: Sequence[tuple[float, int, bytes]]) -> bytes:
    """With `cut` bytes at each place, a share of the content, replaced by others."""
    for share, cut, put in places:
        at = int(share * len(content))
        content = content[:at] + put + content[at + cut :]
    return content
