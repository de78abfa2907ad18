"""Plans of schema changes, carried out on a table that is a list of columns.

As in Iceberg, the names in one step of a plan are those before the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.lake.current import schema_plan
from cdc_lakehouse.lake.current.schema_plan import LakeColumn, Plan, SchemaOperation, plan_evolution

META = "_commit_ts"
TYPES = ["int", "long", "string", "decimal(10,2)", "decimal(12,2)", "timestamp"]
WIDENS = {("int", "long"), ("decimal(10,2)", "decimal(12,2)")}


@dataclass(frozen=True)
class Stored:
    """`field` is what Iceberg knows a column by: it is the same as long as values are read in place."""

    field: int
    name: str
    type: str


class Table:
    def __init__(self, columns: list[tuple[str, str]]) -> None:
        self.columns = [Stored(number, name, type) for number, (name, type) in enumerate(columns)]

    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def find(self, name: str) -> Stored:
        (found,) = [column for column in self.columns if column.name == name]
        return found

    def step(self, operations: tuple[SchemaOperation, ...]) -> None:
        """One `updateSchema()`: fails on a name that is not there, and on one that is there twice afterwards."""
        before = {column.name: column for column in self.columns}
        for operation in operations:
            match operation:
                case schema_plan.Add(name, type):
                    self.columns.append(Stored(max((c.field for c in self.columns), default=0) + 1, name, type))
                case schema_plan.Drop(name):
                    self.columns.remove(before[name])
                case schema_plan.Rename(name, new_name):
                    self.columns[self.columns.index(before[name])] = replace(before[name], name=new_name)
                case schema_plan.Widen(name, type):
                    assert (before[name].type, type) in WIDENS
                    self.columns[self.columns.index(before[name])] = replace(before[name], type=type)
                case schema_plan.Move(name, after):
                    moved = self.find(name)
                    self.columns.remove(moved)
                    self.columns.insert(0 if after is None else self.names().index(after) + 1, moved)
        assert len(set(self.names())) == len(self.names()), self.names()


def columns_of(draw: st.DrawFn, ids: list[int]) -> list[LakeColumn]:
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=len(ids), max_size=len(ids), unique=True))
    return [LakeColumn(id, name, draw(st.sampled_from(TYPES))) for id, name in zip(ids, names, strict=True)]


@dataclass(frozen=True)
class Evolution:
    current: list[LakeColumn]
    target: list[LakeColumn]
    converted: frozenset[int]
    plan: Plan

    def carried_out(self) -> tuple[Table, Table]:
        """The table when rows are written, and when the plan is published."""
        written, published = (Table([*((c.name, c.type) for c in self.current), (META, "long")]) for _ in range(2))
        for table in (written, published):
            table.step(self.plan.before)
        for step in self.plan.publish:
            published.step(step)
        return written, published


@st.composite
def evolutions(draw: st.DrawFn) -> Evolution:
    id_lists = st.lists(st.integers(1, 8), min_size=1, max_size=6, unique=True)
    current, target = columns_of(draw, draw(id_lists)), columns_of(draw, draw(id_lists))
    converted = frozenset(draw(st.sets(st.integers(1, 8), max_size=2)))
    plan = plan_evolution(current, target, [*(c.name for c in current), META], converted)
    return Evolution(current, target, converted, plan)


@given(evolutions())
def test_a_plan_ends_at_the_target_and_nothing_that_readers_see_goes_before_the_rows_are_published(
    evolution: Evolution,
) -> None:
    written, published = evolution.carried_out()
    # The lake's own columns stand behind.
    wanted = [*((c.name, c.type) for c in evolution.target), (META, "long")]
    assert [(c.name, c.type) for c in published.columns] == wanted
    before = [*(c.name for c in evolution.current), META]
    assert [(c.field, c.name) for c in written.columns[: len(before)]] == list(enumerate(before))
    assert set(evolution.plan.staged) == set(written.names()[len(before) :])


@given(evolutions())
def test_values_stay_with_their_column_or_are_rewritten(evolution: Evolution) -> None:
    plan = evolution.plan
    written, published = evolution.carried_out()
    field_of = {column.id: number for number, column in enumerate(evolution.current)}
    types = {column.id: column.type for column in evolution.current}
    rewritten = {id: (old, new) for id, old, new in plan.rewritten}
    for column in evolution.target:
        field = published.find(column.name).field
        readable = types.get(column.id) == column.type or (types.get(column.id), column.type) in WIDENS
        in_place = column.id in types and readable and column.id not in evolution.converted
        assert (field in field_of.values()) == in_place
        if in_place:
            assert field == field_of[column.id]
        assert (column.id in rewritten) == (column.id in types and not in_place)
        if column.id in rewritten:
            old, new = rewritten[column.id]
            assert written.find(old).field == field_of[column.id] and written.find(new).field == field
        # Rows are written under the name that the plan says.
        assert written.find(dict(plan.names)[column.id]).field == field


@given(evolutions())
def test_a_table_that_is_at_the_target_has_an_empty_plan(evolution: Evolution) -> None:
    columns = evolution.current
    plan = plan_evolution(columns, columns, [*(c.name for c in columns), META])
    assert not plan.changes_schema and not plan.rewritten


def test_a_default_is_of_new_columns_only() -> None:
    target = [LakeColumn(1, "a", "string", "7"), LakeColumn(2, "b", "int", 5)]
    plan = plan_evolution([LakeColumn(1, "a", "int", 7)], target, ["a"])
    added = [(each.type, each.default) for each in plan.before if isinstance(each, schema_plan.Add)]
    assert added == [("string", None), ("int", 5)]


def test_a_new_column_never_stands_beside_one_that_differs_in_case_only() -> None:
    key = LakeColumn(1, "k", "int")
    current, target = [key, LakeColumn(2, "name", "int")], [key, LakeColumn(3, "NAME", "string")]
    plan = plan_evolution(current, target, ["k", "name", META])
    written = ["k", "name", META, *plan.staged]
    assert len({name.lower() for name in written}) == len(written)
