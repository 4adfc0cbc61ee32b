"""Find the dead events of a log, in bounded memory whatever the number of keys.

Frames are taken from the newest to the oldest, so the first event of a key that is met is its last
one. What finds no room in memory goes to a file without a name, key by key in 64 parts, and each
part is surveyed afterwards in the same way. Nothing of the log is changed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from penstock import _core
from penstock._core import KeySurvey, LiveFrames, SegmentMap
from penstock.errors import Busy, Internal, NotFound
from penstock.segments import segment
from penstock.segments.segment import Header, SegmentSummary
from penstock.system import files
from penstock.system.directory import Directory, Name

UNIT = 8  # bytes of frames for one bit
READ_BYTES = 1 << 20  # of spilled events at a time; a multiple of a record
RECORD_BYTES = 24
_PARTS = 64


@dataclass(slots=True)
class Candidate:
    """A sealed segment, and what was found in it."""

    path: Name
    header: Header
    summary: SegmentSummary
    first_bit: int = 0  # of its frames, in the bits of live events
    settings_at: int = 0  # newest settings frame, 0: none
    producer_at: int = 0  # newest producer frame, 0: none
    events: int = 0  # that live
    nbytes: int = 0
    dead: int = 0
    dead_bytes: int = 0

    @property
    def base(self) -> int:
        """The first seq that it covers."""
        return self.header.base_seq

    @property
    def frames_bytes(self) -> int:
        """Bytes of all its frames."""
        return self.summary.data_end - self.header.data_offset

    def open(self) -> SegmentMap:
        """A map of it."""
        try:
            m, header = segment.map_segment(self.path)
        except NotFound:
            m = None
        if m is None or header.generation != self.header.generation or not m.data_end:
            raise Busy(f"{self.path}: another maintenance job has just replaced it; try again")
        return m


@dataclass(frozen=True, slots=True)
class Rules:
    """What makes an event dead."""

    versions: int
    grace_ns: int
    drop_keyless: bool
    memory: int  # bytes for the table of keys
    now_ns: int
    ttl_ns: int  # of the log
    first_seq: int  # events below it are gone


@dataclass(slots=True)
class Bits:
    """A bit for each place where a frame of a candidate may begin: 1 if it lives.

    They are in a file, so that the kernel can write them back; its blocks are allocated first,
    since a full disk must not be a signal.
    """

    area: mmap.mmap

    @classmethod
    def of(cls, directory: Directory, candidates: Sequence[Candidate]) -> Bits:
        """Bits for these segments, none of them set."""
        total = 0
        for candidate in candidates:
            candidate.first_bit = total
            total += candidate.frames_bytes // UNIT + 1
            total += -total % 64
        nbytes = segment.pages(total // 8 + 8)
        fd = files.unnamed_file(directory)
        try:
            files.allocate(fd, 0, nbytes, directory.path)
            return cls(mmap.mmap(fd, nbytes))
        finally:
            files.close(fd)


@dataclass(slots=True)
class _Spill:
    """Events of keys without room, part by part, in a file without a name."""

    directory: Directory
    fd: int = -1
    end: int = 0
    parts: list[list[tuple[int, int]]] = field(default_factory=lambda: [[] for _ in range(_PARTS)])

    def take(self, part: int, data: bytes) -> None:
        """Append events of a part."""
        if self.fd < 0:
            self.fd = files.unnamed_file(self.directory)
        files.write_at(self.fd, data, self.end, self.directory.path)
        pieces = self.parts[part]
        if pieces and sum(pieces[-1]) == self.end:
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + len(data))
        else:
            pieces.append((self.end, len(data)))
        self.end += len(data)

    def read(self, part: int, survey: KeySurvey) -> None:
        """Give the events of a part to a survey, in their order."""
        step = READ_BYTES // RECORD_BYTES * RECORD_BYTES
        for start, nbytes in self.parts[part]:
            for at in range(start, start + nbytes, step):
                wanted = min(step, start + nbytes - at)
                data = files.read_at(self.fd, wanted, at, self.directory.path)
                if len(data) != wanted:
                    raise Internal(f"{self.directory}: a temporary file was cut short")
                survey.take_records(data)

    def close(self) -> None:
        """Delete the file."""
        if self.fd >= 0:
            files.close(self.fd)
            self.fd = -1


def find_dead(
    directory: Directory,
    candidates: Sequence[Candidate],
    newer: Iterable[tuple[SegmentMap, int, int]],
    rules: Rules,
    passed: Callable[[int], None],
) -> tuple[Bits, int]:
    """The bits of live events, and how many events were spilled; candidates are measured.

    ``candidates`` are sealed segments, oldest first; ``newer`` is what follows them, newest first:
    map, offset of the last frame, and its end. Those only count. ``passed`` is told bytes.
    """
    bits = Bits.of(directory, candidates)
    spill = _Spill(directory)
    survey = KeySurvey(
        rules.memory,
        bits.area,
        os.urandom(16),
        spill.take,
        versions=rules.versions,
        now_ns=rules.now_ns,
        ttl_ns=rules.ttl_ns,
        grace_ns=rules.grace_ns,
        first_seq=rules.first_seq,
        drop_keyless=rules.drop_keyless,
    )
    try:
        for m, last, end in newer:
            survey.take(m, last, end, 0, stays=True)
        for candidate in reversed(candidates):
            m = candidate.open()
            summary = candidate.summary
            survey.take(m, summary.last_frame, summary.data_end, candidate.first_bit)
            candidate.settings_at = survey.settings_at
            candidate.producer_at = survey.producer_at
            candidate.dead, candidate.dead_bytes = survey.events, survey.nbytes  # all, so far
            if not survey.spilled:
                _measure(candidate, bits, m)
            passed(candidate.frames_bytes)
            _core.fail_point("compact.surveyed")
        survey.empty()
        _survey_parts(survey, spill, 1)
    finally:
        spill.close()
    for candidate in candidates if survey.spilled else ():
        _measure(candidate, bits, candidate.open())
    return bits, survey.spilled


def _survey_parts(survey: KeySurvey, spill: _Spill, depth: int) -> None:
    """Survey what was spilled, part by part; a part may spill again."""
    for part in range(_PARTS):
        if not spill.parts[part]:
            continue
        deeper = _Spill(spill.directory)
        try:
            survey.begin(depth, deeper.take)
            spill.read(part, survey)
            survey.empty()
            _survey_parts(survey, deeper, depth + 1)
        finally:
            deeper.close()


def _measure(candidate: Candidate, bits: Bits, m: SegmentMap) -> None:
    """Note how many of the events of a candidate live; the sums are known."""
    all_events, all_bytes = (
        candidate.events + candidate.dead,
        candidate.nbytes + candidate.dead_bytes,
    )
    live = LiveFrames(m, candidate.summary.data_end, bits.area, candidate.first_bit).measure()
    candidate.events, candidate.nbytes = live.events, live.nbytes
    candidate.dead, candidate.dead_bytes = all_events - live.events, all_bytes - live.nbytes


def measure_key(candidate: Candidate, key: bytes) -> None:
    """Note how many events of a candidate have a key, and so are dead; each frame is checked."""
    m, end = candidate.open(), candidate.summary.data_end
    found = LiveFrames(m, end, key=key).measure(check=True)
    candidate.events, candidate.nbytes = found.events, found.nbytes
    candidate.dead, candidate.dead_bytes = found.dead, found.dead_bytes
