"""Recover the end of a log: at first open, and when a writer died holding the lock.

Both do the same: find the end of what was published, finish a roll that was begun, zero the bytes
after it, and derive every word of control from the walk. Nothing published is ever zeroed: if
frames below a known head are not valid, that is damage and an error. Making segments is here too.
"""

from __future__ import annotations

import os

from penstock import _core
from penstock import layout as L
from penstock._core import Control
from penstock.errors import AlreadyExists, Corrupt, Io, Usage
from penstock.handle import control, locks
from penstock.handle.control import Words
from penstock.handle.durability import poisoning
from penstock.segments import leftovers, producers, segment
from penstock.segments.ending import Active, enter, find_end
from penstock.segments.leftovers import NEXT
from penstock.segments.segment import Header
from penstock.segments.store import Store
from penstock.settings import Settings
from penstock.system import files
from penstock.system.directory import Directory, Name
from penstock.system.messages import logger

LOST = "lost-"
STAGING = "staging"  # a directory: rows to be appended later; not part of the log
DIRECTORIES = {"consumers", "groups", "archive", STAGING}


def check_is_free(directory: Directory) -> None:
    """Refuse to make a log in a directory with other files."""
    others = [
        name
        for name in sorted(files.list_dir(directory))
        if name not in DIRECTORIES
        and not (
            (name in (control.NAME, locks.NAME) or leftovers.is_leftover_name(name))
            and leftovers.is_ours(directory.file(name))
        )
    ]
    if others:
        raise Usage(
            f"{directory}: is neither a log nor empty (it has {others[0]!r}); "
            "give the path of a new directory"
        )


def create_first(
    directory: Directory, dir_fd: int, settings: Settings, header: Header | None = None
) -> None:
    """Make the first segment of a new log, or of one that will become part of another."""
    header = header or Header(
        uuid=os.urandom(16),
        base_seq=1,
        number=1,
        generation=0,
        created_ns=_core.now_ns(),
        segment_bytes=settings.segment_size,
        prior_append_ns=0,
        prior_event_max_ns=0,
        monotone=True,
        settings=settings.to_json(),
    )
    name_segment(start_segment(directory, header, b"", settings), dir_fd, header)


def start_segment(directory: Directory, header: Header, table: bytes, settings: Settings) -> Name:
    """Write and sync the header of the prepared file, or of a new one; it has no name yet.

    A file whose sync failed is deleted: it must never count as synced.
    """
    temporary = leftovers.free_name(directory, NEXT)
    if not _fits(temporary, header):
        files.unlink(temporary)
        files.close(
            segment.prepare_file(
                temporary, header.segment_bytes, settings.file_mode, header.producers_bytes
            )
        )
    fd = files.open_file(temporary, write=True)
    try:
        segment.write_start(fd, header, table, temporary)
    except BaseException:
        files.unlink(temporary)
        raise
    finally:
        files.close(fd)
    _core.fail_point("segment.started")
    return temporary


def _fits(temporary: Name, header: Header) -> bool:
    """Whether a file prepared earlier has its first blocks where this header needs them."""
    if not files.exists(temporary):
        return False
    fd = files.open_file(temporary, write=False)
    try:
        return header.data_offset < files.size(fd, temporary) <= header.footer_offset
    finally:
        files.close(fd)


def name_segment(started: Name, dir_fd: int, header: Header, live: Control | None = None) -> None:
    """Make the started segment part of the log. ``live``: others have the log open."""
    directory = started.directory
    put_in_place(started, directory, header)
    _core.fail_point("segment.named")
    with poisoning(live):
        files.sync_dir(dir_fd, directory.path)
    _core.fail_point("segment.synced")


def put_in_place(source: Name, directory: Directory, header: Header) -> None:
    """Give a finished file the name from its header; an existing file is left alone."""
    name = directory.file(segment.file_name(header.base_seq))
    try:
        files.rename(source, name, replace=False)
    except AlreadyExists:
        check_way(directory, header)
        raise


def check_way(directory: Directory, header: Header) -> None:
    """Raise if a file has the name that a segment with that header needs.

    It is never moved: a foreign file may be a segment that another log needs.
    """
    name = directory.file(segment.file_name(header.base_seq))
    if not files.exists(name):
        return
    if _is_own(name, header):
        raise Corrupt(f"{name}: has the name that a new segment of this log needs", path=name)
    raise AlreadyExists(
        f"{name}: has the name that the next segment of this log needs, and is not part of it; "
        "move it away, then append again",
        filename=str(name),
    )


def _is_own(path: str, header: Header) -> bool:
    """Whether a file is a segment of the same log."""
    fd = files.open_file(path, write=False)
    try:
        there = segment.read_header(fd, path)
    except (Corrupt, Io):
        return False
    finally:
        files.close(fd)
    return there.uuid == header.uuid


def successor_of(active: Active) -> tuple[Header, bytes]:
    """Header and table of producers of the segment that follows ``active``."""
    settings = active.settings
    table = producers.table_of(active.map, active.header, active.walk.producer_offset)
    packed = table.pack(settings.segment_size // L.PRODUCERS_SHARE)
    header = Header(
        uuid=active.header.uuid,
        base_seq=active.walk.next_seq,
        number=active.header.number + 1,
        generation=0,
        created_ns=_core.now_ns(),
        segment_bytes=settings.segment_size,
        prior_append_ns=active.walk.last_append_ns,
        prior_event_max_ns=active.walk.event_max_ns,
        monotone=active.walk.monotone,
        settings=settings.to_json(),
        producers_bytes=len(packed),
        producers_crc=_core.crc32c(packed) if packed else 0,
    )
    return header, packed


def clear_tail(
    active: Active,
    directory: Directory,
    dir_fd: int,
    limit: int,
    live: Control | None,
    *,
    due: bool,
) -> bool:
    """Zero the bytes between the published end and ``limit``; returns whether there were any.

    If a repair is ``due``, even zeros are synced: the process that wrote them may have died before
    its sync, and old bytes on disk would follow the next append if the power failed.
    """
    m = active.map
    start = active.walk.offset
    m.grown()
    limit = min(limit, active.allocated)  # nothing was ever written after that
    if start >= limit:
        return False
    page_end = min(limit, -(-start // L.PAGE) * L.PAGE)
    dirty = not m.is_zero(start, page_end)
    at = files.next_data(m.fd, page_end, m.path) if page_end < limit else None
    if at is not None and at < limit:
        at = max(at, page_end)
        dirty = not m.is_zero(at, limit) or dirty
    if not dirty:
        if due:
            with poisoning(live):
                files.sync_data(m.fd, m.path)
        return False
    if m.stranded(start, limit, active.walk.next_seq):
        _keep_aside(active, directory, dir_fd, start, limit)
    m.zero(start, limit)
    _core.fail_point("repair.zeroed")
    with poisoning(live):
        files.sync_data(m.fd, m.path)
    logger.info(
        "%s: removed an unfinished append after seq %d (bytes %d to %d)",
        m.path,
        active.walk.next_seq - 1,
        start,
        limit,
    )
    return True


def _keep_aside(active: Active, directory: Directory, dir_fd: int, start: int, limit: int) -> None:
    """Save the bytes of events that nothing valid leads to: there is a torn page or damage before.

    They and their name are on disk when this returns. A file of that name may be incomplete, from
    an earlier power failure.
    """
    m = active.map
    stem = f"{LOST}{active.header.base_seq:020d}-{start}"
    path = directory.file(f"{stem}.bin")
    data = m.bytes_at(start, limit - start)
    if files.exists(path) and not _holds(path, data):
        path = directory.file(f"{stem}-{_core.now_ns()}.bin")
    fresh = not files.exists(path)
    fd = (
        files.create_file(path, active.settings.file_mode)
        if fresh
        else files.open_file(path, write=True)
    )
    try:
        if fresh:
            files.write_at(fd, data, 0, path)
        files.sync_data(fd, path)
    finally:
        files.close(fd)
    files.sync_dir(dir_fd, directory.path)
    logger.warning(
        "%s: the frames after seq %d are not valid, but events follow; they are kept in %s",
        m.path,
        active.walk.next_seq - 1,
        path,
    )


def _holds(path: str, data: bytes) -> bool:
    """Whether a file has exactly that content."""
    fd = files.open_file(path, write=False)
    try:
        return files.read_at(fd, len(data) + 1, 0, path) == data
    finally:
        files.close(fd)


def _move_apart(
    store: Store, dir_fd: int, active: Active, live: Control | None, *, trusted: bool
) -> None:
    """Move segments aside that nothing leads to, so that no later roll can lead to them.

    If no page can have been lost since they were named (``trusted``), nothing ever led to those of
    a killed load: they have no acknowledged events, and are deleted. All others are renamed and
    kept: after power loss they may be all that is left of some events.
    """
    killed = leftovers.abandoned(store.directory) if trusted else set()
    for base in active.apart:
        path = store.file(base)
        if (path.base, files.inode(path)) in killed:
            files.unlink(path)
            store.spurious.pop(path.base, None)
            logger.info("%s: removed; it is from a load that was killed before its end", path)
        else:
            _keep_apart(store, path, base, active.walk.next_seq - 1, trusted=trusted)
        _core.fail_point("repair.moved")
    with poisoning(live):
        files.sync_dir(dir_fd, store.path)


def _keep_apart(store: Store, path: Name, base: int, last_seq: int, *, trusted: bool) -> None:
    aside = store.directory.file(f"{LOST}{base:020d}-0.bin")
    if files.exists(aside):
        aside = store.directory.file(f"{LOST}{base:020d}-0-{_core.now_ns()}.bin")
    files.rename(path, aside)
    logger.warning(
        "%s: nothing leads to it from seq %d%s; it is kept as %s",
        path,
        last_seq,
        "" if trusted else ", since the machine lost power, or a sync failed",
        aside,
    )


def recover(
    store: Store,
    dir_fd: int,
    hint: Words | None,
    *,
    live: Control | None = None,
    limit: int | None = None,
    fresh: bool = True,
) -> Active:
    """Recover the end of the log: the caller holds LOCK_EX, or the write lock of ``live``.

    1. Follow the segments to the end of what was published.
    2. Move segments after it aside, to which nothing leads.
    3. If it is a roll frame, make its successor and continue there.
    4. If that segment was not the active one in control, the process that named it may have died
       before the name was on disk: sync the directory.
    5. Zero the bytes after the end.
    """
    active = find_end(store, hint=hint, write=True, fresh=fresh)
    _core.fail_point("repair.walked")
    if active.apart:
        _move_apart(store, dir_fd, active, live, trusted=_no_page_lost(hint, live))
    while active.walk.rolled:
        header, table = successor_of(active)
        check_way(store.directory, header)
        started = start_segment(store.directory, header, table, active.settings)
        name_segment(started, dir_fd, header, live)
        logger.info("%s: finished the roll that a dead process began", store.path)
        store.readmit(header.base_seq)
        made = enter(store, header.base_seq, None, write=True, after=active)
        assert made is not None
        active = made
        limit = None
    if hint is None or hint[L.C_ACTIVE_BASE] != active.header.base_seq:
        with poisoning(live):
            files.sync_dir(dir_fd, store.path)
    due = hint is None or hint[L.C_RESERVED] != hint[L.C_HEAD]
    limit = active.map.file_bytes if limit is None else limit
    clear_tail(active, store.directory, dir_fd, limit, live, due=due)
    return active


def _no_page_lost(hint: Words | None, live: Control | None) -> bool:
    """Whether everything that was ever written is there: same boot, and no failed sync."""
    if live is not None:
        return not live.get(L.C_POISONED)
    return hint is not None and not hint[L.C_POISONED] and not hint[L.C_SYNCING]
