"""The file ``writers.lock`` of a segmented log: writers lock it, and readers cannot open it.

A user who can open a file can lock it, with flock(2) or with read locks on its bytes, and so block
processes that wait for the lock. So writers lock this file to show that they have the log open and
are alive. Its permission bits exclude users who may not write to the log. It is never written, and
never deleted while the log is open.
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
    """Permission bits only for users who may write, from the bits of another file or directory."""
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
    """Whether the file of that name can be the lock file: it is empty."""
    found = files.status(directory.file(NAME))
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


def make_lock(directory: Directory, mode: int) -> int:
    """The same for a file that is created unless another process was faster."""
    with suppress(AlreadyExists):
        files.close(files.create_file(directory.file(NAME), _first_mode(directory, mode)))
    return open_lock(directory)


def _first_mode(directory: Directory, mode: int) -> int:
    """For a log without such a file: for users who may write one of its files now."""
    mode |= files.status(directory).st_mode
    for name in files.list_dir(directory):
        if name.endswith(".seg"):
            mode |= files.status(directory.file(name)).st_mode
    return writers_mode(mode)


def keep_readers_out(fd: int, directory: Directory, file_mode: int) -> None:
    """Set the permission bits by the log's settings; only the file's owner can change them."""
    wanted = writers_mode(file_mode | files.status(directory).st_mode)
    found = os.fstat(fd)
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != wanted:
        files.set_mode(fd, wanted, directory.file(NAME))
