"""The file ``writers.lock`` of a segmented log: what writers lock, and readers cannot open.

Whoever can open a file can lock it, with flock(2) or with read locks on its bytes, and so stop
those who wait for it. So writers tell by this file that they have the log open and are alive. Its
permission bits leave out everybody who may not write to the log. It is never written, and never
deleted while the log is open.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from penstock import _core
from penstock.errors import AlreadyExists, from_os
from penstock.system import files
from penstock.system.directory import Directory

NAME = "writers.lock"


def writers_mode(mode: int) -> int:
    """Permission bits for those only who may write, by the bits of another file or directory."""
    may_write = mode & 0o222 | 0o200
    return may_write | may_write << 1


def open_lock(directory: Directory) -> int:
    """A new descriptor of the file, for ``close_fd``."""
    path = directory.file(NAME)
    fd = files.open_file(path, write=True)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        files.close(fd)
        raise from_os(OSError(errno.EINVAL, "it is not a regular file"), "opening", path)
    _core.own_fd(fd)  # before it is locked: a child of a fork must not keep the lock
    return fd


def is_ours(directory: Directory) -> bool:
    """Whether what has the file's name can be it: it is empty."""
    found = files.status(directory.file(NAME))
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


def make_lock(directory: Directory, mode: int) -> int:
    """Likewise, of a file that is made unless another process was faster."""
    with suppress(AlreadyExists):
        files.close(files.create_file(directory.file(NAME), _first_mode(directory, mode)))
    return open_lock(directory)


def _first_mode(directory: Directory, mode: int) -> int:
    """For a log that has no such file yet: for whoever may write one of its files by now."""
    mode |= files.status(directory).st_mode
    for name in files.list_dir(directory):
        if name.endswith(".seg"):
            mode |= files.status(directory.file(name)).st_mode
    return writers_mode(mode)


def keep_readers_out(fd: int, directory: Directory, file_mode: int) -> None:
    """Have the permission bits follow the log's settings; only the file's owner can change them."""
    wanted = writers_mode(file_mode | files.status(directory).st_mode)
    found = os.fstat(fd)
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != wanted:
        files.set_mode(fd, wanted, directory.file(NAME))
