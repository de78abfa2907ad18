"""Plans of schema changes, carried out on a table that is a list of columns.

As in Iceberg, the names in one step of a plan are those before the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from cdc_lakehouse.lake.current import typed_rows
from cdc_lakehouse.lake.current.typed_rows import LakeColumn, Plan, plan_evolution
from cdc_lakehouse.lake.iceberg_java import SchemaOperation

META = "_commit_ts"
TYPES = ["int", "long", "string", "decimal(10,2)", "decimal(12,2)", "timestamp"]
WIDENS = {("int", "long"), ("decimal(10,2)", "decimal(12,2)")}


@dataclass(frozen=True)
class Stored:
    """`field` is what Iceberg knows a column by: it is the same as long as values are read in place."""

    field: int
    name: str
    type: str


def carried_out(columns: list[Stored], operations: tuple[SchemaOperation, ...]) -> list[Stored]:
    """One `updateSchema()`: fails on a name that is not there, and on one that is there twice afterwards."""
    found, fields = [*columns], {column.name: column.field for column in columns}

    def place(name: str) -> int:
        return [column.field for column in found].index(fields[name])

    for operation in operations:
        match operation:
            case typed_rows.Add(name, type):
                # Iceberg takes no name that stands before the step; Spark makes no difference in case.
                assert name.lower() not in {known.lower() for known in fields}
                found.append(Stored(max(each.field for each in [*columns, *found]) + 1, name, type))
            case typed_rows.Drop(name):
                del found[place(name)]
            case typed_rows.Rename(name, new_name):
                found[place(name)] = replace(found[place(name)], name=new_name)
            case typed_rows.Widen(name, type):
                assert (found[place(name)].type, type) in WIDENS
                found[place(name)] = replace(found[place(name)], type=type)
            case typed_rows.Move(name, after):
                moved = found.pop([column.name for column in found].index(name))
                names = [column.name for column in found]
                found.insert(0 if after is None else names.index(after) + 1, moved)
    assert len({column.name for column in found}) == len(found)
    return found


@st.composite
def columns(draw: st.DrawFn) -> list[LakeColumn]:
    ids = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6, unique=True))
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=len(ids), max_size=len(ids), unique=True))
    return [LakeColumn(id, name, draw(st.sampled_from(TYPES))) for id, name in zip(ids, names, strict=True)]


@given(
    columns(), columns(), st.frozensets(st.integers(1, 8), max_size=2), st.lists(st.sampled_from("xyz"), unique=True)
)
def test_plan_ends_at_target_with_values_in_place_or_rewritten(
    current: list[LakeColumn], target: list[LakeColumn], converted: frozenset[int], leftover: list[str]
) -> None:
    """The lake's own columns stand behind, those that are left over go."""
    others = [(META, "long"), *((name, "int") for name in leftover)]
    order = [*((c.name, c.type) for c in current), *others]
    plan = plan_evolution(current, target, [name for name, _ in order], converted, leftover)
    table = [Stored(number, *each) for number, each in enumerate(order)]
    for step in plan.steps:
        table = carried_out(table, step)
    assert [(c.name, c.type) for c in table] == [*((c.name, c.type) for c in target), (META, "long")]
    known = {column.id: (number, column.type) for number, column in enumerate(current)}
    for stored, column in zip(table, target, strict=False):
        field, type = known.get(column.id, (None, ""))
        stays = (type == column.type or (type, column.type) in WIDENS) and column.id not in converted
        assert (stored.field == field) == stays and (stored.field < len(current)) == stays
        assert (column.id in plan.rewritten) == (field is not None and not stays)
    assert plan_evolution(target, target, [*(c.name for c in target), META]) == Plan((), ())


def test_default_is_of_new_columns_where_the_format_has_any() -> None:
    """Without defaults rows are written again."""
    have, target = [LakeColumn(1, "a", "int", 7)], [LakeColumn(1, "a", "string", "7"), LakeColumn(2, "b", "int", 5)]
    for current, defaults, expected, rewritten in (
        (have, True, [("a", None), ("b", 5)], (1,)),
        (target[:1], False, [("b", None)], (2,)),
        (target[:1], True, [("b", 5)], ()),
    ):
        plan = plan_evolution(current, target, ["a"], defaults=defaults)
        added = [(add.name, add.default) for step in plan.steps for add in step if isinstance(add, typed_rows.Add)]
        assert (added, plan.rewritten) == (expected, rewritten)
