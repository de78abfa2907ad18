"""Whatever is sent again, cut into batches or interleaved with other partitions: events are the same."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.decoders.formats.dts_avro import decode
from tests.decoders.messages.dts_records import DtsSource
from tests.kit.decoding import Reading

PARTITIONS = 3
POISON = (b"\xff" * 7, b"garbage", b'{"a":1}', bytes(60))
Sent = tuple[list[bytes], list[int]]
"""A partition's messages, and at which of them a task may start again."""


def _avro(seed: int, ids: Sequence[int]) -> Sent:
    """Rows of the partition's own ids come and go, a statement among them. A task starts with a transaction."""
    source, rows, starts = DtsSource(), dict[int, Any](), [0]
    source.statement("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", "t")
    for step, id in enumerate(ids):
        if step % 4 == 0:
            starts.append(len(source.records))
            source.begin()
        old, new = rows.pop(id, None), {"id": str(id), "v": None if step % 5 == 0 else f"vär 中文 {seed + step}"}
        if old is None:
            source.change("t", (None, new), (None, {**new, "id": str(id + 3 * PARTITIONS)}))
        else:
            source.change("t", (old, new if step % 3 else None))
        if old is None or step % 3:
            rows[id] = new
        if step % 4 == 3:
            source.commit()
            source.beside()
        if step == 9:
            source.rotate()
            source.statement("ALTER TABLE t COMMENT 'later'", "t")
    return source.records, starts


def _shareplex(seed: int, ids: Sequence[int]) -> Sent:
    scn, seqs = itertools.count(1000 + seed), itertools.count(1)
    made: list[dict[str, Any]] = []

    def add(op: str, scn: int, **images: Any) -> None:
        meta = {"op": op, "table": "shop.t", "time": "2024-01-01T00:00:00", "scn": str(scn), "seq": next(seqs)}
        made.append({"meta": meta, **images})

    for step, id in enumerate(ids):
        at, key = next(scn), {"id": str(id)}
        match step % 4:
            case 0:
                add("ins", at, data={**key, "v": str(step)})
            case 1:
                add("upd", at, data={"v": str(step)}, key={**key, "v": str(step - 1)})
            case 2:
                add("UPDATE BEFORE", at, data={**key, "v": "old"})
                add("UPDATE AFTER", at, data={**key, "v": str(step)})
            case _:
                add("del", at, data=key)
    return [json.dumps(each).encode() for each in made], list(range(len(made)))


FORMATS: dict[str, Callable[[int, Sequence[int]], Sent]] = {"dts-avro": _avro, "shareplex-json": _shareplex}


def _of_each(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=PARTITIONS, max_size=PARTITIONS)


def _with_again(once: Sent, again: list[tuple[int, int]]) -> list[bytes]:
    """A task that starts again at some places: it goes back, and on from there."""
    values, starts = once
    sent: list[bytes] = []
    done = 0
    for place, back in sorted(again):
        place = min(place, len(values))
        sent += values[done:place]
        back_to = max(0, max(place, done) - back)
        done = max((start for start in starts if start <= back_to), default=0)
    return sent + values[done:]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@given(
    ids=_of_each(st.lists(st.integers(0, 2), min_size=1, max_size=14)),
    # At an offset: so many of before.
    again=_of_each(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), max_size=3)),
    # Where batches end, in parts of a thousand.
    cuts=st.lists(st.integers(0, 1000), max_size=4).map(lambda cuts: [*sorted(cuts), 1000]),
    poison=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 80)), max_size=3),
)
@settings(max_examples=60)
def test_batches_and_what_is_sent_again_change_nothing(
    name: str, ids: list[list[int]], again: list[Any], cuts: list[int], poison: list[tuple[int, int]]
) -> None:
    once = [FORMATS[name](100 * n, [PARTITIONS * id + n for id in each]) for n, each in enumerate(ids)]
    expected = Reading(name)
    expected.read([values for values, _ in once], [len(values) for values, _ in once])
    sent = [_with_again(values, places) for values, places in zip(once, again, strict=True)]
    if name == "dts-avro":
        for n, place in poison:
            sent[n].insert(place, POISON[place % len(POISON)])
    found = Reading(name, by_turns=True, at_once=7)
    for cut in cuts:
        found.read(sent, [len(values) * cut // 1000 for values in sent])
    assert _changes(found) == _changes(expected)
    assert found.bad == (len(poison) if name == "dts-avro" else 0)
    assert _statements(found) == _statements(expected)
    told = sum(_has_place(value, name) for values in sent for value in values)
    once_told = sum(_has_place(value, name) for values, _ in once for value in values)
    assert sum(summary.replays for summary in found.summaries.values()) == told - once_told


def _has_place(value: bytes, name: str) -> bool:
    """Whether the message says something of its own: heartbeats and garbage do not."""
    return name != "dts-avro" or (value not in POISON and len(value) > 2 and bool(decode(None, value).parts))


def _changes(reading: Reading) -> dict[int, list[tuple[Any, ...]]]:
    """By partition, what happened in the order of the commit-ts."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for event in reading.changes:
        before, after = event["before"], event["after"]
        of = found.setdefault(int((after or before)["id"]) % PARTITIONS, [])
        of.append((event["op"], event["table_name"], before, after))
    return found


def _statements(reading: Reading) -> list[tuple[int, str]]:
    return sorted(
        (place[1], each.text) for place, summary in reading.summaries.items() for _, each in summary.statements
    )
