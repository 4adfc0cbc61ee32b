"""Events as a model has them, and how Hypothesis draws them."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

import penstock

Pairs = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """What the model knows of one event."""

    value: bytes | None
    key: bytes | None
    topic: str
    headers: Pairs
    time: int | None


def repeated(most: int) -> st.SearchStrategy[bytes]:
    """Values that are cheap to draw and long enough to fill segments."""
    return st.builds(lambda n, b: bytes([b]) * n, st.integers(0, most), st.integers(0, 255))


KEYS = st.sampled_from([b"", b"k1", b"k2", b"\xff\xff"])
TOPICS = st.sampled_from(["", "a", "b", "ü/日"])
TIMES = st.one_of(st.none(), st.integers(0, 50), st.integers(10**17, (1 << 63) - 1))
HEADERS: st.SearchStrategy[Pairs] = st.lists(
    st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=5))), max_size=3
).map(tuple)


@st.composite
def rows(draw: st.DrawFn, most: int = 5000) -> Row:
    key = draw(st.one_of(st.none(), KEYS))
    value: bytes | None = draw(repeated(most))
    if key is not None and draw(st.integers(0, 5)) == 0:
        value = None
    return Row(value, key, draw(TOPICS), draw(HEADERS), draw(TIMES))


def same_event(event: penstock.Event, row: Row) -> None:
    """The event is what the model says."""
    assert event.value == row.value
    assert (event.key, event.topic, event.headers) == (row.key, row.topic, row.headers)
    assert event.time_ns == (event.append_ns if row.time is None else row.time)
    assert event.deletes == (row.value is None)
