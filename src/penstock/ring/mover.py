"""RingMover: a ring as another file: resize, which takes the ring's name over, and backup.

Whoever dies meanwhile leaves the one file or the other. Threads of the handle that resizes wait,
and go on with the new file.
"""

from __future__ import annotations

import time
from dataclasses import replace

from penstock import _core, files
from penstock import layout as L
from penstock._core import Control
from penstock.errors import AlreadyExists, Busy, PenstockError
from penstock.leftovers import begins_as
from penstock.ring.file import Header, check_shape, read_slots
from penstock.ring.handle import RESIZED
from penstock.ring.producers import Follower
from penstock.ring.rewrite import Source, name_copy, write_copy
from penstock.ring.writer import RingWriter
from penstock.verify import Progress

BACKUP_ATTEMPTS = 3


class RingMover(RingWriter):
    """Copies a ring into another file."""

    def _resize(self, nbytes: int) -> None:
        self._head()  # opens the log anew in a child
        while not self._resize_from(self._live(), nbytes):
            time.sleep(0.001)  # another thread is at it

    def _resize_from(self, attached: Control, nbytes: int) -> bool:
        header = self._known_header()
        index: int | None = header.index_capacity
        if index == header.file_bytes // L.RING_INDEX_SHARE:
            index = None  # as many as by default, for the new size
        capacity = check_shape(nbytes, index)
        header = replace(header, file_bytes=nbytes, index_capacity=capacity)
        failed: BaseException | None = None
        holds = replaced = False
        with attached.locked():
            leaves, m = self._leaving is attached, self._ring
            if leaves or attached is not self._ctl or m is None:
                return False
            if attached.get(L.C_POISONED):  # what is read may not be what was written
                raise self._poisoned_error()
            self._repair_if_needed(attached, m)
            busy = Busy(
                f"{self.path}: others have the ring open; resize it when they have closed it"
            )
            if attached.has_writers():
                raise busy
            epoch = attached.get(L.C_EPOCH) & ~L.EPOCH_MOVED
            self._leaving = attached  # other threads wait, whatever comes
            attached.put(L.C_EPOCH, epoch | L.EPOCH_MOVED)
            try:
                if not files.lock_exclusive(attached.held_fd, self.path):
                    raise busy
                self._move(attached, header)
            except BaseException as error:
                failed = error
                replaced = not files.same_file(attached.held_fd, self.path)
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
        return True

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

    def _move(self, attached: Control, header: Header) -> None:
        """Under LOCK_EX and the write lock: put a copy of another shape in the file's place."""
        settings = self._read_settings(attached, still=True)
        assert settings is not None
        temporary = self.path + RESIZED
        if begins_as(temporary, L.RING_MAGIC):  # else it is not ours, and the copy is refused
            files.unlink(temporary)
        header = replace(header, settings=settings.to_json(), created_ns=_core.now_ns())
        write_copy(self._source(), temporary, header, settings.file_mode)
        name_copy(temporary, self.path, replace=True)
        attached.put(L.C_DURABLE_SEQ, attached.get(L.C_NEXT_SEQ) - 1)
        attached.put(L.C_DURABLE_POS, attached.get(L.C_HEAD))

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
        name_copy(partial, target, replace=False)
        if progress is not None:
            progress(header.file_bytes, header.file_bytes)
        return behind - 1
