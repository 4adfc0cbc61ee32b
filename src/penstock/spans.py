"""Spans: where a log can be cut into pieces of about equal work, without reading its events.

A span is a run of seqs inside one segment. Sizes come from the index, exact to a block of frames.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock._core import SegmentMap
from penstock.errors import Corrupt

if TYPE_CHECKING:
    from penstock.log import Log


@dataclass(frozen=True, slots=True)
class Span:
    """The events from ``start`` to before ``stop``, and how much room they take."""

    start: int
    stop: int
    nbytes: int


def spans(
    log: Log,
    start: int,
    stop: int,
    *,
    topics: Collection[str] | None = None,
    since_ns: int = 0,
    until_ns: int = (1 << 64) - 1,
) -> list[Span]:
    """The log from ``start`` to before ``stop``, segment by segment.

    Segments that are known to hold no event of these topics and times are left out. A segment that
    is damaged is one span all the same: whoever reads it will be told.
    """
    found = []
    wanted = [None] if topics is None else [topic.encode() for topic in topics]
    for first, behind in _borders(log, start, stop):
        m = _segment(log, first)
        nbytes = 0
        if m is not None:
            if all(log._has_none(m, t, since_ns, until_ns) for t in wanted):
                continue
            nbytes = _nbytes(log, m, first, behind)
        found.append(Span(first, behind, nbytes))
    return found


def stop_within(log: Log, start: int, stop: int, nbytes: int) -> int:
    """The seq up to which events from ``start`` take about ``nbytes``; more than none at least."""
    for first, behind in _borders(log, start, stop):
        m = _segment(log, first)
        if m is None:
            continue
        here = _nbytes(log, m, first, behind)
        if here > nbytes:
            at = m.seq_near(log, m.offset_near(log, first) + nbytes)
            least = start + 1 if first == start else first
            return min(max(at, least), behind)
        nbytes -= here
    return stop


def _borders(log: Log, start: int, stop: int) -> list[tuple[int, int]]:
    """The range, cut where segments begin."""
    if start >= stop:
        return []
    bases = log._store.bases(fresh=True)
    inner = bases[bisect_right(bases, start) :]
    cuts = [start, *(base for base in inner if base < stop), stop]
    return list(itertools.pairwise(cuts))


def _segment(log: Log, seq: int) -> SegmentMap | None:
    with suppress(Corrupt):
        return log._store.covering(seq)
    return None


def _nbytes(log: Log, m: SegmentMap, first: int, behind: int) -> int:
    """How much room the events from ``first`` to before ``behind`` of a segment take."""
    return max(0, _end(log, m, behind) - m.offset_near(log, first))


def _end(log: Log, m: SegmentMap, behind: int) -> int:
    """Offset behind the last frame below seq ``behind``."""
    if m.data_end and behind >= m.next_seq:
        return m.data_end
    if behind >= log._next_seq():
        head = log._head()
        if head >> 32 == m.number:
            return m.published(head)
    return m.offset_near(log, behind)
