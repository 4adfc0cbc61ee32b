"""Handle: one opener's hold on a log, from attaching to closing, across forks and dead writers.

It is the same for every kind of log. What a kind has to provide are the hooks at its end, which the
compiled core, this class and :class:`penstock.Log` call. It offers nothing to users; Log does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, Self, TypeVar

from penstock import _core
from penstock import layout as L
from penstock._core import Control, Given, Hold, LogCore, SegmentMap
from penstock.data import codecs
from penstock.errors import (
    Busy,
    Closed,
    Gone,
    NotFound,
    PenstockError,
    Permission,
    Usage,
    gone_error,
)
from penstock.handle import control, durability
from penstock.handle.control import Place
from penstock.handle.durability import Snapshot
from penstock.handle.producers import Done, Table
from penstock.report import Report
from penstock.segments.backup import Progress
from penstock.segments.check.repair import Plan
from penstock.segments.load import Private
from penstock.settings import Options, Settings
from penstock.stats import Stock
from penstock.steward.keeper import Keeper
from penstock.steward.record import Record
from penstock.steward.syncer import Syncer
from penstock.system.filesystem import check_file_system
from penstock.system.messages import afterwards, logger

_T = TypeVar("_T")

CLOSE_PATIENCE = 5.0  # seconds that the last writer's close waits for a lock


class Static(Protocol):
    """The end of a log as its frames alone tell it, for a reader without live control."""

    @property
    def next_seq(self) -> int: ...
    @property
    def monotone(self) -> bool: ...
    @property
    def settings(self) -> Settings: ...


class Handle(LogCore):
    """The part of a log handle that users do not see."""

    _static: Static | None
    _loads_apart = True  # whether a load that is no single batch goes elsewhere first

    def __init__(self, path: str, place: Place, options: Options, new: Settings | None) -> None:
        """Open the log at ``path``; ``new`` are the settings of one to create if there is none.

        ``_closed`` is true from the start, until it is open: whatever ends this, there is nothing
        to release.
        """
        self.path = path
        self._place = place
        self._options = options
        self._writable = options.writable
        self._timeout = options.timeout
        self._any_file_system = options.any_file_system
        self._held_fd = -1  # what is held of the log, while control does not have it
        self._held_generation = 0
        self._static = None
        self._keeper: Keeper | None = None
        self._sync_seconds = options.sync_seconds
        self._sync_events = options.sync_events
        self._syncer: Syncer | None = None
        self._record = Record(path)
        self._guard = _core.Guard()
        self._looking = _core.Guard(again=True)  # of several threads, one goes over to live control
        self._coder.schema = options.schema
        self._coder.nan_null = options.nan == "null"
        self._attach(new)
        try:
            if options.codec is not None or options.schema is not None:
                codecs.settle(self._coder, self.settings.codec, options.codec, path)
            self._plan_sync()
        except BaseException:
            self._release()
            raise

    def _attach(self, new: Settings | None) -> None:
        """Open the log, hold it, and get at control or, reading, at the frames alone."""
        fd = self._open_held()
        _core.own_fd(fd)  # before it is locked: a child of a fork must not keep the lock
        attached: Control | None = None
        lock_fd = -1
        try:
            live = self._shares_memory(fd)
            if self._writable:
                lock_fd = self._open_lock(new)
                attached = control.attach_writer(
                    self._place,
                    fd,
                    lambda: self._first_open(fd, new, lock_fd),
                    self._timeout,
                    lock_fd,
                )
                attached.lock_fd, lock_fd = lock_fd, -1
            elif live:
                attached = control.attach_reader(self._place, fd, self._timeout)
            self._adopt(attached, fd)
        except BaseException:
            if attached is not None:
                attached.close()
            if lock_fd >= 0:
                _core.close_fd(lock_fd)
            _core.close_fd(fd)
            raise
        self._closed = False

    def _adopt(self, attached: Control | None, held_fd: int) -> None:
        """Go on with live control, or, if there is none, with the frames alone."""
        if attached is not None:
            attached.held_fd = held_fd
            held_fd = -1
        else:
            self._read_frames_alone()
        self._held_fd = held_fd
        self._held_generation = _core.fork_generation()
        self._ctl = attached  # now other threads see it
        if attached is not None:
            self._static = None

    def _look_again(self) -> None:
        """Without live control: has a writer come, or have the frames grown?"""
        with self._looking:
            if self._static is None:
                return
            attached = None
            if self._shares_memory(self._held_fd):
                with suppress(Busy, Usage):  # a writer is just opening the log
                    attached = control.attach_reader(self._place, self._held_fd, 0)
            if attached is not None:
                self._adopt(attached, self._held_fd)
            else:
                self._grow_static()

    def _shares_memory(self, held_fd: int) -> bool:
        """Whether control can be shared on that file system; a writer is refused where not."""
        return check_file_system(
            held_fd, self.path, insist=self._any_file_system, write=self._writable
        )

    def _after_fork(self) -> None:
        """In a child: what was inherited is closed already; open the log anew."""
        if self._closed:
            raise self._closed_error()
        with _ForkGuard.lock:
            if not self._inherited:
                return  # another thread was first
            self._guard = _core.Guard()
            self._looking = _core.Guard(again=True)
            self._keeper = None
            self._syncer = None
            self._record = Record(self.path)
            self._active_map = None
            self._forget()
            self._attach(None)
            self._plan_sync()

    def close(self) -> None:
        """Release every descriptor and map. Closing twice is fine; events stay readable.

        Who closes the log last has everything on the device first; if that fails, this raises.
        """
        if self._closed:
            return
        failed = self._checkpoint()
        self._release(give_back=True)
        if failed is not None:
            raise failed

    def _checkpoint(self) -> PenstockError | None:
        """The last writer to close leaves everything on the device; the error if a sync fails."""
        attached = self._ctl
        if not self._writable or attached is None or self._inherited or attached.has_writers():
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

    def _release(self, *, give_back: bool = False) -> None:
        with self._guard if not self._inherited else _core.Guard():
            self._closed = True
            keeper, self._keeper = self._keeper, None
            syncer, self._syncer = self._syncer, None
        if not self._inherited:
            if syncer is not None:
                syncer.stop()
            if keeper is not None:
                keeper.stop()
        self._active_map = None
        self._stop_threads()
        if give_back and self._writable and not self._inherited:
            try:
                self._give_back()
            except (NotFound, Gone):
                pass  # the log was deleted
            except PenstockError as error:
                logger.warning("%s: unused disk space was not given back: %s", self.path, error)
        with self._looking if not self._inherited else _core.Guard():
            self._static = None
            self._forget()
            attached, self._ctl = self._ctl, None
            if attached is not None:
                attached.close()
            fd, self._held_fd = self._held_fd, -1
            if fd >= 0 and self._held_generation == _core.fork_generation():
                _core.close_fd(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
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
        """An append found nothing mapped to append to."""
        self._check_writable()
        self._make_ready(0, timeout)

    def _check_writable(self) -> None:
        if self._closed:
            raise self._closed_error()
        if not self._writable:
            raise Permission(
                f"{self.path}: the log was opened with mode='r' and takes no appends",
                filename=self.path,
            )

    def _live(self) -> Control:
        attached = self._ctl
        if self._closed or attached is None:
            raise self._closed_error()
        return attached

    def _look_ahead(self) -> None:
        """Have the keeper allocate, prepare and seal. It never raises: the append is done."""
        try:
            self._ask_keeper()
        except Usage:  # a signal handler appends, amid the same call of the code it interrupted
            afterwards(self._look_ahead)
        except (PenstockError, OSError, RuntimeError, MemoryError) as error:
            self._record.failed("allocate", error)

    def _gone_error(self) -> PenstockError:
        return gone_error(self.path)

    def _poisoned_error(self) -> PenstockError:
        return durability.poisoned_error(self.path)

    def _sync_all(self, timeout: float | None) -> None:
        """Return when every frame is on the device that is there now."""
        self._head()  # opens the log anew in a child
        attached = self._live()
        self._sync(L.C_DURABLE_POS, attached.get(L.C_HEAD), timeout, attached)

    def _sync(
        self, word: int, goal: int, timeout: float | None, attached: Control | None = None
    ) -> None:
        """Return when that much is on the device; see `durability.sync_to`.

        A goal that is a place counts in the control that it was read from, ``attached``.
        """
        if attached is None:
            attached = self._live()
        self._check_there()

        def run() -> None:
            words = Snapshot(attached.words_when_still(timeout))
            while not words.in_order:
                self._make_ready(0, timeout)
                words = Snapshot(attached.words_when_still(timeout))
            self._run_sync(attached, words)

        durability.sync_to(self.path, attached, word, goal, timeout, run)

    def _durable_seq(self) -> int:
        """The last seq that is on the device."""
        self._head()
        attached = self._ctl
        if attached is not None:
            return attached.get(L.C_DURABLE_SEQ)
        return min(self._vouched_seq(), self._next_seq() - 1)

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
        except Usage:  # a signal handler appends, amid the same call of the code it interrupted
            afterwards(self._sync_due)
        except (PenstockError, OSError, RuntimeError, MemoryError) as error:
            self._record.failed("sync", error)

    def _produced(self, who: bytes, n: int) -> tuple[range | None, int]:
        """The seqs of what the producer appended under ``n``, if it did; and the table's place."""
        return self._ask_producers(lambda table: table.done(self.path, who, n))

    def _last_of_producers(self) -> dict[str, Done]:
        """What each producer appended last, as far as the log remembers."""
        return self._ask_producers(
            lambda table: {who.decode(): done for who, done in table.entries.items()}
        )[0]

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
        return static.next_seq

    def _monotone(self) -> bool:
        """Whether event times never went back in the whole log."""
        attached = self._ctl
        if attached is not None:
            return bool(attached.get(L.C_FLAGS) & L.CONTROL_FLAG_MONOTONE)
        return self._static is not None and self._static.monotone

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
        return self._live_settings(attached)

    def _check_there(self) -> None:
        """Raise `Gone` if the log was deleted since it was opened, and the kind can tell."""

    def _open_held(self) -> int:
        """A new descriptor of what openers of the log lock with flock."""
        raise NotImplementedError

    def _open_lock(self, new: Settings | None) -> int:
        """A new descriptor of what writers of the log lock; -1 if that is what openers do."""
        return -1

    def _first_open(self, held_fd: int, new: Settings | None, lock_fd: int) -> None:
        """Nobody else has the log open: make it if need be, bring it into order, build control."""
        raise NotImplementedError

    def _read_frames_alone(self) -> None:
        """Without live control: find the end in the frames; set _static and _static_head."""
        raise NotImplementedError

    def _grow_static(self) -> None:
        """Without live control: have the frames grown? Sets _static and _static_head anew."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Drop every map and what is known of the files: the log was closed, or a child has it."""
        raise NotImplementedError

    def _make_ready(self, nbytes: int, timeout: float | None) -> bool:
        """Repair, map, roll or allocate, whatever an append of ``nbytes`` bytes still needs.

        Returns whether that was room in a ring that is full, for which it waited a while.
        """
        raise NotImplementedError

    def _roll_for(self, nbytes: int) -> bool:
        """Make room for an append that the active map can never take; False if there is none."""
        raise NotImplementedError

    def _too_large(self, nbytes: int, most: int) -> PenstockError:
        """The error for an append of more bytes than the log ever takes at once."""
        raise NotImplementedError

    def _full_error(self) -> PenstockError:
        """The error for an append that would overwrite what is still wanted."""
        raise NotImplementedError

    def _confirm(self, timeout: float | None) -> None:
        """Have the newest checkpoint made sure, so that an append may drop what leads to it."""
        raise NotImplementedError

    def _take_hold(self, seq: int) -> Hold | None:
        """Have writers wait for a reader that stands at ``seq``; None where they never would."""
        raise NotImplementedError

    def _resize(self, nbytes: int) -> None:
        """Give the log another size."""
        raise NotImplementedError

    def _roll_now(self) -> int:
        """Go on in a new segment, as the user wishes; its first seq."""
        raise NotImplementedError

    def _ask_keeper(self) -> None:
        """Have done what appends will need next. It may fail."""
        raise NotImplementedError

    def _give_back(self) -> None:
        """Closing, with every thread of the handle ended: free what was allocated ahead."""
        raise NotImplementedError

    def _run_sync(self, attached: Control, words: Snapshot) -> None:
        """Have everything up to the head in ``words`` on the device; under the sync lock."""
        raise NotImplementedError

    def _vouched_seq(self) -> int:
        """Without live control: the last seq that a checkpoint says is on the device."""
        raise NotImplementedError

    def _live_settings(self, attached: Control) -> Settings:
        """The log's settings, as live control leads to them."""
        raise NotImplementedError

    def _ask_producers(self, question: Callable[[Table], _T]) -> tuple[_T, int]:
        """What the table of producers, as it stands, answers; and its place."""
        raise NotImplementedError

    def _room(self) -> int:
        """Bytes of frames that the largest batch can have."""
        raise NotImplementedError

    def _load_apart(self, first: Given) -> Private:
        """Where a load that is no single batch goes until it is part of the log."""
        raise NotImplementedError

    def _segment_for(self, seq: int) -> SegmentMap | None:
        """The map that holds ``seq`` or the place for it; None if the log does not go so far."""
        raise NotImplementedError

    def _segment_at(self, base_seq: int) -> SegmentMap:
        """The map that a roll frame leads to."""
        raise NotImplementedError

    def _segment_before(self, later: SegmentMap) -> SegmentMap | None:
        """The map before another; None if that is the oldest."""
        raise NotImplementedError

    def _segment_after(self, seq: int) -> SegmentMap | None:
        """The first map that begins above ``seq`` and can be read, whatever leads to it."""
        raise NotImplementedError

    def _segment_below(self, seq: int) -> SegmentMap | None:
        """The last map that begins at ``seq`` or below and can be read."""
        raise NotImplementedError

    def _lowest_base(self) -> int:
        """Base seq of the oldest map, be it readable or not."""
        raise NotImplementedError

    def _first_seq(self) -> int:
        """Seq of the oldest event; the next one's if there is none."""
        raise NotImplementedError

    def _seqs(self) -> tuple[int, int]:
        """Seq of the oldest event, and of the next one to come, of one moment."""
        return self._first_seq(), self._next_seq()

    def _why_missing(self, seq: int) -> PenstockError | None:
        """The error for a seq in the log's range that is not there because a file is not."""
        raise NotImplementedError

    def _first_seq_since(self, since_ns: int) -> int:
        """A seq with no event of that time or later before it: as high as is quickly found."""
        raise NotImplementedError

    def _seq_past(self, until_ns: int, end: int) -> int:
        """A seq with only events of that time or later from it on, or ``end``: likewise low."""
        raise NotImplementedError

    def _cuts(self, start: int, stop: int) -> list[int]:
        """Seqs between the two, in order, where reading the log in pieces costs nothing more."""
        raise NotImplementedError

    def _span_bytes(self, first: int, behind: int) -> int:
        """About how much room the events from ``first`` to before ``behind`` take."""
        raise NotImplementedError

    def _span_stop(self, first: int, behind: int, nbytes: int) -> int:
        """The seq up to which events from ``first`` take about ``nbytes``, which are fewer."""
        raise NotImplementedError

    def _rules_out(
        self, seq: int, topics: Sequence[bytes | None], since_ns: int, until_ns: int
    ) -> bool:
        """Whether no event of the piece from ``seq`` on has one of the topics and such a time."""
        raise NotImplementedError

    def _topics(self) -> set[bytes]:
        """The distinct topics of all events."""
        raise NotImplementedError

    def _uuid(self) -> bytes:
        """What tells the log from every other, wherever it lies."""
        raise NotImplementedError

    def _take_stock(self) -> Stock:
        """What the files of the log come to."""
        raise NotImplementedError

    def _verify(self, progress: Progress | None) -> Report:
        """Check every byte that matters; change nothing."""
        raise NotImplementedError

    def _repair(self, to: str | os.PathLike[str] | None, progress: Progress | None) -> Plan:
        """Plan a repair; with ``to``, write a repaired copy there."""
        raise NotImplementedError

    def _backup(self, target: str, progress: Progress | None) -> int:
        """Copy the log as it stands to ``target``; the last seq copied."""
        raise NotImplementedError


class _ForkGuard:
    """Lets one thread of a child at a time open inherited logs anew."""

    lock = _core.Guard(again=True)

    @classmethod
    def renew(cls) -> None:
        cls.lock = _core.Guard(again=True)


os.register_at_fork(after_in_child=_ForkGuard.renew)
