"""The folders of a log's groups: names, notes of where the log ended, deletion.

Of a segmented log they are in ``groups`` in the log's directory; of the ring ``NAME``, in
``NAME.d/groups`` beside it. Each has a sidecar log of decisions (``state``), the dead letters
(``dead``), results (``results``), and a file for each live worker (``workers``). Nothing here
opens a log: the storage of a log uses it as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock import _core, headers
from penstock import layout as L
from penstock.consumers.folder import check_name as check_any_name
from penstock.consumers.folder import names_in, open_folder
from penstock.errors import AlreadyExists, Busy, Corrupt, NotFound, PenstockError
from penstock.handle import locks
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.system.messages import logger

FOLDER = "groups"
STATE, DEAD, RESULTS, WORKERS = "state", "dead", "results", "workers"
PARTS = (STATE, DEAD, RESULTS, WORKERS)
NOTE = re.compile(r"end-[0-9a-f]{16}")
WORKER = re.compile(r"[0-9a-f]{16}")
_UNFINISHED = ".new"
_DELETED = re.compile(r"\.[0-9a-f]{16}\.deleted")


def check_name(name: object) -> str:
    """Refuse what cannot be the name of a group."""
    return check_any_name(name, "a group")


def open_groups(home: Name | Directory) -> Directory | None:
    """The folder of all groups in the directory ``home``; None if there is none."""
    return open_folder(home, FOLDER)


def group_names(home: Name | Directory) -> list[str]:
    """The names of a log's groups, in order."""
    groups = open_groups(home)
    return [] if groups is None else names_in(groups)


def open_group(home: Name | Directory, name: str) -> Directory | None:
    """The folder of a group; None if there is none."""
    groups = open_groups(home)
    if groups is None:
        return None
    try:
        return files.hold_dir(groups.file(name))
    except NotFound:
        return None


def make_below(above: Directory, name: str, mode: int) -> Directory:
    """A directory in another one, made if need be; then its name is on disk."""
    if files.make_dir(above.file(name), mode):
        files.sync_name_in(above, above.file(name))
    return files.hold_dir(above.file(name))


def note_end(home: Name | Directory, next_seq: int) -> None:
    """The log may have lost events with the power: tell its groups that it ends before that seq.

    For the first opener, before anything is appended. A group reads the notes when it is opened,
    before anything is claimed.
    """
    try:
        groups = open_groups(home)
        for name in [] if groups is None else names_in(groups):
            assert groups is not None
            folder = files.hold_dir(groups.file(name))
            told = notes_in(folder).values()  # nothing was decided since those were written
            if STATE in files.list_dir(folder) and not any(end <= next_seq for end in told):
                write_note(folder, next_seq)
    except PenstockError as error:
        logger.warning("%s: its groups were not told where the log ends: %s", home, error)


def write_note(folder: Directory, next_seq: int) -> None:
    """Leave a note, on disk when this returns."""
    note = f"end-{os.urandom(8).hex()}"
    temporary = folder.file(note + _UNFINISHED)
    fd = files.create_file(temporary, 0o600)
    try:
        said = headers.seal(L.GROUP_NOTE, magic=L.GROUP_NOTE_MAGIC, end=next_seq)
        files.write_at(fd, said, 0, temporary)
        files.sync_data(fd, temporary)
    finally:
        files.close(fd)
    _core.fail_point("group.note")
    files.rename(temporary, folder.file(note))
    files.sync_name_in(folder, folder.file(note))


def notes_in(folder: Directory) -> dict[str, int]:
    """The notes of a group: the seq before which the log ended, by name."""
    found = {}
    for name in files.list_dir(folder):
        if not NOTE.fullmatch(name):
            continue
        path = folder.file(name)
        with suppress(NotFound):  # another opener has done what it says
            fd = files.open_file(path, write=False)
            try:
                said = files.read_at(fd, L.GROUP_NOTE_BYTES, 0, path)
            finally:
                files.close(fd)
            if (
                len(said) != L.GROUP_NOTE_BYTES
                or not said.startswith(L.GROUP_NOTE_MAGIC)
                or not headers.is_good(L.GROUP_NOTE, said)
            ):
                raise Corrupt(
                    f"{path}: this note of where the log ended cannot be read; compare the log's "
                    "last event with what the group has done, and delete the note",
                    path=path,
                    offset=0,
                )
            found[name] = L.GROUP_NOTE.get(said, "end")
    return found


def is_ours(folder: Directory, name: str) -> bool:
    """Whether a file in a group's folder has a name that one of ours can have."""
    return (
        name in PARTS
        or NOTE.fullmatch(name) is not None
        or NOTE.fullmatch(name.removesuffix(_UNFINISHED)) is not None
    )


@contextmanager
def closed_group(folder: Directory) -> Iterator[None]:
    """Have a group for oneself for a while; `Busy` if any process has it open."""
    taken: list[int] = []
    try:
        for part in (STATE, DEAD, RESULTS):
            if part not in files.list_dir(folder):
                continue
            inside = files.hold_dir(folder.file(part))
            held = files.open_dir(inside)
            _core.own_fd(held)
            taken.append(held)
            with suppress(NotFound):
                taken.append(locks.open_lock(inside))
            if not all(files.lock_exclusive(fd, folder.path) for fd in reversed(taken)):
                raise Busy(
                    f"{folder.path}: the group is open, in this or another process; close it, and "
                    "its workers, everywhere first"
                )
        yield
    finally:
        for fd in taken:
            _core.close_fd(fd)


@contextmanager
def closed_groups(home: Directory) -> Iterator[None]:
    """Likewise for all groups in a log's directory."""
    groups = open_groups(home)
    names = [] if groups is None else names_in(groups)
    if not names:
        yield
        return
    assert groups is not None
    with closed_group(files.hold_dir(groups.file(names[0]))):
        # The others are looked at one by one: nobody opens a group of a log that is locked.
        for name in names[1:]:
            with closed_group(files.hold_dir(groups.file(name))):
                pass
        yield


def delete_group(groups: Directory, name: str) -> None:
    """Delete a group that nobody has open; it is gone from its name at once."""
    sweep_deleted(groups)
    folder = files.hold_dir(groups.file(name))
    with closed_group(folder):
        foreign = [found for found in files.list_dir(folder) if not is_ours(folder, found)]
        if foreign:
            raise AlreadyExists(
                f"{folder.file(foreign[0])}: is not part of the group; move it away and try "
                "again. Nothing was deleted",
                filename=str(folder.file(foreign[0])),
            )
        aside = groups.file(f".{os.urandom(8).hex()}.deleted")
        files.rename(groups.file(name), aside, replace=False)
        _core.fail_point("group.deleted")
    files.remove_tree(aside)
    files.sync_name_in(groups, aside)


def sweep_deleted(groups: Directory) -> None:
    """Finish the deletions that dead processes began."""
    for name in files.list_dir(groups):
        if _DELETED.fullmatch(name):
            with suppress(PenstockError):
                files.remove_tree(groups.file(name))
