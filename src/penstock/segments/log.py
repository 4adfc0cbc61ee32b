"""SegmentedLog: a log that is a directory of segments.

What an append, a read or a sync needs of the files is done here, under the lock that the caller
says; the rest of a log is the same for every kind.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock import layout as L
from penstock._core import Control, Given, Hold, SegmentMap
from penstock.errors import (
    Corrupt,
    Internal,
    Io,
    NoSuchLog,
    NotFound,
    PenstockError,
    TooLarge,
    Usage,
)
from penstock.handle import control, durability, locks
from penstock.handle.control import Place, Words
from penstock.handle.durability import Snapshot
from penstock.handle.producers import Follower, Table
from penstock.log import Log
from penstock.report import Report
from penstock.segments import ending, leftovers, recovery, segment
from penstock.segments.backup import Progress
from penstock.segments.backup import backup as copy_log
from penstock.segments.check.repair import Plan
from penstock.segments.check.repair import repair as repair_log
from penstock.segments.check.verify import verify as verify_log
from penstock.segments.ending import Active
from penstock.segments.load import Private
from penstock.segments.segment import Header
from penstock.segments.store import Store
from penstock.settings import Options, Settings
from penstock.stats import Stock, take_stock
from penstock.steward.ahead import Ahead
from penstock.steward.keeper import Keeper
from penstock.steward.roll import allocate_to, publish, roll
from penstock.steward.seal import seal_finished
from penstock.steward.slack import give_back, give_back_alone
from penstock.system import files
from penstock.system.directory import Directory
from penstock.system.forks import Begun

_T = TypeVar("_T")


class SegmentedLog(Log):
    """A log in a directory, which grows by a segment when one is full."""

    _static: Active | None

    def __init__(
        self,
        directory: Directory,
        options: Options,
        new: Settings | None,
        private: Header | None = None,
    ) -> None:
        """Open the log in ``directory``, which belongs to this handle from now on."""
        self._header: Header | None = None
        self._ahead: Ahead | None = None
        self._settings_seen: tuple[int, Settings] | None = None
        self._private = private  # header of the first segment of a log that another will take over
        self._begun = Begun("load")
        self._producers = Follower()
        self._directory = directory
        self._store = Store(directory, None, self._recent, _active_base_of(self), self._coder)
        try:
            super().__init__(directory.path, Place.in_directory(directory), options, new)
        except BaseException:
            directory.close()
            raise

    def _open_held(self) -> int:
        files.check_there(self._directory)
        known = self._store.uuid
        if known is not None and not ending.has_segment_of(self._directory, known):
            raise self._gone_error()
        return files.open_dir(self._directory)

    def _check_there(self) -> None:
        """Raise `Gone` if the directory was deleted, or the segment that takes appends."""
        files.check_there(self._directory)
        m, attached = self._active_map, self._ctl
        if m is None or attached is None or attached.inherited or m.fd < 0:
            return
        if m.number == attached.get(L.C_HEAD) >> 32 and not files.is_linked(m.fd, m.path):
            raise self._gone_error()

    def _after_fork(self) -> None:
        if self._private is not None:
            self._begun.check()  # the segments of a load are those of the process that loads
        super()._after_fork()

    def _release(self, *, give_back: bool = False) -> None:
        try:
            super()._release(give_back=give_back)
            if give_back and self._writable and self._private is None and not self._inherited:
                give_back_alone(self._store, self._place)
        finally:
            self._directory.close()

    def _adopt(self, attached: Control | None, held_fd: int) -> None:
        if attached is not None:
            self._settle_on(attached.uuid())
        super()._adopt(attached, held_fd)

    def _settle_on(self, uuid: bytes) -> None:
        """Belong to the log with that uuid from now on; a handle never goes over to another."""
        if self._store.uuid not in (None, uuid):
            raise self._gone_error()
        self._store.uuid = uuid

    def _open_lock(self, new: Settings | None) -> int:
        try:
            return locks.open_lock(self._directory)
        except NotFound:
            self._has_segments(Store(self._directory, None, [], lambda: 0), new)
            return locks.make_lock(self._directory, 0 if new is None else new.file_mode)

    def _has_segments(self, store: Store, new: Settings | None) -> bool:
        """Whether there is a log; raises if none is and none can be made."""
        if store.bases():
            return True
        if self._store.uuid is not None:
            raise self._gone_error()
        recovery.check_is_free(self._directory)
        if new is None:
            raise NoSuchLog(
                f"{self.path}: there is no log here; create it first", filename=self.path
            )
        return False

    def _first_open(self, held_fd: int, new: Settings | None, lock_fd: int) -> None:
        store = Store(self._directory, None, [], lambda: 0)
        found = self._has_segments(store, new)
        names = store.names
        leftovers.sweep(self._directory, names)
        if not found and new is not None:
            if self._private is None:
                files.sync_way(self.path)
            recovery.create_first(self._directory, held_fd, new, self._private)
            store.forget()
        uuid, hint = self._whose(store)
        # Nobody vouches for what lies behind the last checkpoint if the machine has booted since,
        # if a sync failed, or if a process died in one and may have been the only one to know.
        trusted = hint is not None and not hint[L.C_POISONED] and not hint[L.C_SYNCING] & 0xFFFFFFFF
        try:
            active = recovery.recover(store, held_fd, hint, fresh=False)
            words = active.words() | ending.vouched(store).words(active)
            if not trusted:
                words = durability.settle(store, held_fd, words)
        except Io:
            files.unlink(self._place.file)  # so that the next one trusts it not
            raise
        leftovers.sweep_loads(self._directory, names)
        file_mode = active.settings.file_mode
        locks.keep_readers_out(lock_fd, self._directory, file_mode)
        words[L.C_LOCK_INO] = os.fstat(lock_fd).st_ino
        temporary = leftovers.free_name(self._directory, control.TEMPORARY)
        control.build(self._directory, temporary, uuid, words, file_mode)

    def _whose(self, store: Store) -> tuple[bytes, Words | None]:
        """The uuid of the log in the directory, and the words of its last control, if of this boot.

        A handle that had the log open before knows it, and takes no other for it.
        """
        left = control.peek(self._place)
        known = self._store.uuid or (left.uuid if left is not None else None)
        uuid = ending.settle_uuid(store, known)
        self._settle_on(uuid)
        return uuid, left.words if left is not None and left.uuid == uuid else None

    def _read_frames_alone(self) -> None:
        if not self._store.bases(fresh=True):
            raise NoSuchLog(f"{self.path}: there is no log here", filename=self.path)
        _, hint = self._whose(self._store)
        self._static = ending.find_end(self._store, hint=hint, write=False)
        self._store.keep(self._static.map)
        self._static_head = self._static.head

    def _grow_static(self) -> None:
        active = self._static
        if active is None:
            return
        if not active.map.data_end:
            active.walk, _, _ = active.map.walk(active.map.grown(), resume=active.walk)
        if active.walk.rolled and files.exists(self._store.file(active.walk.next_seq)):
            active = self._static = ending.find_end(self._store, hint=None, write=False)
        self._static_head = active.head

    def _checkpoint(self) -> PenstockError | None:
        return None if self._private is not None else super()._checkpoint()

    def _forget(self) -> None:
        self._ahead = None
        self._header = None
        self._store.forget()

    def _make_ready(self, nbytes: int, timeout: float | None) -> bool:
        attached = self._live()
        with attached.locked(timeout):
            self._repair_if_needed(attached)
            m, header = self._map_active(attached)
            end = (attached.get(L.C_HEAD) & 0xFFFFFFFF) + nbytes
            if end > header.frames_end:
                self._roll(attached, m, header)
            elif end > attached.get(L.C_ALLOC_END):
                allocate_to(attached, m, header, end)
        return False

    def _repair_if_needed(self, attached: Control) -> None:
        """Under the write lock: bring in order what a dead holder left, if the log is there."""
        self._check_there()
        head = attached.get(L.C_HEAD)
        reserved = attached.get(L.C_RESERVED)
        if not attached.get32(L.C_SUSPECT) and head == reserved:
            return
        hint = {at: attached.get(at) for at in range(L.C_HEAD, L.C_NOTIFY, 8)}
        limit = reserved & 0xFFFFFFFF if reserved >> 32 == head >> 32 else None
        active = recovery.recover(self._store, attached.held_fd, hint, live=attached, limit=limit)
        publish(attached, active)
        attached.put32(L.C_SUSPECT, 0)
        attached.add(L.C_REPAIRS)
        attached.wake_all()

    def _map_active(self, attached: Control) -> tuple[SegmentMap, Header]:
        """Under the write lock: have the active segment mapped for writing."""
        m, header = self._active_map, self._header
        if m is None or header is None or m.number != attached.get(L.C_HEAD) >> 32:
            name = self._store.file(attached.get(L.C_ACTIVE_BASE))
            m, header = segment.map_segment(name, write=True)
            self._take_active(m, header)
        return m, header

    def _take_active(self, m: SegmentMap, header: Header) -> None:
        """Go on in that segment."""
        if self._closed:
            raise self._closed_error()
        self._header = header
        m.home_fd = self._live().held_fd
        self._active_map = m
        if os.path.basename(m.path) in self._store.spurious:
            self._store.readmit(header.base_seq)
        self._store.keep(m)

    def _roll(self, attached: Control, m: SegmentMap, header: Header) -> None:
        state = self._state(attached, m, header)
        fresh = roll(self._directory, attached.held_fd, attached, state)
        self._take_active(fresh.map, fresh.header)

    def _state(self, attached: Control, m: SegmentMap, header: Header) -> Active:
        """Under the write lock, with the log in order: the active segment and where it ends."""
        walk, _, _ = m.walk(header.data_offset)
        walk = walk.changed(
            offset=attached.get(L.C_HEAD) & 0xFFFFFFFF,
            next_seq=attached.get(L.C_NEXT_SEQ),
            last_append_ns=attached.get(L.C_LAST_APPEND_NS),
            last_frame=attached.get(L.C_LAST_FRAME),
            event_max_ns=attached.get(L.C_EVENT_MAX_NS),
            monotone=bool(attached.get(L.C_FLAGS) & L.CONTROL_FLAG_MONOTONE),
            settings_offset=attached.get(L.C_SETTINGS_POS) & 0xFFFFFFFF,
            producer_offset=attached.get(L.C_PRODUCER_POS) & 0xFFFFFFFF,
        )
        return Active(m, header, walk)

    def _roll_for(self, nbytes: int) -> bool:
        """Roll to a larger segment if the settings have one that takes ``nbytes`` bytes."""
        attached = self._live()
        if nbytes > self._room():
            return False
        with attached.locked():
            self._repair_if_needed(attached)
            m, header = self._map_active(attached)
            fits = nbytes <= header.frames_end - header.data_offset
            if not fits and attached.get(L.C_NEXT_SEQ) > header.base_seq:
                self._roll(attached, m, header)
                fits = True
        return fits

    def _too_large(self, nbytes: int, most: int) -> PenstockError:
        return TooLarge(
            f"{nbytes} bytes do not fit a segment, which takes {most}; split the batch, or "
            "configure(segment_size=...) and append something smaller first"
        )

    def _full_error(self) -> PenstockError:
        return Internal(f"{self.path}: a segmented log is never full")

    def _confirm(self, timeout: float | None) -> None:
        """Nothing is ever overwritten."""

    def _take_hold(self, seq: int) -> Hold | None:
        raise Usage(
            f"{self.path}: hold=True is for a ring; a log of segments never overwrites what a "
            "reader has yet to read"
        )

    def _resize(self, nbytes: int) -> None:
        raise Usage(f"{self.path}: a segmented log has no size to change; a ring has")

    def _roll_now(self) -> int:
        """Roll unless the active segment is empty; the active segment's base seq."""
        self._check_writable()
        self._head()  # opens the log anew in a child
        attached = self._live()
        with attached.locked():
            self._repair_if_needed(attached)
            m, header = self._map_active(attached)
            if attached.get(L.C_NEXT_SEQ) > header.base_seq:
                self._roll(attached, m, header)
            base = attached.get(L.C_ACTIVE_BASE)
        self._look_ahead()
        return base

    def _ask_keeper(self) -> None:
        attached, m, header = self._ctl, self._active_map, self._header
        if attached is None or m is None or header is None:
            return
        settings = self.settings
        with self._guard:
            if self._closed:
                return
            if self._ahead is None or self._keeper is None:
                assert self._store.uuid is not None
                self._ahead = Ahead(
                    self._record,
                    self._directory,
                    self._store.uuid,
                    attached,
                    seals=self._private is None,
                )
                self._keeper = Keeper(self._ahead.work)
            self._ahead.active = (m, header, settings)
            self._keeper.ask()

    def _give_back(self) -> None:
        attached = self._ctl
        if attached is None or self._private is not None or attached.has_writers():
            return
        base = attached.get(L.C_ACTIVE_BASE)
        if attached.get(L.C_DURABLE_BASE) == base and attached.get(L.C_HEAD) >> 32 > 1:
            try:
                seal_finished(self._store, base, {})  # what a dead writer left unsealed
            except Corrupt as error:
                self._record.failed("seal", error)
        give_back(self._store, attached)

    def _run_sync(self, attached: Control, words: Snapshot) -> None:
        durability.sync(self._store, attached, self._active_map, words)

    def _vouched_seq(self) -> int:
        return ending.vouched(self._store).seq

    def _ask_producers(self, question: Callable[[Table], _T]) -> tuple[_T, int]:
        self._check_writable()
        self._head()  # opens the log anew in a child
        attached = self._live()
        while True:
            with self._guard:
                self._producers.learn(self._produced_since(self._producers.position))
                pos = attached.get(L.C_PRODUCER_POS)  # after that, lest the table be ahead of it
                m, header = self._active_map, self._header
                if m is not None and header is not None and m.number == pos >> 32:
                    return question(self._producers.up_to(m, header, pos & 0xFFFFFFFF)), pos
            self._make_ready(0, None)

    def _segment_for(self, seq: int) -> SegmentMap | None:
        return self._store.covering(seq) if seq < self._next_seq() else None

    def _segment_at(self, base_seq: int) -> SegmentMap:
        return self._store.beginning_at(base_seq)

    def _segment_before(self, later: SegmentMap) -> SegmentMap | None:
        return self._store.before(later)

    def _segment_after(self, seq: int) -> SegmentMap | None:
        return self._store.after(seq)

    def _segment_below(self, seq: int) -> SegmentMap | None:
        return self._store.below(seq)

    def _lowest_base(self) -> int:
        return min(self._store.bases(), default=1)

    def _active_base(self) -> int:
        """Base seq of the segment that takes appends; 0 while that is being found out."""
        attached, static = self._ctl, self._static
        if attached is not None and not attached.inherited:
            return attached.get(L.C_ACTIVE_BASE)
        return static.header.base_seq if static is not None else 0

    def _first_seq(self) -> int:
        m = self._store.covering(0) if self._store.bases(fresh=True) else None
        return m.base_seq if m is not None else self._next_seq()

    def _why_missing(self, seq: int) -> PenstockError | None:
        m = self._store.covering(seq)
        leads_to = self._store.leads_to(m) if m is not None else 0
        if leads_to and leads_to <= seq:
            later = [b for b in self._store.bases(fresh=True) if b > seq]
            if not files.exists(self._store.file(leads_to)):
                return self._store.missing(leads_to, later[0] if later else None)
        return None

    def _first_seq_since(self, since_ns: int) -> int:
        """Base of the first segment that can hold an event of that time or later.

        The greatest event time of all segments up to one never falls from one to the next, so this
        is a binary search whatever the times are.
        """
        found = self._store.first_where(
            lambda m: m.summary is None or m.summary.log_event_max_ns >= since_ns
        )
        if not found:
            return 1
        m = self._store.covering(found)  # if it is the oldest: what is gone may have such a time
        return 1 if m is not None and m.prior_event_max_ns >= since_ns else found

    def _seq_past(self, until_ns: int, end: int) -> int:
        """Base of the first segment behind all events before ``until_ns``, if times never fell."""
        if not self._monotone():
            return end
        return self._store.first_where(lambda m: m.prior_event_max_ns >= until_ns) or end

    def _cuts(self, start: int, stop: int) -> list[int]:
        """Where segments begin."""
        bases = self._store.bases(fresh=True)
        return [base for base in bases[bisect_right(bases, start) :] if base < stop]

    def _span_bytes(self, first: int, behind: int) -> int:
        m = self._segment_for(first)
        if m is None:
            return 0
        return max(0, self._end_of(m, behind) - m.offset_near(self, first))

    def _end_of(self, m: SegmentMap, behind: int) -> int:
        """Offset behind the last frame of a segment that is below seq ``behind``."""
        if m.data_end and behind >= m.next_seq:
            return m.data_end
        if behind >= self._next_seq():
            head = self._head()
            if head >> 32 == m.number:
                return m.published(head)
        return m.offset_near(self, behind)

    def _span_stop(self, first: int, behind: int, nbytes: int) -> int:
        m = self._segment_for(first)
        return behind if m is None else m.seq_near(self, m.offset_near(self, first) + nbytes)

    def _rules_out(
        self, seq: int, topics: Sequence[bytes | None], since_ns: int, until_ns: int
    ) -> bool:
        m = self._segment_for(seq)
        return m is not None and all(self._has_none(m, t, since_ns, until_ns) for t in topics)

    def _topics(self) -> set[bytes]:
        found: set[bytes] = set()
        stop = self._head()
        base = self.first_seq
        while base < self._next_seq():
            m = self._store.beginning_at(base)
            if m.summary is not None and m.summary.topics is not None:
                found |= m.summary.topics
            else:
                here = stop >> 32 == m.number
                end = m.published(stop) if here else m.data_end or m.end_of_frames(self)
                found |= m.topics(m.data_offset, end)
            if stop >> 32 <= m.number:
                break
            base = self._store.leads_to(m)
        return found

    def _live_settings(self, attached: Control) -> Settings:
        at = attached.get(L.C_SETTINGS_POS)
        if self._settings_seen is not None and self._settings_seen[0] == at:
            return self._settings_seen[1]
        m, header = self._active_map, self._header
        if m is None or header is None or header.number != at >> 32 or m.number != header.number:
            m, header = segment.map_segment(self._store.file(attached.get(L.C_ACTIVE_BASE)))
        frame = at & 0xFFFFFFFF if header.number == at >> 32 else 0  # 0: rolled since; see header
        data = m.frame_body(frame, L.KIND_SETTINGS) if frame else header.settings
        settings = Settings.from_json(data, m.path)
        if header.number == at >> 32:
            self._settings_seen = (at, settings)
        return settings

    def _room(self) -> int:
        return segment.room_in(self.settings.segment_size)

    def _load_apart(self, first: Given) -> Private:
        return Private(self, first)

    def _uuid(self) -> bytes:
        self._head()  # opens the log anew in a child
        assert self._store.uuid is not None
        return self._store.uuid

    def _take_stock(self) -> Stock:
        return take_stock(self._store, *self._seqs())

    def _verify(self, progress: Progress | None) -> Report:
        return verify_log(self._directory, progress=progress)

    def _repair(self, to: str | os.PathLike[str] | None, progress: Progress | None) -> Plan:
        return repair_log(self._directory, to=to, progress=progress)

    def _backup(self, target: str, progress: Progress | None) -> int:
        return copy_log(self._store, self._head(), self.settings, target, progress)


def _active_base_of(log: SegmentedLog) -> Callable[[], int]:
    """What tells a store which segment takes appends, without keeping the log alive."""
    held = weakref.ref(log)

    def base() -> int:
        log = held()
        return log._active_base() if log is not None else 0

    return base
