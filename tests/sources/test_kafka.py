"""Offsets of topics: what of them is pending (`cases/pending.txt`), what a run takes, and how tasks share it; and claim
checks, as TiCDC writes them and as they must not be used."""

import base64
import functools
import json
import re
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_lakehouse.config import KafkaSource, StorageConfig
from cdc_lakehouse.errors import SourceError, SourceUnreachableError
from tests.boundaries import sources
from tests.kit.case_files import Case, evaluated, read_cases
from tests.kit.kafka import wait_at_most

FORBIDDEN = SourceError("no permission to read the topic a")


def source(**more: Any) -> KafkaSource:
    named = {} if "topic_pattern" in more else {"topics": ["a", "b"]}
    return KafkaSource.model_validate(
        {"type": "kafka", "format": "canal-json", "bootstrap_servers": "k:9092", **named, **more}
    )


def _topics(text: str) -> list[sources.Topic]:
    """`a=5-9,0-0 b/other=2-3`: bounds of each partition, and the topic's id; `a!` cannot be read."""
    found: list[sources.Topic] = []
    for each in text.split():
        name, _, spans = each.partition("=")
        name, _, id = name.partition("/")
        bounds = {
            number: sources.Bounds(*map(int, span.split("-")))
            for number, span in enumerate(filter(None, spans.split(",")))
        }
        fault = FORBIDDEN if name.endswith("!") else None
        found.append(sources.Topic(name.rstrip("!"), "" if fault or id == "none" else id or "id", bounds, fault))
    return found


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases" / "pending.txt"), ids=str)
def test_pending_offsets_of_topics(case: Case, update: bool) -> None:
    """The lake has `a=7,1`: everything before these offsets of its partitions."""
    given = dict(line.split(": ", 1) for line in case.given)
    settings, topics = yaml.safe_load(given.get("source", "{}")), _topics(given["brokers have"])
    assert {*given} <= {"source", "brokers have", "lake has"}
    ends = (each.partition("=")[::2] for each in given.get("lake has", "").split())
    there = {name: sources.LandedTopic("id", dict(enumerate(map(int, of.split(","))))) for name, of in ends}
    pending = sources.find_pending(source(**settings), topics, sources.LandedOffsets(there, began=bool(there)))
    offsets = [f"{partition}: {start}-{end}" for partition, (start, end) in pending.offsets.items()]
    assert pending.records == sum(end - start for start, end in pending.offsets.values())
    assert pending.ids.keys() == {topic.name for topic in topics}
    case.compare([*offsets, *map(str, pending.faults)], update=update)


# --- Ranges ---

Offsets = Mapping[sources.LogPartition, tuple[int, int]]
TOPICS = ("a", "b")
GREAT = 10**12

partitions = st.builds(sources.LogPartition, st.sampled_from(TOPICS), st.integers(0, 3))
spans = st.tuples(st.integers(0, 10**6), st.integers(0, 500) | st.integers(0, 10**6)).map(lambda p: (p[0], sum(p)))
offsets = st.dictionaries(partitions, spans, max_size=8)
sizes = st.fixed_dictionaries({topic: st.none() | st.floats(0, 2000) for topic in TOPICS})
limits = st.integers(1, 2000) | st.integers(1, 10**7)
UNKNOWN_SIZE = 1024


def landed(record_bytes: Mapping[str, float | None]) -> sources.LandedOffsets:
    return sources.LandedOffsets(
        {topic: sources.LandedTopic("", {}, size) for topic, size in record_bytes.items()}, began=True
    )


@given(offsets, sizes, limits, limits)
@example({sources.LogPartition("a", 0): (0, 2)}, {"a": 0.0, "b": 0.0}, 1, 3)
def test_ranges_are_within_the_limits(
    offsets: Offsets, sizes: dict[str, float | None], max_records: int, max_bytes: int
) -> None:
    chosen = sources.choose_ranges(offsets, landed(sizes), max_records, max_bytes)
    # No partition with new offsets is left out.
    assert [each.partition for each in chosen] == sorted(p for p, (start, end) in offsets.items() if end > start)
    for each in chosen:
        start, end = offsets[each.partition]
        assert each.start == start < each.end <= end and each.max_bytes >= 1
    assert sum(map(len, chosen)) <= max(max_records, len(chosen))
    assert sum(each.max_bytes for each in chosen) <= max_bytes + len(chosen)
    known = {topic: UNKNOWN_SIZE if size is None else max(1, size) for topic, size in sizes.items()}
    assert sum(len(each) * known[each.partition.topic] for each in chosen if len(each) > 1) <= max_bytes
    if None not in sizes.values():
        by_bytes = sources.choose_ranges(offsets, landed(sizes), GREAT, max_bytes)
        taken = {each.partition: len(each) for each in by_bytes}
        if any(taken.get(partition, 0) < end - start for partition, (start, end) in offsets.items()):
            used = sum(number * known[partition.topic] for partition, number in taken.items())
            assert used > max_bytes - sum(known[partition.topic] + 1 for partition in offsets), "bytes are left"


@given(offsets, st.integers(1, 10**7))
def test_ranges_share_records_fairly(offsets: Offsets, max_records: int) -> None:
    taken = {
        each.partition: len(each) for each in sources.choose_ranges(offsets, landed({}), max_records, GREAT * 10**6)
    }
    needs = {partition: end - start for partition, (start, end) in offsets.items()}
    assert sum(taken.values()) == min(max(max_records, len(taken)), sum(needs.values()))
    for partition, need in needs.items():
        if taken.get(partition, 0) < need:
            assert all(other <= taken.get(partition, 0) + 1 for other in taken.values())


@given(offsets, st.fixed_dictionaries(dict.fromkeys(TOPICS, st.none() | st.floats(0, 10**7))), st.integers(1, 8))
def test_tasks_share_all_ranges(offsets: Offsets, sizes: dict[str, float | None], tasks: int) -> None:
    chosen = sources.choose_ranges(offsets, landed(sizes), GREAT, GREAT * 10**6)
    groups = sources.split_ranges(chosen, landed(sizes), lambda: tasks)
    assert len(groups) <= 2 * tasks and all(groups)
    wholes = {each.partition: each for each in chosen}
    for group in groups:
        assert len(group) == 1 or all(part == wholes[part.partition] for part in group), "a part is in a group"
    for whole in chosen:
        found = [part for group in groups for part in group if part.partition == whole.partition]
        parts = sorted(found, key=lambda part: part.start)
        assert [part.start for part in parts] == [whole.start, *(part.end for part in parts[:-1])]
        assert parts[-1].end == whole.end and len({part.segment for part in parts}) == len(parts)
        assert parts == [whole] or (
            sizes[whole.partition.topic] is not None and sum(part.max_bytes for part in parts) >= whole.max_bytes
        )


@pytest.mark.parametrize(
    ("partitions", "records", "size", "tasks", "lengths"),
    # Large records are worth a task; small partitions are one task; nobody is asked what is not divided.
    [(1, 2_000_000, 250.0, 4, [500_000] * 4), (4, 500_000, 250.0, 2, [1_000_000] * 2), (1, 1000, 250.0, None, [1000]),
     (1, 1000, 4e5, 3, [333, 333, 334]), (50, 100, 250.0, None, [5000]), (1, 2_000_000, None, None, [2_000_000])],
)  # fmt: skip
def test_tasks_have_enough_to_do(
    partitions: int, records: int, size: float | None, tasks: int | None, lengths: list[int]
) -> None:
    wholes = [sources.OffsetRange(sources.LogPartition("a", n), 7, 7 + records, 10**9) for n in range(partitions)]
    groups = sources.split_ranges(wholes, landed({"a": size}), lambda: tasks or pytest.fail("it is asked for tasks"))
    assert [sum(map(len, group)) for group in groups] == lengths


def test_admin_client_ends_with_the_call_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    make = sources.Brokers.client

    def noted(brokers: sources.Brokers, kind: Any) -> Any:
        made.append(weakref.ref(result := make(brokers, kind)))
        return result

    monkeypatch.setattr(sources.Brokers, "client", noted)
    wait_at_most(monkeypatch, 0.5)
    nobody = source(bootstrap_servers="127.0.0.1:1")
    # The error has the frames of the call, as a log or a task that keeps it does.
    with pytest.raises(SourceUnreachableError) as kept:
        sources.read_topics(nobody)
    assert kept.value.__traceback__ is not None
    assert [client() for client in made] == [None]


# --- Claim checks ---

NAME = "3d1f9049-db27-493f-15f5-d9352b4bcba5.json"
LOCATION = f"s3://claims/prefix/{NAME}"
WHOLE: dict[str, Any] = {
    "database": "d", "table": "t", "type": "INSERT", "isDdl": False, "pkNames": ["id"], "old": None,
    "mysqlType": {"id": "int", "v": "text"}, "data": [{"id": "1", "v": "long"}], "_tidb": {"commitTs": 7},
}  # fmt: skip
IN_TOPIC = {**WHOLE, "data": [{"id": "1"}], "_tidb": {"commitTs": 7, "claimCheckLocation": LOCATION}}


def packed(message: object, codec: str = "") -> bytes:
    content = json.dumps(message).encode()
    return pa.Codec(codec).compress(content, asbytes=True) if codec else content


def wrapped(value: bytes) -> bytes:
    return json.dumps({"key": None, "value": base64.b64encode(value).decode()}).encode()


def decoded(**options: Any) -> str:
    message = sources.TICDC_CANAL_JSON.make(sources.Options(**options))(packed(IN_TOPIC))
    return f"{[row.after for row in message.parts]} at {message.origin.commit_ts}"


def refused(location: str) -> bytes:
    """Where each message had the fault, they would be quarantined, and their tables held until they are replayed."""
    raise SourceError("the bucket 'claims' does not take the credentials")


@pytest.mark.parametrize("case", read_cases(Path(__file__).parent / "cases" / "claims.txt"), ids=str)
def test_claim_check_is_read_as_ticdc_writes_it(case: Case, tmp_path: Path, update: bool) -> None:
    """`claimed` reads the message whose file has this content."""
    claims = functools.partial(sources.read_claim_check, tmp_path.as_uri(), StorageConfig())
    (tmp_path / "b.json").write_bytes(wrapped(packed(WHOLE)))

    def claimed(content: bytes) -> str:
        (tmp_path / NAME).write_bytes(content)
        return decoded(claims=claims)

    names = {**globals(), "claims": claims, "claimed": claimed}
    case.compare([re.sub(r"(not JSON): .*? (?=\[)", r"\1 ", line) for line in evaluated(case, names)], update=update)
