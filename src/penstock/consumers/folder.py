"""The folder with the files of a log's consumers: names, making and owning one, loss of power.

Of a segmented log it is ``consumers`` in the log's directory; of the ring ``NAME``,
``consumers`` in the directory ``NAME.d`` beside it. No file is deleted that cannot be locked.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from penstock import _core
from penstock import layout as L
from penstock._core import ConsumerFile
from penstock.consumers.file import ConsumerPlace, new_file, parse
from penstock.errors import (
    AlreadyExists,
    Busy,
    Corrupt,
    Io,
    NotFound,
    PenstockError,
    Permission,
    Usage,
    WrongType,
    from_os,
)
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.system.messages import logger

FOLDER = "consumers"
_UNFINISHED = re.compile(r"\.new-[0-9a-f]{16}")
_READS = 3  # looks at a file whose owner may store meanwhile


def check_name(name: object, what: str = "a consumer") -> str:
    """Refuse what cannot be the name of a consumer, or of a group.

    >>> check_name("billing")
    'billing'
    """
    if not isinstance(name, str):
        raise WrongType(f"the name of {what} must be str, got {type(name).__name__}")
    text = str.__str__(name)  # what it contains, whatever a subclass shows
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise Usage(f"the name of {what} must be valid Unicode, got {name!r}: {error}") from None
    if not text.strip() or text.startswith(".") or any(map(_is_odd, text)):
        raise Usage(
            f"the name of {what} must not be empty or begin with a dot, and must have no slash, "
            f"line break or control character, got {name!r}"
        )
    if len(raw) > L.CONSUMER_NAME_BYTES_MAX:
        raise Usage(
            f"the name of {what} must have {L.CONSUMER_NAME_BYTES_MAX} bytes or fewer in "
            f"UTF-8, got {len(raw)}"
        )
    return text


def _is_odd(char: str) -> bool:
    """Whether a file's name, or a line of a listing, cannot have it."""
    return char == "/" or unicodedata.category(char) in ("Cc", "Zl", "Zp")


def open_folder(home: Name | Directory, folder: str = FOLDER) -> Directory | None:
    """The folder in the directory ``home``; None if there is none."""
    try:
        held = files.hold_dir(home) if isinstance(home, Name) else home
        return files.hold_dir(held.file(folder))
    except NotFound:
        return None


def make_folder(home: Name | Directory, mode: int, folder: str = FOLDER) -> Directory:
    """Likewise, made if need be."""
    found = open_folder(home, folder)
    if found is not None:
        return found
    try:
        if isinstance(home, Name):
            if files.make_dir(home, mode):
                files.sync_name_in(home.directory, home)
            home = files.hold_dir(home)
        if files.make_dir(home.file(folder), mode):
            files.sync_name_in(home, home.file(folder))
    except Permission as error:
        raise not_writable(home, error) from error
    return files.hold_dir(home.file(folder))


def not_writable(path: object, error: PermissionError) -> Permission:
    """The error for a consumer of a log whose files cannot be changed."""
    return Permission(
        f"{path}: a consumer keeps its place in a file there, and none can be made or changed "
        f"({error.strerror}); use log.read() or log.follow() instead, and keep reader.position "
        "elsewhere",
        errno=error.errno,
        filename=str(path),
    )


def names_in(folder: Directory) -> list[str]:
    """Names of the consumers in a folder, in order."""
    return sorted(name for name in files.list_dir(folder) if not name.startswith("."))


def open_consumer_file(path: Name, *, write: bool) -> int:
    """A descriptor of the file; an error that says what to do if a directory or link is there."""
    why = errno.EINVAL
    try:
        fd = files.open_file(path, write=write)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        files.close(fd)
    except Io as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        why = error.errno
    raise Io(
        f"{path}: the file of a consumer must be a regular file, and this is a directory, a link "
        "or a device; move it away, or use another name",
        errno=why,
        filename=str(path),
    )


def try_own(path: Name) -> int | None:
    """A descriptor of the file, with the owner's lock; None if somebody else has it.

    `NotFound` if there is no such file, or not any more.
    """
    fd = open_consumer_file(path, write=True)
    _core.own_fd(fd)  # before it is locked: a child of a fork must not keep the lock
    try:
        if _lock(fd, path):
            if files.same_file(fd, path):
                return fd
            raise NotFound(f"{path}: the consumer was deleted just now")
    except BaseException:
        _core.close_fd(fd)
        raise
    _core.close_fd(fd)
    return None


@contextmanager
def own_all(home: Directory) -> Iterator[None]:
    """Own every consumer in a log's directory for a while; `Busy` if one is live."""
    folder = open_folder(home)
    owned: list[int] = []
    try:
        for name in [] if folder is None else names_in(folder):
            assert folder is not None
            path = folder.file(name)
            with suppress(NotFound):  # deleted just now
                fd = try_own(path)
                if fd is None:
                    raise live_error(path)
                owned.append(fd)
        yield
    finally:
        for fd in owned:
            _core.close_fd(fd)


def live_error(path: Name) -> Busy:
    """The error for a consumer that cannot be deleted, with its log or alone."""
    fd = files.open_file(path, write=False)
    try:
        if not is_live(fd, path):
            return reader_error(path)
    finally:
        files.close(fd)
    return Busy(
        f"{path}: the consumer {path.base!r} has an owner, which is alive; close it there, or end "
        "that process, and delete it then"
    )


def reader_error(path: Name) -> Busy:
    """The error for a consumer that has no owner, but cannot be owned either."""
    return Busy(
        f"{path}: a process that may only read the file has locked it; find it by the file's inode "
        "in /proc/locks, and end it"
    )


def _lock(fd: int, path: str) -> bool:
    try:
        return _core.try_lock_byte(fd, L.CONSUMER_OWNER_BYTE)
    except OSError as error:
        raise from_os(error, "locking", path) from error


def is_live(fd: int, path: str) -> bool:
    """Whether the consumer with that descriptor has an owner; the kernel says so."""
    held = _core.is_byte_held(fd, L.CONSUMER_OWNER_BYTE)
    if held < 0:
        raise from_os(OSError(-held, os.strerror(-held)), "looking for the owner of", path)
    return bool(held)


def make(folder: Directory, name: str, data: bytes, mode: int) -> int | None:
    """Make the file of a new consumer, on disk when it has its name; None if it has one already.

    The descriptor that this returns has the owner's lock, from before the file has its name.
    """
    sweep(folder)
    fd, temporary = _create_locked(folder, mode)
    try:
        files.write_at(fd, data, 0, temporary)
        files.sync_data(fd, temporary)
        _core.fail_point("consumer.made")
        try:
            files.rename(temporary, folder.file(name), replace=False)
        except AlreadyExists:
            files.unlink(temporary)
            _core.close_fd(fd)
            return None
        _core.fail_point("consumer.named")
        files.sync_name_in(folder, folder.file(name))
    except BaseException:
        _core.close_fd(fd)
        with suppress(PenstockError):
            files.unlink(temporary)
        raise
    return fd


def _create_locked(folder: Directory, mode: int) -> tuple[int, Name]:
    """A new file with the owner's lock. Before that it may be swept by others; then another one."""
    while True:
        temporary = folder.file(f".new-{os.urandom(8).hex()}")
        fd = files.create_file(temporary, mode)
        _core.own_fd(fd)
        try:
            if _lock(fd, temporary) and files.same_file(fd, temporary):
                return fd, temporary
        except BaseException:
            _core.close_fd(fd)
            raise
        _core.close_fd(fd)


def sweep(folder: Directory) -> None:
    """Delete what processes left that died while they made a consumer.

    A foreign file with such a name stays.
    """
    for name in files.list_dir(folder):
        if not _UNFINISHED.fullmatch(name):
            continue
        path = folder.file(name)
        with suppress(PenstockError):  # it has its name by now, or is not ours to delete
            fd = try_own(path)
            if fd is None:
                continue
            try:
                if _is_unfinished(fd, path):
                    files.unlink(path)
            finally:
                _core.close_fd(fd)


def _is_unfinished(fd: int, path: str) -> bool:
    """Whether a file begins as a new consumer does, or has only zeros in its first page."""
    data = files.read_at(fd, L.CONSUMER_BYTES + 1, 0, path)
    begins = data[: L.PAGE]
    ours = not begins.strip(b"\0") or begins[L.PLACE_DURABLE_BYTES :].startswith(L.PLACE_MAGIC)
    return ours and len(data) <= L.CONSUMER_BYTES


def read_place(fd: int, path: str, *, alone: bool) -> ConsumerPlace:
    """What the file says; the newest of several looks, if its owner may store meanwhile."""
    found: ConsumerPlace | None = None
    for _ in range(1 if alone else _READS):
        place = parse(files.read_at(fd, L.CONSUMER_BYTES, 0, path), path)
        if found is None or place.slot.generation > found.slot.generation:
            found = place
    assert found is not None
    return found


def map_place(fd: int, path: str, place: ConsumerPlace) -> ConsumerFile:
    """The file, mapped for commits; it takes the descriptor over."""
    files.allocate(fd, 0, L.CONSUMER_BYTES, path)  # a store into a hole of a full disk is a SIGBUS
    try:
        return ConsumerFile(fd, str(path), place.slot.pack(), place.plain_turn, place.durable_turn)
    except OSError as error:
        raise from_os(error, "mapping", path) from error


@dataclass(frozen=True, slots=True)
class Clamped:
    """A consumer whose place lay beyond the end of its log."""

    path: str
    was: int
    next_seq: int

    def __str__(self) -> str:
        return (
            f"{self.path}: the consumer had come to seq {self.was}, and the log ends before seq "
            f"{self.next_seq}: it lost events when the machine lost power, or is an older "
            f"copy. The consumer goes on at seq {self.next_seq}, so that it skips no new event"
        )


def clamp(file: ConsumerFile, next_seq: int) -> None:
    """Have a consumer that this process owns go on at the end of its log, and say so."""
    told = Clamped(file.path, file.next, next_seq)
    file.clamp(next_seq, file.next)
    files.sync_data(file.fd, file.path)
    logger.warning("%s", told)


def clamp_all(home: Name | Directory, uuid: bytes, next_seq: int) -> None:
    """The log was just found to end before ``next_seq``: no consumer may stand beyond that.

    For the first opener, before anything is appended. A consumer that is live is left alone: its
    owner has seen those events, in the log as it is now. A file that cannot be read stays as it is,
    and its consumer says so when it is opened.
    """
    try:
        folder = open_folder(home)
        names = [] if folder is None else names_in(folder)
    except PenstockError as error:
        logger.warning("%s: the places of consumers were not looked at: %s", home, error)
        return
    for name in names:
        assert folder is not None
        path = folder.file(name)
        try:
            _clamp_one(path, uuid, next_seq)
        except PenstockError as error:
            logger.warning("%s: the place of this consumer was not looked at: %s", path, error)


def _clamp_one(path: Name, uuid: bytes, next_seq: int) -> None:
    fd = try_own(path)
    if fd is None:
        fd = files.open_file(path, write=True)
        _core.own_fd(fd)
    try:
        # A lock of a user who may only read keeps everybody from owning it, but not from this.
        if is_live(fd, path):
            return
        place = read_place(fd, path, alone=True)
        if place.slot.uuid == uuid and place.slot.next > next_seq:
            file = map_place(fd, path, place)
            fd = -1
            clamp(file, next_seq)
            file.close()
    finally:
        if fd >= 0:
            _core.close_fd(fd)


def copy_all(
    home: Name | Directory,
    target: Callable[[], Directory],
    uuid: bytes,
    next_seq: int,
    mode: int,
) -> None:
    """Take the consumers of the log ``uuid`` along to a copy of it that ends before ``next_seq``.

    ``target`` makes the folder, if there are any. One that cannot be read, or is of another log, is
    left out, with a warning.
    """
    folder = open_folder(home)
    for name in [] if folder is None else names_in(folder):
        assert folder is not None
        path = folder.file(name)
        try:
            fd = files.open_file(path, write=False)
            try:
                place = read_place(fd, path, alone=False)
            finally:
                files.close(fd)
            if place.slot.uuid != uuid:
                raise Corrupt(f"{path}: is of another log, {place.slot.uuid.hex()}", path=path)
        except PenstockError as error:
            logger.warning("%s: the consumer is not in the copy: %s", path, error)
            continue
        slot = place.slot
        copied = files.create_file(target().file(name), mode)
        try:
            stands = min(slot.next, next_seq)
            data = new_file(slot.uuid, stands, place.profile, slot.heartbeat_ns)
            files.write_at(copied, data, 0, path)
            files.sync_data(copied, path)
        finally:
            files.close(copied)
