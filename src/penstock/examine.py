"""One segment file, looked at without trusting a byte of it: what is valid, and what is not.

It reads into private memory, a piece at a time, and changes nothing. What the findings mean for
the log is verify's business, and what to do about them repair's.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from penstock import _core, files, segment
from penstock import layout as L
from penstock._core import Scan
from penstock.errors import Corrupt, Io, NotFound, PenstockError, UnsupportedVersion
from penstock.segment import Header, Slot, Summary

HOLES_MAX = 1000  # damaged places of one segment that are told apart
SLOTS = (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET)


class Source:
    """A file to read from. Pages that the device does not give count as zeros, and are noted."""

    def __init__(self, path: str, passed: Callable[[int], None] | None = None) -> None:
        self.path = path
        self.unreadable: list[int] = []
        self._passed = passed
        self._fd = files.open_file(path, write=False)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise Io(f"{path}: is not a file; move it away")
            self.size = files.size(self._fd, path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        files.close(self._fd)

    def read(self, offset: int, nbytes: int) -> bytes:
        """The bytes at ``offset``; fewer only at the end of the file."""
        parts: list[bytes] = []
        while nbytes > 0:
            try:
                data = files.read_at(self._fd, nbytes, offset, self.path)
            except Io:
                data = self._read_pages(offset, nbytes)
            if not data:
                break
            parts.append(data)
            offset += len(data)
            nbytes -= len(data)
            if self._passed is not None:
                self._passed(len(data))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_pages(self, offset: int, nbytes: int) -> bytes:
        """Page by page, with zeros for those that cannot be read."""
        found = bytearray()
        stop = min(offset + nbytes, self.size)
        while offset < stop:
            step = min(L.PAGE - offset % L.PAGE, stop - offset)
            try:
                data = files.read_at(self._fd, step, offset, self.path)
            except Io:
                if not self.unreadable or self.unreadable[-1] < offset:
                    self.unreadable.append(offset)
                data = bytes(step)
            if not data:
                break
            found += data
            offset += len(data)
        return bytes(found)

    def frame_is_valid(self, offset: int, commit: int) -> bool:
        """Whether the checksum of a long frame is right."""
        end = offset + L.FRAME_HEADER_BYTES + commit - 1
        at = offset + L.FRAME_SEQ
        wanted: int
        (wanted,) = struct.unpack("<I", self.read(offset + L.FRAME_CRC, 4).ljust(4, b"\0"))
        value = 0
        while at < end:
            data = self.read(at, min(L.SCAN_WINDOW_BYTES, end - at))
            if not data:
                return False
            value = _core.crc32c(data, value)
            at += len(data)
        return value == wanted


@dataclass(frozen=True, slots=True)
class Hole:
    """A place where no valid frame stands, or where a batch breaks off."""

    offset: int
    reason: str
    expected: int  # the seq that belongs there
    batch: bool  # the frame is valid, but the batch before it is not whole
    newer: bool  # the frame is intact, but of a kind that this version does not know
    next_at: int | None = None  # the next valid frame
    next_seq: int | None = None  # and its seq


@dataclass(slots=True)
class Tail:
    """A hole that can be an append that was never finished, and the state before it."""

    hole: Hole
    start: int  # where the batch that is not whole begins
    walk: dict[str, Any]
    frames: int
    sum: int | None  # seq + batch_left of the frames that belong to that batch; None: unknown
    dirty: int | None = None
    one_batch: bool = True  # all that is valid behind it is of that batch
    inner: list[Hole] = field(default_factory=list)  # holes behind it


@dataclass(slots=True)
class Frames:
    """What a scan found."""

    walk: dict[str, Any]
    frames: int
    end: Literal["rolled", "limit", "lost"]
    holes: list[Hole]
    holes_more: int
    tail: Tail | None
    index: bytes
    topics: frozenset[bytes] | None
    marked: dict[str, Any]
    gave_up: bool

    @property
    def damaged(self) -> bool:
        """Whether there are holes, but for a tail that may be unfinished."""
        return bool(self.holes)


def pump(scan: Scan, source: Source) -> Iterator[str]:
    """Run a scan over a file, giving it what it wants; yields what it finds."""
    while True:
        status = scan.run()
        if status == "more":
            yield status
            at = scan.at
            wanted = min(L.SCAN_WINDOW_BYTES, scan.limit - at)
            data = source.read(at, wanted)
            if len(data) < wanted:
                scan.shorten(at + len(data))
            scan.feed(data)
        elif status == "sum":
            at = scan.at
            (commit,) = struct.unpack("<I", source.read(at, 4).ljust(4, b"\0"))
            scan.summed(source.frame_is_valid(at, commit))
        else:
            yield status
            if status == "end":
                return


def scan_of(header: Header, limit: int, **options: Any) -> Scan:
    """A scan over the frames of a segment with that header."""
    return Scan(
        header.data_offset,
        header.base_seq,
        max(limit, header.data_offset),
        holes=header.generation > 0,
        prior_append_ns=header.prior_append_ns,
        prior_event_max_ns=header.prior_event_max_ns,
        monotone=header.monotone,
        **options,
    )


class _Finder:
    """Collects the holes of one scan, and tells an unfinished append from damage."""

    def __init__(self, source: Source, scan: Scan, sure: int, head: int) -> None:
        self.source = source
        self.scan = scan
        self.sure = sure
        self.head = head
        self.holes: list[Hole] = []
        self.more = 0
        self.tail: Tail | None = None
        self.open: Hole | None = None

    def add(self, hole: Hole) -> None:
        if len(self.holes) < HOLES_MAX:
            self.holes.append(hole)
        else:
            self.more += 1

    def damaged(self, *, batch: bool) -> None:
        """The scan stands at a frame that is not valid, or behind a batch that is not whole."""
        scan = self.scan
        expected = scan.walked()["next_seq"]
        reason = "a batch before it that is not whole" if batch else scan.reason
        self.open = Hole(scan.at, reason, expected, batch, not batch and scan.unknown_kind)
        self.settle()
        start = scan.at if scan.batch_start is None else scan.batch_start
        if self.tail is None and start >= self.sure:
            walk, frames = scan.walked_before()
            self.tail = Tail(self.open, start, walk, frames, self._batch_sum(start, expected))
            scan.watch_from()
        if batch:
            self.found()

    def _batch_sum(self, start: int, expected: int) -> int | None:
        if self.scan.batch_start is not None:
            return self.scan.batch_sum
        head = self.source.read(start, L.FRAME_HEADER_BYTES).ljust(L.FRAME_HEADER_BYTES, b"\0")
        seq: int
        left: int
        (seq,) = struct.unpack_from("<Q", head, L.FRAME_SEQ)
        (left,) = struct.unpack_from("<I", head, L.FRAME_BATCH_LEFT)
        if seq == expected:
            return expected + left
        return None if not any(head) else -1

    def settle(self) -> None:
        """Decide about an earlier tail: more than one batch behind it makes it damage."""
        if self.tail is None:
            return
        watched = self.scan.watched
        if watched is not None:
            one, total = watched
            self.tail.one_batch = one and self.tail.sum in (None, total)
        if not self.tail.one_batch:
            for hole in (self.tail.hole, *self.tail.inner):
                self.add(hole)
            self.tail = None

    def found(self) -> None:
        """The scan goes on at the next valid frame, or there is none."""
        assert self.open is not None
        hole, self.open = self.open, None
        scan = self.scan
        if not hole.batch:
            there = scan.at > hole.offset
            hole = replace(
                hole,
                next_at=scan.at if there else None,
                next_seq=scan.walked()["next_seq"] if there else None,
            )
        tail = self.tail
        if tail is None:
            self.add(hole)
        elif tail.hole.offset == hole.offset:
            tail.hole = hole
            tail.dirty = tail.start if tail.start < hole.offset else scan.dirty
            if tail.dirty is not None and tail.start < self.head and tail.dirty < self.head:
                self.add(hole)  # control knows of frames there, and something else is there
                self.tail = None
        elif len(tail.inner) < HOLES_MAX:
            tail.inner.append(hole)


def scan_frames(
    source: Source, header: Header, limit: int, *, sure: int, head: int, mark: int
) -> Frames:
    """Check every frame up to ``limit``.

    Below ``sure`` every frame must be valid; below ``head`` too, unless there are zeros only.
    """
    scan = scan_of(header, limit, mark=mark)
    finder = _Finder(source, scan, sure, head)
    end: Literal["rolled", "limit", "lost"] = "limit"
    for status in pump(scan, source):
        if status in ("damaged", "batch"):
            finder.damaged(batch=status == "batch")
        elif status in ("found", "lost"):
            finder.found()
            if status == "lost":
                end = "lost"
    if scan.batch_start is not None and end == "limit":
        finder.damaged(batch=True)
        end = "lost"
    finder.settle()
    walk = scan.walked()
    if walk["rolled"]:
        end = "rolled"
    return Frames(
        walk=walk,
        frames=scan.frames,
        end=end,
        holes=finder.holes,
        holes_more=finder.more,
        tail=finder.tail,
        index=scan.index_bytes(),
        topics=scan.topics(),
        marked=scan.walked_at_mark(),
        gave_up=scan.exhausted,
    )


@dataclass(slots=True)
class Segment:
    """One file with a segment's name."""

    path: str
    name_base: int
    size: int = 0
    limit: int = 0  # frames were looked for up to here
    required: int = 0  # and have to be there up to here
    header: Header | None = None  # as read, or as guessed
    guessed: bool = False
    error: PenstockError | None = None  # why the header could not be read
    newer: bool = False  # the header is whole, but of another version
    slots: list[Slot | None] = field(default_factory=list)
    slots_bad: list[int] = field(default_factory=list)  # offsets of slots that hold something else
    footer: Summary | None = None
    footer_bad: bool = False
    index_bad: int | None = None  # first entry that is not what the frames want
    index_wanted: int = 0  # entries that were compared
    producers_bad: bool = False
    frames: Frames | None = None
    unreadable: list[int] = field(default_factory=list)

    @property
    def base(self) -> int:
        """The first seq that it covers."""
        return self.header.base_seq if self.header is not None else self.name_base

    @property
    def slot(self) -> Slot | None:
        """The newer valid checkpoint."""
        return max((s for s in self.slots if s), key=lambda s: s.generation, default=None)

    @property
    def sure(self) -> int:
        """Frames up to here were on the device once."""
        slot = self.slot
        if self.footer is not None:
            return self.footer.data_end
        return slot.offset if slot is not None and slot.generation > 1 else 0

    @property
    def walk(self) -> dict[str, Any]:
        """The walk over its valid frames."""
        assert self.frames is not None
        return self.frames.walk

    @property
    def leads_to(self) -> int | None:
        """The base of its successor, if it has rolled."""
        if self.frames is not None and self.frames.end == "rolled":
            return int(self.walk["next_seq"])
        return self.footer.next_seq if self.footer is not None else None


def look(path: str, base: int) -> Segment | None:
    """Read the header of a file named for seq ``base``; None if it is gone."""
    found = Segment(path, base)
    try:
        source = Source(path)
    except NotFound:
        return None
    except PenstockError as error:
        found.error = error
        return found
    try:
        found.size = source.size
        page = source.read(0, L.PAGE)
        found.unreadable = source.unreadable
        found.header = Header.unpack(page, path)
    except UnsupportedVersion as error:
        found.error = error
        found.newer = segment.page_is_good(page, L.HEADER_CRC)
    except Corrupt as error:
        found.error = error
    finally:
        source.close()
    return found


def examine(
    found: Segment,
    *,
    head: int = 0,
    live_end: int | None = None,
    index_sure: int = 0,
    passed: Callable[[int], None] | None = None,
) -> None:
    """Check everything that a segment holds; the header is known or guessed.

    ``head`` is where control says that the frames end, ``live_end`` the same of a log that has
    writers: what lies behind that is not looked at. Index entries up to ``index_sure`` are in use.
    """
    header = found.header
    assert header is not None
    source = Source(found.path, passed)
    try:
        found.size = source.size
        _read_slots(found, source, header)
        if live_end is None:
            _read_footer(found, source, header)
        table = source.read(header.producers_offset, header.producers_bytes)
        wanted = (header.producers_bytes, header.producers_crc)
        found.producers_bad = bool(header.producers_bytes) and (
            (len(table), _core.crc32c(table)) != wanted
        )
        limit = min(found.size, header.footer_offset)
        sure = found.sure
        if live_end is not None:
            limit = min(limit, live_end)
            sure = live_end
        found.limit, found.required = limit, sure
        slot = found.slot
        found.frames = scan_frames(
            source, header, limit, sure=sure, head=head, mark=slot.offset if slot else 0
        )
        if found.footer is None and found.footer_bad:
            _read_footer(found, source, header)  # it may just have been written
        _check_index(found, source, max(index_sure, slot.index_count if slot else 0))
        found.unreadable = source.unreadable
    finally:
        source.close()


def _read_slots(found: Segment, source: Source, header: Header) -> None:
    found.slots, found.slots_bad = [], []
    for at in SLOTS:
        data = source.read(at, L.SLOT_BYTES)
        slot = Slot.unpack(data, header)
        if slot is None and any(data):
            slot = Slot.unpack(source.read(at, L.SLOT_BYTES), header)  # one is being written
            if slot is None:
                found.slots_bad.append(at)
        found.slots.append(slot)


def _read_footer(found: Segment, source: Source, header: Header) -> None:
    page = source.read(header.footer_offset, L.PAGE)
    if source.size == header.segment_bytes:
        found.footer = Summary.unpack(page, header)
    found.footer_bad = found.footer is None and any(page)


def _check_index(found: Segment, source: Source, sure: int) -> None:
    """Compare the index with the one that the frames want, as far as it counts for anything."""
    frames, footer = found.frames, found.footer
    assert frames is not None
    if footer is not None:
        there = source.read(L.INDEX_OFFSET, footer.index_count * L.INDEX_ENTRY_BYTES)
        found.index_wanted = footer.index_count
        wanted = frames.index + segment.open_block(frames.walk)
        if frames.damaged or frames.end != "rolled" or len(wanted) != len(there):
            if _core.crc32c(there) != footer.index_crc:
                found.index_bad = 0
            return
    else:
        walk = frames.tail.walk if frames.tail is not None else frames.walk
        if frames.damaged:
            return
        wanted = frames.index[: walk["index_count"] * L.INDEX_ENTRY_BYTES]
        there = source.read(L.INDEX_OFFSET, len(wanted))
        found.index_wanted = min(sure, walk["index_count"])
    if there != wanted:
        size = L.INDEX_ENTRY_BYTES
        found.index_bad = next(
            i for i in range(len(wanted)) if there[i * size :][:size] != wanted[i * size :][:size]
        )


def guess_header(found: Segment, before: Segment | None, after: Segment | None) -> Header | None:
    """A header for a segment that lost its own, from what its neighbours say; None if neither can.

    The candidate sizes are the neighbours'; the one whose first frame is valid is taken.
    """
    near = before if before is not None and before.header is not None else after
    if near is None or near.header is None:
        return None
    number = near.header.number + (1 if near is before else -1)
    if number < 1:
        return None
    guess = replace(
        near.header,
        base_seq=found.name_base,
        number=number,
        generation=1,  # seqs may have holes, for all that is known
        prior_append_ns=0,
        prior_event_max_ns=0,
        monotone=number == 1 or near.header.monotone,  # times before it cannot have been worse
        producers_bytes=0,
        producers_crc=0,
    )
    if near is before and before is not None and before.frames is not None:
        walk = before.walk
        guess = replace(
            guess,
            prior_append_ns=walk["last_append_ns"],
            prior_event_max_ns=walk["event_max_ns"],
            monotone=walk["monotone"],
            created_ns=walk["last_append_ns"],
        )
    sizes = {n.header.segment_bytes for n in (before, after) if n is not None and n.header}
    if found.size % L.PAGE == 0 and L.SEGMENT_BYTES_MIN <= found.size <= L.SEGMENT_BYTES_MAX:
        sizes.add(found.size)
    guesses = [replace(guess, segment_bytes=n) for n in sorted(sizes)]
    guesses.sort(key=lambda h: h.segment_bytes != near.header.segment_bytes)  # type: ignore[union-attr]
    source = Source(found.path)
    try:
        for header in guesses:
            footer = _footer_for(source, header)
            if footer is not None:
                return footer
        for header in guesses:
            for nbytes in range(0, header.segment_bytes // L.PRODUCERS_SHARE + 1, L.PAGE):
                with_table = replace(header, producers_bytes=nbytes)
                if _first_frame_fits(source, with_table):
                    return with_table
    finally:
        source.close()
    return guesses[0]


def _footer_for(source: Source, header: Header) -> Header | None:
    """The header with what a valid footer says about it."""
    if source.size != header.segment_bytes:
        return None
    page = source.read(header.footer_offset, L.PAGE)
    if len(page) < L.PAGE:
        return None
    number, generation = struct.unpack_from("<II", page, L.FOOTER_NUMBER)
    told = replace(header, number=number, generation=generation)
    return told if Summary.unpack(page, told) is not None else None


def _first_frame_fits(source: Source, header: Header) -> bool:
    """Whether the first frame stands where that header says that frames begin."""
    limit = min(source.size, header.footer_offset)
    at = header.data_offset
    start = source.read(at, L.FRAME_HEADER_BYTES) if at + L.FRAME_HEADER_BYTES <= limit else b""
    if len(start) < L.FRAME_HEADER_BYTES or not any(start):
        return False
    (commit,) = struct.unpack_from("<I", start, L.FRAME_COMMIT)
    seq, _, back = struct.unpack_from("<QQI", start, L.FRAME_SEQ)
    fits = back == 0 and seq >= header.base_seq and 0 < commit <= limit - at
    return fits and source.frame_is_valid(at, commit)
