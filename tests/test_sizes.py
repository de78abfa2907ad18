"""How large the project may be: lines and modules of each package, in Python and Java.

A change that makes a package smaller lowers its number here. A raise is a commit of its own that says why.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Lines and modules, without generated code.
BUDGETS = {
    "cdc_lakehouse/assets": (1_968, 8),
    "cdc_lakehouse/changelog": (4_460, 15),
    "cdc_lakehouse/commands": (4_048, 17),
    "cdc_lakehouse/config": (1_677, 7),
    "cdc_lakehouse/decoders": (4_848, 19),
    "cdc_lakehouse/lake": (9_626, 27),
    "cdc_lakehouse/operate": (1_838, 6),
    "cdc_lakehouse/pipeline": (5_124, 15),
    "cdc_lakehouse/sample": (606, 3),
    "cdc_lakehouse/sources": (4_915, 18),
    "cdc_lakehouse/*.py": (817, 5),
    "tests": (27_981, 132),
}
# How far below its budget a package may be before the budget has to follow.
SLACK = 120


def size(place: str) -> tuple[int, int]:
    """Lines and modules of a package with all below it, or of the modules that a pattern names."""
    files = ROOT.glob(place) if place.endswith(".py") else (ROOT / place).rglob("*.[pj]*")
    modules = [file for file in files if file.suffix in (".py", ".java") and not file.name.endswith("_pb2.py")]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in modules), len(modules)


@pytest.mark.parametrize("place", BUDGETS)
def test_size_is_within_its_budget(place: str) -> None:
    lines, modules = size(place)
    most_lines, most_modules = BUDGETS[place]
    assert lines <= most_lines, f"{place}: {lines} lines, {most_lines} are budgeted: find the rest in the package"
    assert modules <= most_modules, f"{place}: {modules} modules, {most_modules} are budgeted"
    assert lines >= most_lines - SLACK, f"{place}: {lines} lines: lower its budget of {most_lines}"


def test_every_package_has_a_budget() -> None:
    packages = {f"cdc_lakehouse/{path.parent.name}" for path in ROOT.glob("cdc_lakehouse/*/__init__.py")}
    assert packages == {place for place in BUDGETS if place.startswith("cdc_lakehouse/") and "*" not in place}
