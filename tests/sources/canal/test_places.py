"""Each entry is taken once, in whatever way a stream is cut and comes again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.sources.canal.entry_identity import EntryStream, KnownEntries, placed
from tests.canal_captures import SOURCES, capture
from tests.sources.canal.binlogs import Binlog, binlogs, number_of

steps = st.fixed_dictionaries({
    "before": st.sampled_from(["on", "on", "another connection", "another run", "a restart"]),
    "back": st.integers(0, 7),
    "size": st.integers(1, 9),
    "lost": st.booleans(),
})  # fmt: skip


@pytest.mark.slow
@given(binlogs, st.lists(steps, max_size=25))
def test_each_entry_is_new_once_and_in_order(log: Binlog, steps: list[dict[str, Any]]) -> None:
    keys: list[bytes] = []
    taken: list[int] = []
    entries, acked = list(log.entries), 0
    stream, connection = EntryStream(), 0
    for step in [*steps, {"before": "another run", "size": len(entries), "lost": False}]:
        match step["before"]:
            case "another connection":
                connection += 1
            case "another run":
                stream = EntryStream()
            case "a restart":
                connection += 1
                acked = [start for start in log.starts if start <= acked][-1 - step["back"] :][0]
                entries[acked:] = map(log.told_anew, entries[acked:])
            case _:
                pass
        end = acked + step["size"]
        # What is kept is known from the lake alone, as it is to a run.
        new = list(stream.new(connection, map(placed, entries[acked:end]), KnownEntries.of(keys)))
        keys += [key for _, key in new]
        taken += [number_of(entry.value) for entry, _ in new]
        if step["lost"]:
            connection += 1
        else:
            acked = min(end, len(entries))
    assert taken == list(range(len(log.entries)))


@pytest.mark.parametrize("source", SOURCES)
def test_places_of_captured_entries(source: str) -> None:
    """None is like another, and a key is all that must be kept of an entry to know it again."""
    entries = capture(source).entries
    known = KnownEntries()
    keys = [key for _, key in EntryStream().new(1, map(placed, entries), known)]
    assert len(keys) == len(set(keys)) == len(entries)
    assert KnownEntries.of(keys) == known
    assert not list(EntryStream().new(2, map(placed, entries), KnownEntries.of(keys)))


def test_what_is_no_entry_is_its_own_place() -> None:
    stream, known = EntryStream(), KnownEntries()
    assert [key for _, key in stream.new(1, [placed(b"\xff"), placed(b"\xfe"), placed(b"\xff")], known)]
    assert (
        len(known.by_place) == 2
        and KnownEntries.of(key for _, key in EntryStream().new(2, [placed(b"\xff"), placed(b"\xfe")], KnownEntries()))
        == known
    )
