"""Readers that hold a ring: writers keep what those have not read yet.

Each has a slot in control with its position, and locks a byte of the file while it lives.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

from penstock import _core
from penstock import layout as L
from penstock._core import Control, Hold
from penstock.errors import Busy, Usage
from penstock.system import files

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.ring.storage import RingStorage

_SLOTS = range(L.C_HOLDS, L.C_HOLDS + L.HOLDS_MAX * L.HOLD_BYTES, L.HOLD_BYTES)


def held_positions(attached: Control) -> list[int]:
    """The positions of readers that hold the ring, including dead ones not removed yet."""
    return [at for at in map(attached.get, _SLOTS) if at]


class Holds:
    """The readers of one handle that hold its ring."""

    def __init__(self) -> None:
        self._holds: weakref.WeakSet[Hold] = weakref.WeakSet()

    def take(self, handle: Handle, storage: RingStorage, seq: int) -> Hold:
        """Make writers wait for a reader at ``seq``."""
        handle._ensure_open()
        if handle.settings.when_full == "drop":
            raise Usage(
                f"{storage.path}: the ring drops its oldest events even if a reader needs them; "
                "configure(when_full='block') makes writers wait"
            )
        while True:
            attached = handle._live()
            if not attached.writable:
                raise Usage(f"{storage.path}: hold=True needs mode='rw', got a read-only handle")
            with attached.locked():  # under it writers remove dead readers, and move the tail
                if attached is handle._ctl and storage.leaving is not attached:
                    position = storage.finder.position_from(
                        handle, max(seq, storage.finder.oldest_seq(handle))
                    )
                    hold = new_hold(storage.file.held, attached, position)
                    self._holds.add(hold)
                    return hold
            time.sleep(0.001)  # the ring is about to be replaced by another file

    def seqs(self, handle: Handle, storage: RingStorage) -> list[tuple[Hold, int]]:
        """The positions of the readers, before the handle switches to another file."""
        found = []
        for hold in list(self._holds):
            position = hold.position
            if position:
                found.append((hold, storage.finder.seq_at(handle, position)))
        return found

    def close(self) -> None:
        """Release all of them: no reader of a closed handle moves on."""
        for hold in list(self._holds):
            hold.close()


def new_hold(path: str, attached: Control, position: int) -> Hold:
    """Under the write lock: make writers wait for a reader at that position."""
    fd = files.open_file(path, write=True)
    try:
        slot = next(
            (i for i in range(L.HOLDS_MAX) if _core.try_lock_byte(fd, L.HOLD_BYTE + i)), None
        )
    except OSError:
        files.close(fd)
        raise
    if slot is None:
        files.close(fd)
        raise Busy(
            f"{path}: at most {L.HOLDS_MAX} readers can hold a ring, and all places are taken"
        )
    hold = Hold(attached, fd, slot)
    attached.put(L.C_HOLDS + slot * L.HOLD_BYTES, position)
    return hold
