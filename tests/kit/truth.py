"""The true rows of the data sets, as what a reader of the lake should see. Shares no code with the project.

Written from the type table of the design: source type → Iceberg type, and from the notation of `expected.json`.
"""

import base64
import datetime
import decimal
import json
import re
import struct
from collections.abc import Callable, Collection, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final


class Truth:
    """One data set's `expected.json`."""

    def __init__(self, dataset: Path) -> None:
        self.dataset = dataset
        self.expected: dict[str, Any] = json.loads((dataset / "expected.json").read_text(encoding="utf-8"))
        self.stages: list[dict[str, Any]] = self.expected["stages"]

    @property
    def protocol(self) -> str:
        return self.dataset.parent.name

    @property
    def source(self) -> dict[str, Any]:
        """What the configuration says of the sink."""
        source: dict[str, Any] = {"protocol": self.protocol, "date_separator": self.expected["sink"]["date"]}
        if self.protocol == "csv":
            encoder = self.expected["encoder"]
            source["csv"] = {
                **{name: encoder[name] for name in ("delimiter", "quote", "null")},
                "terminator": self.expected["sink"]["terminator"],
                "include-commit-ts": encoder["commit_ts"],
                "binary-encoding-method": encoder["binary"],
                "output-old-value": encoder["old_value"],
                "output-handle-key": encoder["handle_key"],
                "output-field-header": encoder["header"],
            }
        return source

    @property
    def ddl(self) -> list[dict[str, Any]]:
        return self.expected["ddl"]

    def events_by_segment(self, stage: int) -> dict[str, int]:
        """Events in each data file that is visible at a stage."""
        found: dict[str, int] = {}
        stages = json.loads((self.dataset / "stages.json").read_text(encoding="utf-8"))["stages"]
        for entry in stages[stage]["files"]:
            if not re.search(r"/CDC[\d_]+\.(json|csv)$", entry["path"]):
                continue
            content = (self.dataset / (entry.get("src") or f"tree/{entry['path']}")).read_bytes()
            found[entry["path"]] = content.count(b"\n") if self.protocol == "canal-json" else self._rows(content)
        return found

    def _rows(self, content: bytes) -> int:
        """Events of a csv file, by what its rows begin with; an UPDATE with old values is two rows."""
        encoder = self.expected["encoder"]
        quote, delimiter = (re.escape(encoder[key]) for key in ("quote", "delimiter"))
        name = rf"{delimiter}(?:(?!{delimiter}).)+"
        beginning = rf"(?m)^{quote}[IUD]{quote}{name}{name}{delimiter}\d{{15,}}"
        rows = re.findall(rf"{beginning}(?:{delimiter}(true|false))?", content.decode())
        return len(rows) - rows.count("true") // 2 if encoder["old_value"] else len(rows)

    def older(self) -> set[tuple[str, str]]:
        """Tables that no statement and no row of the log tells of."""
        log = " ".join(each["query"] for each in self.ddl)
        with_rows = {name for stage in range(len(self.stages)) for name, t in self.tables(stage).items() if t["rows"]}
        return {
            name for name in self.tables(len(self.stages) - 1) if name not in with_rows and f"`{name[1]}`" not in log
        }

    def tables(self, stage: int) -> dict[tuple[str, str], dict[str, Any]]:
        return {(table["schema"], table["table"]): table for table in self.stages[stage]["tables"]}


_TYPES: Final = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "year"), "int"),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "binary"),
    "float": "float", "double": "double", "date": "date", "datetime": "timestamp", "timestamp": "timestamptz",
    "vector": "list<float>",
}  # fmt: skip


def iceberg_type(mysql: str) -> str:
    base, unsigned = re.match(r"\w+", mysql)[0], "unsigned" in mysql
    numbers = [int(n) for n in re.findall(r"\d+", mysql)] if base in ("decimal", "bit") else []
    match base:
        case "int":
            return "long" if unsigned else "int"
        case "bigint":
            return "decimal(20, 0)" if unsigned else "long"
        case "decimal":
            return f"decimal({numbers[0]}, {numbers[1]})" if numbers[0] <= 38 else "string"
        case "bit":
            return "decimal(20, 0)" if numbers[0] == 64 else "long"
        case _:
            return _TYPES.get(base, "string")


_BITS: Final[dict[str, Callable[[Any], Any]]] = {
    "float": lambda cell: ("float", struct.pack("f", float(cell))),
    "double": lambda cell: ("double", struct.pack("d", float(cell))),
    "list<float>": lambda cell: ("vector", tuple(struct.pack("f", float(x)) for x in cell)),
}
_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    **_BITS, "int": int, "long": int, "decimal": decimal.Decimal,
    "date": datetime.date.fromisoformat, "timestamp": datetime.datetime.fromisoformat,
    "timestamptz": lambda cell: datetime.datetime.fromisoformat(cell).replace(tzinfo=datetime.UTC),
}  # fmt: skip


def true_value(cell: Any, mysql: str) -> Any:
    """A cell of `expected.json` as Python value of the Iceberg type; zero and partial dates are NULL by default
    policy."""
    kind = iceberg_type(mysql).partition("(")[0]
    day = re.findall(r"\d+", cell)[:3] if kind in ("date", "timestamp", "timestamptz") and cell is not None else ()
    if cell is None or not all(map(int, day)):
        return None
    if mysql.startswith("json"):
        # JSON's null, as against SQL's.
        return ("json", json.dumps(None if cell == {"json": None} else cell, sort_keys=True))
    if isinstance(cell, dict):
        return base64.b64decode(cell["b64"])
    return _VALUES[kind](cell) if kind in _VALUES else cell


def seen_value(value: Any, mysql: str) -> Any:
    kind = iceberg_type(mysql).partition("(")[0]
    if value is None:
        return None
    if mysql.startswith("json"):
        return ("json", json.dumps(json.loads(value), sort_keys=True))
    if kind in _BITS:
        return _BITS[kind](value)
    return value.astimezone(datetime.UTC) if kind == "timestamptz" else value


def true_rows(table: dict[str, Any]) -> list[tuple[Any, ...]]:
    types = [column["type"] for column in table["columns"]]
    rows = [tuple(true_value(cell, type) for cell, type in zip(row, types, strict=True)) for row in table["rows"]]
    return sorted(rows, key=repr)


def differences(
    table: Any, columns: Sequence[tuple[str, str]], rows: Sequence[Any], *, left_out: Collection[str] = ()
) -> dict[str, Any]:
    """By column, what a table of the lake has other than a server that shows these rows: cells of `text` and `hex`."""
    wrong, arrow = dict[str, Any](), table.scan().to_arrow()
    for place, (column, kind) in enumerate(columns):
        if column in left_out:
            continue
        wanted = sorted(repr(_shown(row[place], kind)) for row in rows)
        values = arrow[column].to_pylist()
        if kind == "float":
            values = [value if value is None else f"{value:.5e}" for value in values]
        else:
            values = [seen_value(value, kind) for value in values]
        both = zip_longest(wanted, sorted(map(repr, values)))
        if unequal := [pair for pair in both if pair[0] != pair[1]]:
            wrong[f"{column} {kind}"] = unequal[:4]
    return wrong


def _shown(cell: dict[str, Any], kind: str) -> Any:
    text, digits = cell["text"], cell["hex"]
    if digits is None:
        return None
    if kind.startswith("bit"):
        return true_value(int(digits, 16), kind)
    if iceberg_type(kind) == "binary":
        return bytes.fromhex(digits)
    if kind == "float":
        return f"{float(text):.5e}"  # The server prints six digits.
    return true_value(json.loads(text) if kind == "json" else text, kind)
