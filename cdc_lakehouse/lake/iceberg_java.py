"""Iceberg's own table API, through the session's JVM: what Spark SQL cannot say.

Branches, schema changes with initial defaults, and the transaction that makes a branch, a schema and properties visible
as one commit. This is the only module that calls into the JVM.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Mapping
from typing import Any, Final, assert_never

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc_lakehouse.errors import TransientError
from cdc_lakehouse.lake.current.schema_plan import Add, Drop, Move, Rename, SchemaOperation, Widen
from cdc_lakehouse.lake.names import CATALOG, Identifier

MAIN: Final = "main"

_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - Iceberg's timestamp without zone counts from here.


class IcebergJavaApi:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm
        self._gateway: Any = context._gateway

    @property
    def _catalog(self) -> Any:
        session: Any = self._spark
        manager = session._jsparkSession.sessionState().catalogManager()
        return manager.catalog(CATALOG).icebergCatalog()

    def load(self, identifier: Identifier) -> Any:
        """The Java table; raises where there is none."""
        return self._catalog.loadTable(self._java_identifier(identifier))

    def create(
        self,
        identifier: Identifier,
        columns: Iterable[tuple[str, str]],
        location: str,
        properties: Mapping[str, str],
    ) -> None:
        """Make an empty table of (name, Iceberg type) columns, all optional."""
        nested = self._jvm.org.apache.iceberg.types.Types.NestedField
        fields = self._jvm.java.util.ArrayList()
        for position, (name, type_name) in enumerate(columns, start=1):
            # Ids of nested elements must differ from those of columns; the catalog numbers all of them anew.
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

    def drop(self, identifier: Identifier) -> None:
        """Drop a table and its files."""
        self._catalog.dropTable(self._java_identifier(identifier), True)

    def evolve(
        self, identifier: Identifier, operations: Iterable[SchemaOperation], properties: Mapping[str, str]
    ) -> None:
        """Change the schema and the properties in one commit."""
        transaction = self.load(identifier).newTransaction()
        self._schema(transaction, operations)
        self._properties(transaction, properties)
        self._commit(transaction)

    def open_branch(self, identifier: Identifier, branch: str) -> None:
        """Start a branch at what readers see now; one left over by an earlier run is thrown away."""
        table = self.load(identifier)
        if table.refs().containsKey(branch):
            table.manageSnapshots().removeBranch(branch).commit()
            table.refresh()
        snapshot = table.currentSnapshot()
        manage = table.manageSnapshots()
        if snapshot is None:
            manage.createBranch(branch).commit()
        else:
            manage.createBranch(branch, snapshot.snapshotId()).commit()

    def drop_branch(self, identifier: Identifier, branch: str) -> None:
        table = self.load(identifier)
        if table.refs().containsKey(branch):
            table.manageSnapshots().removeBranch(branch).commit()

    def clear(self, identifier: Identifier, branch: str, summary: Mapping[str, str]) -> None:
        """Delete every row of a branch: a change of metadata only."""
        delete = self.load(identifier).newDelete().toBranch(branch)
        delete = delete.deleteFromRowFilter(self._jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue())
        for key, value in summary.items():
            delete = delete.set(key, value)
        delete.commit()

    def publish(
        self,
        identifier: Identifier,
        branch: str | None,
        steps: Iterable[Iterable[SchemaOperation]] = (),
        properties: Mapping[str, str] | None = None,
        marked: Mapping[str, str] | None = None,
    ) -> None:
        """Make a branch what readers see, with schema changes (in steps) and properties, as one commit.

        A snapshot is read with the schema that it was made under. With `marked` the last snapshot is one more, without
        rows of its own and with these properties, so that what is published shows the new columns.
        """
        table = self.load(identifier)
        transaction = table.newTransaction()
        for operations in steps:
            self._schema(transaction, operations)
        if branch is not None:
            transaction.manageSnapshots().fastForwardBranch(MAIN, branch).removeBranch(branch).commit()
        if marked is not None and (branch is not None or table.currentSnapshot() is not None):
            append = transaction.newFastAppend()
            for key, value in marked.items():
                append = append.set(key, value)
            append.commit()
        self._properties(transaction, properties or {})
        self._commit(transaction)

    def _commit(self, transaction: Any) -> None:
        try:
            transaction.commitTransaction()
        except Py4JJavaError as error:
            if "CommitFailedException" in str(error.java_exception.getClass().getName()):
                raise TransientError("another writer has changed the table", advice="run again") from error
            raise

    def _properties(self, transaction: Any, properties: Mapping[str, str]) -> None:
        if not properties:
            return
        update = transaction.updateProperties()
        for key, value in properties.items():
            update = update.set(key, value)
        update.commit()

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
        types = self._jvm.org.apache.iceberg.types.Types
        if name == "list<float>":
            return types.ListType.ofOptional(element_id, types.FloatType.get())
        return types.fromPrimitiveString(name)

    def _literal(self, value: Any, type_name: str) -> Any:
        """An Iceberg literal from a Python value, as `evolution.Add` has it."""
        expressions = self._jvm.org.apache.iceberg.expressions
        target = self._type(type_name, 0)
        match value:
            case bytes():
                literal = expressions.Literal.of(self._jvm.java.nio.ByteBuffer.wrap(value))
            case decimal.Decimal():
                literal = expressions.Literal.of(self._jvm.java.math.BigDecimal(format(value, "f")))
            case datetime.datetime():
                moment = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
                micros = (moment - _EPOCH) // datetime.timedelta(microseconds=1)
                return self._micros(micros, target)
            case datetime.date():
                literal = expressions.Literal.of(value.isoformat())
            case float():
                literal = expressions.Literal.of(self._jvm.java.lang.Double(value))
            case int():
                literal = expressions.Literal.of(self._jvm.java.lang.Long(value))
            case _:
                literal = expressions.Literal.of(value)
        return literal.to(target)

    def _micros(self, micros: int, target: Any) -> Any:
        # A long literal turns into a timestamp as microseconds.
        return self._jvm.org.apache.iceberg.expressions.Literal.of(self._jvm.java.lang.Long(micros)).to(target)

    def _java_identifier(self, identifier: Identifier) -> Any:
        catalog = self._jvm.org.apache.iceberg.catalog
        levels = self._gateway.new_array(self._jvm.java.lang.String, 1)
        levels[0] = identifier.namespace
        return catalog.TableIdentifier.of(catalog.Namespace.of(levels), identifier.name)
