"""Reload the code location when tables appear, so that they become assets by themselves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

import grpc
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.remote_origin import CodeLocationOrigin, GrpcServerCodeLocationOrigin

from cdc_lakehouse.assets.keys import known_tables
from cdc_lakehouse.changelog.schema import TableName
from cdc_lakehouse.config import FeedConfig
from cdc_lakehouse.lake.catalog import Lake, system_table

_TIMEOUT_SECONDS: Final = 300
_LOG: Final = logging.getLogger("cdc_lakehouse")


class LoadedTables:
    """The tables that the definitions of this process have as assets."""

    def __init__(self, lake: Lake, feed: FeedConfig, tables: Sequence[TableName]) -> None:
        self._lake, self._feed = lake, feed
        self._tables = list(tables)
        self._looked_at: str | None = None
        self._asked = False

    def reload_if_outdated(self, origin: CodeLocationOrigin | None, log: logging.Logger) -> None:
        """Ask the code server to reload its code, once, when the lake's tables have changed."""
        if self._asked or not self._is_outdated():
            return
        self._asked = True
        if not isinstance(origin, GrpcServerCodeLocationOrigin):
            log.warning("the tables of feed %s have changed: reload the code location to see them", self._feed.name)
            return
        log.info("the tables of feed %s have changed: the code location is loaded again", self._feed.name)
        # In a thread, not in the tick: the new server starts while this one still answers.
        threading.Thread(target=_reload, args=(origin,), name="reload", daemon=True).start()

    def _is_outdated(self) -> bool:
        table = self._lake.load(system_table(self._feed.name, "schema_history"))
        location = None if table is None else table.metadata_location
        if location == self._looked_at:
            return False
        self._looked_at = location
        return known_tables(self._lake, self._feed) != self._tables


def _reload(origin: GrpcServerCodeLocationOrigin) -> None:
    client: Any = origin.create_client()
    try:
        client.reload_code(timeout=_TIMEOUT_SECONDS)
    except DagsterUserCodeUnreachableError as error:
        cause = error.__cause__
        if isinstance(cause, grpc.RpcError) and cause.code() == grpc.StatusCode.UNIMPLEMENTED:  # ty: ignore
            _LOG.warning("this code server cannot load its code again: restart it to see new tables")
        else:
            _LOG.warning("the code location could not be loaded again: %s", error)
