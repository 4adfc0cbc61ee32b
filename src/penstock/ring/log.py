"""RingLog: a log in one file, which overwrites its oldest events.

What is where in it, and what it tells of itself. `handle`, `writer` and `mover` have the rest of
what differs from other logs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock import layout as L
from penstock.errors import NotFound, PenstockError
from penstock.report import Report
from penstock.ring import repair as ring_mend
from penstock.ring import verify as ring_check
from penstock.ring.mover import RingMover
from penstock.segments.check.repair import Plan
from penstock.segments.check.verify import Progress
from penstock.stats import Ring, Stock
from penstock.system import files


class RingLog(RingMover):
    """A log in one file of fixed size."""

    def _first_seq(self) -> int:
        return self._oldest_seq()

    def _seqs(self) -> tuple[int, int]:
        first, after, _, _ = self._ring_now()
        return first, after

    def __len__(self) -> int:
        first, after, tail, head = self._ring_now()
        # A repair may have left out any number of seqs; whoever makes a list relies on this.
        return max(0, min(after - first, (head - tail) // L.FRAME_HEADER_BYTES))

    def _lowest_base(self) -> int:
        return self._oldest_seq()

    def _why_missing(self, seq: int) -> PenstockError | None:
        return None

    def _first_seq_since(self, since_ns: int) -> int:
        """By halving, if times never went back."""
        first = self._oldest_seq()
        found = self._by_time(since_ns, first, self._next_seq()) or first
        return found if found > first else 1  # the oldest frame may be damaged, and say so

    def _seq_past(self, until_ns: int, end: int) -> int:
        return self._by_time(until_ns, self._oldest_seq(), end) or end

    def _by_time(self, ns: int, low: int, high: int) -> int | None:
        """The first seq between the two of that time or later; None if halving cannot tell."""
        header = self._known_header()
        if not self._monotone() or not header.index_capacity or header.generation:
            return None
        while low < high:
            middle = (low + high) // 2
            try:
                event = self[middle]
            except NotFound:
                low = max(low, self._oldest_seq())  # overwritten meanwhile
                if middle >= low:
                    return None
                continue
            if event.time_ns >= ns:
                high = middle
            else:
                low = middle + 1
        return low

    def _cuts(self, start: int, stop: int) -> list[int]:
        return []

    def _span_bytes(self, first: int, behind: int) -> int:
        return max(0, self._position_of(behind) - self._position_of(first))

    def _span_stop(self, first: int, behind: int, nbytes: int) -> int:
        room = max(1, self._span_bytes(first, behind))
        return min(behind, first + max(1, (behind - first) * nbytes // room))

    def _rules_out(
        self, seq: int, topics: Sequence[bytes | None], since_ns: int, until_ns: int
    ) -> bool:
        return False

    def _topics(self) -> set[bytes]:
        return {event.topic.encode() for event in self.read(on_gap="skip")}

    def _uuid(self) -> bytes:
        self._head()
        return self._known_header().uuid

    def _take_stock(self) -> Stock:
        self._head()
        settings = self.settings
        m = None
        while m is None or m is not self._ring:  # another thread may resize it meanwhile
            m, header, attached = self._ring, self._known_header(), self._ctl
            first, after, tail, head = self._ring_now()
        reserved, lost, holds = head, 0, 0
        if attached is not None:
            reserved, lost = max(head, attached.get(L.C_RESERVED)), attached.get(L.C_LOST)
            words = range(L.C_HOLDS, L.C_HOLDS + L.HOLDS_MAX * L.HOLD_BYTES, L.HOLD_BYTES)
            holds = sum(attached.get(at) != 0 for at in words)
        return Stock(
            uuid=header.uuid,
            first_seq=first,
            next_seq=after,
            segments=0,
            disk_bytes=os.fstat(m.fd).st_blocks * 512,
            ring=Ring(
                file_bytes=header.file_bytes,
                ring_offset=header.data_offset,
                ring_bytes=header.ring_bytes,
                index_capacity=header.index_capacity,
                format_version=header.version,
                generation=header.generation,
                tail=tail,
                head=head,
                reserved=reserved,
                used_bytes=head - tail,
                lost_bytes=lost,
                when_full=settings.when_full,
                holds=holds,
                monotone=self._monotone(),
            ),
        )

    def _verify(self, progress: Progress | None) -> Report:
        return ring_check.verify(self._file, progress)

    def _repair(self, to: str | os.PathLike[str] | None, progress: Progress | None) -> Plan:
        target = files.path_text(to) if to is not None else None
        return ring_mend.repair(self._file, target, False, progress)
