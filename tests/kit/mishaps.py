"""What befalls bytes: slips of a byte, parts that are lost, doubled, exchanged, or of another input; in JSON also any
value in any place (`mishaps.txt`)."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.kit.case_files import bytes_of

_BYTES, _JSON = (
    [bytes_of(line) for line in block.split("\n")[1:]]
    for block in Path(__file__).with_name("mishaps.txt").read_text(encoding="utf-8").rstrip("\n").split("\n\n")
)
_TOKENS: Final = (b"", *_BYTES)
_VALUES: Final = (*map(json.loads, _JSON),)


def mutated(chance: random.Random, samples: Sequence[bytes]) -> bytes:
    """One of the samples after a few mishaps."""
    value = chance.choice(samples)
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        if chance.random() < 0.4 and (spoilt := _as_json(chance, value)) is not None:
            value = spoilt
        else:
            value = _as_bytes(chance, value, chance.choice(samples))
    return value


def _as_bytes(chance: random.Random, value: bytes, other: bytes) -> bytes:
    start, length = chance.randint(0, len(value)), chance.choice((0, 1, 2, 4, 9, 40))
    if chance.random() < 0.5:
        start = value.find(chance.choice((b"{", b"[", b",", b":")), start) + 1
    head, part, tail = value[:start], value[start : start + length], value[start + length :]
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: head,
        lambda: head + chance.choice(_TOKENS) + tail,
        lambda: head + part + chance.choice(_TOKENS) + tail,
        lambda: head + part + part + tail,
        lambda: head + bytes([(part or b"\0")[0] ^ (1 << chance.randrange(8))]) + part[1:] + tail,
        lambda: head + other[chance.randint(0, len(other)) :],
        lambda: head + chance.randbytes(max(1, len(part))) + tail,
    )
    return chance.choice(ways)()


def _as_json(chance: random.Random, value: bytes) -> bytes | None:
    """With another value in one place of one of its lines; None where there is no JSON."""
    lines = value.split(b"\n")
    number = chance.randrange(len(lines))
    try:
        found: Any = json.loads(lines[number])
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict | list):
        return None
    inner: Any = found
    while True:
        keys: list[Any] = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        if not keys:
            break
        key = chance.choice(keys)
        if isinstance(inner[key], dict | list) and inner[key] and chance.random() < 0.7:
            inner = inner[key]
            continue
        _spoil(chance, inner, key)
        break
    lines[number] = json.dumps(found).encode()
    return b"\n".join(lines)


def _spoil(chance: random.Random, inner: Any, key: Any) -> None:
    match chance.randrange(4):
        case 0:
            del inner[key]
        case 1 if isinstance(inner, dict):
            names = ("", "x", "data", str(key).upper(), "\ud800", "id\0", "onlyHandleKey", "claimCheckLocation")
            inner[chance.choice(names)] = inner.pop(key)
        case 2:
            other = chance.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
            inner[key] = inner[other]
        case _:
            inner[key] = chance.choice(_VALUES)
