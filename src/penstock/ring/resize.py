"""Resize: a ring moves to another file, which takes its name.

A process that dies meanwhile leaves one file or the other. Threads of the handle that resizes wait
and continue with the new file.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import _core
from penstock import layout as L
from penstock._core import Control
from penstock.errors import Busy, Full, Gone, Io, NotFound, PenstockError
from penstock.ring import state
from penstock.ring.file import Header, check_shape, read_slots
from penstock.ring.named import remove_unfinished
from penstock.ring.rewrite import source_of, write_copy
from penstock.ring.writing import repair_if_needed
from penstock.settings import Settings
from penstock.system import files
from penstock.system.directory import Name
from penstock.system.parallel import Unwanted
from penstock.tunables import RING_INDEX_SHARE

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.ring.storage import RingStorage


def resize(handle: Handle, storage: RingStorage, nbytes: int, *, keep_all: bool = False) -> None:
    """Resize in a separate thread, which Ctrl-C does not reach: it is done, or not begun.

    ``keep_all``: raise `Full` instead of dropping events.
    """
    handle._ensure_open()
    _core.check_holds_nothing(storage.path, _thread.get_ident() in handle._closing)
    _Unbroken(_Resize(handle, storage, nbytes, keep_all).run).run()


def append_settings(handle: Handle, storage: RingStorage, changed: Settings, at: int) -> bool:
    """Append settings; if earlier ones take the reserved room, rewrite the ring.

    A copy of the same size has the newest settings in its header, and no frames of older ones.
    False: there are other settings than those at ``at`` by now.
    """
    try:
        return state.append_settings(handle, storage, changed, at)
    except Full:
        if changed == handle.settings:
            return True
        try:
            resize(handle, storage, storage.known_header(handle).file_bytes, keep_all=True)
        except (Busy, Full) as why:
            raise Full(
                f"{storage.path}: the ring is full, and earlier changes of its settings take the "
                "room for new ones; nothing was changed. Let a reader move on, "
                "or try again when no other handle has the ring open"
            ) from why
        return False  # the settings are in another file now: change those


class _Resize:
    """One resize, from the file that the handle has now."""

    def __init__(self, handle: Handle, storage: RingStorage, nbytes: int, keep_all: bool) -> None:
        self._handle = handle
        self._storage = storage
        self._nbytes = nbytes
        self._keep_all = keep_all
        self._path = storage.path
        self._swapped = False  # whether the new file has the ring's name

    def run(self, unwanted: Unwanted) -> None:
        """Do it, unless it is cancelled in time."""
        with self._handle._moving:
            self._handle._check_writable()  # another thread may have closed it
            self._go(self._handle._live(), unwanted)

    def _go(self, attached: Control, unwanted: Unwanted) -> None:
        handle, storage = self._handle, self._storage
        header = storage.known_header(handle)
        index: int | None = header.index_capacity
        if index == header.file_bytes // RING_INDEX_SHARE:
            index = None  # the default, for the new size
        capacity = check_shape(self._nbytes, index)
        header = replace(header, file_bytes=self._nbytes, index_capacity=capacity)
        failed: BaseException | None = None
        holds = replaced = False
        with attached.locked():
            m = storage.finder.map
            if m is None:
                raise handle._closed_error()
            if attached.get(L.C_POISONED):  # reads may not return what was written
                raise handle._poisoned_error()
            repair_if_needed(m, storage.known_header(handle), attached)
            busy = Busy(
                f"{self._path}: another handle has the ring open; close it there to resize the ring"
            )
            if not attached.is_alone():
                raise busy
            epoch = attached.get(L.C_EPOCH) & ~L.EPOCH_MOVED
            storage.leaving = attached  # other threads wait until the end
            attached.put(L.C_EPOCH, epoch | L.EPOCH_MOVED)
            try:
                if not files.lock_exclusive(attached.held_fd, self._path):
                    raise busy
                self._move(attached, header, unwanted)
            except BaseException as error:
                failed = error
                replaced = self._swapped
                holds = not replaced and self._hold_on(attached, epoch)
            attached.wake_all()
        try:
            if not holds:
                self._go_over(attached, failed)
            if replaced:  # but the new file's name may not be on disk
                handle._live().put(L.C_POISONED, 1)
        finally:
            storage.leaving = None
        if failed is not None:
            raise failed

    def _hold_on(self, attached: Control, epoch: int) -> bool:
        """Continue as before; False if impossible: the try for LOCK_EX may release the hold.

        Another handle may meanwhile have rebuilt control or closed the ring cleanly.
        """
        try:
            files.lock_shared(attached.held_fd, self._path, None)
            header = self._storage.header
            slots = read_slots(attached.fd, header, self._path) if header is not None else []
        except PenstockError:
            return False  # it cannot be known
        if attached.get(L.C_EPOCH) != epoch | L.EPOCH_MOVED:
            return False
        if slots and slots[0].clean:
            return False
        attached.put(L.C_EPOCH, epoch)
        return True

    def _go_over(self, before: Control, failed: BaseException | None) -> None:
        """Attach to the ring again. Other threads may still use the control that this leaves."""
        try:
            if failed is not None:
                before.close()  # its token may belong to another handle now
            self._handle._attach(None)
        except BaseException as error:
            self._handle._release()
            if isinstance(error, Busy):
                raise Busy(
                    f"{self._path}: others took the ring while this handle was to resize it, "
                    "and for longer than its timeout; the handle is closed: open the ring again"
                ) from error
            raise

    def _move(self, attached: Control, header: Header, unwanted: Unwanted) -> None:
        """Under LOCK_EX and the write lock: replace the file by a copy of another size."""
        file = self._storage.file
        settings = state.read_settings(self._handle, self._storage, attached, still=True)
        assert settings is not None
        if not files.same_file(attached.held_fd, file.name):
            raise self._elsewhere()
        temporary = file.resized
        remove_unfinished(temporary)  # foreign files stay, and then the copy is refused
        header = replace(header, settings=settings.to_json(), created_ns=_core.now_ns())
        source = replace(source_of(self._handle, self._storage), keep_all=self._keep_all)
        write_copy(source, temporary, header, settings.file_mode)
        if unwanted():
            files.unlink(temporary)
            raise KeyboardInterrupt
        with ExitStack() as last:  # what is open here needs no descriptor after the exchange
            try:
                copy_fd = files.open_file(temporary, write=True)
                last.callback(files.close, copy_fd)
                parent_fd = files.open_dir_of(file.name)
                last.callback(files.close, parent_fd)
            except Io:
                files.unlink(temporary)
                raise
            # Openers of the new file wait until it is certain that it replaced this ring.
            if not files.lock_exclusive(copy_fd, temporary):
                raise Busy(f"{temporary}: another process has the unfinished copy open; try again")
            last.callback(files.unlock, copy_fd, temporary)
            self._swap(temporary, attached.held_fd, copy_fd, parent_fd)
        attached.put(L.C_DURABLE_SEQ, attached.get(L.C_NEXT_SEQ) - 1)
        attached.put(L.C_DURABLE_POS, attached.get(L.C_HEAD))

    def _swap(self, temporary: Name, held_fd: int, copy_fd: int, parent_fd: int) -> None:
        """Give the finished copy the ring's name, if that is still the name of this ring."""
        try:
            if not files.same_file(held_fd, self._storage.file.name):  # copying took a while
                raise self._elsewhere()
            files.exchange(temporary, self._storage.file.name)
            if not files.same_file(held_fd, temporary):  # another file just took the name
                self._restore(temporary)
                raise self._elsewhere()
        except PenstockError as error:
            if files.same_file(copy_fd, temporary):
                files.unlink(temporary)
            if isinstance(error, NotFound):
                raise self._elsewhere() from None
            raise
        self._swapped = True
        files.unlink(temporary)
        _core.fail_point("ring.replaced")
        files.sync_dir(parent_fd, self._path)

    def _restore(self, temporary: Name) -> None:
        """Give the other file its name back."""
        if files.exists(self._storage.file.name):
            files.exchange(temporary, self._storage.file.name)
        else:  # the copy was moved away at once
            files.rename(temporary, self._storage.file.name, replace=False)

    def _elsewhere(self) -> Gone:
        return Gone(
            f"{self._path}: the ring was deleted, renamed or replaced since it was opened; nothing "
            "was changed: open it by its name to resize it",
            filename=self._path,
        )


class _Unbroken:
    """Work that an exception of a signal handler must not interrupt.

    Python runs signal handlers only in the main thread, so the work runs in another one. If the
    wait for it is interrupted, the work is told so, and the caller waits until it is undone or
    done.
    """

    def __init__(self, work: Callable[[Unwanted], None]) -> None:
        self._work = work
        self._unwanted = self._finished = False
        self._running = (
            _thread.allocate_lock()
        )  # not an Event: that is Python code, which can be interrupted
        self._running.acquire()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work; raises its error, or the exception that interrupted the wait."""
        try:
            _thread.start_new_thread(self._begin, ())
        except RuntimeError as error:
            raise Busy(f"cannot start a thread to resize the ring: {error}; try again") from None
        try:
            self._wait()
        except BaseException:
            self._unwanted = True
            self._wait()
            raise
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        while not self._finished:
            self._running.acquire()

    def _begin(self) -> None:
        try:
            self._work(lambda: self._unwanted)
        except BaseException as error:
            self._error = error
        finally:
            self._finished = True
            self._running.release()
