"""Spans: where a log can be cut into pieces of about equal work, without reading its events.

A span is a run of seqs between two places where the log can be cut: in a segmented log, inside one
segment. Sizes come from the index, exact to a block of frames.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import Corrupt

if TYPE_CHECKING:
    from penstock.log import Log


@dataclass(frozen=True, slots=True)
class Span:
    """The events from ``start`` to before ``stop``, and how many bytes they take."""

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
    """The log from ``start`` to before ``stop``, piece by piece.

    Segments that are known to hold no event of these topics and times are left out. A damaged
    segment is one span: reading it raises the error.
    """
    found = []
    wanted = None if topics is None else tuple(topic.encode() for topic in topics)
    if wanted == ():
        return []
    for first, end in _borders(log, start, stop):
        nbytes = 0
        with suppress(Corrupt):
            if log._storage.rules_out(log, first, wanted, since_ns, until_ns):
                continue
            nbytes = log._storage.span_bytes(log, first, end)
        found.append(Span(first, end, nbytes))
    return found


def stop_within(log: Log, start: int, stop: int, nbytes: int) -> int:
    """The seq up to which events from ``start`` take about ``nbytes``; at least one event."""
    for first, end in _borders(log, start, stop):
        with suppress(Corrupt):
            here = log._storage.span_bytes(log, first, end)
            if here > nbytes:
                least = start + 1 if first == start else first
                return min(max(log._storage.span_stop(log, first, end, nbytes), least), end)
            nbytes -= here
    return stop


def _borders(log: Log, start: int, stop: int) -> list[tuple[int, int]]:
    """The range, cut where the log can be cut."""
    if start >= stop:
        return []
    return list(itertools.pairwise([start, *log._storage.cuts(start, stop), stop]))
