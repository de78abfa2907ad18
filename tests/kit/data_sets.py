"""The data sets of `tests/data`: sinks and topics in stages, as a simulator of TiCDC made them. They are packed, one
archive for a protocol, `{name}/…` inside."""

import json
import re
import tarfile
from pathlib import Path

from cdc_lakehouse.sample.sink_writer import write_atomically

ARCHIVES = Path(__file__).parents[1] / "data"


def names(protocol: str) -> list[str]:
    """Names of the data sets of a protocol; read from a list, so that collecting tests unpacks nothing."""
    return (ARCHIVES / f"ticdc-{protocol}.txt").read_text(encoding="utf-8").split()


def unpack(target: Path) -> Path:
    for archive in sorted(ARCHIVES.glob("ticdc-*.tar.xz")):
        with tarfile.open(archive) as packed:
            packed.extractall(target / archive.name.removeprefix("ticdc-").removesuffix(".tar.xz"))
    return target


def apply_stage(dataset: Path, stage: int, sink: Path) -> int:
    """Bring `sink` to what was visible at a stage, in the order in which a sink writes: schema files, data, index,
    metadata, each by renaming. How many files changed."""
    stages = json.loads((dataset / "stages.json").read_text(encoding="utf-8"))["stages"]
    wanted = {entry["path"]: entry for entry in stages[stage]["files"]}
    changed = 0
    for path in sorted(wanted, key=_order):
        content = (dataset / (wanted[path].get("src") or f"tree/{path}")).read_bytes()
        place = sink / path
        if place.exists() and place.read_bytes() == content:
            continue
        write_atomically(place, content)
        changed += 1
    for path in {entry["path"] for each in stages for entry in each["files"]} - set(wanted):
        (sink / path).unlink(missing_ok=True)
    return changed


def _order(path: str) -> tuple[bool, bool, bool, str]:
    is_schema = re.search(r"schema(_\d+_\d{10})?\.json$", path) is not None
    return path == "metadata", path.endswith(".index"), not is_schema, path
