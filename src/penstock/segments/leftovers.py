"""Files that a dead process left in a log's directory: recognised by content, not only by name.

A foreign directory may have a file with a name like ours. So nothing is deleted or overwritten
unless it begins like our files, or with a sector of zeros: then it was just created, or its first
sector was not written when the machine lost power.
"""

from __future__ import annotations

import os
import re
import stat

from penstock import _core
from penstock import layout as L
from penstock.errors import AlreadyExists, NotFound, PenstockError
from penstock.handle import control, locks
from penstock.segments import segment
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.system.messages import logger

NEXT = "next.tmp"
LOAD = "load."  # a directory: a load that is not part of the log yet
NOTE = "named"  # in that directory: the files that the load names, or has named, as segments

_CONTROL_TEMPORARY = (control.TEMPORARY, "control.0.tmp")
_END = ".tmp"
_PREPARED = re.compile(r"next\.(\d+|repair-\d{20})\.tmp")
_REWRITTEN = re.compile(
    r"(compact\.\d{20}|erase\.\d{20}-\d+)\.tmp"
)  # a new generation, or an old one
_MERGED = re.compile(r"merged\.(\d{20})-\d{20}\.tmp")
_LOAD = re.compile(r"load\.\d+-\d+\.tmp")
COMPACT = "compact."  # a new generation of a segment that is not complete yet
MERGED = "merged."  # a note: the segments that are, or will be, in the one before them
ERASE = "erase."  # an old generation whose bytes are to be overwritten
_NOTE_START = b"PSKNAMED\n"
MERGED_START = b"PSKMERGE\n"
_NOTE_BYTES_MAX = 1 << 20
_SECTOR = 512
_MARKS = {  # how the pages before the index begin
    0: (L.SEGMENT_MAGIC, segment.BEGUN),
    L.SLOT_A_OFFSET: (L.SLOT_MAGIC,),
    L.COPY_A_OFFSET: (L.SEGMENT_MAGIC,),
    L.SLOT_B_OFFSET: (L.SLOT_MAGIC,),
    L.COPY_B_OFFSET: (L.SEGMENT_MAGIC,),
}


def is_leftover_name(name: str) -> bool:
    """Whether a name is one of unfinished work."""
    if not name.endswith(_END):  # quickly: most are segments
        return False
    return bool(
        name in (*_CONTROL_TEMPORARY, NEXT)
        or _PREPARED.fullmatch(name)
        or _REWRITTEN.fullmatch(name)
        or _MERGED.fullmatch(name)
        or _LOAD.fullmatch(name)
    )


def is_ours(path: Name) -> bool:
    """Whether the file of that name has Penstock's content."""
    name = path.base
    if _LOAD.fullmatch(name):
        return _is_load(path)
    if name == control.NAME or name in _CONTROL_TEMPORARY:
        return begins_as(path, L.CONTROL_MAGIC)
    if name == locks.NAME:
        return locks.is_ours(path.directory)
    prepared = _PREPARED.fullmatch(name) or _REWRITTEN.fullmatch(name)
    if name == NEXT or prepared or segment.is_name(name):
        return _begins_as_segment(path)
    if _MERGED.fullmatch(name):
        return begins_as(path, MERGED_START)
    return name == NOTE and begins_as(path, _NOTE_START)


def _is_load(path: Name) -> bool:
    """Whether a directory has only files of a load."""
    try:
        directory = files.hold_dir(path)
        names = files.list_dir(directory)
    except PenstockError:
        return False  # a file, a link, or gone
    return all(is_ours(directory.file(n)) and not _LOAD.fullmatch(n) for n in names)


def begins_as(path: str, magic: bytes) -> bool:
    """Whether a file begins with ``magic``, or with a sector of zeros; False if not a file."""
    start = _start_of(path)
    return start is not None and (start.startswith(magic) or not start[:_SECTOR].strip(b"\0"))


def _begins_as_segment(path: str) -> bool:
    """Whether a file is an unfinished segment, of which any sector may have been lost."""
    start = _start_of(path)
    if start is None:
        return False
    marked = any(start.startswith(magics, at) for at, magics in _MARKS.items())
    return marked or not start[:_SECTOR].strip(b"\0")


def _start_of(path: str) -> bytes | None:
    """The pages before a segment's index; None for a link, a missing file, or anything else."""
    fd = files.open_if_there(path)
    if fd is None:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return files.read_at(fd, L.INDEX_OFFSET, 0, path)
    finally:
        files.close(fd)


def sweep(directory: Directory, names: list[str]) -> None:
    """Delete unfinished work among ``names``, but not loads; under LOCK_EX only.

    Old generations with an erased key stay: they must be overwritten first, by the next erasure. So
    do notes of merged segments, as long as these are there.
    """
    for name in names:
        kept = name.startswith((LOAD, ERASE, MERGED))
        if is_leftover_name(name) and not kept and is_ours(directory.file(name)):
            files.unlink(directory.file(name))
    _keep_foreign_control(directory.file(control.NAME))


def sweep_loads(directory: Directory, names: list[str]) -> None:
    """Delete the loads among ``names``, once recovery has read their notes; under LOCK_EX only."""
    for name in names:
        if is_leftover_name(name) and _LOAD.fullmatch(name) and is_ours(directory.file(name)):
            files.remove_tree(directory.file(name))


def merged_into(name: str) -> int:
    """The base of the segment that others are merged into, by a note's name; 0 if it is no note."""
    match = _MERGED.fullmatch(name)
    return int(match[1]) if match else 0


def free_name(directory: Directory, name: str) -> Name:
    """A path for a file of ours called ``name``; another name if a foreign file has that one.

    A foreign file is never touched. It may also be one of ours that power loss garbled.
    """
    path = directory.file(name)
    if not files.exists(path) or is_ours(path):
        return path
    other = directory.file(f"{name.removesuffix('.tmp')}.0.tmp")
    if files.exists(other) and not is_ours(other):
        raise AlreadyExists(
            f"{other}: is not part of this log, but has the name of a file that it needs; "
            "move it away and try again",
            filename=str(other),
        )
    return other


def _keep_foreign_control(path: Name) -> None:
    """Make way for control: a log opens even if a foreign or damaged file has its name."""
    if files.exists(path) and not is_ours(path):
        aside = path.directory.file(f"{path.base}.foreign-{_core.now_ns()}")
        files.rename(path, aside, replace=False)
        logger.warning("%s: is not control of a log; kept as %s", path, aside)


def note_names(directory: Directory, named: list[tuple[Name, str]], mode: int) -> None:
    """Note in a load's directory which files they are, before they get their names.

    It need not be durable: after power loss it is not trusted.
    """
    path = directory.file(NOTE)
    lines = [f"{name} {files.inode(source)}\n" for source, name in named]
    fd = files.create_file(path, mode)
    try:
        files.write_at(fd, _NOTE_START + "".join(lines).encode(), 0, path)
    finally:
        files.close(fd)


def abandoned(directory: Directory) -> set[tuple[str, int]]:
    """Name and inode of each file that loads, including dead ones, have named."""
    found: set[tuple[str, int]] = set()
    for name in files.list_dir(directory):
        if not _LOAD.fullmatch(name):
            continue
        try:
            note = files.hold_dir(directory.file(name)).file(NOTE)
            fd = files.open_file(note, write=False)
        except NotFound:
            continue
        try:
            text = files.read_at(fd, _NOTE_BYTES_MAX, 0, note)
        finally:
            files.close(fd)
        if text.startswith(_NOTE_START):
            for line in text[len(_NOTE_START) :].decode("ascii", "replace").splitlines():
                named, _, inode = line.partition(" ")
                if inode.isdigit():
                    found.add((named, int(inode)))
    return found
