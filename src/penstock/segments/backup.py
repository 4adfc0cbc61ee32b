"""Copy a live log to a new directory, without stopping its writers.

Segments that have rolled are copied as they are; of the active one, the frames that were published
when the copy began. The copy is built under a temporary name and renamed when it is on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from penstock import _core
from penstock import layout as L
from penstock.archive.naming import INSIDE, Stored
from penstock.consumers.folder import copy_all, make_folder
from penstock.errors import AlreadyExists, NotFound
from penstock.handle.storage import Beside
from penstock.layout import SegmentPosition
from penstock.report import Progress
from penstock.segments import segment
from penstock.segments.segment import Header
from penstock.segments.store import Store
from penstock.settings import Settings
from penstock.system import files
from penstock.system.directory import Directory
from penstock.system.forks import Begun

T = TypeVar("T")

_STEP = 8 << 20
_TRIES = 20  # listings, before a gap between segments is believed


def backup(
    store: Store,
    head: Callable[[], int],
    settings: Settings,
    target: str,
    progress: Progress | None,
    beside: Beside | None = None,
) -> int:
    """Copy every segment up to the ``head`` of now; returns the last seq copied.

    ``beside`` copies what else belongs to the log to a directory, for a copy up to a seq.
    """

    def fill(partial: str) -> int:
        last = _copy_all(store, head, settings, partial, progress)
        if beside is not None:
            beside(partial, last + 1)
        return last

    return new_directory(target, settings.dir_mode, fill)


def new_directory(target: str, mode: int, fill: Callable[[str], T]) -> T:
    """Make a directory that is complete and on disk when it gets its name; the result of ``fill``.

    It is filled under a temporary name, which is deleted if that fails. ``fill`` may call code
    that forks: a child neither names nor deletes it.
    """
    begun = Begun("copy")
    if os.path.lexists(target):
        raise AlreadyExists(
            f"{target}: this path exists already; give that of a new directory",
            filename=target,
        )
    parent = os.path.dirname(os.path.abspath(target))
    partial = f"{target.rstrip('/')}.partial-{_core.now_ns()}"
    files.make_dir(partial, mode)
    try:
        filled = fill(partial)
        begun.check()
        _sync_directory(partial)
        files.rename(partial, target)
        _sync_directory(parent)
    except BaseException:
        if begun.here:
            import shutil

            shutil.rmtree(partial, ignore_errors=True)
        raise
    return filled


def _sync_directory(path: str) -> None:
    fd = files.open_dir(path)
    try:
        files.sync_dir(fd, path)
    finally:
        files.close(fd)


def _copy_all(
    store: Store,
    head: Callable[[], int],
    settings: Settings,
    partial: str,
    progress: Progress | None,
) -> int:
    begun = Begun("backup")
    sources: list[tuple[int, str, Header, int]] = []
    while not sources:  # retention may have deleted them all meanwhile, even the one of that head
        there = head()
        sources = _open_all(store, there)
    active = SegmentPosition.unpack(there).number
    try:
        total = sum(end for *_, end in sources)
        done = 0
        for fd, path, header, end in sources:
            _copy_one(fd, path, header, end, settings, partial, active=header.number == active)
            done += end
            if progress is not None:
                progress(done, total)
                begun.check()
    finally:
        for fd, *_ in sources:
            files.close(fd)
    name = os.path.join(partial, segment.file_name(sources[-1][2].base_seq))
    m, _ = segment.map_segment(name)
    walk, state, bad_at = m.walk(m.data_end or m.grown())
    if walk.offset < sources[-1][3]:
        raise m.damage(bad_at, state, walk.next_seq - 1)
    last: int = walk.next_seq - 1

    def folder() -> Directory:
        return make_folder(files.hold_dir(partial), settings.dir_mode)

    copy_all(store.directory, folder, sources[-1][2].uuid, last + 1, settings.file_mode)
    copy_archive(store.directory, partial, settings.file_mode)
    return last


def copy_archive(directory: Directory, partial: str, mode: int) -> None:
    """Copy the archived segments that are inside the log's directory."""
    try:
        source = files.hold_dir(directory.file(INSIDE))
    except NotFound:
        return
    target = os.path.join(partial, INSIDE)
    files.make_dir(target, Settings(file_mode=mode).dir_mode)
    for name in files.list_dir(source):
        if Stored.parse(name, 0) is None:
            continue
        path = source.file(name)
        reading = files.open_file(path, write=False)
        try:
            copy = os.path.join(target, name)
            fd = files.create_file(copy, mode)
            try:
                _copy_range(reading, fd, 0, files.size(reading, path), path, copy)
                files.sync_data(fd, copy)
            finally:
                files.close(fd)
        finally:
            files.close(reading)
    source.close()
    _sync_directory(target)


def _open_all(store: Store, head: int) -> list[tuple[int, str, Header, int]]:
    """Descriptor, path, header and end of frames of each segment, so that none can disappear.

    Meanwhile retention may delete the oldest ones, and compaction may merge some: if a segment does
    not follow the one before it, all of them are listed again.
    """
    for _ in range(_TRIES):
        found = _open_listed(store, head, strict=True)
        if found is not None:
            return found
    return _open_listed(store, head, strict=False) or []  # one is missing


def _open_listed(
    store: Store, head: int, *, strict: bool
) -> list[tuple[int, str, Header, int]] | None:
    """The same; None if the listing was out of date, as far as is known, and it is ``strict``."""
    found: list[tuple[int, str, Header, int]] = []
    active, active_end = SegmentPosition.unpack(head)
    expected = 0  # the base of the next one; 0: any
    complete = False
    try:
        for base in list(store.bases(fresh=True)):
            path = store.file(base)
            try:
                fd = files.open_file(path, write=False)
            except NotFound:  # just deleted by retention, with all before it, or merged
                continue
            found.append((fd, path, segment.read_header(fd, path), 0))
            header = found[-1][2]
            if header.uuid != store.uuid or header.base_seq != base or header.number > active:
                files.close(found.pop()[0])
                continue
            if base < expected:  # it was merged into the one before
                files.close(found.pop()[0])
                continue
            if strict and base > expected and len(found) > 1:
                return None
            if header.number == active:
                found[-1] = (fd, path, header, active_end)
                break
            known = _end_of(fd, header, path)
            if known is None:
                return None
            found[-1] = (fd, path, header, known[0])
            expected = known[1]
        complete = True
    finally:
        if not complete:
            for fd, *_ in found:
                files.close(fd)
    return found


def _end_of(fd: int, header: Header, path: str) -> tuple[int, int] | None:
    """Where frames of an open segment end, and the base of the next; None if it was replaced."""
    summary = segment.read_footer(fd, header, path)
    if summary is not None:
        return summary.data_end, summary.next_seq
    try:
        m, _ = segment.map_segment(path)
    except NotFound:
        return None
    if m.generation != header.generation:
        return None
    walk, state, bad_at = m.walk(m.data_end or m.grown())
    if not walk.rolled:
        raise m.damage(bad_at, state, walk.next_seq - 1)
    end: int = walk.offset
    return end, int(walk.next_seq)


def _copy_one(
    source: int,
    path: str,
    header: Header,
    end: int,
    settings: Settings,
    partial: str,
    *,
    active: bool,
) -> None:
    target = os.path.join(partial, segment.file_name(header.base_seq))
    fd = files.create_file(target, settings.file_mode)
    try:
        size = files.size(source, path)
        sealed = not active and size >= header.segment_bytes
        files.allocate(fd, 0, L.INDEX_OFFSET, target)
        files.grow(fd, header.data_offset, target)
        segment.put_start(fd, header, target)  # of this version, not of the source's
        if sealed:
            index_end, sparse = header.producers_offset, files.write_sparse
            _copy_range(source, fd, L.INDEX_OFFSET, index_end, path, target, sparse)
            _copy_range(source, fd, header.footer_offset, size, path, target)  # and key filter
        _copy_range(source, fd, header.producers_offset, end, path, target)
        files.sync_data(fd, target)
    finally:
        files.close(fd)


def _copy_range(
    source: int,
    target: int,
    start: int,
    stop: int,
    path: str,
    to: str,
    write: Callable[[int, bytes, int, str], None] = files.write_at,
) -> None:
    while start < stop:
        data = files.read_at(source, min(_STEP - start % L.PAGE, stop - start), start, path)
        if not data:
            return
        write(target, data, start, to)
        start += len(data)
