"""Tables of cases: what one of them is called."""

from __future__ import annotations


def shown(value: object) -> str:
    """An `ids=` for what pytest itself would only number: dictionaries, tuples, texts of any length."""
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
