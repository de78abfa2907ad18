"""One DDL after another on one table: effect, columns, key, and what holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cdc_lakehouse.changelog.schema import PartitionExchange, RestoredRows, SchemaChange, TableName, TableVersion
from tests.changelog.statements import (
    ADD,
    CREATE,
    DROP,
    DROP_COLUMN,
    MODIFY,
    RENAME,
    SEEN,
    TRUNCATE,
    change,
    columns,
    history,
)  # fmt: skip

TABLE = "id:bigint:pk a b:varchar"
CREATED = change(10, "db.t", CREATE, "CREATE TABLE `db`.`t` (`id` BIGINT PRIMARY KEY, `a` INT, `b` VARCHAR(9))", TABLE)
PARTITIONED = change(
    10, "db.t", CREATE,
    "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY, `a` INT, `b` VARCHAR(9)) PARTITION BY RANGE (`id`)"
    " (PARTITION `p0` VALUES LESS THAN (100), PARTITION `p1` VALUES LESS THAN (200))", TABLE,
)  # fmt: skip
OTHER = change(11, "db.u", CREATE, "CREATE TABLE `u` (id BIGINT PRIMARY KEY)", TABLE)


def versions(*changes: SchemaChange) -> Sequence[TableVersion]:
    return history(*changes).versions


def altered(clauses: str, spec: str = TABLE, action: int = MODIFY, *, first: SchemaChange = CREATED) -> TableVersion:
    return versions(first, change(20, "db.t", action, f"ALTER TABLE `t` {clauses}" if clauses else "", spec))[-1]


def check(version: TableVersion, effect: str, *, hold: str | None = None, note: str | None = None, **more: Any) -> None:
    """`hold` and `note` are a part of what is said, or None where nothing is."""
    assert version.effect == effect
    for said, words in ((version.hold, hold), (version.note, note)):
        assert said is None if words is None else said is not None and words.lower() in said.lower()
    assert {name: getattr(version, name) for name in more} == more


def partitions(version: TableVersion) -> list[str]:
    assert version.partitioning is not None
    return [partition.name.lower() for partition in version.partitioning.partitions]


@pytest.mark.parametrize(
    ("clauses", "spec", "effect"),
    [
        ("", TABLE, "none"),
        ("ADD INDEX (a)", TABLE, "none"),
        ("COMMENT = 'x'", TABLE, "none"),
        ("ALTER COLUMN a SET DEFAULT 7", TABLE, "none"),
        ("FROBNICATE", TABLE, "none"),
        ("MODIFY COLUMN a MEDIUMINT", "id:bigint:pk a:mediumint b:varchar", "rewrite"),
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
    check(version, effect, key_names=("id",))
    assert [column.name for column in version.columns] == [word.split(":")[0] for word in spec.split()]


@pytest.mark.parametrize("number", [1, 2, 21, 24, 26, 9999])
def test_what_is_no_tables_has_no_incarnation(number: int) -> None:
    name = "db.v" if number in (21, 24) else "db"
    assert versions(change(5, name, number, "…"))[-1].incarnation == ""


def test_a_statement_that_nobody_understands_is_noted_where_it_mattered_and_holds_where_it_may_rename() -> None:
    check(altered("FROBNICATE", f"{TABLE} c"), "evolve", note="FROBNICATE")
    renamed = altered("FROBNICATE", "id:bigint:pk x b:varchar")
    check(renamed, "hold", hold="FROBNICATE", columns=versions(CREATED)[-1].columns)


def test_truncate_keeps_the_table() -> None:
    created, emptied = versions(CREATED, change(20, "db.t", TRUNCATE, "TRUNCATE TABLE `t`", TABLE))
    same = {"incarnation": created.incarnation, "columns": created.columns, "key": created.key}
    check(emptied, "empty", emptied=(), **same)


def test_a_drop_of_a_table_that_never_had_a_row_is_nothing() -> None:
    check(versions(change(20, "db.t", DROP, "DROP TABLE `db`.`t`", TABLE))[-1], "none", incarnation="")


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
    assert set(versions(change(5, "db.t", CREATE, query, spec))[-1].key_names) == key


BY_A = "rows are identified by a from here on, before by id"


@pytest.mark.parametrize(
    ("clauses", "spec", "action", "effect", "key", "note"),
    [
        ("RENAME COLUMN id TO no", "no:bigint:pk a b:varchar", MODIFY, "evolve", ("no",), None),
        # A file that leaves the primary key out does not take it away.
        ("ADD INDEX (a)", "id:bigint:!null a b:varchar", 7, "none", ("id",), None),
        ("DROP PRIMARY KEY", "id:bigint:!null a b:varchar", 33, "none", (), None),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (a)", "id:bigint:!null a:int:pk b:varchar", 32, "rewrite", ("a",), BY_A),
        ("DROP COLUMN id", "a b:varchar", DROP_COLUMN, "evolve", (), None),
    ],
)
def test_the_key_after_a_change(
    clauses: str, spec: str, action: int, effect: str, key: tuple[str, ...], note: str | None
) -> None:
    """Rows are written anew where others are the same by the new key."""
    version = altered(clauses, spec, action)
    check(version, effect, note=note, key_names=key)
    assert (version.note or "").startswith(note or "")


def test_a_table_like_another_has_its_key_and_partitions() -> None:
    unique = change(5, "db.u", CREATE, "CREATE TABLE `u` (`a` INT NOT NULL, UNIQUE KEY k (`a`))", "a:int:!null")
    like = versions(unique, change(10, "db.t", CREATE, "CREATE TABLE `t` LIKE `u`", "a:int:!null"))[-1]
    assert (like.key_names, [key.name for key in like.unique_keys]) == (("a",), ["k"])
    model = change(5, "db.u", CREATE, PARTITIONED.query.replace("`t`", "`u`"), TABLE)
    copy = versions(model, change(10, "db.t", CREATE, "CREATE TABLE `t` LIKE `db`.`u`", TABLE))[-1]
    assert partitions(copy) == ["p0", "p1"]


# --- Partitions ---

REORGANIZE = "REORGANIZE PARTITION p0 INTO (PARTITION q VALUES LESS THAN (100))"


@pytest.mark.parametrize(
    ("clauses", "action", "effect", "emptied", "left"),
    [
        ("DROP PARTITION `p0`", 20, "empty", ("p0",), ["p1"]),
        ("TRUNCATE PARTITION `p0`, `p1`", 23, "empty", ("p0", "p1"), ["p0", "p1"]),
        ("TRUNCATE PARTITION ALL", 23, "empty", (), ["p0", "p1"]),
        (REORGANIZE, 64, "none", (), ["q", "p1"]),
    ],
)
def test_partitions_that_are_emptied_or_rearranged(
    clauses: str, action: int, effect: str, emptied: tuple[str, ...], left: list[str]
) -> None:
    version = altered(clauses, TABLE, action, first=PARTITIONED)
    check(version, effect, note=version.note)
    assert (tuple(map(str.lower, version.emptied)), partitions(version)) == (emptied, left)


@pytest.mark.parametrize(
    ("clauses", "first", "said"),
    [
        ("DROP PARTITION `p9`", PARTITIONED, "p9 is not known"),
        ("DROP PARTITION `p0`", change(10, "db.t", SEEN, "", TABLE), "older than the feed"),
        ("FROBNICATE PARTITION", PARTITIONED, "does not say which"),
    ],
)
def test_rows_of_partitions_that_cannot_be_told_hold(clauses: str, first: SchemaChange, said: str) -> None:
    check(altered(clauses, TABLE, 20, first=first), "hold", hold=said)


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
    swaps = [PartitionExchange("db.t#1", p0, f"db.{other}#1") for p0 in ("p0", "P0")]
    assert found in [dict.fromkeys(("t", other), swap) for swap in swaps]


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
    plain = [change(11, "db.u", CREATE, OTHER.query, other)] if other else []
    version = versions(PARTITIONED, *plain, change(20, "db.t", 42, statement, TABLE))[-1]
    check(version, "hold", hold=said, note=version.note)


# --- Tables older than the feed, and what the log left out ---


@pytest.mark.parametrize("action", [SEEN, ADD, TRUNCATE, MODIFY, RENAME])
def test_a_table_that_is_older_than_the_feed_begins_at_its_first_sight(action: int) -> None:
    seen = change(20, "db.t", action, "RENAME TABLE `db`.`s` TO `db`.`t`" if action == RENAME else "", TABLE)
    begun = {"incarnation": "db.t#1", "since": 0, "key_names": ("id",)}
    check(versions(seen)[-1], "create", note="older than the feed", **begun)


def test_its_name_was_anothers_until_that_was_given_up() -> None:
    moved = change(20, "db.u", RENAME, "RENAME TABLE `db`.`t` TO `db`.`u`", TABLE)
    made = versions(CREATED, moved, change(30, "db.t", SEEN, "", TABLE))
    assert [(each.incarnation, each.since) for each in made] == [("db.t#1", 10), ("db.t#1", 20), ("db.t#2", 20)]


@pytest.mark.parametrize(
    ("changes", "effects"),
    [
        ([CREATED, change(20, "db.t", CREATE, CREATED.query, TABLE)],
         [("create", "db.t#1"), ("drop", "db.t#1"), ("create", "db.t#2")]),
        ([CREATED, OTHER, change(20, "db.u", RENAME, "RENAME TABLE `db`.`t` TO `db`.`u`", TABLE)],
         [("create", "db.t#1"), ("create", "db.u#1"), ("drop", "db.u#1"), ("move", "db.t#1")]),
    ],
    ids=["created", "renamed"],
)  # fmt: skip
def test_a_table_that_comes_over_another_ends_it_with_a_note(
    changes: list[SchemaChange], effects: list[tuple[str, str]]
) -> None:
    made = versions(*changes)
    assert [(version.effect, version.incarnation) for version in made] == effects
    check(made[-2], "drop", note="no statement in the log drops")


@pytest.mark.parametrize(
    ("statement", "held"),
    [
        ("FROBNICATE", ["db.v#1"]),
        ("RENAME TABLE `t` TO `v` FROBNICATE", ["db.t#1", "db.v#1"]),
        ("rename table DB.T to db.v frobnicate", ["db.t#1", "db.v#1"]),
        ("RENAME TABLE `a-t`.`x``y` TO `v` FROBNICATE", ["a-t.x`y#1", "db.v#1"]),
        ("RENAME TABLE `t` TO `u` FROBNICATE", ["db.t#1", "db.u#1"]),
        ("", ["db.v#1"]),
    ],
)
def test_a_rename_that_cannot_be_understood_holds_both_names(statement: str, held: list[str]) -> None:
    target = "db.u" if "`u`" in statement else "db.v"
    other = change(12, "a-t.x`y", CREATE, "CREATE TABLE `x``y` (id BIGINT PRIMARY KEY)", TABLE)
    made = versions(CREATED, OTHER, other, change(20, target, RENAME, statement, TABLE))[3:]
    assert sorted(version.incarnation for version in made) == held
    for version in made:
        check(version, "hold", hold=f"which table became {target}")


def test_a_rename_that_does_not_say_of_what_holds_the_table_of_that_name() -> None:
    version = versions(CREATED, change(20, "db.t", RENAME, "FROBNICATE", TABLE))[-1]
    check(version, "hold", hold="which table became db.t")


def held_by_text(database: str, table: str, statement: str) -> list[tuple[str, str, bool]]:
    """Of each version that a statement in the log makes: table, kind, and whether it is held."""
    live = history(CREATED, OTHER, change(12, "x.t", CREATE, "CREATE TABLE t (id INT PRIMARY KEY)", "id:int:pk"))
    made = live.apply([SchemaChange(20, database, table, None, statement, (), "o", kind="text")])
    return [(str(version.name), version.kind, version.hold is not None) for version in made]


@pytest.mark.parametrize(
    ("database", "table", "statement", "held"),
    [
        ("db", "t", "ALTER TABLE t DROP a, FROBNICATE x", ["db.t"]),
        ("db", "", "ALTER TABLE t DROP a, FROBNICATE z", ["db.t"]),
        ("db", "", "FROBNICATE `T`, x.t", ["db.t", "x.t"]),
        ("", "", "ALTER TABLE u FROBNICATE", ["db.u"]),
        ("", "", "FROBNICATE t", ["db.t", "x.t"]),
        ("db", "", "FROBNICATE tt", []),
        ("", "", "DELETE FROM t", ["db.t", "x.t"]),
    ],
)
def test_statement_not_understood_holds_tables_that_it_names(
    database: str, table: str, statement: str, held: list[str]
) -> None:
    not_understood = [(name, "not_understood", True) for name in held]
    assert held_by_text(database, table, statement) == (not_understood or [(f"{database}.", "not_understood", False)])


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER USER 'a'@'%' IDENTIFIED BY 'x'", "FLUSH TABLES t", "SAVEPOINT `t`", "RELEASE SAVEPOINT t", "BEGIN",
        "COMMIT", "ROLLBACK", "XA START X'01',X'',1", "# Dum", "/* t */", "DO SLEEP(1)", "CALL p1()", "ANALYZE TABLE t",
        "GRANT SELECT ON t TO c", "START TRANSACTION",
    ],
)  # fmt: skip
def test_statement_of_no_table_holds_none(statement: str) -> None:
    assert held_by_text("db", "", statement) == [("db.", "other", False)]


FOREIGN = "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES p (id) ON DELETE CASCADE,"


@pytest.mark.parametrize(
    ("clauses", "keys"),
    [
        ("", {"_ibfk_1": "ON DELETE CASCADE", "x": "ON DELETE SET NULL ON UPDATE CASCADE", "y": None}),
        ("DROP FOREIGN KEY T_IBFK_1, DROP CONSTRAINT `X`", {"y": None}),
        ("DROP FOREIGN KEY x, DROP FOREIGN KEY IF EXISTS y, RENAME z", {"_ibfk_1": "ON DELETE CASCADE"}),
        (
            "DROP FOREIGN KEY x, DROP KEY y, ADD CONSTRAINT t_ibfk_7 FOREIGN KEY (a) REFERENCES p (id),"
            " ADD FOREIGN KEY k (a) REFERENCES p (id), ADD b INT REFERENCES p (id) ON UPDATE CASCADE",
            {"_ibfk_1": "ON DELETE CASCADE", "y": None, "_ibfk_7": None, "k": None, "_ibfk_8": "ON UPDATE CASCADE"},
        ),
    ],
)
def test_foreign_keys_are_those_of_the_statements(clauses: str, keys: dict[str, str | None]) -> None:
    create = f"{FOREIGN} CONSTRAINT x FOREIGN KEY (a) REFERENCES p (id) ON DELETE SET NULL ON UPDATE CASCADE,"
    create += " CONSTRAINT y FOREIGN KEY (a) REFERENCES p (id) ON DELETE RESTRICT)"
    texts = [create, f"ALTER TABLE t {clauses}"][: 2 if clauses else 1]
    made = history(
        *(SchemaChange(n, "d", "t", None, text, (), f"o{n}", kind="text") for n, text in enumerate(texts, 1))
    )
    assert {key.name: key.actions for key in made.versions[-1].foreign_keys} == keys


def test_foreign_key_without_a_name_is_dropped_under_the_new_name_of_its_table() -> None:
    texts = (f"{FOREIGN} KEY (a))", "RENAME TABLE t TO u", "ALTER TABLE u DROP FOREIGN KEY u_ibfk_1")
    made = history(*(SchemaChange(n, "d", "", None, text, (), f"o{n}", kind="text") for n, text in enumerate(texts, 1)))
    assert [len(version.foreign_keys) for version in made.versions] == [1, 1, 0]


# --- What was dropped comes back ---

DROPPED = change(30, "db.t", DROP, "DROP TABLE t", TABLE)
RECOVER, BY_JOB = "RECOVER TABLE t", "RECOVER TABLE BY JOB 7"
AGAIN = change(32, "db.t", CREATE, "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b VARCHAR(9))", TABLE)
DROPPED_AGAIN = change(34, "db.t", DROP, "DROP TABLE t", TABLE)
UNKNOWN = "does not say what dropped the table"


@pytest.mark.parametrize(
    ("before", "query", "spec", "hold"),
    [
        ([DROPPED], RECOVER, TABLE, None),
        ([DROPPED], BY_JOB, TABLE, None),
        ([DROPPED, AGAIN, DROPPED_AGAIN], RECOVER, TABLE, None),
        ([DROPPED, AGAIN, DROPPED_AGAIN], BY_JOB, TABLE, UNKNOWN),
        ([], RECOVER, TABLE, "no statement in the log drops it"),
        ([change(30, "db.u", RENAME, "RENAME TABLE t TO u", TABLE)], RECOVER, TABLE, UNKNOWN),
        ([DROPPED], "RECOVER TABLE s", TABLE, UNKNOWN),
        ([DROPPED], "RECOVER TABLE t FROBNICATE", TABLE, UNKNOWN),
        ([change(30, "db", 2, "DROP DATABASE db")], RECOVER, TABLE, UNKNOWN),
        # The log has lost the DROP before the second CREATE.
        ([AGAIN, change(34, "db.u", RENAME, "RENAME TABLE t TO u", TABLE)], RECOVER, TABLE, UNKNOWN),
        (
            [DROPPED, change(32, "db.u", 25, "FLASHBACK TABLE t TO u", TABLE),
             change(34, "db.u", DROP, "DROP TABLE u")],
            RECOVER, TABLE, UNKNOWN,
        ),
        ([DROPPED], RECOVER, f"{TABLE} c", "other columns"),
        ([DROPPED], RECOVER, "id:bigint:pk a:bigint b:varchar", "other columns"),
        (
            [change(20, "db.t", DROP_COLUMN, "ALTER TABLE t DROP a", "id:bigint:pk b:varchar"), DROPPED],
            RECOVER, TABLE, None,
        ),
        (
            [DROPPED, change(32, "db.t", CREATE, "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT NOT NULL)",
                             "id:bigint:pk a:int:!null"),
             change(34, "db.t", DROP_COLUMN, "ALTER TABLE t DROP a", "id:bigint:pk"),
             change(36, "db.t", DROP, "DROP TABLE t", "id:bigint:pk")],
            RECOVER, "id:bigint:pk a:int:!null", "have no value in the log",
        ),
        (
            [change(20, "db.t", MODIFY, "ALTER TABLE t ADD c INT", f"{TABLE} c"),
             change(22, "db.t", MODIFY, "ALTER TABLE t DROP c", TABLE), DROPPED],
            RECOVER, f"{TABLE} c", None,
        ),
        (
            [change(20, "db.t", MODIFY, "ALTER TABLE t ADD c INT NOT NULL", f"{TABLE} c:int:!null"),
             change(22, "db.t", MODIFY, "ALTER TABLE t DROP c", TABLE), DROPPED],
            RECOVER, f"{TABLE} c:int:!null", None,
        ),
    ],
)  # fmt: skip
def test_table_that_comes_back_has_its_rows_or_is_held(
    before: list[SchemaChange], query: str, spec: str, hold: str | None
) -> None:
    made = versions(CREATED, *before, change(40, "db.t", 25, query, spec))
    dropped, last = made[-2], made[-1]
    if hold is not None:
        check(last, "hold", hold=hold, name=TableName("db", "t"))
        return
    returned = {column.name for column in last.columns} - {column.name for column in dropped.columns}
    note = f"column {returned.pop()} is back" if returned else None
    restored = RestoredRows(dropped.incarnation, dropped.commit_ts)
    check(last, "create", note=note, restored=restored, key_names=("id",))
    assert last.incarnation != dropped.incarnation
    before_that = [version for version in made[:-1] if version.incarnation == dropped.incarnation]
    ids = {column.name: column.id for version in before_that for column in version.columns}
    assert {column.name: column.id for column in last.columns}.items() <= ids.items()


def test_flashback_of_the_cluster_holds_every_table() -> None:
    made = versions(CREATED, OTHER, change(40, "", 62, "FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01'"))
    assert [(str(version.name), version.effect) for version in made[2:]] == [("db.t", "hold"), ("db.u", "hold")]


def test_column_dropped_before_a_table_that_came_back_holds_it_when_rows_have_it() -> None:
    """A statement alone does not say that the column is there again."""
    texts = (
        "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT)", "ALTER TABLE t DROP a", "DROP TABLE t", "RECOVER TABLE t",
    )  # fmt: skip
    row = SchemaChange(9, "d", "t", None, "", columns("id:bigint:pk a"), "r", kind="row")
    statements = (SchemaChange(n, "d", "t", None, text, (), f"o{n}", kind="text") for n, text in enumerate(texts, 1))
    check(versions(*statements, row)[-1], "hold", hold="columns that were dropped before (a)")
