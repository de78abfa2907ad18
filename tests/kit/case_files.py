"""Files of cases that people read: blocks between blank lines, whose indented lines are the results.

    # A subject; lines with `@` begin each case below it
    @ given: something
    input: a
      what comes out

`python -m pytest TESTS --update` writes the results anew.
"""

import copy
import functools
import json
import re
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INDENT = "  "


class Settings(UserDict[str, Any]):
    """Notes in `asked` for which names it was asked."""

    asked: set[object]

    def __contains__(self, name: object) -> bool:
        self.asked.add(name)
        return super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


@dataclass
class Case:
    """`shared` are the lines of its subject that begin with `@`, `own` those of the case."""

    file: Path
    number: int
    shared: list[str]
    results: list[str]
    own: list[str]
    asked: set[object] | None = field(default_factory=set[object])

    def __str__(self) -> str:
        return f"{self.file.stem}: {'; '.join(self.own)}"[:100]

    @property
    def given(self) -> list[str]:
        """All lines, for a test that refuses those that it does not know."""
        self.asked = None
        return [*self.shared, *self.own]

    @property
    def settings(self) -> Settings:
        """Of its subject: lines `@ name: value` with values in JSON, `@ name = value` with values in text."""
        found = Settings()
        found.asked = set() if self.asked is None else self.asked
        for line in self.shared:
            name, sign, value = re.split("( = |: )", line, maxsplit=1)
            found[name] = value if sign == " = " else json.loads(value)
        return found

    def compare(self, results: Sequence[str], *, update: bool) -> None:
        """Settings for which nobody asked are misspelt, or change nothing."""
        assert self.asked is None or self.asked >= {*self.settings.data}, self.shared
        if not update:
            assert list(results) == self.results
            return
        blocks = _blocks(self.file)
        inputs = [line for line in blocks[self.number].splitlines() if not line.startswith(INDENT)]
        blocks[self.number] = "\n".join([*inputs, *(f"{INDENT}{line}" for line in results)])
        self.file.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def evaluated(case: Case, names: Mapping[str, Any]) -> list[str]:
    """What each line of a case gives, as an expression of `names`, or as text for the function that a line
    `@ of = NAME` of its subject names; once where all give the same. Errors are their types and texts."""
    function = names[case.settings["of"]] if "of" in case.settings else None
    found = list[str]()
    for line in case.own:
        try:
            value = eval(line, dict(names)) if function is None else function(line)
        except Exception as error:  # noqa: BLE001  It is the result, with its type.
            value = f"{type(error).__name__}: {error}"
        found.append(text_of(value if isinstance(value, str) else repr(value)))
    return found[:1] if len(set(found)) == 1 else found


def read_cases(*files: Path) -> list[Case]:
    cases, shared = list[Case](), list[str]()
    for path, (number, block) in ((file, each) for file in files for each in enumerate(_blocks(file))):
        lines = block.splitlines()
        if number == 0 or lines[0].startswith("# "):
            shared = []
        shared += [line[2:] for line in lines if line.startswith("@ ")]
        own = [line for line in lines if not line.startswith(("# ", "@ ", INDENT))]
        results = [line.removeprefix(INDENT) for line in lines if line.startswith(INDENT)]
        assert own or not results, f"{path}: results of no case: {block}"
        if own:
            cases.append(Case(path, number, [*shared], results, own))
    assert files and {case.file for case in cases} == {*files}, f"no cases: {files}"
    return cases


def _blocks(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").strip("\n").split("\n\n")


# --- Bytes in case files ---

_NOTATION = re.compile("⟨([^⟩]+)×([0-9]+)⟩|⟨([0-9a-f ]+)⟩|([\u2400-\u2421])|([^⟨\u2400-\u2421]+)")
_LONG = re.compile(r"(.)\1{39,}")


def bytes_of(text: str) -> bytes:
    """The bytes of a text with control characters as their pictures (`␊`), `⟨ff 00⟩` for bytes that are not characters
    and `⟨[×1000⟩` for what is repeated."""
    found = b""
    for part, times, digits, picture, plain in _NOTATION.findall(text):
        if part:
            found += part.encode() * int(times)
        elif picture:
            found += bytes([0x7F if picture == "␡" else ord(picture) - 0x2400])
        else:
            found += bytes.fromhex(digits) or plain.encode()
    return found


def text_of(content: bytes | str) -> str:
    """The text of which `bytes_of` makes these bytes."""
    text = content if isinstance(content, str) else content.decode(errors="surrogateescape")
    written = "".join(map(_written, text))
    if written.startswith(" "):
        written = f"␠{written[1:]}"
    if written.endswith(" "):
        written = f"{written[:-1]}␠"
    return _LONG.sub(lambda found: f"⟨{found[1]}×{len(found[0])}⟩", written)


@functools.cache
def _written(char: str) -> str:
    if char.isprintable() and not "\u2400" <= char <= "\u2421":
        return char
    if char < " ":
        return chr(0x2400 + ord(char))
    return "␡" if char == "\x7f" else f"⟨{char.encode(errors='surrogateescape').hex(' ')}⟩"


# --- JSON in case files ---


def edited(base: Mapping[str, Any], lines: Sequence[str]) -> bytes:
    """A JSON object after edits: `path = value` (JSON) sets a name, `path -` removes it, `a ~> b` replaces text of the
    result, and `raw text` is all of it."""
    made, replaced = copy.deepcopy(dict(base)), list[tuple[bytes, bytes]]()
    for line in lines:
        path, assigned, value = line.partition(" = ")
        if line.startswith("raw "):
            return bytes_of(line[4:])
        if " ~> " in line:
            before, _, after = line.partition(" ~> ")
            replaced.append((bytes_of(before), bytes_of(after)))
            continue
        *within, name = path.removesuffix(" -").split(".")
        inner = made
        for step in within:
            inner = inner[step]
        if assigned:
            inner[name] = json.loads(value)
        else:
            del inner[name]
    text = json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    for before, after in replaced:
        assert before in text, before
        text = text.replace(before, after, 1)
    return text
