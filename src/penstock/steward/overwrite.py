"""Overwrite old generations of segments before they are deleted, once no reader has them mapped.

A file keeps a temporary name until then. Events and views of readers point into maps, so zeros
must never appear in a file that somebody has mapped. The kernel knows: it grants a lease for
writing only if nobody else has the file open or mapped.
"""

from __future__ import annotations

import fcntl
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, sleep

from penstock import _core
from penstock.errors import NotFound
from penstock.segments import segment
from penstock.segments.leftovers import ERASE, is_leftover_name, is_ours
from penstock.segments.segment import Header
from penstock.steward.compact_report import Remaining
from penstock.system import files
from penstock.system.directory import Directory, Name

_NAP = 0.01  # seconds between two requests for a lease
_STEP = 1 << 20  # bytes that are overwritten at a time
_MAPPED = (
    "an old generation of a segment, which a reader still has mapped, so that it cannot be "
    "overwritten: close that reader, or let it go on, and erase again"
)
_NO_LEASE = (
    "an old generation of a segment; this file system, or this user, cannot tell whether a reader "
    "still has it mapped, so it was not overwritten: delete it when no process has the log open"
)


@dataclass(slots=True)
class Overwriting:
    """Old generations that are overwritten and deleted, as soon as nobody maps them."""

    deadline: float | None
    overwritten: int = 0
    left: list[Remaining] = field(default_factory=list)

    def take(self, path: Name) -> None:
        """Overwrite and delete one, or note why that must wait."""
        fd = files.open_file(path, write=True)
        try:
            why = self._lease(fd)
            if why is None:
                self._zero(fd, path)
                _core.fail_point("erase.zeroed")
                files.unlink(path)
                _core.fail_point("erase.deleted")
            else:
                self.left.append(Remaining(str(path), why))
        finally:
            files.close(fd)

    def _lease(self, fd: int) -> str | None:
        """Wait until the kernel says that nobody else has the file; why not, if it never does."""
        while True:
            try:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except BlockingIOError:
                if self.deadline is not None and monotonic() >= self.deadline:
                    return _MAPPED
                sleep(_NAP)
            except OSError:
                return _NO_LEASE
            else:
                return None

    def _zero(self, fd: int, path: Name) -> None:
        size = files.size(fd, path)
        at = files.next_data(fd, 0, path)
        while at is not None and at < size:
            step = min(_STEP, size - at)
            files.write_at(fd, bytes(step), at, path)
            self.overwritten += step
            at = files.next_data(fd, at + step, path) if at + step < size else None
        files.sync_data(fd, path)


def old_name(directory: Directory, header: Header) -> Name:
    """The name of an old generation of a segment, until it is overwritten."""
    return directory.file(f"{ERASE}{header.base_seq:020d}-{header.generation}.tmp")


def leftover(directory: Directory) -> list[Name]:
    """Old generations that an earlier job could not overwrite."""
    found = []
    for name in sorted(files.list_dir(directory)):
        path = directory.file(name)
        if not (name.startswith(ERASE) and is_leftover_name(name) and is_ours(path)):
            continue
        if _is_same(path, _replaced(path)):  # a job died before the new generation had its name
            files.unlink(path)
        else:
            found.append(path)
    return found


def _replaced(old: Name) -> Name:
    """The segment whose old generation has that name."""
    return old.directory.file(f"{old.base[len(ERASE) :][:20]}{segment.SUFFIX}")


def _is_same(path: Name, other: Name) -> bool:
    """Whether two names are of one file."""
    with suppress(NotFound):
        return files.inode(path) == files.inode(other)
    return False
