"""Who is told of problems, and of which ones."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from cdc_lakehouse.config.section import Section

ProblemKind = Literal["failed", "held", "stale", "quarantined", "check", "maintenance"]
KINDS: Final[tuple[ProblemKind, ...]] = get_args(ProblemKind)
_URL: Final = re.compile(r"https?://[^\s/]+(/\S*)?")
_ADDRESS: Final = re.compile(r"[^@\s,<>]+@[^@\s,<>]+")


class _Receiver(Section):
    feeds: tuple[str, ...] | None = Field(None, description="Only problems of these feeds; without it of all.")
    on: tuple[ProblemKind, ...] = Field(KINDS, min_length=1, description="Only these kinds of problems.")

    def takes(self, feed: str, kind: ProblemKind) -> bool:
        """Whether it is told of problems of that kind of that feed."""
        return kind in self.on and (self.feeds is None or feed in self.feeds)


def _is_url(value: str) -> str:
    if _URL.fullmatch(value) is None:
        raise ValueError("must begin with https:// or http://, and name a host")
    return value


def _is_address(value: str) -> str:
    if _ADDRESS.fullmatch(value) is None:
        raise ValueError("is not an e-mail address")
    return value


class WebhookReceiver(_Receiver):
    """Any HTTP server that takes JSON."""

    type: Literal["webhook"] = Field(description="The kind of receiver.")
    url: str = Field(description="Where messages are posted. A secret: a ${NAME}.", repr=False)
    headers: dict[str, str] = Field(default_factory=dict, description="Headers of the request.", repr=False)

    _check_url = field_validator("url")(_is_url)


class SlackReceiver(_Receiver):
    """An incoming webhook of Slack, or of what takes its form (Mattermost, Rocket.Chat)."""

    type: Literal["slack"] = Field(description="The kind of receiver.")
    url: str = Field(description="The incoming webhook. A secret: a ${NAME}.", repr=False)

    _check_url = field_validator("url")(_is_url)


class EmailReceiver(_Receiver):
    """A mail server (SMTP)."""

    type: Literal["email"] = Field(description="The kind of receiver.")
    host: str = Field(min_length=1, description="The mail server.")
    port: Annotated[int, Field(gt=0, lt=65536)] = Field(587, description="Its port.")
    sender: str = Field(alias="from", description="The address that mails come from.")
    to: Annotated[tuple[str, ...], WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1})] = (
        Field(min_length=1, description="The addresses that mails go to.")
    )
    user: str | None = Field(None, description="Who logs in at the server.")
    password: str | None = Field(None, description="The user's password.", repr=False)
    starttls: bool = Field(True, description="The connection is encrypted, and the server's certificate is checked.")

    @field_validator("sender")
    @classmethod
    def _check_sender(cls, value: str) -> str:
        return _is_address(value)

    @field_validator("to")
    @classmethod
    def _check_to(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_is_address(each) for each in value)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together")
        return self


AlertReceiver = Annotated[WebhookReceiver | SlackReceiver | EmailReceiver, Field(discriminator="type")]
