"""Which entries are before a place of the binlog."""

from __future__ import annotations

import json

import pytest

from cdc_lakehouse.sources.canal.binlog_position import BinlogPosition, BinlogSearch


def key(file: str, offset: int) -> bytes:
    return json.dumps([1, file, offset, 0, 2, 1, "d", "t", 0, "00"]).encode()


@pytest.mark.parametrize(
    ("sought", "before", "beyond"),
    [
        (("bin.000009", 500), 1, 2),
        (("bin.000009", 501), 2, 3),
        (("bin.000010", 4), 2, 3),
        (("bin.000010", 120), 2, 3),
        (("bin.000010", 121), 3, 4),
        (("bin.1000000", 4), 5, None),
        (("bin.000009", 4), None, 0),
    ],
)
def test_files_have_the_order_of_their_numbers(sought: tuple[str, int], before: int | None, beyond: int | None) -> None:
    places = [("bin.000009", 4), ("bin.000009", 120), ("bin.000009", 500), ("bin.000010", 120), ("bin.000010", 300)]
    search = BinlogSearch(BinlogPosition.of(*sought))
    search.add((offset, key(*place)) for offset, place in enumerate([*places, ("bin.000011", 4)]))
    assert (search.before, search.beyond) == (before, beyond)


@pytest.mark.parametrize(("offset", "beyond"), [(400, 3), (200, 2)])
def test_a_file_whose_name_is_still_that_of_the_last_one(offset: int, beyond: int) -> None:
    places = [("bin.000001", 4), ("bin.000001", 900), ("bin.000001", 250), ("bin.000002", 500)]
    search = BinlogSearch(BinlogPosition.of("bin.000002", offset))
    search.add((number, key(*place)) for number, place in enumerate(places))
    assert search.beyond == beyond


def test_what_is_no_entry_is_nowhere() -> None:
    search = BinlogSearch(BinlogPosition.of("bin.000001", 500))
    search.add([(0, b'["5d41402abc4b2a76",0,"00"]'), (1, key("", 0)), (2, key("bin.000001", 600))])
    assert (search.before, search.beyond, str(search.first)) == (None, 2, "bin.000001, 600")
