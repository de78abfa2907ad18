"""Scenarios as text (`tests/scenarios/README.md`): what a small database does, when the feed runs, and what its tables
hold then."""

import contextlib
import datetime
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest

import cdc_lakehouse
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.commands.decisions import replay_rows
from cdc_lakehouse.errors import CdcError, TransientError
from cdc_lakehouse.lake.tables import lease
from cdc_lakehouse.operate import maintenance
from cdc_lakehouse.operate.state import conservation, uncounted_lines
from cdc_lakehouse.pipeline.reading import NotReadableError
from cdc_lakehouse.pipeline.steps import Steps
from tests import TURN
from tests.commands import call
from tests.kit.changefeed import Changefeed, Damage, table_name
from tests.kit.kafka import MemoryTopic
from tests.kit.kills import SAID, KillAtCommit, before_commit, kill_everywhere, open_catalog
from tests.kit.lakes import NewLake, TestLake, check_events, divide_tables, let_spark_do_all, run_all
from tests.kit.log import FIRST_TS, Column, Ddl, Entry, RowChange, Table, fold, same, seen

DIRECTORY: Final = Path(__file__).parents[1] / "scenarios"
_SOURCES: Final[dict[str, dict[str, Any]]] = {
    "json": {},
    "csv": {"protocol": "csv", "csv": {"include-commit-ts": True}},
    "csv-old": {"protocol": "csv", "csv": {"include-commit-ts": True, "output-old-value": True}},
    "topic": {"type": "kafka", "format": "ticdc-canal-json", "bootstrap_servers": "localhost:1", "topics": ["cdc"]},
}
_VALUE: Final = re.compile(r"'((?:[^']|'')*)'|(\S+)")
_AFTER: Final = ("dates", "rebuild", "at-once")
_MODES: Final = {"killed", "everywhere", "beside", "kept", "jobs", "divided", "v2", *_AFTER}
_KINDS: Final = {f"update {name}" for name in ("checkpoints", "events", "frontier", "schema_history", "segments")} | {
    "update quarantine", "insert table", "update table", "rename table",
}  # fmt: skip
_STOPS: Final = {"run", "maintain", "plan"}
_AFTER_RUN: Final = {
    "held", "=", "shows", "fails", "gone", "purged", "same-files", "open", "says", "states", "effect", "note", "aside",
    "mark", "read", "files", "deletes", "events", "segments", "copies", "plans", "warns",
}  # fmt: skip


class ScenarioError(AssertionError):
    """A scenario that is not as it says."""


@dataclass(frozen=True)
class Step:
    line: int
    verb: str
    rest: str


@dataclass(frozen=True)
class Scenario:
    """`not_in`: the words of ways that do not play it."""

    name: str
    steps: list[Step] = field(default_factory=list[Step])
    not_in: set[str] = field(default_factory=set[str])

    @property
    def fails(self) -> bool:
        return any(step.verb == "fails" for step in self.steps)

    @property
    def runs(self) -> int:
        return sum(step.verb in _STOPS for step in self.steps)

    @property
    def fellows(self) -> object:
        """What those have in common that can be played side by side: the settings of the whole feed, and what is like a
        run, by its number. Runs that fail are of one scenario alone, which ends with them."""
        runs = itertools.accumulate(step.verb in _STOPS for step in self.steps)
        of_all = ("feed", *_STOPS - {"run"})
        steps = [(run, step.verb, step.rest) for run, step in zip(runs, self.steps, strict=True) if step.verb in of_all]
        return *steps, *sorted(self.not_in & {"dates", "rebuild"}), self.name if self.fails else ""


@dataclass(frozen=True)
class File:
    """`others`: the ways that a run with a seed may leave out."""

    ways: list[str]
    others: list[str]
    scenarios: list[Scenario]

    def played(self, way: str, only: str | None = None) -> list[Scenario]:
        words = set(way.split()).difference(_AFTER)
        return [each for each in self.scenarios if not each.not_in & words and only in (None, each.name)]


def files() -> dict[str, File]:
    return {path.stem: load(path) for path in sorted(DIRECTORY.glob("*.txt"))}


def load(path: Path) -> File:
    file, steps = File([], [], []), None
    blocks: dict[str, list[Step]] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        kind, rest = _head(line := text.strip())
        if not line or kind.startswith("#"):
            continue
        match kind:
            case "ways:" | "or:":
                source, *modes = rest.split()
                assert source in _SOURCES and set(modes) <= _MODES, f"{path.name}: {rest}"
                (file.ways if kind == "ways:" else file.others).append(rest)
            case "--":
                steps = blocks[rest] = []
            case "==":
                file.scenarios.append(Scenario(rest))
                steps = file.scenarios[-1].steps
            case "not":
                words, _, reason = rest.partition(": ")
                assert reason, f"{path.name}:{number}: say why"
                file.scenarios[-1].not_in.update(words.split())
            case _:
                assert steps is not None, f"{path.name}:{number}: {line}"
                for part in line.split(" ; "):
                    step = Step(number, *_head(part.strip()))
                    steps += blocks[step.rest] if step.verb == "do" else [step]
    scenarios = file.scenarios
    assert file.ways and scenarios, path
    for each in scenarios:
        last = next((step for step in reversed(each.steps) if step.verb not in _AFTER_RUN), None)
        assert last and last.verb in _STOPS, f"{path.name}: no run plays the last steps of {each.name!r}"
    unplayed = {each.name for each in scenarios} - {each.name for way in file.ways for each in file.played(way)}
    assert not unplayed, f"{path.name}: {unplayed} are played in no way"
    return file


def _head(text: str) -> tuple[str, str]:
    """The first word, which quotes can hold together, and the rest."""
    found = _VALUE.match(text)
    return ("", "") if found is None else (found[1] or found[2], text[found.end() :].strip())


# --- Text ---


def values(text: str) -> list[str | None]:
    """Values as text, divided by blanks: `null` is NULL, quotes hold blanks."""
    return [
        None if bare == "null" else bare or quoted.replace("''", "'")
        for quoted, bare in ((match[1], match[2]) for match in _VALUE.finditer(text))
    ]


def rows(text: str) -> list[tuple[str | None, ...]]:
    return sorted((tuple(values(part)) for part in text.split("|") if part.strip()), key=repr)


def columns(text: str) -> tuple[tuple[Column, ...], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Of `id int key, v varchar(20) default x from w, n int new`: columns, key and where values come from."""
    made: list[Column] = []
    key: list[str] = []
    origins: list[tuple[str, str]] = []
    for part in re.split(r",(?![^(]*\))", text):
        name, kind, *words = (word or "" for word in values(part))
        default = words[words.index("default") + 1] if "default" in words else None
        made.append(Column(name, kind, default))
        if "key" in words:
            key.append(name)
        if "from" in words:
            origins.append((name, words[words.index("from") + 1]))
        elif "new" in words:
            origins.append((name, ""))
    return tuple(made), tuple(key), tuple(origins)


# --- One scenario in its database ---


@dataclass
class Player:
    scenario: Scenario
    database: str
    feed: Changefeed
    clock: Iterator[int]
    met: bool = False
    """By another writer: after its last cut it can have written the same rows once more."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the whole feed."""
    at: int = 0
    excluded: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """As of the last run, with what is said of each."""
    wanted: list[Step] = field(default_factory=list[Step])
    """What is to be after the next run; what it rebuilds, and whether it decodes each date."""
    rebuilt: set[TableName] = field(default_factory=set[TableName])
    decodes_again: bool = False
    _good: dict[str, Any] = field(default_factory=dict)
    """What tables hold as of the last run that did not hold them."""
    _spoiled: list[RowChange] = field(default_factory=list)
    _given_up: list[RowChange] = field(default_factory=list)
    _lost: list[RowChange] = field(default_factory=list)
    _undo: list[Callable[[], object]] = field(default_factory=list)
    _marks: dict[str, int] = field(default_factory=dict)
    _files: dict[str, set[str]] = field(default_factory=dict)
    _files_before: dict[str, set[str]] = field(default_factory=dict)
    _styles: Iterator[int] = field(default_factory=itertools.count)

    def advance(self, lake: TestLake) -> str:
        """Up to the next run, what is like one, or a checkpoint; gives which."""
        for at, step in enumerate(self.scenario.steps[self.at :], self.at + 1):
            if step.verb in {*_STOPS, "checkpoint"}:
                following = self.scenario.steps[at:] if step.verb != "checkpoint" else []
                self.wanted = [*itertools.takewhile(lambda each: each.verb in _AFTER_RUN, following)]
                self.at = at + len(self.wanted)
                return f"{step.verb} {step.rest}".strip()
            try:
                self._do(step.verb, step.rest, lake)
            except Exception as error:
                raise ScenarioError(f"line {step.line} of {self.scenario.name!r}: {error!r}") from error
        return ""

    def _do(self, verb: str, rest: str, lake: TestLake) -> None:
        table, more = _head(rest)
        match verb:
            case "flush":
                self.feed.flush(int(rest or 9))
            case "midnight":
                self.feed.date += 1
            case "restart":
                self.feed.restart(0 if rest else None)
            case "exclude":
                self.excluded.append(self._pattern(rest))
            case "include":
                self.excluded.remove(self._pattern(rest))
            case "take":
                self.taken = [self._pattern(each) for each in rest.split()]
            case "settings":
                self.settings[self._pattern(table)] = json.loads(more)
            case "feed":
                self.options |= json.loads(rest)
            case "spoil":
                self._spoiled.append(self.feed.spoil(_damage(rest)))
            case "cut":
                path = self.feed.files(table)[-1]
                path.write_bytes(path.read_bytes()[: -int(more)])
            case "lose" | "blank":
                path = self.feed.files(table)[-1]
                self._lost += self.feed.entries_of(path)
                self._write(path, b"" if verb == "blank" else None)
            case "schema":
                path = max((self.feed.sink / Path(*self._pair(table)) / "meta").glob("schema_*.json"))
                old, _, new = more.encode().partition(b" => ")
                content = path.read_bytes()
                assert more == "lose" or old in content, content
                self._write(path, None if more == "lose" else content.replace(old, new))
            case "expire":
                for path in self.feed.files(table):
                    path.unlink()
            case "unreadable":
                path = Path(lake.tables()[self._pair(table)].metadata_location.removeprefix("file:"))
                self._write(path, path.read_bytes()[:200] if more == "cut" else None)
            case "remove":
                lake.lake.catalog.drop_table(lake.tables()[self._pair(table)].name())
            case "refuse":
                database, name = self._pair(more)
                where = f"OLD.table_name = '{name}' AND OLD.table_namespace = '{lake.name}__{database}'"
                trigger = f"test_{database}_{name}_{table}"
                refuse = "BEGIN SELECT RAISE(ABORT, 'the catalog refuses this'); END"

                def execute(statement: str) -> None:
                    with open_catalog(lake) as catalog:
                        catalog.execute(statement)

                execute(f"CREATE TRIGGER {trigger} BEFORE {table} ON iceberg_tables WHEN {where} {refuse}")
                self._undo.append(lambda: execute(f"DROP TRIGGER {trigger}"))
            case "rebuild":
                self.rebuilt.add(TableName(*self._pair(table)))
            case "decode-again":
                self.decodes_again = True
            case "command":
                words, _, text = more.partition(" => ")
                done = call(*self._named(words).split(), config=lake.config_path)
                assert done.exit_code == int(table) and self._named(text) in done.output, done.output
            case "overwrite":
                *_, before, last = self.feed.files(table)
                last.replace(before)
            case "mend":
                assert self._spoiled or self._undo, "nothing is spoiled"
                self.feed.mend()
                for undo in self._undo:
                    undo()
                self._spoiled, self._given_up, self._lost, self._undo = [], [], [], []
            case "mend-unseen":
                self.feed.mend(unseen=True)
                self._spoiled = []
            case "discard" | "replay":
                run = lake.run()
                chosen = [row for row in run.quarantine.rows if (row.database, row.table) == self._pair(table)]
                if verb == "replay":
                    assert replay_rows(run, chosen)[0]
                    self._given_up = []
                    return
                ids = [row.id for row in run.quarantine.open() if row in chosen][: int(more or 1)]
                assert len(run.quarantine.discard(set(ids), "ann", "test data", run.clock())) == int(more or 1)
                self._given_up = list(self._spoiled)
            case "&":
                self._log(*_head(rest), next_ts=False)
            case _:
                self._log(verb, rest)

    def _log(self, verb: str, rest: str, *, next_ts: bool = True) -> None:
        parts = rest.split(" | ") if verb in ("put", "del") else [rest]
        name, parts[0] = _head(parts[0])
        for number, part in enumerate(parts):
            at = next(self.clock) if next_ts or number else self.feed.entries[-1].commit_ts
            self.feed.send(self._entry(at, verb, name, part))

    def _entry(self, at: int, verb: str, name: str, rest: str) -> Entry:
        table = self.feed.tables.get(name, Table([], (), {}))
        match verb:
            case "put":
                row = dict(zip((column.name for column in table.columns), values(rest), strict=True))
                before = table.rows.get(table.key_of(row), (None, 0))[0] if table.key else None
                return RowChange(at, name, None if before is None else dict(before), row, style=next(self._styles))
            case "del":
                return RowChange(at, name, dict(table.rows[tuple(values(rest))][0]), None, style=next(self._styles))
            case "set":
                *words, last = values(rest)
                words = words if last == "partial" else [*words, last]
                before = dict(table.rows[tuple(words[: len(table.key)])][0])
                changed = dict((word or "").split("=", 1) for word in words[len(table.key) :])
                after = {**before, **{column: None if text == "null" else text for column, text in changed.items()}}
                kept = {column for column in before if column not in changed} - set(table.key)
                return RowChange(
                    at, name, before, after, frozenset(kept if last == "partial" else ()), next(self._styles)
                )
            case "create" | "older":
                inner, more = _in_parentheses(rest)
                made, key, _ = columns(inner)
                how, text = _head(more)
                partition, by = (text, "") if how == "partition" else (None, text)
                return Ddl(at, name, verb, made, key, partition, query=by)
            case "drop" | "truncate":
                return Ddl(at, name, verb)
            case "rename" | "recover":
                return Ddl(at, name, "rename table" if verb == "rename" else verb, new_name=_head(rest)[0])
            case "exchange":
                partition, other, *how = rest.split()
                return Ddl(at, name, "exchange", name=partition, new_name=other, query="".join(f" {x}" for x in how))
            case "alter":
                how, text = _head(rest)
                return self._entry(at, f"alter {how}", name, text)
            case "alter add":
                definition, first = rest.removesuffix(" first"), rest.endswith(" first")
                return Ddl(at, name, "add", column=columns(definition)[0][0], first=first)
            case "alter drop":
                return Ddl(at, name, "drop column", name=rest)
            case "alter rename":
                old, new = (each or "" for each in values(rest))
                return Ddl(at, name, "rename column", name=old, new_name=new)
            case "alter modify":
                (column,) = columns(rest)[0]
                return Ddl(at, name, "retype", name=column.name, column=column)
            case "alter key":
                return Ddl(at, name, "rekey", key=tuple(each or "" for each in values(rest)))
            case "alter drop-key":
                return Ddl(at, name, "drop key")
            case "alter drop-partition" | "alter truncate-partition":
                partition, _, left = rest.partition(" leaving ")
                kind = "drop partition" if verb == "alter drop-partition" else "truncate partition"
                return Ddl(at, name, kind, name=partition, leaving=tuple(rows(left)) if left else None)
            case "alter unpartition":
                return Ddl(at, name, "remove partitioning")
            case "alter sql":
                action, more = _head(rest)
                inner, query = _in_parentheses(more)
                made, key, origins = columns(inner)
                return Ddl(at, name, "alter", made, key, query=query, action=int(action), origins=origins)
            case _:
                raise ValueError(f"{verb} is not a step")

    def _pattern(self, table: str) -> str:
        return ".".join(self._pair(table))

    def _named(self, text: str) -> str:
        return re.sub(r"@(\w+)", lambda found: self._pattern(found[1]), text)

    def _write(self, path: Path, content: bytes | None) -> None:
        """Until it is mended; None: the file is not there."""
        self._undo.append(functools.partial(path.write_bytes, path.read_bytes()))
        path.unlink()
        if content is not None:
            path.write_bytes(content)

    def _pair(self, table: str) -> tuple[str, str]:
        name = table_name(self.database, table)
        return name.database, name.table

    def _local(self, database: str, table: str) -> str:
        return table if database == self.database else f"{database.removeprefix(f'{self.database}_')}.{table}"

    @property
    def all_tables(self) -> tuple[str, str]:
        return f"{self.database}.*", f"{self.database}_*.*"

    def owns(self, database: str) -> bool:
        return database == self.database or database.startswith(f"{self.database}_")

    # --- What must be ---

    def model(self, upto: int) -> dict[str, Table]:
        # A feed can continue without what it cannot use.
        skips = self.options.get("policy", {}).get("quarantine") == "skip"
        left_out = [*(self._spoiled if skips else self._given_up), *self._lost]
        entries = [entry for entry in self.feed.entries if not any(entry is each for each in left_out)]
        return fold(entries, upto)

    def check_plan(self, said: str) -> None:
        for step in self.wanted:
            unsaid = [text for text in step.rest.split(" | ") if self._named(text) not in said]
            assert step.verb == "plans" and not unsaid, f"line {step.line}, {step.verb}: {unsaid} of {said}"

    def check(self, lake: TestLake, done: Steps) -> None:
        """After a run that belongs to one of the scenario's."""
        held = [step.rest.partition(" because ") for step in self.wanted if step.verb == "held"]
        self.held = {table: text for table, _, text in held}
        told = {verb: {_head(step.rest)[0] for step in self.wanted if step.verb == verb} for verb in ("=", "shows")}
        self.check_tables(lake, done, told["="], unlike_model=told["shows"])
        for step in self.wanted:
            try:
                self._expect(step.verb, *_head(step.rest), lake, done)
            except Exception as error:
                raise ScenarioError(f"line {step.line}, {step.verb} {step.rest}: {error!r}") from error

    def check_tables(
        self, lake: TestLake, done: Steps, told: Set[str] = frozenset(), *, unlike_model: Set[str] = frozenset(),
        late: bool = False,
    ) -> None:  # fmt: skip
        """`told`: tables whose rows the scenario says. `late`: in a lake that has seen nothing of before."""
        upto, held = done.published.cut.checkpoint_ts, dict[str, str]()
        for id, reason in done.applied.held.items():
            life = done.applied.lives.get(id)
            database, _, table = id.partition("#")[0].partition(".")
            name = (life.last.name.database, life.last.name.table) if life else (database, table)
            if self.owns(name[0]):
                held[self._local(*name)] = reason
        assert held.keys() == self.held.keys(), f"held: {held}, not {self.held}"
        wrong = {
            name: held[name]
            for name, text in self.held.items()
            if not any(self._named(x) in held[name] for x in text.split(" / "))
        }
        assert not wrong, f"held for another reason: {wrong}"
        good, model = {} if late else self._good, self.model(upto)
        expected = {name: table.typed() for name, table in model.items()}
        excluded = {name for name in {*expected, *good} if not self._takes(name)}
        live = {self._local(*name): table for name, table in lake.tables().items() if self.owns(name[0])}
        for name, table in live.items():
            assert conservation(table).holds, f"{name}: {conservation(table)}"
            stays = name in excluded or name in self.held
            is_told = name in told and (stays or name not in expected or not model[name].key)
            right = (good if stays else expected).get(name)
            if name in unlike_model or is_told:
                continue
            if right is None and name not in excluded:
                # Of one that was never published nobody reads anything; a held one has its earlier name still.
                assert name in self.held or (name in good and self.held), f"table {name} is live"
                continue
            same(f"table {name}", seen(table.schema(), table.scan()), right)
        missing = expected.keys() - live.keys() - excluded - self.held.keys()
        assert not missing, f"no tables {missing}"
        lost = (self.held.keys() & good.keys() & expected.keys()) - live.keys() - excluded
        assert not lost, f"held tables {lost} are gone"
        cut = {
            self._local(row["database"], row["table"]): (row["row_count"], row["snapshot_id"])
            for row in lake.machinery("checkpoints")
            if row["checkpoint_ts"] == upto and self.owns(row["database"])
        }
        shown = {
            name: (live[name].scan().count(), live[name].metadata.current_snapshot_id)
            for name in live.keys() - excluded - self.held.keys()
        }
        for name, (count, snapshot) in cut.items():
            if self.met and name in shown and snapshot != shown[name][1]:
                then = live[name].scan(snapshot_id=snapshot)
                same(f"cut of {name}", _texts(then.to_arrow()), _texts(live[name].scan().to_arrow()))
                cut[name] = (count, shown[name][1])
        same("rows and snapshots of the cut", {name: n for name, n in cut.items() if name not in excluded}, shown)
        self._files, self._files_before = {name: _files(table) for name, table in live.items()}, self._files
        if not late:
            self._good.update({name: rows for name, rows in expected.items() if name not in {*excluded, *self.held}})

    def _takes(self, name: str) -> bool:
        taken, excluded = (any(fnmatchcase(self._pattern(name), x) for x in of) for of in (self.taken, self.excluded))
        return (taken or not self.taken) and not excluded

    @staticmethod
    def _machinery(lake: TestLake, name: str, pair: tuple[str, str]) -> list[dict[str, Any]]:
        of = ("schema_name", "table_name") if name == "events" else ("database", "table")
        return [row for row in lake.machinery(name) if tuple(row[each] for each in of) == pair]

    def _expect(self, verb: str, table: str, rest: str, lake: TestLake, done: Steps) -> None:
        pair, words = self._pair(table), sorted(rest.split())
        quarantine = self._machinery(lake, "quarantine", pair) if verb in ("open", "states", "says") else []
        match verb:
            case "=" | "shows":
                same("rows", _texts(lake.tables()[pair].scan().to_arrow().drop(["_commit_ts"])), rows(rest))
            case "gone":
                assert pair not in lake.tables()
            case "purged":
                place = f"{lake.name}__{pair[0]}"
                assert f"{place}.{table}" not in lake.metadata()
                assert not list((lake.warehouse / place / table).rglob("*.parquet"))
            case "aside":
                namespace = f"{lake.name}__{pair[0]}"
                named = [name for name in lake.lake.catalog.list_tables(namespace) if name[1].startswith(table)]
                aside = [lake.lake.catalog.load_table(name) for name in named]
                (dropped,) = [each for each in aside if "cdc.dropped-ts" in each.properties]
                same("rows", _texts(dropped.scan().to_arrow().drop(["_commit_ts"])), rows(rest))
            case "open":
                same(verb, sorted(row["error_class"] for row in quarantine if row["state"] == "open"), words)
            case "states":
                same(verb, sorted(row["state"] for row in quarantine), words)
            case "says":
                messages = [row["message"] for row in quarantine if row["state"] == "open"]
                texts = rest.split(" | ")
                unsaid = [text for text in texts if not any(text in message for message in messages)]
                assert not unsaid and len(messages) == len(texts), f"{unsaid} of {messages}"
            case "effect" | "note":
                last = max(self._machinery(lake, "schema_history", pair), key=lambda row: row["commit_ts"])
                assert rest == last["effect"] if verb == "effect" else rest in last["note"], last
            case "same-files":
                assert self._files[table] == self._files_before[table]
            case "held":
                assert table in self.held
            case "files":
                same("files", len(_files(lake.tables()[pair])), int(rest))
            case "deletes":
                number, *kinds = words
                same(verb, int(lake.tables()[pair].current_snapshot().summary["total-delete-files"]), int(number))
                found = lake.tables()[pair].inspect.delete_files()["file_format"].to_pylist() if kinds else ()
                same(verb, {kind.lower() for kind in found}, {*kinds})
            case "events":
                same(verb, len(self._machinery(lake, "events", pair)), int(rest))
            case "segments":
                same(verb, sorted(row["kind"] for row in self._machinery(lake, "segments", pair)), words)
            case "copies":
                archive = lake.warehouse / f"cdc_{lake.name}" / "archive"
                copies = [path for path in archive.rglob("*") if path.is_file() and self.database in path.parts]
                same("copies", len(copies), int(table))
            case "warns":
                assert any(f"{table} {rest}" in each for each in done.landed.faults), done.landed.faults
            case "mark":
                self._marks[table] = done.published.cut.checkpoint_ts
            case "read":
                self._read(lake, ".".join(pair), *rest.removeprefix("at ").split(" ", 2))
            case _:
                raise ValueError(f"{verb} is not a step")

    def _read(self, lake: TestLake, name: str, mark: str, how: str, rest: str = "") -> None:
        at = None if mark == "now" else self._marks[mark.removesuffix("-1")] - mark.endswith("-1")
        if how == "refused":
            with pytest.raises(NotReadableError) as refused:
                cdc_lakehouse.read(lake.config, name, as_of=at)
            assert re.search(rest, str(refused.value)), refused.value
            return
        found = cdc_lakehouse.read(lake.config, name, as_of=at, last_good=how == "last-good")
        same("rows", _texts(found.drop(["_commit_ts"])), rows(rest.removeprefix("= ")))


def _in_parentheses(text: str) -> tuple[str, str]:
    """What stands in the first parentheses, which can hold others, and what comes after them."""
    found = re.match(r"\(((?:[^()]|\([^()]*\))*)\)", text)
    assert found, text
    return found[1], text[found.end() :].strip()


def _damage(text: str) -> Damage:
    if text == "garbage":
        return lambda change, line: "garbage"
    if " => " in text:
        old, new = text.split(" => ")
        pattern = re.compile(old[1:-1] if old.startswith("/") else re.escape(old))
        new = "" if new == "nothing" else new if old.startswith("/") else new.replace("\\", "\\\\")
        return lambda change, line: pattern.sub(new, line(change))
    changed = dict((word or "").split("=", 1) for word in values(text))
    return lambda change, line: line(replace(change, row={**change.row, **changed}))


def _texts(table: Any) -> list[tuple[str | None, ...]]:
    cells = [column.to_pylist() for column in table.columns]
    found = (tuple(None if cell is None else str(cell) for cell in row) for row in zip(*cells, strict=True))
    return sorted(found, key=repr)


def _files(table: Any) -> set[str]:
    return {task.file.file_path for task in table.scan().plan_files()}


# --- All of a file ---


def play(file: File, way: str, new_lake: NewLake, patch: pytest.MonkeyPatch, only: str | None = None) -> None:
    """All scenarios of a file that a way can carry."""
    source, *modes = way.split()
    after = [mode for mode in modes if mode in _AFTER]
    if after and TURN is not None:
        modes = [
            mode for mode in modes if mode not in after or mode == after[(TURN + len(file.scenarios)) % len(after)]
        ]
    if "jobs" in modes:
        let_spark_do_all(patch)
    if "divided" in modes:
        divide_tables(patch)
    scenarios = file.played(way, only)
    assert scenarios, "no scenario is played in this way"
    hits: list[str] = []
    groups: dict[object, list[Scenario]] = {}
    for each in scenarios:
        groups.setdefault(each.fellows, []).append(each)
    for group in groups.values():
        left_out = {*_AFTER} if group[0].fails else group[0].not_in - {"at-once"}
        hits += _Feed(group, set(modes) - left_out, source, new_lake, patch).play()
    assert hits or not {"beside", "kept"} & set(modes), "nothing was met"
    if "killed" in modes and only is None:
        kinds = {re.sub(r" s\d+\..*", " table", hit) for hit in hits}
        wanted = _KINDS if any("all kinds of commit" in each.name for each in scenarios) else {"update table"}
        assert kinds >= wanted, kinds


def _kills(first: int) -> Iterator[int]:
    """The commits that runs are killed at, one after the other: of a run with a seed each third."""
    return itertools.count(first) if TURN is None else itertools.count(first + TURN % 3, 3)


class _Feed:
    def __init__(
        self, scenarios: Sequence[Scenario], modes: Set[str], source: str, new_lake: NewLake, patch: pytest.MonkeyPatch
    ) -> None:
        self._modes, self._source, self._new_lake, self._patch = modes, source, new_lake, patch
        self._clock, self._later = itertools.count(FIRST_TS, 1 << 18), datetime.timedelta()
        self._settings = {"format_version": 2} if "v2" in modes else {}
        self.lake = new_lake(**self._settings, source=_SOURCES[source])
        met = bool({"beside", "kept"} & modes)
        topic = MemoryTopic(patch).writer if source == "topic" else None
        csv, old_values = source.startswith("csv"), source == "csv-old"
        self.players = [
            Player(each, f"s{n}", Changefeed(self.lake.sink, csv, old_values, f"s{n}", topic), self._clock, met)
            for n, each in enumerate(scenarios, 1)
        ]

    def _configure(self, lake: TestLake, also: Sequence[str] = ()) -> None:
        options = self.players[0].options
        source = {**_SOURCES[self._source], **options.get("source", {})}
        taken = [pattern for each in self.players for pattern in each.taken or each.all_tables]
        tables = {
            "include": taken if any(each.taken for each in self.players) else ["*.*"],
            "exclude": [*(pattern for each in self.players for pattern in each.excluded), *also],
            "settings": {name: each for player in self.players for name, each in player.settings.items()},
        }
        lake.configure(**{**self._settings, **options, "source": source, "tables": tables})

    def play(self) -> list[str]:
        """Gives the commits that runs were killed after."""
        hits: list[str] = []
        done = None
        for number in range(max(each.scenario.runs for each in self.players)):
            playing = [each for each in self.players if each.at < len(each.scenario.steps)]
            before = {each.database: each.advance(self.lake) for each in playing}
            verb, _, days = next(iter(before.values())).partition(" ")
            self._configure(self.lake)
            if verb == "maintain":
                assert done is not None, "nothing has run yet"
                self._maintain(int(days), killed="killed" in self._modes)
                self._each(playing, verb, lambda player, ran=done: player.check(self.lake, ran))
                continue
            upto = next(self._clock)
            for player in self.players:
                player.feed.flush(9)
            for player in self.players:
                player.feed.checkpoint(upto)
            for player in playing:
                if before[player.database] == "checkpoint":
                    verb = player.advance(self.lake)
                    assert verb in {"run", "plan"}
                    player.feed.flush(9)
            self._configure(self.lake)
            if verb == "plan":
                # It takes no lease either.
                with self.lake.without_changes(but=""):
                    said = call("plan", config=self.lake.config_path).output
                self._each(playing, verb, lambda player, said=said: player.check_plan(said))
                continue
            options = {
                "rebuild": frozenset().union(*(each.rebuilt for each in playing)),
                "dates": self._dates() if any(each.decodes_again for each in playing) else frozenset(),
                "clock": self._now,
            }
            for player in playing:
                player.rebuilt, player.decodes_again = set(), False
            wanted = playing[0].wanted
            if wanted and wanted[0].verb == "fails":
                assert len(self.players) == len(wanted) == 1, "a run that fails is that of a scenario alone"
                with pytest.raises(CdcError, match=wanted[0].rest):
                    run_all(self.lake.run(**options))
                continue
            if "killed" in self._modes:
                done = self._killed(number, hits, options)
            else:
                if {"beside", "kept"} & self._modes:
                    hits += self._met(2 + 3 * number + len(self.players) % 3)
                done = run_all(self.lake.run(**options))
            assert done.published.cut.checkpoint_ts == upto
            self._each(playing, f"run {number + 1}", lambda player, ran=done: player.check(self.lake, ran))
        self.lake.check_nothing_to_do()
        check_events(self.lake)
        assert uncounted_lines(self.lake.run()) == []
        if "dates" in self._modes:
            self._final("each date again", self.lake, self.players, dates=self._dates())
            self.lake.check_nothing_to_do()
        if "rebuild" in self._modes:
            self._final("rebuilt", self.lake, self.players, rebuild=self.lake.names())
        if "at-once" in self._modes:
            self._at_once()
        return hits

    def _dates(self) -> frozenset[str]:
        rows = self.lake.machinery("records" if self._source == "topic" else "segments")
        dates = frozenset({row["feed_date"] for row in rows} - {None})
        assert dates
        return dates

    def _maintain(self, days: int, *, killed: bool) -> None:
        """So many days later, and killed further and further first. Runs that follow list all of the source."""
        self._later = datetime.timedelta(days=days)
        # To look for orphan files takes most of the time, and commits nothing.
        self._patch.setattr(maintenance, "RULES", [each for each in maintenance.RULES if each.name != "orphan_files"])
        # The process of a killed one is gone, and a lease that cannot be written is not waited for.
        self._patch.setattr(lease, "_is_gone", lambda _: True)
        self._patch.setattr(maintenance, "_PATIENCE", datetime.timedelta(0))
        for number in _kills(1) if killed else [1000]:
            before = self.lake.all_rows()
            with KillAtCommit(number)(self.lake) as kill:
                work = maintenance.Maintenance(self.lake.feed, self.lake.lake, self.lake.session, clock=self._now)
                if deferred := [each.deferred for each in work.maintain().tables if each.deferred is not None]:
                    raise RuntimeError(SAID if killed else f"not maintained: {deferred}")
            assert self.lake.all_rows() == before, kill.commits
            if not kill.happened:
                assert number > 3, "it had nothing to do"
                return

    def _now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + self._later

    def _met(self, number: int) -> list[str]:
        """A run that another one meets between two commits, or maintenance: neither asks for the lease."""
        met: list[str] = []

        def other() -> None:
            met.append(f"before commit {number}")
            if "kept" in self._modes:
                self._maintain(2, killed=False)
            else:
                run_all(self.lake.run())

        with before_commit(number, other), contextlib.suppress(TransientError):
            run_all(self.lake.run())
        return met

    def _killed(self, number: int, hits: list[str], options: dict[str, Any]) -> Steps:
        """Runs of which each gets further than the one before, until one gets through; by how far, the seed chooses."""
        if "everywhere" in self._modes:
            hits += kill_everywhere(self.lake, lambda: run_all(self.lake.run(**options)))
            return run_all(self.lake.run(**options))
        for commit in _kills(2 + number % 3):
            found: list[Steps] = []
            with KillAtCommit(commit)(self.lake) as killed:
                found.append(run_all(self.lake.run(**options)))
            if not killed.happened:
                return found[0]
            hits.append(killed.commits[-1])
        raise AssertionError

    def _at_once(self) -> None:
        left_out = [each for each in self.players if "at-once" in each.scenario.not_in]
        late = self._new_lake()
        if self._source != "topic":
            late.sink.symlink_to(self.lake.sink)
        self._configure(late, [pattern for each in left_out for pattern in each.all_tables])
        self._final("at once", late, [each for each in self.players if each not in left_out])

    def _final(self, what: str, lake: TestLake, players: Sequence[Player], **options: Any) -> None:
        done, late = run_all(lake.run(**options)), lake is not self.lake
        self._each(players, what, lambda player: player.check_tables(lake, done, late=late), lake)

    def _each(
        self, players: Sequence[Player], when: str, check: Callable[[Player], None], lake: TestLake | None = None
    ) -> None:
        wrong: list[str] = []
        with (lake or self.lake).unchanged():
            for player in players:
                try:
                    check(player)
                except AssertionError as error:
                    wrong.append(f"{player.scenario.name} ({player.database}), {when}: {error}")
        if wrong:
            raise ScenarioError("\n\n".join(wrong))
