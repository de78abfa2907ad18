"""Iceberg's own table API, called in the JVM for what Spark SQL cannot express, and without a session of Spark; and the
operations on a schema and tags that plans say.

It changes schemas with initial defaults, and commits schema, rows, deleted rows and properties of a table in one
transaction. This is the only module that calls Iceberg in the JVM, through `IcebergCalls.java` beside it.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema

from cdc_lakehouse.errors import CatalogUnreachableError, TransientError
from cdc_lakehouse.lake.names import Identifier

# Change the Iceberg version together with Spark's: a runtime is built for one Spark minor version.
PACKAGES: Final = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)


@dataclass(frozen=True, slots=True)
class SchemaOperation:
    """A change of the column `name`. It is added with an initial `default` (a Python value, None for NULL), widened to
    a type, or moved `after` another column (None: to the front)."""

    do: Literal["add", "drop", "rename", "widen", "move"]
    name: str
    type: str = ""
    default: Any = None
    new_name: str = ""
    after: str | None = None


TagChanges = Mapping[str, int | None]  # The changes of tags in one commit: their snapshots, None for tags to remove.

_FEW_MANIFESTS: Final = 16
"""The number of manifests up to which one thread reads them all: handing them to other threads would take as long."""

_CALLS: Final = "IcebergCalls"  # The Java class beside this module, whose methods take the requests that are made here.
_SOURCE: Final = Path(__file__).with_name(f"{_CALLS}.java")
_COMPILED: Final = WeakKeyDictionary[Any, Any]()
"""The class of each JVM, by its gateway: Py4J confuses two classes of one name."""
_COMPILING: Final = threading.Lock()


class IcebergJavaApi:
    """Each method is one call into the JVM: calls through Py4J cost more than what Iceberg does in them."""

    def __init__(self, open_catalog: Callable[[], tuple[Any, Any]]) -> None:
        self._open_catalog = open_catalog

    @cached_property
    def _calls(self) -> Any:
        gateway, catalog = self._open_catalog()
        with _COMPILING:
            if gateway not in _COMPILED:
                kept, iceberg = compiled_calls(), catalog.getClass().getClassLoader()
                if kept.is_file():
                    urls = gateway.new_array(gateway.jvm.java.net.URL, 1)
                    urls[0] = gateway.jvm.java.net.URI.create(kept.as_uri()).toURL()
                    loader = gateway.jvm.java.net.URLClassLoader(urls, iceberg)
                else:
                    loader = _compiler(gateway, iceberg).getClassLoader()
                _COMPILED[gateway] = loader.loadClass(_CALLS)
        calls = _COMPILED[gateway].newInstance()
        calls.use(catalog)
        return calls

    def transaction(self, identifier: Identifier, expected_snapshot: int | None) -> TableTransaction:
        """Return a transaction on a table whose current snapshot is the expected one (None: it has none)."""
        return TableTransaction(self, identifier, expected_snapshot)

    def create(
        self, identifier: Identifier, schema: Schema, location: str | None, properties: Mapping[str, str],
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    ) -> None:  # fmt: skip
        """Create an empty table, without a location where the catalog puts it; the catalog numbers its columns and
        their elements anew."""
        request = {"table": _table(identifier), "location": location, "properties": dict(properties)}
        models = {"schema": schema, "spec": spec}
        request |= {name: each.model_dump(mode="json", by_alias=True) for name, each in models.items()}
        self._calls.create(json.dumps(request))

    def remove_tags(self, identifier: Identifier, names: Iterable[str]) -> None:
        """Remove tags of a table, in one commit. Raises `TransientError` when one of them no longer exists."""
        with _lost_races("IllegalArgumentException"):
            self._calls.removeTags(json.dumps({"table": _table(identifier), "names": [*names]}))

    def remove_deletes(self, identifier: Identifier, snapshot_id: int | None, content_files: Sequence[str]) -> None:
        """Remove delete files that no longer delete any row, in a separate commit; `content_files` are JSON of
        `ContentFileParser`. Raises `TransientError` when the table's current snapshot is not `snapshot_id`."""
        with _lost_races():
            about = {"table": _table(identifier), "snapshot": snapshot_id}
            self._calls.removeDeletes(_request(about, deletes=content_files))

    def expire_snapshots(self, identifier: Identifier, snapshots: Iterable[int]) -> None:
        """Expire exactly these snapshots of a table, and delete the files that only they reference. Raises
        `TransientError` when a branch or a tag now references one of them."""
        with _lost_races("IllegalArgumentException"):
            self._calls.expireSnapshots(json.dumps({"table": _table(identifier), "snapshots": [*snapshots]}))


class TableTransaction:
    """Changes of one table that readers see together or not at all: schema, rows, deleted rows, properties.

    `IcebergJavaApi.transaction` makes it, and it is committed once. It is opened by `evolve`, or else by the commit;
    either raises TransientError when the current snapshot is not the expected one. It fails when another writer has
    committed since it was opened, so that changes are only applied to the state of the table that they were planned on.
    """

    def __init__(self, api: IcebergJavaApi, identifier: Identifier, expected_snapshot: int | None) -> None:
        self.identifier = identifier
        self._api = api
        self._opening = {"table": _table(identifier), "snapshot": expected_snapshot, "steps": []}
        self._open: Any = None

    def evolve(self, steps: Iterable[Iterable[SchemaOperation]] = (), format_version: int | None = None) -> str:
        """Upgrade the table to the format version, which cannot be undone, and change the schema in steps; return the
        schema inside the transaction, with field ids, as Iceberg's JSON. The names in a step are those before the step:
        another column can take a name that a column gives up only in a later step. Raises ValueError for a default that
        is no value of its column's type."""
        operations = [
            [{**asdict(each), "default": _default(each.default, each.type)} for each in step] for step in steps
        ]
        about = {"steps": [step for step in operations if step], "format-version": format_version}
        with _lost_races():
            self._open = self._api._calls.begin(json.dumps(self._opening | about))
            return self._open.schema()

    def commit(
        self,
        *,
        data_files: Sequence[str] = (),
        delete_files: Sequence[str] = (),
        replaced_deletes: Sequence[str] = (),
        replace_all: bool = False,
        mark: bool = False,
        properties: Mapping[str, str | None] = MappingProxyType({}),
        summary: Mapping[str, str] = MappingProxyType({}),
        tags: TagChanges = MappingProxyType({}),
    ) -> int | None:
        """Commit everything at once; return the new snapshot's id, None when no snapshot was made.

        The files are JSON of `ContentFileParser`, as `files.write_file` and `files.delete_rows` return them.

        data_files, delete_files: files to add. replaced_deletes: delete files to remove; a data file has one delete
        file. replace_all: remove all earlier rows. mark: when no file changes, make a snapshot without rows, so that
        reads by snapshot see the new schema or the summary. properties: None for those to remove. summary: entries of
        the new snapshot's summary. tags: changes of tags; they alone cause no commit.

        Raises TransientError when another writer has changed the table, ValueError for `replace_all` with deletes. When
        there is nothing to do, nothing is committed.
        """
        if replace_all and (delete_files or replaced_deletes):
            raise ValueError("all rows go: none is left to be deleted by a vector")
        about = {
            "referenced": [json.loads(vector)["referenced-data-file"] for vector in delete_files],
            "replace-all": replace_all,
            "mark": mark,
            "properties": dict(properties),
            "summary": dict(summary),
            "tags": dict(tags),
            "few-manifests": _FEW_MANIFESTS,
        }
        request = _request(about, data=data_files, deletes=delete_files, replaced=replaced_deletes)
        with _lost_races():
            if self._open is not None:
                return self._open.commit(request)
            return self._api._calls.commit(json.dumps(self._opening), request)


def compiled_calls() -> Path:
    """The jar of the compiled class. It may not exist: then each JVM compiles the class, for half a second."""
    return prepared_file(f"{PACKAGES} {_SOURCE.read_text(encoding='utf-8')}", ".jar")


def prepared_file(about: str, suffix: str) -> Path:
    """The place of what is made once for all JVMs of this environment; `about` is all that it depends on."""
    return Path(sys.prefix, "share", "cdc-lakehouse", f"{hashlib.sha256(about.encode()).hexdigest()[:16]}{suffix}")


def keep_compiled(gateway: Any, catalog: Any) -> None:
    """Compile the class, and keep it for the JVMs of this environment. Raises `OSError` when it cannot be written."""
    classes = _compiler(gateway, catalog.getClass().getClassLoader()).getBytecodes()
    with tempfile.TemporaryDirectory(dir=(jar := compiled_calls()).parent) as temporary:
        with zipfile.ZipFile(part := Path(temporary, jar.name), "w") as file:
            for name in classes:
                file.writestr(f"{name}.class", classes[name])
        part.rename(jar)


def _compiler(gateway: Any, iceberg: Any) -> Any:
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(iceberg)
    compiler.cook(_SOURCE.read_text(encoding="utf-8"))
    return compiler


def _request(about: Mapping[str, Any], **files: Sequence[str]) -> str:
    """Return a request as JSON, with files that are JSON already."""
    return "".join((json.dumps(about)[:-1], *(f', "{name}": [{",".join(each)}]' for name, each in files.items()), "}"))


def _table(identifier: Identifier) -> dict[str, Any]:
    return {"namespace": [identifier.namespace], "name": identifier.name}


def _default(value: Any, type_name: str) -> Any:
    """Return a default in JSON, from which Iceberg makes a literal of the column's type."""
    match value:
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case datetime.datetime():
            # As text: Iceberg makes no timestamp of a small number of microseconds.
            moment = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
            return f"{moment.isoformat()}{'+00:00' if type_name == 'timestamptz' else ''}"
        case datetime.date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            return value


@contextmanager
def _lost_races(*others: str) -> Iterator[None]:
    """Convert errors that show a conflict with another writer to `TransientError`, and an unknown commit state to
    `CatalogUnreachableError`. `others` are further names of Iceberg's errors that show a conflict."""
    try:
        yield
    except Py4JJavaError as error:
        name = str(error.java_exception.getClass().getName())
        if name.endswith(("CommitFailedException", "ValidationException", *others)):
            raise TransientError("another writer has changed the table", advice="run again") from error
        if name.endswith("CommitStateUnknownException"):
            raise CatalogUnreachableError(
                "the catalog does not say whether it has the commit", advice="run again: the table says it itself"
            ) from error
        if name.endswith("NotOfItsType"):
            raise ValueError(error.java_exception.getMessage()) from error
        raise
