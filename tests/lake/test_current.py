"""Current-state tables: they are found by what they are, not by what they are called. Which tags a commit makes and
removes, and which state readers are shown. Names of the source as names of the lake."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
import sqlglot
from hypothesis import example, given
from hypothesis import strategies as st
from sqlglot import exp

from cdc_lakehouse.changelog.history import Incarnation
from cdc_lakehouse.changelog.positions import tso
from cdc_lakehouse.changelog.schema import SchemaChange, TableName
from cdc_lakehouse.config import CutsConfig
from cdc_lakehouse.errors import UnreadableTableError
from cdc_lakehouse.lake import names
from cdc_lakehouse.lake.catalog import Lake
from cdc_lakehouse.lake.current.tables import CurrentTables, ShownState, plan_tags, schema_fingerprint, shown_state
from cdc_lakehouse.lake.current.value_parsing import ValueFormat
from cdc_lakehouse.lake.names import Identifier, encode_namespace, encode_table, path_part
from tests.changelog.statements import history
from tests.kit.case_files import Case, bytes_of, evaluated, read_cases
from tests.kit.lakes import TestLake
from tests.lake import ADD_COLUMN, CREATE, DROP, ID, RENAME, change, make_current_table, text

A, B = TableName("d", "a"), TableName("d", "b")
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("x y", pa.string()), pa.field("_commit_ts", pa.int64())])


@pytest.fixture
def tables(lake: TestLake) -> CurrentTables:
    return CurrentTables(lake.lake, lake.feed)


BORN = change(10, "a", CREATE, "CREATE TABLE a (id BIGINT PRIMARY KEY)")


def life_of(*changes: SchemaChange) -> Incarnation:
    return history(BORN, *changes).incarnations()["d.a#1"]


LIFE = life_of()
MOVED = life_of(change(20, "b", RENAME, "RENAME TABLE d.a TO d.b"))
DROPPED = life_of(change(30, "a", DROP, "DROP TABLE a"))
WIDER = life_of(change(20, "a", ADD_COLUMN, "ALTER TABLE a ADD COLUMN x VARCHAR(20)", ID, text("x")))
INDEXED = life_of(change(20, "a", 7, "ALTER TABLE a ADD INDEX i (id)"))


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/found.txt"), ids=str)
def test_table_is_found_where_it_stands(lake: TestLake, tables: CurrentTables, case: Case, update: bool) -> None:
    def find(life: Incarnation, name: TableName, parked_as: Incarnation | None = None, **properties: str) -> str:
        """The table of `LIFE` has the name, or stands aside as the table of another would."""
        where = tables.identifier(name) if parked_as is None else tables.parking_identifier(parked_as, name)
        made = make_current_table(lake, LIFE, where, COLUMNS, **properties)
        if "users" in properties:
            with made.transaction() as bare:
                bare.remove_properties(*made.properties)
        state = tables.find(life)
        assert not tables.is_free(where)
        lake.lake.catalog.drop_table(made.name())
        assert tables.find(life) is None
        if state is not None:
            assert (state.identifier, state.row_count, state.snapshot_id, state.columns) == (where, 0, None, ())
        return "no" if state is None else "found"

    case.compare(evaluated(case, {**globals(), "find": find}), update=update)


def test_names_are_shared_and_files_are_not(lake: TestLake, tables: CurrentTables) -> None:
    """Two lives of one name, and two feeds of one source in one namespace, have files of their own."""
    assert tables.identifier(TableName("shop.eu", "a/b")) == Identifier(f"{lake.name}__shop%2Eeu", "a%2Fb")
    second = replace(LIFE, id="d.a#2")
    assert tables.location(LIFE, A) != tables.location(second, A)
    assert tables.parking_identifier(LIFE, A) != tables.parking_identifier(second, A)
    feeds = [lake.feed.model_copy(update={"name": name, "namespace": "both"}) for name in ("one", "two")]
    one, two = (CurrentTables(lake.lake, feed) for feed in feeds)
    assert one.identifier(A) == two.identifier(A) and one.location(LIFE, A) != two.location(LIFE, A)


def differs(life: Incarnation, **how: Any) -> bool:
    """Whether the fingerprint differs from that of `LIFE`."""
    return schema_fingerprint(life, ValueFormat(**how)) != schema_fingerprint(LIFE, ValueFormat())


def test_table_without_metadata_is_neither_found_nor_free(lake: TestLake, tables: CurrentTables) -> None:
    """Its files say whose it is, where they are at a place of its own: the one before it under the name is not it."""
    dropped, life = history(BORN, change(20, "a", DROP), change(30, "a", CREATE)).incarnations().values()
    where = tables.identifier(A)
    lake.lake.ensure_namespace(where.namespace)
    properties = {**tables.first_properties(life), "format-version": "2"}
    made = lake.lake.catalog.create_table(
        where.parts, COLUMNS, location=tables.location(life, A), properties=properties
    )
    file = Path(made.metadata_location.removeprefix("file://"))
    sound = file.read_bytes()
    again = CurrentTables(Lake(lake.config.lake), lake.feed)
    for damaged in (b"", sound[:99], b"{}"):
        file.write_bytes(damaged)
        with pytest.raises(UnreadableTableError, match=rf"{file} cannot be read.*`cdc-lakehouse rebuild d\.a`"):
            again.find(life)
        assert again.find(dropped) is None and again.at(where) is None and not again.is_free(where)
    file.unlink()
    assert again.drop_unreadable(dropped) is None
    assert again.drop_unreadable(life) == where and again.is_free(where) and again.find(life) is None
    assert again.drop_unreadable(life) is None


# --- Tags ---


def at(text: str) -> int:
    """`5.10`: ten o'clock on the fifth."""
    day, _, hour = text.partition(".")
    return tso(datetime.datetime(2026, 3, int(day), int(hour or 0), tzinfo=datetime.UTC))


def name_of(tag: str) -> str:
    """`c4.9` is the tag of a cut, `d04` that of a day; others are as they stand."""
    return f"cut_{at(tag[1:])}" if tag[0] == "c" else f"day_2026-03-{tag[1:]}" if tag[1:].isdigit() else tag


def tags_changed(line: str) -> str:
    """The tags that a commit adds, moves and removes: `tags | the state that was shown | now`, or `none`. That
    state is snapshot 7, tags are of others. Tags are in the order of their names."""
    tags, shown, now = (part.strip().replace("none", "") for part in line.split("|"))
    kept = (0, 0) if "release" in tags else (24, 3)
    config = CutsConfig(keep_all_hours=kept[0], keep_daily_days=kept[1])
    state = ShownState(7, at(shown)) if shown else None
    before = {name_of(tag): number for number, tag in enumerate(tags.split())}
    changes = plan_tags(before, state, at(now), config)
    assert {*changes.values()} <= {7, None}
    # A commit that is tried again finds its tags.
    after = {name: id for name, id in {**before, **changes}.items() if id is not None}
    assert plan_tags(after, state, at(now), config) == {}
    hours = [f"{day}.{hour}" for day in range(1, 32) for hour in range(24)]
    short = {name_of(tag): tag for tag in [*(f"d{day:02d}" for day in range(1, 32)), *(f"c{hour}" for hour in hours)]}
    ways = {name: "removed" if id is None else "moved" if name in before else "added" for name, id in changes.items()}
    words = ("added", "moved", "removed")
    found = [(word, [short[name] for name in sorted(ways) if ways[name] == word]) for word in words]
    return "; ".join(f"{word} {' '.join(tags)}" for word, tags in found if tags) or "nothing"


def test_state_that_is_shown_is_the_newest_that_a_cut_names(lake: TestLake) -> None:
    """Snapshots of runs say their checkpoint-ts, those of others do not."""
    lake.lake.ensure_namespace("d")
    table = lake.lake.catalog.create_table(
        ("d", "t"), pa.schema([("id", pa.int64())]), properties={"cdc.applied-ts": "0"}
    )

    def commit(day: str = "") -> int:
        table.append(pa.table({"id": [1]}), {"cdc.checkpoint-ts": str(at(day))} if day else {})
        if day:
            table.transaction().set_properties({"cdc.applied-ts": str(at(day))}).commit_transaction()
        snapshot: Any = table.current_snapshot()
        return snapshot.snapshot_id

    assert shown_state(table, {1}) is None
    first = commit("1")
    assert shown_state(table, set()) is None
    assert shown_state(table, {first}) == ShownState(first, at("1"))
    # A compacted table shows what the run before has committed.
    compacted = commit()
    assert shown_state(table, {first}) == ShownState(first, at("1"))
    assert shown_state(table, {compacted}) == ShownState(compacted, at("1"))
    table.maintenance.expire_snapshots().by_id(first).commit()
    assert shown_state(table.refresh(), {compacted}) == ShownState(compacted, at("1"))
    # What a run has committed since, which ended before its cut, says nothing of the state before.
    second = commit("2")
    assert shown_state(table, {compacted}) is None
    assert shown_state(table, {compacted, second}) == ShownState(second, at("2"))
    third = commit("3")
    assert shown_state(table, {second}) == ShownState(second, at("2"))
    assert shown_state(table, {second, third}) == ShownState(third, at("3"))


# --- Names ---

NAMES = st.text(
    st.one_of(st.sampled_from("%.2fF5E/ab`'\" \\\n\x00\x7f-_é桌"), st.characters(codec="utf-8")),
    min_size=1,
    max_size=12,
)


@given(name=NAMES | st.sampled_from(["..", ".", "../../etc", "a/../b", "~"]))
@example(name="%2F/%2f%%2F")
@example(name="100%")
def test_encoded_name_is_decoded_and_fits_any_catalog_and_path(name: str) -> None:
    for encode in (encode_table, encode_namespace):
        encoded = encode(name)
        assert unquote(encoded) == name and "/" not in encoded
        assert not any(ord(character) < 0x20 or ord(character) == 0x7F for character in encoded)
    part = path_part(name)
    assert "." not in encode_namespace(name) and part.isascii() and len(part) == len(name)
    assert not set(part) & set("/\\.:%?#*~ ")


def encoded(name: str) -> str:
    """A name as that of a table and of a namespace; once where they are the same."""
    text = bytes_of(name).decode()
    return " and ".join(dict.fromkeys((encode_table(text), encode_namespace(text))))


def properties() -> str:
    """The names of properties and of entries in summaries, in the order of the module."""
    found = [value for value in vars(names).values() if isinstance(value, str) and value.startswith("cdc.")]
    return " ".join(name.removeprefix("cdc.") for name in found)


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases/current.txt"), ids=str)
def test_tags_and_names_are_those_of_the_case(case: Case, update: bool) -> None:
    case.compare(evaluated(case, globals()), update=update)


def parts_in_spark(sql: str) -> list[str]:
    """The parts of the one table that a query names."""
    (statement,) = sqlglot.parse(f"SELECT 1 FROM {sql}", read="spark")
    assert isinstance(statement, exp.Select)
    (table,) = statement.find_all(exp.Table)
    return [part.name for part in table.parts]


@given(namespace=NAMES, name=NAMES)
@example(namespace="d`; DROP TABLE x; --", name="`")
@example(namespace="a``b", name="c\\")
def test_identifier_in_sql_is_one_table(namespace: str, name: str) -> None:
    identifier = Identifier(encode_namespace(namespace), encode_table(name))
    assert parts_in_spark(identifier.sql) == ["lake", *identifier.parts]
