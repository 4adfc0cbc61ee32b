"""Logs by their paths, without opening them: check, find and delete them.

Deleting trusts no name: every file must have Penstock's content, or nothing is touched.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import closing, suppress

from penstock import _core
from penstock import layout as L
from penstock.consumers.folder import own_all
from penstock.errors import (
    AlreadyExists,
    Busy,
    Corrupt,
    Gone,
    NoSuchLog,
    NotFound,
    PenstockError,
    Usage,
)
from penstock.groups.folder import FOLDER as GROUPS
from penstock.groups.folder import PARTS, WORKERS, closed_groups
from penstock.groups.folder import is_ours as is_part_of_group
from penstock.handle import control, locks
from penstock.ring import file as ring_file
from penstock.ring.named import SIDECAR
from penstock.segments import leftovers, segment
from penstock.system import files
from penstock.system.directory import Directory

DELETED = re.compile(r"\.[0-9a-f]{8}\.deleted")  # ends the name of a log that is being deleted
_KEPT = re.compile(r"(lost|damaged)-.+\.bin")  # files that recovery and repair keep
_BELOW = ("consumers", "archive")  # directories in a log or beside a ring, with files of ours
_MARKS = (b"PENS", b"PSK", b"\x28\xb5\x2f\xfd")  # every file of Penstock begins like this


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is a log at ``path``: a directory with segments, or a ring.

    It opens nothing and needs no permission to. The log may still be damaged: see `verify`.

    >>> penstock.exists(path)
    False
    >>> penstock.open(path).append(b"a")
    1
    >>> penstock.exists(path)
    True
    """
    return _is_log(files.path_text(path))


def find(directory: str | os.PathLike[str]) -> list[str]:
    """The paths of all logs and rings at or below a directory, sorted.

    It does not search inside logs, and does not follow links below the directory.

    >>> for name in ("a", "b/c"):
    ...     penstock.open(path / name).close()
    >>> [log.removeprefix(str(path)) for log in penstock.find(path)]
    ['/a', '/b/c']
    """
    top = files.path_text(directory, "directory")
    if _is_log(top):
        return [top]
    there = files.is_dir(top)
    if there is None:
        raise NoSuchLog(f"{top}: there is no such directory", filename=top)
    if not there:
        raise Usage(f"directory must be a directory, got {top!r}, which is a file and not a ring")
    found: list[str] = []
    places = [top]
    while places:
        place = places.pop()
        try:
            names = files.list_dir(place)
        except NotFound:
            continue  # it was just deleted
        for name in names:
            below = os.path.join(place, name)
            if os.path.islink(below) or DELETED.search(name):
                continue
            if name.endswith(SIDECAR) and _is_log(below.removesuffix(SIDECAR)):
                continue  # consumers and groups of a ring
            if _is_log(below):
                found.append(below)
            elif os.path.isdir(below):
                places.append(below)
    return sorted(found)


def _is_log(path: str) -> bool:
    with suppress(NotFound):  # a broken link, or just deleted
        there = files.is_dir(path)
        if there:
            return any(segment.is_name(name) for name in files.list_dir(path))
        return there is not None and ring_file.is_ring(path)
    return False


def delete(path: str | os.PathLike[str]) -> None:
    """Delete the log at ``path`` with its consumers and groups. `Busy` while a handle has it open.

    `Busy` also while a consumer is live, even if its log is open for reading only, and while a
    group is open.

    Nothing is deleted if there is a foreign file: the error, `Usage`, names it. A log of segments
    disappears from its path atomically, even if a process dies meanwhile. Readers of a log without
    an open writer cannot be noticed; they keep their maps.

    >>> penstock.open(path).close()
    >>> penstock.delete(path)
    >>> penstock.exists(path)
    False
    """
    text = files.path_text(path)
    if os.path.islink(text) and os.path.exists(text):
        raise Usage(f"{text}: is a link to {os.readlink(text)}; delete that, and then the link")
    there = files.is_dir(text)
    if there is None or not _is_log(text):
        if files.is_dir(os.path.dirname(text)):  # else nothing is there, and never was
            _sweep(text)
        what = "there is no log here" if there is None else "this is not a log"
        raise NoSuchLog(f"{text}: {what}; nothing was deleted", filename=text)
    if there:
        _delete_segments(text)
    else:
        _delete_ring(text)
    _sweep(text)
    files.sync_parent(text)


def _busy(path: str) -> Busy:
    return Busy(f"{path}: the log is open, in this or another process; close it everywhere first")


def _delete_segments(path: str) -> None:
    with closing(files.hold_dir(path)) as directory:
        held = files.open_dir(directory)
        lock = -1
        _core.own_fd(held)
        try:
            with suppress(NotFound):
                lock = locks.open_lock(directory)
            with _core.FlockBlock(held):
                locked = lock < 0 or files.lock_exclusive(lock, path)
                if not locked or not files.lock_exclusive(held, path):
                    raise _busy(path)
                _check_all_ours(directory)
                with own_all(directory), closed_groups(directory):
                    _core.fail_point("delete.locked")
                    aside = _put_aside(path, held)
                    _core.fail_point("delete.renamed")
                    _remove(directory)
                _core.fail_point("delete.emptied")
                _remove_dir(aside)
        finally:
            if lock >= 0:
                _core.close_fd(lock)
            _core.close_fd(held)


def _put_aside(path: str, held: int) -> str:
    """Have the directory ``held`` gone from its path at once; where it is then."""
    aside = f"{path}.{os.urandom(4).hex()}.deleted"
    files.rename(path, aside, replace=False)
    if not _is_same(held, aside):  # another directory had taken the path
        files.rename(aside, path, replace=False)
        raise Gone(f"{path}: was replaced just now; nothing was deleted", filename=path)
    return aside


def _delete_ring(path: str) -> None:
    fd = files.open_file(path, write=True)
    _core.own_fd(fd)
    try:
        with _core.FlockBlock(fd):
            if not files.lock_exclusive(fd, path):
                raise _busy(path)
            if not files.same_file(fd, path):
                raise Gone(f"{path}: was replaced just now; nothing was deleted", filename=path)
            beside = path + SIDECAR
            if files.is_dir(beside) and not os.path.islink(beside):
                with closing(files.hold_dir(beside)) as directory:
                    _check_all_ours(directory)
                    with own_all(directory), closed_groups(directory):
                        _remove(directory)
                _remove_dir(beside)
            ring_file.sweep(path)
            _core.fail_point("delete.ring")
            files.unlink(path)
    finally:
        _core.close_fd(fd)


def _is_same(fd: int, path: str) -> bool:
    """Whether a directory that is open has that path."""
    return os.path.samestat(os.fstat(fd), files.status(path))


def _check_all_ours(directory: Directory) -> None:
    """Refuse to delete a directory with files that Penstock did not write."""
    first = b""
    for name in sorted(files.list_dir(directory)):
        path = directory.file(name)
        foreign = not _is_ours(directory, name)
        if segment.is_name(name) and not foreign:
            uuid = _uuid_of(path)
            first = first or uuid
            foreign = bool(uuid) and uuid != first
        if foreign:
            raise Usage(
                f"{path}: is not part of the log; move it away and try again. Nothing was deleted"
            )


def _uuid_of(path: str) -> bytes:
    """The uuid of a segment's log; empty if its header is damaged."""
    fd = files.open_file(path, write=False)
    try:
        return segment.read_header(fd, path).uuid
    except Corrupt:
        return b""
    finally:
        files.close(fd)


def _is_ours(directory: Directory, name: str) -> bool:
    path = directory.file(name)
    if name == GROUPS:
        return _holds_groups_only(directory, name)
    if name in _BELOW:
        return _holds_ours_only(directory, name)
    if _KEPT.fullmatch(name):
        return stat.S_ISREG(files.status(path).st_mode)
    if segment.is_name(name) or leftovers.is_leftover_name(name):
        return leftovers.is_ours(path)
    return name in (control.NAME, locks.NAME) and leftovers.is_ours(path)


def _holds_ours_only(directory: Directory, name: str) -> bool:
    path = directory.file(name)
    if not stat.S_ISDIR(files.status(path).st_mode):
        return False
    with closing(files.hold_dir(path)) as below:
        return all(_begins_as_ours(below.file(found)) for found in files.list_dir(below))


def _holds_groups_only(directory: Directory, name: str) -> bool:
    """Whether there is nothing in the folder of groups but what groups put there."""
    try:
        with closing(files.hold_dir(directory.file(name))) as groups:
            return all(_is_group(groups, found) for found in files.list_dir(groups))
    except PenstockError:  # a file, or a link
        return False


def _is_group(groups: Directory, name: str) -> bool:
    with closing(files.hold_dir(groups.file(name))) as folder:
        for part in files.list_dir(folder):
            if not is_part_of_group(folder, part):
                return False
            if part == WORKERS:
                if not _holds_ours_only(folder, part):
                    return False
            elif part in PARTS:
                with closing(files.hold_dir(folder.file(part))) as inner:
                    if not all(_is_ours(inner, found) for found in files.list_dir(inner)):
                        return False
    return True


def _begins_as_ours(path: str) -> bool:
    fd = files.open_if_there(path)
    if fd is None:
        return False
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        start = files.read_at(fd, L.PAGE, 0, path)
    finally:
        files.close(fd)
    # A consumer that never committed has only a slot for durable commits.
    begins = (start, start[L.PLACE_DURABLE_BYTES :])
    return any(part.startswith(_MARKS) for part in begins) or not start.strip(b"\0")


def _remove(directory: Directory) -> None:
    """Delete all files of a checked directory: the segments last."""
    names = files.list_dir(directory)
    for name in sorted(names, key=lambda name: (segment.is_name(name), name)):
        if _is_ours(directory, name):
            files.remove_tree(directory.file(name))


def _remove_dir(path: str) -> None:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError:  # a foreign file was put there meanwhile, which must not be deleted
        raise AlreadyExists(
            f"{path}: the log is deleted, but this directory is left: it has other files",
            filename=path,
        ) from None


def _sweep(path: str) -> None:
    """Finish the deletion that a dead process began here."""
    above, base = os.path.split(path)
    with suppress(NotFound):
        for name in files.list_dir(above):
            if name.startswith(base) and DELETED.fullmatch(name[len(base) :]):
                _sweep_one(os.path.join(above, name))


def _sweep_one(path: str) -> None:
    with suppress(PenstockError), closing(files.hold_dir(path)) as directory:
        held = files.open_dir(directory)
        try:
            if files.lock_exclusive(held, path):  # else another process does it
                _check_all_ours(directory)
                _remove(directory)
                _remove_dir(path)
        finally:
            files.close(held)
