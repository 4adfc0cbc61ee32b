"""Load any amount of events into a segmented log as one atomic unit.

1. All events but the first are written to a private log below the log's own directory, whose
   segments are made to follow the active segment as it is now. They are synced.
2. Under the write lock: if the log has changed since, their frames get other seqs and times, and
   are synced again.
3. The segments get their names, and so does an empty one that becomes active; the directory is
   synced. Nothing leads to them yet: a process that dies here leaves segments that recovery moves
   aside.
4. The first event and a roll frame that leads to the rest are written to the active segment, as one
   batch. Now all are part of the log. (Without that event an active segment that is still empty,
   and the first private one, would cover the same seqs.)
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import _core
from penstock import layout as L
from penstock._core import Given, Walked
from penstock.errors import Conflict, PenstockError, TooLarge
from penstock.handle.durability import poisoning
from penstock.handle.producers import Done, Table
from penstock.layout import SegmentPosition
from penstock.segments import segment, writing
from penstock.segments.ending import Active
from penstock.segments.leftovers import LOAD, note_names
from penstock.segments.producers import table_of
from penstock.segments.recovery import put_in_place, start_segment, successor_of
from penstock.segments.segment import Header
from penstock.settings import Options
from penstock.steward.roll import allocate_to, enter_empty, go_on_in, start_bytes
from penstock.system import files
from penstock.system.directory import Name
from penstock.system.forks import Begun

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.segments.storage import SegmentStorage

_attempts = itertools.count()


class Private:
    """A log below the log's directory, until its segments become the log's."""

    def __init__(self, log: Handle, storage: SegmentStorage, first: Given) -> None:
        self._begun = Begun("load")
        self._log = log
        self._storage = storage
        settings = log.settings
        self._attached = log._live()
        self._files: list[Name] = []
        self._headers: list[Header] = []
        self.count = 1
        self._event = first
        self._nbytes = log._frame_bytes(first)
        if self._nbytes > segment.room_in(settings.segment_size):
            raise self._too_large(0, first)
        with self._attached.locked():
            end = self._end()
            self._guess = self._attached.get(L.C_HEAD)
            self._stamp_ns = max(_core.now_ns(), end.walk.last_append_ns)
            self._note_first(end)
            after, _ = successor_of(end)
        self._first = replace(after, producers_bytes=0, producers_crc=0)
        self._into: Handle | None = None
        self._path = self._make_dir(settings.dir_mode)
        self._directory = files.hold_dir(self._path)

    def _make_dir(self, mode: int) -> Name:
        """A new directory for the private log; existing files are not touched."""
        while True:
            name = f"{LOAD}{self._attached.token}-{next(_attempts)}.tmp"
            path = self._storage.directory.file(name)
            if files.make_dir(path, mode):
                return path

    def _end(self) -> Active:
        """Under the write lock: the active segment, repaired, with room for the first event."""
        log, storage, attached = self._log, self._storage, self._attached
        writing.in_order(log, storage, attached)
        end = writing.end_of(log, storage, attached)
        if end.walk.offset + self._nbytes > end.header.frames_end:
            writing.roll_now(log, storage, attached)
            end = writing.end_of(log, storage, attached)
        return end

    def _note_first(self, end: Active) -> None:
        """Move ``end`` to after the first event."""
        given = self._event.first_ns()
        event_ns = self._stamp_ns if given is None else given
        walk = end.walk
        walk.monotone = walk.monotone and event_ns >= walk.event_max_ns
        walk.event_max_ns = max(walk.event_max_ns, event_ns)
        walk.last_append_ns = self._stamp_ns
        walk.next_seq += 1

    def extend(self, batch: Given) -> None:
        """Add one batch; in halves, if topics and headers make it too large for a segment."""
        self._begun.check()
        if self._into is None:
            self._into = type(self._log)(
                type(self._storage)(files.hold_dir(self._path), self._first, self._storage.budget),
                Options(writable=True, timeout=None, any_file_system=True),
                self._log.settings,
            )
        try:
            self.count += len(self._into.extend(batch))
        except TooLarge:
            if len(batch) == 1:
                raise self._too_large(self.count, batch) from None
            self.extend(batch[: len(batch) // 2])
            self.extend(batch[len(batch) // 2 :])

    def _too_large(self, item: int, event: Given) -> TooLarge:
        return TooLarge(
            f"item {item}: it must fit a segment of {self._log.settings.segment_size} bytes, "
            f"got {self._log._frame_bytes(event)}; nothing was written; configure(segment_size=) "
            "makes later segments larger"
        )

    def finish(self) -> None:
        """Sync all of it, and end every segment with a roll frame."""
        self._begun.check()
        assert self._into is not None
        self._into._storage.roll(self._into)
        self._into.close()
        names = sorted(n for n in files.list_dir(self._directory) if segment.is_name(n))
        files.unlink(self._directory.file(names.pop()))  # the empty one after the last roll
        self._files = [self._directory.file(n) for n in names]
        for path in self._files:
            fd = files.open_file(path, write=True)
            try:
                files.sync_data(fd, path)
            finally:
                files.close(fd)

    def publish(self, expect: int | None, who: bytes, n: int, timeout: float | None) -> range:
        """Make it part of the log."""
        self._begun.check()
        log, attached = self._log, self._attached
        with attached.locked(timeout):
            if attached.get(L.C_POISONED):
                raise log._poisoned_error()
            end = self._end()
            self._storage.budget.check(log.settings, end.header.number, start_bytes())
            first = end.walk.next_seq
            if expect is not None and expect != first - 1:
                raise Conflict(
                    f"{log.path}: expect must be the last seq, {first - 1}, got {expect}; "
                    "nothing was written: read what is new and decide again",
                    path=log.path,
                    expected=expect,
                    found=first - 1,
                )
            table = table_of(end.map, end.header, end.walk.producer_offset)
            if who:
                done = table.done(log.path, who, n)
                if done is not None:
                    return done
                table.note(who, Done(n, first, self.count))
            moved = attached.get(L.C_HEAD) != self._guess
            if moved:
                self._stamp_ns = max(_core.now_ns(), end.walk.last_append_ns)
            self._note_first(end)
            self._take_over(end, self._renumber(end, moved=moved), table)
        log._look_ahead()
        return range(first, first + self.count)

    def _renumber(self, end: Active, *, moved: bool) -> Active:
        """The last private segment; all get other seqs if the log has changed."""
        shift = end.walk.next_seq - self._first.base_seq
        state = end
        for path in self._files:
            m, header = segment.map_segment(path, write=True)
            walk = Walked()
            if moved or path == self._files[-1]:
                walk, _, _ = m.walk(m.grown(), check_crc=False)
            if moved:
                m.restamp(walk.offset, shift, self._stamp_ns)
                header = replace(
                    header,
                    base_seq=header.base_seq + shift,
                    number=state.header.number + 1,
                    prior_append_ns=state.walk.last_append_ns,
                    prior_event_max_ns=state.walk.event_max_ns,
                    monotone=state.walk.monotone,
                    settings=end.settings.to_json(),
                )
                segment.write_start(m.fd, header, b"", path)
                m, header = segment.map_segment(path, write=True)
                walk, _, _ = m.walk(m.grown(), check_crc=False, write_index=True)
                files.sync_data(m.fd, path)
            self._headers.append(header)
            state = Active(m, header, walk)
        return state

    def _take_over(self, end: Active, last: Active, table: Table) -> None:
        """Name the segments, then commit the roll frame that leads to them."""
        log, attached = self._log, self._attached
        settings = end.settings
        packed = table.pack(settings.segment_size // L.PRODUCERS_SHARE)
        fresh = replace(
            successor_of(last)[0],
            segment_bytes=settings.segment_size,
            settings=settings.to_json(),
            producers_bytes=len(packed),
            producers_crc=_core.crc32c(packed) if packed else 0,
        )
        offset = end.walk.offset
        stop = offset + self._nbytes + L.FRAME_HEADER_BYTES
        allocate_to(attached, end.map, end.header, stop)
        home = self._storage.directory
        sources = [*self._files, start_segment(home, fresh, packed, settings)]
        headers = [*self._headers, fresh]
        names = [segment.file_name(header.base_seq) for header in headers]
        note_names(self._directory, list(zip(sources, names, strict=True)), settings.file_mode)
        named: list[Name] = []
        try:
            for source, header in zip(sources, headers, strict=True):
                put_in_place(source, home, header)
                named.append(home.file(segment.file_name(header.base_seq)))
                _core.fail_point("load.named")
            with poisoning(attached):
                files.sync_dir(attached.held_fd, log.path)
            empty = enter_empty(home, fresh)  # after the commit nothing may fail
        except BaseException:
            self._take_back(named)
            raise
        attached.put(L.C_RESERVED, SegmentPosition(end.map.number, stop).pack())
        _core.fail_point("load.reserved")
        log._write_ending(
            end.map,
            offset,
            end.walk.last_frame,
            end.walk.next_seq - 1,
            self._stamp_ns,
            self._event,
        )
        _core.fail_point("load.committed")
        go_on_in(attached, empty)
        _core.fail_point("load.published")

    def _take_back(self, named: list[Name]) -> None:
        try:
            for path in named:
                files.unlink(path)
        except PenstockError:
            self._attached.put32(L.C_SUSPECT, 1)  # the next holder moves them aside

    def remove(self) -> None:
        """Delete what did not become part of the log; if that fails, the next first open does.

        In a child of a fork it belongs to the parent.
        """
        if self._into is not None:
            self._into._release()
        self._directory.close()
        if self._begun.here:
            with suppress(PenstockError):
                files.remove_tree(self._path)
