"""The segments of one log's directory: which there are, which are foreign, and maps of some.

It only reads. It keeps a bounded number of maps; a reader that holds one keeps it alive by itself.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable

from penstock import files, segment
from penstock._core import LogCore, SegmentMap
from penstock.errors import Corrupt, Gap, NotFound

logger = logging.getLogger("penstock")

MAPS_MAX = 32


class Store:
    """What a handle knows about the files of its log."""

    def __init__(
        self, path: str, uuid: bytes | None, recent: list[SegmentMap], active: Callable[[], int]
    ) -> None:
        self.path = path
        self.uuid = uuid
        self.recent = recent
        self.active = active
        self.spurious: dict[str, str] = {}
        self._bases: list[int] | None = None

    def file(self, base_seq: int) -> str:
        """The path of the segment that begins with ``base_seq``."""
        return os.path.join(self.path, segment.file_name(base_seq))

    def bases(self, *, fresh: bool = False) -> list[int]:
        """Base seqs of the segments, in order, without those known to be foreign."""
        if self._bases is None or fresh:
            names = files.list_dir(self.path)
            found = (segment.base_of(n) for n in names if n not in self.spurious)
            self._bases = sorted(b for b in found if b is not None)
        return self._bases

    def forget(self) -> None:
        """Drop every map and the listing."""
        self.recent.clear()
        self._bases = None

    def keep(self, m: SegmentMap) -> SegmentMap:
        """Take ``m`` among the recently used maps, in place of an older map of that segment."""
        self.recent[:] = [k for k in self.recent if k.base_seq != m.base_seq]
        self.recent.append(m)
        del self.recent[:-MAPS_MAX]
        return m

    def set_aside(self, base_seq: int, why: str) -> None:
        """Take note that a file is not part of the log; it is reported, never read or deleted."""
        name = segment.file_name(base_seq)
        if name not in self.spurious:
            self.spurious[name] = why
            logger.warning(
                "%s: not part of this log (%s); it is left alone", self.file(base_seq), why
            )
        if self._bases is not None and base_seq in self._bases:
            self._bases.remove(base_seq)

    def open(self, base_seq: int) -> SegmentMap | None:
        """A map of the segment named ``base_seq``; None if it is foreign or gone."""
        for m in self.recent:
            if m.base_seq == base_seq and (m.data_end or m.number == self.active()):
                return m
        try:
            m, header = segment.map_segment(self.file(base_seq))
        except NotFound:
            return None
        if self.uuid is not None and header.uuid != self.uuid:
            self.set_aside(base_seq, "it belongs to another log")
            return None
        if header.base_seq != base_seq:
            self.set_aside(
                base_seq, f"it is the segment of seq {header.base_seq} under another name"
            )
            return None
        if not m.data_end:
            for kept in self.recent:
                if kept.base_seq == base_seq and kept.number == m.number:
                    return kept
        return self.keep(m)

    def covering(self, seq: int) -> SegmentMap | None:
        """The segment that ``seq`` falls into, or the first one if seq lies before it."""
        for fresh in (False, True):
            bases = self.bases(fresh=fresh)
            while bases:
                at = max(0, bisect_right(bases, seq) - 1)
                base = bases[at]
                m = self.open(base)
                if m is None and base not in bases:
                    continue  # foreign, and no longer listed
                if m is None and fresh:
                    bases = self.bases(fresh=True)  # deleted since we listed it
                    continue
                if m is None:
                    break
                if at > 0 and self._swallowed(bases[at - 1], base):
                    continue
                if fresh or not m.next_seq or seq < m.next_seq:
                    return m
                break
        return None

    def _swallowed(self, before: int, base_seq: int) -> bool:
        """Whether the segment ``base_seq`` begins inside the range of the one before it."""
        previous = next((m for m in self.recent if m.base_seq == before), None) or self.open(before)
        if previous is None or not previous.next_seq or previous.next_seq <= base_seq:
            return False
        self.set_aside(base_seq, f"it begins inside the segment of seq {before}")
        return True

    def beginning_at(self, base_seq: int) -> SegmentMap:
        """The segment that a roll frame leads to."""
        m = self.open(base_seq)
        if m is not None:
            return m
        bases = self.bases(fresh=True)
        if bases and bases[0] < base_seq:
            raise self.missing(base_seq, next((b for b in bases if b > base_seq), None))
        first = bases[0] if bases else 0
        raise Gap(
            f"{self.path}: the events from seq {base_seq} on are gone; "
            f"the first one still there is {first}",
            first_seq=first,
        )

    def before(self, later: SegmentMap, log: LogCore) -> SegmentMap | None:
        """The segment before ``later``; None if that is the oldest."""
        while True:
            bases = self.bases(fresh=True)
            at = bisect_right(bases, later.base_seq - 1) - 1
            if at < 0:
                return None
            m = self.open(bases[at])
            if m is None:
                continue
            leads_to = m.next_seq or m.next_after(log)
            if leads_to == later.base_seq:
                return m
            if leads_to > later.base_seq:
                self.set_aside(later.base_seq, f"it begins inside the segment of seq {m.base_seq}")
            raise self.missing(leads_to, later.base_seq)

    def missing(self, first: int, successor: int | None) -> Corrupt:
        """The error for segments that should be there and are not."""
        upto = f"{successor - 1}" if successor else "the end"
        return Corrupt(
            f"{self.path}: the segment {segment.file_name(first)} is missing: "
            f"seq {first} to {upto} cannot be read; what follows can",
            path=self.file(first),
            seq=first,
        )
