"""Events by the key of the row that they change, on their way to the tasks that apply them, and their images as
columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from cdc_lakehouse.lake.current.typed_rows import LakeColumn, Plan, plan_evolution
from cdc_lakehouse.lake.iceberg_java import SchemaOperation
from tests.boundaries import update as product
from tests.boundaries.update import Column, TableVersion, keyed_events

Image = dict[str, str | None] | None
SCHEMA: Final = pa.schema([product.EVENTS.field(name) for name in product.CHANGE_COLUMNS])
ODD_NAMES: Final = [
    "*", "a.b", "", "0", "#", "$", "$.a", "[0]", "a/b", "~", "~1", "~0", "/", "//", "'", '"', "\\", "a b", "名", "😀",
    "VARCHAR",
]  # fmt: skip

# --- Keys ---


def event(
    op: str, before: Image, after: Image, commit_ts: int = 10, table: str = "t", *, synthetic: bool = False
) -> dict[str, Any]:
    return {
        "schema_name": "d", "table_name": table, "op": op, "commit_ts": commit_ts, "before": product.image_text(before),
        "after": product.image_text(after), "segment": "s", "line": 7, product.SYNTHETIC: synthetic,
    }  # fmt: skip


def keyed(events: Sequence[dict[str, Any]], *spans: keyed_events.KeyedSpan) -> list[dict[str, Any]]:
    """Keyed events, which are the same where Python reads the images, as it does with large ones."""
    found = keyed_events.KeyedSpans(spans).keyed(pa.Table.from_pylist(list(events), SCHEMA))
    with patch.object(keyed_events, "LARGE_IMAGE", -1):
        assert keyed_events.KeyedSpans(spans).keyed(pa.Table.from_pylist(list(events), SCHEMA)).equals(found)
    assert found.schema == keyed_events.KEYED_EVENTS
    return found.to_pylist()


NAMES: Final = ("id", "a/b", "~", "v")
names = st.sampled_from(NAMES) | st.sampled_from(ODD_NAMES)
images = st.none() | st.dictionaries(names, st.sampled_from(["1", "2", "", "null", "\0😀", None]))


@st.composite
def spans_of(draw: st.DrawFn) -> list[keyed_events.KeyedSpan]:
    found: list[keyed_events.KeyedSpan] = []
    for number, table in enumerate("tuv"):
        ends = sorted(draw(st.sets(st.integers(0, 26), max_size=6)))
        for version, (above, upto) in enumerate(itertools.pairwise(ends)):
            if draw(st.booleans()):
                key = tuple((name, None) for name in draw(st.lists(names, max_size=3, unique=True)))
                found.append(keyed_events.KeyedSpan(number, version, "d", table, above, upto, key))
    return draw(st.permutations(found))


def expected(
    event: dict[str, Any], spans: Sequence[keyed_events.KeyedSpan], before: Image, after: Image
) -> list[dict[str, Any]]:
    stage = 2 * event["commit_ts"] + event[product.SYNTHETIC]
    found: list[dict[str, Any]] = []
    for each in spans:
        if each.table != event["table_name"] or not each.above < stage <= each.upto:
            continue
        image = before if after is None else after
        key = [(image or {}).get(name) for name, _ in each.key]
        row = {
            "table_no": each.table_no, "key": key, "stage": stage, "upsert": event["op"] != "D",
            "is_insert": event["op"] == "I", "version_no": each.version_no, "commit_ts": event["commit_ts"],
            "image": event["after"], "segment": "s", "line": 7,
        }  # fmt: skip
        found.append(row)
        if event["op"] == "U" and before is not None:
            old = [before.get(name, part) for (name, _), part in zip(each.key, key, strict=True)]
            if old != key:
                found.append({**row, "key": old, "upsert": False, "image": None})
    return found


_TWO: Final = [keyed_events.KeyedSpan(0, 3, "d", "t", 0, 100, (("a", None), ("b", None)))]


@given(st.lists(st.tuples(st.sampled_from("IUD"), images, images, st.integers(1, 12), st.sampled_from("tuw"),
                          st.booleans()), max_size=12), spans_of())  # fmt: skip
@example([("U", {"a": "2"}, {"a": "1", "b": None}, 9, "t", False), ("D", {"a": "1"}, None, 10, "t", True),
          ("U", {"b": "2"}, {"a": "1", "b": "3"}, 9, "t", False), ("U", {}, {"a": "1"}, 9, "t", False)],
         _TWO)  # fmt: skip
@example([("U", dict.fromkeys(ODD_NAMES, "1\0😀"), dict.fromkeys(ODD_NAMES, "2"), 9, "t", False)],
         [keyed_events.KeyedSpan(0, 0, "d", "t", 0, 100, tuple((name, None) for name in ODD_NAMES))])  # fmt: skip
def test_events_are_keyed_by_the_spans_they_are_in(rows: list[Any], spans: list[keyed_events.KeyedSpan]) -> None:
    events = [event(op, before, after, ts, table, synthetic=moved) for op, before, after, ts, table, moved in rows]
    wanted = [
        each
        for made, (_, before, after, *_) in zip(events, rows, strict=True)
        for each in expected(made, spans, before, after)
    ]
    assert sorted(map(repr, keyed(events, *spans))) == sorted(map(repr, wanted))


# --- Shares of tasks ---


def test_shares_of_a_reader_have_each_file_once_and_equal_sizes() -> None:
    files = [product.StoredFile(f"f{number}", size, 1) for number, size in enumerate([90, 10, 20, 30, 40, 50])]
    reader = product.EventReader(tuple(files[:4]), product.TableFiles(Schema(), "file:///x"))
    shares = replace(reader, earlier=(replace(reader, files=tuple(files[4:])),)).shares(3)
    assert sorted(file.path for share in shares for file in share.files) == ["f0", "f1", "f2", "f3"]
    assert sorted(file.path for share in shares for file in share.earlier[0].files) == ["f4", "f5"]
    sizes = [sum(file.size for file in (*share.files, *share.earlier[0].files)) for share in shares]
    assert sorted(sizes) == [70, 80, 90]


# --- Images as columns ---

INT, TEXT = product.ColumnType.of("int"), product.ColumnType.of("varchar", length=20)


def version_of(table: str, *columns: Column) -> TableVersion:
    return TableVersion(1, product.TableName("d", table), f"d.{table}#1", "create", "create", "", "", columns)


def of_names(*names: str, virtual: str | None = None) -> TableVersion:
    return version_of("t", *(Column(id, name, TEXT, carried=name != virtual) for id, name in enumerate(names, 1)))


def read(version: TableVersion, *images: str | None, wanted: set[int] | None = None) -> list[dict[str, Any]]:
    """A row for each image: the same in one query, as among many usual ones, and image by image."""
    whole = _read(version, images, wanted)
    usual = [product.image_text({column.name: "x" for column in version.columns})] * 300
    assert whole == _read(version, [*images, *usual], wanted)[: len(images)]
    assert whole == [row for image in images for row in _read(version, [image], wanted)]
    return whole


def _read(version: TableVersion, images: Any, wanted: set[int] | None) -> list[dict[str, Any]]:
    events = pa.table({"image": pa.array(images, pa.string())})
    columns = {column.id for column in version.columns} if wanted is None else wanted
    texts, strange, absent = product.typed_rows.row_images(events, version, columns)
    return pa.table({**texts, "strange": strange, "absent": absent}).to_pylist()


AVB: Final = of_names("a", "v", "b", virtual="v")
texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def test_absent_and_repeated_members_of_images() -> None:
    usual, none = '{"a":"1","b":"2"}', {"t1": None, "t3": None, "strange": False, "absent": True}
    row = {"t1": "1", "t3": "2", "strange": False, "absent": False}
    assert read(AVB, usual, None, "{}", '{"a":"1","b":"2","a":"1"}') == [row, none, none, {**row, "strange": True}]
    assert read(AVB, usual, wanted={3, 9}) == [{"t3": "2", "strange": False, "absent": False}]
    assert read(AVB, usual, wanted=set()) == [{"strange": False, "absent": False}]


# --- Plans of schema changes, carried out on a table that is a list of columns. As in Iceberg, the names in one step
# of a plan are those before the step. ---

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
        name, type, after = operation.name, operation.type, operation.after
        match operation.do:
            case "add":
                # Iceberg takes no name that stands before the step; Spark makes no difference in case.
                assert name.lower() not in {known.lower() for known in fields}
                found.append(Stored(max(each.field for each in [*columns, *found]) + 1, name, type))
            case "drop":
                del found[place(name)]
            case "rename":
                found[place(name)] = replace(found[place(name)], name=operation.new_name)
            case "widen":
                assert (found[place(name)].type, type) in WIDENS
                found[place(name)] = replace(found[place(name)], type=type)
            case "move":
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
        added = [(add.name, add.default) for step in plan.steps for add in step if add.do == "add"]
        assert (added, plan.rewritten) == (expected, rewritten)
