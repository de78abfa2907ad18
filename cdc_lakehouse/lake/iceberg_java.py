"""Iceberg's own table API, called through the session's JVM for what Spark SQL cannot express; and the operations on a
schema and tags that plans say.

It changes schemas with initial defaults, and commits schema, rows, deleted rows and properties of a table in one
transaction. This is the only module that calls Iceberg in the JVM.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, assert_never

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError

from cdc_lakehouse.errors import CatalogUnreachableError, TransientError
from cdc_lakehouse.lake.names import CATALOG, Identifier


@dataclass(frozen=True, slots=True)
class Add:
    """Add a column. `default` is the Iceberg initial default as a Python value, None for NULL."""

    name: str
    type: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class Drop:
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class Widen:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Move:
    """Move a column after another column, or to the front."""

    name: str
    after: str | None


SchemaOperation = Add | Drop | Rename | Widen | Move


@dataclass(frozen=True, slots=True)
class TagChanges:
    """The changes of tags in one commit: new and moved tags with their snapshots, and the names of removed ones."""

    added: Mapping[str, int] = field(default_factory=dict[str, int])
    moved: Mapping[str, int] = field(default_factory=dict[str, int])
    removed: tuple[str, ...] = ()


NO_TAG_CHANGES: Final = TagChanges()


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FEW_MANIFESTS: Final = 16
"""The number of manifests up to which one thread reads them all: handing them to other threads would take as long."""


class IcebergJavaApi:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm
        self._gateway: Any = context._gateway
        self._statics: dict[tuple[str, str], Any] = {}
        self._types: dict[str, Any] = {}
        self._mapper: Any = None

    @cached_property
    def _catalog(self) -> Any:
        session: Any = self._spark
        # A catalog takes its settings from the session that is active when it is first used.
        session._get_j_spark_session_class(self._jvm).setActiveSession(session._jsparkSession)
        manager = session._jsparkSession.sessionState().catalogManager()
        return manager.catalog(CATALOG).icebergCatalog()

    def load(self, identifier: Identifier) -> Any:
        """Return the Java table; raises `Py4JJavaError` when it does not exist."""
        return self._catalog.loadTable(self._java_identifier(identifier))

    def transaction(self, identifier: Identifier, expected_snapshot: int | None) -> TableTransaction:
        """Begin a transaction on a table whose current snapshot is the expected one (None: it has none).

        Raises TransientError when the current snapshot is another.
        """
        return TableTransaction(self, self.load(identifier).newTransaction(), expected_snapshot)

    def create(
        self,
        identifier: Identifier,
        columns: Iterable[tuple[str, str]],
        location: str,
        properties: Mapping[str, str],
    ) -> None:
        """Create an empty table of (name, Iceberg type) columns, all optional."""
        nested = self._jvm.org.apache.iceberg.types.Types.NestedField
        fields = self._jvm.java.util.ArrayList()
        for position, (name, type_name) in enumerate(columns, start=1):
            # Ids of nested elements must differ from those of columns; the catalog renumbers all of them.
            fields.add(nested.optional(position, name, self._type(type_name, 1_000_000 + position)))
        builder = self._catalog.buildTable(
            self._java_identifier(identifier), self._jvm.org.apache.iceberg.Schema(fields)
        )
        builder = builder.withLocation(location)
        for key, value in properties.items():
            builder = builder.withProperty(key, value)
        builder.create()

    def rename(self, source: Identifier, target: Identifier) -> None:
        self._catalog.renameTable(self._java_identifier(source), self._java_identifier(target))

    def remove_tags(self, identifier: Identifier, names: Iterable[str]) -> None:
        """Remove tags of a table, in one commit. Raises `TransientError` when one of them no longer exists."""
        manage = self.load(identifier).manageSnapshots()
        with _lost_races("IllegalArgumentException"):
            for name in names:
                manage.removeTag(name)
            manage.commit()

    def remove_deletes(self, identifier: Identifier, snapshot_id: int | None, content_files: Sequence[str]) -> None:
        """Remove delete files that no longer delete any row, in a separate commit; `content_files` are JSON of
        `ContentFileParser`. Raises `TransientError` when the table's current snapshot is not `snapshot_id`."""
        table = self.load(identifier)
        snapshot = table.currentSnapshot()
        if snapshot is None or snapshot.snapshotId() != snapshot_id:
            raise _changed_by_another()
        rewrite = table.newRewrite().validateFromSnapshot(snapshot_id)
        with _lost_races():
            for file in _Files(self, table, (), content_files, ()).delete_files():
                rewrite.deleteFile(file)
            rewrite.commit()

    def expire_snapshots(self, identifier: Identifier, snapshots: Iterable[int]) -> None:
        """Expire exactly these snapshots of a table, and delete the files that only they reference. Raises
        `TransientError` when a branch or a tag now references one of them."""
        expire = self.load(identifier).expireSnapshots()
        # Without this, snapshots that are older than the table's own setting would expire too.
        expire.expireOlderThan(0)
        for snapshot in snapshots:
            expire.expireSnapshotId(snapshot)
        with _lost_races("IllegalArgumentException"):
            expire.commit()

    def _static(self, class_name: str, member: str) -> Any:
        """Return a static method of a class of Iceberg or Java. A lookup by package would ask the JVM for each part of
        the name."""
        found = self._statics.get((class_name, member))
        if found is None:
            full_name = class_name if class_name.startswith("java.") else f"org.apache.iceberg.{class_name}"
            found = getattr(JavaClass(full_name, self._gateway._gateway_client), member)
            self._statics[class_name, member] = found
        return found

    @cached_property
    def _direct_executor(self) -> Any:
        executors = "relocated.com.google.common.util.concurrent.MoreExecutors"
        return self._static(executors, "newDirectExecutorService")()

    def _json(self, text: str) -> Any:
        """Parse a JSON document into the tree that Iceberg's parsers take."""
        if self._mapper is None:
            self._mapper = self._static("util.JsonUtil", "mapper")()
        return self._mapper.readTree(text)

    def _schema(self, transaction: Any, operations: Iterable[SchemaOperation]) -> None:
        operations = tuple(operations)
        if not operations:
            return
        update = transaction.updateSchema()
        for operation in operations:
            match operation:
                case Add(name, type_name, default):
                    column_type = self._type(type_name, 0)
                    if default is None:
                        update = update.addColumn(None, name, column_type)
                    else:
                        literal = self._literal(default, type_name)
                        update = update.addColumn(None, name, column_type, None, literal)
                case Drop(name):
                    update = update.deleteColumn(name)
                case Rename(name, new_name):
                    update = update.renameColumn(name, new_name)
                case Widen(name, type_name):
                    update = update.updateColumn(name, self._type(type_name, 0))
                case Move(name, None):
                    update = update.moveFirst(name)
                case Move(name, after):
                    update = update.moveAfter(name, after)
                case _:
                    assert_never(operation)
        update.commit()

    def _type(self, name: str, element_id: int) -> Any:
        if name == "list<float>":
            return self._static("types.Types$ListType", "ofOptional")(element_id, self._type("float", 0))
        if name not in self._types:
            self._types[name] = self._static("types.Types", "fromPrimitiveString")(name)
        return self._types[name]

    def _literal(self, value: Any, type_name: str) -> Any:
        """Return an Iceberg literal for a Python value, in the form that `Add` holds. Raises ValueError for
        a value that the type cannot hold: Iceberg itself would treat it as no default."""
        of = self._static("expressions.Literal", "of")
        match value:
            case bytes():
                literal = of(self._static("java.nio.ByteBuffer", "wrap")(value))
            case datetime.datetime():
                # As text: Iceberg makes no timestamp of a small number of microseconds.
                moment = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
                literal = of(f"{moment.isoformat()}{'+00:00' if type_name == 'timestamptz' else ''}")
            case datetime.date():
                literal = of(value.isoformat())
            case _:
                literal = of(value)
        converted = literal.to(self._type(type_name, 0))
        if converted is None:
            raise ValueError(f"{value!r} is no value of the type {type_name}")
        return converted

    def _java_identifier(self, identifier: Identifier) -> Any:
        text = json.dumps({"namespace": [identifier.namespace], "name": identifier.name})
        return self._static("catalog.TableIdentifierParser", "fromJson")(text)


class TableTransaction:
    """Changes of one table that readers see together or not at all: schema, rows, deleted rows, properties.

    `IcebergJavaApi.transaction` makes it, and it is committed once. It fails when another writer has committed since it
    was made, so that changes are only applied to the state of the table that they were planned on.
    """

    def __init__(self, api: IcebergJavaApi, transaction: Any, expected_snapshot: int | None) -> None:
        self._api = api
        self._transaction = transaction
        self._table = transaction.table()
        self._expected = expected_snapshot
        self._changed = False
        self._upgraded = False
        if self._current_snapshot() != expected_snapshot:
            raise _changed_by_another()

    def upgrade(self, format_version: int) -> None:
        """Upgrade the table to this format version, which cannot be undone."""
        self._transaction.updateProperties().set("format-version", str(format_version)).commit()
        self._upgraded = True

    def change_schema(self, steps: Iterable[Iterable[SchemaOperation]]) -> None:
        """Change the schema in steps. The names in a step are those before the step: another column can take a name
        that a column gives up only in a later step."""
        for step in steps:
            operations = tuple(step)
            if operations:
                self._api._schema(self._transaction, operations)
                self._changed = True

    def schema_json(self) -> str:
        """Return the schema inside the transaction, with field ids, as Iceberg's JSON."""
        return self._api._static("SchemaParser", "toJson")(self._table.schema())

    def commit(
        self,
        *,
        data_files: Sequence[str] = (),
        delete_files: Sequence[str] = (),
        replaced_deletes: Sequence[str] = (),
        replace_all: bool = False,
        mark: bool = False,
        properties: Mapping[str, str] | None = None,
        removed_properties: Sequence[str] = (),
        summary: Mapping[str, str] | None = None,
        tags: TagChanges = NO_TAG_CHANGES,
    ) -> int | None:
        """Commit everything at once; return the new snapshot's id, None when no snapshot was made.

        The files are JSON of `ContentFileParser`, as `files.write_file` and `files.delete_rows` return them.

        data_files, delete_files: files to add. replaced_deletes: delete files to remove; a data file has one delete
        file. replace_all: remove all earlier rows. mark: when no file changes, make a snapshot without rows, so that
        reads by snapshot see the new schema or the summary. summary: entries of the new snapshot's summary. tags:
        changes of tags; they alone cause no commit.

        Raises TransientError when another writer has changed the table, ValueError for `replace_all` with deletes. When
        there is nothing to do, nothing is committed.
        """
        if replace_all and (delete_files or replaced_deletes):
            raise ValueError("all rows go: none is left to be deleted by a vector")
        files = _Files(self._api, self._table, data_files, delete_files, replaced_deletes)
        entries = summary or {}
        with _lost_races():
            if not self._changed:
                self._pin()
            snapshot = True
            if replace_all:
                self._overwrite(files, entries)
            elif files:
                self._row_delta(files, entries)
            elif mark:
                _summarized(self._in_this_thread(self._transaction.newFastAppend()), entries).commit()
            else:
                snapshot = False
            self._change_properties(properties or {}, removed_properties)
            if not (snapshot or self._changed or self._upgraded or properties or removed_properties):
                return None
            self._change_tags(tags)
            made = self._current_snapshot() if snapshot else None
            self._transaction.commitTransaction()
            return made

    def _pin(self) -> None:
        """Make the transaction fail when another writer changes the table before it is committed.

        Iceberg reapplies a transaction to what another writer has committed meanwhile, so properties and marks would
        silently be applied to a state that they were not meant for. It does not reapply a schema change, even one that
        changes nothing.
        """
        self._transaction.updateSchema().commit()

    def _row_delta(self, files: _Files, summary: Mapping[str, str]) -> None:
        delta = self._in_this_thread(self._transaction.newRowDelta())
        for file in files.data():
            delta.addRows(file)
        for file in files.delete_files():
            delta.addDeletes(file)
        for file in files.replaced_deletes():
            delta.removeDeletes(file)
        if self._expected is not None:
            delta.validateFromSnapshot(self._expected)
        delta.conflictDetectionFilter(self._everything())
        delta.validateNoConflictingDataFiles()
        delta.validateNoConflictingDeleteFiles()
        if files.has_deletes:
            delta.validateDataFilesExist(files.referenced())
            delta.validateDeletedFiles()
        _summarized(delta, summary).commit()

    def _overwrite(self, files: _Files, summary: Mapping[str, str]) -> None:
        overwrite = self._in_this_thread(self._transaction.newOverwrite())
        overwrite.overwriteByRowFilter(self._everything())
        for file in files.data():
            overwrite.addFile(file)
        if self._expected is not None:
            overwrite.validateFromSnapshot(self._expected)
        overwrite.conflictDetectionFilter(self._everything())
        overwrite.validateNoConflictingData()
        overwrite.validateNoConflictingDeletes()
        _summarized(overwrite, summary).commit()

    def _in_this_thread(self, update: Any) -> Any:
        """Make the update work without Iceberg's thread pool when there is little to do.

        Iceberg polls every 10 ms whether the pool is done, several times a commit, which is most of a commit's time.
        """
        update.writeManifestsWith(self._api._direct_executor, 1)
        if self._expected is None or self._manifest_count() <= _FEW_MANIFESTS:
            update.scanManifestsWith(self._api._direct_executor)
        return update

    def _manifest_count(self) -> int:
        # Iceberg caches what it has read, and the commit needs the manifests of the same snapshot.
        return self._table.currentSnapshot().allManifests(self._table.io()).size()

    def _change_properties(self, properties: Mapping[str, str], removed: Sequence[str]) -> None:
        if not (properties or removed):
            return
        update = self._transaction.updateProperties()
        for key, value in properties.items():
            update.set(key, value)
        for key in removed:
            update.remove(key)
        update.commit()

    def _change_tags(self, tags: TagChanges) -> None:
        if not (tags.added or tags.moved or tags.removed):
            return
        manager = self._transaction.manageSnapshots()
        for name, snapshot_id in tags.added.items():
            manager.createTag(name, snapshot_id)
        for name, snapshot_id in tags.moved.items():
            manager.replaceTag(name, snapshot_id)
        for name in tags.removed:
            manager.removeTag(name)
        manager.commit()

    def _everything(self) -> Any:
        return self._api._static("expressions.Expressions", "alwaysTrue")()

    def _current_snapshot(self) -> int | None:
        snapshot = self._table.currentSnapshot()
        return None if snapshot is None else snapshot.snapshotId()


class _Files:
    """The files of a commit as Iceberg's objects. All of their JSON goes to the JVM as one text."""

    def __init__(
        self,
        api: IcebergJavaApi,
        table: Any,
        data: Sequence[str],
        delete_files: Sequence[str],
        replaced_deletes: Sequence[str],
    ) -> None:
        self._api = api
        self._table = table
        self._data, self._delete_files, self._replaced = data, delete_files, replaced_deletes

    def __bool__(self) -> bool:
        return bool(self._data or self._delete_files or self._replaced)

    @property
    def has_deletes(self) -> bool:
        return bool(self._delete_files)

    def data(self) -> Iterator[Any]:
        return self._parsed(0, len(self._data))

    def delete_files(self) -> Iterator[Any]:
        return self._parsed(len(self._data), len(self._delete_files))

    def replaced_deletes(self) -> Iterator[Any]:
        return self._parsed(len(self._data) + len(self._delete_files), len(self._replaced))

    def referenced(self) -> Any:
        """Return a Java list of the paths of the data files to which the delete files apply."""
        return self._api._static("util.JsonUtil", "getStringList")("referenced", self._document)

    def _parsed(self, start: int, count: int) -> Iterator[Any]:
        parse = self._api._static("ContentFileParser", "fromJson")
        for position in range(start, start + count):
            yield parse(self._nodes.get(position), self._specs)

    @cached_property
    def _document(self) -> Any:
        referenced = json.dumps([json.loads(vector)["referenced-data-file"] for vector in self._delete_files])
        files = ",".join((*self._data, *self._delete_files, *self._replaced))
        return self._api._json(f'{{"referenced":{referenced},"files":[{files}]}}')

    @cached_property
    def _nodes(self) -> Any:
        return self._document.get("files")

    @cached_property
    def _specs(self) -> Any:
        return self._table.specs()


def _summarized(update: Any, summary: Mapping[str, str]) -> Any:
    for key, value in summary.items():
        update.set(key, value)
    return update


@contextmanager
def _lost_races(*others: str) -> Iterator[None]:
    """Convert errors that show a conflict with another writer to `TransientError`, and an unknown commit state to
    `CatalogUnreachableError`. `others` are further names of Iceberg's errors that show a conflict."""
    try:
        yield
    except Py4JJavaError as error:
        name = str(error.java_exception.getClass().getName())
        if name.endswith(("CommitFailedException", "ValidationException", *others)):
            raise _changed_by_another() from error
        if name.endswith("CommitStateUnknownException"):
            raise CatalogUnreachableError(
                "the catalog does not say whether it has the commit", advice="run again: the table says it itself"
            ) from error
        raise


def _changed_by_another() -> TransientError:
    return TransientError("another writer has changed the table", advice="run again")
