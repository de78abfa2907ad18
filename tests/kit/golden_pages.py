"""Pages that the product shows, compared with files: `python -m pytest TESTS --update` writes them anew. And what
Dagster loads of feeds, and what their runs log, as documents for a page."""

import datetime
import json
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dagster as dg

FOLDER = Path(__file__).parents[1] / "golden_pages"
_TIME = re.compile(r"\b(20\d\d-\d\d-\d\d)([T ]\d\d:\d\d:\d\d)(\.\d+)?")
_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def normalized(text: str, directory: Path, *times: str) -> str:
    """A page without what is another in each run: directories, ids of runs and snapshots, names of machines, and times
    of the real clock, which are those that do not begin with one of `times`."""
    text = text.replace(str(directory), "<dir>").replace(socket.gethostname(), "<host>")
    text = _UUID.sub("<run>", text)
    text = _TIME.sub(lambda found: found[0] if found[1].startswith(times) else "<now>", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def compare(name: str, page: str, *, update: bool) -> None:
    file = FOLDER / name
    if update:
        file.parent.mkdir(exist_ok=True)
        file.write_text(page, encoding="utf-8")
    else:
        assert page == file.read_text(encoding="utf-8"), f"{file.name}: read the difference; --update writes it"


def as_json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=1)


# --- Dagster ---

_WITHOUT = ("dagster/kind/",)


def described(definitions: dg.Definitions) -> dict[str, Any]:
    """Assets with all that is said of them, checks, jobs, schedules and sensors."""
    graph = definitions.resolve_asset_graph()
    repository = definitions.get_repository_def()
    assets = {key.to_user_string(): _asset(graph, key) for key in sorted(graph.get_all_asset_keys(), key=str)}
    jobs = {
        job.name: {
            "executor": job.executor_def.name,
            "ops": dict(sorted((node.name, getattr(node.definition, "pool", None)) for node in job.nodes)),
            "assets": sorted(key.to_user_string() for key in job.asset_layer.selected_asset_keys),
            "tags": dict(job.tags),
            "partitions": job.partitions_def is not None,
        }
        for job in sorted(repository.get_all_jobs(), key=lambda job: job.name)
        if not job.name.startswith("__")
    }
    schedules = {each.name: [each.job_name, each.cron_schedule] for each in repository.schedule_defs}
    sensors = {
        each.name: [
            each.minimum_interval_seconds, each.default_status.value, *(target.job_name for target in each.targets)
        ]
        for each in repository.sensor_defs
    }  # fmt: skip
    return {"assets": assets, "jobs": jobs, "schedules": schedules, "sensors": sensors}


def _asset(graph: Any, key: dg.AssetKey) -> dict[str, Any]:
    node = graph.get(key)
    policy, partitions = node.freshness_policy, node.partitions_def
    document = {
        "group": node.group_name,
        "description": node.description,
        "after": sorted(parent.to_user_string() for parent in node.parent_keys),
        "kinds": sorted(node.kinds),
        "owners": list(node.owners),
        "tags": {name: value for name, value in node.tags.items() if not name.startswith(_WITHOUT)},
        "executable": node.is_executable,
        "partitions": None if partitions is None else f"{partitions} {partitions.timezone}",
        "backfill": str(node.backfill_policy.policy_type.value) if node.backfill_policy else None,
        "fails_after_minutes": policy and policy.fail_window.to_timedelta().total_seconds() / 60,
        "metadata": plain(node.metadata),
        "checks": {
            check.name: {"description": spec.description, "blocking": spec.blocking}
            for check in sorted(node.check_keys, key=lambda each: each.name)
            if (spec := graph.get_check_spec(check)) is not None
        },
    }
    return {name: value for name, value in document.items() if value not in (None, [], {})}


def logged(entries: Iterable[dg.EventLogEntry]) -> tuple[list[Any], list[Any]]:
    """The materializations and the evaluations of checks that a run logged, in order."""
    materialized, checked = [], []
    for entry in entries:
        event = entry.dagster_event
        if event is not None and event.is_step_materialization:
            found = event.step_materialization_data.materialization
            document = {"asset": found.asset_key.to_user_string(), "partition": found.partition}
            materialized.append({**document, **plain(found.metadata)})
        elif event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            found = event.asset_check_evaluation_data
            document = {"check": found.check_name, "asset": found.asset_key.to_user_string(), "passed": found.passed}
            document |= {"severity": found.severity.value, "description": found.description}
            checked.append({**document, **plain(found.metadata)})
    return materialized, checked


def plain(value: Any) -> Any:
    """Values of metadata as JSON has them."""
    match value:
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case dg.TableSchema():
            return [_column(each) for each in value.columns]
        case dg.TableColumnLineage():
            return {
                name: [f"{dep.asset_key.to_user_string()}.{dep.column_name}" for dep in deps]
                for name, deps in value.deps_by_column.items()
            }
        case dg.TimestampMetadataValue():
            return datetime.datetime.fromtimestamp(value.value, datetime.UTC).isoformat()
        case dg.TableMetadataValue():
            return [plain(record.data) for record in value.records]
        case dg.MarkdownMetadataValue():
            return value.value.splitlines()
        case dg.MetadataValue():
            return plain(value.value)
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return value


def _column(column: dg.TableColumn) -> str:
    words = [column.name, column.type, "" if column.constraints.nullable else "NOT NULL", *column.tags]
    return " ".join(filter(None, words)) + (f" -- {column.description}" if column.description else "")
