"""What several tests of messages are tried with: any text, any JSON, and what can befall bytes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

characters = st.characters(exclude_categories=["Cs"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_PIECES = (b"[]", b"{}", b"null", b"1", b'"', b'"\\ud800"', b'"\\udfff"', b"true")
_any_bytes = st.binary(max_size=12) | st.sampled_from(_PIECES)


@st.composite
def spoilt(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """One of the samples of which a part is another one, or the rest is missing."""
    value = draw(st.sampled_from(samples))
    start = draw(st.integers(0, len(value)))
    if draw(st.integers(0, 3)) == 0:
        return value[:start]
    return value[:start] + draw(_any_bytes) + value[start + draw(st.integers(0, 12)) :]
