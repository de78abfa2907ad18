"""Cases: what one of them is called, and the statements of a text of SQL."""

from __future__ import annotations


def shown(value: object) -> str:
    """An `ids=` for what pytest itself would only number: dictionaries, tuples, texts of any length."""
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def statements(text: str) -> list[str]:
    """The statements of a text whose semicolons only end them."""
    return [each.strip() for each in text.split(";") if each.strip()]
