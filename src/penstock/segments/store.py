"""The segments of one log's directory: which exist, which are foreign, and maps of some.

It only reads. It keeps a bounded number of maps; a reader that holds one keeps it alive by itself.
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from penstock._core import Coder, SegmentMap
from penstock.errors import Corrupt, Gap, Io, NotFound, gone_error
from penstock.segments import leftovers, segment
from penstock.segments.segment import Header
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.system.messages import logger

MAPS_MAX = 32  # by default
MERGED = "it was merged into the segment of seq"


class Past(Protocol):
    """The archived segments of a log."""

    def bases(self, first_local: int) -> list[int]:
        """The bases of those before the first segment in the log's directory, in order."""

    def has(self, base_seq: int) -> bool:
        """Whether one of those begins with that seq."""

    def open(self, base_seq: int) -> SegmentMap:
        """A map of it."""

    def forget(self) -> None:
        """Drop the listing: segments were archived since."""


class Store:
    """What a handle knows about the files of its log, and of its archive if it has a ``past``."""

    def __init__(
        self,
        directory: Directory,
        uuid: bytes | None,
        recent: list[SegmentMap],
        active: Callable[[], int],
        coder: Coder | None = None,
        past: Past | None = None,
    ) -> None:
        self.directory = directory
        self.path = directory.path  # for messages
        self.uuid = uuid
        self.recent = recent
        self.active = active
        self.maps_max = MAPS_MAX
        self.coder = coder  # decodes the events that are read through a map
        self.past = past
        self.spurious: dict[str, str] = {}
        self.names: list[str] = []  # as last listed, foreign ones too
        self.floor = 0  # events below this seq are gone, even if a file still has them
        self._bases: list[int] | None = None
        self._linked: set[int] = set()  # bases whose place after the one before was checked

    def file(self, base_seq: int) -> Name:
        """The file of the segment that begins with ``base_seq``."""
        return self.directory.file(segment.file_name(base_seq))

    def bases(self, *, fresh: bool = False) -> list[int]:
        """Base seqs of the segments, in order, without those known to be foreign."""
        if self._bases is None or fresh:
            self.names = files.list_dir(self.directory)
            found = segment.bases_in(self.names)
            if self.spurious:
                found = [base for base in found if segment.file_name(base) not in self.spurious]
            for note in [n for n in self.names if n.startswith(leftovers.MERGED)]:
                found = self._without_merged(found, leftovers.merged_into(note))
            self._bases = bases = found
            self.check_there()
            if self.past is not None:
                self._bases = None  # if the archive cannot be listed
                bases = self.past.bases(bases[0] if bases else 0) + bases
            self._bases = self._at_floor(bases)
        return self._bases

    def _without_merged(self, bases: list[int], into: int) -> list[int]:
        """The segments without those that a job has merged ``into`` one, and not deleted yet."""
        if into not in bases:
            return bases
        m = None
        with suppress(Corrupt):
            m = self._again(into)
        if m is None or not m.merged:
            return bases
        return [base for base in bases if not into < base < m.next_seq]

    def replaced(self) -> None:
        """Drop every map and the listing, but for what is known of foreign files."""
        self.recent.clear()
        self._bases = None
        if self.past is not None:
            self.past.forget()

    def raise_floor(self, seq: int) -> None:
        """Note that events below ``seq`` are gone: files that have no others are not read again."""
        if seq > self.floor:
            self.floor = seq
            if self._bases is not None:
                self._bases = self._at_floor(self._bases)

    def _at_floor(self, bases: list[int]) -> list[int]:
        """The segments without those that end below the floor.

        Such a file is about to be deleted, or came back when the machine lost power.
        """
        at = bisect_right(bases, self.floor) - 1
        for earlier in range(at - 1, -1, -1):
            if self._is_archived(bases[earlier]):
                break  # it ends where the next one begins
            m = None
            with suppress(Corrupt):
                m = self.open(bases[earlier])
            if m is not None:  # else it is gone, or foreign
                at = at if self._end_of(m) <= self.floor else earlier
                break
        return bases[max(0, at) :]

    def check_there(self) -> None:
        """Raise `Gone` if a log that was open, and so had a segment, has none now."""
        if not self._bases and self.uuid is not None:
            raise gone_error(self.path)

    def forget(self) -> None:
        """Drop every map and the listing."""
        self.recent.clear()
        self._bases = None
        self._linked.clear()

    def keep(self, m: SegmentMap) -> SegmentMap:
        """Add ``m`` to the recently used maps, replacing an older map of that segment."""
        m.coder = self.coder
        self.recent[:] = [k for k in self.recent if k.base_seq != m.base_seq]
        self.recent.append(m)
        del self.recent[: -self.maps_max]
        return m

    def _used(self, m: SegmentMap) -> None:
        """Note that a map was used: those that were not for the longest time go first."""
        if self.recent and self.recent[-1] is not m:
            with suppress(ValueError):  # another thread of the handle has let it go
                self.recent.remove(m)
                self.recent.append(m)

    def set_aside(self, base_seq: int, why: str, *, quietly: bool = False) -> None:
        """Note that a file is not part of the log; it is reported, never read or deleted."""
        name = segment.file_name(base_seq)
        if name not in self.spurious:
            self.spurious[name] = why
            if not (quietly or why.startswith(MERGED)):
                logger.warning(
                    "%s: not part of this log (%s); it is left alone", self.file(base_seq), why
                )
        self.recent[:] = [m for m in self.recent if m.base_seq != base_seq]
        if self._bases is not None:
            self._bases = [b for b in self._bases if b != base_seq]
            if self.floor:
                self._bases = None  # one below the floor may be the first that counts

    def readmit(self, base_seq: int) -> None:
        """Note that a segment of this log has that name now."""
        self.spurious.pop(segment.file_name(base_seq), None)
        self.bases(fresh=True)

    def open(self, base_seq: int) -> SegmentMap | None:
        """A map of the segment named ``base_seq``; None if it is foreign or gone."""
        for m in self.recent:
            if m.base_seq == base_seq and (m.data_end or base_seq == self.active()):
                self._used(m)
                return m
        if self.past is not None and self.past.has(base_seq):
            return self.keep(self.past.open(base_seq))
        try:
            m, header = self._map(base_seq)
        except NotFound:
            return None
        if why := self.why_foreign(header, base_seq):
            self.set_aside(base_seq, why)
            return None
        if not m.data_end:
            for kept in self.recent:
                if kept.base_seq == base_seq and kept.number == m.number:
                    return kept
        return self.keep(m)

    def _is_archived(self, base_seq: int) -> bool:
        """Whether a segment is read from the archive."""
        return self.past is not None and self.past.has(base_seq)

    def _again(self, base_seq: int) -> SegmentMap | None:
        """`open`, of the file that has the name now: a known map may be of an older generation."""
        self.recent[:] = [m for m in self.recent if m.base_seq != base_seq]
        return self.open(base_seq)

    def _map(self, base_seq: int) -> tuple[SegmentMap, Header]:
        """Map a segment; if there is no memory for one more, drop the others first."""
        try:
            return segment.map_segment(self.file(base_seq))
        except Io as error:
            if error.errno != errno.ENOMEM or not self.recent:
                raise
            self.recent.clear()
            return segment.map_segment(self.file(base_seq))

    def why_foreign(self, header: Header, base_seq: int) -> str | None:
        """Why a file named ``base_seq`` with that header is not this log's; None if it may be."""
        if self.uuid is not None and header.uuid != self.uuid:
            return "it belongs to another log"
        if header.base_seq != base_seq:
            return f"it is the segment of seq {header.base_seq} under another name"
        return None

    def covering(self, seq: int) -> SegmentMap | None:
        """The segment that contains ``seq``, or the first one if seq is before it."""
        fresh = False
        while bases := self.bases(fresh=fresh):
            at = max(0, bisect_right(bases, seq) - 1)
            m = self.open(bases[at])
            if m is not None and self._is_foreign(bases[at]):
                continue  # and no longer listed
            covers = m is not None and (seq < m.next_seq or m.base_seq == self.active())
            if fresh and not covers and m is not None and m.data_end:
                m = self._again(bases[at])  # others were merged into it meanwhile
            if m is not None and (fresh or covers):
                return m
            if m is not None or segment.file_name(bases[at]) not in self.spurious:
                fresh = True  # the listing is old
        self.check_there()
        return None

    def _is_foreign(self, base_seq: int) -> bool:
        """Whether a segment of this log's uuid begins inside the range of the one before it."""
        while base_seq not in self._linked:
            bases = self.bases()
            at = bisect_left(bases, base_seq) - 1
            if self._is_archived(base_seq) or (at >= 0 and self._is_archived(bases[at])):
                self._linked.add(base_seq)  # the archive has one range after the other
                return False
            try:
                before = self.open(bases[at]) if at >= 0 else None
            except Corrupt:
                return False  # the one before is damaged, so its range is unknown
            if before is None and at >= 0:
                if segment.file_name(bases[at]) not in self.spurious:
                    self.bases(fresh=True)  # it is gone
                continue
            if before is None or self.leads_to(before) <= base_seq:
                self._linked.add(base_seq)
            elif self.leads_to(before) >> 64 and base_seq >= self._end_of(before):
                return False  # not published yet; the next roll frame may lead to it
            elif not self._is_foreign(before.base_seq):
                self.set_aside(base_seq, self.why_inside(before, self.open(base_seq)))
                return True
        return False

    def why_inside(self, before: SegmentMap, inside: SegmentMap | Header | None) -> str:
        """Why a segment that begins inside the range of the one before it is not read."""
        merged = (
            inside is not None and before.number - before.merged < inside.number <= before.number
        )
        what = MERGED if merged and before.merged else "it begins inside the segment of seq"
        return f"{what} {before.base_seq}"

    def covered(self) -> list[int]:
        """Segments that a killed compaction has left inside the range of another one."""
        found = []
        before: SegmentMap | None = None
        for name in sorted(files.list_dir(self.directory)):
            if not segment.is_name(name):
                continue
            base = int(name[:20])
            with suppress(Corrupt, NotFound):
                m, header = segment.map_segment(self.file(base))
                if self.why_foreign(header, base):
                    continue
                if before is None or base >= before.next_seq:
                    before = m if m.data_end else None
                elif self.why_inside(before, m).startswith(MERGED):
                    found.append(base)
        return found

    def first_where(self, holds: Callable[[SegmentMap], bool]) -> int | None:
        """Base seq of the first segment for which ``holds`` is true; it is for all later ones."""
        while True:
            bases = self.bases()
            low, high = 0, len(bases)
            while low < high:
                middle = (low + high) // 2
                m = self.open(bases[middle])
                if m is None or self._is_foreign(bases[middle]) or self.bases() != bases:
                    break  # one was foreign or is gone: start over without it
                if holds(m):
                    high = middle
                else:
                    low = middle + 1
            else:
                return bases[low] if low < len(bases) else None
            if self.bases() == bases:
                self.bases(fresh=True)

    def leads_to(self, m: SegmentMap) -> int:
        """The base seq after a segment: 0 if it has none, beyond all if it takes the appends."""
        if m.next_seq:
            return m.next_seq
        walk, _, _ = m.walk(m.grown(), check_crc=False)
        if walk.rolled:
            return int(walk.next_seq)
        return 1 << 64 if m.base_seq == self.active() else 0

    def _end_of(self, m: SegmentMap) -> int:
        """The seq after the last one of a segment."""
        if m.next_seq:
            return m.next_seq
        walk, _, _ = m.walk(m.grown(), check_crc=False)
        return int(walk.next_seq)

    def survey(self) -> None:
        """Check every segment, so that ``spurious`` is complete."""
        for base in list(self.bases(fresh=True)):
            if base not in self._linked:
                with suppress(Corrupt):
                    self.open(base)
        for base in list(self.bases()):
            with suppress(Corrupt):
                self._is_foreign(base)

    def beginning_at(self, base_seq: int) -> SegmentMap:
        """The segment that a roll frame leads to, or the one that it was merged into."""
        m = self.open(base_seq)
        if m is not None:
            return m
        bases = self.bases(fresh=True)
        if self._is_archived(base_seq):  # just now
            return self.keep(self.past.open(base_seq))  # type: ignore[union-attr]
        if bases and bases[0] < base_seq:
            m = self.covering(base_seq)
            if m is not None and m.merged and m.base_seq < base_seq < m.next_seq:
                return m
            raise self.missing(base_seq, next((b for b in bases if b > base_seq), None))
        first = max(bases[0] if bases else 0, self.floor)
        raise Gap(
            f"{self.path}: the events from seq {base_seq} on are gone; "
            f"the first one still there is {first}",
            first_seq=first,
        )

    def before(self, later: SegmentMap) -> SegmentMap | None:
        """The segment before ``later``, or into which it was merged; None if that is the oldest."""
        fresh = False  # a listing for each step would take long in a log of many segments
        while True:
            bases = self.bases(fresh=fresh)
            at = bisect_right(bases, later.base_seq - 1) - 1
            if at < 0 and fresh:
                return None
            m = self.open(bases[at]) if at >= 0 else None
            if m is not None and self._is_foreign(bases[at]):
                continue  # and no longer listed
            leads_to = 0 if m is None else self.leads_to(m)
            if fresh and m is not None and m.data_end and leads_to != later.base_seq:
                m = self._again(bases[at])  # others were merged into it meanwhile
                leads_to = 0 if m is None else self.leads_to(m)
            if leads_to == later.base_seq:
                return m
            if m is not None and m.merged and leads_to > later.base_seq:
                return m  # and `later` is an old generation
            if m is None or not fresh:
                fresh = True
                continue
            if not leads_to:
                walk, state, bad_at = m.walk(m.grown(), check_crc=False)
                raise m.damage(bad_at or walk.offset, state, walk.next_seq - 1)
            if leads_to > later.base_seq:
                self.set_aside(later.base_seq, self.why_inside(m, later))
            raise self.missing(leads_to, later.base_seq)

    def after(self, seq: int) -> SegmentMap | None:
        """The first segment that begins above ``seq`` and can be read, even if unlinked."""
        return self._first_good([b for b in self.bases(fresh=True) if b > seq])

    def below(self, seq: int) -> SegmentMap | None:
        """The last segment that begins at ``seq`` or below and can be read."""
        return self._first_good([b for b in reversed(self.bases(fresh=True)) if b <= seq])

    def _first_good(self, bases: list[int]) -> SegmentMap | None:
        for base in bases:
            with suppress(Corrupt):
                m = self.open(base)
                if m is not None and not self._is_foreign(base):
                    return m
        return None

    def missing(self, first: int, successor: int | None) -> Corrupt:
        """The error for missing segments."""
        upto = f"{successor - 1}" if successor else "the end"
        return Corrupt(
            f"{self.path}: the segment {segment.file_name(first)} is missing: "
            f"seq {first} to {upto} cannot be read; later events can",
            path=self.file(first),
            seq=first,
            last_seq=first - 1,
        )
