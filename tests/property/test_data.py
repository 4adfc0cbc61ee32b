"""Whatever is appended as objects, tagged or written as lite3 comes back as it was."""

from __future__ import annotations

from typing import Any

import pylite3
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.data import lite3

CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.text(CHARACTERS)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\0é", max_size=5), inner),
)


@given(values=st.lists(JSON, min_size=1))
@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_whatever_is_appended(
    tmp_path_factory: pytest.TempPathFactory, codec: str, values: list[Any]
) -> None:
    """Whatever JSON can hold comes back equal."""
    path = tmp_path_factory.mktemp("any") / "log"
    with penstock.open(path, codec=codec, segment_size="1MiB") as log:
        for value in values:
            if value is None:
                log.append(b"null" if codec == "json" else b"\xc0")
            else:
                log.append(value)
        assert [e.data for e in log] == values


TAGS = st.lists(st.text(CHARACTERS, min_size=1), max_size=4)
HEADERS = st.lists(
    st.tuples(st.sampled_from(["", "h", "penstock", "penstock_tag"]), st.none() | st.binary()),
    max_size=3,
)


@given(events=st.lists(st.tuples(TAGS, HEADERS), max_size=8), wanted=TAGS, some=st.data())
def test_matching_is_what_tags_say(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[list[str], list[tuple[str, bytes | None]]]],
    wanted: list[str],
    some: st.DataObject,
) -> None:
    """An event is found by tags exactly if ``event.tags`` has all of them."""
    there = sorted({tag for tags, _ in events for tag in tags})
    if there:
        wanted += some.draw(st.lists(st.sampled_from(there), max_size=2))
    path = tmp_path_factory.mktemp("tags") / "log"
    with penstock.open(path, segment_size="1MiB") as log:
        for tags, headers in events:
            log.append(b"v", tags=tags, headers=headers)
        kept = [[v for n, v in e.headers if n == "penstock.tag" and v is not None] for e in log]
        expected = [
            seq
            for seq, values in enumerate(kept, 1)
            if all(tag.encode() in values for tag in wanted)
        ]
        assert [e.seq for e in log.read(tags=wanted)] == expected


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary()
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abcé", max_size=3), inner),
)


@given(value=st.lists(ANY) | st.dictionaries(st.text("abcé", max_size=3), ANY))
def test_whatever_is_encoded(value: Any) -> None:
    """Whatever lite3 can hold is valid and comes back equal."""
    try:
        data = lite3.encode(value)
    except ValueError as error:
        assert "the same hash" in str(error)
        return
    lite3.check(data)
    assert pylite3.loads(data).to_python() == value


@given(start=st.sampled_from([b"", b"\x06", b"\x07"]), data=st.binary(max_size=400))
def test_bytes_that_nobody_wrote(start: bytes, data: bytes) -> None:
    """Random bytes are refused as lite3, or can be read to the end."""
    try:
        lite3.check(start + data)
    except ValueError:
        return
    assert pylite3.loads(start + data).to_python() is not None
