"""Staged events: put aside as frames, by anybody anywhere, until a log takes them all as one unit.

A staged file looks like a segment that has frames but no header: room for that and for the index,
then the frames (`_staged.pxi`). Files that fill a good part of a segment become segments as they
are, several at a time, if they lie on the log's own file system: their frames get their seqs and
times in place, and nothing is copied. Others are appended event by event, as any batch or load.

Nobody believes a staged file: whoever wrote it says how many events it holds and their digest, and
every frame is checked before anything is published. A file that is given to a log is gone then,
whether that succeeds or not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock import _core
from penstock import layout as L
from penstock._core import Frames, Given, SegmentMap, Walked
from penstock.errors import Corrupt, Io, PenstockError, TooLarge
from penstock.segments import segment
from penstock.segments.ending import Active
from penstock.segments.load import Private, Ready, acknowledge, begin, load_into
from penstock.segments.segment import Header
from penstock.settings import BYTES
from penstock.steward.seal import seal_finished, seal_walked, topics_of
from penstock.system import files
from penstock.system.directory import Name
from penstock.system.forks import Begun
from penstock.system.parallel import Unwanted, in_order

if TYPE_CHECKING:
    from penstock.log import Log
    from penstock.segments.log import SegmentedLog

SUFFIX = ".frames"
SHARE = 4  # what is less than this part of a segment is no segment of its own
THREADS_MAX = 4


@dataclass(frozen=True)
class Staged:
    """One file of staged events, and what whoever wrote it says of them."""

    path: str
    rows: int
    segment_bytes: int
    end: int
    digest: int

    @property
    def start(self) -> int:
        """Where its frames begin."""
        return _start(self.segment_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all its frames."""
        return self.end - self.start


def _start(segment_bytes: int) -> int:
    return L.INDEX_OFFSET + segment.index_bytes_for(segment_bytes)


class Writer:
    """Puts rows aside in files ``stem-0``, ``stem-1``, …; each has its name once it is whole."""

    def __init__(self, stem: str, segment_bytes: int, mode: int) -> None:
        self._stem = stem
        self._segment_bytes = segment_bytes
        self._mode = mode
        self._start = _start(segment_bytes)
        self._stop = self._start + segment.room_in(segment_bytes)
        self._done: list[Staged] = []
        self._begun = Begun("write of staged rows")
        self._fd = -1
        self._at = self._rows = self._last = self._digest = 0

    def write(self, given: Iterable[Given]) -> tuple[Staged, ...]:
        """Stage all rows; if that fails, nothing is left."""
        try:
            for rows in given:
                self._begun.check()
                self._add(rows)
            self._begun.check()
            self._finish()
        except BaseException:
            self._clear()
            raise
        finally:
            if self._fd >= 0:
                files.close(self._fd)
        return tuple(self._done)

    def _clear(self) -> None:
        """Delete what was written; in a child of a fork it is the parent's."""
        if self._begun.here:
            with suppress(PenstockError):
                for staged in self._done:
                    files.unlink(staged.path)
                if self._fd >= 0:
                    files.unlink(self._temporary)

    @property
    def _path(self) -> str:
        return f"{self._stem}-{len(self._done)}{SUFFIX}"

    @property
    def _temporary(self) -> str:
        return f"{self._path}.tmp"

    def _add(self, rows: Given) -> None:
        while len(rows):
            if self._fd < 0:
                self._begin()
            room = self._stop - self._at
            taken = len(rows)
            frames, last, digest = self._frames(rows)
            if len(frames) > room:
                taken = rows.fitting(room, taken)
                frames, last, digest = self._frames(rows[:taken])
            if len(frames) <= room:
                files.write_at(self._fd, frames, self._at, self._temporary)
                self._rows += taken
                self._at += len(frames)
                self._last, self._digest = last, digest
                rows = rows[taken:]
            elif self._rows:
                self._finish()
            else:
                raise TooLarge(
                    f"{len(frames)} bytes do not fit a segment of {self._segment_bytes}; nothing "
                    "was written"
                )

    def _frames(self, rows: Given) -> tuple[bytes, int, int]:
        return _core.stage_frames(rows, self._rows + 1, self._last, self._digest)

    def _begin(self) -> None:
        self._fd = files.create_file(self._temporary, self._mode)
        segment.mark_begun(self._fd, self._temporary)
        files.allocate(self._fd, 0, self._start, self._temporary)
        self._at = self._start
        self._rows = self._last = self._digest = 0

    def _finish(self) -> None:
        """Give the file its name, if there is one; the roll frame will find room in it."""
        if self._fd < 0:
            return
        end = segment.pages(self._at + L.FRAME_HEADER_BYTES)
        files.allocate(self._fd, self._at, end, self._temporary)
        files.rename(self._temporary, self._path)
        self._done.append(
            Staged(self._path, self._rows, self._segment_bytes, self._at, self._digest)
        )
        files.close(self._fd)
        self._fd = -1


def append_staged(
    log: Log, staged: Sequence[Staged], *, producer: tuple[str, int] | None, durable: bool
) -> range:
    """Append the events of all files, in order, as one unit."""
    size = log.settings.segment_size
    nbytes = sum(s.nbytes for s in staged)
    # What fits the active segment easily goes there, as one batch: a load has segments of its own,
    # and a stream of small ones would leave two files behind every few seconds.
    if nbytes <= size // SHARE or not log._loads_apart:
        frames = Frames()
        for one in staged:
            _read(one, frames)
        return log.extend(_checked(log, frames, 0), producer=producer, durable=durable)
    if (
        nbytes >= len(staged) * (size // SHARE)
        and all(s.segment_bytes == size for s in staged)
        and staged[0].rows > 1
        and log.settings.codec == BYTES
        and _movable(staged[0], log)  # type: ignore[arg-type]
    ):
        try:
            return _adopt(log, staged, producer, durable)  # type: ignore[arg-type]
        except Io as error:
            if error.errno != errno.EXDEV:  # a mount of its own, after all
                raise
    return load_into(
        log,
        Ready(_copied(log, staged)),
        {},
        value=None,
        expect=None,
        producer=producer,
        durable=durable,
        timeout=None,
        progress=None,
        codec=None,
    )


def _copied(log: Log, staged: Sequence[Staged]) -> Iterator[Given]:
    """The rows of all files, one file in memory at a time."""
    before = 0
    for one in staged:
        frames = Frames()
        _read(one, frames)
        yield _checked(log, frames, before)
        before += one.rows


def _checked(log: Log, frames: Frames, before: int) -> Given:
    """The rows, with values that are what the log's codec wants."""
    rows = frames.rows(before)
    if log._encodes():
        rows.check(log._coder, log.path)
    return rows


def _read(staged: Staged, into: Frames) -> None:
    """Have the frames of a file in memory, checked."""
    parts = []
    fd = files.open_file(staged.path, write=False)
    try:
        _check_size(fd, staged)
        at = staged.start
        while at < staged.end:
            part = files.read_at(fd, staged.end - at, at, staged.path)
            if not part:
                raise _cut_short(staged)
            parts.append(part)
            at += len(part)
    finally:
        files.close(fd)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    into.add(data, staged.rows, staged.digest, staged.path)


def _check_size(fd: int, staged: Staged) -> None:
    room = segment.room_in(staged.segment_bytes)
    if not 0 < staged.nbytes <= room or files.size(fd, staged.path) < staged.end:
        raise _cut_short(staged)


def _cut_short(staged: Staged) -> Corrupt:
    return Corrupt(
        f"{staged.path}: what was staged here is damaged, it is not what was written: its frames "
        f"do not go up to {staged.end}. Nothing was published; run the write again",
        path=staged.path,
    )


def _movable(staged: Staged, log: SegmentedLog) -> bool:
    """Whether the file is one that could have been made in the log's directory, by this user."""
    there, here = files.status(staged.path), files.status(log._directory)
    return there.st_dev == here.st_dev and there.st_uid == os.geteuid()


def _adopt(
    log: SegmentedLog, staged: Sequence[Staged], producer: tuple[str, int] | None, durable: bool
) -> range:
    """Make the files segments of the log."""
    who, n, done = begin(log, producer)
    if done is not None:
        return acknowledge(log, done, durable, None)
    private = Adopted(log, staged)
    try:
        private.finish()
        seqs = private.publish(None, who, n, None)
    finally:
        private.remove()
    acknowledge(log, seqs, durable, None)
    if durable:
        private.seal()
    return seqs


@dataclass(frozen=True)
class Taken:
    """A staged file that is a segment now, and what is in it."""

    path: Name
    header: Header
    walk: Walked
    topics: frozenset[bytes] | None


class Adopted(Private):
    """A load whose segments are made of staged files.

    The first event is written again, behind the active segment's others, as in every load; a pad
    takes its place.
    """

    def __init__(self, log: SegmentedLog, staged: Sequence[Staged]) -> None:
        super().__init__(log, _first_event(staged[0]))
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
        """Have all of it in segments that are on the device, each ended by a roll frame.

        Several threads, each with a file of its own, so that one waits for the device while
        another counts. What headers say of the events before is known when all of them are through.
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
        """The headers, as far as they are known before anything was read."""
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
        """Make one file a segment whose frames are on the device."""
        m, walk = self._fill(*one)
        files.sync_data(m.fd, m.path)
        return Taken(self._file(one[1]), one[1], walk, topics_of(m, one[1], walk))

    def _dated(self, taken: Iterable[Taken]) -> list[Taken]:
        """The same with headers that say of the events before how late they were, and in order."""
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
        """Make the frames of one file those of a segment, behind a header to be written again."""
        path = self._file(header)
        fd = files.open_file(path, write=True)
        try:
            _check_size(fd, staged)
            behind = segment.pages(staged.end + L.FRAME_HEADER_BYTES)
            files.allocate(fd, files.size(fd, path), behind, path)
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
        """Seal what is published and on the device, while it is known what is in it.

        The segments before come first: whoever seals looks no further back than to a sealed one.
        """
        store = self._log._store
        try:
            if self._taken:
                seal_finished(store, self._taken[0].header.base_seq, {})
            for one in self._taken:
                m, _ = segment.map_segment(store.file(one.header.base_seq), write=True)
                if not m.data_end:  # nobody else has
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
        _check_size(fd, staged)
        head = files.read_at(fd, L.FRAME_HEADER_BYTES, staged.start, staged.path)
        nbytes = L.FRAME_HEADER_BYTES + int.from_bytes(head[:4], "little") - 1
        if not L.FRAME_HEADER_BYTES <= nbytes <= staged.nbytes:
            raise _cut_short(staged)
        data = files.read_at(fd, nbytes + -nbytes % 8, staged.start, staged.path)
    finally:
        files.close(fd)
    frames = Frames()
    frames.add(data, 1, _core.crc32c(data[: L.FRAME_SEQ]), staged.path)
    return frames.rows()
