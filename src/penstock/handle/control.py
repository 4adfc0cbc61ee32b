"""Attaching to a log: who may build control, what makes a control file valid, and its words.

Control is disposable: this module can always make it anew from the frames, and it never trusts one
from another boot, another file or another build. It never touches a frame.

Where control lives is a :class:`Place`: a file of its own, or a page of a file that holds more.
What openers hold with flock is the log itself: its directory, or its only file. Writers of a
segmented log also hold the file ``writers.lock``, which readers cannot open.

Attaching, as an algorithm:

1. Take flock(LOCK_EX) on all of these without waiting. Got it: nobody has the log open. Recover the
   log and build control, as a temporary file that is renamed, or in its page with the magic last;
   change the locks to LOCK_SH.
2. Did not get it: somebody has the log open. Take LOCK_SH and open the control that is there. Of a
   segmented log, no writer waits for the directory: who may only read can lock that. If such a
   reader is all that is in the way, and control is from another boot, go on as in 1.
3. The change of a flock is not atomic. So either way, compare the file that was mapped with the
   one that has the name now, and start again if they differ.
4. Control missing or not valid while LOCK_EX is refused: wait for it, then Busy.

A reader that never writes, and finds no valid control, lets go of the log again and reads the
frames alone; so it does not keep the next writer out.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from penstock import _core
from penstock import layout as L
from penstock._core import Control
from penstock.errors import Busy, Io, NotFound, PenstockError, from_os
from penstock.handle import locks
from penstock.system import files
from penstock.system.directory import Directory, Name

NAME = "control"
TEMPORARY = "control.tmp"

Words = dict[int, int]

_KIND = L.CONTROL_KIND_POLLING if _core.POLLING else L.CONTROL_KIND_FUTEX
_KIND_NAMES = {L.CONTROL_KIND_FUTEX: "futex", L.CONTROL_KIND_POLLING: "polling"}
_FIXED = "<II16s16sQQQ"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the control of a log is."""

    log: str  # what openers lock, and messages name
    file: str  # holds the page; relative to a held directory, if it is a Name
    offset: int = 0  # of the page in that file
    lock: str | None = None  # what writers lock, if it is another file

    @classmethod
    def in_directory(cls, directory: Directory) -> Self:
        """A file of its own beside the segments."""
        return cls(directory.path, directory.file(NAME), lock=directory.file(locks.NAME))


@functools.cache
def boot_id() -> bytes:
    """What tells this boot of the machine from every other."""
    path = "/proc/sys/kernel/random/boot_id"
    fd = files.open_file(path, write=False)
    try:
        text = files.read_at(fd, 64, 0, path)
    finally:
        files.close(fd)
    return bytes.fromhex(text.decode().strip().replace("-", ""))


with suppress(PenstockError):  # else whoever needs it is told
    boot_id()  # now, so that a process without descriptors left is told of the log and not of this


def position(number: int, offset: int) -> int:
    """A place in the log as one word: segment number and offset in it."""
    return number << 32 | offset


def _fixed_part(fd: int, uuid: bytes, created_ns: int) -> bytes:
    stat = os.fstat(fd)
    return L.CONTROL_MAGIC + struct.pack(
        _FIXED,
        L.CONTROL_VERSION,
        _KIND,
        boot_id(),
        uuid,
        stat.st_dev,
        stat.st_ino,
        created_ns,
    )


def _page(fd: int, uuid: bytes, words: Words) -> bytes:
    """A page of control for the file ``fd``."""
    page = bytearray(L.CONTROL_BYTES)
    fixed = _fixed_part(fd, uuid, _core.now_ns())
    page[: len(fixed)] = fixed
    struct.pack_into("<I", page, L.C_CRC, _core.crc32c(memoryview(page)[: L.C_CRC]))
    struct.pack_into("<I", page, L.C_NEXT_TOKEN, 1)
    for at, value in words.items():
        struct.pack_into("<Q", page, at, value)
    return bytes(page)


def build(directory: Directory, temporary: Name, uuid: bytes, words: Words, mode: int) -> None:
    """Make control from ``words`` as a file of its own, by way of another, under LOCK_EX."""
    name = directory.file(NAME)
    files.unlink(temporary)
    fd = files.create_file(temporary, mode)
    try:
        files.allocate(fd, 0, L.CONTROL_BYTES, temporary)
        _core.fail_point("control.created")
        files.write_at(fd, _page(fd, uuid, words), 0, temporary)
        _core.fail_point("control.written")
        # Over an old file, ext4 would write the new one out first, and whoever opens would wait.
        files.unlink(name)
        files.rename(temporary, name)
        _core.fail_point("control.renamed")
    finally:
        files.close(fd)


def build_in_place(place: Place, fd: int, uuid: bytes, words: Words) -> None:
    """Make control from ``words`` in its page of the file ``fd``, under LOCK_EX.

    The magic goes first and comes back last, so that whoever dies here leaves no control.
    """
    page = _page(fd, uuid, words)
    size = len(L.CONTROL_MAGIC)
    files.write_at(fd, bytes(size), place.offset, place.file)
    _core.fail_point("control.emptied")
    files.write_at(fd, page[size:], place.offset + size, place.file)
    _core.fail_point("control.filled")
    files.write_at(fd, page[:size], place.offset, place.file)


def _is_whole(page: bytes) -> bool:
    """Whether a page says that it is control, and its checksum agrees."""
    if len(page) < L.CONTROL_BYTES or page[: len(L.CONTROL_MAGIC)] != L.CONTROL_MAGIC:
        return False
    return bool(struct.unpack_from("<I", page, L.C_CRC)[0] == _core.crc32c(page[: L.C_CRC]))


def _check(fd: int, place: Place, lock_fd: int = -1) -> str | None:
    """Why the control in the file ``fd`` cannot be used, or None."""
    page = files.read_at(fd, L.CONTROL_BYTES, place.offset, place.file)
    if len(page) < L.CONTROL_BYTES or page[: len(L.CONTROL_MAGIC)] != L.CONTROL_MAGIC:
        return "it is not a control file"
    (crc,) = struct.unpack_from("<I", page, L.C_CRC)
    if crc != _core.crc32c(page[: L.C_CRC]):
        return "its checksum does not match"
    version, kind, boot, _, dev, ino, _ = struct.unpack_from(_FIXED, page, L.C_VERSION)
    stat = os.fstat(fd)
    if version != L.CONTROL_VERSION:
        return f"its version is {version}, not {L.CONTROL_VERSION}"
    if boot != boot_id():
        return "it is from another boot"
    if (dev, ino) != (stat.st_dev, stat.st_ino):
        return "it was copied from elsewhere"
    if kind != _KIND:
        return (
            f"it is in use by the {_KIND_NAMES.get(kind, 'unknown')} build and this is the "
            f"{_KIND_NAMES[_KIND]} one"
        )
    (lock_ino,) = struct.unpack_from("<Q", page, L.C_LOCK_INO)
    if lock_fd >= 0 and lock_ino != os.fstat(lock_fd).st_ino:
        return f"the file {locks.NAME!r} was replaced while the log was open"
    return None


def old_words(place: Place, uuid: bytes) -> Words | None:
    """The words of a control from this boot that nobody uses any more, as a hint."""
    found = peek(place)
    return found.words if found is not None and found.uuid == uuid else None


def stray_words(place: Place, uuid: bytes) -> Words | None:
    """The words of a control of this log, be it from another boot or of another file."""
    try:
        fd = files.open_file(place.file, write=False)
    except PenstockError:
        return None
    try:
        page = files.read_at(fd, L.CONTROL_BYTES, place.offset, place.file)
    except PenstockError:
        return None
    finally:
        files.close(fd)
    if len(page) < L.CONTROL_BYTES or page[: len(L.CONTROL_MAGIC)] != L.CONTROL_MAGIC:
        return None
    version = int.from_bytes(page[L.C_VERSION : L.C_VERSION + 4], "little")
    if version != L.CONTROL_VERSION or page[L.C_UUID : L.C_UUID + 16] != uuid:
        return None
    return _words_of(page)


def uuid_of(place: Place) -> bytes | None:
    """The uuid in a control of whatever boot or file, for a log that has lost its own."""
    try:
        fd = files.open_file(place.file, write=False)
    except PenstockError:
        return None
    try:
        page = files.read_at(fd, L.CONTROL_BYTES, place.offset, place.file)
    except PenstockError:
        return None
    finally:
        files.close(fd)
    return uuid_in(page)


def uuid_in(page: bytes) -> bytes | None:
    """The uuid in the page of a control; None if it is not whole."""
    if len(page) < L.CONTROL_BYTES or page[: len(L.CONTROL_MAGIC)] != L.CONTROL_MAGIC:
        return None
    (crc,) = struct.unpack_from("<I", page, L.C_CRC)
    return page[L.C_UUID : L.C_UUID + 16] if crc == _core.crc32c(page[: L.C_CRC]) else None


def _words_of(page: bytes) -> Words:
    return {at: struct.unpack_from("<Q", page, at)[0] for at in range(0, L.CONTROL_BYTES, 8)}


@dataclass(frozen=True, slots=True)
class Peek:
    """A control of this boot, as it was for a moment."""

    uuid: bytes
    words: Words
    live: bool  # somebody who may append has it open


def peek(place: Place) -> Peek | None:
    """Look at control without attaching to it; None if there is none that can be used."""
    try:
        fd = files.open_file(place.file, write=False)
    except PenstockError:
        return None
    try:
        if _check(fd, place) is not None:
            return None
        live = _core.has_writers(fd) or _has_owners(place)
        page = files.read_at(fd, L.CONTROL_BYTES, place.offset, place.file)
    except PenstockError:
        return None
    finally:
        files.close(fd)
    if len(page) < L.CONTROL_BYTES:
        return None
    return Peek(page[L.C_UUID : L.C_UUID + 16], _words_of(page), live)


def _has_owners(place: Place) -> bool:
    """Whether a writer is alive by the file that writers lock, if this process may open it."""
    if place.lock is None:
        return False
    try:
        fd = files.open_file(place.lock, write=False)
    except PenstockError:
        return False
    try:
        return _core.has_writers(fd)
    finally:
        files.close(fd)


def _open(
    place: Place, *, write: bool, token: bool, lock_fd: int = -1
) -> tuple[Control | None, str]:
    """Map the control that is there; or why it cannot be used.

    Only who appends takes a token. A reader needs none: it writes nothing but ``waiting``.
    """
    try:
        fd = files.open_file(place.file, write=write)
    except NotFound:
        return None, "there is no control file"
    except Io as error:
        if error.errno != errno.ELOOP:
            raise
        return None, "it is a symbolic link"
    try:
        why = _check(fd, place, lock_fd)
    except BaseException:
        files.close(fd)
        raise
    if why is not None:
        files.close(fd)
        return None, why
    try:
        mapped = Control(fd, write, token, place.offset, lock_fd)
    except OSError as error:
        raise from_os(error, "mapping", place.file) from error
    mapped.log = place.log
    if files.same_file(mapped.fd, place.file):
        return mapped, ""
    mapped.close()
    return None, "it was replaced just now"


def attach_writer(
    place: Place,
    held_fd: int,
    recover: Callable[[], None],
    timeout: float | None,
    lock_fd: int = -1,
) -> Control:
    """Hold the log and return live control; ``recover`` runs if nobody else is there.

    ``lock_fd`` is the file that writers lock, if the log has one.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    nap = 0.0005
    while True:
        with _core.Opening(held_fd):
            if _take_all(place, held_fd, lock_fd):
                recover()
            if lock_fd < 0:
                files.lock_shared(held_fd, place.log, deadline)
            else:
                files.lock_shared(lock_fd, place.log, deadline, held_fd)
                files.try_lock_shared(held_fd, place.log)  # for readers, and older Penstocks
        _core.fail_point("open.locked")
        control, why = _open(place, write=True, token=True, lock_fd=lock_fd)
        if control is not None:
            return control
        files.unlock(held_fd, place.log)
        if lock_fd >= 0:
            files.unlock(lock_fd, place.log)
        if deadline is not None and time.monotonic() >= deadline:
            raise Busy(
                f"{place.log}: another process has the log open, but control is unusable: {why}; "
                "close the log in every process and open it again"
            )
        time.sleep(nap)
        nap = min(0.02, nap * 2)


def _take_all(place: Place, held_fd: int, lock_fd: int) -> bool:
    """Take every lock of the log without waiting; whether control may be built now."""
    if lock_fd >= 0 and not files.lock_exclusive(lock_fd, place.log):
        return False
    if files.lock_exclusive(held_fd, place.log):
        return True
    return lock_fd >= 0 and _is_outdated(place)


def _is_outdated(place: Place) -> bool:
    """Whether control is one that nobody can have open: of another boot, or a copy."""
    try:
        fd = files.open_file(place.file, write=False)
    except PenstockError:
        return False
    try:
        page = files.read_at(fd, L.CONTROL_BYTES, place.offset, place.file)
        if not _is_whole(page):
            return False
        _, _, boot, _, dev, ino, _ = struct.unpack_from(_FIXED, page, L.C_VERSION)
        stat = os.fstat(fd)
        return boot != boot_id() or (dev, ino) != (stat.st_dev, stat.st_ino)
    finally:
        files.close(fd)


def attach_reader(place: Place, held_fd: int, timeout: float | None) -> Control | None:
    """Hold the log and return live control; None, without holding it, if there is none.

    A control without a living writer is nobody's any more, and only a hint.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with _core.Opening(held_fd):
        files.lock_shared(held_fd, place.log, deadline)
    for write in (True, False):
        try:
            control, _ = _open(place, write=write, token=False)
        except PermissionError:
            continue
        if control is not None and control.has_writers():
            return control
        if control is not None:
            control.close()
        break
    files.unlock(held_fd, place.log)
    return None
