"""Files of cases that people read: blocks between blank lines, whose indented lines are the results.

    # A subject; lines with `@` begin each case below it
    @ given: something
    input: a
      what comes out

`python -m pytest TESTS --update` writes the results anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

INDENT = "  "


@dataclass
class Case:
    """`given` are the lines of its subject that begin with `@`, and its own."""

    file: Path
    number: int
    given: list[str]
    results: list[str]
    own: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.file.stem}: {'; '.join(self.own)}"[:100]

    def compare(self, results: Sequence[str], *, update: bool) -> None:
        if update:
            _rewrite(self, results)
        else:
            assert list(results) == self.results


def read_cases(*files: Path) -> list[Case]:
    return [case for file in files for case in _cases(file)]


def _cases(file: Path) -> Iterator[Case]:
    shared: list[str] = []
    for number, block in enumerate(_blocks(file)):
        lines = block.splitlines()
        if lines[0].startswith("# "):
            shared = []
        shared += [line[2:] for line in lines if line.startswith("@ ")]
        own = [line for line in lines if not line.startswith(("# ", "@ ", INDENT))]
        if own:
            results = [line.removeprefix(INDENT) for line in lines if line.startswith(INDENT)]
            yield Case(file, number, [*shared, *own], results, own)


def _blocks(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").strip("\n").split("\n\n")


def _rewrite(case: Case, results: Sequence[str]) -> None:
    blocks = _blocks(case.file)
    inputs = [line for line in blocks[case.number].splitlines() if not line.startswith(INDENT)]
    blocks[case.number] = "\n".join([*inputs, *(f"{INDENT}{line}" for line in results)])
    case.file.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
