"""Find one event in the map of a sealed segment, by its index and then frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock import _core
from penstock import layout as L
from penstock._core import SegmentMap
from penstock.errors import Corrupt

_EVENTS = (L.KIND_DATA, L.KIND_DELETE)


class Found(NamedTuple):
    """An event's place, seq and time."""

    at: int
    seq: int
    time_ns: int


def first_event(
    m: SegmentMap, holds: Callable[[Found], bool], *, seq: int = 0, since_ns: int = 0
) -> tuple[int, int] | None:
    """Seq and offset of the first event for which ``holds`` is true; None if there is none.

    It has at least that seq, and is in the first index block that can have such a time.
    """
    for event in _events(m, _block(m, seq, since_ns)):
        if holds(event):
            return event.seq, event.at
    return None


def _block(m: SegmentMap, seq: int, since_ns: int) -> int:
    """Where the index block begins from which to look."""
    index = m.bytes_at(L.INDEX_OFFSET, m.index_count * L.INDEX_ENTRY_BYTES)
    if _core.crc32c(index) != m.index_crc:
        raise Corrupt(
            f"{m.path}: the checksum of its index does not match",
            path=m.path,
            offset=L.INDEX_OFFSET,
        )
    at = m.data_offset
    for start in range(0, len(index), L.INDEX_ENTRY_BYTES):
        entry = L.INDEX_ENTRY.unpack(index, start)
        if entry["seq"] > seq > 0:
            break
        at = entry["offset"]
        if since_ns and entry["event_max_ns"] >= since_ns:
            break
    return at


def _events(m: SegmentMap, at: int) -> Iterator[Found]:
    """The events from the frame at an offset on; the frames were checked before."""
    while at < m.data_end:
        frame = L.FRAME.unpack(m.bytes_at(at, L.FRAME_HEADER_BYTES))
        if frame["kind"] in _EVENTS:
            time_ns = frame["append_ns"]
            if frame["flags"] & L.FLAG_EVENT_TIME:
                raw = m.bytes_at(at + L.FRAME_HEADER_BYTES, 8)
                time_ns = L.FRAME.fields["append_ns"].unpack(raw)
            yield Found(at, frame["seq"], time_ns)
        nbytes = L.FRAME_HEADER_BYTES + frame["commit"] - 1
        at += -(-nbytes // L.ALIGN) * L.ALIGN
