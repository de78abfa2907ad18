"""Format and send messages to the receivers of alerts. No error names an address."""

from __future__ import annotations

import datetime
import email.message
import email.utils
import html
import http.client
import json
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc_lakehouse.config.file import AlertReceiver, EmailReceiver, SlackReceiver
from cdc_lakehouse.errors import AlertNotSentError
from cdc_lakehouse.operate.signals import Notification

_TIMEOUT_SECONDS: Final = 10
_SHOWN: Final = 20
_LONGEST: Final = 500
_WORDS: Final = {"opened": "new", "reminder": "still there", "over": "over"}


def receiver_label(receiver: AlertReceiver, position: int) -> str:
    """Return a receiver's name for people: its place in the configuration, and its type."""
    return f"alerts[{position}] ({receiver.type})"


def send(receiver: AlertReceiver, notifications: Sequence[Notification]) -> None:
    """Send a receiver all notices in one message, or a test message without any. Raises `AlertNotSentError`."""
    subject, text = "a test", "This is a test: alerts of cdc_lakehouse reach you."
    if notifications:
        first, others = notifications[0], len(notifications) - 1
        about = " ".join(word for word in (first.problem.feed, first.problem.kind, first.problem.subject) if word)
        subject = f"{_WORDS[first.event]}: {about}" + (f", and {others} more" if others else "")
        more = [f"and {len(notifications) - _SHOWN} more"] if len(notifications) > _SHOWN else []
        text = "\n".join([*map(_line, notifications[:_SHOWN]), *more])
    try:
        if isinstance(receiver, EmailReceiver):
            _mail(receiver, subject, text)
        elif isinstance(receiver, SlackReceiver):
            # Slack's three control characters. A name of the source must not become a mention or a link.
            _post(receiver.url, {}, {"text": f"*cdc_lakehouse*\n{html.escape(text, quote=False)}"})
        else:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            notices = [notification.document() for notification in notifications]
            _post(receiver.url, receiver.headers, {"sent_at": now, "text": text, "notices": notices})
        return
    except urllib.error.HTTPError as error:
        error.close()
        reason = f"it answered with status {error.code}"
    except smtplib.SMTPResponseException as error:
        reason = f"it answered with code {error.smtp_code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        # Without the error's message, which may hold an address.
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        known = cause.strerror if isinstance(cause, OSError) and cause.errno is not None else None
        reason = f"{type(cause).__name__}: {known}" if known else type(cause).__name__
    raise AlertNotSentError(reason)


def _line(notification: Notification) -> str:
    text = notification.problem.text
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    since = datetime.datetime.fromtimestamp(notification.since, datetime.UTC)
    seen = "" if notification.event == "opened" else f" (since {since:%Y-%m-%d %H:%M} UTC)"
    return f"{_WORDS[notification.event]}: feed {notification.problem.feed}: {text}{seen}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a redirect would turn a POST into a GET, and send headers to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _post(url: str, headers: Mapping[str, str], document: dict[str, Any]) -> None:
    content, of_content = json.dumps(document, ensure_ascii=False).encode(), "application/json; charset=utf-8"
    request = urllib.request.Request(url, content, {**headers, "Content-Type": of_content}, method="POST")
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_SECONDS):
        pass


def _mail(receiver: EmailReceiver, subject: str, text: str) -> None:
    message = email.message.EmailMessage()
    # A header has one line, whatever the table's name is.
    message["Subject"] = "[cdc_lakehouse] " + " ".join(subject.split())
    message["From"], message["To"] = receiver.sender, ", ".join(receiver.to)
    message["Date"], message["Message-ID"] = email.utils.localtime(), email.utils.make_msgid(domain="cdc-lakehouse")
    message.set_content(text)
    with smtplib.SMTP(receiver.host, receiver.port, timeout=_TIMEOUT_SECONDS) as server:
        if receiver.starttls:
            server.starttls(context=ssl.create_default_context())
        if receiver.user is not None and receiver.password is not None:
            server.login(receiver.user, receiver.password)
        refused = server.send_message(message)
    if refused:
        raise AlertNotSentError(f"it refused {len(refused)} of the addresses")
