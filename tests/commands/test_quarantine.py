"""`quarantine`: what could not be used, given up or decoded again, from the catalog and the sink alone."""

from __future__ import annotations

import datetime
import getpass
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

from tests.boundaries.change_log import utc_now
from tests.commands import call
from tests.kit.lakes import TestLake
from tests.kit.leases import lease_of
from tests.kit.scripted_lake import NOON, Rejected, quarantined
from tests.pipeline import Sink

ROWS = (
    Rejected("d/t/CDC1.json", 17, "NotJson", "not JSON:\x1b[2J", b"\xff{\x1b[2J\n\x00", "d", "t"),
    Rejected("d/t/CDC1.json", 18, "NotJson", "not JSON", b"{", "d", "t", 5),
    Rejected("d/u/CDC1.json", None, "UnreadableSegment", "it cannot be read", None, "d", "u"),
    Rejected("t/0/7", 7, "BadMessage", "no message", b"?"),
)
LATER = NOON + datetime.timedelta(hours=1)
WHY = ("--reason", "test data")


@pytest.fixture
def lake(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    monkeypatch.setenv("CDC_LAKEHOUSE_CONFIG", str(lake.sink.parent / "lakehouse.yaml"))
    Sink(lake.sink).checkpoint(10)
    lake.run().quarantine.replace(lambda _: False, ROWS, NOON)
    return lake


def quarantine(*arguments: str, code: int = 0) -> Result:
    result = call("quarantine", *arguments)
    assert result.exit_code == code, result.output
    return result


def listed(*arguments: str) -> dict[str, Any]:
    (feed,) = json.loads(quarantine("list", "--json", *arguments).stdout)["feeds"]
    return feed


def places(*arguments: str) -> list[tuple[str, int | None]]:
    return [(row["segment"], row["line"]) for row in listed(*arguments)["rows"]]


def ids(lake: TestLake) -> list[str]:
    """In the order of `ROWS`."""
    found = {(row.segment, row.line): row.id for row in quarantined(lake).rows}
    return [found[row.segment, row.line] for row in ROWS]


def test_list_has_open_rows_with_all_fields(lake: TestLake) -> None:
    feed = listed()
    assert (feed["feed"], feed["open"], feed["discarded"]) == (lake.name, 8, 0)
    assert feed["rows"][1] == {
        "id": ids(lake)[1], "class": "NotJson", "segment": "d/t/CDC1.json", "line": 18, "database": "d", "table": "t",
        "message": "not JSON", "count": 5, "state": "open", "quarantined_at": NOON.isoformat(), "resolved_at": None,
        "discarded_by": None, "discard_reason": None,
    }  # fmt: skip
    text = quarantine("list").stdout
    assert "d.t  5 rows since 2026-06-01 12:00:00 UTC" in text and "8 open, 0 discarded" in text
    assert f"{ids(lake)[3]}  BadMessage  *.*  1 row " in text
    assert "\x1b" not in text and "\\x1b[2J" in text


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (("--table", "d.t"), [0, 1]),
        (("--class", "NotJson"), [0, 1]),
        (("--table", "d.u", "--class", "NotJson"), []),
        (("--table", "*.*"), [3]),
    ],
)
def test_list_is_limited_to_a_table_or_a_class(lake: TestLake, arguments: tuple[str, ...], rows: list[int]) -> None:
    assert places(*arguments) == [(ROWS[n].segment, ROWS[n].line) for n in rows]


def test_list_all_has_resolved_and_discarded_rows(lake: TestLake) -> None:
    lake.run().quarantine.replace(lambda row: row.table == "u", [], LATER)
    quarantine("discard", ids(lake)[1], "--by", "ann", *WHY)
    assert (len(places()), len(places("--all"))) == (2, 4)
    by_state = {row["state"]: row for row in listed("--all")["rows"]}
    assert by_state["replayed"]["resolved_at"] == LATER.isoformat()
    assert (by_state["discarded"]["discarded_by"], by_state["discarded"]["discard_reason"]) == ("ann", "test data")
    text = quarantine("list", "--all").stdout
    assert "UTC; discarded by ann: test data" in text and "replayed at 2026-06-01 13:00:00 UTC" in text


def test_row_is_shown_with_escaped_or_raw_bytes(lake: TestLake, tmp_path: Path) -> None:
    place = tmp_path / "raw"
    text = quarantine("show", ids(lake)[0], "--raw", str(place)).stdout
    assert place.read_bytes() == ROWS[0].raw
    assert text.isascii() and "\x1b" not in text and "\x00" not in text
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert lines["raw"] == "\\xff{\\x1b[2J\\n\\x00" and (lines["line"], lines["discarded_by"]) == ("17", "-")
    # A row that stands for what was not read has none.
    refused = quarantine("show", ids(lake)[2], "--raw", str(tmp_path / "none"), code=2)
    assert "has no bytes" in refused.stderr and not (tmp_path / "none").exists()


def test_open_row_of_one_id_is_shown(lake: TestLake) -> None:
    lake.run().quarantine.replace(lambda row: row.line == 17, [], LATER)
    lake.run().quarantine.replace(lambda _: False, [replace(ROWS[0], message="again")], LATER)
    assert "again" in quarantine("show", ids(lake)[0]).stdout


@pytest.mark.parametrize("arguments", [("show",), ("discard", *WHY), ("replay",)])
def test_unknown_id_is_2_and_changes_nothing(lake: TestLake, arguments: tuple[str, ...]) -> None:
    known = ids(lake)[:1] if arguments[0] != "show" else []
    before = lake.metadata()
    assert "123456789abc" in quarantine(*arguments, *known, "123456789abc", code=2).stderr
    assert lake.metadata() == before


def test_rows_are_discarded_by_id_with_who_when_why(lake: TestLake) -> None:
    before = utc_now()
    text = quarantine("discard", ids(lake)[0], ids(lake)[1], *WHY).stdout
    assert "discarded 6 rows" in text
    rows = quarantined(lake).discarded()
    assert sorted(row.id for row in rows) == sorted(ids(lake)[:2])
    assert {(row.discarded_by, row.discard_reason) for row in rows} == {(getpass.getuser(), "test data")}
    assert all(row.resolved_at is not None and before <= row.resolved_at <= utc_now() for row in rows)
    (feed,) = json.loads(call("status", "--json").stdout)["feeds"]
    assert (feed["quarantined"], feed["discarded"]) == (2, 6)
    assert "discarded: 6 rows" in call("status").stdout
    # What is not open is not discarded once more.
    assert "none of these rows is open" in quarantine("discard", ids(lake)[0], *WHY, code=1).stderr


def test_rows_are_discarded_by_table_and_class(lake: TestLake) -> None:
    quarantine("discard", "--table", "d.t", "--class", "NotJson", "--by", "ann", *WHY)
    assert places() == [(row.segment, row.line) for row in ROWS[2:]]
    quarantine("discard", "--table", "d.t", "--class", "NotJson", *WHY, code=1)


@pytest.mark.parametrize(
    "arguments", [WHY, ("--table", "d.t", *WHY), ("--class", "NotJson", *WHY), ("--table", "d.t", "--class", "NotJson")]
)
def test_discard_without_rows_or_reason_is_2(lake: TestLake, arguments: tuple[str, ...]) -> None:
    quarantine("discard", *arguments, code=2)
    quarantine("discard", ids(lake)[0], "--reason", " ", code=2)
    assert len(places()) == len(ROWS)


def test_discard_of_missing_input_warns(lake: TestLake) -> None:
    text = quarantine("discard", ids(lake)[2], *WHY).stdout
    assert "d/u/CDC1.json: its rows are missing from the tables" in text
    assert "missing" not in quarantine("discard", ids(lake)[0], *WHY).stdout


@pytest.mark.parametrize("arguments", [("discard", *WHY), ("replay",)])
def test_decisions_wait_for_a_run(lake: TestLake, arguments: tuple[str, ...]) -> None:
    lease = lease_of(lake, "another")
    lease.take()
    before = lake.metadata()
    result = quarantine(*arguments, ids(lake)[0], code=1)
    assert "another run has the feed: run another on" in result.stderr
    lease.release()
    assert {name: place for name, place in lake.metadata().items() if "lease" not in name} == {
        name: place for name, place in before.items() if "lease" not in name
    }
    quarantine(*arguments, ids(lake)[0])


def test_run_between_look_and_write_is_reported(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began after the look for a lease, and wrote first."""
    table = type(quarantined(lake))
    write = table.discard

    def later(self: Any, *arguments: Any) -> Any:
        lake.run().quarantine.replace(lambda _: False, [Rejected("s", 1, "NotJson", "m")], NOON)
        return write(self, *arguments)

    monkeypatch.setattr(table, "discard", later)
    assert "another run has written to" in quarantine("discard", ids(lake)[0], *WHY, code=1).stderr
    assert quarantined(lake).discarded() == []


def test_replay_lands_segments_and_names_others(lake: TestLake) -> None:
    sink = Sink(lake.sink, "t", checkpoint=10)
    path = sink.file("t")
    run = lake.run()
    run.source.land()
    (segment,) = run.segments.undecoded("file")[1]
    lake.lake.catalog.create_table((f"cdc_{lake.name}", "events"), pa.schema([("segment", pa.string())]))
    run.segments.mark_decoded([replace(segment, state="decoded", events=1)])
    run.quarantine.replace(lambda _: False, [Rejected(path, 1, "NotJson", "m", b"", "d", "t")], NOON)
    text = quarantine("replay", "--table", "d.t").stdout
    assert "the next run decodes again 1 segments" in text
    assert text.count("d/t/CDC1.json: each run tries it again by itself") == 2
    (again,) = lake.run().segments.undecoded("file")[2]
    assert (again.segment, again.events) == (path, None)
    quarantine("replay", code=2)
    quarantine("replay", "--table", "d.none", code=1)


def test_replay_by_id_revokes_a_discard(lake: TestLake) -> None:
    quarantine("discard", "--table", "d.t", "--class", "NotJson", *WHY)
    quarantine("replay", "--table", "d.t", code=1)
    assert len(places()) == 2
    quarantine("replay", ids(lake)[0])
    assert len(places()) == 3
    (row,) = [row for row in listed("--all")["rows"] if row["id"] == ids(lake)[0]]
    assert (row["state"], row["resolved_at"], row["discarded_by"], row["discard_reason"]) == ("open", None, None, None)
