"""Find events in a log of segments by seq, time, size and topic; and totals of its files."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from penstock._core import SegmentMap
from penstock.errors import NotFound, PenstockError
from penstock.layout import SegmentPosition
from penstock.segments import segment
from penstock.segments.disk import disk_of
from penstock.segments.store import Store
from penstock.stats import Stock
from penstock.system import files

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.steward.budget import Budget


def first_seq(store: Store, handle: Handle) -> int:
    """Seq of the oldest event; the next seq if there is none."""
    floor = handle._floor()
    bases = store.bases()
    # The oldest file goes, or stays; none comes before it. A listing of all would take long.
    there = bool(bases) and files.exists(store.file(bases[0]))
    m = store.covering(0) if there or store.bases(fresh=True) else None
    while m is not None and m.compacted and m.summary is not None and m.next_seq > floor:
        if m.summary.last_seq >= floor and m.summary.count:
            return max(int(m.summary.first_seq), floor)
        m = store.covering(m.next_seq) if m.next_seq < handle._next_seq() else None
    return max(m.base_seq, floor) if m is not None else handle._next_seq()


def events_between(store: Store, handle: Handle, start: int, stop: int) -> int:
    """How many events have seqs from ``start`` to before ``stop``, by the footers."""
    total, base = 0, start
    while base < stop:
        m = store.covering(base)
        if m is None:
            break
        first = max(base, m.base_seq)  # segments before it may be gone
        end = min(store.leads_to(m) or stop, stop)
        if not m.compacted:
            total += max(0, end - first)
        elif first == m.base_seq and end == m.next_seq:
            total += m.summary.count
        else:
            at = m.offset_of(handle, first, m.data_end)
            total += m.count_events(at, m.data_end, end)
        base = max(end, base + 1)
    return total


def why_missing(store: Store, seq: int) -> PenstockError | None:
    """The error for a seq in the log's range whose file is missing."""
    m = store.covering(seq)
    leads_to = store.leads_to(m) if m is not None else 0
    if leads_to and leads_to <= seq:
        later = [b for b in store.bases(fresh=True) if b > seq]
        if not files.exists(store.file(leads_to)):
            return store.missing(leads_to, later[0] if later else None)
    if m is not None and m.compacted and m.base_seq <= seq < m.next_seq:
        return NotFound(
            f"{store.path}: no event has seq {seq} any more: compaction or an erasure removed it"
        )
    return None


def first_seq_since(store: Store, since_ns: int) -> int:
    """Base of the first segment that can hold an event of that time or later.

    The greatest event time of all segments up to one never falls from one to the next, so this
    is a binary search for any times.
    """
    found = store.first_where(lambda m: m.summary is None or m.summary.log_event_max_ns >= since_ns)
    if not found:
        return 1
    m = store.covering(found)  # if it is the oldest: deleted events may have such a time
    return 1 if m is not None and m.prior_event_max_ns >= since_ns else found


def first_appended(store: Store, since_ns: int) -> int:
    """Base of the first segment that can hold an event appended at that time or later."""
    found = store.first_where(lambda m: m.summary is None or m.summary.last_append_ns >= since_ns)
    return found or 1


def cuts(store: Store, start: int, stop: int) -> list[int]:
    """The base seqs of segments between the two."""
    bases = store.bases(fresh=True)
    return [base for base in bases[bisect_right(bases, start) :] if base < stop]


def span_bytes(store: Store, handle: Handle, m: SegmentMap, first: int, stop: int) -> int:
    """Bytes of the events of a segment from ``first`` to before ``stop``, to a block."""
    return max(0, _end_of(store, handle, m, stop) - m.offset_near(handle, first))


def _end_of(store: Store, handle: Handle, m: SegmentMap, stop: int) -> int:
    """Offset after the last frame of a segment that is below seq ``stop``."""
    if m.data_end and stop >= m.next_seq:
        return m.data_end
    if stop >= handle._next_seq():
        head = handle._head()
        if SegmentPosition.unpack(head).number == m.number:
            return m.published(head)
    if not m.data_end and stop > m.base_seq and stop in store.bases():
        return m.end_of_frames(handle)  # the next segment begins there, and this is not sealed yet
    return m.offset_near(handle, stop)


def topics(store: Store, handle: Handle) -> set[bytes]:
    """The distinct topics of all events."""
    found: set[bytes] = set()
    stop = handle._head()
    active = SegmentPosition.unpack(stop).number
    first = first_seq(store, handle)
    base = store.bases()[0]
    while base < handle._next_seq():
        m = store.beginning_at(base)
        if m.summary is not None and m.summary.topics is not None and base >= first:
            found |= m.summary.topics
        else:
            here = m.number == active
            end = m.published(stop) if here else m.data_end or m.end_of_frames(handle)
            start = m.data_offset if base >= first else m.offset_of(handle, first, end)
            found |= m.topics(start, end)
        if active <= m.number:
            break
        base = store.leads_to(m)
    return found


def take_stock(store: Store, handle: Handle, budget: Budget, first: int) -> Stock:
    """Totals of the files of a log with that first seq."""
    next_seq = handle._next_seq()
    store.survey()
    found = [store.file(base) for base in store.bases()]
    sizes = [_disk_bytes(name) for name in found]
    return Stock(
        uuid=store.uuid or b"",
        first_seq=first,
        next_seq=next_seq,
        segments=len(found),
        disk_bytes=sum(sizes),
        spurious=dict(store.spurious),
        disk=disk_of(store, handle, sizes, budget.used()),
    )


def _disk_bytes(path: str) -> int:
    try:
        return segment.disk_bytes(path)
    except NotFound:
        return 0  # just deleted by retention
