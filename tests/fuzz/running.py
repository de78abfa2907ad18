"""Examples of every decoder for as long as one likes: `python -m tests.fuzz --minutes 10 --seed 1`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, WAITING, survive

_ROUND = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10, help="of CPU for each decoder, of the clock for Canal server"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the first examples")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="only this one; may be repeated")
    options = parser.parse_args()
    first = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        last = Path(place) / "last"
        for name in options.target or TARGETS:
            # In a process of its own, which may die.
            process = multiprocessing.get_context("spawn").Process(
                target=_go_on, args=(name, first, options.minutes, last)
            )
            process.start()
            process.join()
            if process.exitcode:
                wrong.append(name)
            if (process.exitcode or 0) < 0:
                _say(f"{name}: the process died by signal {-(process.exitcode or 0)} of {last.read_bytes()!r}")
    _say(f"wrong: {wrong}")
    return 1 if wrong else 0


def _go_on(name: str, first: int, minutes: float, last: Path) -> None:
    """Try examples for so many minutes of CPU, or of the clock where a target waits. It ends the process with 1 where
    one is wrong."""
    clock = time.monotonic if name in WAITING else time.process_time
    began, number = clock(), first
    while clock() < began + minutes * 60:
        try:
            try_examples(name, number, _ROUND, last)
        except Exception:  # noqa: BLE001 - Whatever it is, it is wrong.
            _say(f"{name}, seed {number}:\n{traceback.format_exc()}")
            sys.exit(1)
        number += 1
    _say(
        f"{name}: {(number - first) * _ROUND} examples in {(clock() - began) / 60:.1f} minutes"
        f" of {'the clock' if name in WAITING else 'CPU'}, seeds {first} to {number - 1}"
    )


def try_examples(name: str, first: int, count: int, last: Path | None = None) -> None:
    """So many examples of a seed; hypothesis makes what fails smaller. `last` has the bytes that are read, in case the
    process dies of them. Raises what the decoder raises and must not."""
    variants = TARGETS[name]()

    @seed(first)
    @settings(
        max_examples=count, deadline=None, database=None, derandomize=False, print_blob=False,
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
        phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(st.integers(0, len(variants) - 1), st.randoms(use_true_random=False))
    def one(number: int, chance: random.Random) -> None:
        value = mutated(chance, variants[number].samples)
        if last is not None:
            last.write_bytes(value)
        try:
            survive(variants[number], value)
        except Exception as error:
            error.add_note(f"{name}, variant {number}, seed {first}: {value!r}")
            raise

    one()


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - For the terminal.


# What befalls bytes: slips of a byte, parts that are lost, doubled, exchanged, or of another input; in JSON also any
# value in any place.

_TOKENS: Final = (
    b"", b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\n", b"\r", b"\r\n", b"\t", b"\\", b"\\N",
    b"\\u0000", b"\\ud800", b'"', b"'", b"''", b'""', b"`", b",", b":", b";", b"(", b")", b"[", b"]", b"{", b"}", b"/*",
    b"*/", b"--", b"#", b"%", b"@", b"=", b"-", b"+", b".", b"e", b"null", b"NULL", b"true", b"NaN", b"Infinity", b"-0",
    b"0x", b"1e999", b"18446744073709551616", b"-9223372036854775809", b"9" * 40, b"9" * 5000, b"0000-00-00",
    b"\x80" * 9, "\u0663".encode(), "\u2028".encode(), b"[" * 600, b"{\"a\":" * 600, b" " * 300,
)  # fmt: skip
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1 << 31, 1 << 63, -(1 << 63) - 1, 1 << 64, 10**40, 0.5, 1e300, "", "0", "x", "\0",
    "\ud800", "NULL", "1e400", "-0", "0000-00-00 00:00:00", "9" * 400, [], [None], [[]], {}, {"": None},
    {"a": {"a": 1}}, [{}], ["a", 1],
)  # fmt: skip
_MOST: Final = 6


def mutated(chance: random.Random, samples: Sequence[bytes]) -> bytes:
    """One of the samples after a few mishaps."""
    value = chance.choice(samples)
    for _ in range(chance.randint(1, _MOST)):
        if chance.random() < 0.4 and (spoilt := _as_json(chance, value)) is not None:
            value = spoilt
        else:
            value = _as_bytes(chance, value, chance.choice(samples))
    return value


def _as_bytes(chance: random.Random, value: bytes, other: bytes) -> bytes:
    start, length = chance.randint(0, len(value)), chance.choice((0, 1, 2, 4, 9, 40))
    head, part, tail = value[:start], value[start : start + length], value[start + length :]
    match chance.randrange(7):
        case 0:
            return head
        case 1:
            return head + chance.choice(_TOKENS) + tail
        case 2:
            return head + part + chance.choice(_TOKENS) + tail
        case 3:
            return head + part + part + tail
        case 4:
            return head + bytes([(part or b"\0")[0] ^ (1 << chance.randrange(8))]) + part[1:] + tail
        case 5:
            return head + other[chance.randint(0, len(other)) :]
        case _:
            return head + chance.randbytes(max(1, len(part))) + tail


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
            inner[chance.choice(("", "x", "data", str(key).upper(), "\ud800", "id\0"))] = inner.pop(key)
        case 2:
            other = chance.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
            inner[key] = inner[other]
        case _:
            inner[key] = chance.choice(_VALUES)
