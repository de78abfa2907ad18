"""Logs of DDL, and the table versions that they make: `cases/*.txt`; and that a history is the same however it is read.

A line is an entry of the log: `[TS[/MS] ]TABLE: STATEMENT` as topics and Canal servers have it, perhaps with the time
of its execution, `[TS ]TABLE row a=int b=` for the columns of a row, or `[TS ]TABLE ACTION [a:int:pk b]: STATEMENT` for
a schema file, with TiDB's number and the columns that it shows. Lines are 10 apart. The results are the versions after
those of the subject's `first` lines: each column with its identity, `!` where it cannot be NULL, `*` in the key, `~`
where rows do not carry it, and `=` with what older rows hold. Each log is also played with its names in another letter
case, which is a result where it differs; where a subject says `files`, as the schema files that a sink would have,
which make the same.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lakehouse.changelog.history import History, LogEntry, schema_changes
from cdc_lakehouse.changelog.mysql_types import type_text
from cdc_lakehouse.changelog.schema import Column, SchemaChange, TableVersion
from tests.changelog.statements import CREATE, columns, files_of, history, in_any_case, in_odd_case, verdicts
from tests.chaos import history as chaos
from tests.kit.case_files import Case, bytes_of, read_cases, text_of
from tests.kit.changefeed import Changefeed

CASES = read_cases(*sorted(Path(__file__).parent.glob("cases/*.txt")))
Entry = SchemaChange | LogEntry
_LINE = re.compile(
    r"(?:(?P<ts>\d+)(?:/(?P<time>\d+))? )?(?P<table>\S*?)"
    r"(?: row(?P<row>(?: \S+=.*)?)| (?P<action>\d+) \[(?P<spec>.*?)\]: ?(?P<file>.*)|: (?P<text>.*))"
)


def entries(lines: Sequence[str], odd: bool = False) -> list[Entry]:
    found: list[Entry] = []
    for number, line in enumerate(lines, 1):
        parts = _LINE.fullmatch(line)
        assert parts is not None, line
        ts = int(parts["ts"] or 10 * number)
        database, _, table = parts["table"].partition(".")
        origin, query = f"{parts['table']}@{ts}", bytes_of(parts["file"] or parts["text"] or "").decode()
        if odd and int(parts["action"] or 0) != CREATE and not re.match("CREATE", query, re.IGNORECASE):
            query = in_odd_case(query)
        if parts["row"] is not None:
            shown = tuple((name, kind) for name, _, kind in (each.partition("=") for each in parts["row"].split()))
            key = ("id",) if "id" in dict(shown) else None
            found.append(LogEntry(ts, database, table, origin, columns=shown, key=key))
        elif parts["action"] is None:
            found.append(LogEntry(ts, database, table, origin, query, int(parts["time"]) if parts["time"] else None))
        else:
            action, kind = int(parts["action"]), "statement" if query or int(parts["action"]) else "columns"
            found.append(SchemaChange(ts, database, table, action, query, columns(parts["spec"]), origin, kind=kind))
    return found


def played(log: Sequence[Entry], **options: Any) -> list[TableVersion]:
    files = [each for each in log if isinstance(each, SchemaChange)]
    said = [each for each in log if not isinstance(each, SchemaChange)]
    assert not (files and said), "a log is of a sink or of a topic"
    return History().apply(files or schema_changes(said, escapes=True, **options))


def shown(version: TableVersion) -> Iterator[str]:
    words = [version.effect, version.incarnation or "-"]
    if version.incarnation.rpartition("#")[0] != str(version.name):
        words.append(f"as {version.name}")
    words += [f"from {version.previous_name}"] if version.previous_name else []
    words += ["(" + " ".join(_column(column, version) for column in version.columns) + ")"] if version.columns else []
    words += [f"unique {key.name}{list(key.columns)}" for key in version.unique_keys]
    words += [f"references {key.name} {key.actions or ''}".strip() for key in version.foreign_keys]
    if version.partitioning is not None:
        words.append(f"partitions {' '.join(each.name for each in version.partitioning.partitions)}")
    words += [f"emptied {' '.join(version.emptied) or 'whole'}"] if version.effect == "empty" else []
    if version.swap is not None:
        words.append(f"{version.swap.partition} of {version.swap.partitioned} with {version.swap.plain}")
    if version.restored is not None:
        words.append(f"rows of {version.restored.incarnation} before {version.restored.ended_ts}")
    words += [f"since {version.since}"] if version.since != version.commit_ts else []
    yield text_of(" ".join(words))
    yield from (text_of(f"held: {version.hold}") for _ in range(version.hold is not None))
    yield from (text_of(f"note: {version.note}") for _ in range(version.note is not None))


def _column(column: Column, version: TableVersion) -> str:
    marks = "!" * (not column.nullable) + "*" * (column.id in version.key) + "~" * (not column.carried)
    older = "" if column.initial is None else f"={column.initial!r}"
    return f"{column.name}#{column.id}:{type_text(column.type)}{marks}{older}"


def results_of(case: Case) -> Iterator[str]:
    settings = case.settings
    first, as_files, options = settings.pop("first", []), settings.pop("files", False), settings
    versions = played(entries([*first, *case.own]), **options)
    before = len(played(entries(first), **options)) if first else 0
    for version in versions[before:]:
        yield from shown(version)
    typed = played(entries([*first, *case.own], odd=True), **options)
    times = [sorted({version.commit_ts for version in each}) for each in (typed, versions)]
    if in_any_case(typed, *times[0]) != in_any_case(versions, *times[1]):
        yield "in another letter case: " + "; ".join(f"{each.effect} {each.name}" for each in typed[before:])
    if as_files:
        # What a sink would have of the last statement comes to the same.
        in_files = History().apply(list(files_of(versions)))
        assert verdicts(in_files, versions[-1].commit_ts) == verdicts(versions, versions[-1].commit_ts)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_makes_these_versions(case: Case, update: bool) -> None:
    case.compare(list(results_of(case)), update=update)


# --- What cases do not show ---


ROW = re.compile(r"(\d+ )?\S* row( |$)")


@pytest.mark.parametrize("case", [case for case in CASES if any(map(ROW.match, case.own))], ids=str)
def test_log_in_pieces_makes_the_same_versions(case: Case) -> None:
    options = case.settings
    log = entries([*options.pop("first", []), *case.own])
    found = History()
    for each in schema_changes(log, escapes=True, **options):  # pyright: ignore[reportArgumentType]
        found = History(found.versions)
        found.apply([each])
    assert list(found.versions) == played(log, **options)


# --- Random histories of `tests/chaos`, which compares the rows that they leave ---


def play(data: st.DataObject) -> list[list[SchemaChange]]:
    """What the schema files of each statement say."""
    sink, groups = mock.Mock(), list[list[SchemaChange]]()
    feed = Changefeed(Path(), database="d", topic=lambda _: sink)
    random = chaos.History(feed.tables)

    def send(entries: Iterator[Any]) -> None:
        for entry in entries:
            feed.send(entry)
            groups.append([call.args[0] for call in sink.write_ddl.call_args_list])
            sink.reset_mock()

    send(random.begin())
    for kind in data.draw(st.lists(st.sampled_from(chaos.STATEMENTS), max_size=15)):
        random.pause()
        send(random.command(kind, *(data.draw(st.integers(0, 11)) for _ in range(3))))
    return groups


@settings(deadline=None)
@given(st.data())
def test_the_history_does_not_depend_on_how_it_is_read(data: st.DataObject) -> None:
    """At once, shuffled; or in pieces, stored and loaded in between."""
    groups = play(data)
    at_once, pieces = history(*data.draw(st.permutations(list(itertools.chain(*groups))))), History()
    for group in groups:
        if data.draw(st.booleans()):
            pieces = History(pieces.versions)
        pieces.apply(group)
    assert list(pieces.versions) == list(at_once.versions)
    assert not any(version.hold for version in at_once.versions)
