"""Handle: one open log in one process, from attaching to closing, across forks and dead writers.

It is the same for every kind of log: the handle's :class:`Storage` does what differs. It has
no methods for users; :class:`penstock.Log` has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from penstock import _core
from penstock import layout as L
from penstock._core import Calls, Control, LogCore
from penstock.data import codecs
from penstock.errors import (
    Busy,
    Closed,
    Corrupt,
    Gone,
    NotFound,
    PenstockError,
    Permission,
    Usage,
    gone_error,
)
from penstock.handle import control, durability
from penstock.handle.durability import Snapshot
from penstock.handle.producers import Done
from penstock.handle.storage import Moved, Replaced, Storage
from penstock.settings import Options, Settings
from penstock.steward.keeper import Keeper
from penstock.steward.record import Record
from penstock.steward.syncer import Syncer
from penstock.system.filesystem import check_file_system
from penstock.system.messages import afterwards, logger

CLOSE_PATIENCE = 5.0  # seconds that the last writer's close waits for a lock
OPEN_ATTEMPTS = 100


class Handle(LogCore):
    """The part of a log handle that users do not see."""

    def __init__(self, storage: Storage, options: Options, new: Settings | None = None) -> None:
        """Open the log in ``storage``, which belongs to this handle from now on.

        ``new`` are the settings for creating the log if it is missing. ``_closed`` is true until it
        is open: if opening fails, only the storage must be released.
        """
        self._storage = storage
        self.path = storage.path
        self._connect(_calls(type(self), storage), storage.finder)
        self._recent = storage.recent
        self._coder = storage.coder
        self._options = options
        self._writable = options.writable
        self._timeout = options.timeout
        self._any_file_system = options.any_file_system
        self._held_fd = -1  # the held descriptor, while control does not own it
        self._held_generation = 0
        self._keeper: Keeper | None = None
        self._sync_seconds = options.sync_seconds
        self._sync_events = options.sync_events
        self._syncer: Syncer | None = None
        self._coder.schema = options.schema
        self._coder.nan_null = options.nan == "null"
        self._begin()
        try:
            self._attach(new)
        except BaseException:
            storage.release()
            raise
        try:
            if options.codec is not None or options.schema is not None:
                codecs.use_codec(self._coder, self.settings.codec, options.codec, self.path)
            self._plan_sync()
        except BaseException:
            self._release()
            raise

    def _begin(self) -> None:
        """Make the locks and the record of this process: those of a parent cannot be used here."""
        self._record = Record(self.path)
        self._guard = _core.Guard()
        self._looking = _core.Guard(again=True)  # one thread at a time switches to live control
        self._moving = threading.RLock()  # its holder switches to another file, or closes
        self._closing: set[int] = set()  # threads that are in `close`
        self._coming: dict[int, Settings] = {}  # what threads are about to append

    def _attach(self, new: Settings | None) -> None:
        """Open the log, hold it, and attach to control or, when reading, to the frames alone."""
        for _ in range(OPEN_ATTEMPTS):
            with suppress(Replaced):
                self._attach_once(new)
                return
        raise Busy(f"{self.path}: the file was replaced repeatedly while it was opened; try again")

    def _attach_once(self, new: Settings | None) -> None:
        storage = self._storage
        fd = storage.open_held(write=self._writable)
        _core.own_fd(fd)  # before it is locked: a child of a fork must not keep the lock
        attached: Control | None = None
        lock_fd = -1
        try:
            live = self._shares_memory(fd)
            if self._writable:
                lock_fd = storage.open_lock(new)
                attached = control.attach_writer(
                    storage.place,
                    fd,
                    lambda: storage.first_open(fd, new, lock_fd),
                    self._timeout,
                    lock_fd,
                )
                attached.lock_fd, lock_fd = lock_fd, -1
            elif live and storage.follows_control:
                attached = control.attach_reader(storage.place, fd, self._timeout)
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
        """Use live control, or the frames alone if there is none."""
        if attached is not None:
            self._storage.adopt(self, attached, held_fd)
            return
        self._storage.read_alone(self)
        self._keep_held(held_fd)
        self._ctl = None

    def _keep_held(self, held_fd: int) -> None:
        """Note the held descriptor while control does not own it; -1: control does."""
        self._held_fd = held_fd
        self._held_generation = _core.fork_generation()

    def _held(self) -> int:
        """The descriptor of the held directory or ring, which control owns while there is one."""
        attached = self._ctl
        return self._held_fd if attached is None else attached.held_fd

    def _look_again(self) -> None:
        """Without live control: has a writer come, or have the frames grown?"""
        storage = self._storage
        with self._looking, suppress(Replaced):  # if it was just replaced: next time
            if storage.static is None:
                return
            storage.follow_name(self)
            attached = None
            if storage.follows_control and self._shares_memory(self._held_fd):
                with suppress(Busy, Usage):  # a writer is opening the log
                    attached = control.attach_reader(storage.place, self._held_fd, 0)
            if attached is not None:
                self._adopt(attached, self._held_fd)
            else:
                storage.grow(self)

    def _shares_memory(self, held_fd: int) -> bool:
        """Whether control can be shared on that file system; if not, a writer is refused."""
        return check_file_system(
            held_fd, self.path, insist=self._any_file_system, write=self._writable
        )

    def _after_fork(self) -> None:
        """In a child: what was inherited is closed already; open the log again."""
        if self._closed:
            raise self._closed_error()
        with _ForkGuard.lock:
            if not self._inherited:
                return  # another thread was first
            self._storage.check_child()
            self._begin()
            self._keeper = None
            self._syncer = None
            self._active_map = None
            self._storage.forget(self)
            self._attach(None)
            self._plan_sync()

    def close(self) -> None:
        """Release every descriptor and map. Closing twice is fine; events stay readable.

        The last handle to close syncs first; if that fails, this raises.
        """
        here = threading.get_ident()
        self._closing.add(here)
        try:
            with self._moving if not self._inherited else threading.RLock():
                if self._closed:
                    return
                failed = None if self._storage.is_private else self._checkpoint()
                self._release(give_back=True)
        finally:
            self._closing.discard(here)
        if failed is not None:
            raise failed

    def _checkpoint(self) -> PenstockError | None:
        """Sync everything if this is the last writer; the error if a sync fails."""
        attached = self._ctl
        if not self._writable or attached is None or self._inherited:
            return None
        failed = self._sync_last(attached)
        if failed is None and self._ctl is not None:
            self._storage.close_cleanly(self, self._ctl)
        return failed

    def _sync_last(self, attached: Control) -> PenstockError | None:
        """Sync everything, if no other writer is there."""
        if self._inherited or attached.has_writers():
            return None
        try:
            if not attached.get(L.C_POISONED):
                self._sync_all(CLOSE_PATIENCE)
        except (
            Busy
        ):  # a stopped process holds the log; the next opener recovers it without a checkpoint
            return None
        except PenstockError as error:
            if attached.get(L.C_POISONED):
                return error
            logger.warning("%s: was closed without a checkpoint: %s", self.path, error)
        return None

    def _release(self, *, give_back: bool = False) -> None:
        """Release everything; with ``give_back`` also free disk space that no append will use."""
        give_back &= self._writable and not self._storage.is_private
        try:
            self._let_go(give_back=give_back)
            if give_back and not self._inherited:
                self._storage.give_back_alone()
        finally:
            self._storage.release()

    def _let_go(self, *, give_back: bool) -> None:
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
        if give_back and not self._inherited:
            try:
                self._storage.give_back(self)
            except (NotFound, Gone):
                pass  # the log was deleted
            except PenstockError as error:
                logger.warning("%s: unused disk space was not given back: %s", self.path, error)
        with self._looking if not self._inherited else _core.Guard():
            self._storage.forget(self)
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

    def _ensure_open(self) -> None:
        """Raise `Closed` if it is not open; in a child of a fork, open it again."""
        if self._inherited:
            self._after_fork()
        if self._closed:
            raise self._closed_error()

    def _become_writer(self, timeout: float | None) -> None:
        """Handle an append that found no map to append to."""
        self._check_writable()
        self._storage.make_ready(self, 0, timeout)

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
        """Make the keeper allocate, prepare and seal. It never raises: the append is done."""
        try:
            self._storage.ask_keeper(self)
        except Closed:
            pass  # closed by another thread, so the work is not needed
        except (
            Usage
        ):  # a signal handler appends during the same call of the code that it interrupted
            afterwards(self._look_ahead)
        except (PenstockError, OSError, RuntimeError, MemoryError) as error:
            self._record.failed("allocate", error)

    def _gone_error(self) -> PenstockError:
        return gone_error(self.path)

    def _poisoned_error(self) -> PenstockError:
        return durability.poisoned_error(self.path)

    def _sync_all(self, timeout: float | None) -> None:
        """Return when every frame that is in the log now is on disk."""
        self._ensure_open()
        attached = self._live()
        self._sync(L.C_DURABLE_POS, attached.get(L.C_HEAD), timeout, attached)

    def _sync(
        self, word: int, goal: int, timeout: float | None, attached: Control | None = None
    ) -> None:
        """Return when the log is on disk up to ``goal``; see `durability.sync_to`.

        A goal that is a place is valid in the control that it was read from, ``attached``.
        """
        while True:
            try:
                self._sync_in(attached or self._live(), word, goal, timeout)
                return
            except Moved:
                if word != L.C_DURABLE_SEQ:
                    return
                attached = None

    def _sync_in(self, attached: Control, word: int, goal: int, timeout: float | None) -> None:
        self._storage.check_there(self)

        def run() -> None:
            words = Snapshot(attached.words_when_still(timeout))
            while not words.in_order:
                self._storage.make_ready(self, 0, timeout)
                words = Snapshot(attached.words_when_still(timeout))
            self._storage.sync(self, attached, words)

        durability.sync_to(self.path, attached, word, goal, timeout, run)

    def _durable_seq(self) -> int:
        """The last seq that is on disk."""
        self._ensure_open()
        attached = self._ctl
        if attached is not None:
            return attached.get(L.C_DURABLE_SEQ)
        return min(self._storage.vouched_seq(self), self._next_seq() - 1)

    def _sync_soon(self, *, now: bool) -> None:
        """Make a thread of this handle sync; the next append or sync reports a failure."""
        with self._guard:
            if self._closed:
                return
            if self._syncer is None:
                self._syncer = Syncer(self, self._sync_seconds, self._sync_events)
            self._syncer.ask(now=now)

    def _plan_sync(self) -> None:
        """Set which append of this handle is the first that a periodic sync follows."""
        if self._sync_seconds is not None:
            self._sync_next = 0
        elif self._sync_events is not None:
            self._sync_next = self._next_seq() - 1 + self._sync_events

    def _sync_due(self) -> None:
        """Start a sync: appends have passed ``_sync_next``. Never raises: the append is done."""
        try:
            self._sync_soon(now=False)
        except Closed:
            pass  # closed by another thread, so the work is not needed
        except (
            Usage
        ):  # a signal handler appends during the same call of the code that it interrupted
            afterwards(self._sync_due)
        except (PenstockError, OSError, RuntimeError, MemoryError) as error:
            self._record.failed("sync", error)

    def _produced(self, who: bytes, n: int) -> tuple[range | None, int]:
        """The seqs that the producer appended under ``n``, if it did; and the table's place."""
        return self._storage.ask_producers(self, lambda table: table.done(self.path, who, n))

    def _last_of_producers(self) -> dict[str, Done]:
        """The last append of each producer that the log remembers."""
        return self._storage.ask_producers(
            self, lambda table: {who.decode(): done for who, done in table.entries.items()}
        )[0]

    def _codec_name(self) -> str:
        """The log's codec, which never changes."""
        return self.settings.codec

    def _limits(self) -> tuple[int, int] | None:
        """How long events of the log live, 0 for ever, and the seq below which they are gone.

        None if it cannot be told just now. A log whose settings cannot be read stays readable, as
        if it had none; verify reports them.
        """
        self._ensure_open()
        attached, static = self._ctl, self._storage.static
        try:
            if attached is not None:
                found = self._storage.settings_seen(self, attached)
            else:
                found = None if static is None else static.settings
                if static is None:
                    return 0, 0
        except Corrupt:
            return 0, 0
        return None if found is None else (found.ttl_ns, found.first_seq)

    def _change_settings(self, change: Callable[[Settings], Settings]) -> Settings:
        """Append the settings that ``change`` makes of the present ones; no other change is lost.

        It is called again if other settings were appended meanwhile.
        """
        self._check_writable()
        self._ensure_open()
        while True:
            attached = self._live()
            at = attached.get(L.C_SETTINGS_POS)
            changed = change(self._storage.settings(self, attached))
            here = threading.get_ident()
            self._coming[here] = changed
            try:
                if self._storage.append_settings(self, changed, at):
                    return changed
            finally:
                self._coming.pop(here, None)

    def _next_seq(self) -> int:
        self._ensure_open()
        attached = self._ctl
        if attached is not None:
            return attached.get(L.C_NEXT_SEQ)
        self._look_again()
        attached, static = self._ctl, self._storage.static
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
        static = self._storage.static
        return static is not None and static.monotone

    @property
    def settings(self) -> Settings:
        """The log's current settings."""
        self._ensure_open()
        attached, static = self._ctl, self._storage.static
        if attached is not None:
            return self._storage.settings(self, attached)
        if static is None:
            raise self._closed_error()
        return static.settings

    def _uuid(self) -> bytes:
        """The unique id of the log, wherever it is stored."""
        self._ensure_open()
        return self._storage.uuid()

    def _no_such_seq(self, seq: int) -> PenstockError:
        self._ensure_open()
        first, after = self._storage.seqs(self)
        if first <= seq < after:
            missing = self._storage.why_missing(seq)
            if missing is not None:
                return missing
        there = f"it has seq {first} to {after - 1}" if after > first else "it is empty"
        return NotFound(f"{self.path}: no event has seq {seq}; {there}")

    def _other_item(self, given: object, refused: PenstockError) -> Any:
        """``handle[given]`` where that is no seq, which was ``refused``."""
        raise refused


def _calls(kind: type[Handle], storage: Storage) -> Calls:
    """What the compiled core calls. None of it is bound to a handle: see `Calls`."""
    return Calls(
        after_fork=Handle._after_fork,
        look_again=Handle._look_again,
        become_writer=Handle._become_writer,
        look_ahead=Handle._look_ahead,
        sync_due=Handle._sync_due,
        sync=Handle._sync,
        produced=Handle._produced,
        codec_name=Handle._codec_name,
        limits=Handle._limits,
        next_seq=Handle._next_seq,
        durable_seq=Handle._durable_seq,
        closed_error=Handle._closed_error,
        gone_error=Handle._gone_error,
        poisoned_error=Handle._poisoned_error,
        no_such_seq=Handle._no_such_seq,
        other_item=kind._other_item,
        check_there=storage.check_there,
        make_ready=storage.make_ready,
        make_ready_to_configure=storage.make_ready_to_configure,
        roll_for=storage.roll_for,
        confirm=storage.confirm,
        take_hold=storage.take_hold,
        too_large_error=storage.too_large,
        full_error=storage.full,
        segment_for=storage.segment_for,
        segment_at=storage.segment_at,
        segment_before=storage.segment_before,
        segment_after=storage.segment_after,
        segment_below=storage.segment_below,
        lowest_base=storage.lowest_base,
        first_appended=storage.first_appended,
    )


class _ForkGuard:
    """Lets one thread of a child at a time open inherited logs again."""

    lock = _core.Guard(again=True)

    @classmethod
    def renew(cls) -> None:
        cls.lock = _core.Guard(again=True)


os.register_at_fork(after_in_child=_ForkGuard.renew)
