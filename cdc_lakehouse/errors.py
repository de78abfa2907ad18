"""Every error that the project raises on purpose.

One base, two branches: a `PermanentError` occurs again however often the operation is repeated, so it is reported or
quarantined; a `TransientError` may pass, so the operation is retried. Each error says what happened, where, and what to
do.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Final

_PLACES: Final = ("feed", "table", "segment", "line")


class CdcError(Exception):
    """Base of all errors of the project.

    `message` says what happened, the places say where (feed, table as `database.table`, segment, line counted from 1),
    `advice` says what to do; without it, the class's advice applies.
    """

    default_advice: ClassVar[str | None] = None
    code: ClassVar[str]
    """Stays the same when the text changes. docs/reference/errors.md has an anchor for each."""

    def __init__(
        self, message: str, *, feed: str | None = None, table: str | None = None, segment: str | None = None,
        line: int | None = None, advice: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message, self.feed, self.table, self.segment, self.line = message, feed, table, segment, line
        self.advice = self.default_advice if advice is None else advice

    def __str__(self) -> str:
        where = [f"{place} {value}" for place in _PLACES if (value := getattr(self, place)) is not None]
        return self._with_advice(self.message if not where else f"{self.message} [{', '.join(where)}]")

    @property
    def coded(self) -> str:
        """The text with the class's code at its end: for people, who look the code up."""
        return f"{self} ({self.code})"

    @property
    def advised(self) -> str:
        """The message and the advice, without the place: for a row that has columns for the place."""
        return self._with_advice(self.message)

    def _with_advice(self, text: str) -> str:
        return text if self.advice is None else f"{text}: {self.advice}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries (Spark's Python workers, Dagster's steps): keyword arguments must survive.
        places = {name: value for name, value in vars(self).items() if name not in ("message", "__notes__")}
        return functools.partial(type(self), self.message, **places), ()


def in_one_line(error: Exception) -> str:
    """Return the type and the first line of an error that is not the project's; traces follow that line."""
    return f"{type(error).__name__} {str(error).partition(chr(10))[0]}"


class PermanentError(CdcError):
    """Trying again gives the same error."""

    code = "CDC-001"


class TransientError(CdcError):
    """Trying again may work."""

    code = "CDC-002"


class ConfigurationError(PermanentError):
    """`lakehouse.yaml` is missing, not YAML, or says something that is not allowed."""

    code = "CDC-101"


class SourceUnreachableError(TransientError):
    """The source of a feed (bucket, directory, broker) cannot be reached or read."""

    code = "CDC-201"
    default_advice = "see whether it runs and can be reached from here; the next run tries again"


class CatalogUnreachableError(TransientError):
    """The catalog does not answer, or another process keeps it locked."""

    code = "CDC-301"


class WarehouseUnreachableError(TransientError):
    """The store of the warehouse does not answer, or a file of it cannot be read at the moment."""

    code = "CDC-302"


class WarehouseFullError(TransientError):
    """There is no room for more files in the warehouse."""

    code = "CDC-303"
    default_advice = "make room there"


class EngineError(TransientError):
    """Spark, its JVM or one of its workers failed, or ended."""

    code = "CDC-401"


class SourceError(PermanentError):
    """The source answers, but its content cannot be used: the feed waits until that is corrected."""

    code = "CDC-202"


class DumpError(SourceError):
    """A dump is incomplete, or is not as its tool writes it."""

    code = "CDC-207"
    default_advice = "copy the whole dump again, or dump again into an empty directory"


class CheckpointError(SourceError):
    """The source's checkpoint-ts is missing, unreadable, or went backwards."""

    code = "CDC-205"
    default_advice = "see that the changefeed runs and nothing else writes this file: TiCDC rewrites it"


class SchemaFileError(PermanentError):
    """A schema file is not JSON, does not match its checksum, or lacks what it must have."""

    code = "CDC-206"
    default_advice = "restore the file as TiCDC wrote it"


class DdlError(PermanentError):
    """A DDL statement cannot be understood or cannot be applied. `changelog.ddl.lexer.DdlSyntaxError` says where."""

    code = "CDC-208"


class TableHeldError(PermanentError):
    """A table cannot be updated and stays at its last good cut."""

    code = "CDC-501"


class UnreadableTableError(PermanentError):
    """An Iceberg table in the catalog cannot be read: its metadata file is missing or damaged."""

    code = "CDC-304"


class QuarantineLimitError(PermanentError):
    """More rows of a batch cannot be used than the policy allows."""

    code = "CDC-502"


class StoredFormError(PermanentError):
    """Data in the lake was stored in a form that this release does not know."""

    code = "CDC-305"
    default_advice = "run the release of cdc_lakehouse that wrote it, or load the feed into a new lake"


class ConcurrentRunError(TransientError):
    """Another run of the same feed is active."""

    code = "CDC-402"
    default_advice = "wait for it to end, then run again"


class RunNotRecordedError(TransientError):
    """Dagster's storage did not take the record of a run, which has written nothing then."""

    code = "CDC-403"
    default_advice = "see whether it answers; the next run tries again"


class AlertNotSentError(TransientError):
    """A receiver of alerts did not take a message."""

    code = "CDC-601"
    default_advice = "see whether the receiver is up, and its settings below `alerts` are right"


class ObjectMissingError(SourceError):
    """An object that should be in the source is not there."""

    code = "CDC-203"
    default_advice = "put it back where it was; the next run reads it"


class ObjectChangedError(SourceError):
    """An object is no longer the one that was listed, or changes while it is read."""

    code = "CDC-204"
    default_advice = "run again once nothing writes to it any more"


def class_names(error: type[CdcError]) -> set[str]:
    """Return the names of an error's class and of those below it: names are all that Dagster keeps of errors."""
    return {error.__name__, *(name for each in error.__subclasses__() for name in class_names(each))}


def root_cause(error: BaseException) -> BaseException:
    """Return the project's own error among an error and its causes, or else the innermost one."""
    while error.__cause__ is not None and not isinstance(error, CdcError):
        error = error.__cause__
    return error


def failure_kind(error: BaseException) -> str:
    """Return what a failed run is tagged with: whether a retry may succeed."""
    return "permanent" if isinstance(root_cause(error), PermanentError) else "transient"
