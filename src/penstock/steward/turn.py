"""The turn: one maintenance job at a time per log, in whatever process, thread or fork.

The holder of the kernel's lock (OFD) on one byte of the log's file of writers has the turn. Each
turn opens the file again, so that two threads exclude each other as two processes do. The kernel
ends the turn of a process that dies; a child of a fork has neither the descriptor nor the turn.
Nothing here knows a process id, and appends and readers never wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep

from penstock import _core
from penstock import layout as L
from penstock.arguments import seconds
from penstock.errors import Busy, from_os
from penstock.handle import locks
from penstock.system.directory import Directory

_NAP = 0.001  # seconds between two looks, at first
_NAP_MAX = 0.02


@contextmanager
def taken(directory: Directory, timeout: float | None = 0) -> Iterator[None]:
    """Have the turn for the log in ``directory`` until the block ends.

    `Busy` if another job still has it after ``timeout`` seconds; None waits for ever.
    """
    patience = seconds(timeout)
    began = monotonic()
    fd = locks.open_lock(directory)
    generation = _core.fork_generation()
    try:
        nap = _NAP
        while not _try(fd, directory):
            left = _NAP_MAX if patience is None else began + patience - monotonic()
            if left <= 0:
                raise Busy(
                    f"{directory.path}: another maintenance job (retention, a trim, compaction, "
                    "archiving) is under way; nothing was changed: try again later"
                )
            sleep(min(nap, left))
            nap = min(2 * nap, _NAP_MAX)
        yield
    finally:
        if _core.fork_generation() == generation:  # in a child it is closed already
            _core.close_fd(fd)


def _try(fd: int, directory: Directory) -> bool:
    """Take the byte's lock, unless somebody has it."""
    try:
        return _core.try_lock_byte(fd, L.TURN_BYTE)
    except OSError as error:
        raise from_os(error, "locking", directory.file(locks.NAME)) from error
