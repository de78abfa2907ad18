"""One DDL after another on one table: effect, columns, key, and what holds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cdc_lakehouse.changelog.history import History
from cdc_lakehouse.changelog.schema import SchemaChange, Swap, TableVersion
from tests.changelog.statements import ADD, CREATE, DROP, DROP_COLUMN, MODIFY, RENAME, SEEN, TRUNCATE, change

TABLE = "id:bigint:pk a b:varchar"
CREATED = change(10, "db.t", CREATE, "CREATE TABLE `db`.`t` (`id` BIGINT PRIMARY KEY, `a` INT, `b` VARCHAR(9))", TABLE)
PARTITIONED = change(
    10, "db.t", CREATE,
    "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY, `a` INT, `b` VARCHAR(9)) PARTITION BY RANGE (`id`)"
    " (PARTITION `p0` VALUES LESS THAN (100), PARTITION `p1` VALUES LESS THAN (200))", TABLE,
)  # fmt: skip


def versions(*changes: SchemaChange) -> Sequence[TableVersion]:
    history = History()
    history.apply(changes)
    return history.versions


def last(*changes: SchemaChange) -> TableVersion:
    return versions(*changes)[-1]


def altered(clauses: str, spec: str = TABLE, action: int = MODIFY, *, first: SchemaChange = CREATED) -> TableVersion:
    return last(first, change(20, "db.t", action, f"ALTER TABLE `t` {clauses}" if clauses else "", spec))


@pytest.mark.parametrize(
    ("clauses", "spec", "effect"),
    [
        ("", TABLE, "none"),
        ("ADD INDEX (a)", TABLE, "none"),
        ("COMMENT = 'x'", TABLE, "none"),
        ("ALTER COLUMN a SET DEFAULT 7", TABLE, "none"),
        ("MODIFY COLUMN a MEDIUMINT", "id:bigint:pk a:mediumint b:varchar", "none"),
        ("MODIFY COLUMN b TEXT", "id:bigint:pk a b:text", "none"),
        ("ADD COLUMN c INT", f"{TABLE} c", "evolve"),
        ("DROP COLUMN a", "id:bigint:pk b:varchar", "evolve"),
        ("RENAME COLUMN a TO A", "id:bigint:pk A b:varchar", "evolve"),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", "id:bigint:pk b a:varchar", "evolve"),
        ("MODIFY COLUMN a INT FIRST", "a id:bigint:pk b:varchar", "evolve"),
        ("MODIFY COLUMN a BIGINT", "id:bigint:pk a:bigint b:varchar", "evolve"),
        ("MODIFY COLUMN a BIGINT UNSIGNED", "id:bigint:pk a:bigint_unsigned b:varchar", "rewrite"),
        ("MODIFY COLUMN a VARCHAR(9)", "id:bigint:pk a:varchar b:varchar", "rewrite"),
        ("DROP COLUMN a, ADD COLUMN a VARCHAR(9) AFTER id", "id:bigint:pk a:varchar b:varchar", "evolve"),
        ("ADD COLUMN c INT, MODIFY COLUMN b BLOB", "id:bigint:pk a b:blob c", "rewrite"),
    ],
)
def test_effects(clauses: str, spec: str, effect: str) -> None:
    version = altered(clauses, spec)
    assert (version.effect, version.hold, version.note) == (effect, None, None)
    assert [column.name for column in version.columns] == [word.split(":")[0] for word in spec.split()]
    assert version.key_names == ("id",)


@pytest.mark.parametrize("number", [1, 2, 21, 24, 26, 9999])
def test_what_is_no_tables_has_no_incarnation(number: int) -> None:
    name = "db.v" if number in (21, 24) else "db"
    assert last(change(5, name, number, "…")).incarnation == ""


def test_a_statement_that_nobody_understands_is_noted_where_it_mattered() -> None:
    harmless, evolved = altered("FROBNICATE"), altered("FROBNICATE", f"{TABLE} c")
    assert (harmless.effect, harmless.note) == ("none", None)
    assert evolved.effect == "evolve" and evolved.note is not None and "FROBNICATE" in evolved.note


def test_a_rename_that_nobody_understands_holds_and_changes_nothing() -> None:
    version = altered("FROBNICATE", "id:bigint:pk x b:varchar")
    assert version.effect == "hold" and version.columns == last(CREATED).columns
    assert version.hold is not None and "FROBNICATE" in version.hold


def test_truncate_keeps_the_table() -> None:
    created, emptied = versions(CREATED, change(20, "db.t", TRUNCATE, "TRUNCATE TABLE `t`", TABLE))
    assert (emptied.effect, emptied.emptied) == ("empty", ())
    assert (emptied.incarnation, emptied.columns, emptied.key) == (created.incarnation, created.columns, created.key)


def test_a_drop_of_a_table_that_never_had_a_row_is_nothing() -> None:
    version = last(change(20, "db.t", DROP, "DROP TABLE `db`.`t`", TABLE))
    assert (version.effect, version.incarnation) == ("none", "")


def test_a_hold_is_of_its_own_version() -> None:
    """Who asks whether a table is held looks at all of its versions."""
    held = change(20, "db.t", MODIFY, "ALTER TABLE t FROBNICATE", "id:bigint:pk x b:varchar")
    made = versions(CREATED, held, change(30, "db.t", 7, "ALTER TABLE t ADD INDEX (a)", TABLE))
    assert [version.hold is not None for version in made] == [False, True, False]


# --- Keys ---


@pytest.mark.parametrize(
    ("query", "spec", "key"),
    [
        ("CREATE TABLE t (a INT, b INT, PRIMARY KEY (b, a))", "a:int:pk b:int:pk", {"a", "b"}),
        ("CREATE TABLE t (a INT NOT NULL, b INT NOT NULL UNIQUE)", "a:int:!null b:int:!null", {"b"}),
        ("CREATE TABLE t (a INT, b INT UNIQUE)", "a b", set[str]()),
        ("CREATE TABLE t (a INT NOT NULL UNIQUE, b INT PRIMARY KEY)", "a:int:!null b:int:pk", {"b"}),
    ],
)
def test_the_key_of_a_new_table(query: str, spec: str, key: set[str]) -> None:
    assert set(last(change(5, "db.t", CREATE, query, spec)).key_names) == key


def test_the_key_follows_a_rename_of_its_column() -> None:
    assert altered("RENAME COLUMN id TO no", "no:bigint:pk a b:varchar").key_names == ("no",)


def test_a_file_that_leaves_the_primary_key_out_does_not_take_it_away() -> None:
    version = altered("ADD INDEX (a)", "id:bigint:!null a b:varchar", 7)
    assert (version.effect, version.key_names) == ("none", ("id",))


@pytest.mark.parametrize(
    ("clauses", "spec", "action", "effect", "key"),
    [
        ("DROP PRIMARY KEY", "id:bigint:!null a b:varchar", 33, "none", ()),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (a)", "id:bigint:!null a:int:pk b:varchar", 32, "rewrite", ("a",)),
        ("DROP COLUMN id", "a b:varchar", DROP_COLUMN, "evolve", ()),
    ],
)
def test_a_change_of_the_key_writes_the_rows_anew(
    clauses: str, spec: str, action: int, effect: str, key: tuple[str, ...]
) -> None:
    version = altered(clauses, spec, action)
    assert (version.effect, version.key_names, version.hold) == (effect, key, None)
    assert (version.note or "").startswith("rows are identified by a from here on, before by id") == bool(key)


def test_a_table_like_another_has_its_key_and_partitions() -> None:
    unique = change(5, "db.u", CREATE, "CREATE TABLE `u` (`a` INT NOT NULL, UNIQUE KEY k (`a`))", "a:int:!null")
    like = last(unique, change(10, "db.t", CREATE, "CREATE TABLE `t` LIKE `u`", "a:int:!null"))
    assert (like.key_names, [key.name for key in like.unique_keys]) == (("a",), ["k"])
    model = change(5, "db.u", CREATE, PARTITIONED.query.replace("`t`", "`u`"), TABLE)
    copy = last(model, change(10, "db.t", CREATE, "CREATE TABLE `t` LIKE `db`.`u`", TABLE))
    assert copy.partitioning is not None and [each.name for each in copy.partitioning.partitions] == ["p0", "p1"]


# --- Partitions ---


@pytest.mark.parametrize(
    ("clauses", "action", "emptied", "left"),
    [
        ("DROP PARTITION `p0`", 20, ("p0",), ["p1"]),
        ("TRUNCATE PARTITION `p0`, `p1`", 23, ("p0", "p1"), ["p0", "p1"]),
        ("TRUNCATE PARTITION ALL", 23, (), ["p0", "p1"]),
    ],
)
def test_partitions_that_are_emptied(clauses: str, action: int, emptied: tuple[str, ...], left: list[str]) -> None:
    version = altered(clauses, TABLE, action, first=PARTITIONED)
    assert (version.effect, version.emptied) == ("empty", emptied)
    assert version.partitioning and [each.name for each in version.partitioning.partitions] == left


@pytest.mark.parametrize(
    ("clauses", "first", "said"),
    [
        ("DROP PARTITION `p9`", PARTITIONED, "p9 is not known"),
        ("DROP PARTITION `p0`", change(10, "db.t", SEEN, "", TABLE), "older than the feed"),
        ("FROBNICATE PARTITION", PARTITIONED, "does not say which"),
    ],
)
def test_rows_of_partitions_that_cannot_be_told_hold(clauses: str, first: SchemaChange, said: str) -> None:
    version = altered(clauses, TABLE, 20, first=first)
    assert version.effect == "hold" and version.hold is not None and said in version.hold


def test_a_rearrangement_moves_no_row() -> None:
    version = altered("REORGANIZE PARTITION p0 INTO (PARTITION q VALUES LESS THAN (100))", TABLE, 64, first=PARTITIONED)
    assert version.effect == "none" and version.partitioning
    assert [each.name for each in version.partitioning.partitions] == ["q", "p1"]


EXCHANGE = "ALTER TABLE `db`.`t` EXCHANGE PARTITION `p0` WITH TABLE `db`.`{}`"


@pytest.mark.parametrize("other", ["a", "z"])
@pytest.mark.parametrize("older", [True, False])
def test_an_exchange_is_of_both_tables(other: str, older: bool) -> None:
    """The other table's file has no statement and sorts before or after the partitioned one's; it may be all that the
    log has of it."""
    plain = change(11, f"db.{other}", CREATE, f"CREATE TABLE `{other}` (id BIGINT PRIMARY KEY)", TABLE)
    swapped = change(20, "db.t", 42, EXCHANGE.format(other), TABLE)
    made = versions(PARTITIONED, *([] if older else [plain]), swapped, change(20, f"db.{other}", SEEN, "", TABLE))
    found = {version.name.table: version.swap for version in made if version.effect == "swap"}
    assert found == dict.fromkeys(("t", other), Swap("db.t#1", "p0", f"db.{other}#1"))


@pytest.mark.parametrize(
    ("statement", "other", "said"),
    [
        (EXCHANGE.format("u"), None, "table u are not in the log"),
        (EXCHANGE.format("u").replace("p0", "p9"), TABLE, "p9 is not known"),
        (EXCHANGE.format("u"), "id:bigint:pk other", "do not have the same columns"),
        ("ALTER TABLE t EXCHANGE SOMETHING", TABLE, "does not say which rows"),
    ],
)
def test_an_exchange_whose_rows_cannot_be_told_holds(statement: str, other: str | None, said: str) -> None:
    plain = [change(11, "db.u", CREATE, "CREATE TABLE `u` (id BIGINT PRIMARY KEY)", other)] if other else []
    made = versions(PARTITIONED, *plain, change(20, "db.t", 42, statement, TABLE))
    assert made[-1].effect == "hold" and made[-1].hold is not None and said in made[-1].hold


# --- Tables older than the feed ---


@pytest.mark.parametrize("action", [SEEN, ADD, TRUNCATE, MODIFY, RENAME])
def test_a_table_that_is_older_than_the_feed_begins_at_its_first_sight(action: int) -> None:
    version = last(change(20, "db.t", action, "RENAME TABLE `db`.`s` TO `db`.`t`" if action == RENAME else "", TABLE))
    assert (version.effect, version.incarnation, version.since) == ("create", "db.t#1", 0)
    assert version.note is not None and "older than the feed" in version.note
    assert version.key_names == ("id",)


def test_its_name_was_anothers_until_that_was_given_up() -> None:
    moved = change(20, "db.u", RENAME, "RENAME TABLE `db`.`t` TO `db`.`u`", TABLE)
    made = versions(CREATED, moved, change(30, "db.t", SEEN, "", TABLE))
    assert [(version.incarnation, version.since) for version in made] == [
        ("db.t#1", 10),
        ("db.t#1", 20),
        ("db.t#2", 20),
    ]


# --- What the log left out ---


def test_a_table_created_over_another_ends_it_with_a_note() -> None:
    made = versions(CREATED, change(20, "db.t", CREATE, CREATED.query, TABLE))
    assert [(version.effect, version.incarnation) for version in made] == [
        ("create", "db.t#1"), ("drop", "db.t#1"), ("create", "db.t#2"),
    ]  # fmt: skip
    assert made[1].note is not None and "no statement in the log drops" in made[1].note


def test_a_table_renamed_over_another_ends_it_with_a_note() -> None:
    other = change(11, "db.u", CREATE, "CREATE TABLE `u` (id BIGINT PRIMARY KEY)", TABLE)
    made = versions(CREATED, other, change(20, "db.u", RENAME, "RENAME TABLE `db`.`t` TO `db`.`u`", TABLE))
    assert [(version.effect, version.incarnation) for version in made[2:]] == [("drop", "db.u#1"), ("move", "db.t#1")]
    assert made[2].note is not None


def test_a_rename_that_does_not_say_of_what_holds_the_table_of_that_name() -> None:
    version = last(CREATED, change(20, "db.t", RENAME, "FROBNICATE", TABLE))
    assert version.effect == "hold" and version.hold is not None and "which table became db.t" in version.hold
