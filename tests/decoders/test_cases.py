"""Records of files, byte by byte: `cases/*.txt` say what each becomes, whichever reader reads it.

A case is one record. With `first` and `last` it stands between these, which are read as without it. With `cell` a line
is a column's type and a value, and the result is the value's text. Messages of TiCDC are also read from a topic.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_lakehouse.errors import SourceError
from tests.boundaries.decoders import InsertNotation, TextNotation, parse_type
from tests.kit.case_files import Case, bytes_of, edited, read_cases, text_of
from tests.kit.decoding import (
    DATABASE,
    PIECES,
    TABLE,
    TS,
    Events,
    Reading,
    agreed,
    csv_context,
    csv_options,
    dump_context,
    read_csv,
    read_dump,
    read_json,
    usual_messages,
)

CASES = read_cases(*sorted(Path(__file__).parent.glob("cases/files/*.txt")))
Read = Callable[[bytes, Sequence[int]], Events]


def readers(case: Case, settings: Mapping[str, Any]) -> Iterator[Read]:
    """What reads a case, at these sizes of pieces: each of these has to find the same."""
    match case.file.stem.partition("_")[0]:
        case "canal":
            yield lambda content, pieces: agreed(lambda piece: read_json(content, piece), pieces[-2::2] or pieces)
        case "csv":
            context = csv_context(csv_options(**settings.get("options", {})), ("id", "name", "note"))
            yield lambda content, pieces: agreed(lambda piece: read_csv(content, context, piece), pieces)
        case _:
            for context in dump_contexts(settings):
                yield lambda content, pieces, context=context: agreed(
                    lambda piece: read_dump(content, context, piece), pieces
                )


def dump_contexts(settings: Mapping[str, Any]) -> Iterator[Any]:
    columns = {name: parse_type(text) for name, text in settings["columns"].items()}
    options = settings.get("options", {})
    given: dict[str, Any] = {
        name: bytes_of(value) if isinstance(value, str) else value for name, value in settings.get("text", {}).items()
    }
    names: Any = tuple(given.pop("columns", settings.get("listed", columns)))
    if "text" in settings:
        yield dump_context(TextNotation(names, **given), columns, **options)
        return
    for escapes in settings["escapes"]:
        notation = InsertNotation(names, escapes, settings.get("own_charsets", False))
        yield dump_context(notation, columns, **options)


def event_text(event: Mapping[str, Any], record: bytes, *, of_cell: bool = False) -> str:
    if of_cell:
        return event["problem"] or text_of(json.dumps(event["after"]["v"], ensure_ascii=False))
    before, after = (
        None if event[name] is None else json.dumps(event[name], ensure_ascii=False) for name in ("before", "after")
    )
    if event["problem"] is None:
        at = f"@{event['commit_ts']} " if event["commit_ts"] != TS else ""
        images = f"{before} -> {after}" if event["op"] == "U" else str(after or before)
        return text_of(at + (images if event["op"] == "R" else f"{event['op']} {images}"))
    value = event["value"]
    if isinstance(value, dict):
        return text_of(f"{event['problem']} {json.dumps(value, ensure_ascii=False)}")
    is_record = value in (record, record + b",")
    return event["problem"] if is_record else f"{event['problem']} {text_of(value)}".strip()


def framed(records: Sequence[bytes], settings: Mapping[str, Any], gap: bytes = b"\n") -> bytes:
    head, tail = (bytes_of(settings[name]) if name in settings else None for name in ("head", "tail"))
    if "first" not in settings:
        return (head or b"") + records[0] + (tail or b"")
    rows = [bytes_of(settings["first"]), *records, bytes_of(settings["last"])]
    return (head or b"") + gap.join(rows) + (gap if tail is None else tail)


_FRAMES: dict[tuple[bytes, str], Events] = {}


def found_in(read: Read, record: bytes, settings: Mapping[str, Any], gap: bytes, pieces: Sequence[int]) -> Events:
    found = read(framed([record], settings, gap), pieces)
    if "first" not in settings:
        return found
    before, *events, after = found
    frame = framed([], settings, gap)
    # Other cases stand between the same two; what they are read as depends on these settings alone.
    of = frame, json.dumps({name: settings.get(name) for name in ("columns", "options", "text", "listed", "escapes")})
    if of not in _FRAMES:
        _FRAMES[of] = read(frame, pieces[-1:])
        assert [event["problem"] for event in _FRAMES[of]] == [None, None]
    assert [before, after | {"line": 2}] == _FRAMES[of]
    assert [event["line"] for event in events] == [*range(2, len(events) + 2)]
    assert after["line"] == len(events) + 2
    return events


def record_of(case: Case) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a case, and its settings with what is its own."""
    settings, line = case.settings, case.own[0]
    if "cell" in settings:
        kind, cell, *options = line.split(" | ")
        settings["columns"] = {**settings.get("columns", {}), "v": kind}
        settings["options"] = json.loads(options[0] if options else "{}")
        return bytes_of(settings["cell"]).replace(b"%", bytes_of(cell)), settings
    if "base" not in settings:
        return bytes_of(line), settings
    delete = edited(settings["base"], ['type = "DELETE"', 'data = [{"id": "2", "name": null}]'])
    settings |= {"first": text_of(edited(settings["base"], [])), "last": text_of(delete)}
    return edited(settings["base"], case.own), settings


def results_of(case: Case) -> list[str]:
    record, settings = record_of(case)
    found = list[list[str]]()
    for read in readers(case, settings):
        pieces = PIECES
        for gap in map(bytes_of, settings.get("gaps", ["␊"])):
            events = found_in(read, record, settings, gap, pieces)
            found.append([event_text(each, record, of_cell="cell" in settings) for each in events])
            pieces = PIECES[-1:]
    assert all(each == found[0] for each in found), found
    if "base" not in settings:
        return found[0]
    # And a topic where that differs, of the message between two others, however they are read.
    usual = edited(settings["base"], [])
    together, one_by_one = (topic_results(record, usual, is_strict) for is_strict in (False, True))
    assert one_by_one == together
    is_usual = usual_messages("ticdc-canal-json", [usual, record, usual]) == 3
    # What Python's parser says of text that is not JSON differs between versions of Python.
    shown = [re.sub(r"( not JSON): .*", r"\1", f"topic: {each}") for each in together if together != found[0]]
    return found[0] + shown + ["usual"] * is_usual


def topic_results(value: bytes, usual: bytes, is_strict: bool) -> list[str]:
    reading = Reading("ticdc-canal-json", is_strict=is_strict)
    reading.read([[usual, value, usual]])
    (summary,) = reading.summaries.values()
    results: list[str] = []
    for event in reading.changes:
        if event["line"] == 1:
            of = (event["schema_name"], event["table_name"])
            text = event_text(event | {"problem": None}, value)
            results.append(text if of == (DATABASE, TABLE) else f"{'.'.join(of)} {text}")
    results += [f"statement {statement.text}".strip() for _, statement in summary.statements]
    results += [f"watermark {summary.watermark}"] if summary.watermark else []
    results += [f"bad: {each.message}" for each in reading.rejected]
    assert results and {0, 2} <= {event["line"] for event in reading.changes} | {2 * bool(summary.watermark)}
    return results


@pytest.mark.parametrize("case", CASES, ids=str)
def test_record_is_read_alike_by_every_reader(case: Case, update: bool) -> None:
    try:
        results = results_of(case)
    except SourceError as error:
        results = [text_of(f"error: {error}")]
    case.compare(results, update=update)
