"""Handle: one opener's hold on a log, from attaching to closing, across forks and dead writers.

It keeps what an append or a read needs in order (the hooks that the compiled core calls are here)
and offers nothing to users; :class:`penstock.Log` does that.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from penstock import _core, codecs, control, durability, ending, files, recovery, segment
from penstock import layout as L
from penstock._core import Control, LogCore, SegmentMap
from penstock.durability import Snapshot
from penstock.ending import Active
from penstock.errors import Busy, Closed, Io, NotFound, PenstockError, Permission
from penstock.filesystem import check_file_system
from penstock.producers import Done, Follower, Table
from penstock.segment import Header
from penstock.settings import Settings
from penstock.steward.ahead import Ahead
from penstock.steward.keeper import Keeper
from penstock.steward.roll import allocate_to, publish, roll
from penstock.steward.syncer import Syncer
from penstock.store import Store

_T = TypeVar("_T")

logger = logging.getLogger("penstock")

CLOSE_PATIENCE = 5.0  # seconds that the last writer's close waits for a lock


class Handle(LogCore):
    """The part of a log handle that users do not see."""

    def __init__(
        self,
        path: str,
        *,
        writable: bool,
        create: bool,
        settings: Settings,
        timeout: float | None,
        any_file_system: bool,
        sync_seconds: float | None = None,
        sync_events: int | None = None,
        private: Header | None = None,
        codec: str | None = None,
        schema: Any = None,
    ) -> None:
        self._closed = True  # until it is open
        self.path = path
        self._writable = writable
        self._timeout = timeout
        self._any_file_system = any_file_system
        self._dir_fd = -1
        self._header: Header | None = None
        self._static: Active | None = None
        self._keeper: Keeper | None = None
        self._ahead: Ahead | None = None
        self._settings_seen: tuple[int, Settings] | None = None
        self._dir_generation = 0
        self._private = private  # header of the first segment of a log that another will take over
        self._sync_seconds = sync_seconds
        self._sync_events = sync_events
        self._syncer: Syncer | None = None
        self._producers = Follower()
        self._guard = threading.Lock()
        self._coder.schema = schema
        self._store = Store(path, None, self._recent, _active_base_of(self), self._coder)
        self._attach(settings if create else None)
        try:
            if codec is not None or schema is not None:
                codecs.settle(self._coder, self.settings.codec, codec, path)
            self._plan_sync()
        except BaseException:
            self._release()
            raise

    def _attach(self, new: Settings | None) -> None:
        """Open the directory, hold it, and get at control or, reading, at the frames alone."""
        fd = files.open_dir(self.path)
        _core.own_fd(fd)  # before it is locked: a child of a fork must not keep the lock
        attached: Control | None = None
        try:
            live = self._shares_memory(fd)
            if self._writable:
                attached = control.attach_writer(
                    self.path, fd, lambda: self._first_open(fd, new), self._timeout
                )
            elif live:
                attached = control.attach_reader(self.path, fd, self._timeout)
            self._store.forget()
            self._adopt(attached, fd)
        except BaseException:
            if attached is not None:
                attached.close()
            _core.close_fd(fd)
            raise
        self._closed = False

    def _adopt(self, attached: Control | None, dir_fd: int) -> None:
        """Go on with live control, or, if there is none, with the frames alone."""
        if attached is not None:
            self._store.uuid = attached.uuid()
            attached.dir_fd = dir_fd
            dir_fd = -1
            self._static = None
        else:
            self._read_frames_alone()
        self._dir_fd = dir_fd
        self._dir_generation = _core.fork_generation()
        self._ctl = attached  # last: now other threads see it

    def _first_open(self, dir_fd: int, new: Settings | None) -> None:
        """Nobody else has the log open: make it if need be, bring it into order, build control."""
        store = Store(self.path, None, [], lambda: 0)
        found = bool(store.bases())
        if not found:
            recovery.check_is_free(self.path)
            if new is None:
                raise NotFound(f"{self.path}: there is no log here; create it first")
        recovery.sweep(self.path, store.names)
        if not found and new is not None:
            if self._private is None:
                files.sync_way(self.path)
            recovery.create_first(self.path, dir_fd, new, self._private)
            store.forget()
        uuid = ending.settle_uuid(store)
        hint = control.old_words(self.path, uuid)
        # Nobody vouches for what lies behind the last checkpoint if the machine has booted since,
        # if a sync failed, or if a process died in one and may have been the only one to know.
        trusted = hint is not None and not hint[L.C_POISONED] and not hint[L.C_SYNCING] & 0xFFFFFFFF
        try:
            active = recovery.recover(store, dir_fd, hint, fresh=False)
            words = active.words() | ending.vouched(store).words(active)
            if not trusted:
                words = durability.settle(store, dir_fd, words)
        except Io:
            files.unlink(
                os.path.join(self.path, control.NAME)
            )  # so that the next one trusts it not
            raise
        control.build(self.path, uuid, words, active.settings.file_mode)

    def _read_frames_alone(self) -> None:
        """Without live control: find the end in the frames."""
        if not self._store.bases(fresh=True):
            raise NotFound(f"{self.path}: there is no log here")
        uuid = ending.settle_uuid(self._store)
        hint = control.old_words(self.path, uuid)
        self._static = ending.find_end(self._store, hint=hint, write=False)
        self._store.keep(self._static.map)
        self._static_head = self._static.head

    def _look_again(self) -> None:
        """Without live control: has a writer come, or have the frames grown?"""
        active = self._static
        if active is None:
            return
        attached = None
        if self._shares_memory(self._dir_fd):
            with suppress(Busy):  # a writer is just opening the log
                attached = control.attach_reader(self.path, self._dir_fd, 0)
        if attached is not None:
            self._adopt(attached, self._dir_fd)
            return
        if not active.map.data_end:
            active.walk, _, _ = active.map.walk(active.map.grown(), resume=active.walk)
        if active.walk["rolled"] and files.exists(self._store.file(active.walk["next_seq"])):
            active = self._static = ending.find_end(self._store, hint=None, write=False)
        self._static_head = active.head

    def _shares_memory(self, dir_fd: int) -> bool:
        """Whether control can be shared on that file system; a writer is refused where not."""
        return check_file_system(
            dir_fd, self.path, insist=self._any_file_system, write=self._writable
        )

    def _after_fork(self) -> None:
        """In a child: what was inherited is closed already; open the log anew."""
        if self._closed:
            raise self._closed_error()
        with _ForkGuard.lock:
            if not self._inherited:
                return  # another thread was first
            self._guard = threading.Lock()
            self._keeper = None
            self._syncer = None
            self._ahead = None
            self._active_map = None
            self._header = None
            self._attach(None)
            self._plan_sync()

    def close(self) -> None:
        """Release every descriptor and map. Closing twice is fine; events stay readable.

        Who closes the log last has everything on the device first; if that fails, this raises.
        """
        if self._closed:
            return
        failed = self._checkpoint()
        self._release()
        if failed is not None:
            raise failed

    def _checkpoint(self) -> PenstockError | None:
        """The last writer to close leaves everything on the device; the error if a sync fails."""
        attached = self._ctl
        if not self._writable or attached is None or self._inherited or attached.has_writers():
            return None
        if self._private is not None:
            return None
        try:
            if not attached.get(L.C_POISONED):
                self._sync_all(CLOSE_PATIENCE)
        except Busy:  # a stopped process holds the log; the next opener does without
            return None
        except PenstockError as error:
            if attached.get(L.C_POISONED):
                return error
            logger.warning("%s: was closed without a checkpoint: %s", self.path, error)
        return None

    def _release(self) -> None:
        self._closed = True
        with self._guard if not self._inherited else threading.Lock():
            keeper, self._keeper = self._keeper, None
            syncer, self._syncer = self._syncer, None
        if not self._inherited:
            if syncer is not None:
                syncer.stop()
            if keeper is not None:
                keeper.stop()
        self._active_map = None
        self._stop_filler()
        self._ahead = None
        self._header = None
        self._static = None
        self._store.forget()
        attached, self._ctl = self._ctl, None
        if attached is not None:
            attached.close()
        fd, self._dir_fd = self._dir_fd, -1
        if fd >= 0 and self._dir_generation == _core.fork_generation():
            _core.close_fd(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._release()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "rw" if self._writable else "r"
        return f"<penstock.Log {self.path!r} {state}>"

    @property
    def closed(self) -> bool:
        """Whether the log was closed."""
        return self._closed

    def _closed_error(self) -> Closed:
        return Closed(f"{self.path}: the log is closed; open it again")

    def _become_writer(self, timeout: float | None) -> None:
        """An append found no segment to append to."""
        self._check_writable()
        self._make_ready(0, timeout)

    def _check_writable(self) -> None:
        if self._closed:
            raise self._closed_error()
        if not self._writable:
            raise Permission(f"{self.path}: the log was opened with mode='r' and takes no appends")

    def _make_ready(self, nbytes: int, timeout: float | None) -> None:
        """Repair, map, roll or allocate, whatever an append of ``nbytes`` bytes still needs."""
        attached = self._live()
        with attached.locked(timeout):
            self._repair_if_needed(attached)
            m, header = self._map_active(attached)
            end = (attached.get(L.C_HEAD) & 0xFFFFFFFF) + nbytes
            if end > header.frames_end:
                self._roll(attached, m, header)
            elif end > attached.get(L.C_ALLOC_END):
                allocate_to(attached, m, header, end)

    def _live(self) -> Control:
        attached = self._ctl
        if self._closed or attached is None:
            raise self._closed_error()
        return attached

    def _repair_if_needed(self, attached: Control) -> None:
        """Under the write lock: bring in order what a dead holder left."""
        head = attached.get(L.C_HEAD)
        reserved = attached.get(L.C_RESERVED)
        if not attached.get32(L.C_SUSPECT) and head == reserved:
            return
        hint = {at: attached.get(at) for at in range(L.C_HEAD, L.C_NOTIFY, 8)}
        limit = reserved & 0xFFFFFFFF if reserved >> 32 == head >> 32 else None
        active = recovery.recover(self._store, attached.dir_fd, hint, live=attached, limit=limit)
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
            if self._closed:
                raise self._closed_error()
            self._header = header
            self._active_map = m
            if os.path.basename(name) in self._store.spurious:
                self._store.readmit(header.base_seq)
            self._store.keep(m)
        return m, header

    def _roll(self, attached: Control, m: SegmentMap, header: Header) -> None:
        roll(self.path, attached.dir_fd, attached, self._state(attached, m, header))
        self._map_active(attached)

    def _state(self, attached: Control, m: SegmentMap, header: Header) -> Active:
        """Under the write lock, with the log in order: the active segment and where it ends."""
        walk, _, _ = m.walk(header.data_offset)
        walk |= {
            "offset": attached.get(L.C_HEAD) & 0xFFFFFFFF,
            "next_seq": attached.get(L.C_NEXT_SEQ),
            "last_append_ns": attached.get(L.C_LAST_APPEND_NS),
            "last_frame": attached.get(L.C_LAST_FRAME),
            "event_max_ns": attached.get(L.C_EVENT_MAX_NS),
            "monotone": bool(attached.get(L.C_FLAGS) & L.CONTROL_FLAG_MONOTONE),
            "settings_offset": attached.get(L.C_SETTINGS_POS) & 0xFFFFFFFF,
            "producer_offset": attached.get(L.C_PRODUCER_POS) & 0xFFFFFFFF,
        }
        return Active(m, header, walk)

    def _roll_for(self, nbytes: int) -> bool:
        """Roll to a larger segment if the settings have one that takes ``nbytes`` bytes."""
        attached = self._live()
        if nbytes > segment.room_in(self.settings.segment_size):
            return False
        with attached.locked():
            self._repair_if_needed(attached)
            m, header = self._map_active(attached)
            fits = nbytes <= header.frames_end - header.data_offset
            if not fits and attached.get(L.C_NEXT_SEQ) > header.base_seq:
                self._roll(attached, m, header)
                fits = True
        return fits

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

    def _look_ahead(self) -> None:
        """Have the keeper allocate, prepare and seal. It never raises: the append is done."""
        try:
            self._ask_keeper()
        except (PenstockError, OSError, RuntimeError, MemoryError) as error:
            logger.debug("%s: maintenance put off: %s", self.path, error)

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
                    self.path, self._store.uuid, attached, seals=self._private is None
                )
                self._keeper = Keeper(os.path.basename(self.path), self._ahead.work)
            self._ahead.active = (m, header, settings)
            self._keeper.ask()

    def _poisoned_error(self) -> PenstockError:
        return durability.poisoned_error(self.path)

    def _sync_all(self, timeout: float | None) -> None:
        """Return when every frame is on the device that is there now."""
        self._sync(L.C_DURABLE_POS, self._head(), timeout)

    def _sync(self, word: int, goal: int, timeout: float | None) -> None:
        """Return when that much is on the device; see `durability.sync_to`."""
        attached = self._live()

        def run() -> None:
            words = Snapshot(attached.words_when_still(timeout))
            while not words.in_order:
                self._make_ready(0, timeout)
                words = Snapshot(attached.words_when_still(timeout))
            durability.sync(self._store, attached, self._active_map, words)

        durability.sync_to(self.path, attached, word, goal, timeout, run)

    def _durable_seq(self) -> int:
        """The last seq that is on the device."""
        self._head()
        attached = self._ctl
        if attached is not None:
            return attached.get(L.C_DURABLE_SEQ)
        return min(ending.vouched(self._store).seq, self._next_seq() - 1)

    def _sync_soon(self, *, now: bool) -> None:
        """Have a thread of this handle sync; a failure is told by the next append or sync."""
        with self._guard:
            if self._closed:
                return
            if self._syncer is None:
                self._syncer = Syncer(self, self._sync_seconds, self._sync_events)
            self._syncer.ask(now=now)

    def _plan_sync(self) -> None:
        """Say which append of this handle is the first to have a periodic sync follow it."""
        if self._sync_seconds is not None:
            self._sync_next = 0
        elif self._sync_events is not None:
            self._sync_next = self._next_seq() - 1 + self._sync_events

    def _sync_due(self) -> None:
        """Appends have passed ``_sync_next``. It never raises: the append is done."""
        try:
            self._sync_soon(now=False)
        except (PenstockError, OSError, RuntimeError, MemoryError) as error:
            logger.debug("%s: sync put off: %s", self.path, error)

    def _produced(self, who: bytes, n: int) -> tuple[range | None, int]:
        """The seqs of what the producer appended under ``n``, if it did; and the table's place."""
        return self._ask_producers(lambda table: table.done(self.path, who, n))

    def _last_of_producers(self) -> dict[str, Done]:
        """What each producer appended last, as far as the log remembers."""
        return self._ask_producers(
            lambda table: {who.decode(): done for who, done in table.entries.items()}
        )[0]

    def _ask_producers(self, question: Callable[[Table], _T]) -> tuple[_T, int]:
        """What the table of producers, as it stands, answers; and its place."""
        self._check_writable()
        self._head()  # opens the log anew in a child
        attached = self._live()
        while True:
            with self._guard:
                pos = attached.get(L.C_PRODUCER_POS)
                m, header = self._active_map, self._header
                if m is not None and header is not None and m.number == pos >> 32:
                    return question(self._producers.up_to(m, header, pos & 0xFFFFFFFF)), pos
            self._make_ready(0, None)

    def _codec_name(self) -> str:
        """The log's codec, which never changes."""
        return self.settings.codec

    def _next_seq(self) -> int:
        self._head()
        attached = self._ctl
        if attached is not None:
            return attached.get(L.C_NEXT_SEQ)
        self._look_again()
        attached, static = self._ctl, self._static
        if attached is not None:
            return attached.get(L.C_NEXT_SEQ)
        if static is None:
            raise self._closed_error()
        seq: int = static.walk["next_seq"]
        return seq

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
        """Base seq of the oldest segment, be it readable or not."""
        return min(self._store.bases(), default=1)

    def _active_base(self) -> int:
        """Base seq of the segment that takes appends; 0 while that is being found out."""
        attached, static = self._ctl, self._static
        if attached is not None and not attached.inherited:
            return attached.get(L.C_ACTIVE_BASE)
        return static.header.base_seq if static is not None else 0

    def _monotone(self) -> bool:
        """Whether event times never went back in the whole log."""
        attached = self._ctl
        if attached is not None:
            return bool(attached.get(L.C_FLAGS) & L.CONTROL_FLAG_MONOTONE)
        return self._static is not None and bool(self._static.walk["monotone"])

    def _has_none(self, m: SegmentMap, topic: bytes | None, since_ns: int, until_ns: int) -> bool:
        """Whether a sealed segment's summary rules out every event of that topic and time."""
        s = m.summary
        return s is not None and (
            s.count == 0
            or s.event_max_ns < since_ns
            or s.event_min_ns > until_ns
            or (topic is not None and s.topics is not None and topic not in s.topics)
        )

    @property
    def settings(self) -> Settings:
        """The log's settings, as they hold now."""
        self._head()
        attached = self._ctl
        if attached is None:
            if self._static is None:
                raise self._closed_error()
            return self._static.settings
        at = attached.get(L.C_SETTINGS_POS)
        if self._settings_seen is not None and self._settings_seen[0] == at:
            return self._settings_seen[1]
        m, header = segment.map_segment(self._store.file(attached.get(L.C_ACTIVE_BASE)))
        frame = at & 0xFFFFFFFF if header.number == at >> 32 else 0  # 0: rolled since; see header
        data = m.frame_body(frame, L.KIND_SETTINGS) if frame else header.settings
        settings = Settings.from_json(data, m.path)
        if header.number == at >> 32:
            self._settings_seen = (at, settings)
        return settings


def _active_base_of(log: Handle) -> Callable[[], int]:
    """What tells a store which segment takes appends, without keeping the log alive."""
    held = weakref.ref(log)

    def base() -> int:
        log = held()
        return log._active_base() if log is not None else 0

    return base


class _ForkGuard:
    """Lets one thread of a child at a time open inherited logs anew."""

    lock = threading.Lock()

    @classmethod
    def renew(cls) -> None:
        cls.lock = threading.Lock()


os.register_at_fork(after_in_child=_ForkGuard.renew)
