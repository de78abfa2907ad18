"""Receivers of alerts, and the problems that each receives."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, WithJsonSchema, model_validator

from cdc_lakehouse.config.section import Section, matching

ProblemKind = Literal["failed", "held", "stale", "quarantined", "check", "maintenance"]
KINDS: Final[tuple[ProblemKind, ...]] = get_args(ProblemKind)
_URL: Final = re.compile(r"https?://[^\s/]+(/\S*)?")
_ADDRESS: Final = re.compile(r"[^@\s,<>]+@[^@\s,<>]+")


class _Receiver(Section):
    feeds: tuple[str, ...] | None = Field(None, description="Only problems of these feeds. Default: all.")
    on: tuple[ProblemKind, ...] = Field(KINDS, min_length=1, description="Only these kinds of problems.")

    def takes(self, feed: str, kind: ProblemKind) -> bool:
        """Whether the receiver is notified of problems of that kind in that feed."""
        return kind in self.on and (self.feeds is None or feed in self.feeds)


_HttpUrl = Annotated[str, matching(_URL, "must begin with https:// or http://, and name a host")]
_Address = Annotated[str, matching(_ADDRESS, "is not an e-mail address")]


class WebhookReceiver(_Receiver):
    """An HTTP server that accepts JSON."""

    type: Literal["webhook"] = Field(description="The kind of receiver.")
    url: _HttpUrl = Field(description="Where messages are posted. A secret: a ${NAME}.", repr=False)
    headers: dict[str, str] = Field(default_factory=dict, description="Headers of the request.", repr=False)


class SlackReceiver(_Receiver):
    """An incoming webhook of Slack, or of a server that accepts its format (Mattermost, Rocket.Chat)."""

    type: Literal["slack"] = Field(description="The kind of receiver.")
    url: _HttpUrl = Field(description="The incoming webhook. A secret: a ${NAME}.", repr=False)


class EmailReceiver(_Receiver):
    """A mail server (SMTP)."""

    type: Literal["email"] = Field(description="The kind of receiver.")
    host: str = Field(min_length=1, description="The mail server.")
    port: Annotated[int, Field(gt=0, lt=65536)] = Field(587, description="Its port.")
    sender: _Address = Field(alias="from", description="The sender's address.")
    to: Annotated[
        tuple[_Address, ...], WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1})
    ] = Field(min_length=1, description="The recipients' addresses.")
    user: str | None = Field(None, description="User at the mail server.")
    password: str | None = Field(None, description="The user's password.", repr=False)
    starttls: bool = Field(True, description="The connection is encrypted, and the server's certificate is checked.")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together")
        return self


AlertReceiver = Annotated[WebhookReceiver | SlackReceiver | EmailReceiver, Field(discriminator="type")]
