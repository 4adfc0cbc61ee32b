"""Check an archive: every block, frame and index, and that no segment is missing."""

from __future__ import annotations

from dataclasses import replace

from penstock import _core
from penstock import layout as L
from penstock._core import SegmentMap
from penstock.archive import seekable
from penstock.archive.history import History
from penstock.errors import Corrupt
from penstock.report import Problem, Progress, Report
from penstock.segments import segment
from penstock.segments.check.frames import FileSource, Frames, scan_frames
from penstock.system.forks import Begun


class _MapSource(FileSource):
    """A map to read from."""

    def __init__(self, m: SegmentMap) -> None:
        self.path = m.path
        self.unreadable = []
        self.size = m.file_bytes
        self._map = m

    def close(self) -> None:
        """There is nothing to close."""

    def look_again(self) -> int:
        return self.size

    def read(self, offset: int, nbytes: int) -> bytes:
        return self._map.bytes_at(offset, max(0, min(nbytes, self.size - offset)))


def check_archive(
    past: History, where: str, progress: Progress | None, first_local: int = 0
) -> Report:
    """Check the archived segments before the first local one; 0: all of them."""
    begun = Begun("verification")
    bases = past.bases(first_local)
    total, done = sum(past.entry(base).nbytes for base in bases), 0
    report = Report(where, 0, 0, 0, 0, None, None, False, ())
    leads_to = 0
    for base in bases:
        if leads_to and leads_to != base:
            report = _with(report, _missing(where, leads_to, base))
        leads_to = 0
        try:
            m = past.open(base)
            report = _added(report, m, _check(past, m))
            leads_to = m.next_seq
        except Corrupt as error:
            path = str(error.path or where)
            message = str(error).removeprefix(f"{path}: ")
            report = _with(report, Problem("frame", "damage", path, message, error.offset))
        done += past.entry(base).nbytes
        if progress is not None:
            progress(done, total)
            begun.check()
    if leads_to and first_local and leads_to != first_local:
        report = _with(report, _missing(where, leads_to, first_local))
    return report


def _with(report: Report, problem: Problem) -> Report:
    return replace(report, problems=(*report.problems, problem))


def _missing(where: str, first: int, after: int) -> Problem:
    return Problem(
        "missing",
        "damage",
        where,
        f"the archived segment of seq {first} is missing; put it back from a copy",
        lost=(first, after - 1),
    )


def _added(report: Report, m: SegmentMap, frames: Frames) -> Report:
    count = frames.walk.count
    return replace(
        report,
        segments=report.segments + 1,
        events=report.events + count,
        frames=report.frames + frames.frames,
        bytes=report.bytes + m.data_end - m.data_offset,
        first_seq=report.first_seq or (frames.walk.first_seq if count else None),
        last_seq=frames.walk.last_seq if count else report.last_seq,
    )


def _check(past: History, m: SegmentMap) -> Frames:
    """Check all of one segment."""
    m.want(0, m.file_bytes)
    header = seekable.header_of(past.archived(m.base_seq), m.bytes_at(0, L.INDEX_OFFSET))
    frames = scan_frames(_MapSource(m), header, m.data_end, sure=m.data_end, head=0, mark=0)
    if frames.holes or frames.walk.offset != m.data_end:
        at = frames.holes[0].offset if frames.holes else frames.walk.offset
        raise m.damage(at, 2, frames.walk.next_seq - 1)
    index = frames.index + segment.open_block(frames.walk)
    stored = m.bytes_at(L.INDEX_OFFSET, m.index_count * L.INDEX_ENTRY_BYTES)
    if index != stored or _core.crc32c(stored) != m.index_crc:
        raise Corrupt(
            f"{m.path}: its index is not that of its frames", path=m.path, offset=L.INDEX_OFFSET
        )
    if m.filter_pages and m.key_filter(m.data_end) != m.bytes_at(
        m.filter_at, m.filter_pages * L.PAGE
    ):
        raise Corrupt(
            f"{m.path}: its key filter is not that of its events", path=m.path, offset=m.filter_at
        )
    return frames


def joined(archive: Report, local: Report) -> Report:
    """What was found in the archive of a log, and in its own files, as one report."""
    return replace(
        local,
        segments=archive.segments + local.segments,
        events=archive.events + local.events,
        frames=archive.frames + local.frames,
        bytes=archive.bytes + local.bytes,
        first_seq=archive.first_seq or local.first_seq,
        last_seq=local.last_seq or archive.last_seq,
        problems=archive.problems + local.problems,
    )
