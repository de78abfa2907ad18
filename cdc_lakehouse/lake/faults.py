"""Tell faults of Spark, its JVM, the catalog and the stores from faults of one table, and name the configuration key of
what no retry repairs.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyiceberg import exceptions as iceberg

from cdc_lakehouse.decoders.tasks import spark_errors
from cdc_lakehouse.errors import (
    CatalogUnreachableError,
    CdcError,
    ConfigurationError,
    EngineError,
    RunNotRecordedError,
    SourceUnreachableError,
    TransientError,
    WarehouseFullError,
    WarehouseUnreachableError,
    in_one_line,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AWAY: Final = (
    EngineError, CatalogUnreachableError, WarehouseUnreachableError, WarehouseFullError, SourceUnreachableError,
    RunNotRecordedError, ConfigurationError,
)  # fmt: skip
_OF_A_FILE: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
"""Errors of the operating system about one file, which a retry does not repair."""
_OF_THE_MACHINE: Final = frozenset({"OSError", "IOError", "MemoryError", "ConnectionError", "TimeoutError", "EOFError"})
_AWS: Final = re.compile(
    r"in bucket '([^']*)': AWS Error (\w+)[^:]* during \w+ operation: (.*?)(?: \(Request ID|$)", re.M
)
_AWS_REFUSED: Final = frozenset(
    {"ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "NO_SUCH_BUCKET", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT"}
)
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_WRITABLE: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST})
_CATALOG_AWAY: Final = (
    iceberg.CommitStateUnknownException, iceberg.ServerError, iceberg.ServiceUnavailableError,
    iceberg.TooManyRequestsError, iceberg.WaitingForLockException,
    # A token has expired: where another is refused too, the next run says so when it opens the catalog.
    iceberg.AuthorizationExpiredError, iceberg.OAuthError, iceberg.UnauthorizedError,
)  # fmt: skip
_CATALOG_CLIENTS: Final = ("botocore.", "requests.", "thrift.transport.")
"""The modules with which PyIceberg asks Glue, REST and Hive."""
_REFUSED_BY_GLUE: Final = frozenset({
    "AccessDeniedException", "AlreadyExistsException", "EntityNotFoundException", "InvalidInputException",
    "ValidationException",
})  # fmt: skip
"""The codes with which Glue refuses a request about one table."""

_JAVA: Final = re.compile(r"^(?:: |Caused by: )(.*)$", re.MULTILINE)
"""Matches the errors in a Java stack trace: the first one and its causes."""
_JAVA_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded")
_JAVA_CATALOG_AWAY: Final = re.compile(
    r"\[SQLITE_(?:BUSY|LOCKED|IOERR|CANTOPEN)|java\.sql\.SQL(?:Transient|Recoverable|NonTransientConnection|Timeout)"
    r"|\.CommunicationsException|SQL\w*Exception: .*[Cc]onnection"
    r"|PSQLException: (?:FATAL|.*(?:connection|I/O error|deadlock|could not serialize|canceling|read-only))"
    r"|iceberg\.exceptions\.(?:ServiceUnavailable|ServiceFailure|CommitStateUnknown|NotAuthorized"
    r"|RESTException: Error occurred)"
)
_JAVA_STORE_AWAY: Final = re.compile(
    r"^java\.net\.(?!URI|Malformed)|^javax\.net\.|^java\.io\.InterruptedIOException|TimeoutException\b"
    r"|awssdk\.core\.exception\.\w*(?:SdkClient|Timeout|Retryable|Aborted)|[Ss]tatus [Cc]ode:? (?:429|5\d\d)"
    r"|^com\.google\.cloud\..*\b(?:429|5\d\d)\b"
)
_JAVA_ENGINE: Final = re.compile(r"^java\.lang\.\w+Error\b|^org\.apache\.spark\.|^java\.lang\.InterruptedException")
_WORKER_ENDED: Final = "Python worker exited unexpectedly"
_JVM_OBJECT: Final = re.compile(r"\bo\d+\.")
"""Py4J's number of an object. It differs in every run, and reasons are compared between runs."""
_JAVA_SAID: Final = re.compile(r"^(org\.apache\.iceberg\.exceptions\.(?:NotFound|Validation)Exception: .*)$")
"""Iceberg's messages about files. Other messages of Java may hold a password."""


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Convert what `engine_fault` knows, and others of the operating system or of Spark, to the project's errors."""
    try:
        yield
    except CdcError:
        raise
    except Exception as error:
        fault = engine_fault(error)
        if fault is None and isinstance(error, OSError):
            fault = warehouse_fault(error)
        if fault is None and isinstance(error, spark_errors()):
            fault = _spark_failed(error)
        if fault is None:
            raise
        raise fault from error


def engine_fault(error: Exception) -> CdcError | None:
    """Return the project's error for a fault of Spark, its JVM, the catalog or the warehouse's store, which says
    nothing about the table at which it occurred: it may pass, or a store refuses. None for any other error."""
    if isinstance(error, CdcError):
        return error if isinstance(error, _AWAY) else None
    if isinstance(error, Py4JJavaError):
        for line in _lines(error):
            what = line.partition(":")[0]
            if _JAVA_FULL.search(line):
                return WarehouseFullError(f"lake.warehouse is full ({what})")
            if _JAVA_CATALOG_AWAY.search(line):
                return _catalog_away(what)
            if _JAVA_STORE_AWAY.search(line):
                said = f"the catalog or the warehouse does not answer ({what})"
                return WarehouseUnreachableError(said, advice="see whether both run")
            if _JAVA_ENGINE.search(line):
                return _spark_failed(error)
        return None
    # Commands that read a lake without Spark import this module too: PySpark and DuckDB are imported only on errors.
    if isinstance(error, spark_errors()):
        from pyspark.errors import AnalysisException, PythonException  # noqa: PLC0415

        is_of_table = isinstance(error, AnalysisException)  # Spark refused a statement.
        if isinstance(error, PythonException):
            # Code of a task failed: because of the rows that it read, unless the machine was at fault.
            _, found, trace = str(error).rpartition("Traceback (most recent call last):\n")
            raised = next((line for line in trace.splitlines() if line and not line[0].isspace()), "")
            name = raised.partition(":")[0].rpartition(".")[2]
            of_machine = name.endswith(("OutOfMemoryException", "IOException", "ConnectionError"))
            is_of_table = bool(found) and not (of_machine or name in _OF_THE_MACHINE)
        return None if is_of_table else _spark_failed(error)
    response: Any = getattr(error, "response", None)  # A mapping where it is Glue's.
    is_refused = isinstance(response, dict) and response.get("Error", {}).get("Code") in _REFUSED_BY_GLUE
    is_unanswered = not is_refused and type(error).__module__.startswith(_CATALOG_CLIENTS)
    if is_unanswered or isinstance(error, _CATALOG_AWAY):
        return _catalog_away(type(error).__name__)
    if isinstance(error, OSError):
        fault = warehouse_fault(error)
        if not _AWS.search(str(error)) and (isinstance(error, _OF_A_FILE) or not isinstance(fault, TransientError)):
            return None
        if isinstance(error, ConnectionError):  # A call to a JVM that has ended raises it.
            return EngineError(f"Spark's JVM does not answer ({type(error).__name__})")
        return fault
    import duckdb  # noqa: PLC0415

    if isinstance(error, MemoryError | duckdb.OutOfMemoryException | duckdb.IOException):
        return EngineError(f"memory or disk ran out: {in_one_line(error)}")
    return None


def described(error: Exception) -> str:
    """Describe an error in one line: its type, and its message when that holds no secret. What Iceberg says of a file
    is more than what Spark makes of it."""
    cause = error.__cause__ if isinstance(error, EngineError) else error
    is_of_engine = isinstance(cause, Py4JError) or (cause is error and isinstance(error, spark_errors()))
    for line in _lines(cause) if is_of_engine and isinstance(cause, Exception) else ():
        if found := _JAVA_SAID.match(line):
            return found[1]
    if isinstance(error, CdcError):
        return str(error)
    return _of_engine(error) if is_of_engine else in_one_line(error)


def _lines(error: Exception) -> list[str]:
    try:
        return [found[1] for found in _JAVA.finditer(str(error))]
    except (Py4JError, ConnectionError):
        # The message is in the JVM, which has ended.
        return ["java.lang.InterruptedException"]


def _spark_failed(error: Exception) -> TransientError:
    return EngineError(f"Spark failed: {_of_engine(error)}")


def _catalog_away(what: str) -> TransientError:
    return CatalogUnreachableError(f"the catalog does not answer, or not as it should ({what})")


def _of_engine(error: Exception) -> str:
    """Return the error's first line and the class of the Java error. Java's own message may hold a password."""
    said = str(error)
    if _WORKER_ENDED in said:
        return "a Python worker ended while it worked, as it does where memory runs out"
    first, _, trace = _JVM_OBJECT.sub("", said).partition("\n")
    java = trace.removeprefix(": ").partition(":")[0].partition("\n")[0]
    return f"{type(error).__name__} {first}" + (f" ({java})" if isinstance(error, Py4JJavaError) and java else "")


def warehouse_fault(error: OSError) -> CdcError:
    """Return the project's error for one about a file that belongs to no single table of the source: the warehouse is
    full or not writable, its bucket refuses or does not answer, or the file is missing or cannot be read."""
    if error.errno in _NO_ROOM:
        return WarehouseFullError(f"lake.warehouse is full: {in_one_line(error)}")
    if (of_bucket := _AWS.search(str(error))) is not None:
        bucket, code, what = of_bucket.groups()
        said = f"lake.warehouse: the bucket {bucket!r} cannot be used ({code}: {what})"
        if code in _AWS_REFUSED:
            return ConfigurationError(said, advice="correct lake.warehouse, or credentials and endpoint in storage.s3")
        return WarehouseUnreachableError(said)
    if error.errno in _NOT_WRITABLE:
        advice = "correct it in lakehouse.yaml, or let this user write there"
        return ConfigurationError(f"lake.warehouse cannot be written: {in_one_line(error)}", advice=advice)
    return WarehouseUnreachableError(f"the warehouse cannot be read or written: {in_one_line(error)}")


# A row that takes all memory ends the worker that has it, or fails its query, and the error does not say which row or
# table it was. So a job is isolated at the item at which it fails: one table, or one file, does not end a run for all.

_Item = TypeVar("_Item")


def run_isolated(
    spark: Callable[[], SparkSession], items: Sequence[_Item], job: Callable[[Sequence[_Item]], object]
) -> dict[int, str]:
    """Run a job for all items; where Spark fails or memory runs out, run it for each half of them, down to single
    items.

    Return the reasons by the index of each item at which the job fails alone, twice, while Spark still answers. Raise
    the error where Spark does not answer, where the job fails at each of several items, or where the store of the
    catalog or of the warehouse is away: then no item is to blame.
    """
    failed: dict[int, str] = {}

    def run(indexes: Sequence[int], tries: int) -> None:
        try:
            job([items[index] for index in indexes])
        except Exception as error:
            fault = engine_fault(error)
            of_an_item = isinstance(fault, EngineError) or (fault is None and isinstance(error, spark_errors()))
            if not of_an_item or not _answers(spark()):
                raise
            if len(indexes) > 1:
                middle = len(indexes) // 2
                run(indexes[:middle], tries)
                run(indexes[middle:], tries)
            elif tries > 1:
                run(indexes, tries - 1)
            else:
                failed[indexes[0]] = described(error)
                if len(failed) == len(items) > 1:
                    raise

    run(range(len(items)), tries=2)
    return failed


def _answers(spark: SparkSession) -> bool:
    """Whether Spark can run a task that does nothing, in a Python worker."""
    try:
        return len(spark.sparkContext.range(1).collect()) == 1
    except (*spark_errors(), ConnectionError):
        return False
