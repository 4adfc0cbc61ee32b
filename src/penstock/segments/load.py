"""Taking any amount of events into a log as one atomic unit.

1. All events but the first go into a private log below the log's own directory, whose segments are
   made as if they followed the active segment as it is now. They are synced.
2. Under the write lock: if the log has moved on since, their frames get other seqs and times, and
   are synced again.
3. The segments get their names, and so does an empty one to go on in; the directory is synced.
   Nothing leads to them yet: whoever dies here leaves segments that recovery moves out of the way.
4. The first event and a roll frame that leads to the rest are written to the active segment, as one
   batch. Now all are part of the log. (Without that event an active segment that is still empty,
   and the first private one, would cover the same seqs.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsIndex

from penstock import _core
from penstock import layout as L
from penstock._core import Given, Walked
from penstock.errors import Conflict, PenstockError, TooLarge, Usage
from penstock.event import ArrowData
from penstock.handle import durability, producers
from penstock.handle.control import position
from penstock.handle.producers import Done, Table
from penstock.segments import segment
from penstock.segments.ending import Active
from penstock.segments.leftovers import LOAD, note_names
from penstock.segments.recovery import put_in_place, start_segment, successor_of
from penstock.segments.segment import Header
from penstock.settings import Options
from penstock.steward.roll import allocate_to, enter_empty, go_on_in
from penstock.system import files
from penstock.system.directory import Name
from penstock.system.forks import Begun

if TYPE_CHECKING:
    from penstock.log import Log
    from penstock.segments.log import SegmentedLog

BATCH_BYTES_MAX = 4 << 20
BATCH_EVENTS_MAX = 20_000

_attempts = itertools.count()


class Ready:
    """Rows that need nothing any more but to be appended, some at a time."""

    def __init__(self, rows: Iterable[Given]) -> None:
        self.rows = rows


def begin(log: Log, producer: tuple[str, int] | None) -> tuple[bytes, int, range | None]:
    """Who loads and which number; and the seqs, if this is a repeat of what the log has."""
    log._check_writable()
    log._head()  # opens the log anew in a child
    log._check_there()
    if producer is None:
        return b"", 0, None
    who, n = _core.check_producer(producer)
    return who, n, log._produced(who, n)[0]


def load_into(
    log: Log,
    values: Iterable[Any] | ArrowData | Ready,
    parts: dict[str, Any],
    *,
    value: str | None,
    expect: SupportsIndex | None,
    producer: tuple[str, int] | None,
    durable: bool,
    timeout: float | None,
    progress: Callable[[int], None] | None,
    codec: str | None,
) -> range:
    """Append all of ``values``; what fits one batch goes the short way."""
    last_seq = None if expect is None else _core.to_expected(expect)
    begun = Begun("load")
    who, n, done = begin(log, producer)
    if done is not None:
        return acknowledge(log, done, durable, timeout)
    whole = not log._loads_apart
    room = log._room() if whole else min(BATCH_BYTES_MAX, log._room() // 4)
    batches: Iterator[Given]
    if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
        intake = log._intake(values, value, **parts, codec=codec)
        batches = iter([intake.all()]) if whole else _given(intake, room)
    elif isinstance(values, Ready):
        batches = _given(values.rows, room)
    elif value is not None:
        raise Usage("value= names a column of Arrow data, but the values are not Arrow data")
    else:
        events_max = L.BATCH_EVENTS_MAX if whole else BATCH_EVENTS_MAX
        batches = log._gathering(values, room, events_max, **parts, codec=codec)
    first = next(batches, None)
    second = next(batches, None)
    begun.check()
    if not first and who:
        raise Usage(f"there is nothing to load, so nothing to remember of {producer!r}")
    if second is None:
        try:
            seqs = log.extend(first or [], expect=last_seq, producer=producer, timeout=timeout)
        except TooLarge:
            if not first or len(first) == 1:
                raise
            second = first[len(first) :]  # it is more than a ring, or a segment, takes at once
        else:
            if progress is not None:
                progress(len(seqs))
            return acknowledge(log, seqs, durable, timeout)
    assert first is not None
    private = log._load_apart(first[:1])
    try:
        for batch in itertools.chain((first[1:], second), batches):
            private.extend(batch)
            if progress is not None:
                progress(private.count)
                begun.check()
        private.finish()
        seqs = private.publish(last_seq, who, n, timeout)
    finally:
        private.remove()
    return acknowledge(log, seqs, durable, timeout)


def acknowledge(log: Log, seqs: range, durable: bool, timeout: float | None) -> range:
    if durable and seqs:
        log._sync(L.C_DURABLE_SEQ, seqs[-1], timeout)
    return seqs


def _given(given: Iterable[Given], room: int) -> Iterator[Given]:
    """Arrow data in parts that a segment takes several of."""
    for rows in given:
        left = rows
        while len(left):
            n = left.fitting(room, BATCH_EVENTS_MAX)
            yield left[:n]
            left = left[n:]


class Private:
    """A log below the log's directory, until its segments become the log's."""

    def __init__(self, log: SegmentedLog, first: Given) -> None:
        self._begun = Begun("load")
        self._log = log
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
        self._into: SegmentedLog | None = None
        self._path = self._make_dir(settings.dir_mode)
        self._directory = files.hold_dir(self._path)

    def _make_dir(self, mode: int) -> Name:
        """A new directory for the private log; what has such a name already is not touched."""
        while True:
            name = f"{LOAD}{self._attached.token}-{next(_attempts)}.tmp"
            path = self._log._directory.file(name)
            if files.make_dir(path, mode):
                return path

    def _end(self) -> Active:
        """Under the write lock: the active segment, in order, with room for the first event."""
        log, attached = self._log, self._attached
        log._repair_if_needed(attached)
        m, header = log._map_active(attached)
        end = log._state(attached, m, header)
        if end.walk.offset + self._nbytes > header.frames_end:
            log._roll(attached, m, header)
            m, header = log._map_active(attached)
            end = log._state(attached, m, header)
        return end

    def _note_first(self, end: Active) -> None:
        """Bring ``end`` to where it will be behind the first event."""
        given = self._event.first_ns()
        event_ns = self._stamp_ns if given is None else given
        walk = end.walk
        walk.monotone = walk.monotone and event_ns >= walk.event_max_ns
        walk.event_max_ns = max(walk.event_max_ns, event_ns)
        walk.last_append_ns = self._stamp_ns
        walk.next_seq += 1

    def extend(self, batch: Given) -> None:
        """Take one batch; in halves, if topics and headers make it too large for a segment."""
        self._begun.check()
        if self._into is None:
            self._into = type(self._log)(
                files.hold_dir(self._path),
                Options(writable=True, timeout=None, any_file_system=True),
                self._log.settings,
                private=self._first,
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
            f"item {item}: its {self._log._frame_bytes(event)} bytes do not fit a segment of "
            f"{self._log.settings.segment_size}; nothing was written: configure(segment_size=...) "
            "makes later segments larger"
        )

    def finish(self) -> None:
        """Have all of it on the device, and every segment ended by a roll frame."""
        self._begun.check()
        assert self._into is not None
        self._into.steward.roll()
        self._into.close()
        names = sorted(n for n in files.list_dir(self._directory) if segment.is_name(n))
        files.unlink(self._directory.file(names.pop()))  # the empty one behind the last roll
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
            first = end.walk.next_seq
            if expect is not None and expect != first - 1:
                raise Conflict(
                    f"{log.path}: expected seq {expect} to be the last one, but it is {first - 1}; "
                    "nothing was written: read what is new and decide again",
                    path=log.path,
                    expected=expect,
                    found=first - 1,
                )
            table = producers.table_of(end.map, end.header, end.walk.producer_offset)
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
        """The last private segment as it stands; all with other seqs if the log has moved on."""
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
        behind = offset + self._nbytes + L.FRAME_HEADER_BYTES
        allocate_to(attached, end.map, end.header, behind)
        home = log._directory
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
            with durability.poisoning(attached):
                files.sync_dir(attached.held_fd, log.path)
            empty = enter_empty(home, fresh)  # behind the commit nothing may fail any more
        except BaseException:
            self._take_back(named)
            raise
        attached.put(L.C_RESERVED, position(end.map.number, behind))
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
            self._attached.put32(L.C_SUSPECT, 1)  # the next holder moves them out of the way

    def remove(self) -> None:
        """Delete what did not become part of the log; if that fails, the next first open does.

        In a child of a fork it is the parent's.
        """
        if self._into is not None:
            self._into._release()
        self._directory.close()
        if self._begun.here:
            with suppress(PenstockError):
                files.remove_tree(self._path)
