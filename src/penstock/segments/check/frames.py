"""Reading a segment's frames without trusting a byte: the file in pieces, and what a scan finds.

It reads into private memory and changes nothing. Pages that cannot be read count as zeros.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from penstock import _core
from penstock import layout as L
from penstock._core import FrameScan, Walked
from penstock.errors import Io
from penstock.segments.segment import Header
from penstock.system import files
from penstock.tunables import SCAN_WINDOW_BYTES

HOLES_MAX = 1000  # damaged places of one segment that are listed one by one


class FileSource:
    """A file to read from. Pages that the device cannot read count as zeros, and are noted."""

    def __init__(self, path: str, passed: Callable[[int], None] | None = None) -> None:
        self.path = path
        self.unreadable: list[int] = []
        self._passed = passed
        self._fd = files.open_file(path, write=False)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise Io(f"{path}: is not a file; move it away", filename=path)
            self.size = files.size(self._fd, path)
            self.inode = os.fstat(self._fd).st_ino
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        files.close(self._fd)

    def look_again(self) -> int:
        """The file's size now."""
        self.size = files.size(self._fd, self.path)
        return self.size

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
        wanted = L.FRAME.get(self.read(offset, L.FRAME_HEADER_BYTES), "crc")
        value = 0
        while at < end:
            data = self.read(at, min(SCAN_WINDOW_BYTES, end - at))
            if not data:
                return False
            value = _core.crc32c(data, value)
            at += len(data)
        return value == wanted


@dataclass(frozen=True, slots=True)
class Hole:
    """A place without a valid frame, or where a batch is incomplete."""

    offset: int
    reason: str
    expected: int  # the seq that belongs there
    batch: bool  # the frame is valid, but the batch before it is incomplete
    newer: bool  # the frame is intact, but of a kind that this version does not know
    next_at: int | None = None  # the next valid frame
    next_seq: int | None = None  # and its seq


@dataclass(slots=True)
class Tail:
    """A hole that may be an unfinished append, and the state before it."""

    hole: Hole
    start: int  # where the incomplete batch begins
    walk: Walked
    frames: int
    sum: int | None  # seq + batch_left of the frames that belong to that batch; None: unknown
    dirty: int | None = None
    one_batch: bool = True  # all valid frames after it belong to that batch
    inner: list[Hole] = field(default_factory=list)  # holes after it


@dataclass(slots=True)
class Frames:
    """What a scan found."""

    walk: Walked
    frames: int
    end: Literal["rolled", "limit", "lost"]
    holes: list[Hole]
    holes_more: int
    tail: Tail | None
    index: bytes
    topics: frozenset[bytes] | None
    marked: Walked
    gave_up: bool
    unfiltered: int  # seq of the first event whose key the key filter lacks; 0: none

    @property
    def damaged(self) -> bool:
        """Whether there are holes, but for a tail that may be unfinished."""
        return bool(self.holes)


def pump(scan: FrameScan, source: FileSource) -> Iterator[str]:
    """Run a scan over a file, feeding it the bytes that it requests; yields what it finds."""
    while True:
        status = scan.run()
        if status == "more":
            yield status
            at = scan.at
            wanted = min(SCAN_WINDOW_BYTES, scan.limit - at)
            data = source.read(at, wanted)
            if len(data) < wanted:
                scan.shorten(at + len(data))
            scan.feed(data)
        elif status == "sum":
            at = scan.at
            commit = L.FRAME.get(source.read(at, L.FRAME_HEADER_BYTES), "commit")
            scan.summed(source.frame_is_valid(at, commit))
        else:
            yield status
            if status == "end":
                return


def scan_of(header: Header, limit: int, **options: Any) -> FrameScan:
    """A scan over the frames of a segment with that header."""
    return FrameScan(
        header.data_offset,
        header.base_seq,
        max(limit, header.data_offset),
        holes=header.generation > 0,
        prior_append_ns=header.prior_append_ns,
        prior_event_max_ns=header.prior_event_max_ns,
        monotone=header.monotone,
        **options,
    )


class _HoleFinder:
    """Collects the holes of one scan, and distinguishes an unfinished append from damage."""

    def __init__(self, source: FileSource, scan: FrameScan, sure: int, head: int) -> None:
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
        """The scan is at an invalid frame, or after an incomplete batch."""
        scan = self.scan
        expected = scan.walked().next_seq
        reason = "an incomplete batch before it" if batch else scan.reason
        self.open = Hole(scan.at, reason, expected, batch, not batch and scan.unknown_kind)
        self.judge_tail()
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
        head = self.source.read(start, L.FRAME_HEADER_BYTES)
        if L.FRAME.get(head, "seq") == expected:
            return expected + L.FRAME.get(head, "batch_left")
        return None if not any(head) else -1

    def judge_tail(self) -> None:
        """Decide about an earlier tail: more than one batch after it makes it damage."""
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
                next_seq=scan.walked().next_seq if there else None,
            )
        tail = self.tail
        if tail is None:
            self.add(hole)
        elif tail.hole.offset == hole.offset:
            tail.hole = hole
            tail.dirty = tail.start if tail.start < hole.offset else scan.dirty
            if tail.dirty is not None and tail.start < self.head and tail.dirty < self.head:
                self.add(hole)  # control says that frames are there, but other bytes are
                self.tail = None
        elif len(tail.inner) < HOLES_MAX:
            tail.inner.append(hole)


def scan_frames(
    source: FileSource,
    header: Header,
    limit: int,
    *,
    sure: int,
    head: int,
    mark: int,
    key_filter: bytes | None = None,
) -> Frames:
    """Check every frame up to ``limit``, and whether the key filter, if given, has all keys.

    Below ``sure`` every frame must be valid; below ``head`` too, unless there are only zeros.
    """
    scan = scan_of(header, limit, mark=mark, key_filter=key_filter)
    finder = _HoleFinder(source, scan, sure, head)
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
    finder.judge_tail()
    walk = scan.walked()
    if walk.rolled:
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
        unfiltered=scan.unfiltered_seq,
    )
