"""A load whose segments are staged files: their frames get their seqs and times in place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock import _core
from penstock import layout as L
from penstock._core import Given, SegmentMap, StagedFrames, Walked
from penstock.errors import PenstockError
from penstock.segments import segment
from penstock.segments.ending import Active
from penstock.segments.load import Private
from penstock.segments.segment import Header
from penstock.segments.staging import Staged, check_size, cut_short
from penstock.steward.seal import seal_finished, seal_walked, topics_of
from penstock.system import files
from penstock.system.directory import Name
from penstock.system.parallel import Unwanted, in_order

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.segments.storage import SegmentStorage

THREADS_MAX = 4


@dataclass(frozen=True)
class Taken:
    """A staged file that became a segment, and its content."""

    path: Name
    header: Header
    walk: Walked
    topics: frozenset[bytes] | None


class Adopted(Private):
    """A load whose segments are made of staged files.

    The first event is written again, after those of the active segment, as in every load; a pad
    replaces it.
    """

    def __init__(self, log: Handle, storage: SegmentStorage, staged: Sequence[Staged]) -> None:
        super().__init__(log, storage, _first_event(staged[0]))
        self.count = sum(s.rows for s in staged)
        self._staged = staged
        self._taken: list[Taken] = []
        try:
            for one, header in zip(staged, self._provisional(), strict=True):
                files.rename(one.path, self._file(header))
        except BaseException:
            self.remove()
            raise

    def _file(self, header: Header) -> Name:
        return self._directory.file(segment.file_name(header.base_seq))

    def finish(self) -> None:
        """Make all of it segments on disk, each ended by a roll frame.

        Several threads work on one file each, so that one waits for the disk while another
        counts. The header fields about earlier events are known when all threads are done.
        """
        threads = min(THREADS_MAX, (os.cpu_count() or 1) + 1)
        found = in_order(
            self._take,
            list(zip(self._staged, self._provisional(), strict=True)),
            threads,
            "penstock-adopt",
        )
        taken = list(found)
        self._taken = self._dated(taken)
        others = [
            new for new, old in zip(self._taken, taken, strict=True) if new.header != old.header
        ]
        for _ in in_order(_put_header, others, threads, "penstock-adopt"):
            pass
        self._headers = [taken.header for taken in self._taken]
        self._files = [taken.path for taken in self._taken]

    def _provisional(self) -> Iterator[Header]:
        """The headers, as far as they are known before reading."""
        seq = self._first.base_seq
        for i, staged in enumerate(self._staged):
            yield replace(
                self._first,
                base_seq=seq,
                number=self._first.number + i,
                prior_append_ns=self._stamp_ns,
            )
            seq += staged.rows - (i == 0)

    def _take(self, one: tuple[Staged, Header], unwanted: Unwanted) -> Taken:
        """Make one file a segment whose frames are on disk."""
        m, walk = self._fill(*one)
        files.sync_data(m.fd, m.path)
        return Taken(self._file(one[1]), one[1], walk, topics_of(m, one[1], walk))

    def _dated(self, taken: Iterable[Taken]) -> list[Taken]:
        """The same with headers that have the times of earlier events, in order."""
        event_max_ns, monotone = self._first.prior_event_max_ns, self._first.monotone
        dated = []
        for one in taken:
            header = replace(one.header, prior_event_max_ns=event_max_ns, monotone=monotone)
            monotone &= one.walk.monotone_here and one.walk.event_min_ns >= event_max_ns
            event_max_ns = max(event_max_ns, one.walk.event_seen_max_ns)
            walk = one.walk.changed(event_max_ns=event_max_ns, monotone=monotone)
            dated.append(replace(one, header=header, walk=walk))
        return dated

    def _fill(self, staged: Staged, header: Header) -> tuple[SegmentMap, Walked]:
        """Make the frames of one file those of a segment, after a header to be written again."""
        path = self._file(header)
        fd = files.open_file(path, write=True)
        try:
            check_size(fd, staged)
            stop = segment.pages(staged.end + L.FRAME_HEADER_BYTES)
            files.allocate(fd, files.size(fd, path), stop, path)
            segment.put_start(fd, header, path)
        finally:
            files.close(fd)
        m, _ = segment.map_segment(path, write=True)
        lead = header.base_seq == self._first.base_seq
        walk = _core.adopt_frames(
            m, staged.end, staged.rows, staged.digest, self._stamp_ns, lead, staged.path
        )
        end = m.write_frame(
            staged.end, L.KIND_ROLL, b"", walk.next_seq, self._stamp_ns, walk.last_frame
        )
        walk, _, _ = m.walk(end, resume=walk, write_index=True)
        return m, walk

    def _renumber(self, end: Active, *, moved: bool) -> Active:
        if not moved:
            last = self._taken[-1]
            return Active(segment.map_segment(last.path, write=True)[0], last.header, last.walk)
        self._headers.clear()
        self._taken.clear()
        return super()._renumber(end, moved=True)

    def seal(self) -> None:
        """Seal what is published and on disk, while its content is known.

        Earlier segments come first: sealing looks back only as far as a sealed one.
        """
        store = self._storage.store
        try:
            if self._taken:
                seal_finished(store, self._taken[0].header.base_seq, {})
            for one in self._taken:
                m, _ = segment.map_segment(store.file(one.header.base_seq), write=True)
                if not m.data_end:  # no other process has sealed it
                    seal_walked(m, one.header, one.walk, one.topics)
        except PenstockError as error:
            self._log._record.failed("seal", error)


def _put_header(taken: Taken, unwanted: Unwanted) -> None:
    fd = files.open_file(taken.path, write=True)
    try:
        segment.put_start(fd, taken.header, taken.path)
        files.sync_data(fd, taken.path)
    finally:
        files.close(fd)


def _first_event(staged: Staged) -> Given:
    """The first event of a file."""
    fd = files.open_file(staged.path, write=False)
    try:
        check_size(fd, staged)
        head = files.read_at(fd, L.FRAME_HEADER_BYTES, staged.start, staged.path)
        nbytes = L.FRAME_HEADER_BYTES + L.FRAME.get(head, "commit") - 1
        if not L.FRAME_HEADER_BYTES <= nbytes <= staged.nbytes:
            raise cut_short(staged)
        data = files.read_at(fd, nbytes + -nbytes % L.ALIGN, staged.start, staged.path)
    finally:
        files.close(fd)
    frames = StagedFrames()
    frames.add(data, 1, _core.crc32c(data[: L.FRAME_SEQ]), staged.path)
    return frames.rows()
