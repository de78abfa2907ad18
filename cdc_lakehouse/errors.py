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
    """Base of all errors of the project. `message` says what happened, the places say where (feed, table as
    `database.table`, segment, line counted from 1), `advice` what to do; without it, the class's advice applies."""

    default_advice: ClassVar[str | None] = None
    code: ClassVar[str]
    """Stays the same when the text changes. docs/reference/errors.md has an anchor for each."""

    def __init_subclass__(cls, *, code: str | None = None, advice: str | None = None) -> None:
        cls.code, cls.default_advice = code or cls.code, advice or cls.default_advice

    def __init__(
        self, message: str, *, feed: str | None = None, table: str | None = None, segment: str | None = None,
        line: int | None = None, advice: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message, self.feed, self.table, self.segment, self.line = message, feed, table, segment, line
        self.advice = self.default_advice if advice is None else advice

    def __str__(self) -> str:
        where = [f"{place} {value}" for place in _PLACES if (value := getattr(self, place)) is not None]
        text = f"{self.message} [{', '.join(where)}]" if where else self.message
        return text if self.advice is None else f"{text}: {self.advice}"

    @property
    def coded(self) -> str:
        """The text with the class's code at its end: for people, who look the code up."""
        return f"{self} ({self.code})"

    @property
    def advised(self) -> str:
        """The message and the advice, without the place: for a row that has columns for the place."""
        return self.message if self.advice is None else f"{self.message}: {self.advice}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries (Spark's Python workers, Dagster's steps): keyword arguments must survive.
        places = {name: value for name, value in vars(self).items() if name not in ("message", "__notes__")}
        return functools.partial(type(self), self.message, **places), ()


def in_one_line(error: Exception) -> str:
    """Return the type and the first line of an error that is not the project's; traces follow that line."""
    return f"{type(error).__name__} {str(error).partition(chr(10))[0]}"


class PermanentError(CdcError, code="CDC-001"):
    """Trying again gives the same error."""


class TransientError(CdcError, code="CDC-002"):
    """Trying again may work."""


class ConfigurationError(PermanentError, code="CDC-101"):
    """`lakehouse.yaml` is missing, not YAML, or says something that is not allowed."""


class SourceUnreachableError(
    TransientError, code="CDC-201", advice="see whether it runs and can be reached from here; the next run tries again"
):
    """The source of a feed (bucket, directory, broker) cannot be reached or read."""


class CatalogUnreachableError(TransientError, code="CDC-301", advice="see whether it runs, and run again"):
    """The catalog does not answer, or another process keeps it locked."""


class WarehouseUnreachableError(TransientError, code="CDC-302", advice="see whether its store answers"):
    """The store of the warehouse does not answer, or a file of it cannot be read at the moment."""


class WarehouseFullError(TransientError, code="CDC-303", advice="make room there"):
    """There is no room for more files in the warehouse."""


class EngineError(
    TransientError, code="CDC-401", advice="run again; if it fails again, see earlier messages, and if memory ran out"
):
    """Spark, its JVM or one of its workers failed, or ended."""


class SourceError(PermanentError, code="CDC-202"):
    """The source answers, but its content cannot be used: the feed waits until that is corrected."""


class DumpError(SourceError, code="CDC-207", advice="copy the whole dump again, or dump again into an empty directory"):
    """A dump is incomplete, or is not as its tool writes it."""


class CheckpointError(
    SourceError,
    code="CDC-205",
    advice="see that the changefeed runs and nothing else writes this file: TiCDC rewrites it",
):
    """The source's checkpoint-ts is missing, unreadable, or went backwards."""


class SchemaFileError(PermanentError, code="CDC-206", advice="restore the file as TiCDC wrote it"):
    """A schema file is not JSON, does not match its checksum, or lacks what it must have."""


class DdlError(PermanentError, code="CDC-208"):
    """A DDL statement cannot be understood or cannot be applied. `changelog.ddl.lexer.DdlSyntaxError` says where."""


class TableHeldError(PermanentError, code="CDC-501"):
    """A table cannot be updated and stays at its last good cut."""


class UnreadableTableError(PermanentError, code="CDC-304"):
    """An Iceberg table in the catalog cannot be read: its metadata file is missing or damaged."""


class QuarantineLimitError(PermanentError, code="CDC-502"):
    """More rows of a batch cannot be used than the policy allows."""


class StoredFormError(
    PermanentError,
    code="CDC-305",
    advice="run the release of cdc_lakehouse that wrote it, or load the feed into a new lake",
):
    """Data in the lake was stored in a form that this release does not know."""


class ConcurrentRunError(TransientError, code="CDC-402", advice="wait for it to end, then run again"):
    """Another run of the same feed is active."""


class RunNotRecordedError(TransientError, code="CDC-403", advice="see whether it answers; the next run tries again"):
    """Dagster's storage did not take the record of a run, which has written nothing then."""


class AlertNotSentError(
    TransientError, code="CDC-601", advice="see whether the receiver is up, and its settings below `alerts` are right"
):
    """A receiver of alerts did not take a message."""


class ObjectMissingError(SourceError, code="CDC-203", advice="put it back where it was; the next run reads it"):
    """An object that should be in the source is not there."""


class ObjectChangedError(SourceError, code="CDC-204", advice="run again once nothing writes to it any more"):
    """An object is no longer the one that was listed, or changes while it is read."""


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
