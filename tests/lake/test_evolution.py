"""Plans of schema changes, carried out on a table that is a list of columns.

As in Iceberg, the names in one step of a plan are those before the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.lake.current import schema_plan
from cdc_lakehouse.lake.current.schema_plan import LakeColumn, Plan, plan_evolution
from cdc_lakehouse.lake.table_operations import SchemaOperation

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
        self.next_field = len(columns)

    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def find(self, name: str) -> Stored:
        (found,) = [column for column in self.columns if column.name == name]
        return found

    def step(self, operations: tuple[SchemaOperation, ...]) -> None:
        """One `updateSchema()`: fails on a name that is not there, and on one that is there twice afterwards."""
        before = {column.name: column.field for column in self.columns}

        def place(name: str) -> int:
            return [column.field for column in self.columns].index(before[name])

        for operation in operations:
            match operation:
                case schema_plan.Add(name, type):
                    # Iceberg takes no name that stands before the step; Spark makes no difference in case.
                    assert name.lower() not in {known.lower() for known in before}
                    self.columns.append(Stored(self.next_field, name, type))
                    self.next_field += 1
                case schema_plan.Drop(name):
                    del self.columns[place(name)]
                case schema_plan.Rename(name, new_name):
                    self.columns[place(name)] = replace(self.columns[place(name)], name=new_name)
                case schema_plan.Widen(name, type):
                    assert (self.columns[place(name)].type, type) in WIDENS
                    self.columns[place(name)] = replace(self.columns[place(name)], type=type)
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

    def carried_out(self) -> Table:
        table = Table([*((c.name, c.type) for c in self.current), (META, "long")])
        for step in self.plan.steps:
            table.step(step)
        return table


@st.composite
def evolutions(draw: st.DrawFn) -> Evolution:
    id_lists = st.lists(st.integers(1, 8), min_size=1, max_size=6, unique=True)
    current, target = columns_of(draw, draw(id_lists)), columns_of(draw, draw(id_lists))
    converted = frozenset(draw(st.sets(st.integers(1, 8), max_size=2)))
    plan = plan_evolution(current, target, [*(c.name for c in current), META], converted)
    return Evolution(current, target, converted, plan)


@given(evolutions())
def test_a_plan_ends_at_the_target(evolution: Evolution) -> None:
    # The lake's own columns stand behind.
    wanted = [*((c.name, c.type) for c in evolution.target), (META, "long")]
    assert [(c.name, c.type) for c in evolution.carried_out().columns] == wanted


@given(evolutions())
def test_values_stay_with_their_column_or_are_rewritten(evolution: Evolution) -> None:
    table = evolution.carried_out()
    field_of = {column.id: number for number, column in enumerate(evolution.current)}
    types = {column.id: column.type for column in evolution.current}
    for column in evolution.target:
        field = table.find(column.name).field
        readable = types.get(column.id) == column.type or (types.get(column.id), column.type) in WIDENS
        in_place = column.id in types and readable and column.id not in evolution.converted
        assert (field in field_of.values()) == in_place
        if in_place:
            assert field == field_of[column.id]
        assert (column.id in evolution.plan.rewritten) == (column.id in types and not in_place)


@given(evolutions(), st.sets(st.sampled_from("xyz"), min_size=1))
def test_columns_that_are_left_over_go(evolution: Evolution, names: set[str]) -> None:
    leftover = sorted(names)
    order = [*(c.name for c in evolution.current), META, *leftover]
    plan = plan_evolution(evolution.current, evolution.target, order, evolution.converted, leftover)
    table = Table([*((c.name, c.type) for c in evolution.current), (META, "long"), *((n, "int") for n in leftover)])
    for step in plan.steps:
        table.step(step)
    assert table.names() == [*(c.name for c in evolution.target), META]


@given(evolutions())
def test_a_table_that_is_at_the_target_has_an_empty_plan(evolution: Evolution) -> None:
    columns = evolution.current
    plan = plan_evolution(columns, columns, [*(c.name for c in columns), META])
    assert plan == Plan((), ())


def test_a_default_is_of_new_columns_only() -> None:
    target = [LakeColumn(1, "a", "string", "7"), LakeColumn(2, "b", "int", 5)]
    plan = plan_evolution([LakeColumn(1, "a", "int", 7)], target, ["a"])
    added = [(add.type, add.default) for step in plan.steps for add in step if isinstance(add, schema_plan.Add)]
    assert added == [("string", None), ("int", 5)]


def test_without_defaults_rows_are_written_again() -> None:
    target = [LakeColumn(1, "a", "int", 7), LakeColumn(2, "b", "int", 5), LakeColumn(3, "c", "int")]
    plan = plan_evolution(target[:1], target, ["a"], defaults=False)
    added = [(add.name, add.default) for step in plan.steps for add in step if isinstance(add, schema_plan.Add)]
    assert (added, plan.rewritten) == ([("b", None), ("c", None)], (2,))
