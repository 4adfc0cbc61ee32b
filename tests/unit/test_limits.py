"""Every limit at its greatest value, and one beyond it, where nothing may be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Entry
from penstock import layout as L
from tests.unit import oracle


def contents(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in oracle.segment_paths(path)}


def refused(log: penstock.Log, path: Path, call: Callable[[], Any]) -> None:
    """The call is TooLarge and leaves every byte of the log as it was; the log goes on."""
    log.append(b"before")
    before = contents(path)
    with pytest.raises(penstock.TooLarge):
        call()
    assert contents(path) == before
    assert log.append(b"after") == 2


def room(path: Path) -> int:
    """Bytes of frames that a fresh segment takes, the roll frame and the footer left aside."""
    segment = oracle.read_segment(oracle.segment_paths(path)[0])
    return segment.segment_bytes - 4096 - 40 - segment.data_offset


WAYS: dict[str, Callable[..., Callable[[], Any]]] = {
    "append": lambda log, **parts: lambda: log.append(b"v", **parts),
    "extend": lambda log, **parts: lambda: log.extend([b"v", b"w"], **parts),
    "entry": lambda log, **parts: lambda: log.extend([b"v", Entry(b"w", **parts)]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "parts",
    [
        {"topic": "t" * L.TOPIC_BYTES_MAX},
        {"topic": "ü" * (L.TOPIC_BYTES_MAX // 2)},
        {"key": b"k" * L.KEY_BYTES_MAX},
        {"headers": {"n": b"v" * (10000 - 5)}},
    ],
    ids=["topic", "topic in two-byte letters", "key", "headers"],
)
def test_at_the_limit(log: penstock.Log, way: str, parts: dict[str, Any]) -> None:
    """A topic, key or headers of the greatest length go in and come back."""
    WAYS[way](log, **parts)()
    event = log[log.last_seq]
    for name, value in parts.items():
        want = tuple(value.items()) if isinstance(value, dict) else value
        assert getattr(event, name) == want


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "parts",
    [
        {"topic": "t" * (L.TOPIC_BYTES_MAX + 1)},
        {"topic": "ü" * (L.TOPIC_BYTES_MAX // 2) + "x"},
        {"key": b"k" * (L.KEY_BYTES_MAX + 1)},
        {"key": b"k" * 65535},
        {"key": b"k" * 65536},
        {"headers": {"n": b"v" * (L.HEADERS_BYTES_MAX - 4)}},
        {"headers": {"n" * (L.HEADERS_BYTES_MAX - 3): None}},
        {"headers": [("n", b"v" * 1000)] * 66},
    ],
    ids=["topic", "wide topic", "key", "key NO_KEY", "key 64K", "header", "name", "headers"],
)
def test_beyond_the_limit(log: penstock.Log, path: Path, way: str, parts: dict[str, Any]) -> None:
    """One byte more than the limit is TooLarge and leaves no trace."""
    refused(log, path, WAYS[way](log, **parts))


def test_headers_at_their_limit(path: Path) -> None:
    """65 535 bytes of headers go in, as one long value, one long name, or many pairs."""
    with penstock.open(path, segment_size="1MiB") as log:
        most = L.HEADERS_BYTES_MAX
        for pairs in (
            [("n", b"v" * (most - 5))],
            [("n" * (most - 4), b"")],
            [("n" * (most - 4), None)],
            [("n", b"vv")] * (most // 7) + [("", b"")] * (most % 7 // 4),
        ):
            log.append(b"", headers=pairs)
            assert list(log[log.last_seq].headers) == pairs


def test_a_value_may_fill_a_segment(log: penstock.Log, path: Path) -> None:
    """The largest value that a segment takes fits exactly, alone in its segment."""
    largest = room(path) - L.FRAME_HEADER_BYTES
    log.append(b"small")
    assert log.append(b"x" * largest) == 2
    assert log.append(b"after") == 3
    assert [len(e.value or b"") for e in log] == [5, largest, 5]
    assert [len(s.events) for s in oracle.read_log(path)] == [1, 1, 1]
    assert oracle.read_log(path)[1].end == oracle.read_log(path)[1].segment_bytes - 4096


@pytest.mark.parametrize(
    "parts", [{}, {"key": b"k"}, {"topic": "t" * 9}, {"time": 5}, {"headers": {"a": None}}]
)
def test_a_value_beyond_a_segment(log: penstock.Log, path: Path, parts: dict[str, Any]) -> None:
    """A value, with all that goes with it, that no segment can take is refused before any byte."""
    prefix = {"key": 1, "topic": 9, "time": 8, "headers": 5}
    largest = room(path) - L.FRAME_HEADER_BYTES - sum(prefix[n] for n in parts)
    refused(log, path, lambda: log.append(b"x" * (largest + 1), **parts))


def test_a_batch_may_fill_a_segment(log: penstock.Log, path: Path) -> None:
    """The largest batch that a segment takes fits exactly, and one event more does not."""
    count = room(path) // 48
    refused(log, path, lambda: log.extend([b"8 bytes."] * (count + 1)))
    refused_entries = [Entry(b"8 bytes.")] * (count + 1)
    with pytest.raises(penstock.TooLarge):
        log.extend(refused_entries)
    assert log.extend([b"8 bytes."] * count) == range(3, 3 + count)
    assert len(oracle.read_log(path)[-1].events) == count
    assert len(list(log)) == 2 + count


def test_a_value_over_the_absolute_limit(path: Path) -> None:
    """A value over 256 MiB is TooLarge whatever the segment size, and in a batch as well."""
    huge = memoryview(bytearray(L.VALUE_BYTES_MAX + 1))
    with penstock.open(path, segment_size="1GiB") as log:
        with pytest.raises(penstock.TooLarge, match=str(L.VALUE_BYTES_MAX)):
            log.append(huge)
        with pytest.raises(penstock.TooLarge, match=str(L.VALUE_BYTES_MAX)):
            log.extend([b"a", Entry(huge)])
        assert len(log) == 0


def test_a_batch_that_does_not_fit_the_rest_of_the_segment(log: penstock.Log, path: Path) -> None:
    """A batch is never split: it goes whole into the next segment if this one has no room."""
    third = b"x" * (room(path) // 3)
    for _ in range(2):
        log.append(third)
    assert log.extend([third, b"y"]) == range(3, 5)
    assert [len(s.events) for s in oracle.read_log(path)] == [2, 2]
