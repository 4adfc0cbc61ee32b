"""Log: what a user opens. It ties the compiled hot path to the policy in the modules below it."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

from penstock import _core, control, files, recovery, segment
from penstock import layout as L
from penstock._core import Control, LogCore, SegmentMap
from penstock.backup import backup as copy_log
from penstock.errors import (
    AlreadyExists,
    Busy,
    Closed,
    NotFound,
    PenstockError,
    Permission,
    Usage,
    WrongType,
)
from penstock.event import Buffer, Event
from penstock.filesystem import check_file_system
from penstock.reader import SEQ_MAX, Reader, bounds, key_bytes, topic_bytes
from penstock.recovery import Active
from penstock.segment import Header
from penstock.settings import Settings
from penstock.stats import Stats, collect
from penstock.steward import Steward
from penstock.steward.ahead import Ahead
from penstock.steward.keeper import Keeper
from penstock.steward.roll import allocate_to, publish, roll
from penstock.store import Store
from penstock.times import Time

logger = logging.getLogger("penstock")

OPEN_TIMEOUT = 10.0


class Log(LogCore):
    """A log: an ordered sequence of events under one path, shared by many processes.

    Open one with :func:`penstock.open`. It may be used from several threads, and in the children
    of a fork, each of which opens the log anew the first time it uses it.
    """

    def __init__(
        self,
        path: str,
        *,
        writable: bool,
        create: bool,
        settings: Settings,
        timeout: float | None,
        any_file_system: bool,
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
        self._guard = threading.Lock()
        self._store = Store(path, None, self._recent, _active_base_of(self))
        self._attach(settings if create else None)

    def _attach(self, new: Settings | None) -> None:
        """Open the directory, hold it, and get at control or, reading, at the frames alone."""
        fd = files.open_dir(self.path)
        _core.own_fd(fd)  # before it is locked: a child of a fork must not keep the lock
        attached: Control | None = None
        try:
            live = check_file_system(
                fd, self.path, insist=self._any_file_system, write=self._writable
            )
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
            recovery.create_first(self.path, dir_fd, new)
            store.forget()
        uuid = recovery.settle_uuid(store)
        hint = control.old_words(self.path, uuid)
        active = recovery.recover(store, dir_fd, hint, fresh=False)
        control.build(self.path, uuid, active.words(), active.settings.file_mode)

    def _read_frames_alone(self) -> None:
        """Without live control: find the end in the frames."""
        if not self._store.bases(fresh=True):
            raise NotFound(f"{self.path}: there is no log here")
        uuid = recovery.settle_uuid(self._store)
        hint = control.old_words(self.path, uuid)
        self._static = recovery.find_end(self._store, hint=hint, write=False)
        self._store.keep(self._static.map)
        self._static_head = self._static.head

    def _look_again(self) -> None:
        """Without live control: has a writer come, or have the frames grown?"""
        active = self._static
        if active is None:
            return
        attached = None
        if self._static_live():
            with suppress(Busy):  # a writer is just opening the log
                attached = control.attach_reader(self.path, self._dir_fd, 0)
        if attached is not None:
            self._adopt(attached, self._dir_fd)
            return
        if not active.map.data_end:
            active.walk, _, _ = active.map.walk(active.map.grown(), resume=active.walk)
        if active.walk["rolled"] and files.exists(self._store.file(active.walk["next_seq"])):
            active = self._static = recovery.find_end(self._store, hint=None, write=False)
        self._static_head = active.head

    def _static_live(self) -> bool:
        try:
            return check_file_system(
                self._dir_fd, self.path, insist=self._any_file_system, write=False
            )
        except PenstockError:
            return False

    def _after_fork(self) -> None:
        """In a child: what was inherited is closed already; open the log anew."""
        if self._closed:
            raise self._closed_error()
        with _ForkGuard.lock:
            if not self._inherited:
                return  # another thread was first
            self._guard = threading.Lock()
            self._keeper = None
            self._ahead = None
            self._active_map = None
            self._header = None
            self._attach(None)

    def close(self) -> None:
        """Release every descriptor and map. Closing twice is fine; events stay readable."""
        if self._closed:
            return
        self._closed = True
        with self._guard if not self._inherited else threading.Lock():
            keeper, self._keeper = self._keeper, None
        if keeper is not None and not self._inherited:
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

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

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
        active = recovery.recover(self._store, attached.dir_fd, hint, limit=limit)
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
            self._store.keep(m)
        return m, header

    def _roll(self, attached: Control, m: SegmentMap, header: Header) -> None:
        walk, _, _ = m.walk(header.data_offset)
        walk |= {
            "offset": attached.get(L.C_HEAD) & 0xFFFFFFFF,
            "next_seq": attached.get(L.C_NEXT_SEQ),
            "last_append_ns": attached.get(L.C_LAST_APPEND_NS),
            "last_frame": attached.get(L.C_LAST_FRAME),
            "event_max_ns": attached.get(L.C_EVENT_MAX_NS),
            "monotone": bool(attached.get(L.C_FLAGS) & L.CONTROL_FLAG_MONOTONE),
            "settings_offset": attached.get(L.C_SETTINGS_POS) & 0xFFFFFFFF,
        }
        roll(self.path, attached.dir_fd, attached, Active(m, header, walk))
        self._map_active(attached)

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
        self._look_ahead(0)
        return base

    def _look_ahead(self, at: int) -> None:
        """Have the keeper allocate, prepare and seal. It never raises: the append is done."""
        try:
            self._ask_keeper()
        except (PenstockError, OSError, RuntimeError) as error:
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
                self._ahead = Ahead(self.path, self._store.uuid, attached)
                self._keeper = Keeper(os.path.basename(self.path), self._ahead.work)
            self._ahead.active = (m, header, settings)
            self._keeper.ask()

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

    @property
    def first_seq(self) -> int:
        """Seq of the oldest event that is still there; ``last_seq + 1`` if there is none."""
        self._head()
        m = self._store.covering(0) if self._store.bases(fresh=True) else None
        return m.base_seq if m is not None else self._next_seq()

    @property
    def last_seq(self) -> int:
        """Seq of the newest event; one below ``first_seq`` if there is none."""
        return self._next_seq() - 1

    def __len__(self) -> int:
        return max(0, self.last_seq - self.first_seq + 1)

    def __bool__(self) -> bool:
        return True

    def _segment_for(self, seq: int) -> SegmentMap | None:
        return self._store.covering(seq) if seq < self._next_seq() else None

    def _segment_at(self, base_seq: int) -> SegmentMap:
        return self._store.beginning_at(base_seq)

    def _segment_before(self, later: SegmentMap) -> SegmentMap | None:
        return self._store.before(later)

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

    def _no_such_seq(self, seq: int) -> PenstockError:
        first, last = self.first_seq, self.last_seq
        if first <= seq <= last:
            m = self._store.covering(seq)
            leads_to = self._store.leads_to(m) if m is not None else 0
            if leads_to and leads_to <= seq:
                later = [b for b in self._store.bases(fresh=True) if b > seq]
                if not files.exists(self._store.file(leads_to)):
                    return self._store.missing(leads_to, later[0] if later else None)
        there = f"it has seq {first} to {last}" if last >= first else "it is empty"
        return NotFound(f"{self.path}: no event has seq {seq}; {there}")

    def __iter__(self) -> Iterator[Event]:
        return self.read()

    def __reversed__(self) -> Iterator[Event]:
        return self.read(reverse=True)

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        topic: str | None = None,
        key: Buffer | None = None,
        reverse: bool = False,
        check: bool = True,
    ) -> Reader:
        """Events from seq ``start`` up to, not including, ``stop``, as the log stands now.

        ``since`` and ``until`` bound the events' own times likewise: since <= time < until. With
        ``reverse`` the newest comes first. ``check=False`` leaves the checksums unchecked.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> [event.value for event in log.read(2)]
        [b'b', b'c']
        >>> [event.seq for event in log.read(reverse=True)]
        [3, 2, 1]
        """
        lowest, end, since_ns, until_ns = bounds(self, start, stop, since, until)
        return Reader(
            self,
            end if reverse else lowest,
            lowest if reverse else end,
            reverse=reverse,
            check=check,
            topic=topic_bytes(topic),
            key=key_bytes(key),
            since_ns=since_ns,
            until_ns=until_ns,
        )

    def follow(
        self,
        start: int | Literal["start", "end"] = "end",
        *,
        topic: str | None = None,
        key: Buffer | None = None,
        timeout: float | None = None,
        spin: float = 0.0,
        check: bool = True,
    ) -> Reader:
        """Events from ``start`` on, waiting for more as they are appended.

        ``start`` is a seq, "start" for the oldest event or "end" for only what comes from now on.
        Iteration ends when none has come for ``timeout`` seconds; never, if that is None. ``spin``
        is how many seconds to look for data without sleeping before each sleep: 0 sleeps at once,
        `math.inf` never sleeps and keeps a core busy.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> [event.value for event in log.follow("start", timeout=0)]
        [b'a']
        """
        if start == "start":
            first = self.first_seq
        elif start == "end":
            first = self._next_seq()
        elif isinstance(start, int) and not isinstance(start, bool):
            first = min(max(1, start), SEQ_MAX)
        else:
            raise Usage(f"start is a seq, 'start' or 'end', not {start!r}")
        return Reader(
            self,
            first,
            SEQ_MAX,
            check=check,
            topic=topic_bytes(topic),
            key=key_bytes(key),
            follows=True,
            timeout=timeout,
            spin=spin,
        )

    def wait(self, timeout: float | None = None, *, after: int | None = None) -> bool:
        """Wait until the log has an event with a seq above ``after``; False if time is up.

        ``after`` is ``last_seq`` at the time of the call if not given.
        """
        if after is None:
            after = self.last_seq
        elif isinstance(after, bool) or not isinstance(after, int):
            raise WrongType(f"after is a seq, not {type(after).__name__}")
        return self._next_seq() - 1 > after or self.follow(after + 1).wait(timeout)

    def topics(self) -> set[str]:
        """The distinct topics of all events; an event without a topic has the empty one."""
        found: set[bytes] = set()
        stop = self._head()
        base = self.first_seq
        while base < self._next_seq():
            m = self._store.beginning_at(base)
            if m.summary is not None and m.summary.topics is not None:
                found |= m.summary.topics
            else:
                here = stop >> 32 == m.number
                end = stop & 0xFFFFFFFF if here else m.data_end or m.end_of_frames(self)
                found |= m.topics(m.data_offset, end)
            if stop >> 32 <= m.number:
                break
            base = self._store.leads_to(m)
        return {t.decode("utf-8", "replace") for t in found}

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

    def configure(self, **changes: Any) -> Settings:
        """Change settings of the log, for every process; returns them all.

        >>> log = penstock.open(path)
        >>> log.configure(segment_size="1MiB").segment_size
        1048576
        """
        changed = self.settings.changed(**changes)
        self._append_settings(changed.to_json())
        return changed

    @property
    def steward(self) -> Steward:
        """Maintenance: ``log.steward.roll()``."""
        return Steward(self)

    def stats(self) -> Stats:
        """Counts and sizes of the log, and what happened to it since control was built."""
        self._head()
        return collect(self.path, self._store, self._ctl, self.first_seq, self._next_seq())

    def backup(
        self, target: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Copy the log as it stands to the new directory ``target``; returns the last seq copied.

        Writers go on meanwhile. The copy is a log of its own, with the same uuid, complete on the
        device when this returns; it gets its name last. ``progress`` is called with bytes copied
        and bytes in all.
        """
        stop = self._head()
        return copy_log(self._store, stop, self.settings, path_text(target), progress)


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text, checked before anything is touched."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        raise WrongType(f"a path is str or path-like, not {type(path).__name__}")
    if "\0" in text or not text:
        raise Usage(f"{text!r} is not a path")
    return text


def _active_base_of(log: Log) -> Callable[[], int]:
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


def open(
    path: str | os.PathLike[str],
    mode: Literal["rw", "r"] = "rw",
    *,
    create: bool = True,
    timeout: float | None = OPEN_TIMEOUT,
    any_file_system: bool = False,
    **settings: Any,
) -> Log:
    """Open the log at ``path``, or create a segmented log there.

    Parameters
    ----------
    path : str or path-like
        The log's directory.
    mode : {"rw", "r"}
        "r" never writes and works on read-only media.
    create : bool
        Whether to create a log where there is none.
    timeout : float or None
        Seconds to wait for another process that is just opening the log, then `Busy`.
    any_file_system : bool
        Insist on a network or FUSE file system, where processes on different hosts would not see
        each other and a crash can lose what was acknowledged.
    **settings
        ``segment_size`` and ``file_mode`` of a log that is created. They never change a log that
        exists: use `Log.configure`.

    >>> log = penstock.open(path, segment_size="1MiB")
    >>> log.append(b"hello")
    1
    """
    text = path_text(path)
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise WrongType(f"timeout is a number of seconds, or None; not {type(timeout).__name__}")
    if timeout is not None and not timeout >= 0:
        raise Usage(f"timeout is a number of seconds from 0, or None; not {timeout!r}")
    if mode not in ("rw", "r"):
        raise Usage(f"mode is 'rw' or 'r', not {mode!r}")
    wanted = Settings().changed(**settings)
    if os.path.lexists(text) and not os.path.isdir(text):
        raise Usage(f"{text}: is not a directory, so not a segmented log")
    if mode == "rw" and create:
        files.make_dir(text, wanted.dir_mode)
    elif not os.path.isdir(text):
        raise NotFound(f"{text}: there is no log here")
    return Log(
        text,
        writable=mode == "rw",
        create=create,
        settings=wanted,
        timeout=timeout,
        any_file_system=any_file_system,
    )


def create(path: str | os.PathLike[str], **options: Any) -> Log:
    """Create a log at ``path``, where there must be none, and open it.

    Takes the settings and options of :func:`penstock.open`.

    >>> penstock.create(path, segment_size="256KiB").append(b"first")
    1
    """
    text = path_text(path)
    if os.path.lexists(text):
        names = files.list_dir(text) if os.path.isdir(text) else [text]
        if not os.path.isdir(text) or any(segment.is_name(n) for n in names):
            raise AlreadyExists(f"{text}: something is there already; open it instead")
    return open(path, **options)
