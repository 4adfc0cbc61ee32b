"""The file of a worker: the kernel's lock on it says that the worker is alive.

One page, mapped: the worker counts there which of its claims it has handed out, by one store each.
Whoever finds it dead reads that count, so that only what was really tried counts as a try.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import Self

from penstock import _core
from penstock import layout as L
from penstock.errors import AlreadyExists, Busy, NotFound, PenstockError, from_os
from penstock.groups.folder import WORKER, WORKERS, make_below
from penstock.system import files
from penstock.system.directory import Directory, Name

WATCH_S = 0.01  # how often a waiting worker looks whether others that have claims have died
_ATTEMPTS = 10
_WORD = L.WORKER_HANDED // 8


class Life:
    """The file of a worker of this process."""

    _fd = -1

    def __init__(self, folder: Directory, mode: int, file_mode: int) -> None:
        """Make the file in a group's folder, and lock it."""
        self.fork = _core.fork_generation()
        workers = make_below(folder, WORKERS, mode)
        for _ in range(_ATTEMPTS):
            self.name = os.urandom(8).hex()
            path = workers.file(self.name)
            with suppress(AlreadyExists):
                if self._make(path, file_mode):
                    return
        raise Busy(f"{workers.path}: others keep deleting the new files of workers; try again")

    def _make(self, path: Name, file_mode: int) -> bool:
        fd = files.create_file(path, file_mode)
        _core.own_fd(fd)  # before it is locked: a child of a fork must not keep the lock
        try:
            if _lock(fd, path) and files.same_file(fd, path):
                self._path = path
                files.allocate(fd, 0, L.WORKER_BYTES, path)
                files.write_at(
                    fd, L.WORKER.pack(magic=L.WORKER_MAGIC, version=L.WORKER_FILE_VERSION), 0, path
                )
                self._map = _mapped(path)
                self._words = memoryview(self._map).cast("Q")
                self._fd = fd
                return True
        except BaseException:
            _core.close_fd(fd)
            with suppress(PenstockError):
                files.unlink(path)
            raise
        _core.close_fd(fd)  # a sweeper had it before it was locked
        return False

    def __del__(self) -> None:
        self.let_go()

    def hand(self, claim: int) -> None:
        """Note that the claims up to this one were handed out."""
        words = self._words
        if claim >= words[_WORD]:
            words[_WORD] = claim + 1

    @property
    def handed(self) -> int:
        """Claims below this number were handed out."""
        return int(self._words[_WORD])

    def let_go(self) -> None:
        """Give up the lock; the claims are to be returned before."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and self.fork == _core.fork_generation():
            _core.close_fd(fd)

    def remove(self) -> None:
        """Delete the file of a worker that has ended, and give up its lock."""
        if self.fork == _core.fork_generation():
            with suppress(PenstockError):
                files.unlink(self._path)
        self.let_go()


def _mapped(path: Name) -> mmap.mmap:
    """The page, through a descriptor of its own: a map keeps one, which must not keep the lock."""
    fd = files.open_file(path, write=True)
    try:
        return mmap.mmap(fd, L.WORKER_BYTES)
    except OSError as error:
        raise from_os(error, "mapping", path) from error
    finally:
        files.close(fd)


def _lock(fd: int, path: str) -> bool:
    try:
        return bool(_core.try_lock_byte(fd, L.ALIVE_BYTE))
    except OSError as error:
        raise from_os(error, "locking", path) from error


def handed_by_dead(folder: Directory, name: str) -> int | None:
    """How many claims a dead worker had handed out; None if it is alive.

    All of them, if its file is gone: what cannot be known must not be tried for ever.
    """
    if not WORKER.fullmatch(name):
        return L.SEQ_MAX
    path = _path_of(folder, name)
    try:
        fd = files.open_file(path, write=False)
    except NotFound:
        return L.SEQ_MAX
    try:
        held = _core.is_byte_held(fd, L.ALIVE_BYTE)
        if held < 0:
            raise from_os(OSError(-held, os.strerror(-held)), "looking for the owner of", path)
        if held:
            return None
        found = files.read_at(fd, L.WORKER_RECORD_BYTES, 0, path)
    finally:
        files.close(fd)
    if len(found) < L.WORKER_RECORD_BYTES or not found.startswith(L.WORKER_MAGIC):
        return L.SEQ_MAX
    return int(L.WORKER.unpack(found)["handed"])


class Others:
    """Files of workers that are watched for a while: a look is one cheap call for each."""

    def __init__(self, folder: Directory, names: list[str]) -> None:
        self._fds: list[int] = []
        self._gone = False  # the file of one is
        self._fork = _core.fork_generation()
        for name in names:
            try:
                fd = files.open_file(_path_of(folder, name), write=False)
            except NotFound:
                self._gone = True
                continue
            _core.own_fd(fd)
            self._fds.append(fd)

    def __bool__(self) -> bool:
        return self._gone or bool(self._fds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fork == _core.fork_generation():
            for fd in self._fds:
                _core.close_fd(fd)

    def has_death(self) -> bool:
        """Whether one of them is dead."""
        held = _core.is_byte_held
        return self._gone or any(not held(fd, L.ALIVE_BYTE) for fd in self._fds)


def is_alive(folder: Directory, name: str) -> bool:
    """Whether the worker with that file is alive."""
    return handed_by_dead(folder, name) is None


def delete_file(folder: Directory, name: str) -> None:
    """Delete the file of a worker that has ended."""
    if WORKER.fullmatch(name):
        with suppress(PenstockError):
            files.unlink(_path_of(folder, name))


def sweep(folder: Directory, known: set[str]) -> None:
    """Delete files of workers that died before they joined, or after they were found dead."""
    try:
        workers = files.hold_dir(folder.file(WORKERS))
    except NotFound:
        return
    for name in files.list_dir(workers):
        if name in known or not WORKER.fullmatch(name):
            continue
        path = workers.file(name)
        with suppress(PenstockError):
            fd = files.open_file(path, write=True)
            _core.own_fd(fd)
            try:
                if _lock(fd, path) and files.same_file(fd, path):
                    files.unlink(path)
            finally:
                _core.close_fd(fd)


def _path_of(folder: Directory, name: str) -> Name:
    try:
        return files.hold_dir(folder.file(WORKERS)).file(name)
    except NotFound:
        return folder.file(f"{WORKERS}-{name}")  # which is not there either
