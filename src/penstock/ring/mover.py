"""RingMover: a ring as another file: resize, which takes the ring's name over, and backup.

Whoever dies meanwhile leaves the one file or the other. Threads of the handle that resizes wait,
and go on with the new file.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from dataclasses import replace

from penstock import _core
from penstock import layout as L
from penstock._core import Control
from penstock.errors import AlreadyExists, Busy, Full, Gone, NotFound, PenstockError
from penstock.ring.file import Header, check_shape, read_slots
from penstock.ring.handle import RESIZED, remove_unfinished
from penstock.ring.producers import Follower
from penstock.ring.rewrite import Source, name_copy, write_copy
from penstock.ring.writer import RingWriter
from penstock.segments.check.verify import Progress
from penstock.settings import Settings
from penstock.system import files
from penstock.system.directory import Name
from penstock.system.parallel import Unwanted

BACKUP_ATTEMPTS = 3


class _Job:
    """Work that an exception of a signal handler must not break off half-way.

    Python runs signal handlers in the main thread alone, so the work runs in another one. Whoever
    waits for it and is interrupted tells it so, and waits until it is undone or done.
    """

    def __init__(self, work: Callable[[Unwanted], None]) -> None:
        self._work = work
        self._unwanted = self._finished = False
        self._running = _thread.allocate_lock()  # no Event: that is Python, and can be broken off
        self._running.acquire()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work; raises what it raises, or what interrupted the wait for it."""
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


class RingMover(RingWriter):
    """Copies a ring into another file."""

    _swapped = False  # whether the resize under way has given the name to the new file

    def _resize(self, nbytes: int) -> None:
        """Resize in a thread of its own, which Ctrl-C does not reach: it is done, or not begun."""
        self._head()  # opens the log anew in a child
        job = _Job(lambda unwanted: self._resize_now(nbytes, unwanted))
        job.run()

    def _resize_now(self, nbytes: int, unwanted: Unwanted, *, keep_all: bool = False) -> None:
        with self._moving:
            self._check_writable()  # another thread may have closed it
            self._resize_from(self._live(), nbytes, unwanted, keep_all)

    def _append_settings(self, body: bytes, when_full: int | None = None) -> None:
        """Append settings; if earlier ones take the room that is kept for them, rewrite the ring.

        A copy of the same size has the newest settings in its header, and no frame of older ones.
        """
        try:
            super()._append_settings(body, when_full)
        except Full:
            if Settings.from_json(body, self.path) == self.settings:
                return
            try:
                self._rewrite()
            except (Busy, Full) as why:
                raise Full(
                    f"{self.path}: the ring is full, and earlier changes of its settings take the "
                    "room that is kept for new ones; nothing was changed. Let a reader move on, "
                    "or try again when nobody else has the ring open"
                ) from why
            super()._append_settings(body, when_full)

    def _rewrite(self) -> None:
        """Put a copy with the same size and all events in the ring's place."""
        nbytes = self._known_header().file_bytes
        _Job(lambda unwanted: self._resize_now(nbytes, unwanted, keep_all=True)).run()

    def _resize_from(
        self, attached: Control, nbytes: int, unwanted: Unwanted, keep_all: bool
    ) -> None:
        header = self._known_header()
        index: int | None = header.index_capacity
        if index == header.file_bytes // L.RING_INDEX_SHARE:
            index = None  # as many as by default, for the new size
        capacity = check_shape(nbytes, index)
        header = replace(header, file_bytes=nbytes, index_capacity=capacity)
        failed: BaseException | None = None
        holds = replaced = False
        with attached.locked():
            m = self._ring
            if m is None:
                raise self._closed_error()
            if attached.get(L.C_POISONED):  # what is read may not be what was written
                raise self._poisoned_error()
            self._repair_if_needed(attached, m)
            busy = Busy(
                f"{self.path}: others have the ring open; resize it when they have closed it"
            )
            if not attached.is_alone():
                raise busy
            epoch = attached.get(L.C_EPOCH) & ~L.EPOCH_MOVED
            self._leaving = attached  # other threads wait, whatever comes
            attached.put(L.C_EPOCH, epoch | L.EPOCH_MOVED)
            self._swapped = False
            try:
                if not files.lock_exclusive(attached.held_fd, self.path):
                    raise busy
                self._move(attached, header, unwanted, keep_all)
            except BaseException as error:
                failed = error
                replaced = self._swapped
                holds = not replaced and self._hold_on(attached, epoch)
            attached.wake_all()
        try:
            if not holds:
                self._go_over(attached, failed)
            if replaced:  # but nobody knows whether the device has the name of the new file
                self._live().put(L.C_POISONED, 1)
        finally:
            self._leaving = None
        if failed is not None:
            raise failed

    def _hold_on(self, attached: Control, epoch: int) -> bool:
        """Go on as before; False if that cannot be: trying to be alone may give up the hold.

        Whoever came meanwhile, and was alone, has made control anew or closed the ring cleanly.
        """
        try:
            files.lock_shared(attached.held_fd, self.path, None)
            slots = read_slots(attached.fd, self._header, self.path) if self._header else []
        except PenstockError:
            return False  # nor is it known
        if attached.get(L.C_EPOCH) != epoch | L.EPOCH_MOVED:
            return False
        if slots and slots[0].clean:
            return False
        attached.put(L.C_EPOCH, epoch)
        return True

    def _go_over(self, before: Control, failed: BaseException | None) -> None:
        """Attach to the ring anew. Other threads may still look at the control that this leaves."""
        try:
            if failed is not None:
                before.close()  # its token may be given to another by now
            self._attach(None)
        except BaseException:
            self._release()
            raise

    def _move(self, attached: Control, header: Header, unwanted: Unwanted, keep_all: bool) -> None:
        """Under LOCK_EX and the write lock: put a copy of another shape in the file's place."""
        settings = self._read_settings(attached, still=True)
        assert settings is not None
        if not files.same_file(attached.held_fd, self._name):
            raise self._elsewhere()
        temporary = self._parent.file(self._name.base + RESIZED)
        remove_unfinished(temporary)  # what is not ours stays, and the copy is refused
        header = replace(header, settings=settings.to_json(), created_ns=_core.now_ns())
        source = replace(self._source(), keep_all=keep_all)
        write_copy(source, temporary, header, settings.file_mode)
        if unwanted():
            files.unlink(temporary)
            raise KeyboardInterrupt
        copy_fd = files.open_file(temporary, write=True)
        try:
            # Whoever opens the new file waits until it is sure that it replaced this ring.
            if not files.lock_exclusive(copy_fd, temporary):
                raise Busy(f"{temporary}: somebody has the unfinished copy open; try again")
            self._swap(temporary, attached.held_fd, copy_fd)
        finally:
            files.unlock(copy_fd, temporary)
            files.close(copy_fd)
        attached.put(L.C_DURABLE_SEQ, attached.get(L.C_NEXT_SEQ) - 1)
        attached.put(L.C_DURABLE_POS, attached.get(L.C_HEAD))

    def _swap(self, temporary: Name, held_fd: int, copy_fd: int) -> None:
        """Give the finished copy the ring's name, if that is still the name of this ring."""
        try:
            if not files.same_file(held_fd, self._name):  # to copy it took a while
                raise self._elsewhere()
            files.exchange(temporary, self._name)
            if not files.same_file(held_fd, temporary):  # another took the name just now
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
        self._sync_parent()

    def _restore(self, temporary: Name) -> None:
        """Have the other file under its name again."""
        if files.exists(self._name):
            files.exchange(temporary, self._name)
        else:  # the copy was moved away at once
            files.rename(temporary, self._name, replace=False)

    def _elsewhere(self) -> Gone:
        return Gone(
            f"{self.path}: the ring was deleted, renamed or replaced since it was opened; nothing "
            "was changed: open it by its name to resize it",
            filename=self.path,
        )

    def _source(self) -> Source:
        """Everything that is in the ring now."""
        attached, static = self._ctl, self._static
        if attached is not None:
            words = {at: attached.get(at) for at in range(L.C_HEAD, L.C_NOTIFY, 8)}
        elif static is not None:
            words = static.words()
        else:
            raise self._closed_error()
        newest = words[L.C_PRODUCER_POS]
        return Source(
            log=self,
            tail=words[L.C_TAIL],
            head=words[L.C_HEAD],
            next_seq=words[L.C_NEXT_SEQ],
            last_append_ns=words[L.C_LAST_APPEND_NS],
            producers=Follower().up_to(self._frame_at, newest, words[L.C_TAIL]) if newest else None,
        )

    def _backup(self, target: str, progress: Progress | None) -> int:
        if files.exists(target):
            raise AlreadyExists(
                f"{target}: something is there already; give another path", filename=target
            )
        self._head()
        header = self._known_header()
        settings = self.settings
        header = replace(header, settings=settings.to_json(), created_ns=_core.now_ns())
        partial = f"{target}.partial-{_core.now_ns()}"
        for _ in range(BACKUP_ATTEMPTS):
            source = self._source()
            behind = write_copy(source, partial, header, settings.file_mode)
            if behind is not None:
                break
        else:
            with self._live().locked():  # writers lap whoever copies; so they wait
                behind = write_copy(self._source(), partial, header, settings.file_mode)
        assert behind is not None
        name_copy(partial, target)
        if progress is not None:
            progress(header.file_bytes, header.file_bytes)
        return behind - 1
