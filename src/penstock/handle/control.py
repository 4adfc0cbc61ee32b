"""Attaching to a log: who may build control, what makes a control file valid, and its words.

Control is disposable: this module can always rebuild it from the frames, and it never trusts one
from another boot, another file or another build. It never touches a frame.

The place of control is a :class:`ControlPlace`: a separate file, or a page of a larger file.
Openers lock the log itself with flock: its directory, or its only file. Writers of a segmented log
also lock the file ``writers.lock``, which readers cannot open.

Attaching, as an algorithm:

1. Take flock(LOCK_EX) on all of these without waiting. With success, no other handle has the log
   open: recover the log and build control, as a temporary file that is renamed, or in its page with
   the magic last; change the locks to LOCK_SH.
2. Otherwise another handle has the log open: take LOCK_SH and open the existing control. In a
   segmented log no writer waits for the directory, since a user who may only read can lock that. If
   only such a reader prevents the lock, and control is from another boot, continue as in 1.
3. The change of a flock is not atomic. So either way, compare the mapped file with the one that
   has the name now, and start again if they differ.
4. If control is missing or not valid while LOCK_EX is refused, wait for it, then raise Busy.

A reader that never writes and finds no valid control releases the log again and reads the frames
alone, so that it does not block the next writer.
"""

from __future__ import annotations

import errno
import functools
import os
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
from penstock.headers import is_good, seal
from penstock.system import files
from penstock.system.directory import Directory, Name

NAME = "control"
TEMPORARY = "control.tmp"

Words = dict[int, int]

_KIND = L.CONTROL_KIND_POLLING if _core.POLLING else L.CONTROL_KIND_FUTEX
_KIND_NAMES = {L.CONTROL_KIND_FUTEX: "futex", L.CONTROL_KIND_POLLING: "polling"}
_NAMES = {field.at: name for name, field in L.CONTROL.fields.items()}
_IS_SHORT = {field.at: field.type == "u32" for field in L.CONTROL.fields.values()}
_OF_LOG = [at for at in _NAMES if L.C_HEAD <= at < L.C_NOTIFY]


@dataclass(frozen=True, slots=True)
class ControlPlace:
    """The place of the control of a log."""

    log: str  # the path that openers lock, and the one in messages
    file: str  # the file with the page; relative to a held directory, if it is a Name
    offset: int = 0  # of the page in that file
    lock: str | None = None  # the file that writers lock, if it is another one

    @classmethod
    def in_directory(cls, directory: Directory) -> Self:
        """A separate file beside the segments."""
        return cls(directory.path, directory.file(NAME), lock=directory.file(locks.NAME))


@functools.cache
def boot_id() -> bytes:
    """The unique id of this boot of the machine."""
    path = "/proc/sys/kernel/random/boot_id"
    fd = files.open_file(path, write=False)
    try:
        text = files.read_at(fd, 64, 0, path)
    finally:
        files.close(fd)
    return bytes.fromhex(text.decode().strip().replace("-", ""))


with suppress(PenstockError):  # else the code that needs it raises
    boot_id()  # now, so that a lack of descriptors is later reported for the log and not for this


def _page(fd: int, uuid: bytes, words: Words) -> bytes:
    """A page of control for the file ``fd``."""
    stat = os.fstat(fd)
    return seal(
        L.CONTROL,
        magic=L.CONTROL_MAGIC,
        version=L.CONTROL_VERSION,
        kind=_KIND,
        boot_id=boot_id(),
        uuid=uuid,
        dev=stat.st_dev,
        ino=stat.st_ino,
        created_ns=_core.now_ns(),
        next_token=1,
        **{_NAMES[at]: value for at, value in words.items()},
    )


def store(control: Control, at: int, value: int) -> None:
    """Store a word of live control, in its size."""
    if _IS_SHORT[at]:
        control.put32(at, value)
    else:
        control.put(at, value)


def words_of_log(control: Control) -> Words:
    """The words of live control that describe the end and content of the log, in their order."""
    return {at: control.get32(at) if _IS_SHORT[at] else control.get(at) for at in _OF_LOG}


def build(directory: Directory, temporary: Name, uuid: bytes, words: Words, mode: int) -> None:
    """Make control from ``words`` as a separate file, through a temporary one, under LOCK_EX."""
    name = directory.file(NAME)
    files.unlink(temporary)
    fd = files.create_file(temporary, mode)
    try:
        files.allocate(fd, 0, L.CONTROL_BYTES, temporary)
        _core.fail_point("control.created")
        files.write_at(fd, _page(fd, uuid, words), 0, temporary)
        _core.fail_point("control.written")
        # Over an old file, ext4 would first write the new one to disk, and openers would wait.
        files.unlink(name)
        files.rename(temporary, name)
        _core.fail_point("control.renamed")
    finally:
        files.close(fd)


def build_in_place(place: ControlPlace, fd: int, uuid: bytes, words: Words) -> None:
    """Make control from ``words`` in its page of the file ``fd``, under LOCK_EX.

    The magic goes first and comes back last, so that a process that dies here leaves no control.
    """
    page = _page(fd, uuid, words)
    size = len(L.CONTROL_MAGIC)
    files.write_at(fd, bytes(size), place.offset, place.file)
    _core.fail_point("control.emptied")
    files.write_at(fd, page[size:], place.offset + size, place.file)
    _core.fail_point("control.filled")
    files.write_at(fd, page[:size], place.offset, place.file)


def _is_whole(page: bytes) -> bool:
    """Whether a page has the magic of control, and a matching checksum."""
    return _is_control(page) and is_good(L.CONTROL, page)


def _is_control(page: bytes) -> bool:
    return len(page) >= L.CONTROL_BYTES and page.startswith(L.CONTROL_MAGIC)


def _check(fd: int, place: ControlPlace, lock_fd: int = -1) -> str | None:
    """Why the control in the file ``fd`` cannot be used, or None."""
    page = files.read_at(fd, L.CONTROL_BYTES, place.offset, place.file)
    if not _is_control(page):
        return "it is not a control file"
    if not _is_whole(page):
        return "its checksum does not match"
    fields = L.CONTROL.unpack(page)
    version, kind = fields["version"], fields["kind"]
    stat = os.fstat(fd)
    if version != L.CONTROL_VERSION:
        return f"its version is {version}, not {L.CONTROL_VERSION}"
    if fields["boot_id"] != boot_id():
        return "it is from another boot"
    if (fields["dev"], fields["ino"]) != (stat.st_dev, stat.st_ino):
        return "it was copied from elsewhere"
    if kind != _KIND:
        return (
            f"it is in use by the {_KIND_NAMES.get(kind, 'unknown')} build, but this is the "
            f"{_KIND_NAMES[_KIND]} one"
        )
    if lock_fd >= 0 and fields["lock_ino"] != os.fstat(lock_fd).st_ino:
        return f"the file {locks.NAME!r} was replaced while the log was open"
    return None


def old_words(place: ControlPlace, uuid: bytes) -> Words | None:
    """The words of an unused control from this boot, as a hint."""
    found = peek(place)
    return found.words if found is not None and found.uuid == uuid else None


def stray_words(place: ControlPlace, uuid: bytes) -> Words | None:
    """The words of a control of this log, from any boot or file."""
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
    if not _is_control(page):
        return None
    fields = L.CONTROL.unpack(page)
    if fields["version"] != L.CONTROL_VERSION or fields["uuid"] != uuid:
        return None
    return L.CONTROL.numbers(page)


def uuid_of(place: ControlPlace) -> bytes | None:
    """The uuid in a control of any boot or file, for a log that has lost its uuid."""
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
    """The uuid in the page of a control; None if it is not valid."""
    return _uuid(page) if _is_whole(page) else None


def _uuid(page: bytes) -> bytes:
    uuid: bytes = L.CONTROL.unpack(page)["uuid"]
    return uuid


@dataclass(frozen=True, slots=True)
class Peek:
    """A control of this boot, as it was at one moment."""

    uuid: bytes
    words: Words
    live: bool  # a handle that may append has it open


def peek(place: ControlPlace) -> Peek | None:
    """Read control without attaching to it; None if there is no usable one."""
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
    return Peek(_uuid(page), L.CONTROL.numbers(page), live)


def _has_owners(place: ControlPlace) -> bool:
    """Whether a writer is alive, from the file that writers lock, if this process may open it."""
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
    place: ControlPlace, *, write: bool, token: bool, lock_fd: int = -1
) -> tuple[Control | None, str]:
    """Map the existing control, or return why it cannot be used.

    Only a writer takes a token. A reader needs none: it writes nothing but ``waiting``.
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
    place: ControlPlace,
    held_fd: int,
    recover: Callable[[], None],
    timeout: float | None,
    lock_fd: int = -1,
) -> Control:
    """Hold the log and return live control; ``recover`` runs if no other handle is there.

    ``lock_fd`` is the file that writers lock, if the log has one.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    nap = 0.0005
    while True:
        with _core.FlockBlock(held_fd):
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


def _take_all(place: ControlPlace, held_fd: int, lock_fd: int) -> bool:
    """Take every lock of the log without waiting; returns whether control may be built now."""
    if lock_fd >= 0 and not files.lock_exclusive(lock_fd, place.log):
        return False
    if files.lock_exclusive(held_fd, place.log):
        return True
    return lock_fd >= 0 and _is_outdated(place)


def _is_outdated(place: ControlPlace) -> bool:
    """Whether no process can have control open: it is from another boot, or a copy."""
    try:
        fd = files.open_file(place.file, write=False)
    except PenstockError:
        return False
    try:
        page = files.read_at(fd, L.CONTROL_BYTES, place.offset, place.file)
        if not _is_whole(page):
            return False
        fields, stat = L.CONTROL.unpack(page), os.fstat(fd)
        same = (fields["dev"], fields["ino"]) == (stat.st_dev, stat.st_ino)
        return fields["boot_id"] != boot_id() or not same
    finally:
        files.close(fd)


def attach_reader(place: ControlPlace, held_fd: int, timeout: float | None) -> Control | None:
    """Hold the log and return live control; None, without holding it, if there is none.

    A control without a live writer is unused, and only a hint.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with _core.FlockBlock(held_fd):
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
