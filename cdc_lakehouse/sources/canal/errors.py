"""What can go wrong with a Canal server, beside its being out of reach."""

from __future__ import annotations

from cdc_lakehouse.errors import SourceError, TransientError


class CanalProtocolError(SourceError):
    """What came is not Canal's protocol."""


class CanalRefusedError(SourceError):
    """The server answers a request with an error."""


class CanalRedeliveryError(TransientError):
    """The connection is gone, and with it the numbers of the batches that were not acknowledged: their entries come
    again, in batches with other numbers. So may those of the batch that was acknowledged last."""
